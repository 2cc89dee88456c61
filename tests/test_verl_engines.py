"""Proves what verl's trainers hold: a critic that GPUs share beside the policy, Ulysses, Megatron's workers, and when
gradients are reduced.
"""

from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.critic_engine import has_critic_engine, parted
from memplan.engine.ranks import ledger_of, totals_of_rank
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "trainer": "verl",
    "method": "ppo",
    "sharding": "fsdp2",
    "num_gpus": 4,
    "batch_size": 2,
    "sequence_length": 512,
    "completion_length": 256,
    "attention": "flash",
}
MEGATRON = {"trainer": "verl-megatron", "sharding": "distributed-optimizer", "tensor_parallel": 2}


def recipe(**keys: Any) -> Any:
    return resolve(read_job(JOB | keys))


def allocated(**keys: Any) -> int:
    return estimate(JOB | keys).per_gpu.allocated_bytes


@pytest.mark.parametrize("keys", [{}, {"sharding": "fsdp"}, {"gradient_accumulation_steps": 3}, MEGATRON])
def test_a_shared_critic_adds_its_weights_and_states(keys: dict[str, Any]) -> None:
    found = recipe(**keys)
    ledger = ledger_of(found)
    rows = {row.name: row for row in ledger.rows}
    own = [row for row in ledger.rows if "critic" in row.name]
    last = len(ledger.schedule) - 1
    assert own
    assert all((row.born, row.dies) == (0, last) for row in own), "it waits while the policy trains"
    assert ledger.schedule[0].startswith("critic.")
    assert ledger.schedule.count("step.optimizer") == 1
    policy = next(row for name, row in rows.items() if name in ("weights", "weights of the policy"))
    assert (policy.born, policy.dies) == (0, last), "and so does the policy while it trains"
    critic, alone = parted(found)
    together = max(ledger.totals())
    apart = [max(ledger_of(each).totals()) for each in (critic, alone)]
    assert max(apart) < together < sum(apart)


@pytest.mark.parametrize("keys", [{}, {"sharding": "fsdp"}, MEGATRON])
def test_sums_without_rows_are_the_ledger_s(keys: dict[str, Any]) -> None:
    found = recipe(**keys)
    ledger, sums = ledger_of(found), totals_of_rank(found)
    assert sums.schedule == ledger.schedule
    assert sums.totals() == ledger.totals()
    assert sums.lasting() == ledger.lasting()


def test_a_critic_of_its_own_size_and_one_gpu_s() -> None:
    large = {"extra_models": [{"role": "critic", "model": "qwen2.5-1.5b"}]}
    assert allocated() < allocated(**large)
    assert not has_critic_engine(recipe(num_gpus=1))
    assert has_critic_engine(recipe(trainer="openrlhf", sharding="zero3"))


def test_a_critic_of_its_own_micro_batch_and_checkpoints() -> None:
    """As large as the policy's it changes nothing; a larger one raises the critic's passes alone; one GPU, too."""

    def passes(**own: Any) -> tuple[int, int]:
        ledger = totals_of_rank(recipe(extra_models=[{"role": "critic", **own}] if own else []))
        found = list(zip(ledger.schedule, ledger.totals(), strict=True))
        critic, policy = (max(size for name, size in found if name.startswith("critic.") is of) for of in (True, False))
        return critic, policy

    plain, size = passes(), recipe().batch.size
    assert passes(batch_size=size) == plain
    larger, rare = passes(batch_size=4 * size), passes(gradient_checkpointing="none")
    assert larger[0] > plain[0]
    assert rare[0] > plain[0]
    assert larger[1] == rare[1] == plain[1]
    assert has_critic_engine(recipe(num_gpus=1, extra_models=[{"role": "critic", "token_budget": 8192}]))
    for own, message in (
        ({"trainer": "openrlhf", "sharding": "zero3"}, "as the policy"),
        (MEGATRON | {"extra_models": [{"role": "critic", "gradient_checkpointing": "full"}]}, "on Megatron"),
    ):
        with pytest.raises(InvalidJob, match=message):
            recipe(**{"extra_models": [{"role": "critic", "batch_size": 2}]} | own)


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp2"])
def test_ulysses_divides_the_tokens_and_not_the_states(sharding: str) -> None:
    keys = {"method": "sft", "sharding": sharding, "completion_length": None, "gradient_checkpointing": "none"}
    whole, half = (
        allocated(**keys, sequence_length=length, context_parallel=ranks) for length, ranks in ((2048, 1), (4096, 2))
    )
    assert half == pytest.approx(whole, rel=0.05), "each rank has as many tokens"
    assert half > whole, "attention's output is there before and after the exchange"
    one, two = (recipe(**keys, context_parallel=ranks).sharding.ranks for ranks in (1, 2))
    assert one == two == 4, "states are shared by all"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"context_parallel": 4}, r"context_parallel: 4 does not divide the 14 heads"),
        ({"context_parallel": 2, "attention": "eager"}, r"Ulysses\) is not modelled with eager attention"),
        ({"context_parallel": 2, "model": "deepseek-v2-lite"}, r"is not modelled with the attention of"),
    ],
)
def test_what_ulysses_cannot(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        recipe(**{"method": "grpo", **keys})


def test_megatron_s_workers_score_the_logits_in_place() -> None:
    """In bf16 as the model makes them, and in fp32, of which nothing else is made."""
    found = estimate(JOB | MEGATRON | {"method": "grpo", "batch_size": 8, "gradient_checkpointing": "full"})
    logits = sum(row.bytes for row in found.per_gpu.ledger if row.category == "logits" and row.born == "policy.loss")
    vocabulary, tokens = 151936 // 2, 8 * 512
    assert logits == pytest.approx(6 * tokens * vocabulary, rel=0.01)


def test_gradients_are_reduced_at_every_micro_step_before_0_9() -> None:
    keys = {"method": "grpo", "gradient_accumulation_steps": 4}
    assert recipe(**keys, trainer_version="0.6").sharding.sync_each_batch
    assert not recipe(**keys).sharding.sync_each_batch
    assert allocated(**keys, trainer_version="0.6") < allocated(**keys)
