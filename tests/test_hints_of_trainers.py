"""Methods, trainers and ways to split a job that do not go together: hints lead to what can be, and never in a ring."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.methods import METHODS
from memplan.tables.trainers import TRAINERS

BASE = {"model": "llama-3.2-1b", "num_gpus": 8}
SPLITS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tp": {"tensor_parallel": 2},
    "pp": {"pipeline_parallel": 2},
    "cp": {"context_parallel": 2},
    "tp and pp": {"tensor_parallel": 2, "pipeline_parallel": 2},
    "zero3 and tp": {"sharding": "zero3", "tensor_parallel": 2},
    "fsdp2 and tp": {"sharding": "fsdp2", "tensor_parallel": 2},
    "fsdp": {"sharding": "fsdp"},
    "distributed optimizer": {"sharding": "distributed-optimizer"},
}
TEACHER = {"extra_models": [{"role": "teacher", "model": "llama-3.1-8b"}]}
State = frozenset[tuple[str, Any]]


@cache
def refusal(state: State) -> tuple[str, str]:
    """Error and hint of a job; empty where it can be."""
    job = {**BASE, **dict(state)}
    try:
        resolve(read_job(job | (TEACHER if job.get("method") == "distill" else {})))
    except InvalidJob as error:
        return error.message, error.hint
    return "", ""


def told(state: State, hint: str) -> Iterator[State]:
    """The jobs that a hint says to write: each trainer and method that it names, each key that it leaves out."""
    job = dict(state)
    joined = re.search(r"leave (\w+(?: and \w+)*) out and use trainer: ([\w.-]+(?: or [\w.-]+)*)", hint)
    if joined:
        stay = {key: value for key, value in state if key not in joined[1].split(" and ")}
        yield from (frozenset({**stay, "trainer": name}.items()) for name in joined[2].split(" or "))
        hint = hint.replace(joined[0], "")
    with_it = dict(re.findall(r"with (sharding): ([\w-]+)", hint))
    for key, names in re.findall(
        r"(trainer|method|trainer_version|sharding|zero_stage): ([\w.-]+(?: or [\w.-]+)*)", hint
    ):
        if not (key == "sharding" and with_it):
            for name in names.split(" or "):
                stay = {each: value for each, value in job.items() if key != "zero_stage" or each != "sharding"}
                yield frozenset({**stay, key: name, **(with_it if key == "trainer" else {})}.items())
    for left in re.findall(r"leave (\w+(?: and \w+)*) out", hint):
        yield frozenset((key, value) for key, value in state if key not in left.split(" and "))


def walk(state: State, way: tuple[str, ...] = ()) -> None:
    """Follow every hint: the same error never comes twice on a way."""
    error, hint = refusal(state)
    if not error:
        return
    assert error not in way, (dict(state), way, hint)
    assert len(way) < 4, way
    for each in told(state, hint):
        assert each != state, (error, hint)
        walk(each, (*way, error))


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("method", METHODS)
def test_hints_never_lead_in_a_ring(method: str, split: str) -> None:
    for trainer in TRAINERS:
        walk(frozenset({"method": method, "trainer": trainer, **SPLITS[split]}.items()))
    walk(frozenset({"method": method, **SPLITS[split]}.items()))


@pytest.mark.parametrize("split", ["plain", "tp", "pp", "distributed optimizer"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_a_hint_names_has_the_method(trainer: str, split: str) -> None:
    """Where a hint names trainers, the first of them runs the job; a method that was refused is not named."""
    for method in METHODS:
        state = frozenset({"method": method, "trainer": trainer, **SPLITS[split]}.items())
        error, hint = refusal(state)
        if "trainer: " in hint and "trainer_version: " not in hint:
            first = next(each for each in told(state, hint) if dict(each)["trainer"] != trainer)
            assert refusal(first) == ("", ""), (error, hint)
        assert f"has no {method}" not in error or method not in re.findall(r"[\w-]+", hint.partition("method: ")[2])
