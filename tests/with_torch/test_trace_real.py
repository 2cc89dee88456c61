"""Proves that a trace on fake CUDA tensors is the truth: tiny models, computed on the CPU, allocate the same bytes.

Every phase, byte for byte. Two differences are CUDA's own and are named: counters of optimizer steps stay on the host,
and dropout keeps its mask in bytes of booleans.
"""

import pytest
import torch
from traced_jobs import TINY, job, name, phases, traces

from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.trace.result import Trace
from memplan.trace.run import run
from memplan.units import GPU_ROUNDING

pytestmark = pytest.mark.filterwarnings("ignore")

COMMON = {"attention": "eager", "batch_size": 2, "sequence_length": 48, "optimizer_impl": "fused"}
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "phi3", "gemma2", "gemma3_text")
LORA = [{"r": 4, "targets": targets, "dtype": dtype} for targets in ("all-linear", ["q_proj", "v_proj"])
        for dtype in ("fp32", "bf16")]  # fmt: skip
TIED = {"tie_word_embeddings": True}
JOBS = [
    *(job(TINY, {"model_type": family}, precision=dtype) for family in FAMILIES for dtype in ("bf16", "fp32")),
    job(TINY, {"model_type": "mixtral"}),
    *(job(TINY, method=method) for method in ("reward", "dpo", "ipo", "kto", "orpo", "cpo", "simpo")),
    *(job(TINY, TIED, method=method, gradient_checkpointing="full") for method in ("reward", "dpo", "kto")),
    *(job(TINY, method="simpo", pair_pass=schedule) for schedule in ("two-forward", "split", "gradcache")),
    *(
        job(TINY, method="dpo", pair_pass=schedule, gradient_accumulation_steps=2)
        for schedule in ("two-forward", "split", "gradcache")
    ),
    *(job(TINY, lora=lora) for lora in LORA),
    *(job(TINY, lora=lora, method="dpo", gradient_checkpointing="full") for lora in LORA),
    job(TINY, gradient_checkpointing="full", gradient_checkpointing_reentrant=True),
    job(TINY, TIED, gradient_accumulation_steps=2),
    job(TINY, padded=True),
    job(TINY, trainer="transformers", autocast=False),
    job(TINY, method="dpo", reference="precomputed", logits_dtype="fp32"),
    job(TINY, method="simpo", loss_head="log-softmax", sft_term=True),
    job(TINY, optimizer="sgd", optimizer_impl="foreach"),
    job(TINY, optimizer="sgd-momentum", optimizer_impl="fused"),
    job(TINY, optimizer="sgd-momentum", optimizer_impl="loop"),
]
COUNTED_ON_THE_HOST = [
    job(TINY, optimizer=optimizer, optimizer_impl=way)
    for optimizer, way in (("adamw", "foreach"), ("adamw", "loop"), ("adafactor", "foreach"), ("adafactor", "loop"))
]
ALL = [{**COMMON, **each} for each in (*JOBS, *COUNTED_ON_THE_HOST)]


@pytest.fixture(scope="module")
def fakes() -> dict[str, Trace | MemplanError]:
    return dict(zip(map(name, ALL), traces(ALL), strict=True))


def computed(described: dict[str, object]) -> Trace:
    """The job run with real CPU tensors."""
    torch.set_num_threads(1)
    given = read_job(described)
    model = described["model"]
    assert isinstance(model, dict)
    return run(given.job, resolve(given), model, "cpu", lambda text: None, fake=False)


@pytest.mark.parametrize("described", ALL[: len(JOBS)], ids=name)
def test_a_trace_equals_a_real_run_byte_for_byte(
    described: dict[str, object], fakes: dict[str, Trace | MemplanError]
) -> None:
    assert phases(fakes[name(described)]) == phases(computed(described))


@pytest.mark.parametrize("described", ALL[len(JOBS) :], ids=name)
def test_step_counters_are_all_that_a_gpu_spares(
    described: dict[str, object], fakes: dict[str, Trace | MemplanError]
) -> None:
    """torch keeps one counter for each parameter, on the host unless the optimizer is fused or capturable."""
    real = computed(described)
    counters = GPU_ROUNDING * (3 + 2 * 9)
    assert phases(real) == {phase: size + counters for phase, size in phases(fakes[name(described)]).items()}
