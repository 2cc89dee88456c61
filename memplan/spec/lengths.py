"""How long the sequences of a data set are, as a job gives it, and how its trainer makes rows of them."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from memplan.errors import InvalidJob
from memplan.spec.base import Frozen

MOST_TOKENS, MOST_STEPS = 10**8, 10**6
FORMS = "a file of lengths, {p50, p90, p99, max}, or {mean, sigma, max}"
PAIRS = "p50=400,p90=1200,p99=3000,max=4096"
_PAIRS = re.compile(r"\s*\w+\s*=\s*[^=,]+(,\s*\w+\s*=\s*[^=,]+)*\s*", re.ASCII)


def _number(value: object) -> object:
    """true is not 1."""
    if isinstance(value, bool):
        raise InvalidJob(f"lengths: {str(value).lower()} is no number of tokens", "write a number, such as p50: 400")
    return value


Tokens = Annotated[float, Field(ge=1, le=MOST_TOKENS), BeforeValidator(_number)]
Packing = Literal["none", "bfd", "bfd-split", "wrapped", "multipack", "knapsack"]


class Lengths(Frozen):
    """Lengths of a data set's sequences in tokens, in one of three forms, and how rows are made of them."""

    file: str | None = None
    """One number a line, a JSON list, or JSON lines of numbers or of objects (length; prompt, chosen, rejected;
    prompt, completion): what memplan lengths writes."""
    p50: Tokens | None = None
    """The median."""
    p90: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    mean: Tokens | None = None
    """Mean of a log-normal distribution, in tokens."""
    sigma: Annotated[float, Field(gt=0, le=MOST_TOKENS), BeforeValidator(_number)] | None = None
    """Its standard deviation, in tokens."""
    max: Tokens | None = None
    """The longest sequence."""
    min: Tokens | None = None
    """The shortest; 1 when not given."""
    packing: Packing = "none"
    """How the trainer packs sequences into rows: bfd, bfd-split, wrapped (TRL), multipack (Axolotl), knapsack
    (LLaMA-Factory)."""
    group_by_length: bool = False
    """Batches are made of sequences of like length (transformers' LengthGroupedSampler)."""
    pad_to_multiple_of: Annotated[int, Field(ge=1, le=10**8), BeforeValidator(_number)] | None = None
    """Rows are padded to a multiple of so many tokens; the trainer's own when not given."""
    steps: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(_number)] = 200
    """Optimizer steps of a run that is drawn."""
    seeds: Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_number)] = 100
    """Runs that are drawn."""
    played_steps: Annotated[int, Field(ge=0, le=1000), BeforeValidator(_number)] = 30
    """Steps of one run that the caching allocator is played through; 0 plays none."""

    @model_validator(mode="after")
    def _one_form(self) -> Lengths:
        percentiles = [self.p50, self.p90, self.p95, self.p99]
        forms = [self.file is not None, any(each is not None for each in percentiles), self._has_moments()]
        if sum(forms) != 1:
            what = "lengths are given in two ways" if sum(forms) else "nothing says how long sequences are"
            raise InvalidJob(f"lengths: {what}", f"write {FORMS}")
        if not forms[0]:
            self._check_numbers(percentiles)
        elif self.max is not None or self.min is not None:
            raise InvalidJob("lengths: a file says itself what its longest is", "leave max and min out")
        if self.steps * self.seeds > MOST_STEPS:
            raise InvalidJob(
                f"lengths: {self.steps:,} steps × {self.seeds:,} seeds are more than {MOST_STEPS:,}", "draw fewer"
            )
        return self

    def _has_moments(self) -> bool:
        return self.mean is not None or self.sigma is not None

    def _check_numbers(self, percentiles: list[float | None]) -> None:
        """Everything that a form needs, in ascending order. Raises InvalidJob."""
        needed = ("mean", "sigma", "max") if self._has_moments() else ("p50", "max")
        missing = [name for name in needed if getattr(self, name) is None]
        if missing:
            raise InvalidJob(f"lengths: {missing[0]} is missing", f"write {FORMS}")
        said = [self.min, *(percentiles if self.mean is None else [self.mean]), self.max]
        given = [each for each in said if each is not None]
        if given != sorted(given):
            shown = ", ".join(f"{each:g}" for each in given)
            raise InvalidJob(f"lengths: {shown} do not ascend", "write min ≤ p50 ≤ p90 ≤ p99 ≤ max in tokens")


FORM_KEYS = ("file", "p50", "p90", "p95", "p99", "mean", "sigma", "max", "min")
"""What says how long sequences are, in whichever form: given anew, it replaces what was there before."""


def beneath(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """What is left of lengths that others are laid over: nothing of a form where these have one of their own."""
    replaced = any(key in high for key in ("file", "p50", "mean"))
    return {key: value for key, value in low.items() if not (replaced and key in FORM_KEYS)}


def in_full(value: Any) -> Any:
    """A path is {file: …}; 'p50=400,max=4096' is what it says, as JSON is. Anything else stays what it is."""
    if not isinstance(value, str):
        return value
    if value.strip()[:1] == "{":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidJob(f"lengths: {value[:60]!r} is no JSON", f"write {PAIRS} in place of it") from None
    if not _PAIRS.fullmatch(value):
        return {"file": value}
    return {name.strip(): text.strip() for name, _, text in (part.partition("=") for part in value.split(","))}
