"""Proves ``token_budget``: a micro-batch packed to a limit holds what one row of as many tokens holds."""

from itertools import accumulate, pairwise
from typing import Any

import pytest

from memplan.api import as_input, estimate, plan
from memplan.engine.megatron.build import megatron_ledger
from memplan.engine.play.megatron import megatron_events
from memplan.errors import InvalidJob, UsageError
from memplan.resolve import resolve
from memplan.spec.reading import read_job, with_changes

SFT: dict[str, Any] = {"model": "qwen2.5-7b", "method": "sft", "optimizer": "sgd", "gradient_checkpointing": "full"}
GRPO: dict[str, Any] = {**SFT, "method": "grpo", "trainer": "verl", "attention": "flash", "completion_length": 1024}


def peak(**job: Any) -> int:
    return estimate(job).per_gpu.allocated_bytes


@pytest.mark.parametrize("how", [{"attention": "flash"}, {"padded": True}, {"attention": "eager", "padded": True}])
def test_a_packed_row_is_one_row_of_its_tokens(how: dict[str, Any]) -> None:
    """Without flash attention with a mask of all tokens by all, as a padded row has."""
    kept_apart = {key: value for key, value in how.items() if key != "padded"}
    one = peak(**SFT, **how, sequence_length=8192)
    assert peak(**SFT, **kept_apart, sequence_length=1024, token_budget=8192) == one
    assert peak(**SFT, **kept_apart, sequence_length=512, token_budget=8192) == one


def test_pairs_share_the_budget() -> None:
    job = SFT | {"method": "dpo", "attention": "flash", "sequence_length": 2048}
    assert peak(**job, token_budget=8192) == peak(**job | {"sequence_length": 4096})
    with pytest.raises(InvalidJob, match="sdpa"):
        estimate(job | {"attention": "sdpa", "token_budget": 8192})


def test_the_resolved_job_says_the_same_again() -> None:
    first = estimate({**GRPO, "sequence_length": 2048, "token_budget": 16384, "logprob_token_budget": 32768})
    said = {key: first.job[key] for key in ("token_budget", "logprob_token_budget", "sequence_length", "padded")}
    assert said == {"token_budget": 16384, "logprob_token_budget": 32768, "sequence_length": 2048, "padded": False}
    again = estimate({key: value for key, value in first.job.items() if value is not None})
    assert again.per_gpu.allocated_bytes == first.per_gpu.allocated_bytes
    assert any(text.startswith("token_budget: a micro-batch is one row of 16384 tokens") for text in first.assumptions)


def test_scores_are_packed_to_a_limit_of_their_own() -> None:
    job = GRPO | {"sequence_length": 2048, "token_budget": 4096}
    own, more, less = (
        estimate(job | keys) for keys in ({}, {"logprob_token_budget": 65536}, {"logprob_token_budget": 2048})
    )
    old = [
        max(i.allocated_bytes for i in each.per_gpu.instants if i.name.startswith("old.")) for each in (own, more, less)
    ]
    assert old[2] < old[0] < old[1]
    updates = [next(i for i in each.per_gpu.instants if i.name == "policy.last-layer-backward") for each in (own, more)]
    assert updates[0].allocated_bytes == updates[1].allocated_bytes


