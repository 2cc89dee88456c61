"""torchtitan's files of 2024, and the flavors that a fork adds to its Llamas.

Source: torchtitan 0.1 config_manager.py, models/llama/__init__.py (ModelArgs), models/llama/model.py: FeedForward.
"""

import ast
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from memplan.arch.config import sizes
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.files.following import found_at
from memplan.units import ceil_div

OF_2024 = {
    "training": words("tensor_parallel_degree data_parallel_replicate_degree data_parallel_shard_degree"),
    "experimental": words(
        """pipeline_parallel_degree pipeline_parallel_schedule pipeline_parallel_microbatches context_parallel_degree
        context_parallel_rotate_method enable_async_tensor_parallel enable_compiled_autograd"""
    ),
}
"""Keys of ``parallelism`` where they stood before it."""
MOVED = (
    *((section, key, "parallelism", key) for section, keys in OF_2024.items() for key in keys),
    ("training", "compile", "compile", "enable"),
    ("training", "data_parallel_degree", "parallelism", "data_parallel_shard_degree"),
)
VOCABULARY = {"llama2": 32_000, "llama3": 128_256}
"""Of the tokenizer, which the size is taken of where ModelArgs names none."""


def today(settings: Settings) -> Settings:
    """Settings with what stood in other sections in 2024 where it stands now."""
    values, lines, paths = dict(settings.values), dict(settings.lines), dict(settings.paths)
    for old, key, new, name in MOVED:
        section, into = values.get(old), values.get(new) or {}
        if not isinstance(section, dict) or not isinstance(into, dict) or key not in section:
            continue
        values[old] = {each: value for each, value in section.items() if each != key}
        values[new] = {name: section[key]} | into
        if f"{old}.{key}" in lines:
            lines.setdefault(f"{new}.{name}", lines[f"{old}.{key}"])
        if f"{old}.{key}" in paths:
            paths.setdefault(f"{new}.{name}", paths[f"{old}.{key}"])
    return replace(settings, values=values, lines=lines, paths=paths)


def own_flavor(path: str, name: str, flavor: str) -> dict[str, Any] | None:
    """The config of a Llama that ``torchtitan/models/…`` of the project around a file has under this
    flavor; None where there is none. Gated feed-forward: 8/3 of the width, times a factor, rounded up."""
    for folder, module in product((name, name.rstrip("0123456789")), ("__init__.py", "configs.py")):
        file = found_at(path, f"torchtitan/models/{folder}/{module}") if name in VOCABULARY else None
        given = next(_flavors(file, name, flavor), None) if file else None
        if given is not None and {"dim", "n_layers", "n_heads"} <= given.keys():
            factor, multiple = given.get("ffn_dim_multiplier") or 1, int(given.get("multiple_of") or 256)
            width = int(factor * int(8 * given["dim"] / 3))
            return {"model_type": "llama", "tie_word_embeddings": bool(given.get("share_embeddings"))} | sizes(
                vocab=max(given.get("vocab_size") or 0, 0) or VOCABULARY[name],
                hidden=given["dim"],
                intermediate=ceil_div(width, multiple) * multiple,
                layers=given["n_layers"],
                heads=given["n_heads"],
                kv_heads=given.get("n_kv_heads") or given["n_heads"],
            )
    return None


def _flavors(file: Path, name: str, flavor: str) -> Iterator[dict[str, Any]]:
    """The literal arguments of this flavor, in a dictionary that the model's name stands in."""
    try:
        body = ast.parse(file.read_text("utf-8", "replace")).body
    except SyntaxError:
        return
    for each in body:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        table = getattr(each, "value", None)
        if not (isinstance(target, ast.Name) and name in target.id and isinstance(table, ast.Dict)):
            continue
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == flavor and isinstance(value, ast.Call):
                given = {word.arg: word.value for word in value.keywords if word.arg}
                yield {word: node.value for word, node in given.items() if isinstance(node, ast.Constant)}
