"""Axolotl's YAML of a job, the DeepSpeed JSON that it names, and the command."""

from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import ZERO_FILE, machines_of, run_script, stage_of, zero_config
from memplan.frameworks.axolotl.keys import ATTENTION_FLAGS, METHODS, TRANSFORMERS_VERSION, TRL_VERSION
from memplan.frameworks.base import File, Writing
from memplan.frameworks.hugging_face.write import attention, optim, optim_arguments
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR

CONFIG = "axolotl.yaml"
WORDS = {method: word for word, method in reversed(METHODS.items())}
"""Method -> ``rl``."""
HELD_OUT = 0.05
"""Share of the data that is evaluated on, where a job evaluates: Axolotl evaluates nothing without one."""


def trainer_of(job: Job) -> Mapping[str, Any]:
    """The trainer that Axolotl runs, in the version that it pins; weights in bf16 where the job names nothing."""
    sft = job.method == "sft"
    own: dict[str, Any] = {
        "trainer": "transformers" if sft else "trl",
        "trainer_version": TRANSFORMERS_VERSION if sft else TRL_VERSION,
    }
    given = job.model_fields_set
    if not given & {"trainer", "precision", "dtype"} and (job.sharding or "none") in ("none", "ddp"):
        own |= {"precision": "bf16", "autocast": True} if stage_of(job) is None else {}
    return own


def write(job: Job, writing: Writing) -> list[File]:
    """axolotl.yaml, deepspeed.json where ZeRO is on, run.sh."""
    if job.method not in (*WORDS, "sft", "reward"):
        raise InvalidJob(
            f"method: {job.method} is not what Axolotl trains", f"it trains {', '.join(WORDS)}, sft, reward"
        )
    values: dict[str, Any] = {"base_model": writing.model, **_training(job), **_adapter(job), **_spread(job)}
    own = {"output_dir": "OUTPUT", "learning_rate": "1.0e-5"}  # neither has a default
    values["datasets"] = [{"path": "DATASET", "type": "TYPE"}]
    head = ("Axolotl, as memplan planned it: axolotl train axolotl.yaml", *writing.expects,
            "FILL IN datasets, output_dir and learning_rate.")  # fmt: skip
    files = [File(CONFIG, values, comment=head, placeholders=own)]
    if stage_of(job) is not None:
        files.append(File(ZERO_FILE, zero_config(job, "auto")))
    command = f"axolotl train {CONFIG} --launcher accelerate -- --num_processes {job.num_gpus}"
    machines, _ = machines_of(job)
    if machines > 1:
        where = '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR" --main_process_port 29500'
        command += f" --num_machines {machines} {where}"
    return [
        *files,
        run_script(command, job, ("FILL IN datasets, output_dir and learning_rate first.", *writing.expects)),
    ]


def _training(job: Job) -> dict[str, Any]:
    """Method, batch, lengths, precision, checkpointing, optimizer, attention, kernels."""
    values = _method(job) | {
        "micro_batch_size": job.batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        **_precision(job),
        "gradient_checkpointing": job.gradient_checkpointing != "none",
        "optimizer": "muon" if job.optimizer == "muon" else optim(job),
        "attn_implementation": attention(job),
    }
    if job.gradient_checkpointing != "none":
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": job.gradient_checkpointing_reentrant}
    if "activations" in job.offload:
        values["activation_offloading"] = True
    if job.empty_cache_steps:
        values["torch_empty_cache_steps"] = job.empty_cache_steps
    if job.eval_batch_size is not None:
        values |= {"eval_batch_size": job.eval_batch_size, "val_set_size": HELD_OUT}
    values |= optim_arguments(job)
    if job.method == "simpo":
        values["cpo_alpha"] = 1.0 if job.sft_term else 0.0
    elif job.sft_term and job.method == "dpo":
        values["dpo_loss_type"], values["dpo_loss_weights"] = ["sigmoid", "sft"], [1.0, 1.0]
    if job.reference == "precomputed":
        values["precompute_ref_log_probs"] = True
    if job.compile:
        values["torch_compile"] = True
    if job.float8 == "tensorwise":
        values |= {"fp8": True, "fp8_enable_fsdp_float8_all_gather": job.fsdp.float8_all_gather}
    if job.router_aux_loss:
        values["overrides_of_model_config"] = {"output_router_logits": True}
    if job.tiled_mlp:
        values |= {"tiled_mlp": True, **({"tiled_mlp_num_shards": job.tiled_mlp} if job.tiled_mlp > 0 else {})}
    return values | _kernels(job)


def _method(job: Job) -> dict[str, Any]:
    """The method and its lengths."""
    values: dict[str, Any] = {}
    if job.method in WORDS:
        values["rl"] = WORDS[job.method]
    elif job.method == "reward":
        values["reward_model"] = True
    if job.method == "kto":
        values["remove_unused_columns"] = False
    if job.method == "grpo":
        group = job.rollout.group_size if job.rollout else None
        values["trl"] = {
            "beta": 0.0 if job.reference == "none" else 0.04,
            "max_completion_length": job.completion_length or job.sequence_length,
            **({"num_generations": group} if group else {}),
            **({"temperature": job.temperature} if job.temperature is not None else {}),
        }
    else:
        values["sequence_len"] = job.sequence_length
    return values


