"""A YAML file read with care, and where each of its values stands.

Files come from users and from the internet, so only plain data is read: no tags, no huge or deeply nested files.
Anchors, aliases and merges are read as far as they stand for no more than a person would write out: a few lines of them
can stand for gigabytes. Every refusal names file and line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memplan.errors import InvalidJob, did_you_mean
from memplan.files import instead_of_missing
from memplan.spec.plain import MAX_DEPTH, MAX_VALUES, OddFloat, OddInt

TWICE = "key {!r:.60} is there twice, and the last one counts"
MAX_BYTES = 256 * 1024
MERGE = "tag:yaml.org,2002:merge"
TOO_MANY = "leave out what no training reads"
HOLDERS = ("x-", "_", ".")
"""How keys begin that only hold what aliases name, by custom; such a key is no setting."""
_ODD = re.compile(r"[-+]?(0[0-7_]+|[\d_]+(:[\d_]+)+(\.[\d_]*)?)")
"""Octal without a mark, and sexagesimal."""
_DIFFERS = re.compile(r"[!?\t\ufeff\ud800-\udfff]|[|>][-+\d]*#")
"""Where libyaml 0.2.5 and PyYAML 6.0 part: bare tags, ``?`` in words of a flow, tabs, byte order marks, ``|# note``."""
_PLAIN_TAGS = ("str", "int", "float", "bool", "null", "seq", "map")
_PLAIN_HINT = "write text, a number, a list or a mapping; put text that looks like something else in quotes"


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping of a file: its values, and the line of each key."""

    path: Path
    what: str
    """What the mapping is, for messages: 'the file', 'strategy 2', 'set'."""
    values: dict[str, Any]
    lines: dict[str, int]
    nested: dict[str, Any]
    """The YAML nodes of the values."""

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def error(self, key: str, problem: str, hint: str = "") -> InvalidJob:
        """An error about a key's value (to be raised), with file and line."""
        return InvalidJob(f"{self.path}, line {self.lines[key]}: {key}: {problem}", hint)

    def text(self, key: str, default: str | None = None) -> str:
        """A value that is one line or more of text. Raises InvalidJob when it is missing and has no default."""
        if key not in self.values:
            if default is not None:
                return default
            first = min(self.lines.values(), default=1)
            raise InvalidJob(f"{self.path}, line {first}: {self.what} has no {key!r}", f"add `{key}: …`")
        value = self.values[key]
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, f"not text: {value!r}", "write a word, or text in quotes")
        return value.strip()

    def mapping(self, key: str) -> "Fields":
        """A value that is a mapping; empty when the key is missing."""
        if key not in self.values:
            return Fields(self.path, key, {}, {}, {})
        return fields_of(self.nested[key], self.path, key)

    def rows(self, key: str, known: tuple[str, ...]) -> Iterator["Fields"]:
        """The mappings of a list, each with keys among ``known`` and a name of its own; none without the key."""
        import yaml

        node = self.nested.get(key)
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode):
            raise self.error(key, "not a list", f"write one `- name: …` under `{key}:` for each")
        names: set[str] = set()
        for number, item in enumerate(node.value, start=1):
            row = fields_of(item, self.path, f"{key} {number}", known)
            if row.text("name") in names:
                raise row.error("name", f"{row.text('name')!r} is there twice", "give each a name of its own")
            names.add(row.text("name"))
            yield row


