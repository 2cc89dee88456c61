"""Proves the updates of PPO, GRPO, RLOO, online DPO and distillation: who runs them, what each part of them costs."""

from itertools import pairwise
from typing import Any

import pytest

from memplan.api import estimate
from memplan.engine.build import build_ledger
from memplan.engine.micro_step import stages
from memplan.engine.rollouts import scores_bytes
from memplan.errors import EXIT_USAGE, InvalidJob
from memplan.report import Report
from memplan.resolve import resolve
from memplan.rollout.together import generating_bytes
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS
from memplan.tables.trainers import TRAINERS
from memplan.units import MiB

MODEL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 640, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
TEACHER = {**MODEL, "num_hidden_layers": 5}
ONLINE = tuple(row.name for row in METHODS.values() if row.online or row.teacher)
BESIDE = {"distill": {"extra_models": [{"role": "teacher", "model": TEACHER}]}}


def job(method: str, **keys: Any) -> dict[str, Any]:
    """A job over a small model."""
    return {"model": MODEL, "method": method, "sequence_length": 256, **BESIDE.get(method, {}), **keys}


def recipe(method: str, **keys: Any) -> Recipe:
    return resolve(read_job(job(method, **keys)))


def peak(method: str, **keys: Any) -> int:
    """Allocated bytes at the peak."""
    return estimate(job(method, **keys)).per_gpu.allocated_bytes


def refusal(method: str, **keys: Any) -> InvalidJob:
    """The error of a job that cannot be."""
    with pytest.raises(InvalidJob) as caught:
        recipe(method, **keys)
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.hint
    return caught.value


def passes(found: Recipe) -> list[str]:
    return [f"{traced.plan.name}.{point}" for traced, point in stages(found)]


# -- who runs what ----------------------------------------------------------------------------------------------------

ERAS = [(name, era.since) for name, eras in TRAINERS.items() for era in eras]
RL_ON_MEGATRON = {"areal-megatron", "nemo-rl-megatron", "verl-megatron"}
IN_TURN = ("slime", "nemo-rl", "nemo-rl-megatron")
"""A critic in a process of its own, which rests while the policy trains."""
RUNS = {
    "ppo": {
        "pytorch",
        "openrlhf",
        "verl",
        "verl-megatron",
        "areal",
        "areal-megatron",
        "skyrl",
        *IN_TURN,
        *(f"trl {since}" for since in ("0.16", "0.17", "0.19", "0.27", "0.29", "1.7")),
    }
    | {f"swift {since}" for since in ("3.0", "3.5", "4.0")},
    "grpo": {"pytorch", "openrlhf", "verl", "slime", "trl", "areal", "nemo-rl", "prime-rl", "megatron-swift"}
    | {"skyrl", "skyrl-megatron"}
    | RL_ON_MEGATRON
    | {f"swift {since}" for since in ("3.0", "3.5", "4.0")},
    "rloo": {
        "pytorch",
        "openrlhf",
        "verl",
        "verl-megatron",
        "skyrl",
        "skyrl-megatron",
        *(f"trl {since}" for since in ("0.27", "0.29", "1.7", "1.14", "1.15")),
    },
    "online-dpo": {"pytorch", "trl"},
    "distill": {"pytorch", "trl", "swift 3.5", "swift 4.0"},
}
BEFORE = ("0.7", "0.10", "0.12", "0.15")
REASONS = ("has no", "is not modelled yet", "is modelled from")


@pytest.mark.parametrize("trainer", IN_TURN)
def test_a_critic_in_a_process_of_its_own_takes_turns_with_the_policy(trainer: str) -> None:
    keys = {"trainer": trainer, "num_gpus": 8, "gpu": "h100-80gb", "gradient_checkpointing": "full"}
    keys["rollout"] = {"engine": "sglang" if trainer == "slime" else "vllm", "placement": "colocate"}
    with_critic, without = (estimate(job(method, **keys)) for method in ("ppo", "grpo"))
    fullest = [{at.name: at.device_bytes for at in report.rollout} for report in (with_critic, without)]
    policy, alone = (max(size for name, size in each.items() if name.startswith("policy")) for each in fullest)
    assert alone + 256 * MiB < policy < alone + 2048 * MiB, "a second context and its communicators, no states"
    assert [any(name.startswith("critic") for name in each) for each in fullest] == [True, False]


