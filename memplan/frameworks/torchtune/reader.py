"""torchtune's YAML of a recipe, and ``tune run`` with one and overrides.

A config says the model by the function that builds it, and not on how many GPUs it runs: the recipe's name does, of the
command or of the comment that every config begins with. All is stored in one dtype; over several GPUs layers are units
of FSDP2, of FSDP1 until 0.2. Source: torchtune 0.7 recipes/*.py, training/_distributed.py."""

from collections.abc import Mapping

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.asking import WRITE
from memplan.frameworks.base import ASSUMED, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.optimizer_classes import put_class
from memplan.frameworks.files.documents import Document
from memplan.frameworks.own_words.names import OTHERS
from memplan.frameworks.torchtune import keys as table
from memplan.frameworks.torchtune.keys import COMPONENT
from memplan.frameworks.torchtune.launch import Run, of_comment, of_config, of_script, runs
from memplan.frameworks.torchtune.model import put_model
from memplan.frameworks.trl.methods import method_of_class
from memplan.models import load_model


def recognise(document: Document) -> tuple[str, ...]:
    """``_component_`` of torchtune beside a model's; ``tune run`` of a recipe."""
    if document.form == "shell":
        return tuple("tune run" for run, _, _ in runs(document))[:1]
    values = document.settings.values
    inner = [key for key, value in values.items() if isinstance(value, Mapping) and "_component_" in value]
    own = [key for key in inner if "torchtune." in str(values[key]["_component_"])]
    return tuple(own[:1]) if own and document.form == "yaml" else ()


def read(document: Document, draft: Draft) -> None:
    """One training, of a config or of the command that names one."""
    if document.form == "shell":
        settings, run = of_script(document, draft)
        keys = Keys(draft, settings, FRAMEWORK, table.DEFAULTS)
        _processes(keys, run, document.path, said=True)
    else:
        keys = Keys(draft, of_config(document), FRAMEWORK, table.DEFAULTS)
        _processes(keys, of_comment(document), document.path, said=False)
    if not keys.has(f"optimizer{COMPONENT}"):
        raise InvalidJob(
            f"{document.path}: a config of torchtune's without an optimizer: it generates, evaluates or quantises",
            "name the config of a training",
        )
    _training(keys)


def _processes(keys: Keys, run: Run | None, path: str, said: bool) -> None:
    """On how many GPUs, of the recipe and the launcher; ``said``: in a command, not in a comment or a name."""
    draft = keys.draft
    known = table.RECIPES.get(run.name) if run else None
    draft.facts["recipe"] = run.name if run else ""
    if run and said and known is None:
        draft.warn(run.name, f"{path}, line {run.line}", "a recipe that is none of torchtune's", "method")
    several = known[1] if known else _several(keys)
    draft.facts["alone"] = several is False
    if several is False:
        why = f"torchtune's {run.name if run and known else 'single-device'} recipe"
        if int(draft.options.get("num_gpus") or 1) > 1:
            draft.facts["num_gpus"], why = 1, f"{why} runs on one of those that are there"
            draft.origins["num_gpus"] = Origin(ASSUMED, why)
        keys.assume("num_gpus", 1, why)
    elif run and str(run.gpus).isdigit() and str(run.nodes).isdigit():
        gpus, nodes = int(run.gpus), int(run.nodes)
        kind = FILE if said else "default"
        where = f"{path}, line {run.line}" if said else f"the comment in {path}"
        draft.put("num_gpus", gpus * nodes, Origin(kind, f"{where}: --nproc_per_node"))
        if nodes > 1:
            draft.put("gpus_per_node", gpus, Origin(kind, f"{where}: --nnodes"))
    else:
        where = path if not said else f"{path}, line {run.line if run else 1}"
        unnamed = "the recipe, which nothing here names, runs on one GPU or on several"
        draft.ask("num_gpus", where, "as many GPUs as its launcher says" if several else unnamed)


def _several(keys: Keys) -> bool | None:
    """Whether a config is a distributed recipe's, by keys that only those have, or that they cannot run."""
    if any(keys.has(key) for key in table.DISTRIBUTED_ONLY):
        return True
    component = str(keys.get(f"optimizer{COMPONENT}"))
    return False if component.startswith("bitsandbytes.") else None


def _training(keys: Keys) -> None:
    """Every key of a config."""
    draft = keys.draft
    draft.put("trainer", "torchtune", Origin(FILE, f"{keys.settings.path}: torchtune's settings"))
    method = _method(keys)
    gpus = 1 if draft.facts["alone"] else int(draft.now("num_gpus") or 1)
    dtype = {"bf16": "bf16", "fp32": "fp32", "fp16": "fp16"}.get(keys.text("dtype") or "bf16")
    if dtype is None:
        raise keys.settings.error("dtype", f"{str(keys.get('dtype'))[:20]!r} is not modelled", "bf16 or fp32")
    keys.put("precision", dtype, "dtype")
    keys.put("batch_size", keys.whole("batch_size"), "batch_size")
    keys.put("gradient_accumulation_steps", keys.whole("gradient_accumulation_steps"), "gradient_accumulation_steps")
    put_model(keys, dtype)
    _length(keys)
    version = _loss(keys, method)
    _sharding(keys, gpus, version)
    _activations(keys, gpus)
    _optimizer(keys)
    _switches(keys)
    keys.skip(*(key for key in keys.settings.values if key.startswith(table.SECTIONS) or "_checkpointer." in key))
    keys.close((*table.HARMLESS, "dataset", "dataset_val", "collate_fn"))


