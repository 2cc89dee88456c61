"""What a layer keeps of the past while an engine generates, by the kind of its mixer.

From the same parts that training's activations are counted from: a new family brings its cache with them."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from memplan.errors import InvalidJob
from memplan.spec.attention_kinds import LatentAttention
from memplan.spec.generation import Draft, Generator
from memplan.spec.layer import Layer
from memplan.spec.parts import Mixer
from memplan.tables.engines import era_of
from memplan.units import DTYPE_BYTES, round_up

FP32 = DTYPE_BYTES["fp32"]
SPARSE_FP8 = 656
"""Bytes of a token where DeepSeek's sparse attention keeps fp8 (vllm 0.11 v1/kv_cache_interface.py: fp8_ds_mla)."""

UNFOLDED = 256
"""Width of a head of keys and of values where no latent is kept (``Era.latent``)."""


class Cell(NamedTuple):
    """One layer's share of one rank's cache."""

    kind: Literal["full", "window", "chunk", "latent", "state"]
    token: int = 0
    """Bytes of a token."""
    window: int = 0
    """Tokens that are kept."""
    state: int = 0
    """Bytes of a sequence, whatever its length."""


def cells_of(layer: Layer, of: Generator) -> tuple[Cell, ...]:
    """What a layer keeps; nothing where it has no mixer, or reads another layer's keys and values.

    Raises InvalidJob for a mixer that no engine serves."""
    if layer.cross is not None:
        raise refused(of, "cross attention to an encoder")
    found: list[Cell] = []
    for mixer in (part for part in layer.parts if isinstance(part, Mixer)):  # beside attention: Zamba 2's state space
        made = CELLS.get(mixer.kind)
        if made is None:
            raise refused(of, f"layers of the kind {mixer.kind}")
        found += made(mixer, of)
    return tuple(found)


def drafting_layer(of: Generator) -> Layer:
    """The last layer with keys and values, which a drafting one is like."""
    runs = reversed(of.model.runs)
    found = next((run.layer for run in runs if any(cell.token for cell in cells_of(run.layer, of))), None)
    if found is None:
        raise refused(of, "a draft beside a model without attention")
    return found


def draft_cells(of: Generator) -> Iterator[Cell]:
    """Of what drafts, layer by layer."""
    draft = of.draft or Draft()
    if draft.layers:
        for cell in cells_of(drafting_layer(of), of):
            yield from (cell for _ in range(draft.layers))
    for run in draft.model.runs if draft.model else ():
        for cell in cells_of(run.layer, of):
            yield from (cell for _ in range(run.count))


def refused(of: Generator, what: str) -> InvalidJob:
    """An error for a model that cannot be served."""
    return InvalidJob(
        f"rollout.engine: {of.engine} with {what} ({of.model.family}) is not modelled",
        "name another model; beside a trainer, rollout.engine hf",
    )


def _attention(mixer: Any, of: Generator) -> tuple[Cell, ...]:
    """Keys and values of the heads of a rank, which are repeated where there are more ranks than heads."""
    if getattr(mixer, "reads", ""):
        return ()
    token = 2 * max(1, mixer.num_kv_heads // of.tensor_parallel) * mixer.head_dim * of.kv_itemsize
    if mixer.window is None:
        return (Cell("full", token),)
    return (Cell("chunk" if mixer.style == "llama4" else "window", token, mixer.window),)


def _latent(mixer: Any, of: Generator) -> tuple[Cell, ...]:
    """One latent and its rotated part, whole on each rank; an indexer's keys in fp8 with a scale beside them.
    transformers' own cache has both as they are (5.15 on, models/deepseek_v3: DeepseekV3Attention.forward)."""
    if of.engine == "hf" and not of.latent:
        return (Cell("full", mixer.num_heads * (mixer.nope + mixer.rope + mixer.value) * of.kv_itemsize),)
    multiple = 1 if of.engine == "hf" else era_of(of.engine, of.version).latent
    if not multiple:
        return (Cell("full", 2 * mixer.num_heads // of.tensor_parallel * UNFOLDED * of.kv_itemsize),)
    plain = round_up((mixer.latent + mixer.rope) * of.kv_itemsize, multiple)
    found = Cell("latent", SPARSE_FP8 if mixer.indexed and of.kv_itemsize == 1 else plain)
    return (found,) if mixer.indexer is None else (found, Cell("latent", mixer.indexer.width + FP32))


def expanded_bytes(of: Generator) -> int:
    """The widest layer's keys and values, which transformers makes anew from the latents of all tokens for each token:
    what kv_b_proj gives, and keys beside it (5.24 models/deepseek_v3: DeepseekV3Attention.expand_kv)."""
    parts = (part for run in of.model.runs for part in run.layer.parts if isinstance(part, LatentAttention))
    widths = (part.num_heads * (2 * part.nope + part.rope + part.value) for part in parts if of.latent)
    return of.rows * (of.prompt_length + of.completion_length) * max(widths, default=0) * of.kv_itemsize


def _state(mixer: Any, of: Generator, channels: int, state: int) -> tuple[Cell, ...]:
    """The last steps of a convolution over ``channels``, and ``state`` numbers."""
    convolved = channels // of.tensor_parallel * (mixer.kernel - 1) * of.itemsize
    return (Cell("state", state=convolved + state // of.tensor_parallel * (mixer.state_itemsize or of.itemsize)),)


def _dual(mixer: Any, of: Generator) -> tuple[Cell, ...]:
    """Groups that do not divide by the ranks are repeated (vllm mamba_utils.py: extra_groups_for_head_shards)."""
    more = of.tensor_parallel - mixer.groups if mixer.groups % of.tensor_parallel else 0
    channels = mixer.inner + 2 * (mixer.groups + more) * mixer.state
    return _state(mixer, of, channels, mixer.heads * mixer.head_dim * mixer.state)


CELLS: dict[str, Callable[[Any, Generator], tuple[Cell, ...]]] = {
    "attention": _attention,
    "shared_kv": _attention,
    "latent": _latent,
    "state-space": lambda mixer, of: _state(mixer, of, mixer.inner, mixer.inner * mixer.state),
    "state-space-dual": _dual,
    "gated-delta": lambda mixer, of: _state(
        mixer, of, 2 * mixer.keys + mixer.values, mixer.value_heads * mixer.value_dim * mixer.key_dim
    ),
    "short-convolution": lambda mixer, of: _state(mixer, of, mixer.width, 0),
    "lightning": lambda mixer, of: (
        Cell("state", state=mixer.heads // of.tensor_parallel * mixer.head_dim**2 * of.itemsize),
    ),
    "both": lambda mixer, of: (*_attention(mixer.attention, of), *_dual(mixer.state_space, of)),
}
"""By ``Mixer.kind``; a kind that is not here is served by neither vLLM nor SGLang, or not modelled yet."""
