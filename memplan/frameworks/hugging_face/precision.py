"""How Hugging Face's Trainer stores weights: the dtype that they are loaded in, and the autocast that runs over them.

The table is that of accelerate 1.15 (``accelerator.py``: prepare_model, FSDP's upcast, DeepSpeed's own casts)."""

from memplan.frameworks.base import DEFAULT, FILE, Draft, Keys, Origin
from memplan.frameworks.common.checkpoints import holds_fp32
from memplan.tables.choices import SYNONYMS
from memplan.tables.trainers import TRAINERS

LOADS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def read_load_dtype(keys: Keys, *names: str) -> None:
    """``dtype`` or ``torch_dtype``: what the checkpoint is loaded in; auto is the checkpoint's own."""
    name = next((name for name in names if keys.has(name)), names[0])
    text = (keys.text(name) or "auto").removeprefix("torch.").lower()
    keys.ask_open("precision", name)
    keys.skip(*names)
    dtype = SYNONYMS["dtype"].get(text, text)
    if dtype not in (*LOADS, "auto"):
        raise keys.settings.error(name, f"{text[:40]!r} is no dtype", "use float32, bfloat16, float16 or auto")
    said = keys.has(name)
    usual = Origin(DEFAULT, f"{keys.framework.label}: {name} {text}")
    keys.draft.facts["load"] = (dtype, Origin(FILE, f"{keys.settings.where(name)}: {name}") if said else usual)


def settle(draft: Draft) -> None:
    """Put the job's precision, once sharding and every file's word on dtypes are known."""
    _typed(draft)
    if {"precision", "dtype"} & (draft.given | set(draft.values)):
        return
    if not {"amp", "load", "deepspeed dtype"} & set(draft.facts):
        return
    amp, why = draft.facts.get("amp", ("no", Origin(DEFAULT, "no mixed precision is asked for")))
    sharding = str(draft.now("sharding") or "")
    if sharding.startswith("zero") or "zero_stage" in draft.given:
        _deepspeed(draft, amp, why)
    elif "load" not in draft.facts:
        _under_a_launcher(draft, amp, why, sharding)
    else:
        _loaded(draft, amp, why, sharding)


def _typed(draft: Draft) -> None:
    """Of weights whose dtype the file names: what to type that goes with it, and whether what is typed does not.

    DeepSpeed casts weights to its own dtype, however they are loaded; what few bits compute in is no weight's."""
    load, loaded = draft.facts.get("load", ("", None))
    if load not in LOADS or loaded.kind != FILE or draft.now("quantization") not in (None, "none"):
        return
    hint = f"add --precision {'bf16-amp' if load == 'fp32' else load}"
    draft.unread[:] = [each._replace(hint=hint) if each.asks == "precision" else each for each in draft.unread]
    typed = str(draft.options.get("precision") or load)
    held = "fp32" if typed.endswith("-amp") else typed.partition("-")[0]
    cast = ("zero", "fsdp") if held == "fp32" else ("zero",)
    if held != load and not str(draft.now("sharding")).startswith(cast):
        draft.remarks.append(f"{loaded.text}: weights are loaded in {load}: --precision {typed} replaces it")


def _loaded(draft: Draft, amp: str, why: Origin, sharding: str) -> None:
    """The dtype that weights are loaded in is known."""
    load, loaded = draft.facts["load"]
    if load == "auto" and _holds_fp32(draft):
        load, loaded = "fp32", Origin(loaded.kind, f"{loaded.text}: its checkpoint holds float32")
    if amp != "no" and (load == "fp32" or (sharding.startswith("fsdp") and not draft.now("lora"))):
        # FSDP upcasts trained weights, and no frozen base; elsewhere the weights are fp32 as they were loaded.
        draft.put("precision", f"{amp}-amp", why if why.kind == "file" else loaded if load == "fp32" else why)
        return
    if load == "fp32":
        draft.put("precision", "fp32", loaded)
        return
    half = amp if load == "auto" and amp != "no" else "bf16" if load == "auto" else load
    if amp not in ("no", half):
        told = f"weights in {half} under autocast in {amp} are cast for each product, and the copies saved"
        draft.bound("dtype", loaded.text, f"{told}: counted as fp32 under it, which holds no less", "precision")
        draft.put("precision", f"{amp}-amp", why)
        return
    draft.put("precision", half, loaded if load != "auto" else why)
    if not sharding.startswith("fsdp"):
        draft.put("autocast", amp != "no", why)


def _holds_fp32(draft: Draft) -> bool:
    """Whether transformers loads fp32 where it loads the checkpoint as it is; few bits are another matter."""
    theirs = draft.now("trainer") in ("transformers", "trl")
    return theirs and draft.now("quantization") in (None, "none") and holds_fp32(draft.said)


def _under_a_launcher(draft: Draft, amp: str, why: Origin, sharding: str) -> None:
    """accelerate's word alone: how the weights are loaded is the trainer's, which the job names."""
    trainer = str(draft.now("trainer") or "")
    loads = any(era.numerics.loads_dtype for era in TRAINERS.get(trainer, ()))  # by the job's dtype, where it is bf16
    if amp == "fp16" or (amp == "bf16" and not loads):
        draft.put("dtype", amp, why)
    if not sharding.startswith("fsdp"):
        draft.put("autocast", amp != "no", why)


def _deepspeed(draft: Draft, amp: str, why: Origin) -> None:
    """DeepSpeed casts by its own settings; ``auto`` there is what the trainer's arguments say, and so are sections that
    are not there (accelerate utils/dataclasses.py: DeepSpeedPlugin.set_mixed_precision)."""
    dtype, origin = draft.facts.get("deepspeed dtype", ("auto", why))
    if dtype == "unsaid":
        dtype, origin = (amp, why) if amp != "no" else ("fp32", origin)
    if dtype == "auto":
        if "amp" not in draft.facts:
            return
        dtype, origin = (amp if amp != "no" else "fp32"), why
    draft.put("dtype", dtype, origin)