def _kernels(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {}
    plugins = []
    if job.kernels == "liger":
        plugins.append("axolotl.integrations.liger.LigerPlugin")
        names = ("liger_rope", "liger_rms_norm", "liger_glu_activation")
        values |= dict.fromkeys(names, True)
        values["liger_fused_linear_cross_entropy"] = job.method == "sft" and job.loss_head == "fused"
    if job.loss_head == "cut-cross-entropy":
        plugins.append("axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin")
        values["cut_cross_entropy"] = True
    return {"plugins": plugins, **values} if plugins else {}


def _precision(job: Job) -> dict[str, Any]:
    kind, _, how = job.precision.partition("-")
    if kind == "fp32":
        return {"bf16": False, "fp16": False}
    pure = not how and job.autocast is False
    if kind == "bf16":
        return {"bf16": "full" if pure else True, "fp16": False}
    return {"bf16": False, **({"float16": True} if pure else {"fp16": True})}


def _adapter(job: Job) -> dict[str, Any]:
    if job.lora is None:
        return {}
    lora = job.lora
    values: dict[str, Any] = {
        "adapter": "qlora" if job.quantization.startswith(("nf4", "fp4")) else "lora",
        "lora_r": lora.r,
        "lora_alpha": lora.alpha if lora.alpha is not None else 2 * lora.r,
        "lora_dropout": lora.dropout,
    }
    names = [lora.targets] if isinstance(lora.targets, str) else list(lora.targets)
    if ALL_LINEAR in names:
        values["lora_target_linear"] = True
    if names != [ALL_LINEAR]:
        values["lora_target_modules"] = [name for name in names if name != ALL_LINEAR]
    if lora.rank_pattern:
        values["lora_rank_pattern"] = dict(lora.rank_pattern)
    if lora.layers_to_transform:
        values["peft_layers_to_transform"] = list(lora.layers_to_transform)
    if lora.modules_to_save:
        values["lora_modules_to_save"] = list(lora.modules_to_save)
    values |= {key: True for key, on in (("peft_use_dora", lora.dora), ("peft_use_rslora", lora.rslora)) if on}
    if lora.dtype != "fp32":
        values["peft_autocast_adapter_dtype"] = False
    if job.quantization.startswith(("nf4", "fp4")):
        values["load_in_4bit"] = True
        if job.quantization != "nf4-double":
            kind = job.quantization.partition("-")[0]
            values["bnb_config_kwargs"] = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": False}
    elif job.quantization == "int8":
        values["load_in_8bit"] = True
    if job.quantize_experts:
        values["quantize_moe_experts"] = True
    return values


def _spread(job: Job) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if stage_of(job) is not None:
        values["deepspeed"] = ZERO_FILE
    elif job.sharding in ("fsdp", "fsdp2"):
        given = job.fsdp.model_dump(exclude_unset=True)
        one = job.sharding == "fsdp"
        config: dict[str, Any] = {
            "auto_wrap_policy": given.get("auto_wrap_policy") or "TRANSFORMER_BASED_WRAP",
            "offload_params": bool(given.get("cpu_offload")) or "parameters" in job.offload,
            "state_dict_type": given.get("state_dict_type") or "FULL_STATE_DICT",
            "cpu_ram_efficient_loading": bool(given.get("cpu_ram_efficient_loading")),
        }
        if one:
            config["sharding_strategy"] = given.get("sharding_strategy") or "FULL_SHARD"
            config["use_orig_params"] = given.get("use_orig_params") is not False
            config["backward_prefetch"] = given.get("backward_prefetch") or "NO_PREFETCH"
            config["forward_prefetch"] = bool(given.get("forward_prefetch"))
        else:
            config["reshard_after_forward"] = job.reshard_after_forward is not False
        values |= {"fsdp_version": 1 if one else 2, "fsdp_config": config}
        values |= {"fsdp": ["full_shard", "auto_wrap"]} if one else {}
    if job.tensor_parallel > 1:
        values["tensor_parallel_size"] = job.tensor_parallel
    if job.context_parallel > 1:
        if job.context_exchange != "gathered":
            raise InvalidJob("context_parallel: Axolotl's ranks gather keys", "use context_exchange gathered")
        values["context_parallel_size"] = job.context_parallel
    if job.ddp.bucket_cap_mb is not None:
        values["ddp_bucket_cap_mb"] = job.ddp.bucket_cap_mb
    if job.ddp.find_unused_parameters is not None:
        values["ddp_find_unused_parameters"] = job.ddp.find_unused_parameters
    return values


def in_flags(now: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What is put into a file that has flags of attention of earlier versions: Axolotl takes these or
    ``attn_implementation``, not both."""
    found, given = dict(values), [flag for flag in ATTENTION_FLAGS if now.get(flag)]
    flag = next((flag for flag, name in ATTENTION_FLAGS.items() if name == values.get("attn_implementation")), "")
    if given and flag:
        del found["attn_implementation"]
        found |= {**dict.fromkeys(given, False), flag: True}
    return found
