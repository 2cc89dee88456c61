"""ms-swift: ``swift sft | pt | rlhf …`` with options or a YAML or JSON of them, its scripts by path, ``args.json``.

Words tell the version whose defaults are taken: ``sft_type`` is of 2, ``train_type`` of 3, ``tuner_type`` of 4."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from memplan.frameworks.asking import GENERATES, MODEL, SEES_TOKENS, SUCH
from memplan.frameworks.base import ASSUMED, DEFAULT, FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.commands.launch import launches, put_allocator
from memplan.frameworks.common.local_models import speaks_of_images, within
from memplan.frameworks.files.documents import Document, Settings, document_of, is_template
from memplan.frameworks.hugging_face import precision as hf_precision
from memplan.frameworks.hugging_face.arguments import HARMLESS as TRAINER_HARMLESS
from memplan.frameworks.hugging_face.arguments import put_attention, read_arguments
from memplan.frameworks.hugging_face.version import beside_torch
from memplan.frameworks.own_words.names import OTHERS, may_see_images
from memplan.frameworks.swift import keys as table
from memplan.frameworks.swift import megatron as swift_megatron
from memplan.frameworks.swift.images import read_images
from memplan.frameworks.swift.launch import put_processes, settings_of, told_of_own, verb_of, with_environment
from memplan.frameworks.swift.methods import ONLINE, read_lengths, read_method, read_preference
from memplan.frameworks.swift.tuning import put_quantised, read_optimizer, read_quantisation, read_tower, read_tuning
from memplan.frameworks.transformers import assume_one_gpu, only_launch
from memplan.tables.trainer import version_key
from memplan.units import ceil_div


class Spelled(Keys):
    """Arguments under the names of any version."""

    def named(self, key: str) -> str:
        """The spelling that the file has, or that is tried in its place."""
        said = {**self.settings.values, **self.draft.tried}
        return next((name for name in (key, *table.SPELLINGS.get(key, ())) if said.get(name) is not None), key)

    def get(self, key: str) -> Any:
        """By any spelling."""
        self._taken.update((key, *table.SPELLINGS.get(key, ())))
        value = self.raw(self.named(key))
        return self.defaults.get(key) if value is None else value

    def has(self, key: str) -> bool:
        """By any spelling."""
        return self.raw(self.named(key)) is not None

    def skip(self, *keys: str) -> None:
        """Under all their names."""
        for key in keys:
            super().skip(key, *table.SPELLINGS.get(key, ()))

    def warn(self, key: str, why: str = "not understood", decides: str | None = None, hint: str = "") -> None:
        """Under the file's name."""
        self.skip(key)
        super().warn(self.named(key), why, decides, hint)

    def _said(self, key: str | None) -> str:
        return super()._said(key if key is None else self.named(key))


def recognise(document: Document) -> tuple[str, ...]:
    """A command of ms-swift's, or a file with words of its own beside a model."""
    if document.form == "shell":
        return tuple(launch.program for launch in launches(document) if verb_of(launch)[0])[:1]
    if document.form not in ("yaml", "json"):
        return ()
    own = tuple(key for key in document.settings.values if key in table.MARKS)
    more = {"attn_impl", "template", "split_dataset_ratio", "use_ray"} & document.keys
    named = document.keys & table.MODELS and (own or ("model" in document.keys and "dataset" in document.keys and more))
    return (own or tuple(more))[:1] if named else ()


def read(document: Document, draft: Draft) -> None:
    """A file of arguments, or the one training that a script starts."""
    if document.form != "shell":
        settings, environment = with_environment(document.settings)
        megatron = bool({"tensor_model_parallel_size", "micro_batch_size"} & set(settings.values))
        read_settings(settings, draft, environment, "", megatron)
        return
    launch = only_launch([found for found in launches(document) if verb_of(found)[0]])
    verb, megatron = verb_of(launch)
    settings, environment = settings_of(launch, draft)
    put_processes(draft, environment, launch.where, launch)
    told_of_own(launch, draft)
    read_settings(settings, draft, environment, verb, megatron)