def read_yaml(path: Path, what: str, text: str | None = None) -> Any:
    """The root node of a YAML file; ``what``: what it should hold, for messages. ``text``: the file's, if read already.

    Raises InvalidJob when it cannot be read, is no YAML, or holds more than plain data."""
    import yaml

    text = _text(path, what) if text is None else text
    try:
        node, named = _composed(path, text)
        if named:
            _refuse_what_grows(path, node, {})
            _leave_out_holders(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InvalidJob(f"{path}{line}: not YAML: {error.problem or error.context}", "see yaml.org") from None
    except yaml.YAMLError as error:
        raise InvalidJob(f"{path}: not YAML: {str(error).splitlines()[0]}", "see yaml.org") from None
    if node is None:
        raise InvalidJob(f"{path}: the file is empty", f"it should hold {what}")
    return node


def fields_of(
    node: Any, path: Path, what: str, known: tuple[str, ...] | None = None, remarks: list[str] | None = None
) -> Fields:
    """The keys and values of a mapping node. Raises InvalidJob for a key that is unknown, repeated or no text.

    ``remarks``: others read the file too, by PyYAML: the last of repeated keys counts, said there; dates are text."""
    import yaml

    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise InvalidJob(f"{path}, line {line}: {what} is not a set of `key: value` lines", _known_hint(known))
    values, lines, nested = {}, {}, {}
    for key_node, value_node in pairs_of(node, path):
        key, line = _plain(key_node, path), key_node.start_mark.line + 1
        if isinstance(key, (int, float)) and remarks is not None:  # a table of a project's own
            key = str(key)
        if not isinstance(key, str):
            raise InvalidJob(f"{path}, line {line}: key {key!r} is not text", _known_hint(known))
        if known is not None and key not in known:
            raise InvalidJob(f"{path}, line {line}: {what}: unknown key {key!r}", did_you_mean(key, known))
        if key in values and remarks is None:
            raise InvalidJob(f"{path}, line {line}: key {key!r} is there twice", "leave one of them")
        if key in values and remarks is not None:
            remarks.append(f"{path}, line {line}: {TWICE.format(key)}")
        values[key], lines[key], nested[key] = _plain(value_node, path, remarks), line, value_node
    return Fields(path, what, values, lines, nested)


def pairs_of(node: Any, path: Path) -> list[tuple[Any, Any]]:
    """Keys and values of a mapping node. A merge (``<<``) gives the keys that the mapping has not itself; of several
    the last wins, of those in one list the first, as PyYAML has it. Raises InvalidJob for a merge of anything else."""
    import yaml

    own = [pair for pair in node.value if pair[0].tag != MERGE]
    if len(own) == len(node.value):
        return own
    given: dict[str, tuple[Any, Any]] = {}
    for key_node, value_node in node.value:
        if key_node.tag != MERGE:
            continue
        several = isinstance(value_node, yaml.SequenceNode)
        for each in reversed(value_node.value) if several else [value_node]:
            if not isinstance(each, yaml.MappingNode):
                line = key_node.start_mark.line + 1
                raise InvalidJob(f"{path}, line {line}: << merges no mapping", "write <<: *name of a mapping")
            given |= {str(key.value): (key, value) for key, value in pairs_of(each, path)}
    names = {str(key.value) for key, _ in own}
    return [*(pair for name, pair in given.items() if name not in names), *own]


def _known_hint(known: tuple[str, ...] | None) -> str:
    return "known keys: " + ", ".join(known) if known else "write `key: value`"


def _text(path: Path, what: str) -> str:
    """The file's text, if it is a readable file of a size that a person writes."""
    try:
        if not path.is_file():
            problem, hint = (
                "is no file" if path.exists() else "does not exist",
                f"give the path of a YAML file of {what}",
            )
            raise InvalidJob(f"{path} {problem}", hint if path.exists() else instead_of_missing(str(path), hint))
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidJob(
                f"{path}: larger than {MAX_BYTES // 1024} KiB", f"a file of {what} is smaller; is it this one?"
            )
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidJob(f"{path}: not UTF-8 text", f"give the path of a YAML file of {what}") from None
    except (OSError, ValueError) as error:
        raise InvalidJob(f"{path}: cannot be read: {error}", f"give the path of a YAML file of {what}") from None


def _composed(path: Path, text: str, own: bool = False) -> tuple[Any, bool]:
    """The root node, and whether there are aliases. Too deep or too much is refused before the rest is read. By libyaml
    where PyYAML has it; what the two take differently PyYAML's own parser reads, and says why not, as frameworks do."""
    import yaml

    quick = None if own or _DIFFERS.search(text) else getattr(yaml, "CSafeLoader", None)
    loader = _loader_by(quick or yaml.SafeLoader)(text)
    loader.path, loader.anchors = path, {}
    try:
        return loader.get_single_node(), loader.named
    except yaml.YAMLError:
        if quick is None:
            raise
        return _composed(path, text, own=True)
    finally:
        loader.dispose()


@cache
def _loader_by(parser: Any) -> Any:
    """What composes nodes of a parser's events."""
    import yaml
    from yaml.composer import Composer

    class Bounded(Composer):
        path, depth, values, named = Path(), 0, 0, False

        def compose_node(self, parent: Any, index: Any) -> Any:
            event = self.peek_event()  # type: ignore[attr-defined]
            line = event.start_mark.line + 1
            self.named = self.named or isinstance(event, yaml.AliasEvent)
            self.values, self.depth = self.values + 1, self.depth + 1
            if self.depth > MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
                raise InvalidJob(f"{self.path}, line {line}: nested deeper than {MAX_DEPTH} levels", "flatten the file")
            if self.values > MAX_VALUES:
                raise InvalidJob(f"{self.path}, line {line}: more than {MAX_VALUES} values", TOO_MANY)
            node: Any = super().compose_node(parent, index)
            self.depth -= 1
            return node

    return type("Loader", (Bounded, parser), {"__init__": parser.__init__})


def _refuse_what_grows(path: Path, node: Any, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """Values and levels of a node once aliases are written out, without writing them out. What an alias names stands
    before it, so the recursion goes no deeper than the text is nested."""
    import yaml

    if id(node) in known:
        found = known[id(node)]
        if found is None:
            line = node.start_mark.line + 1
            raise InvalidJob(f"{path}, line {line}: an alias within what it names", "write the value out")
        return found
    known[id(node)] = None
    values, levels = 1, 0
    if isinstance(node, yaml.ScalarNode):  # long ones count for as many values as would take their place
        values += len(node.value) * MAX_VALUES // MAX_BYTES
    if isinstance(node, yaml.CollectionNode):
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        inner = [_refuse_what_grows(path, part, known) for part in parts]
        values, levels = 1 + sum(part[0] for part in inner), 1 + max((part[1] for part in inner), default=0)
    line = node.start_mark.line + 1
    if values > MAX_VALUES:
        raise InvalidJob(f"{path}, line {line}: aliases stand for more than {MAX_VALUES} values", "write them out")
    if levels > MAX_DEPTH:
        raise InvalidJob(f"{path}, line {line}: aliases nest deeper than {MAX_DEPTH} levels", "flatten the file")
    known[id(node)] = values, levels
    return values, levels


def _leave_out_holders(root: Any) -> None:
    """Without the keys of the file that only hold what aliases name: ``x-base: &base {…}``."""
    import yaml

    if isinstance(root, yaml.MappingNode):
        held = [isinstance(value, yaml.CollectionNode) and key.value for key, value in root.value]
        root.value = [pair for pair, name in zip(root.value, held, strict=True) if not str(name).startswith(HOLDERS)]


def _odd(value: Any, written: str) -> OddInt | OddFloat:
    """A number that remembers how it was written."""
    number = OddInt(value) if isinstance(value, int) else OddFloat(value)
    number.written = written
    return number


def _plain(node: Any, path: Path, remarks: list[str] | None = None) -> Any:
    """The value of a node, by its own rules at each level; MAX_DEPTH bounds the recursion.

    Raises InvalidJob for dates, binary data, language objects: tags of any kind but plain data's."""
    import yaml

    line, tag = node.start_mark.line + 1, node.tag.removeprefix("tag:yaml.org,2002:")
    if tag == "timestamp" and remarks is not None:
        return node.value
    if tag not in _PLAIN_TAGS:
        raise InvalidJob(f"{path}, line {line}: a value of kind {tag!r} is not read", _PLAIN_HINT)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, path, remarks) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        return fields_of(node, path, "a mapping", None, remarks).values
    try:
        value = yaml.SafeLoader.yaml_constructors[node.tag](_loader(), node)
        return _odd(value, node.value) if tag in ("int", "float") and _ODD.fullmatch(node.value) else value
    except (yaml.YAMLError, ValueError, TypeError, LookupError):
        raise InvalidJob(f"{path}, line {line}: {str(node.value)[:40]!r} is no {tag}", _PLAIN_HINT) from None


@cache
def _loader() -> Any:
    """What makes plain values of scalar nodes; it keeps nothing of them."""
    import yaml

    return yaml.SafeLoader("")
