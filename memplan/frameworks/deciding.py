"""What of memory a key decides, by its name: where such a key is not understood, nobody knows whether the job fits."""

import re
from collections.abc import Mapping
from functools import cache

from memplan.tables.texts import texts_by_name

SUBJECTS = {subject: pattern.replace(" ", "") for subject, pattern in texts_by_name(__file__).items()}
"""Patterns of names by subject, looked for in this order."""
LITTLE = re.compile(
    r"^((code_)?eval|save|log|logging|hub|wandb|report|data|dataset|dataloader|tokenizer|lr|learning|warmup|seed|push|test|val)_"
    r"|_(dir|name|path|file|files|rate|steps|ratio|epochs|seed|prob|coef|coeff|weight|alpha|dropout|interval|url|key|format"
    r"|strategy|schedule|scheduler|template|callback|temperature|beta\d?|eps|workers|num_proc|shard_size)$"
)
"""Names that speak of something else, whatever words are in them."""
MODEL_NAMES = re.compile(
    r"model_(name|path)|pretrained|tower|(adapter|lora)\w*_(name|path|dir|checkpoint)"
    r"|^(?!init|load|resume|save|class|loss)\w+_weights?_(path|file)$|resize_\w*embed"
)


KL = re.compile(r"(^|_)(lm|sft|ref|kd)_kl_?(coef|coeff|weight)$|(^|_)kl_loss_(coef|coeff|weight)$")
"""How far from a reference, or a teacher, which is held beside the model: of a supervised program's options."""


ENTROPY = re.compile(r"(^|_)ent(ropy)?_?(loss_?)?(coeff?|weight|bonus|reg)$")
"""How much of an entropy the loss has, which keeps what it is made of, a row of the vocabulary a token."""


@cache
def _by_name(name: str) -> str:
    if KL.search(name):
        return "model"
    if ENTROPY.search(name):
        return "loss"
    if LITTLE.search(name) and not MODEL_NAMES.search(name):
        return ""
    return next((subject for subject, pattern in SUBJECTS.items() if re.search(pattern, name)), "")


ASIDE = re.compile(
    r"(?i)^(eval|test|val|data|generat|sampling|infer|reward|log|wandb|report|prompt|metric|callback|env)"
)
"""Sections that speak of something else than the update."""


def subject_of_section(key: str, value: Mapping[object, object]) -> str:
    """What of memory a section decides that nobody reads: what the first of its keys does that decides any."""
    if ASIDE.search(key.rpartition(".")[2]):
        return ""
    inner = (
        subject_of_section(str(name), each) if isinstance(each, Mapping) else subject_of(str(name), each)
        for name, each in value.items()
    )
    return subject_of(key) or next(filter(None, inner), "")


NEGATED = re.compile(r"^(no|without|disable)_?q?(lora|peft|adapter|quant)")
"""Switches that turn off what they name: ``nolora: false`` trains adapters."""
DEGREE = re.compile(r"parallel_(size|degree)$|(^|_)(tp|pp|cp|ep|sp|vpp|etp)(_size|_degree)?$")


def subject_of(key: str, value: object = True) -> str:
    """What of memory a key decides, one of ``SUBJECTS``; empty for nothing, or little.

    ``key``: as in the file, nested ones with dots; the last part speaks first. ``value``: what the file says: a switch
    that is off decides nothing, but for one that freezes."""
    name = key.lower().replace("-", "_")
    last = name.rpartition(".")[2]
    subject = _by_name(last) or (_by_name(name.replace(".", "_")) if last != name and not LITTLE.search(last) else "")
    off = (value is False or value in (0, "", "none", "None", "false", "False")) and not NEGATED.search(last)
    if value in ("left", "right", "middle", "error"):  # which end is cut: names no model, no length
        return ""
    whole = value is not True and value in (1, "1") and DEGREE.search(last) is not None  # divides nothing
    return "" if (off and subject != "freezing") or whole else subject


NO_LESS = re.compile(
    r"on the host (?:\(\w+\) )?are counted on the (?:device|card|GPU)$|not divided over several$"
    r"|padded$|without quantisation$|not quantised$|which keeps? more\b"
    r"|logits of whole sequences are counted$|held until the step$"
    r"|(?<!: all weights )(?:is|are) counted (?:whole|with full|(?:over all logits )?at once|as (?:saved|kept|trained))"
)
"""Why a key is not counted, of what takes no less without it: what fits so fits."""
ROWS = re.compile(r"(micro_batch_size(_per_\w+)?|per_device_\w*batch_size|global_train_batch_size|gconfig\.n_samples)$")
"""Numbers of rows, of which none may be 0: no trainer takes it for unset."""
HALVES = re.compile(r"(?i)(torch\.)?(bf16|bfloat16|fp16|float16|half)")


RESTS = re.compile(r"(?i)(?<!un)(?<!un_)(?<!no_)(?<!not_)fr(eeze|ozen)")
"""Names of what is frozen, of all that speak of freezing."""

LABEL = re.compile(r"(?:^|\.)(?:base_)?model_name$")
"""A key whose value, without a folder, is a name that runs are called by."""


def no_less(subject: str, key: str, value: object, job: Mapping[str, object]) -> str | None:
    """Why a key of a fork's own takes no more than what is counted without it; empty where it says what is counted,
    None where nobody knows. ``job``: what is counted, by the job's keys."""
    word, mixed = str(value).lower(), subject == "precision" and str(job.get("precision")).endswith("-amp")
    if subject == "freezing" and RESTS.search(key) and word not in ("", "false", "0", "no", "none", "null"):
        return "what it rests is counted as trained, which takes more"
    if mixed and HALVES.fullmatch(word):
        return "weights are counted in fp32, which takes more"
    agrees = subject == "attention" and "flash" in word and job.get("attention") == "flash"
    agrees = agrees or (ENTROPY.search(key.lower()) is not None and job.get("entropy") == "loss")
    agrees = agrees or (LABEL.search(key) is not None and word == str(job.get("model")).lower().rpartition("/")[2])
    return "" if agrees or (mixed and key.endswith("amp") and word == "true") else None
