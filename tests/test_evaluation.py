"""Proves that an evaluation stands beside the states of the step, and changes nothing of the step."""

from itertools import accumulate
from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.step_and_evaluation import EVALUATION
from memplan.errors import InvalidJob
from memplan.reporting import build_report, peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job

SHARDINGS: list[dict[str, Any]] = [
    {"num_gpus": 1},
    {"num_gpus": 8, "sharding": "ddp"},
    {"num_gpus": 8, "zero_stage": 2},
    {"num_gpus": 8, "zero_stage": 3},
    {"num_gpus": 8, "sharding": "fsdp"},
    {"num_gpus": 8, "sharding": "fsdp2"},
    {"num_gpus": 8, "sharding": "fsdp2", "reshard_after_forward": False},
]
METHODS = ["sft", "reward", "dpo", "kto", "simpo"]


def job(**keys: Any) -> dict[str, Any]:
    return {"model": "smollm2-135m", "method": "dpo", "gpu": "h100-80gb", "sequence_length": 256} | keys


def figures(**keys: Any) -> dict[str, int]:
    """Bytes at each instant."""
    report = build_report(resolve(read_job(job(**keys))))
    return {each.name: each.allocated_bytes for each in report.per_gpu.instants}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("split", SHARDINGS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_the_step_is_the_same_and_the_evaluation_follows_it(split: dict[str, Any], method: str) -> None:
    alone, both = figures(method=method, **split), figures(method=method, eval_batch_size=8, **split)
    step = {instant: size for instant, size in both.items() if not instant.startswith(EVALUATION)}
    assert step == alone
    assert [instant for instant in both if instant.startswith(EVALUATION)] == list(both)[len(step) :]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("split", SHARDINGS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_a_search_finds_what_the_report_says(split: dict[str, Any], method: str) -> None:
    recipe = resolve(read_job(job(method=method, eval_batch_size=32, **split)))
    report, quick = build_report(recipe), peak(recipe)
    assert quick.allocated.expected == report.per_gpu.allocated_bytes
    assert quick.device.high == report.per_gpu.device_bytes.high
    assert quick.phases == {name: size for name, size in report.per_gpu.phases.items() if name != "first-step"}
    assert list(report.per_gpu.phases)[:4] == ["forward", "backward", "step", "evaluate"]
    alive = [each.name for each in report.per_gpu.instants]
    for at, instant in enumerate(alive):
        rows = (row for row in report.per_gpu.ledger if (row.place, row.meter) == ("gpu", "allocated"))
        held = sum(row.bytes for row in rows if alive.index(row.born) <= at <= alive.index(row.dies))
        assert held == report.per_gpu.instants[at].allocated_bytes, instant


@pytest.mark.parametrize("split", SHARDINGS, ids=lambda keys: "-".join(map(str, keys.values())))
def test_larger_batches_take_more_by_the_same_amount_each(split: dict[str, Any]) -> None:
    """Nothing is kept of a batch but what its forward needs: the states, and a share of each example."""
    keys = split | {"optimizer": "sgd"}
    sizes = [_phase(eval_batch_size=batch, **keys) for batch in (64, 128, 192)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] - sizes[1] == pytest.approx(sizes[1] - sizes[0], rel=0.01)


def test_one_example_without_a_graph_takes_less_than_the_step() -> None:
    found = estimate(job(eval_batch_size=1)).per_gpu.phases
    assert found["evaluate"] < min(found["forward"], found["backward"])


def test_liger_makes_logits_where_it_is_not_in_training() -> None:
    """liger-kernel 0.8.5: skip_logits = self.training and labels; TRL from 0.29 on says skip_logits where the loss is
    all, and so does transformers 5.24."""
    keys = {"method": "sft", "eval_batch_size": 8, "trainer": "transformers", "precision": "bf16"}
    assert _phase(**keys, kernels="liger", trainer_version="5.20") == _phase(**keys)
    assert _phase(**keys, kernels="liger") < _phase(**keys)
    eras = [{"trainer": "trl", "trainer_version": version, "kernels": "liger"} for version in ("0.28", "0.29", "1.16")]
    before, *since = [_phase(**keys | era) for era in eras]
    assert before >= _phase(**keys) > max(since)


def _phase(**keys: Any) -> int:
    return build_report(resolve(read_job(job(**keys)))).per_gpu.phases["evaluate"]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "grpo"}, "eval_batch_size: an evaluation of grpo generates"),
        (
            {"method": "sft", "trainer": "megatron", "num_gpus": 6, "tensor_parallel": 3, "sequence_length": 384},
            "eval_batch_size: Megatron-LM evaluates in micro-batches",
        ),
    ],
)
def test_what_is_not_modelled_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        resolve(read_job(job(eval_batch_size=4, **keys)))
    assert refused.value.message.startswith(words)


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_an_evaluation_finds_the_parts_that_the_batch_before_left(method: str) -> None:
    """FSDP2 resharding to a number: no backward frees what a forward leaves of each layer; the play has the same."""
    keys = {"num_gpus": 16, "sharding": "fsdp2", "eval_batch_size": 1, "method": method, "model": "llama-3.2-1b"}
    most = {
        number: max(
            size for name, size in figures(**keys, reshard_after_forward=number).items() if name.startswith(EVALUATION)
        )
        for number in (4, True)
    }
    events = step_events(resolve(read_job(job(**keys, reshard_after_forward=4))))
    assert events is not None
    begin = next(at for at, name in events.marks if name.startswith(EVALUATION) and at >= events.start)
    sizes = events.sizes
    assert sum(sizes[:begin]) + max(accumulate(sizes[begin:])) == pytest.approx(most[4], rel=1e-3)
    assert most[4] > most[True]


def test_a_recurrence_leaves_the_states_of_training_to_an_evaluation() -> None:
    """A trace of this job: 302,742,528 bytes, in the first layer, beside what the others' last states hold."""
    model = {
        "model_type": "recurrent_gemma", "vocab_size": 8000, "num_hidden_layers": 5, "num_attention_heads": 8,
        "num_key_value_heads": 1, "hidden_size": 1024, "intermediate_size": 3072, "lru_width": 1024,
        "attention_window_size": 2048, "conv1d_width": 4, "logits_soft_cap": 30.0,
        "block_types": ["recurrent", "recurrent", "attention"], "tie_word_embeddings": True,
    }  # fmt: skip
    how = {"method": "sft", "trainer": "pytorch", "precision": "bf16", "attention": "sdpa", "eval_batch_size": 3}
    how |= {"num_gpus": 2, "sharding": "fsdp2", "gradient_checkpointing": "full", "gradient_accumulation_steps": 2}
    found = build_report(resolve(read_job({"model": model, "batch_size": 1, "sequence_length": 512} | how)))
    assert found.per_gpu.phases["evaluate"] == pytest.approx(302_742_528, rel=1e-4)
