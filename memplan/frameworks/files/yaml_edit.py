"""YAML changed in place: one value replaced or added, every other character as it was."""

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.files.documents import document_of
from memplan.frameworks.files.quoting import yaml_value


def yaml_with(text: str, path: tuple[str, ...], value: Any, file: str) -> str:
    """The text with one value replaced where it stands, or a line added after the last of its mapping.

    What an alias or a merge gives is written out beside it, and the anchor stays as it is. Raises InvalidJob where the
    value stands under an anchor that other lines use: they would change with it."""
    import yaml

    node = composed(text)
    for depth, key in enumerate(path):
        found = next((pair[1] for pair in node.value if pair[0].value == key), None)
        last = depth + 1 == len(path)
        whole = value if last else _with(text, path[: depth + 1], path[depth + 1 :], value)
        if found is None:
            return _inserted(text, node, key, whole)
        if getattr(found, "shared", False):
            name, line = ".".join(path), found.start_mark.line + 1
            raise InvalidJob(
                f"{file}, line {line}: {name}: other lines use this value by its anchor, and would change with it",
                "write the value out where the alias or merge is, then try again",
            )
        if last or not isinstance(found, yaml.MappingNode) or found.flow_style:
            return _replaced(text, found, yaml_value(whole, bool(node.flow_style)))
        node = found
    return text


def composed(text: str) -> Any:
    """The root node. An alias is a node at its own place; what an anchor names that others use is marked shared."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            this: Any = self  # the stubs of PyYAML have no types for these
            alias = this.peek_event() if this.check_event(yaml.AliasEvent) else None
            node: Any = super().compose_node(parent, index)
            if alias is None:
                return node
            node.shared = True
            made = copy(node)
            made.start_mark, made.end_mark, made.shared = alias.start_mark, alias.end_mark, False
            if not isinstance(node, yaml.ScalarNode):
                made.flow_style = True
            return made

    return yaml.compose(text, Loader=Loader)


def _with(text: str, path: tuple[str, ...], below: tuple[str, ...], value: Any) -> dict[str, Any]:
    """The mapping at a path as it is, whoever gives it, with one more value."""
    inner: Any = document_of(text, "file", "yaml").settings.values
    for key in path:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    merged = deepcopy(dict(inner)) if isinstance(inner, Mapping) else {}
    _set(merged, below, value)
    return merged


def _set(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def _replaced(text: str, node: Any, new: str) -> str:
    """The node's own characters replaced; what follows them in its line stays."""
    start, end = node.start_mark.index, _end(node)
    if start and text[start - 1] == ":":
        new = " " + new
    line_start = text.rfind("\n", 0, start) + 1
    if not text[line_start:start].strip():  # a block that begins in a line of its own: up beside its key
        start = len(text[:line_start].rstrip())
        new = " " + new
    return text[:start] + new + text[end:]


def _end(node: Any) -> int:
    """Behind the last character of a node: a block's mark lies behind blank lines and comments that follow."""
    import yaml

    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)


def _inserted(text: str, node: Any, key: str, value: Any) -> str:
    """A line more, behind the last of the mapping, indented as it is."""
    end = _end(node)
    first = next((pair[0] for pair in node.value), node)
    column = first.start_mark.column
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    return f"{text[:stop]}\n{' ' * column}{yaml_value(key)}: {yaml_value(value)}{text[stop:]}"
