"""Rows of what layers save and hold for a moment, of all micro-batches that wait in the stage.

The fullest forward is that of the stage's last layer, the fullest backward begins there too. Three shares of what is
saved: other micro-batches in flight (the whole pass), this one's other layers (until the last layer is done), and the
last layer's own, step by step. Under full recomputation of some of the layers (block), the last of these has its own
instants after those of the layers that keep everything."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from memplan.engine.ledger import Ledger
from memplan.engine.megatron.head import checkpointed_mtp
from memplan.engine.megatron.layers import RECOMPUTE, layer_steps, mtp_steps, recomputed_steps
from memplan.engine.megatron.moe import routed
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.stages import Chunk
from memplan.engine.megatron.steps import Held, Step, Steps, fullest_forward, kept_bytes, size

PASS = "policy"
FORWARD, END = f"{PASS}.layer-forward", f"{PASS}.forward"
AGAIN = "recomputed-"
WHY_KEPT = "saved for backward"
UNEXPLAINED = "tokens that each layer sent, if something keeps them"
WHY_MOMENT = "alive at the step's fullest moment"


class Unit(NamedTuple):
    """What goes back at once: the last layer, or the chunk of layers that is made again together."""

    steps: Steps
    layers: int
    chunk: Chunk
    prefix: str


def steps_of(s: Shape, chunk: Chunk) -> Steps:
    """The steps of the chunk's layers."""
    if chunk.mtp:
        steps = mtp_steps(s, chunk.layer)
        return checkpointed_mtp(s, steps) if chunk.recomputed else steps
    return (recomputed_steps if chunk.recomputed else layer_steps)(s, chunk.layer)


def units(s: Shape, chunks: tuple[Chunk, ...]) -> list[Unit]:
    """In the order of backward: the last layer; where layers before it are made again and it is not, these too."""
    found: list[Unit] = []
    for chunk in reversed(chunks):
        if not found or (chunk.recomputed and not found[0].chunk.recomputed and len(found) == 1):
            layers = chunk_length(s, chunk)
            found.append(Unit(steps_of(s, chunk), layers, chunk, AGAIN if found else ""))
    return found


def chunk_length(s: Shape, chunk: Chunk) -> int:
    """Layers that are made again at once: uniform recomputation keeps the input of the first of so many."""
    if not chunk.recomputed or chunk.mtp or s.settings.recompute_method == "block":
        return 1
    return max(1, min(s.settings.recompute_num_layers, chunk.layers))


def layer_instants(s: Shape, chunks: tuple[Chunk, ...]) -> list[str]:
    """Instants of the layers' backward."""
    return [f"{PASS}.{unit.prefix}{step.name}-backward" for unit in units(s, chunks) for step in reversed(unit.steps)]


def enter_activations(ledger: Ledger, s: Shape, chunks: tuple[Chunk, ...]) -> None:
    """Every row of the stage's layers."""
    going = units(s, chunks)
    if not going:
        return
    _enter_waiting(ledger, s, chunks)
    for chunk in chunks:
        unit = going[-1] if chunk.recomputed else going[0]
        until = f"{PASS}.{unit.prefix}{unit.steps[0].name}-backward"
        _enter_others(ledger, s, chunk, unit.layers if chunk is unit.chunk else 0, until)
        _enter_unexplained(ledger, s, chunk)
    for position, unit in enumerate(going):
        _enter_last(ledger, s, unit, first=position == 0)


def kept_forward(s: Shape, chunks: tuple[Chunk, ...]) -> int:
    """Bytes that layers keep in the last layer's forward: those before it, and all of other micro-batches in flight."""
    going, kept = units(s, chunks), 0.0
    for chunk in chunks:
        own = chunk.layers - (going[0].layers if chunk is going[0].chunk else 0)
        layers = _checkpoints(s, chunk, chunk.layers) * (chunk.in_flight - 1) + max(0, _checkpoints(s, chunk, own))
        kept += kept_bytes(steps_of(s, chunk)) * layers
    return int(kept)


