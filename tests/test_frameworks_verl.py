"""Proves what is read of verl's files: which verl they are of, Megatron's workers, both trainers of supervised
fine-tuning, budgets of tokens, the critic, forks and recipes; and what is left open is told.
"""

from pathlib import Path
from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of, read_target
from memplan.spec.reading import JobInput

CRITIC = "critic.ppo_micro_batch_size_per_gpu"
REFERENCE = "actor_rollout_ref.ref."
MEGATRON = "actor_rollout_ref.actor.strategy=megatron critic.strategy=megatron"
RECOMPUTE = "megatron.override_transformer_config.recompute_granularity"
A, M, R = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "actor_rollout_ref.rollout."
RL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {M}path=Qwen/Qwen2.5-0.5B \\
    data.max_prompt_length=512 data.max_response_length=512 {A}ppo_mini_batch_size=64 {R}n=4 \\
    {A}ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=8 trainer.nnodes=2 """
SFT = "torchrun --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-0.5B "
NEW = "torchrun --nproc_per_node=4 -m verl.trainer.sft_trainer model.path=Qwen/Qwen2.5-0.5B "
EASY = """data: {max_prompt_length: 1024, max_response_length: 512}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true}
worker:
  actor:
    global_batch_size: 32
    micro_batch_size_per_device_for_update: 2
    micro_batch_size_per_device_for_experience: 2
    model: {model_path: Qwen/Qwen2.5-0.5B, lora: {rank: 8}}
    fsdp: {torch_dtype: bf16, enable_full_shard: true}
    optim: {strategy: adamw_bf16}
    ulysses_size: 2
  rollout: {n: 4, tensor_parallel_size: 2}