@pytest.mark.parametrize(("trainer", "since"), ERAS)
@pytest.mark.parametrize("method", ONLINE)
def test_every_trainer_runs_a_method_or_refuses_it_by_name(method: str, trainer: str, since: str) -> None:
    keys = {"trainer": trainer, **({"trainer_version": since} if since else {})}
    runs = trainer in RUNS[method] or f"{trainer} {since}" in RUNS[method]
    if trainer == "trl" and since in {"grpo": BEFORE[:3], "distill": BEFORE}.get(method, ()):
        runs = False
    if runs:
        report = estimate(job(method, **keys))
        assert 0 < report.per_gpu.allocated_range.low <= report.per_gpu.allocated_bytes
        assert estimate(report.job).per_gpu.allocated_bytes == report.per_gpu.allocated_bytes
    else:
        error = refusal(method, **keys)
        assert method in error.message
        assert any(reason in error.message for reason in REASONS)


def test_rloo_of_trl_is_that_of_its_newer_trainer() -> None:
    assert "from 0.22 on" in refusal("rloo", trainer="trl", trainer_version="0.21").message
    assert recipe("rloo", trainer="trl", trainer_version="0.24").loss.code.rescales


@pytest.mark.parametrize(
    ("method", "keys", "message"),
    [
        ("grpo", {"rollout": {"gpu_memory_utilization": 1.5}}, "rollout.gpu_memory_utilization: '1.5' is no share"),
        ("grpo", {"rollout": {"engine": "vllm", "mem_fraction_static": 0.5}}, "SGLang's, and the engine is vllm"),
        ("sft", {"rollout": {"group_size": 4}}, "rollout: sft generates nothing"),
        ("online-dpo", {"rollout": {"group_size": 4}}, "rollout.group_size: online-dpo has two completions"),
        ("grpo", {"rollout": {"prompt_length": 64}}, "one of prompt_length and completion_length"),
        ("grpo", {"rollout": {"prompt_length": 64, "completion_length": 64}}, "sequence_length: 256 contradicts"),
        ("grpo", {"trainer": "trl", "rollout": {"group_size": 8}, "batch_size": 4}, "rollout.group_size: 8 does not"),
        ("grpo", {"reference": "precomputed"}, "reference: grpo generates what is scored"),
        ("online-dpo", {"reference": "none"}, "reference: online-dpo needs"),
        ("grpo", {"extra_models": [{"role": "critic", "model": MODEL}]}, "extra_models: grpo has no critic"),
        ("ppo", {"extra_models": [{"role": "critic", "model": MODEL}] * 2}, "more than one critic"),
        ("ppo", {"extra_models": [{"role": "critic", "model": MODEL, "trained": False}]}, "always trained"),
        ("ppo", {"num_gpus": 2, "sharding": "fsdp2"}, "policy and critic in one backward under FSDP"),
        ("ppo", {"quantization": "nf4", "lora": {"r": 8}}, "a critic beside a quantised policy"),
        ("distill", {"extra_models": []}, "needs a teacher"),
        ("distill", {"extra_models": [{"role": "teacher", "model": {**MODEL, "vocab_size": 999}}]}, "a vocabulary of"),
        ("distill", {"loss_head": "fused"}, "no distribution over the vocabulary"),
        ("distill", {"entropy": "loss"}, "entropy: "),
        ("distill", {"sharding": "fsdp2", "num_gpus": 4}, "a teacher beside a sharded student"),
        ("rloo", {"trainer": "trl", "trainer_version": "1.12", "kernels": "liger"}, "Liger's rloo loss"),
        (
            "grpo",
            {"trainer": "trl", "trainer_version": "1.12", "kernels": "liger", "precision": "bf16-amp"},
            "outside autocast",
        ),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_by_its_key(method: str, keys: dict[str, Any], message: str) -> None:
    assert message in refusal(method, **keys).message


# -- what an update is ------------------------------------------------------------------------------------------------

UPDATE = ["policy.forward", "policy.backward"]
CRITIC = ["critic.forward", "critic.backward"]


@pytest.mark.parametrize(
    ("method", "keys", "expected"),
    [
        ("grpo", {}, ["reference.forward", *UPDATE]),
        ("grpo", {"reference": "none"}, UPDATE),
        ("grpo", {"trainer": "trl"}, UPDATE),
        ("grpo", {"trainer": "trl", "trainer_version": "0.17"}, ["reference.forward", *UPDATE]),
        ("grpo", {"trainer": "verl"}, ["old.forward", *UPDATE]),
        ("rloo", {"trainer": "trl"}, ["reference.forward", *UPDATE]),
        ("ppo", {}, ["reference.forward", *CRITIC, *UPDATE]),
        ("ppo", {"trainer": "openrlhf"}, ["old.forward", "reference.forward", *CRITIC, *UPDATE]),
        (
            "ppo",
            {"trainer": "trl", "trainer_version": "1.12"},
            ["reference.forward", "critic.forward", *UPDATE, "critic.backward"],
        ),
        ("online-dpo", {"trainer": "trl"}, ["policy.forward", "reference.forward", "policy.backward"]),
        ("distill", {}, ["teacher.forward", *UPDATE]),
        ("distill", {"trainer": "trl"}, ["policy.forward", "teacher.forward", "policy.loss", "policy.backward"]),
    ],
)
def test_the_passes_of_an_update(method: str, keys: dict[str, Any], expected: list[str]) -> None:
    assert passes(recipe(method, **keys)) == expected


def test_a_rollout_gives_the_lengths() -> None:
    rollout = {"rollout": {"prompt_length": 100, "completion_length": 156}}
    found = resolve(read_job({"model": MODEL, "method": "grpo", **rollout}))
    assert (found.batch.sequence_length, found.batch.completion_length) == (256, 156)
    assert found.provenance.sources["sequence_length"] == "option"
    assert peak("grpo", **rollout) == peak("grpo", completion_length=156)


def test_a_plain_loop_counts_prompts_and_trainers_count_completions() -> None:
    group = {"rollout": {"group_size": 4}, "batch_size": 4}
    assert (recipe("grpo", **group).rows, recipe("grpo", trainer="trl", **group).rows) == (16, 4)
    assert peak("grpo", **group) > peak("grpo", batch_size=4) == peak("grpo", **group | {"batch_size": 1})


# -- more is more -----------------------------------------------------------------------------------------------------

TRAINED = ("pytorch", "openrlhf", "verl")


@pytest.mark.parametrize("method", ["ppo", "grpo", "rloo"])
def test_without_a_reference_there_is_less(method: str) -> None:
    none, resident = peak(method, reference="none"), peak(method, reference="resident")
    assert none < resident
    assert peak(method, reference="adapter", lora={"r": 8}) < peak(method, reference="resident", lora={"r": 8})


def test_a_bigger_group_takes_more() -> None:
    sizes = [peak("grpo", rollout={"group_size": group}) for group in (2, 4, 8, 16)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("trainer", [*TRAINED, "slime"])
def test_entropy_costs_most_in_the_loss_and_nothing_where_there_is_none(trainer: str) -> None:
    keys = {"trainer": trainer, "batch_size": 8, "gradient_checkpointing": "full"}
    ledgers = [build_ledger(recipe("grpo", entropy=entropy, **keys)) for entropy in ("none", "metric", "loss")]
    updates = [
        [size for instant, size in zip(each.schedule, each.totals(), strict=True) if instant.startswith("policy")]
        for each in ledgers
    ]
    sizes = [max(update) for update in updates]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


@pytest.mark.slow
def test_completions_alone_are_projected() -> None:
    lengths = [peak("grpo", batch_size=8, completion_length=length) for length in (32, 128, 255)]
    assert lengths == sorted(set(lengths))
    assert len({peak("grpo", batch_size=8, trainer="verl", completion_length=each) for each in (32, 255)}) == 2
    old, new = (peak("grpo", batch_size=8, trainer="trl", trainer_version=each) for each in ("1.12", "1.16"))
    assert new < old
    old, new = (peak("grpo", batch_size=8, trainer="verl", trainer_version=each) for each in ("0.3", "0.4"))
    assert new < old  # an entropy in any case


def rows_of(report: Report, end: str) -> dict[str, int]:
    return {row.name: row.bytes for row in report.per_gpu.ledger if row.name.endswith(end)}


@pytest.mark.parametrize("trainer", TRAINED)
def test_a_critic_is_trained_as_the_policy_is(trainer: str) -> None:
    report = estimate(job("ppo", trainer=trainer))
    critic, policy = rows_of(report, "of the critic"), rows_of(report, "weights of the policy")
    found = recipe("ppo", trainer=trainer)
    assert found.others.critic is not None
    share = found.others.critic.spec.params.total / found.model.params.total
    assert critic["weights of the critic"] == round(policy["weights of the policy"] * share)
    assert "AdamW states of the critic" in critic
    without = estimate(job("grpo", trainer=trainer, reference=found.others.reference))
    assert report.per_gpu.allocated_bytes - without.per_gpu.allocated_bytes >= sum(critic.values())


def test_what_generates_under_zero3_gathers_the_critic_of_its_engine_and_no_reward_model() -> None:
    """TRL's PolicyAndValueWrapper (experimental/ppo/ppo_trainer.py); prepare_deepspeed divides the reward model."""
    ppo, grpo = (recipe(method, trainer="swift", num_gpus=2, sharding="zero3") for method in ("ppo", "grpo"))
    critic = ppo.others.critic
    assert critic is not None
    assert ppo.generator is not None
    gathered = (generating_bytes(ppo.generator, each) for each in (ppo, grpo))
    assert next(gathered) - next(gathered) == critic.spec.params.total * 2 + scores_bytes(ppo)
    assert [(each.role, each.sharded) for each in ppo.others.residents if each.role == "reward"] == [("reward", True)]


def test_a_critic_of_ones_own_size() -> None:
    small = {**MODEL, "num_hidden_layers": 1}
    assert peak("ppo", extra_models=[{"role": "critic", "model": small}]) < peak("ppo")


def test_an_engine_of_its_own_steps_before_the_policys_update() -> None:
    found = recipe("ppo", trainer="verl", gradient_accumulation_steps=2)
    ledger = build_ledger(found)
    step = ledger.index["critic.optimizer"]
    assert step < ledger.index["policy.layer-forward"]
    shards = [row for row in ledger.rows if row.name == "shards of the gradients of the root"]
    end = len(ledger.schedule) - 1
    assert [(row.born, row.dies) for row in shards] == [(step, step), (end, end)]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_gives_a_critic_an_engine(stage: int) -> None:
    found = recipe("ppo", zero_stage=stage, batch_size=2)
    ledger = build_ledger(found)
    assert "critic.optimizer" in ledger.schedule
    rows = [row.name for row in ledger.rows if row.name.startswith(("reduction bucket", "gradient partitions"))]
    assert len(rows) == 2 * (stage > 0) + 2 * (stage == 3)
    assert estimate(job("ppo", zero_stage=stage, batch_size=2)).per_gpu.phases["step"] == max(
        total for instant, total in zip(ledger.schedule, ledger.totals(), strict=True) if instant.endswith("optimizer")
    )


def test_one_step_steps_both_where_one_optimizer_does() -> None:
    ledger = build_ledger(recipe("ppo"))
    assert [instant for instant in ledger.schedule if instant.endswith("optimizer")] == ["step.optimizer"]
    (temporaries,) = (row for row in ledger.rows if row.name.startswith("temporaries of the foreach step"))
    found = recipe("ppo")
    assert found.others.critic is not None
    assert temporaries.bytes == 2 * (found.model.params.total + found.others.critic.spec.params.total)


@pytest.mark.parametrize(
    ("trainer", "version", "models"), [("trl", "1.12", 1), ("openrlhf", None, 0), ("pytorch", None, 0)]
)
def test_trl_needs_a_reward_model_on_the_card(trainer: str, version: str | None, models: int) -> None:
    keys = {"trainer": trainer, **({"trainer_version": version} if version else {})}
    assert [each.role for each in recipe("ppo", **keys).others.residents].count("reward") == models
    named = recipe("ppo", extra_models=[{"role": "reward", "model": MODEL}], **keys)
    assert [each.role for each in named.others.residents].count("reward") == 1


def test_a_divergence_makes_more_than_a_plain_one() -> None:
    same = {"precision": "bf16", "autocast": False, "gradient_checkpointing": "none", "batch_size": 4}
    trl, plain = (peak("distill", trainer=trainer, **same) for trainer in ("trl", "pytorch"))
    logits = 4 * 256 * MODEL["vocab_size"] * 2
    assert trl - plain > 8 * logits
    larger = {**MODEL, "num_hidden_layers": 9}
    bigger = peak("distill", extra_models=[{"role": "teacher", "model": larger}], batch_size=4)
    assert bigger > peak("distill", batch_size=4)


@pytest.mark.parametrize("method", ONLINE)
def test_the_peak_is_the_sum_of_its_parts(method: str) -> None:
    report = estimate(job(method, gpu="rtx-4090-24gb", batch_size=4))
    found = report.per_gpu
    totals = {instant.name: instant.allocated_bytes for instant in found.instants}
    assert found.allocated_bytes == max(totals.values()) == totals[found.peak_instant]
    assert sum(found.by_category.values()) == found.allocated_bytes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ppo", "grpo", "rloo"])
def test_remedies_know_what_an_update_can_do_without(method: str) -> None:
    described = {"model": "llama-3.1-8b", "method": method, "gpu": "rtx-4090-24gb", "batch_size": 2}
    report = estimate(described)
    assert report.verdict is not None
    assert report.verdict.fits == "no"
    assert report.remedies
    assert all("precompute" not in remedy.title for remedy in report.remedies)


def test_an_engine_of_zero3_divides_the_teacher_too() -> None:
    keys = {"trainer": "trl", "num_gpus": 4, "precision": "bf16-master"}
    whole, divided = (
        {row.name: row.bytes for row in estimate(job("distill", sharding=name, **keys)).per_gpu.ledger if row.born}
        for name in ("zero2", "zero3")
    )
    copy = next(name for name in whole if name.startswith("teacher model"))
    assert whole[copy] / 4 <= divided[copy] < whole[copy] / 3.9
    assert f"persistent parameters of the {copy}" in divided


def test_steps_from_sft_add_up() -> None:
    from memplan.remedies import from_sft

    given = read_job(job("ppo", batch_size=2))
    report = estimate(given.job)
    steps = from_sft(given, report)
    assert sum(step.bytes for step in steps) == report.per_gpu.allocated_bytes
    assert any("critic" in step.title for step in steps)


def test_eras_of_trl_shrink_grpo() -> None:
    versions = ("0.17", "1.12", "1.14", "1.16")
    sizes = [peak("grpo", trainer="trl", trainer_version=v, reference="none", batch_size=8, completion_length=200,
                  gradient_checkpointing="full") for v in versions]  # fmt: skip
    assert all(newer <= older for older, newer in pairwise(sizes))
