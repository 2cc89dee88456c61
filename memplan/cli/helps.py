"""The help of every option, written when somebody asks for it: docstrings, choices, defaults and aliases."""

import ast
import inspect
import re
import textwrap
from typing import Any, Literal, get_args, get_origin

from memplan.cli.options import SECTIONS, JobOption, job_options
from memplan.cli.output import FORMATS
from memplan.cli.said_help import write_rows
from memplan.lang import ENGLISH, language
from memplan.spec.allocator import Allocator
from memplan.spec.job import Job
from memplan.spec.lora import Lora
from memplan.spec.rollout import Rollout
from memplan.tables.choices import ALIASES, CHOICES
from memplan.tables.texts import texts_by_name
from memplan.units import words_of

EXTRA = texts_by_name(__file__) | {"format_": f"Form of the result: {', '.join(FORMATS)}."}
COMMON: dict[str, tuple[str, ...]] = {
    "Training, such as --method dpo -b 4 --sequence-length 4096": (
        "method",
        "trainer",
        "batch_size",
        "sequence_length",
    ),
    "Weights, such as --optimizer adamw-8bit --lora-r 16": ("precision", "optimizer", "lora_r", "load_in_4bit"),
    "Activations, such as --gradient-checkpointing": ("gradient_checkpointing", "attention", "kernels"),
    "GPUs, such as --gpu h100-80gb --num-gpus 8 --zero-stage 3": words_of(
        "gpu num_gpus zero_stage sharding offload tensor_parallel pipeline_parallel"
    ),
    "Every other key, such as --set lora.dora=true": ("set_", "with_"),
}
"""The twenty options that people use, which --help shows: by group, with an example. --help-all shows every one."""
RARE = words_of(
    "framework without rule_of_thumb ranks verify exact play force part processes snapshot pareto add skip_others"
)
"""Options of a command, rather than of its job, that --help leaves out."""
SEARCH = ("fix", "allow", "top", "budget", "pareto", "min_gpus", "smallest_card", "maximize", "price")
COMPARISON = ("vary", "methods", "strategies", "add", "all_", "grid", "part", "processes")
BESIDE = {
    "set_": "Any key",
    "with_": "Files",
    "without": "Files",
    "framework": "Files",
    **dict.fromkeys(SEARCH, "Search"),
    **dict.fromkeys(COMPARISON, "Comparison"),
}
"""Sections of options that are no key of a job."""


def attribute_docstrings(owner: type) -> dict[str, str]:
    """The string below each attribute of a class; empty where the source is not at hand."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found, name = {}, ""
    for statement in getattr(tree.body[0], "body", ()):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
        else:
            name = ""
    return found


def documented_options() -> list[JobOption]:
    """Every option of a job with its help. One without a docstring, or with one value only, is not modelled: hidden."""
    texts = {owner: attribute_docstrings(owner) for owner in (Job, *INNER.values())}
    return [_documented(option, texts) for option in job_options()]


INNER: dict[str, type[Lora] | type[Rollout] | type[Allocator]] = {
    "lora": Lora,
    "rollout": Rollout,
    "allocator": Allocator,
}
"""Keys whose own keys are options."""


def _documented(option: JobOption, texts: dict[Any, dict[str, str]]) -> JobOption:
    key, job = option.parameter, texts[Job]
    first, _, inner = key.partition("_")
    if first in INNER and inner:
        owner = INNER[first]
        text = texts[owner][inner] + _values(owner, inner) if inner in texts[owner] else ""
    else:
        text = EXTRA.get(key) or (job[key] + _values(Job, key) if key in job else "")
    names = [f"--{alias.replace('_', '-')}" for alias, meant in ALIASES.items() if meant == key and len(alias) > 1]
    names = [name for name in names if name not in ("--recompute", "--model-name-or-path", "--base-model")]
    also = f" Also {', '.join(names)}." if names and text else ""
    subject = "quantization" if key.startswith("load_in") else key
    hidden = not text or len(CHOICES.get(subject, "many")) == 1
    return option._replace(help=text + also, hidden=hidden)


def _values(owner: type[Job] | type[Lora] | type[Rollout] | type[Allocator], key: str) -> str:
    """' One of …; default …' where there is something to say."""
    of = owner.model_fields[key].annotation
    literals = tuple(map(str, get_args(of))) if get_origin(of) is Literal else ()
    choices = CHOICES.get(key, ()) if owner is Job else literals
    default = owner.model_fields[key].default
    parts = ["one of " + ", ".join(choices)] if len(choices) > 1 else []
    if default not in (None, ()) and not isinstance(default, bool):
        parts.append(f"default {default}")
    return f" [{'; '.join(parts)}]" if parts else ""


Rows = list[tuple[str, str, str]]
"""The key of an option, how it is written, and what it is."""
MARGINS = 6
"""Columns of the margin at the left, between the two columns, and at the right."""
NO_BREAK_HYPHEN = "\u2011"
"""Stands for a hyphen while lines are broken, so that no option is broken at one."""


def write_options(formatter: Any, params: Any, everything: bool) -> None:
    """The sections of a command's help: every option in full, or the common ones, each in the line that it has."""
    for title, rows in sections(params, everything):
        room = formatter.width - max(len(written) for _, written, _ in rows) - MARGINS
        texts = [text if everything else brief(text, key, room) for key, _, text in rows]
        names = [written for _, written, _ in rows]
        plain = [text.replace("-", NO_BREAK_HYPHEN) for text in texts] if language() == ENGLISH else texts
        write_rows(formatter, title, list(zip(names, plain, strict=True)), col_max=34)
    formatter.buffer = [part.replace(NO_BREAK_HYPHEN, "-") for part in formatter.buffer]


