"""Proves that what is emitted for Megatron-LM is a script that runs, of arguments that Megatron-LM has, of the model
that was asked for.

``data/megatron_arguments.txt`` lists the arguments of the real parser (megatron/training/arguments.py, core 0.16.1).
"""

import argparse
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from framework_cases import FILES

from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import Emission, emit, write_files
from memplan.frameworks.megatron.shape import shape_of
from memplan.frameworks.reading import read_target
from memplan.frameworks.registry import find_framework
from memplan.models import load_model
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

TYPES = {"int": int, "float": float, "text": str}
JOBS: list[dict[str, Any]] = [
    {"model": "llama-3.1-8b", "num_gpus": 8},
    {"model": "llama-3.1-8b", "num_gpus": 16, "tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2,
     "gradient_accumulation_steps": 8, "gradient_checkpointing": "selective"},
    {"model": "qwen2.5-7b", "num_gpus": 8, "gradient_checkpointing": "full", "offload": ["optimizer"]},
    {"model": "qwen3-8b", "num_gpus": 8, "sharding": "ddp", "tensor_parallel": 2, "sequence_parallel": False},
    {"model": "gpt2", "num_gpus": 2, "sequence_length": 512, "optimizer": "sgd", "dtype": "fp16"},
    {"model": "gpt2", "num_gpus": 4, "sequence_length": 512, "dtype": "fp16", "grad_dtype": "fp16", "sharding": "ddp"},
    {"model": "mixtral-8x7b", "num_gpus": 16, "expert_parallel": 8, "context_parallel": 2,
     "megatron": {"cp_comm_type": "a2a", "moe_expert_capacity_factor": 1.5, "moe_expert_imbalance": 2.0}},
    {"model": "qwen3-30b-a3b", "num_gpus": 8, "expert_parallel": 8, "gradient_checkpointing": "selective",
     "megatron": {"recompute_modules": ["moe_act", "layernorm"]}},
    {"model": "llama-3.1-8b", "num_gpus": 4096, "tensor_parallel": 2, "megatron":
     {"num_distributed_optimizer_instances": 4, "overlap_grad_reduce": True, "overlap_param_gather": True}},
    {"model": "glm-4.5-air", "num_gpus": 64, "expert_parallel": 8, "tensor_parallel": 2},
    {"model": "qwen1.5-moe-a2.7b", "num_gpus": 8},
    {"model": "deepseek-v3", "num_gpus": 256, "expert_parallel": 32, "pipeline_parallel": 8,
     "gradient_accumulation_steps": 16, "gradient_checkpointing": "full",
     "megatron": {"num_layers_in_first_pipeline_stage": 6, "num_layers_in_last_pipeline_stage": 7}},
    {"model": "kimi-k2", "num_gpus": 256, "expert_parallel": 64, "pipeline_parallel": 4, "virtual_pipeline": 8,
     "gradient_accumulation_steps": 8, "megatron": {"pipeline_model_parallel_layout": "E(tt|)*29t|t|tL"}},
]  # fmt: skip
LAID = ("--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout")
IDS = [f"{job['model']}-{job['num_gpus']}" for job in JOBS]


