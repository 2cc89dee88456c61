"""Proves what is read of NeMo RL's configs, of those that they are written over, and of its commands."""

from pathlib import Path
from typing import Any

import pytest
from framework_cases import decided
from framework_cases import read_text as read

from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.files.documents import open_document
from memplan.frameworks.nemo_rl.source import trainings
from memplan.frameworks.programs.follow import forget
from memplan.frameworks.reading import framework_of
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job

BASE = """policy:
  model_name: Qwen/Qwen2.5-0.5B
  train_global_batch_size: 64
  train_micro_batch_size: 2
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg:
    enabled: true
    activation_checkpointing: false
    tensor_parallel_size: 1
    lora_cfg: {enabled: false, dim: 8, match_all_linear: true}
  sequence_packing:
    enabled: false
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  optimizer:
    name: torch.optim.AdamW
    kwargs: {lr: 1.0e-6, foreach: false, fused: false}
  megatron_cfg:
    enabled: false
    tensor_model_parallel_size: 2
    optimizer: {optimizer: adam, use_distributed_optimizer: true}
cluster:
  gpus_per_node: 8
  num_nodes: 2
"""
SFT = f"sft:\n  max_num_epochs: 1\n{BASE}"
DPO = f"dpo:\n  sft_loss_weight: 0.1\n{BASE}"
ENGINE = "  generation:\n    colocated: {enabled: COLOCATED, resources: {num_nodes: 1}}\ncluster:"
GRPO = f"""grpo:
  num_generations_per_prompt: 8
loss_fn:
  reference_policy_kl_penalty: 0.01
{BASE.replace("cluster:", ENGINE)}"""
MEGATRON_ON = "policy:\n  dtensor_cfg: {enabled: false}\n  megatron_cfg: {enabled: true}\n"


def over(tmp_path: Path, base: str, more: str) -> JobInput:
    (tmp_path / "grpo_below.yaml").write_text(base, encoding="utf-8")
    return read(tmp_path, f"defaults: grpo_below.yaml\n{more}")


@pytest.mark.parametrize(("name", "sees"), [("/n/vision-mix/gemma-3-1b-pt", False), ("/n/gemma-3-4b-pt", True)])
def test_models_that_read_text_alone_are_asked_for_no_images(tmp_path: Path, name: str, sees: bool) -> None:
    found = read(tmp_path, DPO.replace("Qwen/Qwen2.5-0.5B", name), batch_size="1")
    assert any(each.asks == "images" for each in found.unread) is sees


def test_supervised_training_under_fsdp2(tmp_path: Path) -> None:
    found = read(tmp_path, SFT)
    job = found.job
    assert framework_of(str(tmp_path / "train.yaml")).name == "nemo-rl"
    assert (job.trainer, job.method, job.model, job.num_gpus, job.gpus_per_node) == (
        "nemo-rl",
        "sft",
        "Qwen/Qwen2.5-0.5B",
        16,
        8,
    )
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (2, 2, 1024)
    assert (job.precision, job.sharding, job.optimizer_impl) == ("bf16-amp", "fsdp2", "loop")
    assert not found.unread
    assert resolve(found)


def test_gpus_that_score_or_teach_do_not_train(tmp_path: Path) -> None:
    reward = "data: {default: {env_name: reward_model}}\nenv: {reward_model: {resources: {gpus_per_node: 2}}}\n"
    teacher = "on_policy_distillation:\n  enabled: true\n  teacher_model_by_agent_name: {a: x/y, b: x/y}\n"
    apart = "  non_colocated_teachers: {enabled: true, default_teacher_cfg: {num_nodes: 1}}\n"
    one = GRPO.replace("COLOCATED", "true").replace("  num_nodes: 2\n", "  num_nodes: 1\n")
    assert read(tmp_path, one + reward).job.num_gpus == 6
    assert read(tmp_path, GRPO.replace("COLOCATED", "true") + teacher + apart).job.num_gpus == 8
    assert decided(read(tmp_path, one + teacher)) == {"on_policy_distillation.enabled": "model"}


def test_a_validations_micro_batch_that_is_larger_than_the_updates_is_counted(tmp_path: Path) -> None:
    for size, counted in ((2, None), (8, 8)):
        said = f"  val_period: 10\n  val_micro_batch_size: {size}\n"
        found = read(tmp_path, SFT.replace("  max_num_epochs: 1\n", said))
        assert found.job.eval_batch_size == counted


