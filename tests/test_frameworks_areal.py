"""Proves what is read of AReaL's configs."""

from pathlib import Path
from typing import Any

import pytest
from framework_cases import decided
from framework_cases import read_text as read

from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of
from memplan.resolve import resolve

GRPO = """experiment_name: gsm8k-grpo
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout: {backend: "sglang:d4p1t1"}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  backend: "fsdp:d4p1t1"
  path: Qwen/Qwen2.5-0.5B-Instruct
  gradient_checkpointing: true
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.0e-6}
  kl_ctl: 0.0
  ppo_n_minibatches: 2
ref:
  backend: ${actor.backend}
  path: ${actor.path}
train_dataset: {batch_size: 256, type: rl, max_length: 1024}
"""


def test_an_actor_beside_rollouts_on_other_gpus(tmp_path: Path) -> None:
    found = read(tmp_path, GRPO)
    job = found.job
    assert framework_of(str(tmp_path / "train.yaml")).name == "areal"
    assert (job.trainer, job.method, job.num_gpus, job.sharding, job.precision) == ("areal", "grpo", 4, "fsdp2", "bf16")
    assert (job.token_budget, job.sequence_length, job.gradient_accumulation_steps) == (
        10240,
        2048,
        128 * 2048 // 10240 + 1,
    )
    assert (job.reference, job.gradient_checkpointing, job.attention) == ("none", "full", "flash")
    assert not decided(found)
    assert resolve(found)


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("kl_ctl: 0.0", "kl_ctl: 0.1", "reference", "resident"),
        ("mb_spec: {max_tokens_per_mb: 10240}", "mb_spec: {max_tokens_per_mb: 1024}", "token_budget", 2048),
        ("mb_spec: {max_tokens_per_mb: 10240}", "mb_spec: {n_mbs: 32}", "batch_size", 4),
        ("type: rl", "type: sft", "method", "sft"),
        ("type: rl", "type: my_math", "method", "grpo"),
        ('"fsdp:d4p1t1"', '"fsdp:d2t2"', "tensor_parallel", 2),
        ("dtype: bfloat16", "dtype: bfloat16\n  use_lora: true\n  target_modules: [all-linear]", "lora", {"r": 32}),
        ('  backend: "fsdp:d4p1t1"\n', "", "num_gpus", 2),
        ('"fsdp:d4p1t1"', '"megatron:d2t2"', "trainer", "areal-megatron"),
    ],
)
def test_one_key(tmp_path: Path, old: str, new: str, key: str, value: Any) -> None:
    assert old in GRPO
    text = GRPO.replace(old, new) + ("allocation_mode: sglang.d6+d2\n" if key == "num_gpus" else "")
    found = getattr(read(tmp_path, text.replace("ref:\n  backend: ${actor.backend}", "ref:\n  x: 1")).job, key)
    assert found == value if not isinstance(value, dict) else (found.r, found.dtype) == (value["r"], "bf16")


@pytest.mark.parametrize(
    ("old", "new", "key", "decides"),
    [
        ('"fsdp:d4p1t1"', '"archon:d4"', "actor.backend", "loss"),
        ('"fsdp:d4p1t1"', '"fsdp"', "num_gpus", "processes"),
        ("type: adam", "type: mine", "actor.optimizer.type", "optimizer"),
        ("kl_ctl: 0.0", "kl_ctl: 0.0\n  enable_tree_training: true", "actor.enable_tree_training", "batch"),
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-VL-3B-Instruct", "actor.path", "lengths"),
        ("kl_ctl: 0.0", "kl_ctl: 0.0\nteacher: {path: a/b}", "teacher", "model"),
        ("kl_ctl: 0.0", "kl_ctl: 0.0\n  strange_parallel: 2", "actor.strange_parallel", "parallelism"),
        ("cluster:", "n_agents: 2\ncluster:", "n_agents", "model"),
    ],
)
def test_what_decides_and_is_not_known_is_named(tmp_path: Path, old: str, new: str, key: str, decides: str) -> None:
    text = GRPO.replace(old, new)
    found = read(tmp_path, text if not new.startswith("kl_ctl: 0.0\nteacher") else GRPO + "teacher: {path: a/b}\n")
    packed = {"token_budget": "batch"} if decides == "lengths" else {}  # rows with images are whole sequences
    assert decided(found) == {key: decides, **packed}


def test_what_generates_on_the_same_gpus_is_an_engine_beside_the_trainer(tmp_path: Path) -> None:
    text = GRPO.replace('  backend: "fsdp:d4p1t1"\n', "") + "allocation_mode: sglang:d4|fsdp:d4\n"
    rollout = read(tmp_path, text).job.rollout
    assert rollout is not None
    assert (rollout.engine, rollout.placement, rollout.mem_fraction_static) == ("sglang", "colocate", 0.9)
    other = read(tmp_path, text.replace("sglang:d4|", "mine:d4|").replace('"sglang:d4p1t1"', '"mine:d4"'))
    assert decided(other) == {"allocation_mode": "engine"}


def test_experts_have_degrees_of_their_own(tmp_path: Path) -> None:
    job = read(tmp_path, GRPO.replace('"fsdp:d4p1t1"', '"megatron:(attn:d2t2|ffn:d1e4)"')).job
    assert (job.num_gpus, job.tensor_parallel, job.expert_parallel, job.expert_tensor_parallel) == (4, 2, 4, 1)