def read_settings(settings: Settings, draft: Draft, environment: Mapping[str, str], verb: str, megatron: bool) -> None:
    """All arguments of one training, under transformers or Megatron."""
    version = _version(settings, draft)
    keys = Spelled(draft, _bundled(settings, draft, version), FRAMEWORK, {} if megatron else table.BY_VERSION[version])
    put_allocator(environment, keys.settings.path, draft)
    draft.facts["chunks"] = environment.get("CELOSS_PARALLEL_SIZE", "")
    _model(keys)
    if megatron:
        swift_megatron.read_arguments(keys, verb, environment, version)
        return
    draft.put("trainer", "swift", Origin(FILE, f"{settings.path}: ms-swift's arguments"))
    if "trainer_version" not in draft.given:
        draft.put("trainer_version", version, Origin(ASSUMED, "by the words that its arguments have"))
    method = read_method(keys, verb)
    read_lengths(keys, method)
    lora = _trained(keys, version, method)
    read_images(keys, environment, version)
    read_preference(keys, method, lora)
    _evaluation(keys)
    for key in filter(keys.has, ("external_plugins", "custom_register_path", "custom_plugin")):
        keys.remark(f"{key}: code of your own is not read, and models that it loads are not counted", key)
    assume_one_gpu(draft)
    keys.close(table.HARMLESS | TRAINER_HARMLESS)
    draft.finishers["precision"] = hf_precision.settle
    draft.finishers["reentrant"] = _reentrant if version != table.SECOND else _not_reentrant
    draft.finishers["accumulation"] = _accumulate
    draft.finishers["torch"] = partial(beside_torch, settings.path)


def _version(settings: Settings, draft: Draft) -> str:
    """Whose defaults are taken: the option's, the file's own word, or that of the arguments' names."""
    said = str(draft.options.get("trainer_version") or settings.values.get("swift_version") or "")
    if said:
        major = (version_key(said) or (4,))[0]
        return {2: table.SECOND, 1: table.SECOND, 3: table.THIRD}.get(major, table.NEWEST)
    if set(settings.values) & table.OF_SECOND:
        return table.SECOND
    return table.THIRD if "train_type" in settings.values else table.NEWEST


def _model(keys: Keys) -> None:
    """The Hub's name of ModelScope's, a path, or of a Megatron checkpoint the model that its name has."""
    name = next((key for key in ("model", "load", "mcore_model", "ckpt_dir") if keys.has(key)), "")
    keys.skip("model", "load", "mcore_model", "ckpt_dir")
    if "model" in keys.draft.given:
        put_quantised(keys, str(keys.get(name or "model_type") or ""))
        return
    said, path = keys.text("model_type"), str(keys.get(name) or "") if name else ""
    known = within(said.replace("1half", "1.5")) if said else None
    if not name or (known and path[:1] in "/.~" and within(path) is None and not Path(path).exists()):
        if known is not None:
            why = f"{keys.settings.where('model_type')}: model_type {said}, ms-swift's own name, holds that of a model"
            keys.assume("model", known["hub_id"], why)
            put_quantised(keys, said or "")
        elif said:
            what = f"model_type {said[:40]} is ms-swift's own name, not the Hub's"
            sees, where = may_see_images(said), keys.settings.where("model_type")
            keys.draft.ask("model", where, what, SEES_TOKENS if sees else MODEL)
            if sees:
                keys.draft.ask("images", where, "how many images an example has", f"add {SUCH['images']}")
        return
    keys.draft.facts["sees"] = speaks_of_images(said or "")
    if is_template(path) and may_see_images(said or ""):
        what = f"{name} is {path[:60]}, and model_type {(said or '')[:40]} sees"
        keys.draft.ask("model", keys.settings.where(name), what, SEES_TOKENS)
        return
    text = (keys.text(name) or "").replace("___", ".")  # as ModelScope writes a folder's name
    if name in ("load", "mcore_model"):
        text = text.rstrip("/").rsplit("/", 1)[-1].removesuffix("-mcore")
    keys.put("model", table.hub_id(text), name)
    revision = keys.text("model_revision")
    if revision and revision not in ("main", "master"):
        keys.put("revision", revision, "model_revision")


