"""Every way to make activations again, or to send them to the host, that a job's trainer can be told.

Grids of at most two numbers of layers, in which more layers are slower and hold less: the search needs only their
edge. A way is the job with other keys, resolved as the job would be; between ways of one grid only the numbers differ,
so that each grid is resolved once (tests/test_budget.py resolves them anew)."""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from memplan.cost.stages import layers_of_chunks
from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.megatron import RECOMPUTE_MODULES
from memplan.spec.reading import JobInput, build_job
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import COUNTED, EVERY, Recompute, counted
from memplan.tables.recompute_settings import Told, told

Keys = dict[str, Any]
RECOMPUTE = ("recompute_modules", "recompute_method", "recompute_num_layers")
WORDS = tuple(word for word in COUNTED if word != "selective")
"""Ways of one layer in a loop of one's own: of matmuls all or none, as half of them take a policy that counts."""
LONGEST = 8
"""Layers that Megatron's uniform method makes again at once, at the most."""
COVERED = {"moe": ("moe_act", "shared_experts")}
"""Modules of Megatron's that another one holds."""


class Way(NamedTuple):
    """One of them."""

    keys: Keys
    """Job keys that it sets."""
    kind: str
    """Of ``tables.recompute_settings``; layers where each has its own."""
    recipe: Recipe
    n: int = 0

    @property
    def said(self) -> str:
        """What tells it from the others."""
        return f"{self.name}, {len(self.keys)}"

    @property
    def name(self) -> str:
        """full:12,selective:8; every:4; block 12; layernorm and moe_act."""
        how = str(self.keys["gradient_checkpointing"])
        modules = self.keys.get("megatron", {}).get("recompute_modules", ())
        name = " and ".join(modules) if self.kind == "modules" else how
        name = f"{self.kind} {self.n}" if self.kind in ("block", "uniform") else name
        return f"{name}, activations offloaded to CPU" if "activations" in self.keys.get("offload", ()) else name


class Grid(NamedTuple):
    """Ways by two numbers of layers, together at most so many."""

    most: int
    at: Callable[[int, int], Way]
    single: bool = False
    """The second number is 0."""


def one(way: Way) -> Grid:
    """A grid of one way."""
    return Grid(0, lambda a, b: way, True)


