"""Proves what is read of the files of TRL, transformers, accelerate and DeepSpeed, and where each value came from."""

import json
from pathlib import Path
from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.commands.launch import launches
from memplan.frameworks.files.documents import document_of
from memplan.frameworks.reading import draft_of, read_target
from memplan.frameworks.registry import frameworks, recognise
from memplan.frameworks.trl.keys import METHODS
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.reading import JobInput

DPO = """# trl dpo --config train.yaml
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/ultrafeedback_binarized
per_device_train_batch_size: 2
beta: 0.1
max_length: 1500
learning_rate: 5.0e-7
"""
ZERO3 = """distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
mixed_precision: bf16
num_processes: 8
"""
FSDP2 = """distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, fsdp_reshard_after_forward: false}
mixed_precision: bf16
num_processes: 4
"""


def read(tmp_path: Path, *texts: str, **options: Any) -> JobInput:
    """The job of files: the first is MODEL, the others stand beside it."""
    paths = []
    for number, text in enumerate(texts):
        command = text.startswith("#!") or (not text.startswith("#") and "--" in text.partition("\n")[0])
        form = "sh" if command else "json" if text.startswith("{") else "yaml"
        path = tmp_path / f"file{number}.{form}"
        path.write_text(text, encoding="utf-8")
        paths.append(str(path))
    return read_target(paths[0], options, paths[1:])


def values(given: JobInput) -> dict[str, Any]:
    """What was set, without what is as a job's default."""
    return given.job.model_dump(exclude_unset=True, mode="json")


def test_a_trl_file_and_where_each_key_came_from(tmp_path: Path) -> None:
    given = read(tmp_path, DPO, model="smollm2-135m")
    job = given.job
    assert (job.method, job.trainer, job.batch_size, job.sequence_length) == ("dpo", "trl", 2, 1500)
    assert given.sources["batch_size"] == "file"
    assert given.origins["batch_size"].endswith("file0.yaml, line 4: per_device_train_batch_size")
    assert given.sources["gradient_checkpointing"] == "trainer"
    assert given.origins["gradient_checkpointing"] == "TRL 1.16: gradient_checkpointing true; until 0.21 false"
    assert given.sources["num_gpus"] == "default"
    assert "add --num-gpus" in given.origins["num_gpus"]
    assert given.sources["model"] == "option"
    assert not given.warnings
    recipe = resolve(given)
    assert recipe.storage.precision.name == "bf16-amp", "TRL loads fp32 and trains under autocast"
    assert recipe.provenance.sources["batch_size"] == "file"
    assert any("TRL 1.16: optim adamw_torch_fused" in text for text in recipe.provenance.assumptions)


@pytest.mark.parametrize("method", METHODS)
def test_every_trainer_of_trl_by_its_command(method: str, tmp_path: Path) -> None:
    script = {"cpo": "cpo.py", "simpo": "cpo.py", "orpo": "orpo.py", "online-dpo": "online_dpo.py", "ppo": "ppo.py"}
    words = script.get(method, "gkd.py" if method == "distill" else f"trl {method}")
    start = f"accelerate launch --num_processes 2 examples/scripts/{words}" if words.endswith(".py") else words
    more = " --loss_type simpo" if method == "simpo" else ""
    given = read(tmp_path, f"{start} --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x{more}\n")
    assert given.job.method == method
    assert given.job.num_gpus == (2 if words.endswith(".py") else 1)


