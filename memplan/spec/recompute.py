"""Keys for what is made again in backward, and for what waits on the host."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from memplan.errors import InvalidJob, did_you_mean
from memplan.tables.styles import SavedBy

EVERY = "every:"
"""``every:N`` checkpoints every n-th layer."""
COUNTED = ("full", "keep-attention", "selective", "keep-matmuls")
"""``full:N,selective:M``: the first n layers are checkpointed whole, of the next m some results are kept, the others
are not checkpointed. keep-attention keeps attention's output, selective what the trainer's policy does, keep-matmuls
every matmul's too; in this order, from what is made again most to what is least."""
MOST_LAYERS = 10_000
OFFLOADABLE = ("activations", "checkpoints", "optimizer", "parameters", "reference")


def every_nth(value: str) -> int:
    """N of every:N; 1 for full. Raises InvalidJob where N is no count."""
    if not value.startswith(EVERY):
        return 1
    digits = value.removeprefix(EVERY).strip()
    if not digits.isdecimal() or len(digits) > 5 or not 1 <= int(digits) <= 10_000:
        raise InvalidJob(
            f"gradient_checkpointing: {value[:40]!r} names no number of layers", "write every:2 for every second layer"
        )
    return int(digits)


def is_by_layer(value: str) -> bool:
    """Whether it says how many layers: every:N, full:N, selective:N, full:N,selective:M."""
    return value.startswith((EVERY, *(f"{word}:" for word in COUNTED)))


def by_layer(value: str) -> str:
    """A way by layers in its one spelling: every:1 is full, and no layer at all is none. Raises InvalidJob."""
    if value.startswith(EVERY):
        return "full" if every_nth(value) == 1 else f"{EVERY}{every_nth(value)}"
    return counted(counts_of(value))


def counts_of(value: str) -> dict[str, int]:
    """Layers by word of ``COUNTED``, in its order. Raises InvalidJob for anything else."""
    found: dict[str, int] = {}
    for part in value.split(","):
        word, _, digits = part.strip().partition(":")
        if word not in COUNTED or word in found or not digits.isdecimal() or int(digits[:6]) > MOST_LAYERS:
            hint = "write full:12 for the first 12 layers, or full:12,selective:8 for these and the next 8"
            raise InvalidJob(f"gradient_checkpointing: {value[:40]!r} names no numbers of layers", hint)
        found[word] = int(digits)
    return {word: found[word] for word in COUNTED if found.get(word)}


def counted(counts: Mapping[str, int]) -> str:
    """Counts as a job says them."""
    return ",".join(f"{word}:{counts[word]}" for word in COUNTED if counts.get(word)) or "none"


def int_of_flag(value: object) -> object:
    """true is -1, false 0; all else as it is."""
    words = {"true": -1, "yes": -1, "on": -1, "false": 0, "no": 0, "off": 0, "none": 0}
    return words.get(str(value).strip().lower(), value)


def listed(key: str, value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """'a,b' and [a, b] are lists; nothing is none of them. Raises InvalidJob for an unknown name."""
    if value in (None, False, "none", "", {}):
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise InvalidJob(f"{key}: {str(value)[:40]!r} is no list", "known: " + ", ".join(known))
    names = [str(item).strip() for item in items if str(item).strip()]
    for name in names:
        if name not in known:
            raise InvalidJob(f"{key}: unknown value {name[:80]!r}", did_you_mean(name, known))
    return tuple(name for name in known if name in names)


def _offloaded(value: object) -> tuple[str, ...]:
    return listed("offload", value, OFFLOADABLE)


Offloaded = Annotated[tuple[str, ...], BeforeValidator(_offloaded)]


class Recompute(NamedTuple):
    """Checkpointing, resolved."""

    every: int = 1
    """Of so many layers the last is checkpointed."""
    from_first: bool = False
    """The first of them is, instead."""
    policy: SavedBy = ""
    modules: frozenset[str] = frozenset()
    """Modules that are checkpointed by themselves."""
    counts: tuple[tuple[SavedBy, int], ...] = ()
    """Layers from the first on that are, and what of them is kept; nothing where ``every`` says which."""
    numbers: tuple[int, ...] = ()
    """Of the layers that run, their numbers among all, where some rest."""

    @property
    def is_partial(self) -> bool:
        """Whether some layers may be left as they are."""
        return self.every > 1 or bool(self.counts)

    def covers(self, i: int) -> bool:
        """Whether a layer, counted from 0, is checkpointed."""
        i = self.numbers[i] if self.numbers else i
        if self.counts:
            return i < sum(count for _, count in self.counts)
        return (i if self.from_first else i + 1) % self.every == 0

    def of_layer(self, i: int) -> "Recompute":
        """What a layer that is checkpointed knows of it."""
        if not self.counts:
            return self
        return Recompute(policy=self.policy_of(i))

    def without(self, first: int, left_out: int) -> "Recompute":
        """Of a model without so many layers from the first of these on."""
        if self.numbers:
            return self._replace(numbers=self.numbers[:first] + self.numbers[first + left_out :])
        found, start = [], 0
        for policy, count in self.counts:
            gone = max(0, min(start + count, first + left_out) - max(start, first))
            found.append((policy, count - gone))
            start += count
        return self._replace(counts=tuple(found))

    def policy_of(self, i: int) -> SavedBy:
        """What is kept of a layer's results; of one that is not checkpointed nothing is said."""
        i = self.numbers[i] if self.numbers else i
        for policy, count in self.counts:
            if i < count:
                return policy
            i -= count
        return "" if self.counts else self.policy
