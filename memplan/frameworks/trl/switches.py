"""TRL's arguments that bear on memory beside lengths and losses: packing, other references and judges, evaluation.

Source: trl 0.12 to 1.16 trainer/*_config.py, trainer/sft_trainer.py (padding_free), trainer/dpo_trainer.py;
transformers 5.23 masking_utils.py: find_packed_sequence_indices."""

from memplan.frameworks.asking import GENERATES
from memplan.frameworks.base import ASSUMED, Keys, Origin
from memplan.frameworks.files.documents import words
from memplan.tables.trainers import find_trainer

BEARING = {
    "use_logits_to_keep": "logits of whole sequences are counted",
    "reward_model_init_kwargs": "the reward model is counted in half precision, as the policy computes",
}
"""Where they are on."""
HANDLED = words(
    """use_weighting generate_during_eval precompute_ref_batch_size teacher_model_init_kwargs force_use_ref_model judge
    packing packing_strategy padding_free eval_packing disable_dropout"""
)
SECOND_SINCE = {"dpo": (0, 29), "ipo": (0, 29), "kto": (1, 2), "grpo": (0, 27), "rloo": (0, 27)}
"""First version that copies the adapters of a PEFT model which it is handed: the copy is the reference (trl 1.16
trainer/dpo_trainer.py: ``model.add_adapter("ref", default_config)``)."""
FUSED = (1, 15)
"""First version whose loss weighs pairs (WPO) within its fused head."""


def read_switches(keys: Keys, method: str) -> None:
    """After attention, batch and evaluation are read."""
    version = keys.draft.version
    keys.warn_on(BEARING, "1")
    if keys.flag("use_weighting") and version < FUSED:
        keys.warn("use_weighting", "the softmax of all logits that weighs a pair is not counted")
    evaluates = "eval_batch_size" in keys.draft.values
    if keys.flag("generate_during_eval") and evaluates:
        keys.warn("generate_during_eval", GENERATES)
    size, each = keys.whole("precompute_ref_batch_size"), keys.draft.values.get("batch_size") or 1
    if keys.flag("precompute_ref_log_probs") and size and size > int(each):
        keys.warn("precompute_ref_batch_size", "the pass that scores so many examples before training is not counted")
    if keys.flag("force_use_ref_model") and not keys.flag("precompute_ref_log_probs"):
        keys.put("reference", "resident", "force_use_ref_model")
    if (keys.text("judge") or "") == "pair_rm":
        keys.warn("judge", "the judge's own model is not counted")
    _dropout(keys, method)
    _second_adapters(keys, method, version)
    _teacher(keys, method)
    _packing(keys, method, version)
    keys.skip(*HANDLED)


def _dropout(keys: Keys, method: str) -> None:
    """``disable_dropout`` where it is not what the trainer does by itself."""
    lora, off = keys.draft.values.get("lora"), keys.flag("disable_dropout")
    if off and lora and lora.get("dropout") and "lora" not in keys.draft.given:
        keys.draft.values["lora"] = {**lora, "dropout": 0.0}
    elif off is False and method in find_trainer("trl").disables_dropout:
        keys.warn("disable_dropout", "dropout is counted as off")


def _second_adapters(keys: Keys, method: str, version: tuple[int, ...]) -> None:
    """Adapters that are the reference beside those that train: named, or copied by the trainer. They stay where their
    scores are made before training."""
    handed = keys.flag("peft_model") and version >= SECOND_SINCE.get(method, (100,))
    key = "ref_adapter_name" if keys.text("ref_adapter_name") else "peft_model" if handed else ""
    adapted = "lora" in keys.draft.said or "lora" in keys.draft.given
    if key and adapted and keys.draft.values.get("reference", "adapter") in ("adapter", "precomputed"):
        keys.draft.origins.pop("reference", None)  # its adapters off, or no model in training: neither is what it holds
        keys.put("reference", "second-adapter", key)


def _teacher(keys: Keys, method: str) -> None:
    """The teacher's dtype: gkd.py loads it as the student, in fp32 where nobody says another."""
    if method != "distill" or not keys.has("teacher_model_name_or_path"):
        return
    if keys.has("teacher_model_init_kwargs"):
        keys.warn(
            "teacher_model_init_kwargs", "the teacher is counted in the half precision that the policy computes in"
        )
    elif keys.draft.facts.get("load", ("",))[0] == "fp32":
        name = "dtype" if keys.has("dtype") else "teacher_model_name_or_path"
        keys.warn(name, "gkd.py loads the teacher in float32 too, and half precision is counted: say dtype bfloat16")


def _packing(keys: Keys, method: str, version: tuple[int, ...]) -> None:
    """Packed rows without padding are told apart by their positions: a kernel of lengths in flash attention, a mask of
    all tokens by all tokens elsewhere."""
    packed = bool(keys.flag("packing")) and (keys.text("packing_strategy") or "bfd").startswith(("bfd", "ffd"))
    flat = keys.flag("padding_free")
    attention = str(keys.draft.now("attention") or "sdpa")
    if not (packed or flat) or attention == "flash" or version < (0, 18):
        return
    key = "padding_free" if flat else "packing"
    if method == "sft" and attention == "sdpa" and "padded" not in keys.draft.given:
        keys.put("padded", True, key)
    rows, length = (int(keys.draft.values.get(name) or 0) for name in ("batch_size", "sequence_length"))
    if rows > 1 and (method != "sft" or not length or {"batch_size", "sequence_length"} & keys.draft.given):
        keys.warn(key, "the rows of a batch become one, whose mask is counted row by row: use flash attention")
    elif rows > 1:
        why = f"{keys.settings.where(key)}: {key} makes one row of {rows} x {length} tokens of a batch"
        for name, value in (("batch_size", 1), ("sequence_length", rows * length)):
            keys.draft.values[name], keys.draft.origins[name] = value, Origin(ASSUMED, why)
