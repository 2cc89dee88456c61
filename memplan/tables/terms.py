"""Each word of a report: what the term is, its formula, its life, what divides it, and where that is known from.

``memplan explain`` prints ``terms.toml``, and the tables of MEMORY_ESTIMATION.md are made of it. A term with categories
is a kind of memory, and its categories are those of the ledger's rows; a term without is a concept.

Letters: P parameters, Pt those that are trained, e bytes per element, N ranks that share, R sequences in the pass, s
their length, T = R·s tokens, h hidden, q = heads × head_dim, kv = key/value heads × head_dim, F feed-forward width,
H heads, V vocabulary, L layers, A bytes that a layer saves per token, r LoRA rank."""

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Chinese:
    """The words of a row in Chinese; a formula only where the English one has words in it."""

    title: str
    lifetime: str = ""
    shards: str = ""
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One term; text may be broken into lines anywhere between words."""

    key: str
    title: str
    what: str
    """Two sentences."""
    formula: str
    source: str
    section: str
    """Anchor in MEMORY_ESTIMATION.md."""
    zh: Chinese
    lifetime: str = ""
    """From birth to death, in instants of the schedule; empty for a concept."""
    shards: str = ""
    """What divides it over GPUs; empty for a concept."""
    categories: tuple[str, ...] = ()
    """Categories of the ledger's rows that it covers; empty for a concept."""
    see: tuple[str, ...] = ()
    """Keys of related terms."""
    aliases: tuple[str, ...] = ()
    """Other words for it."""


def _read(value: Any) -> Any:
    return " ".join(value.split()) if isinstance(value, str) else tuple(value)


def _rows() -> dict[str, dict[str, Any]]:
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    rows: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("terms.toml").read_text(encoding="utf-8"))
    return rows


TERMS: dict[str, Term] = {
    key: Term(key=key, zh=Chinese(**row.pop("zh")), **{name: _read(value) for name, value in row.items()})
    for key, row in _rows().items()
}
"""Every term by its key."""


def term_names() -> dict[str, str]:
    """Every word that finds a term, folded, with the term's key: keys, titles, categories, aliases."""
    names: dict[str, str] = {}
    for term in TERMS.values():
        for name in (*term.aliases, *term.categories, term.title, term.zh.title, term.key):
            names[_fold(name)] = term.key
    return names


def find_term(text: str) -> Term:
    """The term of that name, category or alias. Raises UsageError for a word that is none, naming the nearest."""
    names = term_names()
    folded = _fold(text)
    if folded in names:
        return TERMS[names[folded]]
    from memplan.errors import UsageError, nearest

    close = dict.fromkeys(names[name] for name in nearest(folded, names))
    hint = "did you mean " + " or ".join(close) + "?" if close else "memplan show terms lists them"
    raise UsageError(f"no term {text[:80]!r} to explain", hint)


def _fold(text: str) -> str:
    return "-".join(text.strip().lower().replace("_", " ").replace("-", " ").split())
