"""Proves what RL frameworks' files say of what generates: engine, place, share, sizes, sleep, offload, buckets, and of
a server that the same script starts its cards."""

from pathlib import Path
from typing import Any

import pytest

from memplan.api import estimate
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.reading import read_target
from memplan.frameworks.registry import find_framework
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job

TRL = """accelerate launch --num_processes 4 train_grpo.py --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name x \\
  --num_generations 8 --per_device_train_batch_size 8 --max_prompt_length 512 --max_completion_length 512 """
V = "actor_rollout_ref."
VERL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=ESTIMATOR data.max_prompt_length=512 \\
  data.max_response_length=512 {V}model.path=Qwen/Qwen2.5-0.5B-Instruct {V}actor.ppo_micro_batch_size_per_gpu=4 \\
  {V}rollout.name=vllm trainer.n_gpus_per_node=8 """
RLHF = """python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --actor_num_gpus_per_node 4 --bf16 \\
  --flash_attn --advantage_estimator group_norm --vllm_num_engines 2 --vllm_tensor_parallel_size 2 """
UNSLOTH = """import os
os.environ["UNSLOTH_VLLM_STANDBY"] = "STANDBY"
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer
model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-0.5B", max_seq_length=1024, load_in_4bit=True,
    fast_inference=True, max_lora_rank=32, gpu_memory_utilization=0.6)
model = FastLanguageModel.get_peft_model(model, r=32, lora_alpha=32, target_modules=["q_proj", "v_proj"])
args = GRPOConfig(use_vllm=True, per_device_train_batch_size=4, num_generations=4, max_prompt_length=256,
    max_completion_length=768, output_dir="x")
