"""The adapters that a program gives its model: PEFT's LoraConfig, TRL's get_peft_config, Unsloth's get_peft_model."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.asking import OF_LORA
from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.programs.files import might_be
from memplan.frameworks.programs.gathered import Gathered, verb
from memplan.frameworks.programs.models import TRAINERS, UNSLOTH
from memplan.frameworks.programs.values import Thing, Unknown, known, plain
from memplan.tables.families import LORA_TARGETS
from memplan.tables.peft_fields import FIELDS, NO_EFFECT, NOT_MODELLED
from memplan.units import words_of

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


UNSLOTH_DEFAULTS: Mapping[str, Any] = {"r": 16, "target_modules": list(SEVEN), "lora_alpha": 16, "lora_dropout": 0.0}
"""unsloth 2026.8 models/llama.py: FastLlamaModel.get_peft_model."""


UNSLOTH_HARMLESS = words_of("random_state max_seq_length use_gradient_checkpointing temporary_location *0 model")


LESS = {
    "lora_dropout": "counted as 0",
    "bias": "counted as none",
    "layers_to_transform": "adapters in every layer are counted, which takes more",
}
"""Arguments whose value, where it is not known, is counted so."""


CONFIGS = ("LoraConfig", "get_peft_model")


OF_ITS_OWN = ("peft", "peft/src/peft", "src/peft")
"""Folders in which a project has a PEFT of its own."""


def put_upcast(thing: Thing, trainer: Thing, draft: Draft) -> None:
    """Whether what is not quantised was cast to fp32: by a call, or not; by TRL where it makes the adapters."""
    prepared = thing.values.get("prepared")
    if str(draft.values.get("quantization")).startswith("gptq"):
        return  # PEFT casts nothing beside GPTQ
    if prepared is not None:
        draft.put(
            "kbit_upcast",
            True,
            Origin(FILE, f"{thing.places['prepared']}: {prepared.last if isinstance(prepared, Thing) else ''}"),
        )
    elif "upcast" in thing.values:
        why = f"{thing.places['upcast']}: modules are cast to float32: all that are not quantised are counted so"
        draft.put("kbit_upcast", True, Origin(FILE, why))
    elif thing.values["class"] in UNSLOTH or TRAINERS[trainer.last] == "transformers" or "peft_config" in thing.values:
        draft.put("kbit_upcast", False, Origin(FILE, f"{thing.place}: no prepare_model_for_kbit_training"))


def ask_loaded(place: str, draft: Draft) -> None:
    """Adapters whose config is not here."""
    draft.ask("lora", place, "adapters are loaded, whose rank the text does not hold")
    if "modules_to_save" not in draft.options.get("lora", ("modules_to_save",)):
        draft.remarks.append(f"{place}: modules that loaded adapters train whole (modules_to_save) are not counted")


def put_adapters(config: Any, trainer: Thing, thing: Thing | None, gathered: Gathered, draft: Draft) -> None:
    """What the trainer, or the model before it, is adapted by."""
    place = trainer.places.get("peft_config") or (
        thing.places.get("peft_config", thing.place) if thing else trainer.place
    )
    if isinstance(config, Thing) and config.last in CONFIGS:
        if any(might_be(gathered.path, f"{folder}/__init__.py") for folder in OF_ITS_OWN):
            draft.remarks.append(f"{config.place}: a PEFT of the project's own is beside it: its adapters are PEFT's")
        _lora(config, gathered, draft, thing is not None and "new_tokens" in thing.values)
    elif isinstance(config, Thing) and config.last == "get_peft_config":
        arguments = config.values.get("*0", config.values.get("model_args"))
        for key, value in arguments.values.items() if isinstance(arguments, Thing) else ():
            assert isinstance(arguments, Thing)
            if key.startswith(("lora_", "use_")) and key != "use_bnb_nested_quant":
                gathered.add(key, value, arguments.places.get(key, arguments.place), over=False)
    elif isinstance(config, Thing) and config.last == "from_pretrained":
        ask_loaded(str(config.place), draft)
    elif isinstance(config, Thing) and config.own is None:
        draft.warn(config.last, str(config.place), "adapters of this kind are not modelled", "adapters")
    elif config is not None and config is not False:
        text = config.text if isinstance(config, Unknown) else "made elsewhere"
        draft.ask("lora", str(place), f"peft_config is {text}")


def _lora(config: Thing, gathered: Gathered, draft: Draft, new_tokens: bool = False) -> None:
    """PEFT's LoraConfig, or the arguments of Unsloth's get_peft_model, as a job has them."""
    unsloth = config.last == "get_peft_model"
    given = {**(UNSLOTH_DEFAULTS if unsloth else {"r": 8}), **config.values}
    lora: dict[str, Any] = {}
    for key, value in given.items():
        where = str(config.places.get(key, config.place))
        if key in NO_EFFECT or key == "lora_alpha" or value is None or (unsloth and key in UNSLOTH_HARMLESS):
            continue
        if key in ("target_modules", "modules_to_save") and (several := _any_of(value, key == "modules_to_save")):
            lora[FIELDS.get(key, key)] = several
            draft.remarks.append(f"{where}: {key} {verb(value)}: all of them that the model has are counted")
        elif not known(value) or (isinstance(value, str) and "$" in value):  # --lora_r $1
            if key == "use_dora":
                lora["dora"] = True
                draft.bound(key, where, "DoRA is counted, which takes no less", "adapters")
            elif key != "use_rslora":  # a factor of what the adapters add
                _ask_lora(key, value, where, draft)
        elif key in FIELDS:
            lora[FIELDS[key]] = plain(value)
        elif key == "qat_scheme":
            draft.warn(key, where, "quantisation that is trained for is not modelled", "quantisation")
        elif value is not False and not (key.startswith("finetune_") and value is True) and key not in UNFELT:
            draft.warn(key, where, "not modelled" if key in NOT_MODELLED else "not understood", "adapters")
    if unsloth:
        _ends(lora, new_tokens)
    _targets(lora, config, gathered, draft)
    draft.put("lora", lora, Origin(FILE, f"{config.place}: {config.last}"))


def _any_of(value: Any, or_none: bool) -> Any:
    """All modules that one of several lists may name; nothing where these are not known. ``or_none``: no list is none,
    and not PEFT's own."""
    either = value.either if isinstance(value, Unknown) else ()
    either = tuple(each for each in either if each is not None) if or_none else either
    if not either or not all(known(each) and type(each) in (list, tuple) for each in either):
        return None
    return list(dict.fromkeys(str(name) for each in either for name in each))