@pytest.mark.parametrize(
    ("job", "message", "hint"),
    [
        ({"token_budget": 1024, "sequence_length": 2048}, "token_budget: 1024 does not hold", "2048 or more"),
        ({"token_budget": 3000, "sequence_length": 2048, "method": "dpo"}, "of which a pair has two", "4096 or more"),
        ({"token_budget": 4096, "batch_size": 2}, "batch_size: 2 contradicts token_budget 4096", "leave one"),
        (
            {"token_budget": 4096, "model": "llava-1.5-7b", "images": {"width": 336, "height": 336}},
            "images",
            "batch_size",
        ),
        ({"logprob_token_budget": 4096}, "logprob_token_budget: sft scores no rollout", "grpo"),
        ({"logprob_token_budget": 4096, "method": "online-dpo"}, "online-dpo scores no rollout", "grpo"),
        ({"logprob_token_budget": 1024, "method": "grpo"}, "does not hold one sequence_length of 2048", "2048"),
        ({"token_budget": 0}, "token_budget: '0'|token_budget", ""),
    ],
)
def test_what_contradicts_is_refused(job: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(InvalidJob, match=message) as refused:
        estimate(SFT | job)
    assert hint in refused.value.hint


@pytest.mark.parametrize(("trainer", "at_its"), [("verl", "old.forward"), ("verl-megatron", "old.loss")])
def test_rows_with_images_are_scored_as_whole_sequences(trainer: str, at_its: str) -> None:
    """Each sequence more adds its own logits and tower, beside an update that stays what it is."""
    seen = {"method": "grpo", "trainer": trainer, "model": "qwen2.5-vl-3b", "images": {"tokens": 256}, "num_gpus": 8}
    reports = [estimate(SFT | seen | {"logprob_token_budget": 2048 * rows}) for rows in (2, 4, 6)]
    at = [{each.name: each.allocated_bytes for each in report.per_gpu.instants} for report in reports]
    steps = [more[at_its] - fewer[at_its] for fewer, more in pairwise(at)]
    assert steps[1] == pytest.approx(steps[0], rel=0.01)
    assert at[2]["policy.loss-backward"] == pytest.approx(at[0]["policy.loss-backward"], rel=0.001)


def test_a_budget_and_a_batch_size_replace_each_other() -> None:
    """The option wins over the file, whichever of the two it has."""
    file = {**SFT, "token_budget": 8192}
    assert read_job({"batch_size": 2}, file).job.token_budget is None
    assert read_job({"token_budget": 4096}, {**SFT, "batch_size": 8}).job.batch_size == 1
    assert resolve(with_changes(as_input(file), {"batch_size": 2})).batch.size == 2


def test_examples_of_a_step_make_packed_rows() -> None:
    """Four sequences of full length in a row at the least: 64 of them are two rows on each of 8 GPUs."""
    job = {**SFT, "attention": "flash", "num_gpus": 8, "sequence_length": 2048, "token_budget": 8192}
    assert resolve(as_input(job | {"global_batch_size": 64})).batch.accumulation == 2
    assert resolve(as_input(job | {"global_batch_size": 65})).batch.accumulation == 3


@pytest.mark.slow
def test_plans_and_remedies_keep_the_micro_batch_packed() -> None:
    job = {
        **SFT,
        "optimizer": "adamw",
        "attention": "flash",
        "num_gpus": 8,
        "sequence_length": 1024,
        "gpu": "h100-80gb",
    }
    found = plan(job | {"token_budget": 8192})
    assert found.plans
    assert {each.job["token_budget"] for each in found.plans} == {8192}
    large = estimate({**job, "sharding": "zero3", "gradient_checkpointing": "none", "token_budget": 131072})
    assert all("batch_size" not in each.changes for each in large.remedies)
    assert any("token_budget" in each.changes for each in large.remedies)
    with pytest.raises(UsageError, match="packed to token_budget"):
        plan(job | {"token_budget": 8192}, ask=["batch_size"])


def test_gpus_that_share_a_sequence_divide_the_row() -> None:
    job = {"model": "qwen2.5-7b", "method": "grpo", "trainer": "slime", "num_gpus": 8, "context_parallel": 2,
           "sharding": "distributed-optimizer", "tensor_parallel": 2, "sequence_parallel": True}  # fmt: skip
    found = resolve(as_input(job | {"sequence_length": 1000, "token_budget": 8001}))
    assert (found.batch.sequence_length, found.batch.longest) == (8008, 1000)


@pytest.mark.parametrize("stages", [1, 2])
def test_megatron_scores_more_tokens_than_the_update(stages: int) -> None:
    """From above: a layer's forward and the loss without what the update saves; a reference of its own beside it."""
    job = {"model": "qwen2.5-7b", "method": "grpo", "trainer": "verl-megatron", "num_gpus": 8, "token_budget": 8192,
           "sharding": "distributed-optimizer", "tensor_parallel": 2, "sequence_length": 4096, "gpu": "h100-80gb",
           "pipeline_parallel": stages, "gradient_checkpointing": "full"}  # fmt: skip
    within, more, most, kl = (
        estimate(job | {"logprob_token_budget": budget, "reference": reference})
        for budget, reference in ((8192, "none"), (16384, "none"), (65536, "none"), (65536, "offloaded"))
    )
    found = [{each.name: each.allocated_bytes for each in of.per_gpu.instants} for of in (within, more, most, kl)]
    assert found[1]["old.loss"] > found[0]["old.loss"] > found[0]["policy.loss"], "the entropy; more tokens"
    weights = sum(row.bytes for row in kl.per_gpu.ledger if row.name == "reference on the card for its pass")
    parameters = sum(row.bytes for row in kl.per_gpu.ledger if row.category == "parameters")
    assert weights == parameters > 0
    assert found[3]["reference.layer"] == found[3]["old.layer"] + weights
    assert found[3]["reference.loss"] < found[3]["old.loss"] + weights, "without the entropy"
    logits = [row.bytes for row in most.per_gpu.ledger if row.born == "old.loss" and row.category == "logits"]
    assert logits == [4 * 65536 * 152064 // 2] * 3, "fp32: themselves, a clone, the softmax of the entropy"
    alike = estimate(job | {"trainer": "slime", "logprob_token_budget": 8192})
    assert not [each.name for each in alike.per_gpu.instants if each.name.startswith("old.")], "within the update"
    said = [[text for text in of.assumptions if text.startswith("logprob_token_budget")] for of in (more, alike)]
    assert list(map(len, said)) == [1, 0]


def test_megatron_s_scores_are_played() -> None:
    """What is reserved knows of them: the play comes to what the ledger has at its fullest moment."""
    job = {"model": "qwen2.5-7b", "method": "grpo", "trainer": "slime", "num_gpus": 8, "token_budget": 8192,
           "sharding": "distributed-optimizer", "tensor_parallel": 2, "sequence_length": 4096,
           "gradient_checkpointing": "full", "logprob_token_budget": 65536}  # fmt: skip
    recipe = resolve(as_input(job))
    ledger, played = megatron_ledger(recipe), megatron_events(recipe, 2)
    alive = list(accumulate(size for _, size in played.events))
    assert ledger.schedule[ledger.totals().index(max(ledger.totals()))] == "old.loss"
    assert max(alive[played.start :]) == pytest.approx(max(ledger.totals()), rel=0.01)


def test_a_critic_on_megatron_scores_no_rollout() -> None:
    job = {"model": "qwen2.5-7b", "method": "ppo", "trainer": "verl-megatron", "num_gpus": 8, "token_budget": 8192,
           "sharding": "distributed-optimizer", "sequence_length": 4096, "logprob_token_budget": 16384}  # fmt: skip
    instants = [each.name for each in estimate(job).per_gpu.instants]
    assert len(instants) == len(set(instants))
    assert "old.loss" in instants


@pytest.mark.parametrize(
    "job",
    [
        SFT | {"trainer": "verl", "optimizer": "adamw", "num_gpus": 4, "sharding": "fsdp2", "attention": "flash"},
        GRPO | {"optimizer": "adamw", "num_gpus": 4, "sharding": "fsdp2", "logprob_token_budget": 16384},
    ],
)
def test_verl_is_told_of_budgets(job: dict[str, Any]) -> None:
    """Emitted files are read back before they are handed out: another job would be refused."""
    from memplan.frameworks.emit.writing import emit
    from memplan.frameworks.registry import find_framework

    found = emit(as_input(job | {"sequence_length": 2048, "token_budget": 8192}), find_framework("verl"))
    assert "max_token_len_per_gpu: 8192" in "".join(found.texts.values())


def test_what_a_framework_has_no_word_for_is_named() -> None:
    from memplan.frameworks.emit.writing import emit
    from memplan.frameworks.registry import find_framework

    job = as_input(SFT | {"trainer": "trl", "attention": "flash", "optimizer": "adamw", "token_budget": 8192})
    with pytest.raises(InvalidJob, match="token_budget: 8192 cannot be said to TRL"):
        emit(job, find_framework("trl"))
