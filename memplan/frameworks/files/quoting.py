"""The one place where a value becomes text that a shell, YAML, TOML or a comment holds.

A model's folder may be called anything that a file system takes, and a job may come from the internet: what is written
here is read by its reader as the value, and never as a line, key or command of its own. No writer emits Python."""

import json
import shlex
import sys
from functools import cache
from typing import Any

from memplan.errors import InvalidJob


class Variable(str):
    """The name of an environment variable, whose value a script takes when it runs."""


def shell_word(value: object) -> str:
    """A value as one word of a command. Raises InvalidJob for what no command line can hold.

    NUL ends an argument; a lone surrogate stands for a byte that is no text."""
    if isinstance(value, Variable):
        return f'"${{{value}}}"'
    text = str(value)
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidJob(f"{visible(text)[:80]!r} cannot stand in a shell script", "name it with printable characters")
    return shlex.quote(text)


def yaml_value(value: Any, inside: bool = False) -> str:
    """A value, or a key, as YAML in one line. ``inside``: within brackets, where commas separate."""
    import yaml

    shown = yaml.dump(
        [value] if inside else value,
        Dumper=_dumper(),
        default_flow_style=True,
        sort_keys=False,
        width=sys.maxsize,
        allow_unicode=True,
    )
    text = str(shown).removesuffix("...\n").strip()
    return text[1:-1] if inside else text


def yaml_lines(key: str, value: Any) -> str:
    """A setting that is a mapping: key and value in a line, one below the other."""
    import yaml

    values = {key: value}
    return str(yaml.dump(values, Dumper=_dumper(), default_flow_style=False, sort_keys=False, width=sys.maxsize))


def toml_value(value: bool | int | str) -> str:
    """A value of TOML: a text in JSON's quotes, whose escapes TOML has too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def comment(lines: tuple[str, ...]) -> list[str]:
    """Lines of a comment, as a shell, YAML and TOML have them: each stays one, whatever is in it."""
    return [f"# {visible(line)}".rstrip() for line in lines]


def visible(text: str) -> str:
    """The text with whatever is no printable character, line ends included, written as its escape."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


@cache
def _dumper() -> Any:
    """PyYAML's safe dumper, which writes a text with line ends or control characters within double quotes: in its other
    styles such a text takes lines of its own."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_str(self, data: str) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:str", data, None if data.isprintable() else '"')

    Dumper.add_representer(str, Dumper.represent_str)
    return Dumper