def _trained(keys: Keys, version: str, method: str) -> bool:
    """Arguments of transformers, what trains, dtypes and attention; whether adapters train."""
    _dtypes(keys)
    keys.draft.facts["transformers"] = 5 if version == table.NEWEST else 4
    read_arguments(keys)
    lora = read_tuning(keys, version == table.NEWEST)
    read_quantisation(keys)
    read_optimizer(keys)
    _attention(keys)
    size = keys.whole("sequence_parallel_size", 1)
    _share_sequences(keys, size)
    full = size > 1 or any(keys.flag(key) for key in ("enable_dft_loss", "enable_channel_loss"))
    scales = (keys.text("loss_scale") or "default").split("+")
    full = full or bool(set(scales) - table.PLAIN_SCALES)
    if full and method == "sft" and keys.flag("use_liger_kernel"):  # compute_loss takes the labels from the model
        keys.put("loss_head", "cross-entropy", "use_liger_kernel")
    read_tower(keys)
    keys.skip("use_logits_to_keep")
    return lora


def _share_sequences(keys: Keys, size: int) -> None:
    """Ulysses: a rank holds its part of each sequence, and in attention its part of the heads; ZeRO shards over all."""
    for key in ("sequence_length", "completion_length") if size > 1 else ():
        length = keys.draft.values.get(key)
        if length and key not in keys.draft.given:
            keys.draft.values[key] = max(1, ceil_div(int(length), size))
    if size > 1:
        where = keys.settings.where("sequence_parallel_size")
        keys.draft.remarks.append(f"{where}: sequences are counted as the part that each of {size} ranks holds")
    if size > 1 and keys.draft.facts.get("chunks"):
        why = "a loss in chunks of tokens is counted as whole"
        keys.draft.bound("CELOSS_PARALLEL_SIZE", where, why, "loss")


def _bundled(settings: Settings, draft: Draft, version: str) -> Settings:
    """The arguments with what the names of bundled settings stand for, and what an FSDP file holds."""
    values = dict(settings.values)
    name = next((key for key in ("deepspeed", "deepspeed_config_path") if isinstance(values.get(key), str)), "")
    found = table.deepspeed_of(values[name], version) if name else None
    if found is not None:
        values[name] = found
    word = values.get("fsdp")
    if isinstance(word, str) and (word == "fsdp2" or word.endswith(".json")):
        file = table.FSDP2 if word == "fsdp2" else draft.follow(settings, "fsdp", word).settings.values
        values |= {"fsdp": file.get("fsdp", table.FSDP2["fsdp"]), "fsdp_config": file.get("fsdp_config") or {}}
    extra = values.get("megatron_extra_kwargs")
    if isinstance(extra, str) and extra.strip()[:1] == "{":  # handed on to Megatron as they are
        del values["megatron_extra_kwargs"]
        values |= document_of(extra, settings.path, "json").settings.values
    return replace(settings, values=values)


def _dtypes(keys: Keys) -> None:
    """``torch_dtype`` of the weights, by default the checkpoint's; autocast is in it, and of fp32 in fp16."""
    text = (keys.text("torch_dtype") or "auto").lower()
    words = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    word = words.get(text, text.removeprefix("torch."))
    half = word in ("float16", "float32")
    keys.defaults = {**keys.defaults, "bf16": not half, "fp16": half}
    hf_precision.read_load_dtype(keys, keys.named("torch_dtype") if isinstance(keys, Spelled) else "torch_dtype")
    keys.skip("torch_dtype")


