"""Proves that the script inside a cluster's file is read as a script by itself is, with its variables and lines."""

from pathlib import Path

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import documents_of, read_target

SKY = """resources:
  accelerators: H100:8
envs:
  MODEL: Qwen/Qwen2.5-0.5B
setup: pip install ms-swift
run: |
  echo start
  NPROC_PER_NODE=8 swift sft --model $MODEL --train_type full \\
    --per_device_train_batch_size 3 --max_length 1024
"""
POD = """apiVersion: batch/v1
kind: Job
metadata: {name: sft}
spec:
  template:
    spec:
      containers:
        - name: main
          command: ["/bin/bash", "-c"]
          env:
            - name: MODEL
              value: Qwen/Qwen2.5-0.5B
          args:
            - NPROC_PER_NODE=8 swift sft --model $MODEL --train_type full
              --per_device_train_batch_size 3 --max_length 1024
"""
BEAKER = """version: v2
tasks:
  - name: sft
    command: ['/bin/sh', '-c']
    arguments: ['NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-0.5B
      --train_type full --per_device_train_batch_size 3 --max_length 1024']
"""
WORDS = """command: [torchrun, --nproc_per_node=8, swift, sft, --model, Qwen/Qwen2.5-0.5B, --train_type, full,
  --per_device_train_batch_size, "3", --max_length, "1024"]
image: here
"""
COMPOSE = f"services:\n  train:\n    {WORDS}".replace("image", "    image").replace("\n  --per", "\n      --per")


@pytest.mark.parametrize(
    ("text", "line"),
    [(SKY, 9), (POD, 15), (BEAKER, 5), (WORDS, 1), (COMPOSE, 3)],
    ids=["sky", "pod", "beaker", "words", "compose"],
)
def test_the_script_that_a_cluster_s_file_holds(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    found = read_target(str(path), {})
    job = found.job
    assert (job.trainer, job.model, job.num_gpus) == ("swift", "Qwen/Qwen2.5-0.5B", 8)
    assert (job.batch_size, job.sequence_length) == (3, 1024)
    assert documents_of(str(path))[0].place in (line, line - 1)


@pytest.mark.parametrize("text", ["version: v2\ntasks:\n  - command: [ls]\n", "kind: Job\nspec: {}\n"])
def test_a_cluster_s_file_without_a_training_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidJob):
        read_target(str(path), {})


def test_changes_are_said_in_the_script_s_words(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SKY.replace("_size 3", "_size 64"), encoding="utf-8")
    found = check_file(str(path), {"gpu": "40GB", "num_gpus": 1})
    assert found.fits == "no"
    assert any(line.split(": ", 1)[1].startswith("--") for line in found.write)