def real_parser() -> argparse.ArgumentParser:
    """A parser of the arguments that Megatron-LM has."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for line in (Path(__file__).parent / "data" / "megatron_arguments.txt").read_text().splitlines()[1:]:
        name, kind, *rest = line.split()
        if kind == "switch":
            parser.add_argument(name, action="store_true", dest=name)
            continue
        choices = {"choices": rest[1].split(",")} if len(rest) > 1 and rest[0] == "text" else {}
        many = {"nargs": "+"} if kind == "values" else {}
        parser.add_argument(name, type=TYPES[rest[0]], dest=name, **choices, **many)  # type: ignore[arg-type]
    return parser


def emitted(keys: dict[str, Any], folder: Path) -> Emission:
    found = emit(read_job({"method": "sft", "trainer": "megatron", **keys}), find_framework("megatron"))
    write_files(found.texts, str(folder), False)
    return found


def run(folder: Path) -> list[str]:
    """What the script gives to pretrain_gpt.py, by running it with a torchrun that only says so."""
    stub = folder / "bin" / "torchrun"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "NODE_RANK": "0", "MASTER_ADDR": "host"}
    made = subprocess.run(["bash", str(folder / "run.sh")], env=environment, capture_output=True, text=True, check=True)
    words = made.stdout.splitlines()
    return words[words.index("CHECKOUT/pretrain_gpt.py") + 1 :]


@pytest.mark.parametrize("keys", JOBS, ids=IDS)
def test_a_script_runs_with_arguments_that_megatron_has(keys: dict[str, Any], tmp_path: Path) -> None:
    emitted(keys, tmp_path)
    found, unknown = real_parser().parse_known_args(run(tmp_path))
    assert not unknown
    spec = load_model(keys["model"])
    assert sum(getattr(found, name, None) is not None for name in LAID) <= 1  # arguments.py: validate_args
    assert vars(found)["--num-layers"] == spec.num_layers
    assert vars(found)["--hidden-size"] == spec.hidden_size
    assert vars(found)["--vocab-size"] == spec.vocab_size
    assert vars(found)["--hidden-dropout"] == vars(found)["--attention-dropout"] == 0


@pytest.mark.parametrize("keys", JOBS, ids=IDS)
def test_the_script_makes_the_same_job_to_the_byte(keys: dict[str, Any], tmp_path: Path) -> None:
    asked = emitted(keys, tmp_path)
    again = read_target(str(tmp_path / "run.sh"), {})
    if "moe_expert_imbalance" in keys.get("megatron", {}):  # of the data, which no argument says
        settings = again.job.megatron.model_copy(update={"moe_expert_imbalance": 2.0})
        again = again._replace(job=again.job.model_copy(update={"megatron": settings}))
        assert "receive 2.0 of the mean" in (tmp_path / "run.sh").read_text()
    assert not [line for line in again.warnings if "is not counted" in line]
    assert build_report(resolve(again)).per_gpu.device_bytes.expected == asked.report.per_gpu.device_bytes.expected
    ranks = [build_report(recipe).ranks for recipe in (resolve(again), resolve(asked.given))]
    assert [each.allocated_bytes for each in ranks[0]] == [each.allocated_bytes for each in ranks[1]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma-2-9b", "has layers of several kinds"),
        ("jamba-v0.1", "has mixtures of experts among dense layers"),
        ("starcoder2-3b", "has a sliding window of 4096"),
        ("mamba-2.8b", "has layers of several kinds"),
        ("granite-3.3-2b", "has scaled embeddings or capped logits"),
    ],
)
def test_a_model_that_no_arguments_describe(name: str, why: str) -> None:
    with pytest.raises(InvalidJob, match=why):
        shape_of(load_model(name))


def test_a_script_of_megatrons_own_is_emitted_anew(tmp_path: Path) -> None:
    """Its model has no name: only the tokenizer is left to fill in."""
    path = tmp_path / FILES["megatron"][0]
    path.write_text(FILES["megatron"][1], encoding="utf-8")
    given = read_target(str(path), {"batch_size": 1})
    text = emit(given, find_framework("megatron")).texts["run.sh"]
    assert "--tokenizer-model TOKENIZER  # FILL IN" in text
    assert "--micro-batch-size 1\n" in text


def test_what_only_the_user_knows_is_marked(tmp_path: Path) -> None:
    emitted(JOBS[1], tmp_path)
    text = (tmp_path / "run.sh").read_text()
    for option in ("data-path", "train-iters", "lr", "save", "rotary-base", "norm-epsilon"):
        assert any(f"--{option} " in line and "# FILL IN" in line for line in text.splitlines()), option
    assert "memplan expects on each of 16 GPUs" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text
    assert '--node_rank "${NODE_RANK}"' in text


def test_gradients_of_fp16_are_copied_to_fp32_in_the_step_unless_they_are_so_at_once(tmp_path: Path) -> None:
    """Megatron of 2023 and of today: of bf16 alone arguments.py sets accumulate_allreduce_grads_in_fp32 by itself; the
    step makes main_grad.float() of every parameter (optimizer.py: _copy_model_grads_to_main_grads)."""
    job = {"model": "gpt2-large", "num_gpus": 2, "sequence_length": 512, "dtype": "fp16", "sharding": "ddp"}
    emitted(job | {"gradient_checkpointing": "full"}, tmp_path)
    script = tmp_path / "run.sh"
    once = build_report(resolve(read_target(str(script), {}))).per_gpu
    script.write_text(re.sub(r".*--accumulate-allreduce-grads-in-fp32.*\n", "", script.read_text()))
    given = read_target(str(script), {})
    late = build_report(resolve(given)).per_gpu
    assert (given.job.grad_dtype, late.peak_instant) == ("fp16", "step.optimizer")
    assert late.allocated_bytes - once.allocated_bytes == pytest.approx(2 * 774_030_080, rel=0.2)