def test_preferences_have_their_reference_on_the_host(tmp_path: Path) -> None:
    found = read(tmp_path, DPO)
    assert (found.job.method, found.job.sft_term) == ("dpo", True)
    assert resolve(found).others.reference == "offloaded"


@pytest.mark.slow
@pytest.mark.parametrize(("colocated", "gpus", "place"), [("true", 16, "colocate"), ("false", 8, "separate")])
def test_what_generates_stands_where_the_config_says(tmp_path: Path, colocated: str, gpus: int, place: str) -> None:
    found = read(tmp_path, GRPO.replace("COLOCATED", colocated), gpu="h100-80gb")
    assert (found.job.method, found.job.reference, found.job.num_gpus) == ("grpo", "offloaded", gpus)
    assert found.job.rollout is not None
    assert (found.job.rollout.group_size, found.job.rollout.engine, found.job.rollout.placement) == (8, "vllm", place)
    assert not decided(found)
    assert check_file(str(tmp_path / "train.yaml"), {"gpu": "h100-80gb"}).fits != "unclear"


def test_a_config_over_another_says_what_is_otherwise(tmp_path: Path) -> None:
    more = "policy:\n  max_total_sequence_length: 4096\n  sequence_packing: {enabled: true}\ncluster: {num_nodes: 1}\n"
    job = over(tmp_path, SFT, more).job
    assert (job.sequence_length, job.num_gpus, job.token_budget, job.attention) == (4096, 8, 8192, "flash")


def test_a_section_may_stand_in_place_of_the_others(tmp_path: Path) -> None:
    more = "policy:\n  dtensor_cfg:\n    _override_: true\n    enabled: true\n"
    base = SFT.replace("activation_checkpointing: false", "activation_checkpointing: true")
    assert over(tmp_path, base, "cluster: {num_nodes: 1}\n").job.gradient_checkpointing == "full"
    assert over(tmp_path, base, more).job.gradient_checkpointing == "none"


def test_its_own_configs_are_known_where_they_are_not_there(tmp_path: Path) -> None:
    found = read(tmp_path, "defaults: ../../dpo.yaml\npolicy:\n  train_micro_batch_size: 1\n")
    assert (found.job.method, found.job.model, found.job.sequence_length, found.job.batch_size) == (
        "dpo",
        "meta-llama/Llama-3.2-1B-Instruct",
        1024,
        1,
    )
    assert any("is taken as NeMo RL has it" in line for line in found.warnings)
    with pytest.raises(InvalidJob, match=r"grpo-mine\.yaml"):
        read(tmp_path, "defaults: grpo-mine.yaml\npolicy:\n  train_micro_batch_size: 1\n")


def test_a_command_overrides_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(DPO, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    text = (
        "uv run python examples/run_dpo.py --config mine.yaml ++policy.train_micro_batch_size=4 cluster.num_nodes=1\n"
    )
    job = read(tmp_path, text, "run.sh").job
    assert (job.method, job.batch_size, job.gradient_accumulation_steps, job.num_gpus) == ("dpo", 4, 2, 8)


def test_configs_over_one_another_have_an_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob, match="over one another"):
        read(tmp_path, f"defaults: train.yaml\n{SFT}")


def test_megatron_is_another_trainer(tmp_path: Path) -> None:
    found = over(tmp_path, DPO, MEGATRON_ON)
    job = found.job
    assert (job.trainer, job.tensor_parallel, job.sharding) == ("nemo-rl-megatron", 2, "distributed-optimizer")
    assert job.gradient_accumulation_steps == 64 // (2 * 8)
    assert not decided(found)
    assert resolve(found)


