"""How a program's model is loaded by its trainer, and how weights that it does not train are stored: bitsandbytes,
GPTQ, AWQ, HQQ, or by a checkpoint's name."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.arch.unquantised import PLAIN
from memplan.errors import InvalidJob
from memplan.frameworks.base import DEFAULT, FILE, Draft, Origin
from memplan.frameworks.common.dynamic_checkpoints import SHARE_HINT
from memplan.frameworks.programs.gathered import Gathered
from memplan.frameworks.programs.models import UNSLOTH, things
from memplan.frameworks.programs.values import Place, Thing, Unknown, known

NAMED: tuple[tuple[str, str], ...] = (("bnb-4bit", "nf4-double"), ("gptq", "gptq-4bit"), ("awq", "awq-4bit"))
"""What a checkpoint's name says of how it is stored."""
WHOLE = re.compile(r"(?i)-(unsloth-)?bnb-4bit$")
"""What Unsloth takes off a name where ``load_in_4bit`` is false (unsloth/models/loader_utils.py, get_model_name)."""


def loaded_by_trainer(model: Any, trainer: Thing, arguments: Any, gathered: Gathered) -> Any:
    """A model that TRL loads by its name, with ``model_init_kwargs``: in float32 where these say nothing else; and with
    the trainer's ``quantization_config`` (trl 1.9 trainer/sft_trainer.py)."""
    holders = [each for each in (trainer, arguments) if isinstance(each, Thing) and "model_init_kwargs" in each.values]
    kwargs = holders[0].values["model_init_kwargs"] if holders else None
    if isinstance(model, Unknown) and (one := _either_way(model, kwargs)) is not None:
        gathered.drop("model_init_kwargs")
        return one
    bits = {key: trainer.values[key] for key in ("quantization_config",) if trainer.values.get(key) is not None}
    if not isinstance(model, str) or not (isinstance(kwargs, dict) or (bits and not holders)):
        return model
    kwargs = {**(kwargs or {}), **bits}
    gathered.drop("model_init_kwargs")
    place = holders[0].places.get("model_init_kwargs", trainer.place) if holders else trainer.place
    said = {"dtype": "float32"} if kwargs.get("dtype") is None and kwargs.get("torch_dtype") is None else {}
    values = {**said, **kwargs, "class": "AutoModelForCausalLM", "model_name_or_path": model}
    return Thing("model", place, values, dict.fromkeys(values, place))


def _either_way(model: Unknown, kwargs: Any) -> Thing | None:
    """A model that a program loads itself under a condition, or else leaves to its trainer with the same arguments."""
    given = [each for each in (kwargs.either if isinstance(kwargs, Unknown) else (kwargs,)) if isinstance(each, dict)]
    made = things(model)
    if len(model.either) != 2 or len(made) != 1 or len(given) != 1:
        return None
    said = {**given[0], "model_name_or_path": next(each for each in model.either if each is not made[0])}
    return made[0] if all(made[0].values.get(key) == value for key, value in said.items()) else None


def put_quantisation(thing: Thing | None, gathered: Gathered, draft: Draft) -> str:
    """How the base is stored, into the draft; empty for not at all, or where it is asked for."""
    if thing is None:
        return ""
    values = thing.values
    both = next((key for key in ("load_in_4bit", "load_in_8bit") if values.get(key) is True), "")
    config = values.get("quantization_config")
    if both and isinstance(config, Thing) and values["class"] not in UNSLOTH:
        where = f"{thing.places[both]}: {both} beside quantization_config"
        if config.values.get(both) is not True:
            raise InvalidJob(f"{where}, which transformers refuses", "keep one of them")
        draft.remarks.append(f"{where}: transformers refuses both from 4.38 on; read as before it")
    for key in ("quantization_config", "load_in_4bit", "load_in_8bit"):
        value = values.get(key)
        if value is None or value is False:
            continue
        if not (value is True or isinstance(value, (Thing, dict))):
            what = f"{key} is {value.text}" if isinstance(value, Unknown) else f"{key} is made elsewhere"
            draft.ask("quantization", str(thing.places[key]), what)
            return ""
        said = {name: each for name, each in values.items() if name.startswith("bnb_4bit_")}
        given = {"load_in_4bit": True, **said} if key == "load_in_4bit" and said else value
        kind = _scheme(key, given, values["class"] in UNSLOTH, draft, thing.places[key])
        if kind:
            draft.put("quantization", kind, Origin(FILE, f"{thing.places[key]}: {key}"))
        return kind
    return _by_default(thing, gathered, draft)