GRPOTrainer(model=model, processing_class=tokenizer, reward_funcs=[len], args=args, train_dataset=None).train()
"""


def read(tmp_path: Path, text: str, name: str = "run.sh", **options: Any) -> JobInput:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_target(str(path), options)


def rollout(found: JobInput) -> dict[str, Any]:
    assert found.job.rollout is not None
    values = found.job.rollout.model_dump(exclude_none=True)
    values.pop("group_size", None)
    return values


@pytest.mark.parametrize(
    ("more", "gpus", "placement"),
    [
        ("--vllm_dtype bfloat16", 1, "colocate"),  # TRL 0.15 shares the only card
        ("--vllm_dtype bfloat16", None, "separate"),
        ("", 1, "colocate"),
        ("--vllm_device auto", 1, "colocate"),
        ("--vllm_device auto", 4, "separate"),
        ("--vllm_device cuda:1", 1, "separate"),
    ],
)
def test_vllm_shares_the_only_card(tmp_path: Path, more: str, gpus: int | None, placement: str) -> None:
    options: dict[str, Any] = {"num_gpus": gpus} if gpus else {}
    text = TRL.replace("num_processes 4", f"num_processes {gpus or 1}")
    found = read(tmp_path, f"{text}--use_vllm {more}", trainer_version="0.15", **options)
    assert found.job.rollout is not None
    assert found.job.rollout.placement == placement
    assert any("with --num-gpus 1 it shares" in each for each in found.warnings) is (gpus is None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{TRL}--use_vllm false", {"engine": "hf"}),
        (f"{TRL}--use_vllm", {"engine": "vllm"}),
        (
            f"{TRL}--use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.4 --vllm_tensor_parallel_size 2 "
            "--vllm_max_model_length 2048 --vllm_enable_sleep_mode true --steps_per_generation 4",
            {"engine": "vllm", "placement": "colocate", "gpu_memory_utilization": 0.4, "tensor_parallel": 2,
             "max_model_len": 2048, "sleep": "1", "max_num_seqs": 64},  # max_prompt_length: TRL 0.28
        ),
        (f"{TRL}--use_vllm --vllm_server_host 10.0.0.1", {"engine": "vllm", "placement": "separate"}),
        (f"{TRL}--use_vllm --vllm_device auto", {"engine": "vllm", "placement": "separate", "num_gpus": 1}),
        (f"{TRL}--use_vllm --vllm_device cuda:0", {"engine": "vllm", "placement": "colocate"}),
        (
            f"CUDA_VISIBLE_DEVICES=6,7 trl vllm-serve --model m --tensor-parallel-size 2 --max-model-len 4096 &\n"
            f"CUDA_VISIBLE_DEVICES=0,1,2,3 {TRL}--use_vllm",
            {"engine": "vllm", "placement": "separate", "num_gpus": 2, "tensor_parallel": 2, "max_model_len": 4096},
        ),
        (
            f"CUDA_VISIBLE_DEVICES=3 trl vllm-serve --model m --gpu_memory_utilization 0.3 &\n"
            f"CUDA_VISIBLE_DEVICES=0,1,2,3 {TRL}--use_vllm --vllm_mode server",
            {"engine": "vllm", "placement": "colocate", "process": "own", "gpu_memory_utilization": 0.3},
        ),
        (
            f"{VERL.replace('ESTIMATOR', 'grpo')} {V}rollout.gpu_memory_utilization=0.7 {V}rollout.max_num_seqs=512 "
            f"{V}rollout.tensor_model_parallel_size=4 {V}rollout.free_cache_engine=False {V}rollout.enforce_eager=True "
            f"+{V}rollout.engine_kwargs.vllm.kv_cache_dtype=fp8",  # verl 0.5 gives its engine no max_num_seqs
            {"engine": "vllm", "gpu_memory_utilization": 0.7, "tensor_parallel": 4, "sleep": "none",
             "enforce_eager": True, "kv_dtype": "fp8"},
        ),
        (
            f"{VERL.replace('ESTIMATOR', 'grpo')} {V}rollout.max_num_seqs=512 {V}rollout.data_parallel_size=1",  # 0.6
            {"engine": "vllm", "max_num_seqs": 512, "data_parallel": 1},
        ),
        (
            f"{VERL.replace('ESTIMATOR', 'grpo')} +{V}rollout.engine_kwargs.vllm.max_num_seqs=64",
            {"engine": "vllm", "max_num_seqs": 64},
        ),
        (
            VERL.replace("ESTIMATOR", "grpo").replace("=vllm", "=sglang") + f"{V}rollout.gpu_memory_utilization=0.5",
            {"engine": "sglang", "mem_fraction_static": 0.5},
        ),
        (
            f"{RLHF}--colocate_all_models --vllm_gpu_memory_utilization 0.5 --vllm_enable_sleep --enforce_eager",
            {"engine": "vllm", "placement": "colocate", "process": "own", "tensor_parallel": 2,
             "gpu_memory_utilization": 0.5, "sleep": "1", "enforce_eager": True},
        ),
        (RLHF, {"engine": "vllm", "placement": "separate", "tensor_parallel": 2, "num_gpus": 4}),
        (
            "NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --tuner_type full --max_length 512 "
            "--use_vllm true --vllm_mode colocate --sleep_level 1 --vllm_gpu_memory_utilization 0.5",
            {"engine": "vllm", "placement": "colocate", "process": "same", "sleep": "1", "gpu_memory_utilization": 0.5},
        ),
    ],
)  # fmt: skip
def test_what_generates_is_read(tmp_path: Path, text: str, said: dict[str, Any]) -> None:
    found = read(tmp_path, text)
    assert rollout(found) == said
    assert not [each for each in found.unread if each.decides == "engine" and not each.above]


@pytest.mark.parametrize(
    ("before", "version"),
    [
        ("export VLLM_ATTENTION_BACKEND=XFORMERS", "0.8.4"),
        ("export VLLM_USE_V1=0", "0.8.4"),
        ("export VLLM_ATTENTION_BACKEND=XFORMERS VLLM_USE_V1=1", None),
        ("export VLLM_ATTENTION_BACKEND=FLASH_ATTN", None),
        ("export VLLM_ATTENTION_BACKEND=XFORMERS\nray job submit --", None),
    ],
)
def test_vllm_s_first_engine_is_what_the_environment_asks_for(tmp_path: Path, before: str, version: str | None) -> None:
    """Of verl 0.5, with vLLM 0.8.5: its profile run is of 256 sequences on any card."""
    gap = " " if before.endswith("--") else "\n"
    text = f"{before}{gap}{VERL.replace('ESTIMATOR', 'grpo')} {V}rollout.layered_summon=True"
    assert rollout(read(tmp_path, text)).get("engine_version") == version
    (tmp_path / "requirements.txt").write_text("vllm==0.11.0\n", encoding="utf-8")
    assert rollout(read(tmp_path, text)).get("engine_version") is None


@pytest.mark.parametrize(("many", "version", "told"), [(4, "0.8.4", True), (4, "0.9.2", False), (1, "0.8.4", False)])
def test_images_of_a_prompt_are_asked_for_where_all_are_profiled(
    tmp_path: Path, many: int, version: str, told: bool
) -> None:
    text = f"{VERL.replace('ESTIMATOR', 'grpo')} {V}rollout.layered_summon=True {V}rollout.limit_images={many}"
    found = read(tmp_path, text, rollout={"engine_version": version})
    assert ([each.decides for each in found.unread if "limit_images" in each.key] == ["engine"]) == told


def test_a_server_s_cards_are_not_the_trainer_s(tmp_path: Path) -> None:
    text = f"CUDA_VISIBLE_DEVICES=7 trl vllm-serve --model m &\nCUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6 {TRL}--use_vllm"
    job = read(tmp_path, text.replace("--num_processes 4", "--num_processes 7").replace("size 8", "size 8")).job
    assert job.rollout is not None
    assert (job.num_gpus, job.rollout.num_gpus) == (7, 1)
    few = text.replace("--model m", "--model m --tensor-parallel-size 4")
    assert [each.key for each in read(tmp_path, few).unread if each.decides] == ["tensor_parallel_size"]


@pytest.mark.parametrize(("standby", "sleep"), [("0", "none"), ("1", "1")])
def test_unsloth_s_engine_has_the_trainer_s_weights(tmp_path: Path, standby: str, sleep: str) -> None:
    found = read(tmp_path, UNSLOTH.replace('"STANDBY"', f'"{standby}"'), "train.py")
    assert rollout(found) == {"engine": "vllm", "placement": "colocate", "process": "same", "shared_weights": True,
                              "gpu_memory_utilization": 0.6, "max_model_len": 1024, "max_num_seqs": 256,
                              "sleep": sleep}  # fmt: skip
    assert found.job.kernels == "unsloth"
    assert resolve(found).loss.head == "compiled-unsloth-log-probs"
    engine = resolve(found).generator
    assert engine is not None
    assert engine.quantization == "nf4"  # as the trainer's modules are, under the engine's name
    older = read_target(str(tmp_path / "train.py"), {"trainer_version": "0.28"})  # where silence means a server
    assert not [each.key for each in older.unread if each.decides == "engine"]


def test_the_logits_of_unsloth_s_log_probabilities_stay_for_backward() -> None:
    """In 16 bits, each chunk's; and the gradient of one, of four a row."""
    rows, length, prompt = 4, 2048, 1024
    job = {"model": "llama-3.2-1b", "method": "grpo", "trainer": "trl", "kernels": "unsloth", "lora": {"r": 8},
           "precision": "bf16", "batch_size": rows, "sequence_length": length,
           "completion_length": length - prompt}  # fmt: skip
    logits = rows * (length - prompt) * 128_256 * 2
    found = estimate(job).per_gpu
    assert found.peak_instant == "policy.loss-backward"
    assert found.by_category["logits"] == logits + logits // (4 * rows)
    assert found.allocated_range.high - found.allocated_bytes > logits  # as much again in fp32, where nothing compiles