@pytest.mark.parametrize(
    ("more", "key", "decides"),
    [
        ("policy:\n  dtensor_cfg: {dp_replicate_size: 2}\n", "policy.dtensor_cfg.dp_replicate_size", "parallelism"),
        ("policy:\n  logprob_chunk_size: 1024\n", "policy.logprob_chunk_size", "loss"),
        ("policy:\n  optimizer: {name: mine.Muon}\n", "policy.optimizer.name", "optimizer"),
        ("policy:\n  strange_parallel_size: 4\n", "policy.strange_parallel_size", "parallelism"),
        (
            "policy:\n  megatron_cfg: {enabled: true, peft: {enabled: true}}\n",
            "policy.megatron_cfg.peft.enabled",
            "adapters",
        ),
        (
            "policy:\n  megatron_cfg: {enabled: true, model_overrides: {num_layers: 2}}\n",
            "policy.megatron_cfg.model_overrides.num_layers",
            "model",
        ),
    ],
)
def test_what_decides_and_is_not_modelled_is_named(tmp_path: Path, more: str, key: str, decides: str) -> None:
    assert decided(over(tmp_path, SFT, more)) == {key: decides}


def test_what_is_set_of_the_models_config_is_counted(tmp_path: Path) -> None:
    """AutoConfig.from_pretrained(name, **hf_config_overrides)."""
    few = over(tmp_path, SFT, "policy:\n  hf_config_overrides: {num_hidden_layers: 2, rope_scaling: {factor: 2}}\n")
    assert isinstance(few.job.model, dict)
    assert few.job.model["num_hidden_layers"] == 2
    assert not few.unread


def test_adapters_of_dtensor(tmp_path: Path) -> None:
    lora = over(tmp_path, SFT, "policy:\n  dtensor_cfg: {lora_cfg: {enabled: true, dim: 32}}\n").job.lora
    assert lora is not None
    assert (lora.r, lora.targets) == (32, "all-linear")


def test_checkpoints_of_modules_keep_four_inputs_of_a_layer() -> None:
    keys: dict[str, Any] = {"model": "llama-3.1-8b", "method": "sft", "num_gpus": 8, "sharding": "fsdp2",
                            "precision": "bf16-amp", "gradient_checkpointing": "full", "batch_size": 1}  # fmt: skip

    def saved(trainer: str, length: int) -> int:
        return peak(resolve(read_job({**keys, "trainer": trainer, "sequence_length": length}))).allocated.expected

    modules = saved("nemo-rl", 8192) - saved("nemo-rl", 4096)
    layers = saved("verl", 8192) - saved("verl", 4096)
    inputs = 32 * 4096 * 4096 * 2
    assert modules - layers > 2 * inputs