def _method(keys: Keys) -> str:
    """Of the loss, else of the recipe's name."""
    loss = str(keys.get(f"loss{COMPONENT}") or "")
    found = next((method for part, method in table.METHOD_OF_LOSS.items() if part in loss), "")
    if keys.has(f"kd_loss{COMPONENT}") or keys.has(f"teacher_model{COMPONENT}"):
        found = "distill"
        keys.skip(*(key for key in keys.settings.values if key.startswith(("kd_", "teacher_"))))
    recipe = table.RECIPES.get(str(keys.draft.facts.get("recipe")))
    method = found or (recipe[0] if recipe and not loss else "sft")
    keys.put("method", method, f"loss{COMPONENT}", f"kd_loss{COMPONENT}")
    return method


def _length(keys: Keys) -> None:
    """What the tokenizer cuts at; null cuts nowhere, and what is longer than the model's positions is an error
    (modules/transformer.py: _validate_inputs)."""
    found = next((key for key in ("tokenizer.max_seq_len", "dataset.max_seq_len") if keys.has(key)), None)
    if found is not None:
        keys.copy("sequence_length", found, "whole")
    elif "sequence_length" not in keys.draft.given:
        where, what = (
            keys.settings.where("tokenizer.max_seq_len"),
            "null: samples of any length are trained on as they are",
        )
        longest = keys.whole("model.max_seq_len") or _positions(keys.draft.values.get("model"))
        if longest:
            keys.draft.put("sequence_length", longest, Origin(ASSUMED, "the model's positions, the most that it takes"))
            keys.draft.bound("tokenizer.max_seq_len", where, what, "lengths", "sequence_length")
        else:
            keys.draft.ask("sequence_length", where, what)


def _positions(model: object) -> int:
    """The most tokens that the model takes; 0 where its config is not at hand."""
    try:
        return load_model(model).max_positions or 0  # type: ignore[arg-type]
    except MemplanError:
        return 0


CHUNKS = 8
"""Parts in which torchtune's losses make logits by default."""


def _loss(keys: Keys, method: str) -> str:
    """The loss, and the version whose default it was: that of the schedule."""
    at = f"loss{COMPONENT}"
    component = keys.text(at) or table.LINEAR_LOSS
    old = str(keys.get(f"checkpointer{COMPONENT}")).startswith("torchtune.utils.")
    version = "0.2" if old else table.LOSSES.get(component) or "0.7"
    if method == "sft" and component not in table.LOSSES:
        decides = ("method", WRITE) if method_of_class(component.rpartition(".")[2]) else ("loss",)
        keys.warn(at, f"{component[:60]} is no loss of torchtune's that is known", *decides)
    elif method == "sft" and component == "torch.nn.CrossEntropyLoss" and not old:
        keys.put("loss_head", "cross-entropy", at)
    chunks = keys.whole("loss.num_output_chunks") or CHUNKS
    if chunks < CHUNKS and method == "sft" and not old:
        keys.put("loss_head", "cross-entropy", "loss.num_output_chunks")
    if chunks != CHUNKS:
        counted = "whole logits" if chunks < CHUNKS else f"{CHUNKS} chunks"
        keys.bound(
            "loss.num_output_chunks", f"{counted} are counted, which take no less than its {chunks} chunks", "loss"
        )
    keys.put("trainer_version", version, at, f"checkpointer{COMPONENT}")
    for name in ("ignore_index", "mask_ignored_tokens", "beta", "label_smoothing", "loss_type", "epsilon", "kl_coeff"):
        keys.skip(f"loss.{name}")
    if old and _is_packed(keys):
        keys.put("padded", True, "dataset.packed")
    return version


def _is_packed(keys: Keys) -> bool:
    """Whether a data set, or one of several, is packed."""
    several = keys.get("dataset")
    parts = several if isinstance(several, list) else ()
    return bool(keys.flag("dataset.packed")) or any(isinstance(part, Mapping) and part.get("packed") for part in parts)


