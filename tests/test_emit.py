"""Proves that what is emitted is the job: files read back make the same recipe, for presets and for drawn jobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Run, runner_of
from drawing import examples
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.emit.read_back import QUIET
from memplan.frameworks.emit.writing import emit, write_files
from memplan.frameworks.reading import read_target
from memplan.frameworks.registry import find_framework, frameworks
from memplan.jobs import job_names
from memplan.jobs import read_target as read_own
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

SMALL = "smollm2-135m"
WRITERS = [name for name, row in frameworks().items() if row.write]
CANNOT = {("trl", "safe-mm-dpo-mistral-7b-8x64gb"): "pair_pass: two-forward cannot be said to TRL"}
"""What a framework has no words for, and what is said of it."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


def felt(recipe: Recipe, same_model: Callable[[Any], Any] | None = None) -> dict[str, Any]:
    """What a recipe says of memory; the model by what a framework's arguments describe of it."""
    quiet = (*QUIET, "sharding.deepspeed", *(("operators.attention",) if recipe.in_megatron else ()))  # as TE runs it
    found = {name: value for name, value in recipe.flat().items() if not name.startswith(quiet)}
    if recipe.generator is not None:  # its group is of the batch, where the job says it, and of time alone
        found["generator"] = recipe.generator._replace(group=1)
    return found | ({"model": same_model(recipe.model)} if same_model else {})


def read_again(folder: Path, main_file: str, **options: Any) -> Recipe:
    """The recipe of emitted files, read as a user would name them."""
    beside = [str(path) for path in [folder / "accelerate.yaml"] if path.exists() and path.name != main_file]
    return resolve(read_target(str(folder / main_file), options, beside))


@pytest.mark.slow
@pytest.mark.parametrize("name", job_names())
def test_every_preset_job_comes_back_from_trl(name: str, tmp_path: Path) -> None:
    asked = read_own(name, {"trainer": "trl"})
    if ("trl", name) in CANNOT:
        with pytest.raises(InvalidJob, match=CANNOT["trl", name]):
            emit(asked, find_framework("trl"))
        return
    found = emit(asked, find_framework("trl"))
    write_files(found.texts, str(tmp_path), False)
    again = read_again(tmp_path, "train.yaml", gpu=asked.job.gpu, gpus_per_node=asked.job.gpus_per_node)
    assert felt(again) == felt(resolve(asked))


@pytest.mark.slow
@pytest.mark.parametrize("name", job_names())
def test_every_preset_job_comes_back_from_accelerate(name: str) -> None:
    """Reading back is part of writing: a job that does not come back is refused."""
    texts = emit(read_own(name, {}), find_framework("accelerate")).texts
    assert yaml.safe_load(texts["accelerate.yaml"])["num_processes"] == read_own(name, {}).job.num_gpus


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpo-70b-4nodes", "orpo-qwen2.5-7b-4xh100", "simpo-8b-8xh100"])
def test_zero_jobs_come_back_from_deepspeed(name: str) -> None:
    asked = read_own(name, {})
    values = json.loads(emit(asked, find_framework("deepspeed")).texts["deepspeed.json"])
    assert values["train_micro_batch_size_per_gpu"] == asked.job.batch_size
    assert f"zero{values['zero_optimization']['stage']}" == asked.job.sharding
    assert "auto" not in str(values)


LORA = st.fixed_dictionaries(
    {"r": st.sampled_from([4, 16]), "dropout": st.sampled_from([0.0, 0.1])},
    optional={
        "targets": st.sampled_from(["all-linear", ["q_proj", "v_proj"]]),
        "dora": st.booleans(),
        "rslora": st.booleans(),
    },
)
OF_TRL = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["sft", "reward", "dpo", "ipo", "kto", "orpo", "cpo", "simpo", "grpo", "rloo"]),
        "batch_size": st.integers(1, 8),
        "gradient_accumulation_steps": st.sampled_from([1, 2, 16]),
        "sequence_length": st.sampled_from([128, 1000]),
        "gradient_checkpointing": st.sampled_from(["none", "full"]),
    },
    optional={
        "precision": st.sampled_from(["fp32", "bf16", "bf16-amp", "fp16-amp"]),
        "optimizer": st.sampled_from(["adamw", "adafactor", "sgd", "lion", "adamw-8bit", "paged-adamw-8bit"]),
        "attention": st.sampled_from(["sdpa", "flash", "eager"]),
        "lora": LORA,
        "quantization": st.sampled_from(["nf4", "nf4-double", "fp4", "int8"]),
        "gradient_checkpointing_reentrant": st.booleans(),
        "num_gpus": st.sampled_from([1, 4, 16]),
        "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3", "fsdp2"]),
        "kernels": st.just("liger"),
        "padded": st.booleans(),
    },
)
"""Jobs that TRL's files have words for."""


