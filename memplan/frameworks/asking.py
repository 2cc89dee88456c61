"""What a file leaves open, in one sentence that is typed: every option that is missing, or every variable."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from memplan.spec.reading import Unread
from memplan.tables.texts import texts_by_name
from memplan.units import words_of

SUCH = texts_by_name(__file__)
"""A job's key -> the options that say it, with values to be changed; in the order in which they are typed."""
KEEPS_LOGITS = "compute_metrics keeps the logits of all examples on the card, and how many there are is in the data"
ALONE = "add --num-gpus 1, where it sees one"
GENERATES = "what evaluation generates is not counted"
SET = "set it: "
COMMANDS = (SET, "memplan check")
SHELLS = (".sh", ".bash", ".slurm", ".sbatch")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_ARGUMENT = re.compile(r"\$\{?(\d{1,2})\b")


WRITE = "write its job in memplan's keys"
"""What is left for a training that no option makes known."""
OF_SCRIPT = f"check the script that starts it, or add {SUCH['batch_size']}"
MODEL = f"add --model, such as {SUCH['model']}"
SEEING = "add --model llava-hf/llava-1.5-7b-hf, or another that sees"
"""Where a tower is beside the language model that no language model's name stands for."""
ENCODES = "add --model google/flan-t5-base"
"""Where the model's class has an encoder."""
SEES_TOKENS = "add --model Qwen/Qwen2.5-VL-7B-Instruct"
"""The same, of images that are counted in tokens or pixels."""
METHOD = "add --method, such as --method dpo"
STAGE = f"add {SUCH['sharding']}, or the file with --with"
"""Where DeepSpeed runs by settings that lie nowhere."""
LORA = f"add --lora-r and --lora-targets, such as {SUCH['lora']}"
OF_LORA = {"r": "lora.r", "target_modules": "lora.targets"}
"""Arguments of LoRA -> what asks for them alone."""


def beside(*roles: str | tuple[str, str]) -> str:
    """What to type of models that stand beside the trained one: each role, with its model where that is known; of
    an empty one the policy's shape."""
    pairs = ((each, "Qwen/Qwen2.5-7B") if isinstance(each, str) else each for each in roles)
    models = [{"role": role, "model": model} if model else {"role": role} for role, model in pairs]
    return f"add --set 'extra_models={json.dumps(models)}'"


def option_of(key: str) -> str:
    """What to type for a key of the job, whole, so that it can be typed as it stands."""
    option = f"add --{key.replace('_', '-').replace('.', '-')}"
    such = SUCH.get(key, "")
    if such.startswith(f"--set {key}"):
        return f"add {such}"
    return LORA if key == "lora" else f"{option}, such as {such}" if such.startswith(f"{option[4:]} ") else option


STRANGE = re.compile(
    rf"not understood$|{GENERATES}$|no (?:argument|setting|loss) of .* that is known$|counted as its checkpoint's$"
    r"|its value is |none of torchtune's$|of (?:its|the program's) own(?:,? (?:which )?is|$)"
)
"""Why a key is not counted that is no framework's own: what it does the user may know."""


VALUED = re.compile(
    r"add (?:--model, such as )?(--(?:model|precision) \S+|--set own_loss\S+( --set \S+)?"
    r"|--[\w-]+ \d+(?: --lora-targets \S+?)?)(?:, or --no-lora)?"
)
"""A hint with a number of the file's own, or with a model."""


def one_hint(unread: Iterable[Unread]) -> str:
    """What to type so that nothing is asked for a second time: what is asked for, and how to be answered where what is
    counted from above does not fit."""
    unread = list(unread)
    asked, above = _asked_at_once(unread), as_without((each for each in unread if each.above), "")
    return f"{asked}; {TOO_MUCH}{above}" if asked and asked != WRITE and above else asked


def _asked_at_once(unread: list[Unread]) -> str:
    """The one hint that there is, or all of them in one; of keys that no framework has, how to say that they take
    nothing."""
    if any(each.asks == "own_loss" for each in unread):  # what a loss holds, whichever method's it is
        unread = [each for each in unread if each.asks or not each.hint.startswith(METHOD)]
    deciding = [each for each in unread if each.decides and each.hint]
    hints = list(dict.fromkeys(each.hint for each in deciding))
    if WRITE in hints:
        return WRITE  # whatever else is said, it stays open
    command = next((hint for hint in hints if hint.startswith(COMMANDS)), "")
    slips = [hint for hint in hints if hint.startswith("did you mean")]
    open_ = [each for each in unread if each.decides and (not each.hint or each.hint in slips)]
    strange = [each.key for each in open_ if not (each.asks or each.above)]
    if strange and all(STRANGE.search(each.why) for each in unread if each.key in strange):
        without = f"add --without {','.join(dict.fromkeys(strange))}, if that takes no memory"
        hints = [
            *(hint for hint in hints if hint not in slips),
            f"{' '.join(slips)} If not, {without}" if slips else without,
        ]
        unread = [each._replace(hint=hints[-1]) if each.key in strange else each for each in unread]
        deciding = [each for each in unread if each.decides and each.hint]
    if len(hints) < 2 and not command:
        return hints[0] if hints else ""
    options = all(each.asks in SUCH for each in deciding)
    asked = {each.asks for each in deciding}
    asked -= {"lora.r", "lora.targets"} if "lora" in asked else set()
    own = {each.asks: found[1] for each in deciding if (found := VALUED.fullmatch(each.hint))}
    asked |= {"model"} if {MODEL, SEEING} & {*hints} else set()
    if SEEING in hints or ({"model", "images"} <= asked and SEES_TOKENS not in hints):
        own["model"] = SEEING.partition(",")[0].removeprefix("add ")
    if {"images", "sequence_length"} <= asked and "sequence_length" not in own:
        own["sequence_length"] = "--sequence-length 8192"  # an image has up to 4096 positions
    typed = " ".join(own.get(key, such) for key, such in SUCH.items() if key in asked)
    if command and options:
        return f"{command}, or add {typed}"
    bare = {command, MODEL, SEEING, *own.values(), *(option_of(key).partition(",")[0] for key in asked)}
    others = dict.fromkeys(each.hint for each in deciding if each.asks not in SUCH and each.hint not in bare)
    return "; ".join(filter(None, (command, typed and f"add {typed}, with your own values", *others)))