def test_trl_versions_have_their_own_defaults(tmp_path: Path) -> None:
    new, old = read(tmp_path, DPO), read(tmp_path, DPO, trainer_version="0.19")
    assert (new.job.gradient_checkpointing, old.job.gradient_checkpointing) == ("full", "none")
    assert resolve(old._replace(job=old.job.model_copy(update={"model": "smollm2-135m"}))).checkpointing.layers is False


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dtype: bfloat16", {"precision": "bf16", "autocast": True}),
        ("dtype: bfloat16\nbf16: false", {"precision": "bf16", "autocast": False}),
        ("bf16: false", {"precision": "fp32"}),
        ("fp16: true", {"precision": "fp16-amp"}),
        ("model_init_kwargs: {dtype: bfloat16, attn_implementation: flash_attention_2}", {"attention": "flash"}),
        (
            "model_init_kwargs: {dtype: bfloat16, attn_implementation: kernels-community/vllm-flash-attn3}",
            {"attention": "flash", "flash_version": 3},
        ),
        ("optim: paged_adamw_8bit", {"optimizer": "paged-adamw-8bit"}),
        ("optim: galore_adamw\noptim_args: rank=64, update_proj_gap=100", {"optimizer_args": {"rank": 64}}),
        ("use_peft: true", {"lora": {"r": 16, "alpha": 32.0, "dropout": 0.05}}),
        ("use_peft: true\nlora_target_modules: all-linear", {"lora": {"targets": "all-linear"}}),
        ("use_peft: true\nload_in_4bit: true\nuse_bnb_nested_quant: true", {"quantization": "nf4-double"}),
        ("loss_type: [ipo]", {"method": "ipo"}),
        ("loss_type: [sigmoid, sft]", {"method": "dpo", "sft_term": True}),
        ("precompute_ref_log_probs: true", {"reference": "precomputed"}),
        ("gradient_checkpointing: false", {"gradient_checkpointing": "none"}),
        ("gradient_checkpointing_kwargs: {use_reentrant: true}", {"gradient_checkpointing_reentrant": True}),
        ("torch_compile: true\nuse_liger_kernel: true", {"compile": True, "kernels": "liger"}),
        ("activation_offloading: true", {"offload": ["activations"]}),
        ("eval_strategy: steps\nper_device_eval_batch_size: 3", {"eval_batch_size": 3}),
        ("env: {PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:True'}", {"allocator": {"expandable_segments": True}}),
        ("env: {PYTORCH_ALLOC_CONF: 'max_split_size_mb:128'}", {"allocator": {"max_split_size_mb": 128}}),
        ("accelerator_config: {gradient_accumulation_kwargs: {sync_each_batch: true}}", {"sync_each_batch": True}),
    ],
)
def test_trl_settings(line: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = values(read(tmp_path, f"{DPO}{line}\n"))
    for key, value in expected.items():
        inner = found[key]
        assert ({k: inner[k] for k in value} if isinstance(value, dict) else inner) == value


def test_grpo_has_lengths_groups_and_a_reference_by_its_beta(tmp_path: Path) -> None:
    text = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x"
    given = read(tmp_path, text)
    assert values(given)["rollout"] == {"group_size": 8}
    assert (given.job.sequence_length, given.job.completion_length, given.job.reference) == (1024, 512, "none")
    assert "add --sequence-length" in given.origins["sequence_length"]
    assert read(tmp_path, f"{text} --beta 0.04").job.reference == "resident"
    assert read(tmp_path, f"{text} --beta 0.04 --use_peft").job.reference == "adapter"
    vllm = read(tmp_path, f"{text} --use_vllm")
    assert vllm.job.rollout is not None
    assert getattr(vllm.job.rollout, "engine", None) or "use_vllm is not counted" in " ".join(vllm.warnings)


def test_zero_and_accelerate_join_a_trainer_s_file(tmp_path: Path) -> None:
    given = read(tmp_path, DPO, ZERO3, model="smollm2-135m")
    recipe = resolve(given)
    assert (recipe.sharding.name, recipe.sharding.ranks, recipe.storage.precision.name) == ("zero3", 8, "bf16-master")
    assert recipe.sharding.deepspeed.reduce_bucket_size == 500_000_000, (
        "accelerate's plugin leaves DeepSpeed's own default"
    )
    assert given.origins["num_gpus"].endswith("file1.yaml, line 5: num_processes")


def test_fsdp2_of_accelerate(tmp_path: Path) -> None:
    recipe = resolve(read(tmp_path, DPO, FSDP2, model="smollm2-135m"))
    assert (recipe.sharding.name, recipe.sharding.ranks, recipe.sharding.reshard_after_forward) == ("fsdp2", 4, False)


@pytest.mark.parametrize(("config", "key", "how"), [(FSDP2, "cp", "ring"), (ZERO3, "sp", "Ulysses"), (FSDP2, "sp", "")])
def test_sequences_that_accelerate_shares(tmp_path: Path, config: str, key: str, how: str) -> None:
    shared = f"{config}parallelism_config:\n  parallelism_config_dp_shard_size: 2\n  parallelism_config_{key}_size: 2\n"
    given = read(
        tmp_path,
        "# trl sft\ndataset_name: x\nmax_length: 512\n",
        shared,
        model="smollm2-1.7b",
        method="sft",
        trainer="trl",
    )
    assert given.job.context_parallel == (2 if how else 1)
    assert any(how in text for text in resolve(given).provenance.assumptions) if how else given.unread


def test_a_deepspeed_file_has_its_own_defaults_and_auto_is_the_trainer_s(tmp_path: Path) -> None:
    zero: dict[str, Any] = {"stage": 2, "reduce_bucket_size": "auto"}
    config = {"zero_optimization": zero, "bf16": {"enabled": "auto"}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    given = read(tmp_path, DPO + "deepspeed: ds.json\n", model="smollm2-135m", num_gpus=2)
    recipe = resolve(given)
    assert (recipe.sharding.name, recipe.storage.precision.name) == ("zero2", "bf16-master")
    assert recipe.sharding.deepspeed.reduce_bucket_size == recipe.model.hidden_size**2
    zero.pop("reduce_bucket_size")
    zero["offload_optimizer"] = {"device": "cpu"}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    recipe = resolve(read(tmp_path, DPO + "deepspeed: ds.json\n", model="smollm2-135m", num_gpus=2))
    assert recipe.sharding.deepspeed.reduce_bucket_size == 500_000_000
    assert recipe.sharding.deepspeed.optimizer.device == "cpu"


def test_a_launch_line_names_its_config_and_its_script(tmp_path: Path) -> None:
    (tmp_path / "zero3.yaml").write_text(ZERO3)
    script = """#!/bin/bash
#SBATCH --gpus=4
MODEL="Qwen/Qwen2.5-0.5B"
export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True,roundup_power2_divisions:[64:8,>:4],backend:cudaMallocAsync'
accelerate launch --config_file=zero3.yaml --num_processes 4 \\
    examples/scripts/dpo.py \\
    --model_name_or_path $MODEL --dataset_name x \\
    # a remark in between
    --no_gradient_checkpointing \\
    --per_device_train_batch_size 1 --lora_target_modules q_proj v_proj --use_peft
"""
    given = read(tmp_path, script)
    job = given.job
    assert (job.model, job.num_gpus, job.sharding) == ("Qwen/Qwen2.5-0.5B", 4, "zero3")
    assert (job.gradient_checkpointing, job.batch_size) == ("none", 1)
    assert job.lora is not None
    assert job.lora.targets == ("q_proj", "v_proj")
    assert (job.allocator.expandable_segments, job.allocator.roundup_power2_divisions) == (True, "[64:8,>:4]")
    assert [row.key for row in given.unread if "backend:cudaMallocAsync" in row.why] == ["PYTORCH_CUDA_ALLOC_CONF"]
    assert given.origins["batch_size"].endswith("line 10: per_device_train_batch_size")


def test_a_command_line_is_read_as_text() -> None:
    given = read_target("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 256", {"num_gpus": 1})
    assert (given.job.method, given.job.sequence_length) == ("sft", 256)


def test_trl_s_built_in_accelerate_configs() -> None:
    given = read_target(
        "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --accelerate_config zero2 --num_processes 2", {}
    )
    assert (given.job.sharding, given.job.num_gpus) == ("zero2", 2)


def test_a_path_that_says_the_method_is_an_assumption(tmp_path: Path) -> None:
    folder = tmp_path / "zephyr" / "orpo"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_mixer: {a: 1.0}\nbeta: 0.1\n")
    given = read_target(str(folder / "config.yaml"), {})
    assert given.job.method == "orpo"
    assert given.sources["method"] == "default"
    assert any(text.startswith("method: orpo (the file's path says it") for text in given.assumptions)


def test_what_a_project_is_called_is_no_path_that_says_the_method(tmp_path: Path) -> None:
    (tmp_path / "orpo-lab" / "configs").mkdir(parents=True)
    (tmp_path / "orpo-lab" / "pyproject.toml").write_text("")
    config = tmp_path / "orpo-lab" / "configs" / "config.yaml"
    config.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_mixer: {a: 1.0}\nbeta: 0.1\n")
    with pytest.raises(InvalidJob, match="nothing says which of TRL's trainers"):
        read_target(str(config), {})


def test_the_simpo_repository_has_a_trainer_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "simpo.yaml"
    config.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\ntorch_dtype: null\ngamma_beta_ratio: 0.3\nsft_weight: 0.0\nbf16: true\n"
        "dataset_mixer: {a: 1.0}\nper_device_train_batch_size: 2\ngradient_checkpointing: true\nmax_length: 2048\n"
    )
    job = read(
        tmp_path, f"#!/bin/sh\naccelerate launch --num_processes 4 scripts/run_simpo.py {config} --max_length=512\n"
    ).job
    assert (job.trainer, job.method, job.sequence_length, job.batch_size) == ("simpo-repo", "simpo", 512, 2)
    assert (job.num_gpus, job.precision, job.sft_term) == (4, "bf16-amp", False)
    of_trl = read(tmp_path, f"#!/bin/sh\naccelerate launch scripts/run_alpha_dpo.py {config}\n").job
    assert (of_trl.trainer, of_trl.method) == ("trl", "dpo"), "AlphaDPOTrainer, with a key of SimPO's"


def test_training_arguments_alone_need_a_model(tmp_path: Path) -> None:
    text = json.dumps({"output_dir": "x", "per_device_train_batch_size": 4, "bf16": True, "num_train_epochs": 1})
    given = read(tmp_path, text, model="smollm2-135m", sequence_length=512)
    recipe = resolve(given)
    assert (recipe.trainer.name, recipe.batch.size, recipe.storage.precision.name) == ("transformers", 4, "bf16")
    assert recipe.numerics.autocast
    assert recipe.optimizer.implementation == "fused"


def test_torchrun_says_how_many_gpus(tmp_path: Path) -> None:
    text = (
        "torchrun --nproc_per_node 4 --nnodes=2 run_clm.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--per_device_train_batch_size 2 --output_dir x --fsdp full_shard --bf16\n"
    )
    job = read(tmp_path, text).job
    assert (job.num_gpus, job.gpus_per_node, job.sharding) == (8, 4, "fsdp2")


def test_keys_that_bear_and_are_not_understood_are_named(tmp_path: Path) -> None:
    given = read(tmp_path, DPO + "loss_funnel: 3\noptim: grokadamw\nrun_name: x\nlogging_steps: 1\n")
    assert [text.partition(" is not counted")[0].rpartition(" ")[2] for text in given.warnings] == [
        "optim",
        "loss_funnel",
        "own",
    ]
    assert "counted as one without settings of its own" in given.warnings[-1]
    assert "line 8: loss_funnel is not counted: not understood" in " ".join(given.warnings)


def test_an_option_is_stronger_than_any_file(tmp_path: Path) -> None:
    given = read(tmp_path, DPO, ZERO3, zero_stage=1, num_gpus=2, batch_size=5, model="smollm2-135m")
    recipe = resolve(given)
    assert (recipe.sharding.name, recipe.sharding.ranks, recipe.batch.size) == ("zero1", 2, 5)
    assert given.sources["batch_size"] == "option"


def test_a_memplan_job_may_stand_beside_an_accelerate_config(tmp_path: Path) -> None:
    given = read(tmp_path, "model: smollm2-135m\nmethod: sft\ntrainer: trl\nbatch_size: 3\n", FSDP2)
    assert (given.job.method, given.job.batch_size, given.job.sharding, given.job.num_gpus) == ("sft", 3, "fsdp2", 4)


@pytest.mark.parametrize(
    "text",
    [
        "model: smollm2-135m\nbatch_size: 2\ngradient_accumulation_steps: 8\nmax_length: 512\nuse_lora: true\n",
        "model: smollm2-135m\nbatch_size: 2\nlora: {r: 16, alpha: 32, dropout: 0.1}\nlearning_rate: 1.0e-5\n",
        "model_name_or_path: smollm2-135m\nmethod: dpo\nsequence_length: 512\noutput_dir: x\n",
    ],
)
def test_a_job_s_own_fragments_are_read_as_they_stand(text: str, tmp_path: Path) -> None:
    given = read(tmp_path, text)
    assert given.job.model == "smollm2-135m"
    assert given.job.trainer == "pytorch"


def test_two_files_that_disagree(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match=r"file1.json, line 1: train_micro.* says batch_size 4, and .*line 4"):
        read(tmp_path, DPO, '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}')


def test_every_framework_is_found_and_knows_its_own() -> None:
    assert {"trl", "transformers", "accelerate", "deepspeed", "memplan"} <= set(frameworks())
    for name, text, form in (
        ("trl", DPO, "yaml"),
        ("accelerate", ZERO3, "yaml"),
        ("deepspeed", '{"zero_optimization": {}}', "json"),
        ("transformers", "output_dir: x\nper_device_train_batch_size: 1\n", "yaml"),
        ("memplan", "batch_size: 1\n", "yaml"),
    ):
        row = recognise(document_of(text, "f", form))
        assert row is not None
        assert row.name == name
    assert recognise(document_of("services: {}\nvolumes: {}\n", "f", "yaml")) is None


def test_sources_of_every_key_are_said(tmp_path: Path) -> None:
    """A key of the job is from an option, a file, the framework's default, or assumed: nothing else."""
    given = read(tmp_path, DPO, ZERO3)
    assert set(given.sources) == given.job.model_fields_set
    assert set(given.sources.values()) <= {"option", "file", "trainer", "default"}
    assert set(given.origins) | {key for key, at in given.sources.items() if at == "option"} == set(given.sources)
    assert given.job.model_fields_set <= set(Job.model_fields)


def test_a_script_is_split_into_commands_with_lines() -> None:
    text = "A=1 B='x y' python -m torch.distributed.run --nproc_per_node=2 train.py --c \"d e\" && echo done\n"
    found = [launch for launch in launches(document_of(text, "s", "shell")) if launch.launcher]
    assert len(found) == 1
    assert (found[0].launcher, found[0].program) == ("torchrun", "train.py")
    assert found[0].arguments().values == {"c": "d e"}
    assert found[0].command.environment == {"A": "1", "B": "x y"}


def test_a_module_may_stand_behind_the_launcher_s_options() -> None:
    text = "accelerate launch -m --config_file a/zero2.yaml --num_processes 2 trainer.grpo --beta 0.0"
    launch = next(launches(document_of(text, "s", "shell")))
    assert (launch.program, launch.options.values["config_file"]) == ("trainer.grpo", "a/zero2.yaml")
    assert [word.text for word in launch.words] == ["--beta", "0.0"]


def test_a_launcher_s_file_alone_makes_no_training() -> None:
    document = document_of(ZERO3, "acc.yaml", "yaml")
    row = recognise(document)
    assert row is not None
    draft = draft_of([(document, row)], {})
    assert draft.values["sharding"] == "zero3"
    assert "model" not in draft.values
