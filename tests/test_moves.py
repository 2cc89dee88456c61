"""Holds the moves around a job to lists written by hand: what is there, and no more."""

from typing import Any

from any_jobs import MODELS

from memplan.planner import tiers
from memplan.planner.moves import moves, space_of, together, training_moves
from memplan.resolve import resolve
from memplan.spec.reading import read_job

JOB: dict[str, Any] = {"model": MODELS["untied"], "method": "sft", "gpu": "h100-80gb", "sequence_length": 4096}


def around(**keys: Any) -> dict[str, dict[str, Any]]:
    """Every move around a job by its title, with its keys."""
    read = read_job({**JOB, "sequence_length": 1024, **keys})
    found = resolve(read)
    made = [*moves(read.job, found), *training_moves(read.job, found)]
    assert len({each.title for each in made}) == len(made)
    return {each.title: each.keys for each in made}


def test_moves_of_a_plain_job() -> None:
    found = around(batch_size=6, eval_batch_size=8)
    host = {title for title in found if title.endswith("offloaded to CPU")}
    cards = {title: keys for title, keys in found.items() if " GPUs" in title}
    assert cards == {f"{n} GPUs with ZeRO-3": {"num_gpus": n, "sharding": "zero3"} for n in (2, 4, 8, 16, 32)}
    assert found["activations offloaded to CPU"] == {"offload": ["activations"]}
    assert found["ZeRO-3, optimizer and parameters offloaded to CPU"] == {
        "sharding": "zero3",
        "offload": ["optimizer", "parameters"],
    }
    assert {title: keys for title, keys in found.items() if title not in {*host, *cards}} == {
        **{f"evaluation in batches of {size}": {"eval_batch_size": size} for size in (4, 2, 1)},
        "selective checkpointing": {"gradient_checkpointing": "selective"},
        "gradient checkpointing": {"gradient_checkpointing": "full"},
        **{f"{head} loss head": {"loss_head": head} for head in ("selective", "chunked", "fused")},
        "Liger's kernels": {"kernels": "liger"},
        **{f"batch size {size}": {"batch_size": size} for size in (3, 2, 1)},
        "8-bit optimizer states": {"optimizer": "adamw-8bit"},
        **{f"sequences of {length} tokens": {"sequence_length": length} for length in (512, 256)},
        "LoRA of rank 16": {"lora": {"r": 16}},
        "QLoRA (4-bit base)": {"lora": {"r": 16}, "quantization": "nf4"},
    }


def layout_moves(**keys: Any) -> dict[str, dict[str, Any]]:
    """Those of the layout that keep nothing on the host."""
    read = read_job({**JOB, "sequence_length": 1024, **keys})
    made = [each for each in moves(read.job, resolve(read)) if each.axis == "layout" and each.tier != tiers.CARDS]
    return {each.title: each.keys for each in made if "offload" not in str(each.keys)}


FSDP2 = {
    "FSDP2": {"sharding": "fsdp2"},
    "FSDP2 without resharding": {"sharding": "fsdp2", "reshard_after_forward": False},
}


def test_moves_of_the_layout() -> None:
    """None that shares less, nor one that differs in two degrees."""
    assert layout_moves(num_gpus=2, sharding="zero2") == {"ZeRO-3": {"sharding": "zero3"}, **FSDP2}
    assert layout_moves(num_gpus=2, zero_stage=1) == {
        **{f"ZeRO-{stage}": {"zero_stage": stage} for stage in (2, 3)},
        **FSDP2,
    }
    assert layout_moves(num_gpus=2, sharding="zero3") == FSDP2
    assert layout_moves(num_gpus=2, sharding="fsdp") == {"ZeRO-3": {"sharding": "zero3"}, **FSDP2}
    assert layout_moves(num_gpus=2, sharding="fsdp2") == {
        "ZeRO-3": {"sharding": "zero3"},
        "FSDP2 without resharding": {"reshard_after_forward": False},
    }
    assert layout_moves(num_gpus=4, sharding="fsdp2", tensor_parallel=2) == {
        "tensor parallel 1": {"tensor_parallel": 1}
    }
    assert layout_moves(num_gpus=4, trainer="megatron", tensor_parallel=2) == {
        "tensor parallel 1": {"tensor_parallel": 1},
        "tensor parallel 4": {"tensor_parallel": 4},
        "pipeline parallel 2": {"pipeline_parallel": 2},
    }
    of_megatron: dict[str, Any] = {"num_gpus": 4, "trainer": "megatron", "sharding": "distributed-optimizer"}
    for degrees in ({}, {"tensor_parallel": 2}):
        found = around(**of_megatron, **degrees)
        hosted = [keys for title, keys in found.items() if title.endswith("optimizer offloaded to CPU")]
        assert hosted == [{"offload": ["optimizer"]}]
    assert "offload" not in str(around(**of_megatron, offload=["optimizer"]).values())


