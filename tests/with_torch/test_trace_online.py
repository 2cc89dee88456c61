"""Proves that trace and engine say the same of updates after a rollout and of distillation: as a plain loop and as TRL
write them, with critics, references and teachers beside the policy.
"""

from typing import Any

import pytest
from traced_jobs import SMALL, agree_in_every_phase, job, name, traces

from memplan.errors import MemplanError
from memplan.trace.result import Trace

CLOSE = 0.002
COMMON: dict[str, Any] = {"batch_size": 2, "sequence_length": 512}
AMP: dict[str, Any] = {"precision": "bf16-amp", "autocast": True}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
PLAIN: dict[str, Any] = {"gradient_checkpointing": "none"}
SHORT: dict[str, Any] = {"completion_length": 256}
TEACHER: dict[str, Any] = {"extra_models": [{"role": "teacher", "model": {**SMALL, "num_hidden_layers": 6}}]}
REWARD: dict[str, Any] = {"extra_models": [{"role": "reward", "model": {**SMALL, "num_hidden_layers": 1}}]}
CRITIC: dict[str, Any] = {"extra_models": [{"role": "critic", "model": {**SMALL, "num_hidden_layers": 2}}]}


def trl(version: str, **keys: Any) -> dict[str, Any]:
    """A job of TRL."""
    return job(SMALL, trainer="trl", trainer_version=version, **keys)


JOBS = [
    *(job(SMALL, method="grpo", **keys) for keys in (
        {}, {"reference": "none"}, SHORT, {**SHORT, **AMP}, {**SHORT, **FULL, "lora": {"r": 16}}, REWARD,
        {"rollout": {"group_size": 4}, "entropy": "metric"}, {"entropy": "loss", **SHORT}, {"temperature": 0.7},
    )),
    job(SMALL, method="rloo", rollout={"prompt_length": 212, "completion_length": 300}),
    *(job(SMALL, method="ppo", **keys) for keys in (
        {}, {**FULL, **SHORT, "optimizer_impl": "fused"}, {**AMP, "reference": "none"}, CRITIC,
        {"gradient_accumulation_steps": 2}, {**FULL, "lora": {"r": 8}},
    )),
    job(SMALL, method="online-dpo"),
    *(job(SMALL, method="distill", **TEACHER, **keys) for keys in ({}, AMP, {**FULL, "lora": {"r": 8}})),
    *(trl("1.16", method="distill", **TEACHER, **keys) for keys in ({}, {**AMP, **SHORT})),
    *(trl(version, method="grpo", **SHORT) for version in ("0.17", "0.24", "1.12", "1.16")),
    trl("1.12", method="grpo", reference="resident", **SHORT, **AMP),
    trl("1.14", method="rloo", **SHORT),
    *(trl("1.16", method="online-dpo", **SHORT, **keys) for keys in ({}, AMP)),
    *(trl("1.12", method="ppo", rollout={"engine": "none"}, **keys) for keys in (
        {}, {**SHORT, **AMP}, {**SHORT, **PLAIN}, {**SHORT, **PLAIN, **AMP, "reference": "none"},
    )),
]  # fmt: skip
ALL = [{**COMMON, **each} for each in JOBS]
Answer = Trace | MemplanError


@pytest.fixture(scope="module")
def traced() -> dict[str, Answer]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


@pytest.mark.parametrize("described", ALL, ids=name)
def test_trace_and_engine_agree_in_every_phase(described: dict[str, Any], traced: dict[str, Answer]) -> None:
    agree_in_every_phase(described, traced[name(described)], CLOSE)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "grpo", "trainer": "verl"}, "trainer: grpo of verl cannot be traced"),
        ({"method": "grpo", "reference": "offloaded"}, "reference: offloaded cannot be traced"),
    ],
)
def test_what_is_not_written_here_is_refused(keys: dict[str, Any], message: str) -> None:
    (answer,) = traces([{**COMMON, **job(SMALL), **keys}])
    assert isinstance(answer, MemplanError)
    assert message in answer.message