def _attention(keys: Keys) -> None:
    """``attn_impl``; ``use_flash_attn`` of ms-swift 2."""
    name = (keys.text("attn_impl") or "").lower()
    if keys.has("use_flash_attn"):
        keys.put("attention", "flash" if keys.flag("use_flash_attn") else "eager", "use_flash_attn")
    elif name in table.ATTENTIONS:
        put_attention(keys, table.ATTENTIONS[name], name, "attn_impl")
    elif name:
        keys.warn("attn_impl", f"attention {name[:40]} is not modelled: sdpa is counted in its place", "attention")


def _evaluation(keys: Keys) -> None:
    """Evaluation's batch where there is something to evaluate: 1 by default, of ms-swift 2 training's
    (swift/llm/utils/argument.py)."""
    given = keys.has("val_dataset") or keys.has("cached_val_dataset")
    some = given or (keys.number("split_dataset_ratio") or 0) > 0
    if "train_type" in keys.settings.values and not some and not keys.has("split_dataset_ratio"):
        some = any(keys.has(key) for key in ("eval_steps", "per_device_eval_batch_size"))  # 0.01 up to ms-swift 3.5
    strategy = (keys.text("eval_strategy") or keys.text("evaluation_strategy") or "steps").lower()
    keys.draft.forget("eval_batch_size")
    keys.draft.unread[:] = [each for each in keys.draft.unread if each.key != "predict_with_generate"]
    online = keys.draft.values.get("method") in ONLINE
    if some and strategy != "no" and online:
        keys.remark("evaluation, which generates as a step does, is not counted")
    elif some and strategy != "no":
        if keys.flag("predict_with_generate"):
            keys.warn("predict_with_generate", GENERATES)
        if "eval_batch_size" not in keys.draft.given:
            usual = 1 if keys.flag("predict_with_generate") else keys.whole("per_device_train_batch_size")
            keys.put("eval_batch_size", keys.whole("per_device_eval_batch_size") or usual, "per_device_eval_batch_size")


def _reentrant(draft: Draft) -> None:
    """Nobody says it: not reentrant under DDP, reentrant elsewhere (trainers/mixin.py: _fix_gradient_checkpointing)."""
    sharding = str(draft.now("sharding") or "")
    several = int(draft.now("num_gpus") or 1) > 1
    if "gradient_checkpointing_reentrant" not in draft.values:
        plain = several and not sharding.startswith(("zero", "fsdp"))
        why = Origin(DEFAULT, f"{FRAMEWORK.label}: use_reentrant is false under DDP alone")
        draft.put("gradient_checkpointing_reentrant", not plain, why)


def _not_reentrant(draft: Draft) -> None:
    """ms-swift 2 on torch 2.1 and later (llm/utils/model.py: fix_gradient_checkpointing_warning)."""
    if "gradient_checkpointing_reentrant" not in draft.values:
        draft.put("gradient_checkpointing_reentrant", False, Origin(DEFAULT, "ms-swift 2.6: use_reentrant false"))


def _accumulate(draft: Draft) -> None:
    """Where nobody says it, as many micro-steps as make 16 examples over all ranks; one of online methods."""
    values = draft.said
    if values.get("gradient_accumulation_steps") or values.get("global_batch_size"):
        return
    ranks = int(values.get("num_gpus") or 1)
    steps = 1 if values.get("method") == "grpo" else ceil_div(16, int(values.get("batch_size") or 1) * ranks)
    draft.put("gradient_accumulation_steps", max(1, steps), Origin(DEFAULT, f"{FRAMEWORK.label}: 16 examples a step"))


FRAMEWORK = Framework(
    "swift", "ms-swift", table.NEWEST, recognise, read, extends=(*OTHERS, "llamafactory"), trainer="swift"
)
