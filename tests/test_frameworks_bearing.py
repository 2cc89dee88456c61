"""Proves that keys which bear on memory and are not modelled are named, each by name, and that those which have a word
in a job are read: a row for each that was once passed over.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from framework_cases import FILES, changed, decided

from memplan.api import estimate
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import read_target
from memplan.resolve import resolve
from memplan.spec.reading import JobInput

SFT = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nassistant_only_loss: true\n"
DPO = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nrpo_alpha: 0\n"
CPO = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\ncpo_alpha: 1.0\n"
GRPO = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nscale_rewards: true\n"
GKD = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: x\nteacher_model_name_or_path: Qwen/Qwen2.5-1.5B\n"
TRAINER = "model_name_or_path: Qwen/Qwen2.5-0.5B\noutput_dir: out\nper_device_train_batch_size: 1\n"
FACTORY = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ntemplate: qwen\nfinetuning_type: full\n"
AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\ndatasets: []\nmicro_batch_size: 1\nsequence_len: 512\n"
QLORA = f"{AXOLOTL}adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\n"
CONFIG = "distributed_type: 'NO'\ncompute_environment: LOCAL_MACHINE\nnum_processes: 1\n"
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 1\n  "
FSDP += "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  "
TITAN = FILES["torchtitan"][1]
LITGPT = FILES["litgpt"][1]
EVALUATES = "eval_strategy: steps\n"


def read(tmp_path: Path, text: str, name: str = "train.yaml", **options: Any) -> JobInput:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_target(str(path), options)


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        (TRAINER, "label_smoothing_factor: 0.1", "label_smoothing_factor"),
        (TRAINER, "full_determinism: true", "full_determinism"),
        (TRAINER, "include_for_metrics: [inputs]", "include_for_metrics"),
        (TRAINER, "half_precision_backend: apex", "half_precision_backend"),
        (TRAINER, "torch_compile_backend: eager", "torch_compile_backend"),
        (TRAINER, "torch_compile_mode: reduce-overhead", "torch_compile_mode"),
        (TRAINER, "use_liger_kernel: true\nliger_kernel_config: {rope: false}", "liger_kernel_config.rope"),
        (TRAINER, "config_name: other/model", "config_name"),
        (f"{DPO}{EVALUATES}", "use_logits_to_keep: true", "use_logits_to_keep"),
        (DPO, "precompute_ref_log_probs: true\nprecompute_ref_batch_size: 64", "precompute_ref_batch_size"),
        (f"{DPO}use_peft: true\n", "disable_dropout: false", "disable_dropout"),
        (f"{CPO}{EVALUATES}", "generate_during_eval: true", "generate_during_eval"),
        (GKD, "dtype: float32", "dtype"),
        (GKD, "teacher_model_init_kwargs: {dtype: float32}", "teacher_model_init_kwargs"),
        (SFT, "packing: true\nper_device_train_batch_size: 2", "packing"),
        (f"{FACTORY}{EVALUATES}", "compute_accuracy: true", "compute_accuracy"),
        (f"{FACTORY}{EVALUATES}", "predict_with_generate: true", "predict_with_generate"),
        (FACTORY, "use_eaft_loss: true", "use_eaft_loss"),
        (FACTORY, "use_v1_kernels: auto", "use_v1_kernels"),
        (FACTORY, "label_smoothing_factor: 0.1", "label_smoothing_factor"),
        (AXOLOTL, "use_kernels: true", "use_kernels"),
        (AXOLOTL, "use_eaft: true", "use_eaft"),
        (AXOLOTL, "fused_attn_kernel: true", "fused_attn_kernel"),
        (AXOLOTL, "trainer_cls: my.Trainer", "trainer_cls"),
        (AXOLOTL, "rl: dpo\ndpo_use_weighting: true", "dpo_use_weighting"),
        (AXOLOTL, "fp32_norms: true", "fp32_norms"),
        (AXOLOTL, "liger_cross_entropy: true\nliger_rms_norm: true", "liger_cross_entropy"),
        (AXOLOTL, "base_model_config: other/model", "base_model_config"),
        (AXOLOTL, "val_set_size: 0.1\neval_sequence_len: 4096", "eval_sequence_len"),
        (AXOLOTL, "val_set_size: 0.1\ndo_causal_lm_eval: true", "do_causal_lm_eval"),
        (AXOLOTL, "plugins: [axolotl.integrations.grokfast.GrokfastPlugin]", "plugins"),
        (AXOLOTL, "plugins: [my.own.Plugin]", "plugins"),
        (AXOLOTL, "torch_compile: true\ntorch_compile_mode: max-autotune", "torch_compile_mode"),
        (AXOLOTL, "fsdp_version: 2\nfsdp_config: {mixed_precision_policy: fp32}", "fsdp_config"),
        (AXOLOTL, "context_parallel_size: 2\nring_attn_func: varlen_llama3", "ring_attn_func"),
        (QLORA, "lora_mlp_kernel: true", "lora_mlp_kernel"),
        (QLORA, "lora_rank_pattern: {'layers.0.self_attn.q_proj': 4}", "lora_rank_pattern"),
        (CONFIG, "dynamo_backend: INDUCTOR\ndynamo_mode: reduce-overhead", "dynamo_mode"),
        (CONFIG, "dynamo_backend: AOT_EAGER", "dynamo_backend"),
        (FSDP, "fsdp_ignored_modules: head", "fsdp_config.fsdp_ignored_modules"),
        (FSDP, "fsdp_transformer_layer_cls_to_wrap: LlamaMLP", "fsdp_transformer_layer_cls_to_wrap"),
        (TITAN, "disable_loss_parallel = true", "parallelism.disable_loss_parallel"),
        (TITAN, "enable_async_tensor_parallel = true", "enable_async_tensor_parallel"),
        (TITAN, 'context_parallel_rotate_method = "alltoall"', "context_parallel_rotate_method"),
        (TITAN, "[debug]\ndeterministic = true", "debug.deterministic"),
        (TITAN, "[fault_tolerance]\nenable = true", "fault_tolerance.enable"),
    ],
)
def test_what_bears_is_named(tmp_path: Path, text: str, line: str, key: str) -> None:
    name = "train.toml" if text is TITAN else "train.yaml"
    plain, more = read(tmp_path, text, name, **_model(text)), read(tmp_path, f"{text}{line}\n", name, **_model(text))
    assert not [word for word in plain.warnings if f"{key} is not counted" in word or f"{key}:" in word]
    assert [word for word in more.warnings if key in word and "line" in word], more.warnings


@pytest.mark.parametrize(
    ("text", "line", "key", "decides"),
    [
        (TITAN, '[optimizer]\nname = "Shampoo"', "optimizer.name", "optimizer"),
        (
            TITAN,
            '[optimizer]\nimplementation = "for-loop"\nearly_step_in_backward = true',
            "optimizer.early_step_in_backward",
            "optimizer",
        ),
        (LITGPT, "model_config: {n_layer: 2}", "model_config", "model"),
    ],
)
def test_what_may_take_more_than_is_counted_leaves_it_unclear(
    tmp_path: Path, text: str, line: str, key: str, decides: str
) -> None:
    name = "train.toml" if text is TITAN else "train.yaml"
    assert decided(read(tmp_path, f"{text}{line}\n", name, **_model(text)))[key] == decides


@pytest.mark.parametrize("accumulates", [True, False])
def test_a_fused_step_in_backward_is_counted_from_above_where_micro_steps_are_many(
    tmp_path: Path, accumulates: bool
) -> None:
    text = TITAN if accumulates else TITAN.replace("global_batch_size = 64\n", "")
    (tmp_path / "train.toml").write_text(f"{text}[optimizer]\nearly_step_in_backward = true\n")
    found = check_file(str(tmp_path / "train.toml"), {"gpu": "b200-180gb", "num_gpus": 64})
    assert (found.fits, found.at_most) == ("yes", accumulates), found.text


def _model(text: str) -> dict[str, Any]:
    return {"model": "smollm2-135m"} if text in (CONFIG, FSDP) else {}


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"compile": {"deepcompile": True}}, "compile"),
        ({"hybrid_engine": {"enabled": True}}, "hybrid_engine"),
        ({"amp": {"enabled": True}}, "amp"),
        ({"elasticity": {"enabled": True}}, "elasticity"),
    ],
)
def test_what_bears_in_deepspeeds_sections_is_named_where_it_is_on(
    tmp_path: Path, section: dict[str, Any], key: str
) -> None:
    base = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    on = read(tmp_path, json.dumps(base | section), "ds.json", model="smollm2-135m")
    assert [word for word in on.warnings if key in word and "is not counted" in word]
    off = read(tmp_path, json.dumps(base | {key: {"enabled": False}}), "ds.json", model="smollm2-135m")
    assert not off.warnings


@pytest.mark.parametrize(
    ("name", "more", "key"),
    [
        ("megatron", "--transformer-impl local", "transformer_impl"),
        ("megatron", "--fp32-residual-connection", "fp32_residual_connection"),
        ("megatron", "--tp-comm-overlap", "tp_comm_overlap"),
        ("megatron", "--overlap-moe-expert-parallel-comm", "overlap_moe_expert_parallel_comm"),
        ("megatron", "--fp16-lm-cross-entropy", "fp16_lm_cross_entropy"),
        ("mindspeed", "--swap-optimizer", "swap_optimizer"),
        ("mindspeed", "--mla-zero-memory", "mla_zero_memory"),
        ("mindspeed", "--context-parallel-size 2 --context-parallel-algo hybrid_cp_algo", "context_parallel_algo"),
        ("verl", "actor_rollout_ref.rollout.free_cache_engine=$SLEEP", "rollout.free_cache_engine"),
        ("verl", "actor_rollout_ref.actor.fsdp_config.full_determinism=True", "full_determinism"),
        ("verl", "actor_rollout_ref.actor.optim.optimizer_impl=torchao.optim", "optimizer_impl"),
        ("verl", "actor_rollout_ref.model.hf_config_path=/other", "hf_config_path"),
        ("verl", "trainer.use_legacy_worker_impl=enable", "use_legacy_worker_impl"),
    ],
)
def test_what_bears_in_a_script_is_named(tmp_path: Path, name: str, more: str, key: str) -> None:
    file, text = FILES[name]
    assert [word for word in read(tmp_path, f"{text} {more}\n", file).warnings if key in word and "line" in word]


@pytest.mark.parametrize(
    ("text", "line", "job_key", "value"),
    [
        (TRAINER, "torch_compile_mode: default", "compile", True),
        (
            TRAINER,
            "use_liger_kernel: true\nliger_kernel_config: {fused_linear_cross_entropy: false}",
            "loss_head",
            "cross-entropy",
        ),
        (DPO, "force_use_ref_model: true", "reference", "resident"),
        (GRPO, "use_adaptive_entropy: true", "entropy", "loss"),
        (SFT, "packing: true\nper_device_train_batch_size: 1", "padded", True),
        (SFT, "packing: true\nper_device_train_batch_size: 1\nattn_implementation: flash_attention_2", "padded", False),
        (SFT, "packing: true\npacking_strategy: wrapped", "padded", False),
        (FACTORY, "neat_packing: true", "padded", True),
        (FACTORY, "neat_packing: true\nflash_attn: fa2", "padded", False),
        (FACTORY, "ray_num_workers: 4", "num_gpus", 4),
        (FACTORY, "fp8: true", "float8", "tensorwise"),
        (FACTORY, "fp8: true\nfp8_backend: te", "float8", "te"),
        (FACTORY, "fsdp: full_shard auto_wrap\nfsdp_config: {version: 2}", "gradient_checkpointing_reentrant", False),
        (AXOLOTL, "sample_packing: true\nsdpa_varlen: false", "padded", True),
        (AXOLOTL, "sample_packing: true", "padded", False),
        (AXOLOTL, "use_ray: true\nray_num_workers: 2", "num_gpus", 2),
        (TITAN, "[validation]\nenable = true\nlocal_batch_size = 3", "eval_batch_size", 3),
        (TITAN, "[validation]\nenable = false", "eval_batch_size", None),
        (TITAN, '[compile]\nenable = true\ncomponents = ["loss"]', "compile", False),
    ],
)
def test_what_has_a_word_in_a_job_is_read(tmp_path: Path, text: str, line: str, job_key: str, value: object) -> None:
    name = "train.toml" if text is TITAN else "train.yaml"
    assert getattr(read(tmp_path, f"{text}{line}\n", name).job, job_key) == value


@pytest.mark.parametrize(
    ("name", "more", "job_key", "value"),
    [
        ("megatron", "--checkpoint-activations", "gradient_checkpointing", "full"),
        ("verl", "actor_rollout_ref.model.use_remove_padding=False", "padded", True),
        ("verl", "actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=bf16", "reduce_dtype", "bf16"),
        ("megatron", "--attention-backend flash", "megatron.attention_backend", "flash"),
        ("megatron", "--attention-backend auto", "megatron.attention_backend", "auto"),
        ("mindspeed", "--context-parallel-size 2", "megatron.cp_comm_type", "a2a"),
        ("mindspeed", "--normalization RMSNorm", "megatron.norm_fusion", False),
        ("mindspeed", "--normalization RMSNorm --use-fused-rmsnorm", "megatron.norm_fusion", True),
        ("mindspeed", "--context-parallel-size 2 --context-parallel-algo megatron_cp_algo", "megatron.cp_comm_type",
         "p2p"),
    ],
)  # fmt: skip
def test_what_has_a_word_in_a_job_is_read_of_a_script(
    tmp_path: Path, name: str, more: str, job_key: str, value: object
) -> None:
    file, text = FILES[name]
    found: Any = read(tmp_path, f"{text} {more}\n", file).job
    for part in job_key.split("."):
        found = getattr(found, part)
    assert found == value


@pytest.mark.parametrize(
    ("fused", "flash", "attention", "backend"),
    [
        ("1", "1", "flash", "auto"),
        ("0", "1", "flash", "flash"),
        ("1", "0", "flash", "fused"),
        ("0", "0", "eager", "auto"),
    ],
)
def test_kernels_that_the_environment_turns_off_are_off(
    tmp_path: Path, fused: str, flash: str, attention: str, backend: str
) -> None:
    file, text = FILES["megatron"]
    job = read(tmp_path, f"export NVTE_FUSED_ATTN={fused} NVTE_FLASH_ATTN={flash}\n{text}\n", file).job
    assert (job.attention, job.megatron.attention_backend) == (attention, backend)


@pytest.mark.parametrize(("method", "dropout"), [("grpo", 0.0), ("sft", 0.05)])
def test_dropout_that_a_file_turns_off_is_off(tmp_path: Path, method: str, dropout: float) -> None:
    text = {"grpo": f"{GRPO}use_peft: true\ndisable_dropout: true\n", "sft": f"{SFT}use_peft: true\n"}[method]
    lora = read(tmp_path, text).job.lora
    assert lora is not None
    assert lora.dropout == dropout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (QLORA, "kernels of its own"),
        (f"{QLORA}lora_mlp_kernel: false\nlora_qkv_kernel: false\n", ""),
        (AXOLOTL, "in fp32 where it trains all weights"),
        (f"{AXOLOTL}attn_implementation: flash_attention_2\n", ""),
        (f"{AXOLOTL}bf16: false\nfp16: false\n", ""),
    ],
)
def test_what_axolotl_does_by_itself_is_said(tmp_path: Path, text: str, said: str) -> None:
    words = " ".join(read(tmp_path, text).warnings)
    for sentence in ("kernels of its own", "in fp32 where it trains all weights"):
        assert (sentence in words) == (sentence == said)


def test_megatrons_mask_is_counted_where_it_is_large(tmp_path: Path) -> None:
    file, text = FILES["megatron"]
    long = text.replace("--seq-length 2048", "--seq-length 8192")
    without = f"{long} --no-create-attention-mask-in-dataloader"
    made, none = (read(tmp_path, each, file, model="qwen2.5-0.5b").job for each in (long, without))
    assert made.megatron.create_attention_mask_in_dataloader
    assert not none.megatron.create_attention_mask_in_dataloader
    sizes = [{row.name: row.bytes for row in estimate(job).per_gpu.ledger} for job in (made, none)]
    assert sizes[0]["attention mask"] == made.batch_size * 8192**2
    assert "attention mask" not in sizes[1]


def test_rows_here_can_be_estimated(tmp_path: Path) -> None:
    recipe = resolve(read(tmp_path, f"{FACTORY}neat_packing: true\n", model="smollm2-135m"))
    assert (recipe.batch.padded, recipe.storage.precision.name, recipe.numerics.autocast) == (True, "fp32", False), (
        "neither bf16 nor fp16 is on"
    )


def test_a_text_in_marks_of_code_is_read(tmp_path: Path) -> None:
    for begin, end in (("`", "`"), ("```yaml\n", "```\n")):
        assert read(tmp_path, f"{begin}{FACTORY}{end}").job.trainer == "llamafactory"


def test_megatrons_options_that_nothing_sets_are_said(tmp_path: Path) -> None:
    file, text = FILES["megatron"]
    more = "$TUNE_ARGS --seed 4 $MORE --tokenizer-type ${KIND}"
    found = read(tmp_path, f"{text} {more}\n".replace("--vocab-size 32000", ""), file)
    assert found.job.sequence_parallel
    assert any("never set, and taken as empty: $TUNE_ARGS, $MORE" in line for line in found.warnings)
    assert any("nothing says how large the vocabulary is" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [
        ("Llama2Tokenizer --tokenizer-model ./tokenizer.model", 128256),
        ("Llama2Tokenizer --tokenizer-model /data/llama2/tokenizer.model", 32000),
        ("Llama2Tokenizer --tokenizer-model /data/llama2_ja_16k/merged.model", 128256),
        ("HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B", 152064),
        ("HuggingFaceTokenizer --tokenizer-model /data/gemma-2-9b", 256000),
        ("HuggingFaceTokenizer --tokenizer-model me/mine", 128256),
    ],
)
def test_a_tokenizers_own_vocabulary_is_assumed_aloud(tmp_path: Path, tokenizer: str, size: int) -> None:
    file, text = FILES["megatron"]
    text = text.replace("--vocab-size 32000", f"--tokenizer-type {tokenizer}")
    assert any(f"vocabulary is: {size} tokens are assumed" in line for line in read(tmp_path, text, file).warnings)


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        ("LlamaDecoderLayer", False),
        ("Qwen3_5MoeDecoderLayer,Qwen3_5MoeVisionBlock", False),
        ("DbrxBlock", False),
        ("MixtralSparseMoeBlock", True),
        ("LlamaDecoderLayer,Embedding", True),
    ],
)
def test_classes_to_wrap_that_are_no_layers_are_named(tmp_path: Path, classes: str, named: bool) -> None:
    found = read(tmp_path, f"{FSDP}fsdp_transformer_layer_cls_to_wrap: {classes}\n", model="smollm2-135m")
    assert any("cls_to_wrap" in line for line in found.warnings) == named


def test_megatrons_gradients_in_bf16(tmp_path: Path) -> None:
    file, text = FILES["megatron"]
    plain, half = read(tmp_path, text, file), read(tmp_path, f"{text} --grad-reduce-in-bf16\n", file)
    assert (plain.job.grad_dtype, half.job.grad_dtype) == ("auto", "bf16")
    assert len(half.unread) == len(plain.unread)


@pytest.mark.parametrize(
    ("program", "unclear", "named"),
    [("pretrain_gpt", False, False), ("pretrain_bert", True, False), ("finetune_vlm", True, True)],
)
def test_a_megatron_program_of_another_model_is_unclear(
    tmp_path: Path, program: str, unclear: bool, named: bool
) -> None:
    file, text = FILES["megatron"]
    found = read(tmp_path, changed(text, "pretrain_gpt.py", f"{program}.py"), file)
    assert ("program" in {each.key for each in found.unread if each.decides == "model"}) is unclear
    other = read(tmp_path, changed(text, "pretrain_gpt.py", f"{program}.py"), file, model="qwen3-4b")
    assert ("program" in {each.key for each in other.unread if each.decides}) is named


@pytest.mark.parametrize(("world", "options", "gpus"), [("16", {}, 16), ("$SIZE", {"num_gpus": 4}, 4)])
def test_a_process_that_is_told_how_many_there_are(
    tmp_path: Path, world: str, options: dict[str, Any], gpus: int
) -> None:
    file, text = FILES["megatron"]
    text = changed(text, "torchrun --nproc_per_node $GPUS --nnodes 1", "python")
    found = read(tmp_path, f"{text} --world-size {world} --rank $RANK\n", file, **options)
    assert found.job.num_gpus == gpus
    assert not [each for each in found.unread if each.key in ("world_size", "rank")]


@pytest.mark.parametrize(("module", "unread"), [("mine.qwen2.sft_qwen", []), ("mine.qwen2.dpo_qwen", ["program"])])
def test_a_module_of_a_project_on_megatron(tmp_path: Path, module: str, unread: list[str]) -> None:
    """Pai-Megatron-Patch's tokenizer too: 151,643 words and those that the script adds."""
    file, text = FILES["megatron"]
    text = changed(text, "pretrain_gpt.py", f"-m {module}")
    more = "--patch-tokenizer-type Qwen2Tokenizer --extra-vocab-size 293"
    found = read(tmp_path, changed(text, "--vocab-size 32000", more), file)
    assert isinstance(found.job.model, dict)
    assert found.job.model["vocab_size"] == 151936
    assert [each.key for each in found.unread if each.decides] == unread


