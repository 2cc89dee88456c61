"""Proves where every ``auto`` ends: what a job resolves to, where each value comes from, and what cannot be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import EXIT_USAGE, InvalidJob
from memplan.generic import SHAPES, Shape, generic_model
from memplan.models import load_model
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.choices import CHOICES
from memplan.tables.methods import METHODS
from memplan.tables.optimizers import OPTIMIZERS
from memplan.tables.trainer import version_key
from memplan.tables.trainers import TRAINERS, find_trainer

TINY = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512}
GEMMA2 = {**TINY, "model_type": "gemma2"}
MIXTRAL = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


def recipe(file: dict[str, Any] | None = None, **options: Any) -> Recipe:
    """A recipe of a tiny model."""
    return resolve(read_job({"model": TINY, **options}, file))


def refusal(**options: Any) -> InvalidJob:
    """The error of a job that cannot be."""
    with pytest.raises(InvalidJob) as caught:
        recipe(**options)
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.hint
    return caught.value


# -- precision and autocast -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "scheme", "source", "autocast"),
    [
        ({}, "bf16", "default", 0),
        ({"dtype": "fp16"}, "fp16", "default", 0),
        ({"dtype": "fp32"}, "fp32", "default", 0),
        ({"zero_stage": 2, "num_gpus": 4}, "bf16-master", "default", 0),
        ({"zero_stage": 3, "num_gpus": 4, "dtype": "fp16"}, "fp16-master", "default", 0),
        ({"sharding": "fsdp2", "num_gpus": 4}, "bf16-amp", "default", 0),
        ({"trainer": "trl"}, "bf16", "trainer", 2),
        ({"trainer": "trl", "method": "dpo"}, "bf16-amp", "trainer", 2),
        ({"trainer": "transformers", "trainer_version": "4.44", "method": "sft"}, "bf16-amp", "trainer", 2),
        ({"trainer": "transformers", "method": "sft"}, "bf16", "trainer", 2),
        ({"trainer": "llamafactory"}, "bf16-amp", "trainer", 2),
        ({"trainer": "llamafactory", "lora": {"r": 8}}, "bf16", "trainer", 2),
        ({"trainer": "simpo-repo"}, "bf16-amp", "trainer", 2),
        ({"trainer": "trl", "zero_stage": 3, "num_gpus": 4}, "bf16-master", "default", 0),
        ({"precision": "bf16-amp"}, "bf16-amp", "option", 2),
        ({"precision": "bf16", "autocast": True}, "bf16", "option", 2),
    ],
)
def test_precision_follows_dtype_trainer_and_sharding(
    keys: dict[str, Any], scheme: str, source: str, autocast: int
) -> None:
    found = recipe(**keys)
    assert (found.storage.precision.name, found.provenance.sources["precision"], found.numerics.autocast) == (
        scheme,
        source,
        autocast,
    )
    assert found.provenance.job["precision"] == scheme
    stated = any(text.startswith(f"precision: {scheme}") for text in found.provenance.assumptions)
    assert stated == (source != "option"), "what was not given is said"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dtype": "fp16", "precision": "bf16"}, "dtype: fp16 contradicts precision bf16"),
        ({"dtype": "fp32", "precision": "bf16-amp"}, "dtype: fp32 contradicts precision bf16-amp"),
        ({"precision": "bf16-master"}, "precision: bf16-master needs DeepSpeed"),
        ({"precision": "fp32", "autocast": True}, "autocast: true contradicts precision fp32"),
        ({"precision": "bf16-amp", "autocast": False}, "precision: bf16-amp without autocast is fp32"),
        ({"zero_stage": 2, "sharding": "zero3"}, "sharding: zero3 contradicts zero_stage 2"),
        ({"loss_head": "cross-entropy"}, "loss_head: cross-entropy gives no log-probabilities for simpo"),
        ({"reference": "adapter", "method": "dpo"}, "reference: adapter needs LoRA"),
        ({"reference": "none", "method": "dpo"}, "reference: dpo needs reference log-probabilities"),
        ({"reference": "resident"}, "reference: simpo uses none"),
        ({"total_params": "8B"}, "total_params: 8B given beside model"),
        (
            {"optimizer": "adamw-8bit", "optimizer_impl": "foreach"},
            "optimizer_impl: adamw-8bit has no foreach implementation",
        ),
        ({"model": GEMMA2, "attention": "sdpa"}, "attention: sdpa cannot soft-cap the scores of inline config"),
        (
            {"global_batch_size": 15, "num_gpus": 4},
            "global_batch_size: 15 is no multiple of batch_size × data-parallel ranks = 4",
        ),
        (
            {"global_batch_size": 16, "num_gpus": 4, "gradient_accumulation_steps": 3},
            "gradient_accumulation_steps: 3 contradicts global_batch_size 16",
        ),
        ({"lora": {"targets": ["qproj"]}}, "lora.targets: llama has no linear module 'qproj'"),
        ({"lora": {"targets": []}}, "lora.targets: no module named"),
        (
            {"model": MIXTRAL, "lora": {"dropout": 0.1}},
            "lora.dropout: PEFT's ParamWrapper, which adapts stacked experts, works without it",
        ),
        ({"gpu": "h1000"}, "gpu: no such card: 'h1000'"),
        ({"zero_stage": 2, "num_gpus": 2, "deepspeed": {"reduce_bucket": 5}}, "deepspeed: unknown key 'reduce_bucket'"),
        (
            {"zero_stage": 2, "num_gpus": 2, "deepspeed": {"reduce_bucket_size": "many"}},
            "deepspeed: reduce_bucket_size: 'many' is no number of elements",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_both_values(keys: dict[str, Any], message: str) -> None:
    assert refusal(**keys).message == message


def test_a_job_without_a_model_says_how_to_name_one() -> None:
    with pytest.raises(InvalidJob) as caught:
        resolve(read_job({}))
    assert caught.value.message == "no model named"
    assert "llama-3.1-8b" in caught.value.hint


def test_a_size_alone_is_a_generic_model_and_said_to_be() -> None:
    found = resolve(read_job({"total_params": "8B"}))
    assert found.model.params.total == pytest.approx(8e9, rel=0.02)
    assert any("no architecture given" in text for text in found.provenance.assumptions)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.preset)
def test_generic_shapes_are_presets_and_interpolate_to_themselves(shape: Shape) -> None:
    real, made = load_model(shape.preset), generic_model(shape.total)
    assert (made.hidden_size, made.num_layers, made.vocab_size, made.tied) == (
        real.hidden_size,
        real.num_layers,
        real.vocab_size,
        real.tied,
    )
    assert (made.num_heads, made.intermediate_size) == (real.num_heads, real.intermediate_size)


@given(st.integers(5_000_000, 2 * 10**12))
def test_a_generic_model_has_the_parameters_asked_for(total: int) -> None:
    assert generic_model(total).params.total == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize("total", [3 * 10**9, 7 * 10**9, 13 * 10**9, 65 * 10**9])
def test_tensor_ranks_and_stages_divide_a_generic_model(total: int) -> None:
    made = generic_model(total)
    assert made.intermediate_size is not None
    assert made.intermediate_size % 64 == made.num_layers % 2 == 0


def test_the_range_of_a_generic_model_is_that_of_real_ones() -> None:
    gpu = build_report(resolve(read_job({"total_params": "8B", "lora": {"r": 16}}))).per_gpu
    assert gpu.allocated_range.low < 0.9 * gpu.allocated_bytes < 1.1 * gpu.allocated_bytes < gpu.allocated_range.high
    weights = gpu.by_category["parameters"]
    assert gpu.allocated_range.low > weights


# -- sharding and batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "name", "ranks", "source"),
    [
        ({}, "none", 1, "default"),
        ({"num_gpus": 4}, "ddp", 4, "default"),
        ({"num_gpus": 4, "sharding": "none"}, "none", 1, "option"),
        ({"num_gpus": 4, "zero_stage": 3}, "zero3", 4, "option"),
        ({"num_gpus": 4, "sharding": "zero3", "zero_stage": 3}, "zero3", 4, "option"),
    ],
)
def test_sharding(keys: dict[str, Any], name: str, ranks: int, source: str) -> None:
    found = recipe(**keys)
    assert (
        found.sharding.name,
        found.sharding.ranks,
        found.provenance.sources["sharding"],
        found.provenance.job["sharding"],
    ) == (name, ranks, source, name)
    assert "zero_stage" not in found.provenance.job, "one key for one thing"


def test_several_gpus_without_a_strategy_are_remarked() -> None:
    assert any(text.startswith("sharding: ddp") for text in recipe(num_gpus=4).provenance.assumptions)
    assert any("a job of its own" in text for text in recipe(num_gpus=4, sharding="none").provenance.warnings)


def test_accumulation_follows_from_the_global_batch() -> None:
    found = recipe(global_batch_size=64, num_gpus=8, batch_size=2)
    assert found.batch.accumulation == found.provenance.job["gradient_accumulation_steps"] == 4
    assert recipe(global_batch_size=64, num_gpus=8, gradient_accumulation_steps=8).batch.accumulation == 8
    assert refusal(global_batch_size=15, num_gpus=4).hint == "use 12"


def test_deepspeed_buffers_are_the_users_the_integrations_or_its_own() -> None:
    keys: dict[str, Any] = {"zero_stage": 3, "num_gpus": 2}
    assert recipe(**keys).sharding.deepspeed.reduce_bucket_size == 500_000_000
    assert recipe(**keys, trainer="trl").sharding.deepspeed.reduce_bucket_size == 64 * 64
    given = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": 1e6}
    found = recipe(**keys, deepspeed=given).sharding.deepspeed
    assert (found.reduce_bucket_size, found.prefetch_bucket_size) == (500_000_000, 1_000_000)


# -- precedence -------------------------------------------------------------------------------------------------------


def test_option_over_file_over_trainer_over_default() -> None:
    file = {"trainer": "trl", "gradient_checkpointing": False, "optimizer_impl": "foreach"}
    by_file = recipe(file)
    assert (by_file.checkpointing.layers, by_file.provenance.sources["gradient_checkpointing"]) == (False, "file")
    assert (by_file.optimizer.implementation, by_file.provenance.sources["optimizer_impl"]) == ("foreach", "file")
    by_option = recipe(file, gradient_checkpointing=True, optimizer_impl="loop")
    assert (by_option.checkpointing.layers, by_option.provenance.sources["gradient_checkpointing"]) == (True, "option")
    assert (by_option.optimizer.implementation, by_option.provenance.sources["optimizer_impl"]) == ("loop", "option")
    by_trainer = recipe(trainer="trl")
    assert (by_trainer.checkpointing.layers, by_trainer.provenance.sources["gradient_checkpointing"]) == (
        True,
        "trainer",
    )
    assert (by_trainer.optimizer.implementation, by_trainer.provenance.sources["optimizer_impl"]) == (
        "fused",
        "trainer",
    )
    by_default = recipe()
    assert (by_default.checkpointing.layers, by_default.provenance.sources["gradient_checkpointing"]) == (
        False,
        "default",
    )
    assert (by_default.optimizer.implementation, by_default.provenance.sources["optimizer_impl"]) == (
        "foreach",
        "default",
    )


def test_sources_are_of_four_kinds_and_cover_what_was_given() -> None:
    found = recipe({"batch_size": 2, "lora": {"r": 4}}, trainer="trl", num_gpus=2)
    assert set(found.provenance.sources.values()) <= {"option", "file", "trainer", "default"}
    assert (
        found.provenance.sources["batch_size"],
        found.provenance.sources["lora"],
        found.provenance.sources["num_gpus"],
    ) == ("file", "file", "option")


def test_keys_without_effect_are_listed() -> None:
    found = recipe({"learning_rate": 1e-6, "warmup_ratio": 0.1})
    assert set(found.provenance.warnings) == {
        "learning_rate has no effect on memory",
        "warmup_ratio has no effect on memory",
    }


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("method", [name for name in METHODS if name != "generate"])
def test_nothing_is_left_open(method: str, trainer: str) -> None:
    refused: InvalidJob | None = None
    try:
        found = recipe(method=method, trainer=trainer)
    except InvalidJob as error:
        refused = error
    if refused is not None:
        assert refused.message.startswith((f"trainer: {TRAINERS[trainer][0].title}", "extra_models: distill"))
        assert refused.hint
        return
    kept = {key: value for key, value in found.provenance.job.items() if value == "auto"}
    assert set(kept) <= {"grad_dtype", "reduce_dtype", "logits_dtype"}, "resolved to bytes, or to the head"
    assert found.rows == found.batch.size * (2 if found.method.pairs else 1)


# -- references, heads, adapters, trainers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "kind", "residents"),
    [
        ({"method": "simpo"}, "none", 0),
        ({"method": "dpo"}, "resident", 1),
        ({"method": "dpo", "lora": {"r": 8}}, "adapter", 0),
        ({"method": "dpo", "lora": {"r": 8}, "reference": "resident"}, "resident", 1),
        ({"method": "dpo", "reference": "precomputed"}, "precomputed", 0),
        ({"method": "kto"}, "resident", 1),
    ],
)
def test_where_the_reference_comes_from(keys: dict[str, Any], kind: str, residents: int) -> None:
    found = recipe(**keys)
    assert (found.others.reference, len(found.others.residents)) == (kind, residents)


def test_extra_models_stand_beside_the_policy() -> None:
    found = recipe(method="dpo", extra_models=[{"role": "reward", "model": TINY}, {"role": "teacher", "model": TINY}])
    assert [model.role for model in found.others.residents] == ["reference", "reward", "teacher"]
    assert found.others.residents[1].spec.head.outputs == 1, "a reward model has a score head"


@pytest.mark.parametrize(
    ("keys", "head"),
    [
        ({"method": "sft"}, "cross-entropy"),
        ({"method": "dpo"}, "selective"),
        ({"method": "reward"}, "score"),
        ({"method": "dpo", "trainer": "trl", "trainer_version": "0.14"}, "log-softmax"),
        ({"method": "dpo", "trainer": "trl", "trainer_version": "0.24"}, "selective"),
        ({"method": "dpo", "trainer": "trl", "trainer_version": "1.14"}, "selective-kernel"),
        ({"method": "dpo", "trainer": "trl"}, "fused"),
        ({"method": "simpo", "trainer": "simpo-repo"}, "log-softmax"),
    ],
)
def test_the_loss_head_is_the_trainers(keys: dict[str, Any], head: str) -> None:
    assert recipe(**keys).loss.head == head


def test_attention_is_eager_before_the_class_has_sdpa() -> None:
    sft: dict[str, Any] = {"trainer": "transformers", "method": "sft"}
    for version, form in (("4.35.2", "eager"), ("4.36", "sdpa"), ("5.0", "sdpa")):
        assert recipe(**sft, trainer_version=version).operators.attention == form
    assert recipe(**sft, trainer_version="4.31", attention="flash").operators.attention == "flash"
    assert "transformers 4.31 has no sdpa for llama" in str(refusal(**sft, trainer_version="4.31", attention="sdpa"))


def test_soft_capped_scores_run_in_eager_attention() -> None:
    found = resolve(read_job({"model": GEMMA2}))
    assert found.operators.attention == found.provenance.job["attention"] == "eager"
    assert any("which sdpa does not compute" in text for text in found.provenance.assumptions)


def test_adapters_are_resolved() -> None:
    found = recipe(lora={"r": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.1, "dtype": "bf16"}).adapter
    assert found is not None
    assert (found.rank, found.targets, found.itemsize, found.dropout) == (16, frozenset({"q_proj", "v_proj"}), 2, True)
    every = recipe(lora={}).adapter
    assert every is not None
    assert len(every.targets) == 7
    under_deepspeed = recipe(lora={}, zero_stage=2, num_gpus=2).adapter
    assert under_deepspeed is not None
    assert under_deepspeed.itemsize == 2, "DeepSpeed casts the whole module"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_runs_in_the_implementations_that_it_has(optimizer: str) -> None:
    row = OPTIMIZERS[optimizer]
    assert recipe(optimizer=optimizer).optimizer.implementation == row.default_implementation
    for name in set(CHOICES["optimizer_impl"]) - {"auto"}:
        if name in row.implementations:
            assert recipe(optimizer=optimizer, optimizer_impl=name).optimizer.implementation == name
        else:
            assert refusal(optimizer=optimizer, optimizer_impl=name).message.startswith("optimizer_impl: ")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_eras_are_in_order_and_found_by_version(trainer: str) -> None:
    eras = TRAINERS[trainer]
    since = [version_key(era.since) for era in eras]
    assert since == sorted(set(since))
    assert find_trainer(trainer) is eras[-1]
    for era in eras:
        assert find_trainer(trainer, era.since) is era
    assert find_trainer("trl", "0.9.6") is TRAINERS["trl"][0]
    assert find_trainer("trl", "1.16.0") is TRAINERS["trl"][-1]
    assert find_trainer("trl", "0.20.1") is TRAINERS["trl"][6]


def test_a_card_given_by_its_size_is_an_assumption() -> None:
    found = recipe(gpu="80GB")
    assert found.hardware.gpu is not None
    assert found.hardware.gpu.usable_bytes == 80 * 10**9
    assert any("80,000,000,000 bytes = 74.5 GiB" in text for text in found.provenance.assumptions)
