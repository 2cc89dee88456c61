"""Which method a script on transformers' Trainer trains with: by the word of a key, or of the script's own name."""

import re

from memplan.frameworks.asking import METHOD
from memplan.frameworks.base import ASSUMED, FILE, Origin
from memplan.frameworks.hugging_face import version as hf_version
from memplan.frameworks.hugging_face.dialect import Dialect
from memplan.frameworks.trl.keys import COMMANDS, LOSSES, NOT_MODELLED

WORDS = COMMANDS | {
    **dict.fromkeys(
        ("pt", "pretrain", "pretraining", "finetune", "causal_lm", "instruction", "generation", "lm"), "sft"
    ),
    **dict.fromkeys(("rm", "rw", "rewards"), "reward"),
}
"""A word of a key's value or of a name -> method."""
PAIRS = ("dpo", "ipo", "kto", "orpo", "cpo", "simpo", "reward")
"""Methods that a batch of examples is enough for: nothing is generated."""

OF_OTHERS = ("beta", "dpo_beta", "ref_model", "reference_model", "reward_model", "reward_funcs", "simpo_gamma",
             "kl_coef", "num_generations", "teacher_model")  # fmt: skip
"""Keys that supervised fine-tuning has no use for."""


def put_method(dialect: Dialect, program: str) -> None:
    """``method`` and whose trainer: supervised unless something says another; what is not modelled here is told."""
    keys, draft = dialect.keys, dialect.keys.draft
    name, where, key = _said(dialect, program)
    told = {"method", "own_loss"} & draft.given
    if name in ("", "sft") or "own_loss" in told:
        keys.assume(
            "trainer", dialect.script.trainer if dialect.script else "transformers", "a file of TrainingArguments"
        )
        keys.assume("method", "sft", f"{where or 'transformers'}: a model's own loss")
        hint = "" if "program" in draft.facts else METHOD  # of a program's own trainer no option changes
        for other in (key for key in keys.settings.values if not told and (key in OF_OTHERS or "reward" in key)):
            keys.warn(other, "is of another method than supervised fine-tuning", "method", hint)
    elif name in PAIRS:
        draft.put("method", name, Origin(FILE, where))
        keys.assume("trainer", "trl", "scripts of this method build on TRL's trainers")
        if "trainer_version" not in draft.given:
            hf_version.of_another(draft, "0.17", "with log-probabilities of their own, of whole logits")
        put_head(dialect, name)
        keys.skip("beta", "max_prompt_length", "loss_type")
    elif not told:
        draft.warn(key, where, f"{name} is not read from a script of its own", "method", f"{METHOD}, or give its file")
        keys.assume("trainer", "transformers", "a file of TrainingArguments")


def put_head(dialect: Dialect, method: str) -> None:
    """A trainer of pairs of a script's own gathers from a whole log-softmax, as TRL's first did (0.7 dpo_trainer.py:
    _get_batch_logps, copied by RLHF-V and its kind for LLaVA), but for 2U1's, which takes TRL's later function."""
    draft, script = dialect.keys.draft, dialect.script
    if method != "reward" and not (script and script.seen.startswith("2U1/")) and "loss_head" not in draft.given:
        why = "a trainer of pairs of the script's own: a log-softmax of whole logits is counted"
        draft.put("loss_head", "log-softmax", Origin(ASSUMED, why))


def _said(dialect: Dialect, program: str) -> tuple[str, str, str]:
    """(method, where it is said, the key or the program); of pairs an option is stronger than any word."""
    keys, given = dialect.keys, str(dialect.keys.draft.options.get("method") or "")
    if given in PAIRS:
        return given, "--method", "method"
    for key in dialect.names("method"):
        keys.skip(key)
        if keys.has(key) or key in keys.defaults:
            word = str(keys.get(key)).strip().lower()
            if not word.isdigit():
                return WORDS.get(word, word), f"{keys.settings.where(key)}: {key}", key
    own = (
        str(keys.settings.values.get("task") or "").strip().lower()
    )  # LLaVA's kin: --task DPO, by a trainer of its own
    if WORDS.get(own, own) in (*PAIRS, *NOT_MODELLED):
        return own.upper(), keys.settings.where("task"), "task"
    loss = str(keys.settings.values.get("loss_type") or keys.settings.values.get("dpo_loss") or "").split(",")[0]
    if LOSSES.get(loss):
        key = "loss_type" if keys.has("loss_type") else "dpo_loss"
        keys.skip(key)
        return LOSSES[loss], f"{keys.settings.where(key)}: {key}", key
    for path in (program, keys.settings.path if "program" not in keys.draft.facts else ""):
        found = _word_of(path.rsplit("/", 1)[-1].lower())
        if found and (path == program or len(found) == 1):  # of a file's own name where it has one word alone
            return WORDS.get(found[0], found[0]), f"{keys.settings.path}: {path}", path
    return "", "", program


def _word_of(name: str) -> list[str]:
    """Methods that a name has words of, supervised ones last."""
    words = [*re.findall(r"dpo(?!int)|grpo|simpo", name), *re.split(r"[^a-z0-9]+", name)]
    known = dict.fromkeys(word for word in words if word in WORDS or word in NOT_MODELLED)
    return sorted(known, key=lambda word: WORDS.get(word) == "sft")