def brief(text: str, key: str, room: int) -> str:
    """As much of an option's text as a line has room for, and at least its first clause; then as many choices."""
    text = text.partition(" [")[0]
    ends = [found.start() for found in re.finditer(r"[.;:](?= |$)", text)] or [len(text)]
    choices = CHOICES.get(key, ())
    text = text[: ends[0] if choices else max((end for end in ends if end <= room), default=ends[0])]
    fitting = [n for n in range(2, len(choices) + 1) if len(_listed(text, choices, n)) <= room]
    return _listed(text, choices, fitting[-1]) if fitting else text


def _listed(text: str, choices: tuple[str, ...], count: int) -> str:
    return f"{text}: {', '.join(choices[:count])}" + (", …" if count < len(choices) else "")


def sections(params: Any, everything: bool) -> list[tuple[str, Rows]]:
    """What the help of a command shows, by section: every option, or the common ones and the command's own."""
    documented = {option.parameter: option for option in documented_options()}
    common = {key: title for title, keys in COMMON.items() for key in keys}
    found: dict[str, Rows] = {}
    for param in params:
        key, option = param.name, documented.get(param.name)
        rare = key in RARE or (option is not None and key not in common)
        if (option is not None and option.hidden) or (rare and not everything):
            continue
        title = option.section if option else BESIDE.get(key, "Output")
        title = title if everything else common.get(key, title)
        text = option.help if option else EXTRA[key]
        is_option = param.param_type_name == "option"
        found.setdefault(title if is_option else "Arguments", []).append((key, _written(param, everything), text))
    found.setdefault("Output", [])
    if everything:
        found["Output"].append(("lang", "--lang NAME", "Language of what is said: en, zh. [default: the locale's]"))
    found["Output"].append(("help_all", "--help-all", "Every option, in full."))
    if not everything:
        for title, keys in COMMON.items():
            found.get(title, []).sort(key=lambda row: keys.index(row[0]))
    order = [
        "Arguments",
        *COMMON,
        *SECTIONS,
        "LoRA",
        "Generation",
        "Other",
        "Any key",
        "Files",
        "Search",
        "Comparison",
        "Output",
    ]
    return [(title, found[title]) for title in order if title in found]


def _written(param: Any, everything: bool) -> str:
    """'-b, --batch-size N'; '--padded, --no-padded'."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name)
    names = sorted((*param.opts, *(param.secondary_opts if everything else ())), key=lambda name: name.startswith("--"))
    return ", ".join(names) + (f" {param.metavar}" if param.metavar else "")