@examples(60, suppress_health_check=list(HealthCheck))
@given(keys=OF_TRL)
def test_drawn_jobs_of_trl_come_back(keys: dict[str, Any]) -> None:
    asked = read_job({"model": SMALL, "trainer": "trl", **keys})
    job = asked.job
    assume(job.sharding != "ddp" or job.num_gpus > 1)  # accelerate starts no DDP of one process
    sharded = (job.sharding or "").startswith(("zero", "fsdp"))
    assume(not sharded or job.precision in ("auto", "fp32"))  # DeepSpeed and FSDP store as they do
    try:
        resolve(asked)
    except MemplanError:
        assume(False)
    found = emit(asked, find_framework("trl"))
    assert set(found.texts) >= {"train.yaml", "accelerate.yaml", "run.sh"}


@examples(40, suppress_health_check=list(HealthCheck))
@given(keys=OF_TRL, framework=st.sampled_from(WRITERS), more=st.sampled_from(
    [{}, {"reference": "resident"}, {"pair_pass": "two-forward"}, {"grad_dtype": "fp32"}, {"optimizer": "muon"},
     {"gradient_checkpointing": "every:2"}, {"loss_head": "log-softmax"}, {"offload": ["activations"]}]
))  # fmt: skip
def test_what_cannot_be_said_is_an_error_and_never_dropped(
    keys: dict[str, Any], framework: str, more: dict[str, Any]
) -> None:
    """Whatever is emitted reads back as the job, by this test's own comparison; the rest is refused."""
    row = find_framework(framework)
    try:
        asked = read_job({"model": SMALL, **({"trainer": row.trainer} if row.trainer else {}), **keys, **more})
        found = emit(asked, row)
    except MemplanError:
        return
    again = resolve(found.read_back(found.given.job))
    assert felt(again, row.same_model) == felt(resolve(found.given), row.same_model)


@pytest.mark.slow
def test_the_files_of_a_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, _, told = run("emit", "trl", "dpo-lora-24gb", "-o", str(folder))
    assert code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["accelerate.yaml", "run.sh", "train.yaml"]
    assert "wrote" in told
    text = (folder / "train.yaml").read_text()
    assert "memplan expects" in text
    assert "dataset_name: DATASET  # FILL IN" in text
    code, _, told = run("emit", "trl", "dpo-lora-24gb", "-o", str(folder))
    assert code == 2
    assert "--force" in told
    assert run("emit", "trl", "dpo-lora-24gb", "-o", str(folder), "--force")[0] == 0


@pytest.mark.slow
def test_the_environment_is_emitted(run: Run) -> None:
    code, out, _ = run("emit", "trl", "reward-mistral-7b-lora-8x64gb", "--trainer", "trl")
    assert code == 0
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in out


@pytest.mark.slow
def test_every_setting_of_the_allocator_is_emitted(run: Run) -> None:
    given = ("--set", "allocator.roundup_power2_divisions=[64:8,>:4]", "--set", "allocator.max_split_size_mb=128")
    code, out, _ = run("emit", "trl", "reward-mistral-7b-lora-8x64gb", "--trainer", "trl", *given)
    assert code == 0
    said = "expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:[64:8,>:4]"
    assert f"export PYTORCH_CUDA_ALLOC_CONF='{said}'" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("emit",), "emit for which framework?"),
        (("emit", "trll", "dpo-lora-24gb"), "did you mean trl"),
        (("emit", "trl", "simpo-8b-8xh100"), "add --trainer trl"),
        (("emit", "trl", "dpo-lora-24gb", "--total-params", "8B"), "total_params"),
        (("emit", "deepspeed", "dpo-lora-24gb"), "sharding: none is not what DeepSpeed runs"),
        (("emit", "trl", "dpo-lora-24gb", "--reference", "resident"), "reference: resident cannot be said to TRL"),
        (("emit", "transformers", "dpo-lora-24gb", "--trainer", "transformers"), "has no dpo"),
    ],
)
def test_what_cannot_be_emitted(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, told = run(*arguments)
    assert (code, out) == (2, "")
    assert said in told


@pytest.mark.slow
def test_a_plan_and_a_report_are_jobs_too(run: Run, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert run("estimate", "simpo-8b-8xh100", "--json", "-o", str(report))[0] == 0
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"schema_version": 1, "plans": [{"job": json.loads(report.read_text())["job"]}]}))
    texts = [run("emit", "deepspeed", str(path)) for path in (report, plan)]
    assert texts[0] == texts[1]
    assert '"stage": 3' in texts[0][1]


MINE = """# my DPO run, v7 (do not lose this)
model_name_or_path: HuggingFaceTB/SmolLM2-135M   # the base
dataset_name: trl-lib/ultrafeedback_binarized

# --- batch
per_device_train_batch_size: 8     # was 4
gradient_accumulation_steps: 2
loss_type:
  - sigmoid
# --- memory
gradient_checkpointing: false
max_length: 2048
output_dir: out # end
"""