def test_unsloth_s_lengths_are_bounded_by_what_its_engine_takes(tmp_path: Path) -> None:
    text = UNSLOTH.replace("max_prompt_length=256", "max_prompt_length=len(data[0]) + 1")
    for completion, length in (("768", 1024 + 768), ("1024 - max_prompt_length", 1024)):
        found = read(
            tmp_path, text.replace("max_completion_length=768", f"max_completion_length={completion}"), "run.py"
        )
        assert found.job.sequence_length == length
        assert {each.above for each in found.unread if each.decides == "lengths"} == {True}


@pytest.mark.parametrize(("longest", "lengths", "model"), [(4096, (1024, 512), 4096), (400, (800, 400), 800)])
def test_prompt_and_completion_are_no_longer_than_the_engine_takes(
    tmp_path: Path, longest: int, lengths: tuple[int, int], model: int
) -> None:
    found = read(tmp_path, f"{TRL}--use_vllm --vllm_mode colocate --vllm_max_model_length {longest}")
    assert (found.job.sequence_length, found.job.completion_length) == lengths
    assert rollout(found)["max_model_len"] == model
    assert resolve(found).generator is not None


def test_a_checkpoint_that_the_engine_serves_quantised_is_its_own(tmp_path: Path) -> None:
    text = (
        "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint Qwen/Qwen3-4B-FP8 "
        "--rollout-max-response-len 1024 --use-dynamic-batch-size --max-tokens-per-gpu 2048"
    )
    assert rollout(read(tmp_path, text))["quantization"] == "fp8"
    found = read(tmp_path, text.replace("FP8", "INT4"))
    assert {each.key: each.decides for each in found.unread if each.decides} == {"hf_checkpoint": "engine"}