@pytest.mark.parametrize(
    ("more", "key", "decides"),
    [
        ("--normalization RMSNorm --transformer-impl local", "transformer_impl", "model"),
        ("--normalization LayerNorm --transformer-impl local", "transformer_impl", ""),
        ("--task MNLI", "task", "model"),
        ("--spec mindspeed_llm.tasks.models.spec.gemma2_spec layer_spec", "spec", "model"),
    ],
)
def test_what_megatron_computes_by_other_code(tmp_path: Path, more: str, key: str, decides: str) -> None:
    """Torch's own norms are not counted: unclear."""
    file, text = FILES["megatron"]
    assert (key, decides) in {(each.key, each.decides) for each in read(tmp_path, f"{text} {more}\n", file).unread}


def test_flames_config_is_the_model_and_not_torchtitans_debug_model(tmp_path: Path) -> None:
    file, text = FILES["torchtitan"]
    text = changed(changed(text, 'name = "llama3"', ""), 'flavor = "8B"', 'config = "Qwen/Qwen2.5-0.5B"')
    assert read(tmp_path, text, file).job.model == "Qwen/Qwen2.5-0.5B"


def test_megatrons_legacy_layers_keep_what_no_kernel_fuses(tmp_path: Path) -> None:
    file, text = FILES["megatron"]
    more = "--use-legacy-models --use-flash-attn --normalization RMSNorm --swiglu"
    job = read(tmp_path, f"{text} {more}\n", file).job
    assert (job.megatron.norm_fusion, job.megatron.bias_swiglu_fusion, job.attention) == (False, False, "flash")


@pytest.mark.parametrize(
    ("more", "attention"),
    [
        ("--attention-head-type multiquery", "eager"),
        ("--checkpoint-activations --use-flash-attn", "flash"),
        ("--DDP-impl local --transformer-impl transformer_engine", "flash"),
    ],
)
def test_arguments_of_older_megatron_tell_its_attention(tmp_path: Path, more: str, attention: str) -> None:
    file, text = FILES["megatron"]
    found = read(tmp_path, f"{changed(text, '--swiglu', '')} {more}\n", file)
    assert found.job.attention == attention
    assert any("until 2023" in line for line in found.warnings) is ("engine" not in more)


@pytest.mark.parametrize("text", [TRAINER, SFT, AXOLOTL, FACTORY])
def test_where_the_trainer_empties_its_cache_is_read(tmp_path: Path, text: str) -> None:
    for steps, read_as in (("4", 4), ("null", None)):
        found = read(tmp_path, f"{text}torch_empty_cache_steps: {steps}\n")
        assert found.job.empty_cache_steps == read_as
        assert "torch_empty_cache_steps" not in {each.key for each in found.unread}