def test_megatron_bridge_makes_layers_again_whatever_is_said(tmp_path: Path) -> None:
    text = GRPO.replace('"fsdp:d4p1t1"', '"megatron:d2t2"').replace("checkpointing: true", "checkpointing: false")
    assert read(tmp_path, text).job.gradient_checkpointing == "none"
    bridge = read(tmp_path, text.replace("  dtype:", "  megatron: {bridge_type: megatron-bridge}\n  dtype:", 1))
    assert (bridge.job.gradient_checkpointing, bridge.job.precision) == ("full", "bf16-master")
    assert not decided(bridge)
    assert resolve(bridge)


def test_until_1_0_the_engine_stood_by_itself_and_a_model_alone_was_trained(tmp_path: Path) -> None:
    older = GRPO.replace('"fsdp:d4p1t1"', "fsdp") + "allocation_mode: sglang:d4p1t1+d2t2\n"
    job = read(tmp_path, older).job
    assert (job.trainer, job.num_gpus, job.tensor_parallel) == ("areal", 4, 2)
    twice = read(tmp_path, older.replace("sglang:d4p1t1+d2t2", "sglang.d4+fsdp.d2")).job
    assert (twice.num_gpus, twice.sharding) == (2, "fsdp2")
    found = read(
        tmp_path, older.replace("actor:", "model:").replace("type: rl", "type: sft").replace("actor.", "model.")
    )
    assert (found.job.method, found.job.num_gpus, found.job.model) == ("sft", 4, "Qwen/Qwen2.5-0.5B-Instruct")
    assert "model.path" not in decided(found)


def test_an_engine_alone_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "experiment_name: x\nallocation_mode: sglang:d4\nactor: {path: x, mb_spec: {n_mbs: 1}}\n"
    )
    assert check_file(str(tmp_path / "a.yaml"), {"gpu": "h100-80gb"}).fits == "skipped"


def test_gpus_that_generate_do_not_train(tmp_path: Path) -> None:
    assert read(tmp_path, GRPO, num_gpus=8).job.num_gpus == 4
    assert read(tmp_path, GRPO, num_gpus=2).job.num_gpus == 2


CRITIC = """critic:
  backend: ${actor.backend}
  path: ${actor.path}
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 4096}
"""


def test_a_critic_stays_beside_the_actor_with_settings_of_its_own(tmp_path: Path) -> None:
    found = read(tmp_path, GRPO + CRITIC)
    (critic,) = found.job.extra_models
    assert (found.job.method, found.job.gradient_accumulation_steps) == ("ppo", 128 * 2048 // 10240 + 1)
    assert (critic.role, critic.token_budget, critic.gradient_checkpointing) == ("critic", 4096, "none")
    assert not decided(found)
    recipe = resolve(found)
    assert recipe.others.critic is not None
    assert recipe.trainer.rollouts.critic == "own-step"


def test_what_an_evaluation_generates_by_makes_no_rollouts(tmp_path: Path) -> None:
    text = GRPO.replace("type: rl", "type: mine").replace('rollout: {backend: "sglang:d4p1t1"}\n', "")
    assert read(tmp_path, text.replace("  ppo_n_minibatches: 2\n", "")).job.method == "sft"
    longer = read(tmp_path, f"{GRPO}max_tokens_per_trajectory: 8192\nmine: 3\n")
    assert longer.job.sequence_length == 8192
    assert any("no settings of AReaL" in line and "mine" in line for line in longer.warnings)
    assert not any("nothing bounds prompts" in line for line in longer.warnings)
    unbounded = read(tmp_path, GRPO.replace(", max_length: 1024", ""))
    assert any("no longer than the 10240 tokens" in line for line in unbounded.warnings)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("path: ${actor.path}", "path: Qwen/Qwen2.5-7B", "ref.path (model)"),
        ("path: ${actor.path}", "path: ${actor.path}\n  dtype: float32", "ref.dtype (precision)"),
        ("backend: ${actor.backend}", 'backend: "fsdp:d2p1t2"', "ref.backend (parallelism)"),
    ],
)
def test_a_reference_unlike_the_actor_is_unclear(tmp_path: Path, old: str, new: str, what: str) -> None:
    text = GRPO.replace("kl_ctl: 0.0", "kl_ctl: 0.1")
    head, _, ref = text.partition("ref:")
    path = tmp_path / "train.yaml"
    path.write_text(f"{head}ref:{ref.replace(old, new)}", encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb"})
    assert (found.fits, what.partition(" ")[0] in found.text) == ("unclear", True), found.text
    assert not decided(read(tmp_path, GRPO.replace(old, new)))  # without a KL term there is none


def test_what_a_reference_scores_at_once_is_its_own(tmp_path: Path) -> None:
    text = GRPO.replace("kl_ctl: 0.0", "kl_ctl: 0.1")
    wide = text.replace("  path: ${actor.path}\n", "  path: ${actor.path}\n  mb_spec: {max_tokens_per_mb: 65536}\n")
    found = read(tmp_path, wide)
    assert (found.job.logprob_token_budget, read(tmp_path, text).job.logprob_token_budget) == (65536, None)
    assert resolve(found)


@pytest.mark.parametrize("key", ["max_tokens_per_mb: 10240", "ppo_n_minibatches: 2", "n_samples: 4", "batch_size: 256"])
def test_a_negative_number_of_things_is_an_error(tmp_path: Path, key: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(GRPO.replace(key, f"{key.partition(':')[0]}: -3"), encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb"})
    assert (found.fits, "'-3' is too small" in found.text or "-3 is too small" in found.text) == ("error", True)
