"""The real model of a job: transformers' class from the config, PEFT's adapters, checkpointing; and the optimizer."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any
from unittest import mock

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)
from transformers.initialization import no_init_weights
from transformers.modeling_layers import GradientCheckpointingLayer

from memplan.errors import InvalidJob
from memplan.resolve.adapted_parts import PARTS
from memplan.resolve.freezing import tower_rests
from memplan.spec.freezing import LANGUAGE_MODEL, Patterns, path_of
from memplan.spec.job import Job
from memplan.spec.recipe import Recipe
from memplan.tables.families import FAILING
from memplan.tables.trainer import version_key
from memplan.tables.trainers import NEWEST
from memplan.trace.images import fill_tiles
from memplan.trace.losses import MODEL_LOSSES, stacked_balance
from memplan.trace.runs import SECOND
from memplan.trace.selective import selective_contexts

NAMED = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def build_model(
    config: Mapping[str, Any], recipe: Recipe, dtype: torch.dtype, device: str, scores: bool = False
) -> torch.nn.Module:
    """The model of a config, with a scalar head for reward models and critics (``scores``), in training mode."""
    check_type(config["model_type"])
    settings = {key: value for key, value in config.items() if key not in ("model_type", "dtype", "torch_dtype")}
    parsed = AutoConfig.for_model(config["model_type"], **settings)
    if recipe.trainer.models.unties:
        parsed.tie_word_embeddings = parsed.get_text_config().tie_word_embeddings = False
    parsed.use_cache = False
    parsed.get_text_config().use_cache = False
    maker: Any = AutoModelForImageTextToText if recipe.model.tower else AutoModelForCausalLM
    if recipe.model.encoder:
        maker = AutoModelForSeq2SeqLM
        if getattr(parsed, "decoder_start_token_id", None) is None:
            parsed.decoder_start_token_id = 0
    if recipe.method.score_head or scores:
        maker = AutoModelForSequenceClassification
        parsed.num_labels = 1
        if getattr(parsed.get_text_config(), "pad_token_id", None) is None:
            parsed.get_text_config().pad_token_id = parsed.pad_token_id = 0
    _check_class(recipe, maker._model_mapping.get(type(parsed), None))
    attention: Any = "eager" if recipe.operators.attention == "eager" or not recipe.model.windows else "sdpa"
    if getattr(parsed, "audio_config", None) is not None:
        attention = dict.fromkeys(("", *parsed.sub_configs), attention) | {"audio_config": "eager"}  # has no other
    with torch.device(device), no_init_weights(), staying():
        model: torch.nn.Module = maker.from_config(parsed, attn_implementation=attention, dtype=dtype)
        model.tie_weights()
    if recipe.loss.head in MODEL_LOSSES:
        model.loss_function = MODEL_LOSSES[recipe.loss.head]
    _balance(model, recipe.loss.router.stacked)
    if not any(getattr(mixer, "makes_kv", "") for mixer in recipe.model.mixers):
        for module in model.modules():  # Gemma 4's class up to transformers 5.23 hands no keys on that none reads
            if getattr(module, "store_full_length_kv", False):
                module.store_full_length_kv = False
    _gather_strays(model, device)
    _keep_in_fp32(model, dtype)
    fill_tiles(model, recipe)
    return model.train()


BALANCING: dict[str, Any] = {}
"""The classes' own load-balancing losses, by module."""


def _balance(model: torch.nn.Module, stacked: bool) -> None:
    """Routers are balanced by the class's own function, or by that of transformers 4."""
    module: Any = import_module(type(model).__module__)
    if hasattr(module, "load_balancing_loss_func"):
        own = BALANCING.setdefault(module.__name__, module.load_balancing_loss_func)
        module.load_balancing_loss_func = stacked_balance if stacked else own


def staying() -> Any:
    """Modules stay where and what they are made: moving a fake parameter would swap tensors, which fake ones forbid.

    Adapters are made where they belong; what a class casts while it is made (DeepSeek-V4 from transformers 5.24 on) is
    what it keeps in fp32 when weights are loaded, too."""
    return mock.patch.object(torch.nn.Module, "to", lambda self, *args, **kwargs: self)


def _held(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, dict[str, Any], str, torch.Tensor]]:
    """Each tensor of a model: its path, its module, the dictionary that holds it, its name there, and itself."""
    for path, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield f"{path}.{name}", module, held, name, tensor