def _sharding(keys: Keys, gpus: int, version: str) -> None:
    """FSDP over several GPUs; what bears there and is not modelled."""
    name = "none" if gpus <= 1 else "fsdp" if version == "0.2" else "fsdp2"
    keys.draft.put("sharding", name, Origin("trainer", f"{FRAMEWORK.label}: {'one device' if gpus <= 1 else 'FSDP'}"))
    strategy = keys.text("fsdp_sharding_strategy") or "FULL_SHARD"
    kept = keys.flag("fsdp_reshard_after_forward") is False or strategy == "SHARD_GRAD_OP"
    if name == "fsdp2" and kept:
        keys.put("reshard_after_forward", False, "fsdp_reshard_after_forward", "fsdp_sharding_strategy")
    if strategy not in ("FULL_SHARD", "SHARD_GRAD_OP"):
        keys.warn("fsdp_sharding_strategy", f"{strategy[:30]} is counted as FULL_SHARD", "parallelism")
    if keys.flag("fsdp_cpu_offload") and gpus > 1:
        put_inner(keys, "fsdp", "cpu_offload", True, "fsdp_cpu_offload")
    for key, job_key in (("tensor_parallel_dim", "tensor_parallel"), ("context_parallel_dim", "context_parallel")):
        if (keys.whole(key) or 1) > 1:
            keys.put(job_key, keys.whole(key), key)
    if (keys.whole("data_parallel_replicate_dim") or 1) > 1:
        keys.warn(
            "data_parallel_replicate_dim", "states are counted as sharded over all GPUs, not in replicas", "parallelism"
        )
    for key in ("custom_sharded_layers", "memory_efficient_fsdp_wrap"):
        if gpus > 1 and keys.get(key):
            keys.warn(key, "embeddings and head are counted with the root, which stays gathered", "")
        keys.skip(key)


def _activations(keys: Keys, gpus: int) -> None:
    """Checkpointing of every layer, or of some; what is kept, on the host."""
    on = keys.flag("enable_activation_checkpointing")
    mode = keys.text("ac_mode")
    option = str(keys.get("ac_option") or "")
    if mode == "selective" and not on and option.isdigit() and int(option):
        keys.put("gradient_checkpointing", f"every:{option}", "ac_option")
    elif mode is not None and not on and mode != "full":
        keys.put("gradient_checkpointing", "none", "ac_mode")
        keys.warn("ac_mode", "all activations are counted as kept", "checkpointing")
    else:
        full = on or mode == "full"
        keys.put("gradient_checkpointing", "full" if full else "none", "enable_activation_checkpointing")
    if keys.flag("enable_activation_offloading"):
        if gpus > 1:
            why, where = "over several GPUs activations are counted as on the card", "enable_activation_offloading"
            keys.draft.bound(where, keys.settings.where(where), why, "checkpointing")
        else:
            keys.put("offload", ["activations"], "enable_activation_offloading")


def _optimizer(keys: Keys) -> None:
    """A class with its arguments; in backward where the recipe is told so."""
    at = f"optimizer{COMPONENT}"
    component = keys.text(at) or ""
    arguments = {
        "fused": keys.flag("optimizer.fused"),
        "foreach": keys.flag("optimizer.foreach") is not False,
        "momentum": keys.number("optimizer.momentum"),
    }
    keys.skip(*(key for key in keys.settings.values if key.startswith("optimizer.")))
    modelled = put_class(keys, at, component, arguments)
    if keys.flag("optimizer_in_bwd"):
        if not modelled or keys.draft.values.get("sharding") == "fsdp":
            keys.warn("optimizer_in_bwd", "gradients are counted as held until the step", "optimizer")
        else:
            args = keys.draft.values.get("optimizer_args") or {}
            keys.put("optimizer_args", {**args, "in_backward": True}, "optimizer_in_bwd")


def _switches(keys: Keys) -> None:
    """Compilation, evaluation, and what changes the model's own code."""
    parts = [key for key in keys.settings.values if key.startswith("compile.")]
    keys.skip("compile", *parts)
    on = keys.flag("compile.model") if parts else keys.flag("compile")
    if on and {"offload", "quantization"} & set(keys.draft.values):
        why = "with offloaded activations or a quantised base it is counted as it is written, which holds more"
        keys.warn((*parts, "compile")[0], why, "")
    elif on:
        keys.put("compile", True, (*parts, "compile")[0])
    if keys.has("run_val_every_n_steps"):
        keys.copy("eval_batch_size", "batch_size_val" if keys.has("batch_size_val") else "batch_size", "whole")
    keys.skip("run_val_every_n_steps", "batch_size_val")
    for key, why in (
        (f"quantizer{COMPONENT}", "fake quantisation of weights and activations is not counted"),
        ("enable_fp8_training", "products in fp8 are not counted"),
        ("resize_token_embeddings", "the embeddings are counted as the model's own"),
    ):
        if keys.get(key):
            keys.warn(key, why, "model" if key.startswith("resize") else "quantisation")
    keys.skip(*(key for key in keys.settings.values if key.startswith("quantizer.")), "fp8_recipe_name")
    keys.skip("fake_quant_after_n_steps")


FRAMEWORK = Framework("torchtune", "torchtune", "0.7", recognise, read, trainer="torchtune", extends=OTHERS)
