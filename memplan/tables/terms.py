"""One row per word of a report: what the term is, its formula, its life, what divides it, and where that is known from.

``memplan explain`` prints these rows, and the tables of MEMORY_ESTIMATION.md are made of them. A row with categories is
a kind of memory, and its categories are those of the ledger's rows; a row without is a concept.

Letters: P parameters, Pt those that are trained, e bytes per element, N ranks that share, R sequences in the pass, s
their length, T = R·s tokens, h hidden, q = heads × head_dim, kv = key/value heads × head_dim, F feed-forward width,
H heads, V vocabulary, L layers, A bytes that a layer saves per token, r LoRA rank.
"""

from memplan.tables import (
    terms_of_activations,
    terms_of_buffers,
    terms_of_megatron,
    terms_of_model_states,
    terms_of_modules,
    terms_of_other_models,
    terms_of_steps,
    terms_of_zero,
)
from memplan.tables.term import Term

ROWS: tuple[Term, ...] = (
    *terms_of_model_states.ROWS,
    *terms_of_activations.ROWS,
    *terms_of_other_models.ROWS,
    *terms_of_buffers.ROWS,
    *terms_of_modules.ROWS,
    *terms_of_steps.ROWS,
    *terms_of_zero.ROWS,
    *terms_of_megatron.ROWS,
)
TERMS: dict[str, Term] = {row.key: row for row in ROWS}
"""Every term by its key."""


def term_names() -> dict[str, str]:
    """Every word that finds a term, folded, with the term's key: keys, titles, categories, aliases."""
    names: dict[str, str] = {}
    for term in ROWS:
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
