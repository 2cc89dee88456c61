"""Which weights the patterns of ``freeze`` name: the same rule for described models and for real parameter names.

A path is the dotted name of a weight in the words of Llama's classes, without the wrapper and the last ``weight``:
``layers.0.self_attn.q_proj``. A pattern is a run of segments that stands anywhere in it: ``embed_tokens``,
``layers.0-15``, ``layers.*.mlp``, ``q_proj``, ``*norm*``.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

WRAPPERS = frozenset({"model", "transformer", "language_model", "gpt_neox", "decoder", "backbone", "weight", ""})
"""Segments that say where a module hangs, not which it is."""
WORDS = {
    **dict.fromkeys(("h", "blocks", "layer"), "layers"),
    **dict.fromkeys(("wte", "embed_in", "word_embeddings", "tok_embeddings"), "embed_tokens"),
    **dict.fromkeys(("attn", "attention", "self_attention", "linear_attn", "mixer"), "self_attn"),
    **dict.fromkeys(("feed_forward", "ffn", "block_sparse_moe"), "mlp"),
    **dict.fromkeys(("ln_f", "final_layernorm", "final_layer_norm", "norm_f"), "norm"),
    **dict.fromkeys(("visual", "vision_model", "vision_encoder"), "vision_tower"),
    **dict.fromkeys(("mm_projector", "connector", "embed_vision"), "multi_modal_projector"),
}
"""Other families' words for the same modules."""
RANGE = re.compile(r"(\d+)-(\d+)")


def path_of(name: str) -> tuple[str, ...]:
    """The segments of a dotted name, in common words."""
    return tuple(WORDS.get(part, part) for part in name.split(".") if part not in WRAPPERS)


def matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether the pattern's segments stand somewhere in the path, one after the other."""
    width = len(pattern)
    return any(
        all(_segment(want, have) for want, have in zip(pattern, path[start : start + width], strict=True))
        for start in range(len(path) - width + 1)
    )


def _segment(want: str, have: str) -> bool:
    """A glob, or a range of layers, both ends included."""
    numbers = RANGE.fullmatch(want)
    if numbers:
        return have.isdigit() and int(numbers[1]) <= int(have) <= int(numbers[2])
    return fnmatchcase(have, want)
