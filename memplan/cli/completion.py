"""memplan completion: a script for a shell, with every command, option and choice written out.

The words come from the tables when the script is printed; completing never calls memplan."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memplan.errors import EXIT_DONE, UsageError, did_you_mean

HELP = """A script that completes commands, options and their choices in a shell, without starting memplan.

Example: memplan completion fish > ~/.config/fish/completions/memplan.fish
"""
ASSIGNING = ("--set", "--fix", "--vary")
"""Options whose value is key=value."""


def completion(values: Mapping[str, Any]) -> int:
    """Print the script of one shell."""
    from memplan.cli.output import print_text

    shell = values.get("shell")
    if shell is None:
        raise UsageError("completion for which shell?", "one of " + ", ".join(SHELLS))
    if shell.lower() not in SHELLS:
        raise UsageError(f"no completion for {shell[:40]!r}", did_you_mean(shell.lower(), SHELLS))
    print_text(SHELLS[shell.lower()](completed()), False)
    return EXIT_DONE


class Completed(NamedTuple):
    """An option, or with no names an argument, of a command."""

    command: str
    names: tuple[str, ...]
    takes_value: bool
    words: tuple[str, ...]
    """What its value may be; empty where that is any text, or a file."""


def completed() -> list[Completed]:
    """Every option and argument of every command."""
    from memplan.cli.commands import COMMANDS, HELP_WORDS, make

    values, found = _values(), []
    for command in COMMANDS:
        for param in make(command).params:
            words = values.get(f"{command}.{param.name}") or values.get(param.name) or ()
            is_option = param.param_type_name == "option"
            names = (*param.opts, *param.secondary_opts) if is_option else ()
            is_flag = getattr(param, "is_flag", False)
            found.append(Completed(command, names, not is_flag, () if is_flag else tuple(words)))
        found.append(Completed(command, HELP_WORDS, False, ()))
    return found


def _values() -> dict[str, Iterable[str]]:
    """The words of each parameter that has some, by its name, or by the command's and its own."""
    from memplan.cli import check, output, schema
    from memplan.clusters import as_rows
    from memplan.frameworks.registry import frameworks
    from memplan.gpus import gpu_names
    from memplan.jobs import job_names
    from memplan.planner.questions import MAXIMIZED
    from memplan.presets import model_names
    from memplan.render.catalogue import LISTS
    from memplan.spec.complaints import inner_fields
    from memplan.spec.job import Job
    from memplan.tables.choices import CHOICES
    from memplan.tables.terms import TERMS

    inner = {key: inner_fields(field.annotation) for key, field in Job.model_fields.items()}
    keys = [f"{key}=" for key, within in inner.items() if not within]
    keys += [f"{key}.{name}=" for key, within in inner.items() for name in within]
    models = [*model_names(), *job_names()]
    return {
        **CHOICES,
        **dict.fromkeys(("target", "targets", "model", "files"), models),
        **dict.fromkeys(("set_", "fix", "vary"), keys),
        "recompute": CHOICES["gradient_checkpointing"],
        "lora_dtype": ("fp32", "bf16", "fp16"),
        "lora_bias": ("none", "all", "lora_only"),
        "zero_stage": "0123",
        "gpu": [*gpu_names(), "local"],
        "cluster": [str(row["name"]) for row in as_rows()],
        "methods": CHOICES["method"],
        "maximize": MAXIMIZED,
        "framework": list(frameworks()),
        "framework_": [name for name, row in frameworks().items() if row.write],
        "format_": output.FORMATS,
        "form": check.FORMS,
        "term": list(TERMS),
        "show.what": list(LISTS),
        "schema.what": schema.KINDS,
        "shell": list(SHELLS),
    }


def _cases(found: Sequence[Completed]) -> str:
    """``case`` statements that bash and zsh share: from ``$command`` and ``$prev`` to ``$options`` and ``$list``."""
    commands = list(dict.fromkeys(each.command for each in found))
    own = {command: [each for each in found if each.command == command] for command in commands}
    options = {command: tuple(name for each in own[command] for name in each.names) for command in commands}
    arguments = {command: [each.words for each in own[command] if not each.names] for command in commands}
    values: dict[str, dict[str, tuple[str, ...]]] = {}
    for each in found:
        for name in each.names if each.takes_value else ():
            values.setdefault(name, {})[each.command] = each.words
    taken = {
        f"{'*' if len(set(words.values())) == 1 else command}' {name}'": words[command]
        for name, words in values.items()
        for command in words
    }
    first, last = ({command: words[at] for command, words in arguments.items() if words} for at in (0, -1))
    return f"""{_case("$command", "options", options)}
{_case("$command $prev", "takes=1; list", taken)}
  if [ -n "$takes" ]; then :; elif [ "$place" = 2 ]; then
{_case("$command", "list", first)}
  else
{_case("$command", "list", last)}
  fi
"""


def _case(what: str, variable: str, rows: Mapping[str, tuple[str, ...]]) -> str:
    """A ``case`` statement: the patterns of equal words in one row."""
    patterns: dict[tuple[str, ...], list[str]] = {}
    for pattern, words in rows.items():
        patterns.setdefault(words, []).append(pattern)
    lines = [f"    {'|'.join(each)}) {variable}='{' '.join(words)}';;\n" for words, each in patterns.items()]
    return f'  case "{what}" in\n{"".join(lines)}  esac'


def _filled(shell: str, found: Sequence[Completed]) -> str:
    """The script beside this file, with commands, options and their words."""
    from memplan.cli.commands import COMMANDS

    text = Path(__file__).with_suffix(f".{shell}").read_text(encoding="utf-8")
    text = text.replace("@COMMANDS@", " ".join((*COMMANDS, "--help", "--version")))
    return text.replace("@ASSIGNING@", "|".join(ASSIGNING)).replace("@CASES@", _cases(found))


def fish(found: Sequence[Completed]) -> str:
    """The script for fish."""
    from memplan.cli.commands import COMMANDS

    lines = ["# Completion of memplan for fish."]
    lines += [
        f"complete -c memplan -n __fish_use_subcommand -xa {name} -d {_quoted(text)}" for name, text in COMMANDS.items()
    ]
    commands: dict[tuple[Any, ...], list[str]] = {}
    for each in found:
        commands.setdefault(each[1:], []).append(each.command)
    for (names, takes_value, words), seen in commands.items():
        line = f"complete -c memplan -n {_quoted('__fish_seen_subcommand_from ' + ' '.join(seen))}"
        line += "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in names)
        line += (" -x" if words else " -r") if names and takes_value else ""
        lines.append(line + (f" -a {_quoted(' '.join(words))}" if words else ""))
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[Sequence[Completed]], str]] = {
    "bash": partial(_filled, "bash"),
    "zsh": partial(_filled, "zsh"),
    "fish": fish,
}
"""For bash ``=`` is a word of its own; zsh's is to be sourced, or put into $fpath as _memplan."""