TOO_MUCH = "if that is too much, "


def as_without(unread: Iterable[Unread], alone: str = ALONE) -> str:
    """Where all that is open is counted from above, and nobody is asked: how to be answered as if it were not there."""
    open_ = [each for each in unread if each.decides and not (each.above and (each.hint or each.asks))]
    keys = dict.fromkeys(each.key for each in open_)
    other = alone if "device_map" in keys else ""
    other = other or f"add --without {','.join(keys)}, to be answered as if it were not there"
    return other if keys and all(each.above for each in open_) else ""


_POSITIONS = re.compile(r"longer than the (\d+) positions")


WITH_EXPERTS, WITH_HEADS = "--model Qwen/Qwen3-30B-A3B", "--model Qwen/Qwen3-8B"
"""Where GPUs share experts, that the usual example has none of, or more of the heads than its 28."""


def with_experts(hint: str, experts: object, heads: object) -> str:
    """A hint whose model has experts, where so many GPUs share them (``expert_parallel``), or heads for so many
    (``tensor_parallel``)."""
    if isinstance(experts, int) and experts > 1:
        return hint.replace(SUCH["model"], WITH_EXPERTS)
    return hint.replace(SUCH["model"], WITH_HEADS) if isinstance(heads, int) and heads > 0 and 28 % heads else hint


def within_positions(hint: str, warnings: Iterable[str]) -> str:
    """A hint whose length is one that the model has positions for, where a report warns of it."""
    found = next(filter(None, map(_POSITIONS.search, warnings)), None)
    return hint.replace(SUCH["sequence_length"], f"--sequence-length {found.group(1)}") if found else hint


def model_hint(unread: Iterable[Unread], hint: str = MODEL) -> str:
    """The same, where nothing says which model is trained."""
    rest = (each for each in unread if each.asks != "model")
    return one_hint((Unread("model", "", decides="model", hint=hint, asks="model"), *rest))


_OF_SUCH = {*words_of("all-linear q_proj k_proj v_proj o_proj gate_proj up_proj down_proj embed_tokens lm_head")}
"""Targets that the model of a hint has."""


def of_another_family(targets: object) -> tuple[Unread, ...]:
    """The question of adapters whose linears are not all the model's that a hint names."""
    names = {str(each).rpartition(".")[2] for each in targets} if isinstance(targets, (list, tuple)) else _OF_SUCH
    asks = "lora.targets"
    return () if names <= _OF_SUCH else (Unread(asks, "", decides="adapters", hint=option_of(asks), asks=asks),)


def set_in(script: str, unread: Iterable[Unread]) -> str:
    """The command that sets every variable, and gives every argument, that a script leaves to who starts it."""
    asked = [each.why for each in unread if each.where.partition(", line ")[0] == script]
    texts = [text for text in asked if "$(" not in text]  # of what a command prints no variable is the answer
    named = dict.fromkeys(name for text in texts for name in _VARIABLE.findall(text))
    own = Path(script).read_text("utf-8", "replace") if Path(script).is_file() else ""
    names = [name for name in named if not re.search(rf"(?m)^\s*(?:export\s+)?{name}=[\"']?\$\{{?\d", own)]  # of $1
    count = max((int(number) for text in texts for number in _ARGUMENT.findall(text)), default=0)
    if not (names or count) or not script.endswith(SHELLS):
        return ""
    return f'{SET}memplan check "{"".join(f"{name}=… " for name in names)}bash {script}{" …" * count}"'


OF_COMMAND = re.compile(r"\bof its command\b|program's command\b|its launcher says")
"""Why a value is not known that whoever starts the program gives."""


def started_by(starter: str, unread: Iterable[Unread]) -> list[Unread]:
    """Questions that the command answers by which the program is started, with that for a hint."""
    return [each._replace(hint=starter) if each.asks and OF_COMMAND.search(each.why) else each for each in unread]