def updates(**keys: Any) -> dict[str, dict[str, Any]]:
    """Moves of what follows a rollout."""
    read = read_job({**JOB, "sequence_length": 1024, **keys})
    made = training_moves(read.job, resolve(read))
    return {each.title: each.keys for each in made if each.axis in ("group", "shorter", "method", "reference")}


NO_KL = {"no KL term (beta 0), so no reference": {"reference": "none"}}


def test_moves_of_an_update() -> None:
    lengths = {"prompt_length": 512, "completion_length": 1000}
    given = {"method": "grpo", "completion_length": 1000, "sequence_length": 1512}
    assert updates(**given, rollout={"group_size": 6, **lengths}) == {
        **NO_KL,
        "groups of 3 completions": {"rollout": {"group_size": 3}},
        "completions of 500 tokens": {
            "rollout": {"completion_length": 500},
            "sequence_length": 1012,
            "completion_length": 500,
        },
    }
    shorter = {f"sequences of {length} tokens": {"sequence_length": length} for length in (512, 256)}
    assert updates(method="grpo", rollout={"group_size": 3}) == {**NO_KL, **shorter}
    for length, halved in ((511, False), (512, True)):
        rollout = {"group_size": 1, "prompt_length": 512, "completion_length": length}
        found = updates(method="ppo", rollout=rollout, sequence_length=512 + length)
        fewer = {"rollout": {"completion_length": 256}, "sequence_length": 768}
        assert found.get("completions of 256 tokens") == (fewer if halved else None)
        assert (f"sequences of {(512 + length) // 2} tokens" in found) != halved
        assert found["GRPO in place of PPO: no critic"] == {"method": "grpo"}


def test_a_shorter_sequence_has_no_longer_completion() -> None:
    found = updates(method="dpo", completion_length=400)
    assert found["sequences of 512 tokens"] == {"sequence_length": 512}
    assert found["sequences of 256 tokens"] == {"sequence_length": 256, "completion_length": 256}


def test_the_optimizers_own_implementation_is_left_only_where_one_was_named() -> None:
    assert around()["8-bit optimizer states"] == {"optimizer": "adamw-8bit"}
    named = around(optimizer_impl="foreach")["8-bit optimizer states"]
    assert named == {"optimizer": "adamw-8bit", "optimizer_impl": "auto"}
    read = read_job({**JOB, "sequence_length": 1024})
    marks = {each.axis: each.alters for each in training_moves(read.job, resolve(read))}
    assert marks == {"8bit": "numerics", "shorter": "training", "weights": "training"}


def test_moves_together_keep_the_global_batch() -> None:
    read = read_job({**JOB, "num_gpus": 4, "trainer": "megatron", "tensor_parallel": 2, "batch_size": 2})
    found = resolve(read)
    named = {each.title: each for each in moves(read.job, found)}
    one, two = named["tensor parallel 1"], named["batch size 1"]
    assert space_of(read.job, found).global_batch == 4
    assert together(read.job, found, [named["gradient checkpointing"]]) == {"gradient_checkpointing": "full"}
    assert together(read.job, found, [two]) == {"batch_size": 1, "gradient_accumulation_steps": 2}
    both = {"tensor_parallel": 1, "batch_size": 1}
    assert together(read.job, found, [two, one]) == together(read.job, found, [one, two]) == both
    assert together(read.job, found, [one]) is None