def test_scripts_of_others_with_the_same_name_are_not_its(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    for start in ("accelerate launch", "torchrun"):
        path.write_text(f"{start} run_sft.py --model_name_or_path x --per_device_train_batch_size 1 --output_dir o\n")
        assert framework_of(str(path)).name != "nemo-rl"
    path.write_text("python run_grpo.py --config c.yaml\n")
    assert framework_of(str(path)).name == "nemo-rl"
    (tmp_path / "run_grpo.py").write_text("from trl import GRPOTrainer\n")
    forget()  # as every reading of a file begins
    assert not trainings(open_document(str(path)))


def test_what_dtensor_divides_is_counted_as_whole(tmp_path: Path) -> None:
    text = SFT.replace("tensor_parallel_size: 1", "tensor_parallel_size: 2\n    context_parallel_size: 2")
    found = read(tmp_path, text)
    assert (found.job.tensor_parallel, found.job.context_parallel, found.job.attention) == (1, 2, "flash")
    assert [each.key.rpartition(".")[2] for each in found.unread if each.above] == ["tensor_parallel_size"]
    assert resolve(found)
    text = SFT.replace("tensor_parallel_size: 1", "tensor_parallel_size: 2\n    sequence_parallel: true")
    found = read(tmp_path, text.replace("activation_checkpointing: false", "activation_checkpointing: true"))
    assert (found.job.tensor_parallel, found.job.context_parallel) == (1, 2)
    assert [each.key.rpartition(".")[2] for each in found.unread if each.above] == ["tensor_parallel_size"]


def test_adapters_of_megatron(tmp_path: Path) -> None:
    peft = "mtp_num_layers: 1, peft: {enabled: true, dim: 16, target_modules: [linear_qkv, linear_proj]}"
    base = GRPO.replace("COLOCATED", "true")
    found = over(tmp_path, base, f"policy:\n  megatron_cfg: {{enabled: true, {peft}}}\n")
    job = found.job.model_dump()
    assert (job["lora"]["targets"], job["megatron"]["mtp_num_layers"]) == (("linear_qkv", "linear_proj"), 1)
    assert not [each for each in found.unread if each.decides == "adapters"]


def test_gradients_of_megatron_are_reduced_as_it_says(tmp_path: Path) -> None:
    ddp = "distributed_data_parallel_config: {grad_reduce_in_fp32: false}"
    more = f"policy:\n  megatron_cfg: {{enabled: true, {ddp}, optimizer: {{use_precision_aware_optimizer: true}}, "
    more += "use_linear_ce_fusion_loss: false, linear_ce_fusion_chunk_size: 256}\n"
    found = over(tmp_path, SFT, more)
    assert (found.job.grad_dtype, found.job.megatron.use_precision_aware_optimizer) == ("bf16", True)
    assert not [each for each in found.unread if each.decides]


def test_modules_that_adapters_pass_over(tmp_path: Path) -> None:
    more = "enabled: true, match_all_linear: false, target_modules: [], exclude_modules: ['*out_proj*']"
    lora = over(tmp_path, SFT, f"policy:\n  dtensor_cfg: {{lora_cfg: {{{more}}}}}\n").job.lora
    assert lora is not None
    assert (lora.targets, lora.exclude_modules) == ("all-linear", ("out_proj",))
    more = more.replace("*out_proj*", "*.layers.0.*")
    found = over(tmp_path, SFT, f"policy:\n  dtensor_cfg: {{lora_cfg: {{{more}}}}}\n")
    assert "adapters" in decided(found).values()


@pytest.mark.slow
def test_megatrons_names_where_other_layers_stand_in(tmp_path: Path) -> None:
    peft = "peft: {enabled: true, dim: 16, target_modules: [linear_qkv, linear_proj]}"
    text = MEGATRON_ON.replace("enabled: true}", f"enabled: true, tensor_model_parallel_size: 1, {peft}}}")
    found = over(tmp_path, SFT.replace("Qwen2.5-0.5B", "Qwen3.5-4B"), text)
    adapted = resolve(found).adapter
    assert adapted is not None
    assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= adapted.targets


@pytest.mark.parametrize(("colocated", "gpus"), [("true", 16), ("false", 8)])
def test_gpus_that_generate_do_not_train(tmp_path: Path, colocated: str, gpus: int) -> None:
    assert read(tmp_path, GRPO.replace("COLOCATED", colocated), num_gpus=16).job.num_gpus == gpus


VALUE = """value:
  model_name: ${policy.model_name}
  train_micro_batch_size: 2
  dtensor_cfg: {enabled: true, tensor_parallel_size: 1, activation_checkpointing: false}
"""


@pytest.mark.parametrize(
    ("old", "new", "above", "batch"),
    [
        ("", "", {}, 2),
        ("micro_batch_size: 2", "micro_batch_size: 4", {"value.train_micro_batch_size": True}, 4),
        ("tensor_parallel_size: 1", "tensor_parallel_size: 2", {"value.dtensor_cfg.tensor_parallel_size": True}, 2),
    ],
)
def test_a_value_model_is_counted_with_the_policys_settings(
    tmp_path: Path, old: str, new: str, above: dict[str, bool], batch: int
) -> None:
    found = read(tmp_path, GRPO.replace("grpo:", "ppo:").replace("COLOCATED", "true") + VALUE.replace(old, new))
    assert (found.job.method, found.job.batch_size) == ("ppo", batch)
    assert {each.key: each.above for each in found.unread} == above


@pytest.mark.parametrize(
    ("more", "scored"),
    [
        ("policy:\n  logprob_batch_size: 4\n", 4096),
        ("policy:\n  logprob_batch_size: 2\n", None),
        ("policy:\n  logprob_batch_size: 4\n  dynamic_batching:\n    enabled: true\n    train_mb_tokens: 1024\n"
         "    logprob_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.logprob_batch_size}}\n", 4096),
    ],
)  # fmt: skip
def test_log_probabilities_have_micro_batches_of_their_own(tmp_path: Path, more: str, scored: int | None) -> None:
    assert over(tmp_path, GRPO.replace("COLOCATED", "true"), more).job.logprob_token_budget == scored
