"""Which weights the patterns of ``freeze`` name: the same rule for described models and for real parameter names.

A path is the dotted name of a weight in the words of Llama's classes, without the wrapper and the last ``weight``:
``layers.0.self_attn.q_proj``. A pattern is a run of segments that stands anywhere in it: ``embed_tokens``,
``layers.0-15``, ``layers.*.mlp``, ``q_proj``, ``*norm*``."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache

WRAPPERS = frozenset({"model", "transformer", "language_model", "gpt_neox", "decoder", "backbone", "weight", ""})
"""Segments that say where a module hangs, not which it is."""
WORDS = {
    **dict.fromkeys(("h", "blocks", "layer"), "layers"),
    **dict.fromkeys(("wte", "embed_in", "word_embeddings", "tok_embeddings"), "embed_tokens"),
    **dict.fromkeys(("attn", "attention", "self_attention", "linear_attn", "mixer"), "self_attn"),
    **dict.fromkeys(("feed_forward", "ffn", "block_sparse_moe"), "mlp"),
    **dict.fromkeys(("ln_f", "final_layernorm", "final_layer_norm", "norm_f", "embedding_norm"), "norm"),
    **dict.fromkeys(("visual", "vision_model", "vision_encoder"), "vision_tower"),
    **dict.fromkeys(("mm_projector", "connector", "embed_vision"), "multi_modal_projector"),
}
"""Other families' words for the same modules."""
LANGUAGE_MODEL = "language_model"
"""A pattern of its own: all but the tower and its projector."""
RANGE = re.compile(r"(\d+)-(\d+)")
_GLOB = re.compile(r"[*?[]|^\d+-\d+$")


def path_of(name: str) -> tuple[str, ...]:
    """The segments of a dotted name, in common words."""
    return tuple(WORDS.get(part, part) for part in name.split(".") if part not in WRAPPERS)


class Patterns:
    """Several patterns together: those that name a module as it is called are looked up, however many they are."""

    def __init__(self, patterns: Iterable[tuple[str, ...]]) -> None:
        every = list(patterns)
        self.plain = frozenset(each for each in every if not any(map(_GLOB.search, each)))
        self.globs = [each for each in every if each not in self.plain]

    def name(self, path: tuple[str, ...]) -> bool:
        """Whether one of them names the path."""
        return not self.plain.isdisjoint(runs(path)) or any(matches(each, path) for each in self.globs)

    def without_path(self, paths: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """Those that name none of the paths."""
        left = {*self.plain, *self.globs}
        for path in paths:
            left.difference_update(runs(path), [each for each in self.globs if each in left and matches(each, path)])
        return left


def runs(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """All that stands in a path, one segment after the other."""
    ends = range(1, len(path) + 1)
    return [path[start:end] for end in ends for start in range(end)]


def matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether the pattern's segments stand somewhere in the path, one after the other."""
    width = len(pattern)
    return any(all(map(_segment, pattern, path[start : start + width])) for start in range(len(path) - width + 1))


@lru_cache(maxsize=65_536)
def _segment(want: str, have: str) -> bool:
    """A glob, or a range of layers, both ends included."""
    numbers = RANGE.fullmatch(want)
    if numbers:
        return have.isdigit() and int(numbers[1]) <= int(have) <= int(numbers[2])
    return fnmatchcase(have, want)
