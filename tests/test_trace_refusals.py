"""Proves what memplan trace says where it cannot trace: without its extra, and for jobs it has no real step for.

None of this needs torch: a job is judged before anything of the extra is imported.
"""

import importlib.util
from typing import Any

import pytest

from memplan.cli.app import main
from memplan.errors import InvalidJob, UsageError
from memplan.models import load_model, model_config
from memplan.resolve import resolve
from memplan.resolve.stopping import stops
from memplan.spec.reading import read_job
from memplan.trace import PACKAGES, require_extra, trace
from memplan.trace.support import check, check_fallback

MODEL = "smollm2-135m"


def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in PACKAGES else found(name, *rest)
    )


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_the_extra(monkeypatch)
    assert main(["trace", MODEL, "--method", "sft"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: memplan trace needs torch, transformers, peft",
        'hint: pip install "memplan[trace]"',
    ]


def test_without_the_extra_the_library_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_extra(monkeypatch)
    with pytest.raises(UsageError, match="needs torch"):
        require_extra()


REFUSED: dict[str, dict[str, Any]] = {
    "sharding": {"num_gpus": 8, "zero_stage": 3},
    "num_gpus": {"sharding": "ddp"},
    "optimizer": {"optimizer": "adamw-8bit"},
    "loss_head": {"method": "sft", "loss_head": "cut-cross-entropy"},
    "images": {"images": {"width": 224, "height": 224}},
    "extra_models": {"extra_models": [{"role": "teacher", "model": MODEL}]},
    "attention": {"attention": "flash", "padded": True},
    "sft_term": {"sft_term": True, "pair_pass": "gradcache"},
    "quantization": {"quantization": "int8", "lora": {"r": 8}},
    "logits_dtype": {"method": "dpo", "trainer": "llamafactory", "logits_dtype": "bf16"},
    "recompute_loss": {"method": "online-dpo", "trainer": "trl", "recompute_loss": True},
}

LOOPED = {"model": "qwen3-30b-a3b", "method": "sft", "trainer_version": "4.53", "lora": {"targets": ["q_proj"]}}
LOOPED["trainer"] = "transformers"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"method": "dpo", "loss_head": "fused", "pair_pass": "split"},
            "loss_head: fused is not traced with pair_pass",
        ),
        (
            {"model": "idefics2-8b", "attention": "flash", "images": {"width": 500, "height": 1000}},
            "flash removes padding, of text or images",
        ),
        ({"attention": "flash", "precision": "fp32"}, "attention: flash has no kernels for fp32"),
        (LOOPED, "experts ran one by one"),
    ],
)
def test_what_runs_no_such_code_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        check(resolve(read_job({"model": MODEL, **keys})))


TOWER = {"model": "qwen2.5-vl-3b", "trainer": "pytorch", "num_gpus": 2}
SHARDED: dict[str, dict[str, Any]] = {
    "optimizer": {"optimizer": "adafactor"},
    "lora.bias": {"model": "qwen2.5-0.5b", "precision": "bf16", "lora": {"bias": "all"}},
    "lora.modules_to_save": {"trainer": "transformers", "lora": {"modules_to_save": ["lm_head"]}},
    "images": TOWER
    | {"gradient_accumulation_steps": 2, "sync_each_batch": False, "reduce_dtype": "fp32", "precision": "bf16"},
    "gradient_checkpointing": {"model": "mixtral-8x7b", "gradient_checkpointing": "selective"},
    "lora.dtype": {"precision": "bf16-amp", "method": "dpo", "lora": {"r": 8}, "reference": "adapter"},
    "reshard_after_forward": {"num_gpus": 4, "method": "dpo", "lora": {"r": 8}, "reshard_after_forward": 2},
}
"""What torch cannot run on FSDP2's shards, by the key."""


@pytest.mark.parametrize("key", SHARDED)
def test_what_fsdp2_cannot_run_is_refused_by_its_key(key: str) -> None:
    job = {"model": MODEL, "trainer": "pytorch", "method": "sft", "sharding": "fsdp2", "num_gpus": 2, **SHARDED[key]}
    with pytest.raises(InvalidJob) as refused:
        trace(job)
    assert refused.value.message.startswith(f"{key}: ")
    assert refused.value.hint
    if key == "reshard_after_forward":
        assert refused.value.message in str(resolve(read_job(job)).provenance.warnings)
    elif key not in ("optimizer", "lora.dtype"):
        assert f"{key}: torch stops at this job" in str(resolve(read_job(job)).provenance.warnings)