def test_what_a_policy_and_a_critic_both_move_is_away(tmp_path: Path) -> None:
    at = f"{V}actor.fsdp_config."
    away = f"{at}param_offload=True {at}optimizer_offload=True {V}rollout.layered_summon=True "
    away += f"{V}rollout.update_weights_bucket_megabytes=512 "
    found = read(tmp_path, VERL.replace("ESTIMATOR", "grpo") + away)
    assert found.job.trainer_offload == ("parameters", "optimizer", "gradients")
    assert (found.job.sync.bucket_bytes, found.job.sync.gather) == (512 * 2**20, "unit")
    ppo = read(tmp_path, VERL.replace("ESTIMATOR", "gae") + away + "critic.model.fsdp_config.optimizer_offload=True")
    assert ppo.job.trainer_offload == ("optimizer",)
    assert [each.above for each in ppo.unread if each.decides == "engine"] == [True]


@pytest.mark.parametrize(
    ("said", "gather"),
    [("load_format=safetensors", "model"), ("load_format=dummy", None), ("layered_summon=True", "unit")],
)
def test_an_engine_with_weights_of_its_own_needs_no_base_from_the_trainer(
    tmp_path: Path, said: str, gather: str | None
) -> None:
    text = f"{VERL.replace('ESTIMATOR', 'grpo')} actor_rollout_ref.model.lora_rank=8 {V}rollout.{said}"
    assert read(tmp_path, text).job.sync.gather == gather


@pytest.mark.parametrize(
    ("said", "above"), [("_mode server", True), ("_server_host 10.0.0.1", True), ("_mode colocate", False)]
)
def test_a_server_whose_command_is_not_here_decides_no_refusal(tmp_path: Path, said: str, above: bool) -> None:
    found = read(tmp_path, f"{TRL}--use_vllm --vllm{said}")
    assert any("says how it runs" in each.why for each in found.unread) is above


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        (f"{TRL}--use_vllm --vllm_gpu_memory_utilization 1.4", "vllm_gpu_memory_utilization", "'1.4' is no share"),
        (f"{TRL}--use_vllm --vllm_gpu_memory_utilization $UTIL", "rollout.gpu_memory_utilization", "$UTIL"),
        (f"{TRL}--use_vllm --vllm_mode remote", "rollout.placement", "remote is neither server nor colocate"),
        (f"{TRL}--use_transformers_paged", "use_transformers_paged", "continuous batching"),
        (
            f"{VERL.replace('ESTIMATOR', 'grpo')} {V}rollout.gpu_memory_utilization=$UTIL",
            f"{V}rollout.gpu_memory_utilization",
            "not in the file",
        ),
        (
            f"{VERL.replace('ESTIMATOR', 'grpo')} +{V}rollout.engine_kwargs.vllm.speculative_config=x",
            f"{V}rollout.engine_kwargs.vllm.speculative_config",
            "not modelled",
        ),
    ],
)
def test_what_is_not_understood_of_an_engine_is_unclear(tmp_path: Path, text: str, key: str, why: str) -> None:
    found = next(each for each in read_unread(tmp_path, text) if each["key"] == key)
    assert found["decides"] == "engine"
    assert why in found["why"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{VERL.replace('ESTIMATOR', 'grpo')} reward_model.prime_model.path=x", "reward_model.prime_model.path"),
        (
            VERL.replace("ESTIMATOR", "grpo").replace("python3 -m verl.trainer.main_ppo", "bash $ROOT/other.sh"),
            "other.sh",
        ),
    ],
)
def test_what_stands_beside_and_is_not_read_is_unclear(tmp_path: Path, text: str, key: str) -> None:
    assert any(each["key"].endswith(key) and each["decides"] == "model" for each in read_unread(tmp_path, text))


@pytest.mark.slow
def test_an_engine_that_does_not_start_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"{TRL}--use_vllm --vllm_mode colocate --vllm_gpu_memory_utilization 0.01", encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb"})
    assert (found.fits, "the engine does not start" in found.text) == ("no", True)
    assert found.hint or found.remedy