class Ways:
    """The ways of one job. ``given``: without anything of them (``without_ways``)."""

    def __init__(self, given: JobInput) -> None:
        self.given = given
        self.told = told(given.job.trainer, given.framework, given.job.kernels)
        self.none = self._way("none", {"gradient_checkpointing": "none"})
        """Nothing is made again."""
        self.full: Way | None = None
        """Everything is; None where that cannot be."""

    def kinds(self) -> tuple[str, ...]:
        """Those that the trainer has for this job."""
        return tuple(kind for kind in self.told.lines if _is_there(self.told, kind, self.given))

    def grids(self) -> Iterator[Grid]:
        """All of them, but none at all."""
        kinds = self.kinds()
        whole: list[Way] = [self.none]
        for kind in ("full", "selective"):
            if kind in kinds or (kind == "full" and {"layers", "uniform"} & set(kinds)):
                keys: Keys = {"gradient_checkpointing": kind}
                if kind == "full" and "uniform" in kinds:
                    keys["megatron"] = {"recompute_method": "uniform", "recompute_num_layers": 1}
                way = self._tried("uniform" if "uniform" in kinds else kind, keys, 1)
                whole += [way] if way else []
                self.full = way if kind == "full" else self.full
        yield from map(one, whole[1:])
        for kind, of in (("every", self._every), ("layers", self._layers), ("block", self._block)):
            if kind in kinds:
                yield from of()
        if "modules" in kinds:
            yield from map(one, self._modules())
        if "uniform" in kinds and self.full is not None:
            yield from map(one, self._uniform(self.full))
        if "activations" in kinds:
            for way in whole:
                away = [*self.given.job.offload, "activations"]
                sent = self._tried(way.kind, {**way.keys, "offload": away}, way.n)
                yield from [one(sent)] if sent else []

    def _way(self, kind: str, keys: Keys, n: int = 0) -> Way:
        """Raises MemplanError where the job cannot be."""
        return Way(keys, kind, resolve(with_keys(self.given, keys)), n)

    def _tried(self, kind: str, keys: Keys, n: int = 0) -> Way | None:
        try:
            return self._way(kind, keys, n)
        except MemplanError:
            return None

    def _every(self) -> Iterator[Grid]:
        first = self._tried("every", {"gradient_checkpointing": f"{EVERY}2"})
        if first is None:
            return
        for n in range(2, self.given_layers + 1):
            again = first.recipe.checkpointing.recompute._replace(every=n)
            yield one(Way({"gradient_checkpointing": f"{EVERY}{n}"}, "every", _with(first.recipe, again), n))

    @property
    def given_layers(self) -> int:
        """Layers of the model."""
        return self.none.recipe.model.num_layers

    def _layers(self) -> Iterator[Grid]:
        """Of every two ways of a layer, so many layers each; the others are kept."""
        found: dict[str, Recompute] = {}
        for word in WORDS:
            way = self._tried("layers", {"gradient_checkpointing": f"{word}:1"})
            if way is not None:
                found[word], first = way.recipe.checkpointing.recompute, way.recipe
        pairs = list(combinations(found, 2)) or [(word, word) for word in found]
        for pair in pairs:
            policies = [found[word].counts[0][0] for word in pair]

            def at(a: int, b: int, pair: tuple[str, str] = pair, policies: list[Any] = policies) -> Way:
                counts = {word: n for word, n in zip(pair, (a, b), strict=True) if n}
                if not counts:
                    return self.none
                said = tuple((policy, n) for policy, n in zip(policies, (a, b), strict=True) if n)
                keys = {"gradient_checkpointing": counted(counts)}
                return Way(keys, "layers", _with(first, Recompute(counts=said)))

            yield Grid(self.given_layers, at, len(set(pair)) == 1)

    def _block(self) -> Iterator[Grid]:
        def keys(n: int) -> Keys:
            how = {"recompute_method": "block", "recompute_num_layers": n}
            return {"gradient_checkpointing": "full", "megatron": how}

        first = self._tried("block", keys(1), 1)
        if first is None:
            return

        def at(n: int, _: int) -> Way:
            settings = first.recipe.megatron.but(recompute_num_layers=n)
            return Way(keys(n), "block", first.recipe._replace(megatron=settings), n) if n else self.none

        yield Grid(max(layers_of_chunks(first.recipe)), at, True)

    def _uniform(self, full: Way) -> Iterator[Way]:
        """Several layers made again at once, where every stage and chunk divides by their number."""
        counts = layers_of_chunks(full.recipe)
        for n in range(2, LONGEST + 1):
            if all(count % n == 0 for count in counts):
                how = {"recompute_method": "uniform", "recompute_num_layers": n}
                settings = full.recipe.megatron.model_copy(update=how)
                keys = {"gradient_checkpointing": "full", "megatron": how}
                yield Way(keys, "uniform", full.recipe._replace(megatron=settings), n)

    def _modules(self) -> Iterator[Way]:
        """Every set of modules that the model has, none within another."""

        def keys(modules: tuple[str, ...]) -> Keys:
            return {"gradient_checkpointing": "selective", "megatron": {"recompute_modules": list(modules)}}

        known = [each for each in RECOMPUTE_MODULES if self._tried("modules", keys((each,)))]
        for size in range(1, len(known) + 1):
            for modules in combinations(known, size):
                if not any(inner in modules for outer in modules for inner in COVERED.get(outer, ())):
                    way = self._tried("modules", keys(modules))
                    yield from [way] if way else []


def _is_there(of: Told, kind: str, given: JobInput) -> bool:
    """Whether a trainer's switch is there for this job."""
    several = given.job.num_gpus > 1
    absent = (several and kind in of.alone) or (not several and kind in of.several)
    return not absent and given.job.method in of.methods.get(kind, (given.job.method,))


def _with(recipe: Recipe, again: Recompute) -> Recipe:
    return recipe._replace(checkpointing=recipe.checkpointing._replace(recompute=again))


def without_ways(given: JobInput) -> JobInput:
    """The job without what it says of recomputation and of activations on the host."""
    values = given.job.model_dump(exclude_unset=True)
    values.pop("gradient_checkpointing", None)
    if "megatron" in values:
        values["megatron"] = {key: value for key, value in values["megatron"].items() if key not in RECOMPUTE}
    if "offload" in values:
        values["offload"] = [each for each in values["offload"] if each != "activations"]
    sources = {key: source for key, source in given.sources.items() if key != "gradient_checkpointing"}
    return given._replace(job=build_job(values), sources=sources)


def with_keys(given: JobInput, keys: Mapping[str, Any]) -> JobInput:
    """The job with further keys, as a user would write it."""
    values = given.job.model_dump(exclude_unset=True)
    for key, value in keys.items():
        values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return given._replace(job=build_job(values), sources={**given.sources, **dict.fromkeys(keys, "option")})