FULL: dict[str, Any] = {"gradient_checkpointing": "full"}
REENTRANT: dict[str, Any] = {**FULL, "gradient_checkpointing_reentrant": True}
WAITS: dict[str, Any] = {"gradient_accumulation_steps": 2, "sync_each_batch": False}


@pytest.mark.parametrize(
    "job",
    [
        {**TOWER, "sharding": "ddp"},
        {"model": MODEL, "num_gpus": 2, "trainer": "trl", "trainer_version": "0.24", "lora": {"r": 8}, **FULL},
        {"model": MODEL, "num_gpus": 2, "method": "dpo", "pair_pass": "two-forward", **REENTRANT},
        {"model": MODEL, "num_gpus": 2, "ddp": {"static_graph": True}, **WAITS},
        {"model": MODEL, "num_gpus": 2, "sharding": "fsdp", "trainer": "pytorch", "freeze": ["embed_tokens"]},
    ],
)
def test_what_ddp_and_fsdp1_cannot_run_is_refused(job: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"ready only once|uniform|prior iteration|INTERNAL ASSERT"):
        check(resolve(read_job(job)))


@pytest.mark.parametrize(
    "job",
    [
        {**TOWER, "sharding": "ddp", "ddp": {"find_unused_parameters": True}},
        {**TOWER, "sharding": "ddp", "freeze": ["visual", "multi_modal_projector"]},
        {**TOWER, "sharding": "ddp", "trainer": "trl", **FULL},
        {"model": MODEL, "num_gpus": 2, "trainer": "trl", "trainer_version": "0.24", **FULL},
        {"model": MODEL, "num_gpus": 2, "trainer": "llamafactory", "lora": {"r": 8}, **REENTRANT},
        {"model": MODEL, "num_gpus": 2, "method": "dpo", "pair_pass": "two-forward", "lora": {"r": 8}, **REENTRANT},
    ],
)
def test_what_ddp_can_run_is_not(job: dict[str, Any]) -> None:
    assert not list(stops(resolve(read_job(job))))


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_several_gpus_are_let_through(sharding: str) -> None:
    check(resolve(read_job({"model": MODEL, "trainer": "pytorch", "sharding": sharding, "num_gpus": 2})))


@pytest.mark.parametrize("key", REFUSED)
def test_what_cannot_be_traced_is_refused_by_its_key(key: str) -> None:
    job: dict[str, Any] = {"model": MODEL, "method": "simpo", **REFUSED[key]}
    with pytest.raises(InvalidJob) as refused:
        trace(job)
    assert refused.value.message.startswith(f"{key}: ")
    assert refused.value.hint


def test_a_size_alone_is_no_model() -> None:
    with pytest.raises(InvalidJob, match="no model to trace"):
        trace({"total_params": "1B"})


def test_without_a_compiler_autocast_and_experts_are_refused_with_the_reason() -> None:
    plain = resolve(read_job({"model": MODEL}))
    check_fallback(plain, "no compiler")
    for job in ({"model": MODEL, "autocast": True}, {"model": "qwen3-30b-a3b"}):
        with pytest.raises(InvalidJob, match="no compiler") as refused:
            check_fallback(resolve(read_job(job)), "no compiler")
        assert "C++ compiler" in refused.value.hint


def test_the_raw_config_of_every_way_to_name_a_model(tmp_path: Any) -> None:
    import json

    config = model_config(MODEL)
    assert config["model_type"] == "llama"
    assert model_config("HuggingFaceTB/SmolLM2-135M") == config
    assert model_config(config) == config
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_config(str(tmp_path)) == model_config(str(tmp_path / "config.json")) == config
    assert load_model(config).params == load_model(MODEL).params


def test_a_cpu_is_not_asked_for_minutes_unless_it_is_meant_to() -> None:
    from memplan.trace.measure import _check_patience

    recipe = resolve(read_job({"model": "smollm2-135m", "method": "sft", "sequence_length": 256}))
    with pytest.raises(UsageError, match=r"on the CPU, in half precision it takes some \d+ minutes") as refused:
        _check_patience(recipe, 3, cpu=False)
    assert "--cpu" in refused.value.hint
    _check_patience(recipe, 3, cpu=True)
    _check_patience(recipe.varied({"numerics.itemsize": 4}), 3, cpu=False)