def test_a_ring_shares_a_micro_batch_and_its_budget(tmp_path: Path) -> None:
    """By the ring: tokens of a micro-batch, those scored before the update, the GPUs that take micro-batches."""
    ring = f"{RLHF}--ring_attn_size 2 --packing_samples --prompt_max_len 512 --generate_max_len 512 "
    budget = "--use_dynamic_batch --train_max_tokens_per_gpu 2048 --rollout_max_tokens_per_gpu 3072 "
    whole, fixed, halves = (read(tmp_path, text).job for text in (
        ring + budget, f"{ring}--micro_train_batch_size 2 --train_batch_size 64",
        f"{RLHF}--ring_attn_size 4 {budget} --max_len 32768"))  # fmt: skip
    assert (whole.context_parallel, whole.token_budget, whole.logprob_token_budget) == (2, 4096, 6144)
    assert (fixed.context_parallel, fixed.batch_size, fixed.gradient_accumulation_steps) == (2, 2, 16)
    assert (halves.context_parallel, halves.token_budget, halves.logprob_token_budget) == (4, 32768, None)


def read_unread(tmp_path: Path, text: str) -> tuple[Any, ...]:
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    found = check_file(str(path), {"gpu": "h100-80gb", "num_gpus": 8})
    assert found.fits == "unclear"
    return tuple(found.unread)


@pytest.mark.parametrize(
    ("name", "keys", "written"),
    [
        ("trl", {"engine": "vllm", "placement": "colocate", "gpu_memory_utilization": 0.45, "sleep": "2"},
         "vllm_gpu_memory_utilization: 0.45"),
        ("trl", {"engine": "hf"}, "use_vllm: false"),
        ("verl", {"engine": "sglang", "mem_fraction_static": 0.55}, "gpu_memory_utilization: 0.55"),
        ("verl", {"max_num_seqs": 64, "sleep": "none"}, "free_cache_engine: false"),
        ("openrlhf", {"placement": "colocate", "gpu_memory_utilization": 0.4, "sleep": "1"}, "--vllm.enable_sleep"),
        ("openrlhf", {"placement": "separate", "num_gpus": 2}, "--vllm.num_engines 2"),
    ],
)  # fmt: skip
def test_what_generates_is_written_and_read_again(name: str, keys: dict[str, Any], written: str) -> None:
    sharding = {"verl": "fsdp2", "openrlhf": "zero3", "trl": "zero2"}[name]
    values = {"model": "qwen2.5-0.5b", "method": "grpo", "num_gpus": 4, "sharding": sharding, "trainer": name,
              "completion_length": 256, "sequence_length": 512, "gpu": "h100-80gb", "rollout": keys}  # fmt: skip
    emission = emit(read_job(values), find_framework(name))
    assert any(written in text for text in emission.texts.values())


@pytest.mark.parametrize("each", [1, 2])
def test_processes_beside_an_engine_on_its_own_cards_train_alone(tmp_path: Path, each: int) -> None:
    text = (
        f"NPROC_PER_NODE={each} swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B --use_vllm true "
        "--vllm_mode server --max_length 512 --max_completion_length 512 --deepspeed zero2\n"
    )
    (tmp_path / "run.sh").write_text(text)
    assert read_target(str(tmp_path / "run.sh"), {"num_gpus": 8}).job.num_gpus == each


def test_what_the_engine_takes_bounds_a_prompt_of_trl(tmp_path: Path) -> None:
    without = TRL.replace("--max_prompt_length 512 ", "")
    assert read(tmp_path, f"{without}--use_vllm --vllm_max_model_length 4096").job.sequence_length == 4096
    assert read(tmp_path, f"{without}--use_vllm").job.sequence_length == 1024


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("accelerate launch --num_processes 8 ppo.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_prompt_length 512 "
         "--response_length 512 --bf16", 32),
        ("NPROC_PER_NODE=8 swift rlhf --rlhf_type ppo --model Qwen/Qwen2.5-0.5B --train_type full --max_length 512 "
         "--max_completion_length 512 --use_vllm true --local_rollout_forward_batch_size 16", 16),
    ],
)  # fmt: skip
def test_ppo_of_trl_generates_and_scores_a_ranks_batch_at_once(tmp_path: Path, command: str, rows: int) -> None:
    """Its loop keeps the fp32 logits of all completions, and scores up to 64 sequences whole."""
    found = read(tmp_path, f"{command} --per_device_train_batch_size 1 --gradient_accumulation_steps 32\n")
    assert rollout(found) == {"engine": "hf", "max_num_seqs": rows}
    assert found.job.logprob_token_budget == rows * 1024
    sizes = {row.name: row.bytes for row in estimate(found.job, play=False).per_gpu.ledger}
    assert sizes["logits of all completions, from their generation"] == 32 * 512 * 151936 * 4
