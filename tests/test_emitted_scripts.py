"""Proves that the script which starts an emitted job is read as that job, with no more said than ``emit`` tells to."""

from pathlib import Path
from typing import Any

import pytest

from memplan.frameworks.emit.read_back import asked, differences
from memplan.frameworks.emit.writing import emit, write_files
from memplan.frameworks.reading import documents_of, read_opened
from memplan.frameworks.registry import find_framework
from memplan.planner.planning import question
from memplan.planner.space import divided_sequences, offloading, offloads_activations
from memplan.resolve import resolve
from memplan.spec.lora import Lora
from memplan.spec.option_words import option_words
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "method": "sft",
    "gpu": "h100-80gb",
    "num_gpus": 16,
    "allocator": {"expandable_segments": True},
}
ROWS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "openrlhf": ({"trainer": "openrlhf", "sharding": "zero3"}, ()),
    "megatron": ({"trainer": "megatron", "sharding": "distributed-optimizer"}, ()),
    "litgpt": ({"trainer": "litgpt", "sharding": "fsdp", "gradient_checkpointing": "full"}, ()),
    "llamafactory": (
        {"trainer": "llamafactory", "method": "kto", "sharding": "zero2", "model": "gemma-3-4b"},
        ("images",),
    ),
    "verl": ({"trainer": "verl", "sharding": "fsdp2"}, ()),
    "axolotl": ({"trainer": "trl", "method": "dpo", "sharding": "zero2"}, ()),
    "transformers": ({"trainer": "transformers", "sharding": "zero1"}, ("model", "sequence_length")),
    "trl": (
        {
            "trainer": "trl",
            "method": "rloo",
            "sharding": "zero2",
            "sequence_length": 2048,
            "completion_length": 1024,
            "rollout": {"group_size": 8},
        },
        ("sequence_length",),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_script_makes_the_job(name: str, tmp_path: Path) -> None:
    given, told = ROWS[name]
    found = emit(read_job({**JOB, **given}), find_framework(name))
    write_files(found.texts, str(tmp_path), False)
    path = str(tmp_path / "run.sh")
    options = asked(found.given, found.framework, path)
    assert set(options) == {"gpu", *told}
    again = read_opened(documents_of(path)[0], options)
    assert again.job.allocator.expandable_segments
    assert differences(resolve(found.given), resolve(again), found.framework) == []


def test_what_check_is_told_of_adapters_is_what_one_types(tmp_path: Path) -> None:
    """Of a plan's job, which says every value of them."""
    whole = Lora(r=16).model_dump()
    found = emit(read_job({**JOB, "trainer": "transformers", "lora": whole}), find_framework("transformers"))
    write_files(found.texts, str(tmp_path), False)
    words = option_words(asked(found.given, found.framework, str(tmp_path / "run.sh")))
    assert words == "--sequence-length 2048 --model qwen2.5-0.5b --lora-r 16 --gpu h100-80gb"


@pytest.mark.parametrize("trainer", ["llamafactory", "swift"])
def test_adapters_of_every_linear_leave_a_frozen_tower_alone(trainer: str) -> None:
    job = {"model": "qwen2.5-vl-7b", "method": "sft", "trainer": trainer, "lora": {"r": 8}}
    adapter = resolve(read_job(job)).adapter
    everywhere = resolve(read_job({**job, "lora": {"r": 8, "exclude_modules": []}})).adapter
    assert adapter is not None
    assert everywhere is not None
    assert everywhere.targets - adapter.targets == {"qkv", "proj", "mlp.0", "mlp.2"}


def test_long_sequences_are_divided_and_the_plan_is_said() -> None:
    job = {"model": "qwen2.5-0.5b", "method": "sft", "trainer": "trl", "gpu": "h100-80gb", "num_gpus": 8}
    asked_for = question(read_job({**job, "sequence_length": 131072}))
    divided = {(keys["sharding"], keys["context_parallel"]) for keys in divided_sequences(asked_for.space)}
    assert divided == {("fsdp2", 2), ("fsdp2", 4), ("fsdp2", 8)}
    assert divided_sequences(question(read_job({**job, "sequence_length": 8192})).space) == []
    given = read_job({**job, "sequence_length": 131072, "sharding": "fsdp2", "context_parallel": 4})
    assert emit(given, find_framework("trl")).texts


@pytest.mark.parametrize(("method", "there"), [("sft", True), ("simpo", False), ("orpo", False)])
def test_activations_are_offloaded_where_the_method_has_the_switch(method: str, there: bool) -> None:
    job = {"model": "qwen2.5-0.5b", "method": method, "trainer": "trl", "gpu": "rtx-4090-24gb", "lora": {"r": 8}}
    space = question(read_job(job)).space
    assert offloads_activations(space) is there
    assert any(keys.get("offload") == ["activations"] for keys in offloading(space)) is there
