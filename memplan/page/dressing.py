"""What the page is told beside the answer: what an instant is in words, what to type for a change, and its words in
another language.

These are texts for texts, looked up where the page makes a text node (its own by a list of templates, an answer's by
the catalogues of ``lang``); what is in neither stays as it is."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from memplan.lang import ENGLISH, language, said
from memplan.spec.option_words import option_words


def dressed(payload: Any, words: Callable[[str], str] | None = None) -> Any:
    """The answer with a key ``page``: ``words`` of its instants, for each remedy the lines ``typed``, and in another
    language than English what is ``said`` in it for which text, and the page's ``own`` words.

    A list (answers of ``check``) stays as it is in English, else becomes ``files``. ``words``: what an instant is."""
    if not isinstance(payload, Mapping):
        if language() == ENGLISH:
            return payload
        payload = {"files": payload}
    found: dict[str, Any] = {"typed": [_typed(remedy) for remedy in payload.get("remedies") or ()]}
    if words is not None:
        found["words"] = {name: words(name) for name in sorted(set(_instants(payload)))}
    if language() != ENGLISH:
        found |= {"said": said_of({**payload, **found}), "own": own_words(language()), "lang": language()}
    return {**payload, "page": found}


def _typed(remedy: Any) -> list[str]:
    """What to type for a remedy: its own words, else memplan's options."""
    if not isinstance(remedy, Mapping):
        return []
    write = remedy.get("write")
    if isinstance(write, str) and write:  # advice of a diagnosis without a job
        return [write]
    return list(write) if write else [option_words(remedy.get("changes") or {})]


def _instants(payload: Mapping[str, Any]) -> Iterator[str]:
    """The names of instants, of every report in an answer."""
    for name in ("rows", "plans"):
        for row in payload.get(name) or ():
            if isinstance(row, Mapping) and isinstance(row.get("report"), Mapping):
                yield from _instants(row["report"])
    gpu = payload.get("per_gpu")
    if isinstance(gpu, Mapping):
        for of in (gpu, *gpu.get("moments", ())):
            yield from (each["name"] for each in of.get("instants", ()))
        yield from (each["at"] for each in payload.get("rollout") or ())


NAMES = ("job", "changes", "write", "typed", "sources", "model")
"""Keys under which there are names, keys and lines to type: nothing to translate."""


@cache
def own_words(name: str) -> dict[str, str]:
    """What the page itself says, by its English, with fields in braces; nothing for English."""
    from memplan.lang.catalogue import entries_of

    if name == ENGLISH:
        return {}
    file = files("memplan.page") / "static" / f"{name}.txt"
    return entries_of(file.read_text(encoding="utf-8"), f"{name}.txt")


def said_of(payload: Any) -> dict[str, str]:
    """The texts of an answer in the language that is spoken, by their English."""
    if language() == ENGLISH:
        return {}
    found = {text: said(text) for text in dict.fromkeys(_texts(payload))}
    return {text: other for text, other in found.items() if other != text}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in NAMES:
                yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