def _ends(lora: dict[str, Any], new_tokens: bool) -> None:
    """Unsloth trains embeddings and the head whole where they are named among the targets, or where its add_new_tokens
    has made them longer (models/llama.py: _need_to_train_embeddings)."""
    targets = lora.get("targets")
    ends = [each for each in targets if each in ("lm_head", "embed_tokens")] if isinstance(targets, list) else []
    ends += ["embed_tokens", "lm_head"] if new_tokens else []
    if ends:
        lora["targets"] = [each for each in targets or () if each not in ends]
        lora["modules_to_save"] = list(dict.fromkeys([*(lora.get("modules_to_save") or ()), *ends]))


UNFELT = ("autocast_adapter_dtype", "*0")
"""Arguments that decide nothing of which modules are adapted."""


def _ask_lora(key: str, value: Any, where: str, draft: Draft) -> None:
    text = value.text if isinstance(value, Unknown) else value if isinstance(value, str) else "made elsewhere"
    if key in LESS:
        draft.warn(key, where, f"its value is {text}: {LESS[key]}", "")
    else:
        draft.ask(OF_LORA.get(key, "lora"), where, f"{key} is {text}")


def _targets(lora: dict[str, Any], config: Thing, gathered: Gathered, draft: Draft) -> None:
    """Modules by name; PEFT's own for the model where none is named."""
    targets = lora.get("targets")
    where = str(config.places.get("target_modules", config.place))
    if targets is None and "target_modules" in config.values and not known(config.values["target_modules"]):
        lora.pop("targets", None)
    elif targets is None and "target_parameters" not in config.values:
        family = family_of({"model": gathered.values.get("model_name_or_path"), **draft.values, **draft.options})
        lora["targets"] = LORA_TARGETS.get(family, "q_proj v_proj").split()
        said = "q_proj and v_proj are counted, as PEFT takes for Llama, Mistral, Qwen and Gemma"
        if family in LORA_TARGETS:
            said = f"{', '.join(lora['targets'])} are counted, as PEFT takes for {family}"
        draft.remarks.append(f"{where}: target_modules is not set: {said}")
    elif isinstance(targets, str) and targets != "all-linear":
        if not re.fullmatch(r"\w+", targets):
            draft.ask("lora", where, "target_modules is a pattern", "add --lora-targets with the modules' names")
            lora.pop("targets")
        else:
            lora["targets"] = [targets]
    elif isinstance(targets, list):  # PEFT compares how names end: self_attn.q_proj
        lora["targets"] = [str(each).rpartition(".")[2] for each in targets]
    if targets == ["all-linear"]:
        lora["targets"] = "all-linear"
    if isinstance(lora.get("modules_to_save"), str):
        lora["modules_to_save"] = [lora["modules_to_save"]]