def _made_anew(tensor: torch.Tensor, dtype: torch.dtype, device: Any) -> torch.Tensor:
    made = torch.empty(tensor.shape, dtype=dtype, device=device)
    return torch.nn.Parameter(made) if isinstance(tensor, torch.nn.Parameter) else made


def _gather_strays(model: torch.nn.Module, device: str) -> None:
    """What a module makes on the host whatever the device is (xIELU's parameters) goes where the model is."""
    for _, _, held, name, tensor in _held(model):
        if tensor.device.type != torch.device(device).type:
            held[name] = _made_anew(tensor, tensor.dtype, device)


def _keep_in_fp32(model: Any, dtype: torch.dtype) -> None:
    """What the class keeps in fp32 beside half precision when weights are loaded (``_keep_in_fp32_modules``); a model
    made from its config alone has it in ``dtype`` (transformers 5.23, core_model_loading.py: dtype_plan)."""
    patterns = [pattern.replace("*", ".*") for pattern in model._get_dtype_plan(dtype)]
    kept = re.compile("|".join(patterns)) if patterns else None
    for path, module, held, name, tensor in _held(model) if kept else ():
        persistent = name not in module._non_persistent_buffers_set
        if tensor.dtype is dtype and persistent and kept and kept.search(path):
            held[name] = _made_anew(tensor, torch.float32, tensor.device)


def check_type(model_type: str) -> None:
    """Raise InvalidJob for a type whose code comes with its weights: no such code is run."""
    if model_type not in CONFIG_MAPPING:
        raise InvalidJob(
            f"model: {model_type} is no class of transformers {version('transformers')}, and code that comes with "
            "weights is not run",
            "memplan estimate counts it from its config.json",
        )


def stored_dtype(recipe: Recipe) -> torch.dtype:
    """The dtype of the policy's weights."""
    return torch.float32 if recipe.storage.precision.weights == 4 else NAMED[recipe.storage.precision.dtype]


def disable_dropout(model: Any, recipe: Recipe) -> None:
    """TRL's disable_dropout_in_model, in methods whose trainer calls it (trl 1.16, trainer/utils.py)."""
    for module in model.modules() if recipe.method.name in recipe.trainer.disables_dropout else ():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0


def with_adapters(model: Any, job: Job, recipe: Recipe, device: str) -> Any:
    """PEFT's LoRA over the model, its adapters in the job's dtype; not over parts that the trainer leaves alone."""
    from peft import LoraConfig, get_peft_model

    assert job.lora is not None
    targets: Any = job.lora.targets
    if not isinstance(targets, str):
        every = _linears(model) if "all-linear" in targets else set()
        targets = sorted(every | {_own_name(model, name) for name in targets if name != "all-linear"})
    trained, tower = {*job.lora.modules_to_train}, recipe.model.tower
    apart = {word for word, part in PARTS.items() if tower is not None and part in tower.unadapted}
    whole = [each for name, each in model.named_parameters() if path_of(name)[:1] and path_of(name)[0] in trained]
    config = LoraConfig(
        r=job.lora.r,
        lora_alpha=int(job.lora.alpha or 16),
        target_modules=targets,
        lora_dropout=job.lora.dropout,
        use_rslora=job.lora.rslora,
        use_dora=job.lora.dora,
        bias=job.lora.bias,
        modules_to_save=[_own_name(model, module) for module in job.lora.modules_to_save] or None,
        exclude_modules=_excluded(model, {*job.lora.exclude_modules, *trained, *apart}) or None,
        layers_to_transform=list(job.lora.layers_to_transform) or None,
        rank_pattern={_own_name(model, name): rank for name, rank in job.lora.rank_pattern},
        lora_bias=job.lora.lora_bias,
        trainable_token_indices={
            _own_name(model, name): list(range(count)) for name, count in job.lora.trainable_token_indices
        }
        or None,
    )
    with torch.device(device), staying():
        adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
        if job.reference == "second-adapter":
            adapted.add_adapter(SECOND, config, autocast_adapter_dtype=False)
    for each in whole:
        each.requires_grad_(True)
    _check_routers(adapted)
    dtype = NAMED[job.lora.dtype]
    for name, tensor in (*adapted.named_parameters(), *adapted.named_buffers()):
        if "lora_" in name or "trainable_tokens" in name:
            made = tensor.data.to(dtype)
            if hasattr(made, "placements"):  # a DTensor's data is its outside alone
                tensor._local_tensor, tensor._spec = made._local_tensor, made._spec
            tensor.data = made
    _make_copies_anew(adapted)
    return adapted