def _by_default(thing: Thing, gathered: Gathered, draft: Draft) -> str:
    """Unsloth loads 4 bits where nothing is said; a checkpoint's name may say how it is stored."""
    name, values = str(gathered.values.get("model_name_or_path", "")).lower(), thing.values
    others = ("load_in_4bit", "load_in_8bit", "load_in_16bit", "full_finetuning", "load_in_fp8")
    if values["class"] in UNSLOTH and not any(values.get(key) is not None for key in others):
        draft.put("quantization", "nf4-double", Origin(DEFAULT, "Unsloth: load_in_4bit true"))
        return "nf4-double"
    if values["class"] in UNSLOTH and WHOLE.search(name):  # 4 bits are refused: Unsloth loads the model it was made of
        whole = WHOLE.sub("", str(gathered.values["model_name_or_path"]))
        gathered.add("model_name_or_path", whole, thing.places["model_name_or_path"])
        return ""
    kind = next((scheme for word, scheme in NAMED if word in name), "")
    if kind:
        draft.put("quantization", kind, Origin(FILE, f"{thing.places['model_name_or_path']}: the checkpoint's name"))
    return kind


def _scheme(key: str, value: Any, unsloth: bool, draft: Draft, place: Place) -> str:
    """The job's word for a quantisation."""
    if key == "load_in_8bit":
        return "int8"
    if key == "load_in_4bit" and value is True:
        return "nf4-double" if unsloth else "fp4"  # BitsAndBytesConfig's own default
    values = value.values if isinstance(value, Thing) else value
    name = value.last if isinstance(value, Thing) else "BitsAndBytesConfig"
    if name == "BitsAndBytesConfig":
        return _bits(values, draft, place)
    if name == "Mxfp4Config" and values.get("dequantize") is True:
        return ""
    bits = values.get("bits", values.get("nbits", values.get("*0", 4)))
    found = {"GPTQConfig": "gptq-4bit", "AwqConfig": "awq-4bit", "HqqConfig": "hqq-4bit"}.get(name, "")
    if not found or bits != 4:
        draft.warn(
            "quantization_config",
            str(place),
            f"{name} is not modelled with these bits" if found else f"{name} is not read",
            "quantisation",
        )
        return ""
    return found


def _bits(values: Mapping[str, Any], draft: Draft, place: Place) -> str:
    """BitsAndBytesConfig: load_in_8bit, load_in_4bit, bnb_4bit_quant_type (fp4), bnb_4bit_use_double_quant."""
    words = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
    unclear = next((each for each in words if not known(values.get(each)) or "**" in values), "")
    if unclear:
        text = getattr(values.get(unclear), "text", "made elsewhere")
        draft.ask("quantization", str(place), f"{unclear} is {text}")
        return ""
    left = values.get("llm_int8_skip_modules") or ()
    listed = isinstance(left, (list, tuple)) and all(isinstance(each, str) for each in left)
    if not listed or not all(PLAIN.search(each) for each in left):
        what = "leaves linears of layers as they are" if listed else "is not known"
        draft.ask("unquantized_share", str(place), f"llm_int8_skip_modules {what}", SHARE_HINT)
    if values.get("load_in_8bit", values.get("*0")):
        return "int8"
    if not values.get("load_in_4bit", values.get("*1")):
        return ""
    kind = str(values.get("bnb_4bit_quant_type") or "fp4").lower()
    return "nf4-double" if kind == "nf4" and values.get("bnb_4bit_use_double_quant") else kind