def _checkpoints(s: Shape, chunk: Chunk, layers: int) -> float:
    """Of so many layers, those that keep something: one in each chunk that is made again at once."""
    return -(-layers // chunk_length(s, chunk))


def _rows(s: Shape, chunk: Chunk) -> Iterator[tuple[Step, Held]]:
    for step in steps_of(s, chunk):
        for held in step.kept:
            if not held.again:
                yield step, held


def _enter_waiting(ledger: Ledger, s: Shape, chunks: tuple[Chunk, ...]) -> None:
    """Micro-batches in flight beside the one that goes back."""
    for chunk in chunks:
        others = chunk.in_flight - 1
        if others < 1:
            continue
        of_layer = kept_bytes(steps_of(s, chunk))
        layers = _checkpoints(s, chunk, chunk.layers)
        ledger.add(
            "layers of other micro-batches in flight",
            "activations",
            int(of_layer * layers * others),
            FORWARD,
            ledger.schedule[-2],
            high=_high(s, (held for _, held in _rows(s, chunk)), layers * others),
        ).told(of_layer, layers, others)


def _high(s: Shape, rows: Iterable[Held], times: float = 1) -> int:
    """The high figure of so many layers' rows, where what experts receive is unknown or unmeasured; else -1."""
    rows = list(rows)
    more = sum(held.bytes * (s.spread - 1 if held.routed else held.doubt) for held in rows)
    return int((sum(held.bytes for held in rows) + more) * times) if more > 0 else -1


def _enter_others(ledger: Ledger, s: Shape, chunk: Chunk, but: int, until: str) -> None:
    """This micro-batch's other layers, tensor by tensor; those recomputed, checkpoints alone."""
    layers = _checkpoints(s, chunk, chunk.layers - but)
    if layers < 1:
        return
    category = "checkpoints" if chunk.recomputed else "activations"
    for step, held in _rows(s, chunk):
        ledger.add(
            held.name, category, int(held.bytes * layers), FORWARD, until, high=_high(s, (held,), layers)
        ).formula(f"layers·{held.template}", layers, *held.factors).since(
            WHY_KEPT, RECOMPUTE if chunk.recomputed else step.source
        )


def _enter_unexplained(ledger: Ledger, s: Shape, chunk: Chunk) -> None:
    """Nothing but a bound, where experts lie on several ranks and whole layers are made again.

    Ms-swift's scripts of that kind state more than is explained, by about the tokens that every layer sends (eight of
    ten within 3 GiB of that, none of them with a told meter); what would keep these is not found in the sources."""
    experts = chunk.layer.experts
    if not chunk.recomputed or experts is None or s.expert == 1:
        return
    sizes = chunk.layers * chunk.in_flight, routed(s, experts).sent, s.hidden, s.itemsize
    ledger.add(UNEXPLAINED, "activations", 0, FORWARD, ledger.schedule[-2], high=prod(sizes)).told(*sizes)


def _enter_last(ledger: Ledger, s: Shape, unit: Unit, first: bool) -> None:
    """The last layer: forward up to its fullest step, then backward step by step."""
    steps, chunk = unit.steps, unit.chunk
    fullest = fullest_forward(steps)
    for position, step in enumerate(steps):
        own = f"{PASS}.{unit.prefix}{step.name}-backward"
        for held in step.kept:
            born = FORWARD if position <= fullest or not first else END
            _enter_kept(ledger, s, unit, step, held, (born, own))
            if held.again and first and not chunk.recomputed and position == fullest:
                _moment(ledger, s, step, held, FORWARD)
        for held in moments(steps, step, fullest):
            _moment(ledger, s, step, held, own)
    if first:
        for held in steps[fullest].forward:
            _moment(ledger, s, steps[fullest], held, FORWARD)


def moments(steps: Steps, step: Step, fullest: int) -> tuple[Held, ...]:
    """What a step holds for a moment in backward; of a layer made again first, what its forward holds, if more."""
    if step is not steps[-1] or not any(held.again == step.name for each in steps for held in each.kept):
        return step.backward
    forward, behind = (
        steps[fullest].forward,
        sum(held.bytes for each in steps[fullest + 1 :] for held in each.kept if held.again == step.name),
    )
    if behind:  # of which nothing is there yet when that step runs forward again
        forward = (Held("forward of the fullest step, less what comes behind it", "bytes", (size(forward) - behind,)),)
    return max(step.backward, (step.backward[0], *forward), key=size)


def _enter_kept(ledger: Ledger, s: Shape, unit: Unit, step: Step, held: Held, life: tuple[str, str]) -> None:
    """One tensor of the last layer; of a chunk that is made again at once, of all its layers."""
    again = f"{PASS}.{unit.prefix}{held.again}-backward" if held.again else ""
    layers = unit.layers if held.again or not unit.chunk.recomputed else 1
    many = unit.layers > 1 and bool(held.again)
    category = "recomputation" if again else "checkpoints" if unit.chunk.recomputed else "activations"
    ledger.add(
        held.name + (", made again" if again else " (last layer)"),
        category,
        held.bytes * layers,
        again or life[0],
        life[1],
        high=_high(s, (held,), layers),
    ).formula(
        f"layers·{held.template}" if many else held.template, *((layers, *held.factors) if many else held.factors)
    ).since("made again for backward" if again else WHY_KEPT, RECOMPUTE if again else step.source)


def _moment(ledger: Ledger, s: Shape, step: Step, held: Held, instant: str) -> None:
    ledger.add(held.name, "activations", held.bytes, at=instant, high=_high(s, (held,))).formula(
        held.template, *held.factors
    ).since(WHY_MOMENT, step.source)
