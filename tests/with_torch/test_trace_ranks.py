"""Proves traces of several GPUs: rank 0 of a group that only pretends allocates what real runs do.

Byte for byte against tiny models that are computed on the CPU under DDP and FSDP2; and against two processes that
exchange gradients over gloo, for what does not hang on when gloo's own threads let go.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from traced_jobs import SMALL, TINY, job, name, phases, traces

from memplan.api import estimate
from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.trace import trace
from memplan.trace.result import Trace
from memplan.trace.run import run

pytestmark = pytest.mark.filterwarnings("ignore")

COMMON = {"attention": "eager", "batch_size": 2, "sequence_length": 48, "optimizer_impl": "fused"}
HALVES = ("concatenated", "two-forward", "split", "gradcache")
LATE: dict[str, Any] = {"gradient_accumulation_steps": 2, "sync_each_batch": False}
FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
AMP: dict[str, Any] = {"precision": "bf16-amp", "reduce_dtype": "fp32"}
TIED = {"tie_word_embeddings": True}


def ddp(**keys: Any) -> dict[str, Any]:
    return job(TINY, **{**COMMON, "sharding": "ddp", "num_gpus": 2, **keys})


def fsdp2(changes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return job(TINY, changes, **{**COMMON, "sharding": "fsdp2", "num_gpus": 2, **keys})


JOBS = [
    *(ddp(gradient_as_bucket_view=view, **late) for view in (False, True) for late in ({}, LATE)),
    *(ddp(method="simpo", pair_pass=schedule, sync_each_batch=False) for schedule in HALVES),
    ddp(method="dpo", lora={"r": 4}),
    *(fsdp2(reshard_after_forward=reshard, **full) for reshard in (True, False) for full in ({}, FULL)),
    *(fsdp2(num_gpus=ranks) for ranks in (3, 8)),
    fsdp2(TIED),
    fsdp2(**AMP),
    fsdp2(reduce_dtype="fp32"),
    *(fsdp2(**{**policy, **LATE, "gradient_accumulation_steps": steps}) for policy in ({}, AMP) for steps in (2, 4)),
    *(fsdp2(method="simpo", pair_pass=schedule, sync_each_batch=False) for schedule in HALVES),
    fsdp2(method="dpo", reference="resident"),
    *(fsdp2(method="dpo", lora={"r": 4, "dtype": dtype}, **FULL) for dtype in ("bf16", "fp32")),
]


@pytest.fixture(scope="module")
def fakes() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, JOBS), traces(JOBS), strict=True))


@pytest.mark.parametrize("described", JOBS, ids=name)
def test_a_trace_equals_real_tensors_byte_for_byte(
    described: dict[str, Any], fakes: dict[str, Trace | MemplanError]
) -> None:
    torch.set_num_threads(1)
    given = read_job(described)
    real = run(given.job, resolve(given), described["model"], "cpu", lambda text: None, fake=False)
    assert phases(real) == phases(fakes[name(described)])


EXCHANGED = [
    ddp(sync_each_batch=False),
    ddp(gradient_as_bucket_view=True, **LATE),
    ddp(method="simpo", pair_pass="split", sync_each_batch=False),
    fsdp2(sync_each_batch=False),
    fsdp2(**AMP, **LATE),
    fsdp2(method="simpo", pair_pass="split", sync_each_batch=False),
]


@pytest.fixture(scope="module")
def traced() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, EXCHANGED), traces(EXCHANGED), strict=True))


@pytest.mark.parametrize("described", EXCHANGED, ids=name)
def test_a_trace_equals_two_processes_over_gloo(
    described: dict[str, Any], traced: dict[str, Trace | MemplanError], tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(described), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "memplan", "measure", str(tmp_path / "job.yaml"), "--steps", "2", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    answer = traced[name(described)]
    found = phases(answer)
    assert isinstance(answer, Trace)
    # A thread of gloo may still hold what FSDP2 has reduced, or the flat copy of the buffers DDP broadcasts in each
    # forward (two frequencies' tables of 32 bytes: one block of the allocator); DDP's buckets of gradients stay anyway.
    held = 4 * answer.trainable if described["sharding"] == "fsdp2" else 512
    for phase, size in json.loads(done.stdout)["measured"]["phases"].items():
        assert found[phase] <= size <= found[phase] + held


@pytest.mark.parametrize("keys", [{}, FULL, {"tensor_parallel": 4, "num_gpus": 4}])
def test_transformers_plans_are_played_as_they_are_traced(keys: dict[str, Any]) -> None:
    """Products over ranks by the model's own plan, with the embedding whole."""
    given = job(
        SMALL,
        {"vocab_size": 2048},
        trainer="transformers",
        num_gpus=2,
        tensor_parallel=2,
        batch_size=2,
        sequence_length=256,
    )
    given |= {"precision": "bf16", "attention": "sdpa", **keys}
    played = estimate(given).per_gpu.phases
    for phase in trace(given).phases:
        if phase.name in played:
            assert played[phase.name] / phase.allocated_bytes == pytest.approx(1, abs=5e-3)