@pytest.mark.slow
def test_onto_a_file_only_what_differs_changes(run: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(MINE)
    job = ("--method", "dpo", "--trainer", "trl", "--batch-size", "2", "--gradient-accumulation-steps", "8")
    asked = ("emit", "trl", SMALL, *job, "--gradient-checkpointing", "--lora-r", "16", "--onto", str(mine))
    code, out, _ = run(*asked)
    assert code == 0
    assert mine.read_text() == MINE, "without --force the difference is shown, and nothing is written"
    assert run(*asked, "--force")[0] == 0
    before, after = MINE.splitlines(), mine.read_text().splitlines()
    gone = [line for line in before if line not in after]
    new = [line for line in after if line not in before]
    assert gone == [
        "per_device_train_batch_size: 8     # was 4",
        "gradient_accumulation_steps: 2",
        "gradient_checkpointing: false",
    ]
    assert new[:3] == [
        "per_device_train_batch_size: 2     # was 4",
        "gradient_accumulation_steps: 8",
        "gradient_checkpointing: true",
    ]
    assert {line.partition(":")[0] for line in new[3:]} == {"use_peft", "lora_dropout", "lora_target_modules"}
    assert all(f"-{line}" in out for line in gone)
    assert "says this job already" in run(*asked)[1]


def test_a_refusal_of_onto_names_the_user_s_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 1}')
    code, _, err = run("emit", "trl", "smollm2-135m", "--method", "sft", "--onto", str(file))
    assert code == 2
    assert "train_micro_batch_size_per_gpu (ds.json, line 2)" in err.replace(str(file), "ds.json")
    assert "memplan-" not in err


@pytest.mark.slow
def test_onto_keeps_nested_settings_and_another_s_file_is_refused(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "acc.yaml"
    config.write_text(
        "distributed_type: FSDP # how\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true # z3\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nmixed_precision: bf16\nnum_processes: 8 # GPUs\n"
    )
    job = (SMALL, "--method", "sft", "--trainer", "trl", "--sharding", "fsdp2", "--num-gpus", "4")
    code, _, told = run("emit", "accelerate", *job, "--no-reshard-after-forward", "--onto", str(config), "--force")
    assert code == 0, told
    text = config.read_text()
    assert "  fsdp_reshard_after_forward: false # z3\n" in text
    assert text.endswith("num_processes: 4 # GPUs\n")
    code, _, told = run(
        "emit", "trl", SMALL, "--method", "sft", "--trainer", "trl", "--onto", str(tmp_path / "no.yaml")
    )
    assert code == 2
    assert "does not exist" in told


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"quantization": "nf4"}, "bfloat16"),
        ({"quantization": "nf4", "precision": "bf16-amp"}, "float32"),
        ({"quantization": "nf4", "dtype": "bf16"}, "bfloat16"),
        ({"quantization": "nf4", "sharding": "fsdp2", "num_gpus": 2, "gpus_per_node": 2}, "bfloat16"),
        ({"quantization": "int8"}, "float32"),
        ({}, "float32"),
    ],
    ids=str,
)
def test_a_base_of_four_bits_computes_in_what_is_written(keys: dict[str, Any], dtype: str) -> None:
    """TRL hands ``dtype`` on to bitsandbytes: fp32 stands beside ``load_in_4bit`` where somebody asked for it alone."""
    job = {"model": "smollm2-135m", "method": "dpo", "trainer": "trl", "lora": {"r": 8}, **keys}
    found = emit(read_job(job), find_framework("trl"))
    assert yaml.safe_load(found.texts["train.yaml"])["dtype"] == dtype
    unsaid = keys.get("quantization") == "nf4" and {"dtype", "precision"}.isdisjoint(keys)
    assert any("4-bit base" in text for text in found.report.warnings) == unsaid


def test_a_reward_model_s_engine_comes_back_from_verl() -> None:
    scored = {"role": "reward", "model": "qwen2.5-0.5b", "rollout": {"engine": "vllm", "gpu_memory_utilization": 0.2}}
    keys = {"model": "qwen2.5-0.5b", "method": "ppo", "gpu": "h100-80gb", "num_gpus": 8, "global_batch_size": 64}
    keys |= {"sequence_length": 512, "completion_length": 256, "extra_models": [scored], "rollout": {"engine": "vllm"}}
    made = emit(read_job({**keys, "trainer": "verl", "sharding": "fsdp"}), find_framework("verl"))
    assert "enable_resource_pool: false" in made.texts["verl.yaml"]
    beside = {"rollout": {"engine": "vllm", "placement": "colocate", "gpu_memory_utilization": 0.4}}
    other = read_job({**keys, **beside, "trainer": "openrlhf", "zero_stage": 3})
    with pytest.raises(InvalidJob, match=r"rollout.scorer: vllm cannot be said to OpenRLHF"):
        emit(other, find_framework("openrlhf"))