def _check_class(recipe: Recipe, found: Any) -> None:
    """Raise InvalidJob for a class that fails, and for attention that it does not have: transformers refuses it too."""
    family, installed, newest = recipe.model.family, version("transformers"), NEWEST["transformers"]
    if family in FAILING and version_key(installed)[:2] == version_key(newest):
        raise InvalidJob(f"model: {FAILING[family]}", f"install another version than transformers {newest}")
    classes = found if isinstance(found, (list, tuple)) else [found]
    if recipe.operators.attention == "flash" and not all(
        getattr(each, "_supports_flash_attn", True) for each in classes
    ):
        raise InvalidJob(f"attention: {classes[0].__name__} has no flash", "use attention sdpa")


def _own_name(model: Any, module: str) -> str:
    """The class's own name of the embedding or the head; of others, their name."""
    if module not in ("embed_tokens", "lm_head", "score"):
        return module
    table = model.get_input_embeddings() if module == "embed_tokens" else model.get_output_embeddings()
    return next((path.split(".")[-1] for path, each in model.named_modules() if each is table), module)


def _excluded(model: Any, words: set[str]) -> list[str]:
    """The class's own names of modules, and paths of all that stands in a tower or a projector."""
    within = [path for path, _ in model.named_modules() if words.intersection(path_of(path)[:1])]
    return [*within, *(_own_name(model, name) for name in words - {*PARTS})]


def _linears(model: Any) -> set[str]:
    """Names of all linears but the head."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    modules = ((path, each) for path, each in model.named_modules() if isinstance(each, (torch.nn.Linear, Conv1D)))
    return {path.rsplit(".", 1)[-1] for path, each in modules if each is not head}


def _check_routers(adapted: Any) -> None:
    """Raise InvalidJob where adapters stand on a linear that returns more than one tensor: PEFT cannot run them."""
    for path, module in adapted.named_modules():
        base = getattr(module, "base_layer", None)
        if isinstance(base, torch.nn.Linear) and type(base).__name__.endswith("Router"):
            raise InvalidJob(
                f"lora.targets: {path.split('.')[-1]} ({type(base).__name__}) returns two tensors, on which PEFT "
                f"{version('peft')} fails",
                "lora.targets: [q_proj, k_proj, v_proj, o_proj, …]",
            )


def _make_copies_anew(adapted: Any) -> None:
    """``modules_to_save`` copies modules deeply, and views of a fake tensor's deep copy have storages of their own."""
    for path, module in adapted.named_modules():
        if ".modules_to_save." in path and isinstance(getattr(module, "weight", None), torch.nn.Parameter):
            module.weight = torch.nn.Parameter(torch.empty_like(module.weight.data))


def enable_checkpointing(model: Any, recipe: Recipe) -> None:
    """Layers are run again in backward. The states of random generators live on the host, so none is kept."""
    again = recipe.checkpointing.recompute._replace(numbers=())  # those that rest are among the modules
    settings: dict[str, Any] = {"use_reentrant": recipe.checkpointing.reentrant, "preserve_rng_state": False}
    if again.policy:
        settings["context_fn"] = selective_contexts(again.policy)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    if again.is_partial:
        layers = [
            each
            for path, each in model.named_modules()
            if isinstance(each, GradientCheckpointingLayer) and not re.search("visi|visual", path)
        ]  # towers are checkpointed whole
        for number, layer in enumerate(layers):
            layer.gradient_checkpointing = again.covers(number)
            if again.counts:
                how = again.policy_of(number)
                more = {"context_fn": selective_contexts(how)} if how else {}
                layer._gradient_checkpointing_func = partial(torch.utils.checkpoint.checkpoint, **settings, **more)
    if recipe.adapter is not None:
        model.enable_input_require_grads()


def rests_too(recipe: Recipe) -> tuple[str, ...]:
    """What a trainer freezes with a tower (llamafactory 0.9.5 model/model_utils/visual.py: vision_model_keys)."""
    return ("audio_tower", "embed_audio") if recipe.trainer.models.freezes_tower and tower_rests(recipe.model) else ()


def freeze(model: Any, patterns: Iterable[str]) -> None:
    """Weights that a pattern of ``freeze`` names need no gradient."""
    patterns = list(patterns)
    wanted = Patterns(map(path_of, patterns))
    for name, parameter in model.named_parameters():
        text = path_of(name)[:1] not in (("vision_tower",), ("multi_modal_projector",))
        if wanted.name(path_of(name)) or (text and LANGUAGE_MODEL in patterns):
            parameter.requires_grad_(False)