trainer: {n_gpus_per_node: 4, nnodes: 1}
"""


SKY = """uv run -m skyrl_train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen2.5-0.5B \\
    trainer.policy_mini_batch_size=64 generator.n_samples_per_prompt=4 trainer.micro_train_batch_size_per_gpu=2 \\
    trainer.micro_forward_batch_size_per_gpu=8 trainer.max_prompt_length=256 generator.max_input_length=1024 \\
    generator.sampling_params.max_generate_length=512 trainer.placement.policy_num_gpus_per_node=4 """
OPTIM = "actor_rollout_ref.actor.optim."
HOST = f"+{OPTIM}override_optimizer_config.optimizer_cpu_offload=True"
PRECISE = f"+{OPTIM}override_optimizer_config.use_precision_aware_optimizer=True"


def read(tmp_path: Path, text: str, name: str = "run.sh", **options: Any) -> JobInput:
    path = tmp_path / name
    path.write_text(f"{text}\n", encoding="utf-8")
    assert framework_of(str(path)).name == "verl"
    return read_target(str(path), options)


def deciding(found: JobInput) -> dict[str, str]:
    """What decides memory and was not understood, but for the engine beside every trainer."""
    return {each.key: each.decides for each in found.unread if each.decides and "beside the trainer" not in each.why}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RL, {"method": "grpo", "batch_size": 4, "gradient_accumulation_steps": 4, "num_gpus": 16, "sharding": "fsdp"}),
        (f"{RL} {A}ulysses_sequence_parallel_size=2", {"context_parallel": 2, "gradient_accumulation_steps": 8}),
        (f"{RL} {A}fsdp_config.fsdp_size=8", {"fsdp": {"sharding_strategy": "HYBRID_SHARD", "replicate": 2}}),
        (f"{RL} {A}strategy=fsdp2 {A}fsdp_config.fsdp_size=8", {"fsdp": {"replicate": 2}, "sharding": "fsdp2"}),
        (
            f"{RL} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=8192",
            {"token_budget": 8192, "sequence_length": 1024},
        ),
        (
            f"{RL} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=3000",
            {"token_budget": 3000, "sequence_length": 1024},
        ),
        (
            f"{RL} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=512",
            {"token_budget": 1024, "sequence_length": 1024},
        ),
        (
            f"{RL} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=32768",
            {"token_budget": 16384, "gradient_accumulation_steps": 1},  # a mini-batch has no more: 64 x 4 of 16 GPUs
        ),
        (f"{RL} {R}log_prob_micro_batch_size_per_gpu=16", {"batch_size": 4, "logprob_token_budget": 16384}),
        (RL.replace("python3 -m verl.trainer.main_ppo", "python3 -m recipe.dapo.main_dapo"), {"method": "grpo"}),
        (
            RL.replace("python3 -m verl.trainer.main_ppo", "python3 train.py --config-name ppo_trainer"),
            {"method": "grpo"},
        ),
        (f"{RL} critic.enable=False algorithm.adv_estimator=gae", {"method": "grpo"}),
        (NEW, {"method": "sft", "token_budget": 8192, "sequence_length": 1024, "num_gpus": 4, "sharding": "fsdp"}),
        (f"{NEW} data.use_dynamic_bsz=False", {"batch_size": 4, "gradient_accumulation_steps": 16}),
        (
            f"{NEW} engine=megatron engine.tensor_model_parallel_size=2",
            {"sharding": "distributed-optimizer", "tensor_parallel": 2, "gradient_checkpointing": "none"},
        ),
        (f"{RL} +{OPTIM}override_optimizer_config.fused=True", {"optimizer": "adamw", "optimizer_impl": "fused"}),
        (f"{RL} {OPTIM}optimizer=SGD +{OPTIM}override_optimizer_config.momentum=0.9", {"optimizer": "sgd-momentum"}),
        (f"{RL} {OPTIM}override_optimizer_config='{{foreach:False}}'", {"optimizer_impl": "loop"}),
        (f"{RL} {OPTIM}optimizer_impl=torchao.optim {OPTIM}optimizer=AdamW4bit", {"optimizer": "adamw-4bit"}),
        (
            f"{RL} {OPTIM}optimizer_impl=torchao.optim {OPTIM}optimizer=_AdamW",
            {"optimizer": "adamw", "optimizer_impl": "loop"},
        ),
        (SFT, {"batch_size": 4, "sharding": "fsdp2", "padded": True, "loss_head": "cross-entropy"}),
        (f"{SFT} data.micro_batch_size_per_gpu=2 data.max_length=2048", {"batch_size": 2, "sequence_length": 2048}),
        (f"{SFT} use_remove_padding=true ulysses_sequence_parallel_size=2", {"context_parallel": 2}),
        (f"{SFT} model.lora_rank=32 data.micro_batch_size=4", {"batch_size": 4, "sharding": "fsdp"}),
    ],
)
def test_what_is_said_is_read(tmp_path: Path, text: str, said: dict[str, Any]) -> None:
    found = read(tmp_path, text)
    job = found.job.model_dump(exclude_unset=True)
    assert {key: job[key] for key in said} == said
    assert not deciding(found)


def test_workers_of_0_4_recompute_what_the_kwargs_say(tmp_path: Path) -> None:
    said = f"+{A}megatron.override_transformer_config.recompute_granularity=full {A}megatron.grad_offload=True"
    model = "actor_rollout_ref.model."
    on = f"{RL} --config-name=ppo_megatron_trainer.yaml {said} {model}enable_gradient_checkpointing=True"
    assert read(tmp_path, on).job.gradient_checkpointing == "none"
    kwargs = f"{model}gradient_checkpointing_kwargs.activations_checkpoint_granularity=full"
    assert read(tmp_path, f"{on} {kwargs}").job.gradient_checkpointing == "full"


def test_megatron_s_workers(tmp_path: Path) -> None:
    more = {
        "pipeline_model_parallel_size": 2,
        "tensor_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 2,
        "expert_tensor_parallel_size": 1,
        "param_offload": True,
        "override_transformer_config.recompute_granularity": "full",
        "override_transformer_config.recompute_method": "uniform",
        "override_transformer_config.recompute_num_layers": 2,
        "override_transformer_config.num_layers_in_last_pipeline_stage": 5,
    }
    words = " ".join(f"+{A}megatron.{key}={value}" for key, value in more.items())
    optimizer = f"{HOST} {PRECISE} {A}optim.optimizer=adam"
    found = read(tmp_path, f"{RL} --config-name=ppo_megatron_trainer.yaml {words} {optimizer} {A}use_kl_loss=True")
    job = found.job
    assert (job.trainer, job.sharding, job.precision) == ("verl-megatron", "distributed-optimizer", "bf16-master")
    assert (job.tensor_parallel, job.pipeline_parallel, job.virtual_pipeline) == (4, 2, 2)
    assert (job.expert_parallel, job.expert_tensor_parallel) == (2, 1)
    assert job.gradient_accumulation_steps == 64 * 4 // (16 // 8) // 4
    assert job.gradient_checkpointing == "full"
    assert (job.megatron.recompute_num_layers, job.megatron.num_layers_in_last_pipeline_stage) == (2, 5)
    assert job.megatron.optimizer_cpu_offload
    assert job.reference == "resident", "the reference's weights stay on the card unless they are told to leave"
    assert not deciding(found)
    host = read(
        tmp_path, f"{RL} {A}strategy=megatron {A}use_kl_loss=True actor_rollout_ref.ref.megatron.param_offload=True"
    )
    assert host.job.reference == "offloaded"


SCORED = f"{RL} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=1048576 "


@pytest.mark.parametrize(
    ("more", "update", "scores"),
    [
        ("data.train_batch_size=256", 16384, 65536),
        ("data.train_batch_size=256 data.gen_batch_size=512", 16384, 131072),
        ("data.train_batch_size=0 data.gen_batch_size=1", 16384, 1048576),  # fully asynchronous: from a queue
        ("data.train_batch_size=256 +env.rollout.n_agents=4", 1048576, 1048576),  # a fork's own numbers
    ],
)
def test_a_budget_stops_at_the_rows_of_a_rank(tmp_path: Path, more: str, update: int, scores: int) -> None:
    job = read(tmp_path, f"{SCORED}{R}log_prob_max_token_len_per_gpu=1048576 {more}").job
    assert (job.token_budget, job.logprob_token_budget or update) == (update, scores)


def test_skyrl_s_turns_may_be_rows(tmp_path: Path) -> None:
    text = f"{SKY}trainer.use_sample_packing=true trainer.max_tokens_per_microbatch=1048576"
    most = [read(tmp_path, text + more).job.token_budget for more in ("", " generator.step_wise_trajectories=true")]
    assert most == [64 * 4 // 4 * (1024 + 512), 1048576]


def test_hf_generates_in_no_verl_of_today(tmp_path: Path) -> None:
    said = [read(tmp_path, f"{RL}{R}name=hf {more}").warnings for more in (f"{R}data_parallel_size=1", "")]
    assert [any("no hf from 0.6 on" in each for each in lines) for lines in said] == [True, False]


@pytest.mark.parametrize(
    ("more", "version", "entropy"),
    [
        (f"{A}entropy_from_logits_chunk_size=2048", None, "none"),
        ("algorithm.use_kl_in_reward=False", "0.4", "none"),
        ("", "0.2", "loss"),
        (f"{A}fsdp_config.grad_offload=False trainer.val_before_train=False", "0.2", "loss"),
        ("critic.fsdp.param_offload=True", "0.8", "none"),
    ],
)
def test_the_settings_tell_the_version(tmp_path: Path, more: str, version: str | None, entropy: str) -> None:
    job = read(tmp_path, f"{RL} {more}").job
    assert (job.trainer_version, job.entropy) == (version, entropy)


def test_the_first_version_divides_micro_batches_among_the_gpus(tmp_path: Path) -> None:
    old = RL.replace("ppo_micro_batch_size_per_gpu=4", "ppo_micro_batch_size=64").replace(f"{R}n=4", "")
    job = read(tmp_path, f"{old} +trainer.val_before_train=False").job
    assert (job.trainer_version, job.batch_size, job.gradient_checkpointing) == ("0.1", 4, "none")


def test_the_older_trainer_s_whole_micro_batch_is_told(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, f"{SFT} data.micro_batch_size=8")) == {"data.micro_batch_size": "batch"}
    assert any("off by default up to 0.4.0" in line for line in read(tmp_path, SFT).warnings)


def test_easyr1_is_read_as_verl(tmp_path: Path) -> None:
    found = read(tmp_path, EASY, "config.yaml")
    job = found.job
    assert found.framework == "EasyR1 0.3"
    assert (job.method, job.batch_size, job.sequence_length, job.num_gpus) == ("grpo", 2, 1536, 4)
    assert (job.context_parallel, job.precision, job.reference, job.optimizer) == (2, "bf16", "adapter", "adamw-kahan")
    assert job.lora is not None
    assert (job.lora.r, job.lora.alpha) == (8, 64)
    assert not deciding(found)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "config.yaml").write_text(EASY, encoding="utf-8")
    script = "python3 -m verl.trainer.main config=examples/config.yaml worker.actor.model.lora.rank=0"
    over = read(tmp_path, script, "examples/run.sh").job
    assert (over.lora, over.reference, over.sequence_length) == (None, "offloaded", 1536)
    shard = "worker.actor.fsdp.enable_full_shard=false worker.ref.fsdp.enable_cpu_offload=false"
    apart = read(tmp_path, f"{script} {shard}", "examples/run.sh").job
    assert (apart.fsdp.sharding_strategy, apart.reference) == ("SHARD_GRAD_OP", "resident")


def test_skyrl_is_read_as_verl(tmp_path: Path) -> None:
    found = read(tmp_path, SKY)
    job = found.job
    assert (found.framework, job.trainer, job.method, job.entropy) == ("SkyRL 0.4", "skyrl", "grpo", "metric")
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length, job.num_gpus) == (2, 32, 1536, 4)
    assert (job.logprob_token_budget, job.sharding, job.reference) == (8 * 1536, "fsdp2", "offloaded")
    assert job.trainer_offload == ("parameters", "optimizer", "gradients")
    assert not deciding(found)
    lora = read(tmp_path, f"{SKY} trainer.policy.model.lora.rank=8 generator.enforce_eager=true").job
    assert (lora.lora.r, lora.reference, lora.rollout.enforce_eager) == (8, "offloaded", False)  # type: ignore[union-attr]
    newer = "generator.inference_engine.num_engines=2 generator.inference_engine.tensor_parallel_size=2"
    apart = read(tmp_path, f"{SKY} {newer} trainer.placement.colocate_all=false trainer.strategy=fsdp", num_gpus=8).job
    assert (apart.num_gpus, apart.sharding, apart.trainer_offload) == (4, "fsdp2", ())
    assert (apart.rollout.placement, apart.rollout.num_gpus) == ("separate", 4)  # type: ignore[union-attr]
    critic = "trainer.algorithm.advantage_estimator=gae trainer.placement.colocate_all=false"
    found = read(tmp_path, f"{SKY} {critic} trainer.critic.model.path=x/y trainer.placement.critic_num_gpus_per_node=2")
    apart_of = {"trainer.placement.critic_num_gpus_per_node": "parallelism"}
    assert (found.job.method, deciding(found)) == ("grpo", apart_of)
    assert "parallelism" in deciding(read(tmp_path, f"{SKY} trainer.strategy=deepspeed")).values()
    assert "flashrl" in deciding(read(tmp_path, SKY.replace("uv run", "uv run --extra flashrl")))
    whole = "trainer.strategy=megatron trainer.policy.megatron_config.tensor_model_parallel_size=2"
    on = read(tmp_path, f"{SKY} {whole} megatron_config.policy.pipeline_model_parallel_size=2").job
    assert (on.trainer, on.tensor_parallel, on.pipeline_parallel) == ("skyrl-megatron", 2, 2)
    asked = {each.asks for each in read(tmp_path, SKY.replace("generator.sampling_params.max", "x.y")).unread}
    assert "sequence_length" in asked
    assert deciding(read(tmp_path, f"{SKY} generator.max_total_tokens=9000")) == {
        "generator.max_total_tokens": "lengths"
    }


def test_a_config_beside_the_script_is_read_under_its_overrides(tmp_path: Path) -> None:
    text = (
        "defaults: [ppo_megatron_trainer]\nsize: 28\ndata:\n  max_prompt_length: 100\n  max_response_length: ${size}\n"
    )
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    words = RL.replace("data.max_prompt_length=512 data.max_response_length=512", "data.max_prompt_length=36")
    found = read(tmp_path, f"{words} --config-name mine")
    assert (found.job.sequence_length, found.job.sharding) == (64, "distributed-optimizer")
    assert deciding(read(tmp_path, f"{RL} --config-name theirs")) == {"config theirs": "model"}


@pytest.mark.parametrize(
    ("text", "key", "asked"),
    [
        (RL.replace("n_gpus_per_node=8", "n_gpus_per_node=$N"), "num_gpus", "trainer.n_gpus_per_node is $N"),
        (SFT.replace("=4", "=$1"), "num_gpus", "trainer.n_gpus_per_node is $1"),
        (
            NEW.replace("torchrun --nproc_per_node=4", "python"),
            "num_gpus",
            "the launcher's processes are not in the file",
        ),
        (RL.replace("length=512", "length=$LONG"), "sequence_length", "data.max_prompt_length is $LONG"),
        (RL.replace("per_gpu=4", "per_gpu=$B"), "batch_size", f"{A}ppo_micro_batch_size_per_gpu is $B"),
    ],
)
def test_what_is_not_in_the_file_is_asked_for(tmp_path: Path, text: str, key: str, asked: str) -> None:
    found = read(tmp_path, text)
    assert [(each.asks, each.why) for each in found.unread if each.asks] == [(key, asked)]
    assert not [each for each in read(tmp_path, text, "run.sh", **{key: 64}).unread if each.asks]


def test_a_switch_that_is_not_in_the_file_is_told(tmp_path: Path) -> None:
    found = read(tmp_path, f"{RL} {A}use_kl_loss=$KL {M}enable_gradient_checkpointing=$GC trainer.experiment_name=$X")
    assert deciding(found) == {f"{A}use_kl_loss": "method", f"{M}enable_gradient_checkpointing": "checkpointing"}


@pytest.mark.parametrize(
    ("more", "key", "subject"),
    [
        ("reward_model.enable=True", "reward_model.enable", "model"),
        (f"+{OPTIM}override_optimizer_config.amsgrad=True", f"{OPTIM}override_optimizer_config.amsgrad", "optimizer"),
        ("data.max_begin_length=2048", "data.max_begin_length", "lengths"),
        ("model_engine=veomni", "model_engine", "parallelism"),
        (f"{A}strategy=megatron {A}megatron.use_megatron_fsdp=True", f"{A}megatron.use_megatron_fsdp", "parallelism"),
        (f"{A}strategy=megatron {A}megatron.forward_only=True", f"{A}megatron.forward_only", "method"),
        (f"{M}path=Qwen/Qwen2.5-VL-7B-Instruct", f"{M}path", "lengths"),
        ("algorithm.adv_estimator=gae critic.strategy=fsdp2", "critic.strategy", "checkpointing"),
        ("algorithm.adv_estimator=mine critic.model.path=Qwen/Qwen2.5-0.5B", "algorithm.adv_estimator", "method"),
        (f"+{M}torch_dtype=bfloat16", f"{M}torch_dtype", "precision"),
        (f"+{A}freeze_embedding=True", f"{A}freeze_embedding", "freezing"),
    ],
)
def test_what_decides_and_is_not_counted(tmp_path: Path, more: str, key: str, subject: str) -> None:
    assert deciding(read(tmp_path, f"{RL} {more}")) == {key: subject}


@pytest.mark.parametrize(
    ("name", "rests"), [("freeze_embedding", True), ("unfreeze_embedding", False), ("tune_embedding", False)]
)
def test_what_trains_more_is_no_bound(tmp_path: Path, name: str, rests: bool) -> None:
    (found,) = [each for each in read(tmp_path, f"{RL} +{A}{name}=True").unread if each.decides]
    assert found.above == rests


@pytest.mark.slow
def test_an_engine_on_the_trainer_s_cards_is_counted_and_one_elsewhere_is_not(tmp_path: Path) -> None:
    path, found = tmp_path / "run.sh", {}
    for more in (
        "",
        f"{R}name=trtllm",
        "actor_rollout_ref.hybrid_engine=False",
        "--config-name=fully_async_ppo_trainer",
    ):
        path.write_text(f"{RL} {more}", encoding="utf-8")
        found[more] = check_file(str(path), {"gpu": "h100-80gb", "model": "qwen2.5-0.5b"})
    beside, other, *apart = found.values()
    assert (beside.fits, other.fits, other.exit_code) == ("yes", "unclear", 2)
    assert "the generation engine (trtllm) beside the trainer is not counted; without that" in other.text
    assert all(each.fits == "yes" and each.device_bytes < beside.device_bytes for each in apart)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: {path: x}\nmodel: {path: y}\nrollout: {n: 1}\n", "verl's generation or evaluation, no training"),
        (
            "_target_: verl.workers.config.FSDPActorConfig\nstrategy: fsdp\n",
            "a part of verl's configuration, no training",
        ),
    ],
)
def test_what_is_no_training_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        read(tmp_path, text, "config.yaml")


def test_search_r1_joins_its_turns_behind_the_prompt(tmp_path: Path) -> None:
    turns = RL.replace("data.max_prompt_length=512", "data.max_prompt_length=4096")
    found = read(tmp_path, f"{turns} data.max_start_length=2048 data.max_obs_length=500")
    assert (found.job.sequence_length, found.job.completion_length) == (2048 + 4096, 4096)
    assert not deciding(found)
    loop = (
        "for turn in range(self.config.max_turns):\n    next_obs_ids = next_obs_ids[:, :self.config.max_obs_length]\n"
    )
    code = tmp_path / "search_r1/llm_agent/generation.py"
    code.parent.mkdir(parents=True)
    for number, lines, length in ((2, loop, 2 * (512 + 500) + 512), (9, loop, 4096), (2, loop[:40], 4096)):
        code.write_text(lines)
        job = read(tmp_path, f"{turns} data.max_start_length=2048 data.max_obs_length=500 max_turns={number}").job
        assert (job.sequence_length, job.completion_length) == (2048 + length, length)


SEES = RL.replace("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-VL-3B-Instruct")


@pytest.mark.parametrize(("more", "rests"), [("", True), ("trainer.use_v1=True", False)])
def test_a_tower_rests_in_the_workers_before_the_engine_of_0_9(tmp_path: Path, more: str, rests: bool) -> None:
    job = read(tmp_path, f"{SEES} {more} actor_rollout_ref.actor.freeze_vision_tower=True").job
    assert list(job.freeze) == (["vision_tower", "multi_modal_projector"] if rests else [])
    assert bool(job.fsdp and job.fsdp.use_orig_params) == rests


def test_images_are_bounded_by_the_prompt(tmp_path: Path) -> None:
    found = read(tmp_path, SEES)
    assert found.job.images is not None
    assert (found.job.images.per_example, found.job.images.tokens) == (1, 512 - 8)
    assert [each.asks for each in found.unread if each.above] == ["images"]
    text = read(tmp_path, SEES.replace("2.5-VL-3B-Instruct", "2.5-0.5B"))
    assert text.job.images is None


def test_packed_rows_with_images_are_whole_sequences(tmp_path: Path) -> None:
    dynamic = f"{SEES} {A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=5000"
    sized: dict[str, Any] = {"images": {"per_example": 1, "width": 448, "height": 448}}
    for options in ({}, sized):
        found = read(tmp_path, dynamic, **options)
        assert (found.job.batch_size, found.job.token_budget) == (5, None)
        assert "batch_size" in {each.asks for each in found.unread if each.above}


def test_a_critic_has_rows_and_checkpoints_of_its_own(tmp_path: Path) -> None:
    ppo = RL.replace("grpo", "gae")
    policy = read(tmp_path, ppo).job
    found = read(tmp_path, f"{ppo} critic.model.path=Qwen/Qwen2.5-1.5B {CRITIC}=8")
    (critic,) = found.job.extra_models
    assert (critic.model, critic.batch_size, found.job.batch_size) == ("Qwen/Qwen2.5-1.5B", 8, policy.batch_size)
    assert not [each.key for each in found.unread if each.above]
    dynamic = f"{A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=8192"
    packed = f"{ppo} {dynamic} {A}ppo_mini_batch_size=256 critic.model.use_remove_padding=True "
    (critic,) = read(tmp_path, packed).job.extra_models
    assert critic.token_budget == 32768  # verl's own, whatever the actor's
    (critic,) = read(tmp_path, f"{packed} critic.model.enable_gradient_checkpointing=False").job.extra_models
    assert critic.gradient_checkpointing == "none"


@pytest.mark.parametrize(
    ("said", "key", "decides"),
    [
        ("critic.model.fsdp_config.fsdp_size=4", "critic.model.fsdp_config.fsdp_size", "parallelism"),
        (f"{A}fsdp_config.model_dtype=bf16", f"{A}fsdp_config.model_dtype", "precision"),  # the critic's stays fp32
        (f"{A}fsdp_config.model_dtype=bf16 critic.fsdp.model_dtype=bf16", "", ""),
        ("critic.optim.optimizer=SGD", "critic.optim.optimizer", "optimizer"),
        (f"{MEGATRON} {A}{RECOMPUTE}=full", f"critic.{RECOMPUTE}", "checkpointing"),
        (f"{MEGATRON} {A}{RECOMPUTE}=full critic.{RECOMPUTE}=full", "", ""),
    ],
)
def test_a_critic_that_differs_from_the_policy_it_is_counted_as_is_unclear(
    tmp_path: Path, said: str, key: str, decides: str
) -> None:
    found = read(tmp_path, f"{RL.replace('grpo', 'gae')} {CRITIC}=4 {said}")
    assert deciding(found) == ({key: decides} if key else {})


def test_fewer_gpus_may_share_a_critics_or_a_references_sequences(tmp_path: Path) -> None:
    """Ulysses of the actor alone: a rank of the others has as many times the tokens."""
    ppo = f"{RL.replace('grpo', 'gae')} {CRITIC}=4 {A}ulysses_sequence_parallel_size=2"
    (critic,) = read(tmp_path, ppo).job.extra_models
    assert critic.batch_size == 8
    assert not read(tmp_path, f"{ppo} critic.ulysses_sequence_parallel_size=2").job.extra_models
    scores = f"{RL} {A}ulysses_sequence_parallel_size=2 {REFERENCE}log_prob_micro_batch_size_per_gpu=4"
    assert read(tmp_path, scores).job.logprob_token_budget is None
    assert read(tmp_path, f"{scores} {REFERENCE}ulysses_sequence_parallel_size=1").job.logprob_token_budget == 8 * 1024


@pytest.mark.parametrize(
    "said",
    [f"{A}ppo_mini_batch_size=banana", f"{A}ppo_mini_batch_size=-3", f"{A}ulysses_sequence_parallel_size=-3",
     "data.max_response_length=-1", "critic.ulysses_sequence_parallel_size=5", f"{CRITIC}=banana"],
)  # fmt: skip
def test_what_is_no_number_of_things_is_an_error_that_names_it(tmp_path: Path, said: str) -> None:
    key, _, value = said.partition("=")
    with pytest.raises(InvalidJob, match=rf"{key}: .*{value}"):
        read(tmp_path, f"{RL.replace('grpo', 'gae')} {said}")


def test_a_critic_that_pads_may_have_all_rows_in_one_micro_batch(tmp_path: Path) -> None:
    packed = f"{RL.replace('grpo', 'gae')} {A}use_dynamic_bsz=True critic.ppo_max_token_len_per_gpu=4096"
    (critic,) = read(tmp_path, f"{packed} critic.model.use_remove_padding=False").job.extra_models
    assert critic.token_budget == 16 * 1024


def test_weights_of_fsdp_that_stay_gathered(tmp_path: Path) -> None:
    kept, size = f"{A}fsdp_config.reshard_after_forward=False", f"{A}fsdp_config.fsdp_size=8"
    assert read(tmp_path, f"{RL} {kept}").job.fsdp.sharding_strategy == "SHARD_GRAD_OP"
    assert read(tmp_path, f"{RL} {kept} {size}").job.fsdp.sharding_strategy == "HYBRID_SHARD_ZERO2"
    reference = f"{REFERENCE}fsdp_config.reshard_after_forward"
    assert deciding(read(tmp_path, f"{RL} {A}use_kl_loss=True {reference}=False")) == {reference: "parallelism"}


def test_a_critics_values_are_within_other_passes_or_said(tmp_path: Path) -> None:
    ppo, rows = RL.replace("grpo", "gae"), "critic.forward_micro_batch_size_per_gpu"
    assert not deciding(read(tmp_path, f"{ppo} {CRITIC}=4 {rows}=4"))
    assert not deciding(read(tmp_path, f"{ppo} {CRITIC}=4 {rows}=8 {R}log_prob_micro_batch_size_per_gpu=8"))
    assert deciding(read(tmp_path, f"{ppo} {CRITIC}=4 {rows}=8")) == {rows: "batch"}
    budgets = f"{A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=8192 "
    budgets += f"{A}ppo_mini_batch_size=256 critic.model.use_remove_padding=True"
    said = "critic.forward_max_token_len_per_gpu"
    assert not deciding(read(tmp_path, f"{ppo} {budgets} {said}=32768"))  # the critic's update has as many by default
    assert deciding(read(tmp_path, f"{ppo} {budgets} {said}=65536")) == {said: "batch"}
    assert not deciding(read(tmp_path, f"{ppo} {budgets} {said}=65536 data.train_batch_size=128"))


def test_norms_of_mindspeeds_under_verl(tmp_path: Path) -> None:
    change = f"+{A}megatron.override_transformer_config.use_fused_rmsnorm"
    for word in ("True", "False"):
        found = read(tmp_path, f"{RL} {A}strategy=megatron {change}={word}")
        assert (found.job.megatron.norm_fusion, deciding(found)) == (word == "True", {})


def test_an_adapter_that_is_loaded_has_the_rank_that_is_said(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, f"{RL} {M}lora_adapter_path=x")) == {f"{M}lora_adapter_path": "adapters"}
    found = read(tmp_path, f"{RL} {M}lora_adapter_path=x {M}lora_rank=8")
    assert not deciding(found)
    assert any("counted as lora_rank says" in line for line in found.warnings)


def test_an_estimator_of_a_fork_has_a_critic_where_the_file_describes_one(tmp_path: Path) -> None:
    alone = read(tmp_path, f"{RL} algorithm.adv_estimator=mine")
    assert (alone.job.method, deciding(alone)) == ("grpo", {})
    assert any("mine is counted as grpo" in warning for warning in alone.warnings)
    critic = f"critic.model.path=Qwen/Qwen2.5-0.5B {CRITIC}=4"
    assert read(tmp_path, f"{RL} algorithm.adv_estimator=mine {critic}").job.method == "ppo"


def test_the_trainer_in_the_project_says_whether_an_estimator_has_a_critic(tmp_path: Path) -> None:
    (tmp_path / "verl/trainer/ppo").mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    (tmp_path / "verl/trainer/ppo/ray_trainer.py").write_text(
        "log('turns')\nif kind in [AdvantageEstimator.GAE, AdvantageEstimator.TURN_GAIN]:\n    self.use_critic = True\n"
        "elif kind in [AdvantageEstimator.GRPO,\n    'turns']:\n    self.use_critic = False\n"
    )
    kinds = ("turn-gain", "turns", "other")
    methods = [read(tmp_path, f"{RL} algorithm.adv_estimator={kind}").job.method for kind in kinds]
    assert methods == ["ppo", "grpo", "grpo"]


def test_what_a_fork_sets_as_it_is_counted_is_no_doubt(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, f"{RL} +{M}attn_implementation=flash_attention_2")) == {}


def test_before_0_4_there_always_is_a_reference(tmp_path: Path) -> None:
    recipe = f"{RL} {A}ppo_micro_batch_size=32 {R}log_prob_micro_batch_size=32"
    newer = f"{RL} algorithm.use_kl_in_reward=False {R}mode=async"
    assert [read(tmp_path, text).job.reference for text in (recipe, newer)] == ["offloaded", "none"]


def test_scores_of_more_tokens_than_the_update_on_megatron(tmp_path: Path) -> None:
    text = f"{RL} {A}strategy=megatron {R}log_prob_micro_batch_size_per_gpu=16"
    found = read(tmp_path, text)
    assert (found.job.batch_size, found.job.logprob_token_budget) == (4, 16384)
    assert not [each for each in found.unread if each.decides == "batch"]


def test_a_validation_alone_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{RL} +trainer.val_only=True\n", encoding="utf-8")
    assert check_file(str(tmp_path / "run.sh"), {"gpu": "h100-80gb"}).fits == "skipped"
    (tmp_path / "config.yaml").write_text(EASY.replace("nnodes: 1", "val_only: true"), encoding="utf-8")
    assert check_file(str(tmp_path / "config.yaml"), {"gpu": "h100-80gb"}).fits == "skipped"


def test_an_engine_of_a_forks_own_class_is_the_engine(tmp_path: Path) -> None:
    found = read(tmp_path, f"{RL} {R}name=vllm_multi_turn {R}tensor_model_parallel_size=\\$TP")
    assert found.job.model_dump()["rollout"]["engine"] == "vllm"
    assert [each.asks for each in found.unread if each.decides] == ["rollout.tensor_parallel"]


@pytest.mark.parametrize(
    "more", ["data.mine.model_family=x", "actor_rollout_ref.ref.megatron.override_transformer_config.any_parallel=1"]
)
def test_a_name_of_data_or_of_the_reference_is_no_doubt(tmp_path: Path, more: str) -> None:
    assert deciding(read(tmp_path, f"{RL} {more}")) == {}


def test_turns_of_a_forks_own_may_lengthen_sequences(tmp_path: Path) -> None:
    assert deciding(read(tmp_path, f"{RL} {R}num_turns=2")) == {f"{R}num_turns": "lengths"}
    assert deciding(read(tmp_path, f"{RL} {R}max_gen_round=3")) == {f"{R}max_gen_round": "lengths"}
    assert deciding(read(tmp_path, f"{RL} {R}response_length_total=2048")) == {f"{R}response_length_total": "lengths"}
    assert deciding(read(tmp_path, f"{RL} {R}agent.max_turns=2 {R}response_length_total=512")) == {}
    budget = f"{A}use_dynamic_bsz=True {M}use_remove_padding=True {A}ppo_max_token_len_per_gpu=8192"
    assert deciding(read(tmp_path, f"{RL} {R}num_turns=2 {budget}")) == {}


def test_a_reward_model_has_an_engine_of_its_own(tmp_path: Path) -> None:
    """verl 0.7 on; in older ones FSDP wraps it, and it is not counted."""
    at = "reward_model."
    asked = f"{RL} {at}enable=True {at}model.path=Qwen/Qwen2.5-1.5B {at}rollout.name=vllm"
    found = read(tmp_path, f"{asked} {at}rollout.gpu_memory_utilization=0.8 {at}rollout.tensor_model_parallel_size=1")
    (reward,) = found.job.extra_models
    assert reward.rollout is not None
    assert (reward.role, reward.rollout.gpu_memory_utilization, reward.rollout.tensor_parallel) == ("reward", 0.8, 1)
    assert (reward.rollout.max_model_len, reward.rollout.enforce_eager) == (4096, True)
    assert not deciding(found)
    assert deciding(read(tmp_path, f"{asked} {at}use_reward_loop=False")) == {f"{at}enable": "model"}
    apart = read(tmp_path, f"{asked} {at}enable_resource_pool=True")
    assert not apart.job.extra_models
    assert not deciding(apart)


ON_THE_HOST = "reward_model.model.fsdp_config.param_offload=True"
REWARD = f"reward_model.enable=True {ON_THE_HOST} reward_model.micro_batch_size_per_gpu=16 reward_model.model.path="


@pytest.mark.parametrize(
    ("more", "above", "scored"),
    [
        (f"{REWARD}Qwen/Qwen2.5-0.5B", [True], 16 * 1024),
        (f"{REWARD}Qwen/Qwen2.5-1.5B", [False], None),
        (f"{REWARD}nobody/reward", [False], None),
        (f"{REWARD}Qwen/Qwen2.5-0.5B {ON_THE_HOST.replace('True', 'False')}", [False], None),
        (f"{REWARD}Qwen/Qwen2.5-1.5B reward_model.enable_resource_pool=True", [], None),
    ],
)
def test_a_reward_model_that_waits_on_the_host_scores_as_the_policy_does(
    tmp_path: Path, more: str, above: list[bool], scored: int | None
) -> None:
    found = read(tmp_path, f"{RL} {more}")
    assert [each.above for each in found.unread if each.key == "reward_model.enable"] == above
    assert found.job.logprob_token_budget == scored
    if above == [True]:  # beside the option's model too
        assert read(tmp_path, f"{RL} {more}", model="Qwen/Qwen2.5-0.5B").job.logprob_token_budget == scored


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        (f"{R}gpu_memory_utilization=0.01 {M}enable_activation_offload=True", "no"),
        (f"{R}gpu_memory_utilization=0.01 reward_model.enable=True", "unclear"),
        (f"{R}gpu_memory_utilization=0.4 {A}optim.optimizer=Mine", "unclear"),
    ],
)
def test_no_bound_of_the_training_makes_room_for_an_engine_that_does_not_start(
    tmp_path: Path, more: str, fits: str
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{RL} {R}name=vllm {more}\n")
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == fits


@pytest.mark.parametrize(("mini", "rows", "above"), [(64, 16, [True]), (8, 2, [])])
def test_a_budget_of_tokens_over_padded_rows_bounds_no_rows(
    tmp_path: Path, mini: int, rows: int, above: list[bool]
) -> None:
    """Short sequences may all stand in one micro-batch, each padded to the longest."""
    more = f"{A}use_dynamic_bsz=True {M}use_remove_padding=False {A}ppo_max_token_len_per_gpu=4096"
    found = read(tmp_path, f"{RL} {more} {R}log_prob_use_dynamic_bsz=False".replace("size=64", f"size={mini}"))
    assert (found.job.batch_size, found.job.token_budget) == (rows, None)
    assert [each.above for each in found.unread] == above


@pytest.mark.parametrize(("more", "above"), [("", True), (PRECISE, False)])
def test_states_on_the_host_without_the_precision_aware_optimizer(tmp_path: Path, more: str, above: bool) -> None:
    found = read(tmp_path, f"{RL} {A}strategy=megatron {HOST} {more}")
    assert found.job.megatron.optimizer_cpu_offload is not above
    assert [each.above for each in found.unread if each.key.endswith("optimizer_cpu_offload")] == [True] * above


@pytest.mark.parametrize(("coefficient", "above"), [("0", []), ("0.01", [True])])
def test_a_checkpointed_entropy_holds_no_more_than_is_counted(
    tmp_path: Path, coefficient: str, above: list[bool]
) -> None:
    found = read(tmp_path, f"{RL} {A}entropy_checkpointing=True {A}entropy_coeff={coefficient}")
    assert [each.above for each in found.unread if each.key.endswith("entropy_checkpointing")] == above


@pytest.mark.parametrize(
    ("more", "above"),
    [
        (f"{A}ppo_max_token_len_per_gpu=8192", True),
        (f"{A}ppo_max_token_len_per_gpu=4096", False),
        (f"{A}ppo_max_token_len_per_gpu=4096 {A}ulysses_sequence_parallel_size=2", False),
        (f"{A}ppo_max_token_len_per_gpu=8192 {A}entropy_coeff=0.01", False),
    ],
)
def test_an_entropy_of_parts_takes_less_where_the_rows_are_many_and_no_gradient_goes_through_it(
    tmp_path: Path, more: str, above: bool
) -> None:
    packed = f"{M}use_remove_padding=True {A}use_dynamic_bsz=True"
    text = f"{RL} {A}entropy_from_logits_with_chunking=True {packed} {more}"
    found = read(tmp_path, text)
    assert [each.above for each in found.unread if each.key.endswith("_chunking")] == [above]
