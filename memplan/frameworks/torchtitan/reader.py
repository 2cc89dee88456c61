"""torchtitan's TOML, as it was until 0.2: pretraining under FSDP2 in a loop of its own (trainer pytorch).

Its models have flavors; those that are the Hub's shapes are named so. Source: torchtitan 0.2.2 config/job_config.py,
models/*/__init__.py, components/loss.py (logits in fp32), distributed/activation_checkpoint.py."""

from math import prod
from typing import Any

from memplan.arch.config import sizes
from memplan.frameworks.asking import MODEL, SEES_TOKENS
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.local_models import speaks_of_images
from memplan.frameworks.files.documents import Document, words
from memplan.frameworks.torchtitan.older import own_flavor, today
from memplan.frameworks.torchtitan.write import FLAVORS, FLOAT8, MX, own_of, write
from memplan.tables.texts import parts_of, settings_in
from memplan.units import ceil_div

_PARTS = parts_of(__file__)

PIPELINE = "pipeline_parallel_degree"
GPUS = 8
"""run_train.sh: NGPU=${NGPU:-"8"}."""
TRAINING: dict[str, Any] = settings_in(
    """local_batch_size=8 global_batch_size=-1 seq_len=2048 dtype=float32 mixed_precision_param=bfloat16
    enable_cpu_offload=false"""
)
PARALLEL: dict[str, Any] = settings_in(_PARTS["parallel"])
DEBUG = {
    "llama3": {"model_type": "llama", "tie_word_embeddings": False}
    | sizes(vocab=2048, hidden=256, intermediate=768, layers=6, heads=16, kv_heads=16),
    "deepseek_v3": sizes(vocab=2048, hidden=256, intermediate=1024, layers=6, heads=16, kv_heads=16)
    | settings_in(_PARTS["debug"]),
    "qwen3": sizes(vocab=2048, hidden=256, intermediate=3072, layers=8, heads=16, kv_heads=8, head_dim=128)
    | {"model_type": "qwen3_moe", "moe_intermediate_size": 768, "num_experts": 64, "num_experts_per_tok": 8},
}
"""Flavors ``debugmodel``, of Qwen's ``debugmodel_moe``."""
INNER = ("tensor_parallel", "pipeline_parallel", "context_parallel")
"""Degrees that share a rank's batch."""
NOT_MODELLED = {
    "expert_parallel_comm_backend": "rows of tokens are counted as sent by plain all-to-all",
    "disable_loss_parallel": "logits are counted as divided over the tensor-parallel ranks",
    "enable_async_tensor_parallel": "the symmetric buffers of asynchronous tensor parallelism are not counted",
    "enable_compiled_autograd": "backward is counted as it runs without compiled autograd",
    "context_parallel_rotate_method": "keys and values are counted as gathered",
}
"""Of ``parallelism``, where they are on."""
HARMLESS = words(
    "job profiling metrics lr_scheduler checkpoint comm memory_estimation fault_tolerance experimental "
    "validation debug encoder"
)
"""Sections that the training's memory does not feel."""


def recognise(document: Document) -> tuple[str, ...]:
    """Its sections in TOML; a trainer of somebody's own has ``[model]`` and ``[training]`` too, and names no flavor."""
    keys, model = document.keys, document.settings.values.get("model")
    told = {"parallelism", "job"} & keys or (isinstance(model, dict) and "flavor" in model)
    found = document.form == "toml" and "training" in keys and {"parallelism", "model"} & keys and told
    return ("training",) if found else ()


def read(document: Document, draft: Draft) -> None:
    """One config."""
    keys = Keys(draft, today(document.settings), FRAMEWORK)
    draft.put("trainer", "pytorch", Origin(FILE, f"{document.path}: torchtitan's own loop"))
    keys.put("method", "sft")
    model = keys.section("model")
    _model(model, keys)
    training = keys.section("training", TRAINING)
    parallel = keys.section("parallelism", PARALLEL)
    ranks, _ = _parallel(parallel)
    micro = parallel.whole("pipeline_parallel_microbatch_size", 1) if (parallel.whole(PIPELINE) or 1) > 1 else 0
    _training(training, ranks, micro)
    _checkpointing(keys.section("activation_checkpoint", {"mode": "selective", "selective_ac_option": "2"}))
    optimizer = keys.section("optimizer", {"name": "AdamW", "implementation": "fused"})
    _optimizer(optimizer)
    compiled = keys.section("compile", {"enable": False})
    parts = (compiled.names("components") or ("model",)) if compiled.flag("enable") else ()
    if "model" in parts:
        compiled.put("compile", True, "enable")
        if (compiled.text("backend") or "inductor") != "inductor":
            compiled.warn("backend", "another backend is counted as inductor")
    compiled.close(words("components backend"))
    _beside(keys)
    keys.draft.put("attention", "sdpa", Origin("trainer", f"{FRAMEWORK.label}: sdpa"))
    head = "compiled-cross-entropy" if "loss" in parts and "model" not in parts else "cross-entropy"
    keys.draft.put("loss_head", head, Origin("trainer", f"{FRAMEWORK.label}: cross_entropy_loss"))
    keys.draft.put("hold_outputs", False, Origin("trainer", f"{FRAMEWORK.label}: del pred"))
    keys.draft.put("logits_dtype", "fp32", Origin("trainer", f"{FRAMEWORK.label}: pred.float()"))
    keys.skip("quantize", "float8", "mx")
    keys.close(HARMLESS)


def _beside(keys: Keys) -> None:
    """Validation's batch, and switches of other sections that bear where they are on."""
    validation = keys.section("validation", {"local_batch_size": 8})
    if validation.flag("enable"):
        validation.copy("eval_batch_size", "local_batch_size", "whole")
        if (validation.whole("seq_len") or 0) > int(keys.draft.values.get("sequence_length") or 0):
            validation.warn("seq_len", "validation is counted with sequences of training.seq_len")
    for section, key in (("debug", "deterministic"), ("training", "deterministic")):
        inner = keys.section(section)
        if inner.flag(key):
            inner.warn(key, "deterministic kernels need more scratch memory, which is not counted")
    tolerant = keys.section("fault_tolerance")
    if tolerant.flag("enable"):
        tolerant.warn("enable", "replicas of torchft, and their copies of the states, are not counted")


def _model(model: Keys, keys: Keys) -> None:
    """By name and flavor; a model of transformers by its Hub id."""
    name, flavor = model.text("name") or "llama3", model.text("flavor") or "debugmodel"
    model.text("config")
    _converters([str(item) for item in model.get("converters") or ()], model, keys)
    model.close(words("hf_assets_path tokenizer_path print_after_conversion tokenizer_name norm_type"))
    other = keys.section("hf_transformers").text("model")
    if "model" in keys.draft.given:
        return
    base = name.removesuffix("_ft")
    shape = flavor.removesuffix("_flex").removesuffix("_varlen").removesuffix("_irope").removesuffix("_attn")
    shape = shape.removesuffix("_flex").removesuffix("_varlen")
    if other:
        keys.put("model", other, "hf_transformers")
    elif config := model.text("config"):  # fla-org/flame, whose models have a config.json
        model.put("model", config, "config")
    elif (base, shape) in FLAVORS:
        model.put("model", FLAVORS[base, shape], "flavor", "name")
    elif base in DEBUG and shape == ("debugmodel_moe" if base == "qwen3" else "debugmodel"):
        model.put("model", DEBUG[base], "flavor", "name")
    elif own := own_flavor(keys.settings.path, base, shape):
        model.put("model", own, "flavor", "name")
    else:
        known = ", ".join(sorted({f"{a} {b}" for a, b in FLAVORS}))
        raise model.settings.error(
            "flavor",
            f"{name[:30]} {flavor[:30]} is no model that is known",
            SEES_TOKENS if speaks_of_images(name) else f"{MODEL}; known: {known}",
        )


def _converters(names: list[str], model: Keys, keys: Keys) -> None:
    """Products in float8 by torchao: what is converted, and what FSDP gathers (quantization/float8.py, mx.py)."""
    for name in names:
        if name not in ("float8", FLOAT8, MX):
            model.warn("converters", f"{name[:40]} is not modelled", "quantisation")
            continue
        found = keys
        for part in name.split("."):
            found = found.section(part)
        recipe = found.text("recipe_name") or ("mxfp8_cublas" if name == MX else "tensorwise")
        recipe = "mxfp8" if recipe.startswith("mxfp8_cublas") else recipe
        found.draft.put("float8", recipe, Origin(FILE, f"{name}: converters"))
        if found.flag("enable_fsdp_float8_all_gather"):
            put_inner(found, "fsdp", "float8_all_gather", True, "enable_fsdp_float8_all_gather")
        if "output" not in (found.get("filter_fqns") or (("output",) if name == MX else ())):
            why = (
                "the head is counted in bf16, and in float8 it needs copies of its weight: filter_fqns names no output"
            )
            model.warn("converters", why, "quantisation")
        found.close(
            words("""precompute_float8_dynamic_scale_for_fsdp emulate force_recompute_fp8_weight_in_bwd
            mxfp8_dim1_cast_kernel_choice""")
        )


def _parallel(keys: Keys) -> tuple[int, int]:
    """Ranks that see batches of their own, and GPUs in all."""
    sizes = {name: keys.whole(f"{name}_degree", 1) for name in (*INNER, "expert_parallel", "expert_tensor_parallel")}
    for name, size in sizes.items():
        if size > 1:
            keys.put(name, size, f"{name}_degree")
    shard, replicate = keys.whole("data_parallel_shard_degree", 1), keys.whole("data_parallel_replicate_degree", 1)
    inner = prod(sizes[name] for name in INNER)
    given = int(keys.draft.options.get("num_gpus") or 0)
    if shard > 0:
        said = inner * shard * replicate
        keys.put("num_gpus", said, "data_parallel_shard_degree")
        total = given or said
    else:
        total = given or max(GPUS, inner * replicate)
        keys.draft.put("num_gpus", total, Origin("trainer", f"{FRAMEWORK.label}: run_train.sh starts {GPUS} GPUs"))
    ranks = max(1, total // inner)
    sharded = ranks > replicate or sizes["context_parallel"] > 1 or shard > 1
    if ranks == 1 and not sharded and inner > 1:  # one copy: nothing is divided, nor cast (utils.py: maybe_enable_amp)
        keys.put("sharding", "fsdp2", "data_parallel_shard_degree")
        keys.put("precision", "fp32", "tensor_parallel_degree", "pipeline_parallel_degree")
    elif sharded:
        keys.put("sharding", "fsdp2", "data_parallel_shard_degree")
        put_inner(keys, "fsdp", "own_ends", True, "apply_fsdp")
        copies = replicate if ranks % replicate == 0 else ranks
        if copies > 1:
            put_inner(keys, "fsdp", "replicate", copies, "data_parallel_replicate_degree")
        if copies != replicate:
            why = "ranks are not divided into as many copies: each is counted with a copy of its own"
            keys.bound("data_parallel_replicate_degree", why, "parallelism")
        again = {"never": False, "always": True}.get(keys.text("fsdp_reshard_after_forward") or "")
        if again is not None:
            keys.put("reshard_after_forward", again, "fsdp_reshard_after_forward")
    elif replicate > 1:
        keys.put("sharding", "ddp", "data_parallel_replicate_degree")
    _close_parallel(keys, sizes["pipeline_parallel"])
    return ranks, total


def _close_parallel(keys: Keys, stages: int) -> None:
    """What bears and is not modelled, and the schedule of a pipeline."""
    keys.warn_on(NOT_MODELLED, "allgather", "standard")
    keys.warn("pipeline_parallel_layers_per_stage", "stages are counted as one chunk each")
    keys.warn("module_fqns_per_model_part", "stages are counted as equal")
    schedule = keys.text("pipeline_parallel_schedule") or "1F1B"
    if stages > 1 and schedule not in ("1F1B", "Interleaved1F1B"):
        keys.warn("pipeline_parallel_schedule", f"{schedule[:30]} is counted as 1F1B")
    keys.close(
        words("""pipeline_parallel_first_stage_less_layers
                     pipeline_parallel_last_stage_less_layers pipeline_parallel_microbatch_size
                     fsdp_reshard_after_forward
                     pipeline_parallel_schedule_csv context_parallel_load_balancer
                     pipeline_parallel_expert_parallel_overlap pipeline_parallel_split_points""")
    )


def _training(keys: Keys, ranks: int, micro: int) -> None:
    """``micro``: examples of a pipeline's micro-batch, into which a rank's own batch is cut; 0 without a pipeline."""
    batch = keys.whole("local_batch_size") if not keys.has("batch_size") else keys.whole("batch_size")
    cut = max(1, (batch or 1) // micro) if micro else 1
    keys.put("batch_size", micro or batch, "local_batch_size", "batch_size")
    keys.copy("sequence_length", "seq_len", "whole")
    total = keys.whole("global_batch_size") or -1
    own = keys.whole("gradient_accumulation_steps", 1)  # of forks before there was a global batch
    steps = max(1, ceil_div(total, (batch or 1) * ranks)) if total > 0 else own
    keys.put("gradient_accumulation_steps", steps * cut, "global_batch_size", "gradient_accumulation_steps")
    stored, computed = keys.text("dtype"), keys.text("mixed_precision_param")
    if stored == "bfloat16":
        keys.put("precision", "bf16", "dtype")
    elif "precision" not in keys.draft.values:
        keys.put("precision", "bf16-amp" if computed == "bfloat16" else "fp32", "mixed_precision_param")
    if keys.draft.values.get("sharding") == "fsdp2":
        keys.put("reduce_dtype", "fp32", "mixed_precision_reduce")
    if keys.flag("enable_cpu_offload"):
        put_inner(keys, "fsdp", "cpu_offload", True, "enable_cpu_offload")
    keys.close(
        words("""dataset dataset_path max_norm steps gc_freq gc_debug dataloader deterministic seed warmup_steps
                     shuffle_seed mixed_precision_reduce classifier_free_guidance_prob img_size
                     test_mode prompt_dropout_prob encoder max_images_per_batch max_patches_per_image patch_size
                     spatial_merge_size temporal_patch_size packing_buffer_size debug_moe_force_load_balance""")
    )


def _checkpointing(keys: Keys) -> None:
    """none, full, every n-th layer, or by operation: products and attention are kept."""
    mode, option = keys.text("mode") or "none", str(keys.get("selective_ac_option"))
    if mode == "selective" and option == "op":
        keys.put("gradient_checkpointing", "selective", "selective_ac_option", "mode")
    elif mode == "selective" and option.isdigit():
        keys.put(
            "gradient_checkpointing", "full" if option == "1" else f"every:{option}", "selective_ac_option", "mode"
        )
    elif mode in ("none", "full"):
        keys.put("gradient_checkpointing", mode, "mode")
    elif mode == "selective":
        keys.put("gradient_checkpointing", "none", "mode")
        keys.warn(
            "selective_ac_option", "checkpointing by operation is not modelled: all activations are counted as kept"
        )
    else:
        keys.put("gradient_checkpointing", "none", "mode")
        keys.warn("mode", f"{mode[:20]} is not modelled: all activations are counted as kept")
    keys.close(
        words("""early_stop preserve_rng_state determinism_check debug memory_budget
                     visualize_memory_budget_pareto per_op_sac_force_recompute_mm_shapes_by_fqns""")
    )


def _optimizer(keys: Keys) -> None:
    name, how = (keys.text("name") or "AdamW").lower(), keys.text("implementation") or "fused"
    if name in ("adam", "adamw"):
        keys.put("optimizer", "adamw", "name")
        keys.put("optimizer_impl", {"for-loop": "loop"}.get(how, how), "implementation")
    else:
        keys.warn("name", f"optimizer {name[:20]} is not modelled: adamw is counted in its place", "optimizer")
    if keys.flag("early_step_in_backward"):
        said, steps = keys.draft.values, ("gradient_accumulation_steps", "pipeline_parallel")
        once = "global_batch_size" not in said and all(int(said.get(key) or 1) == 1 for key in steps)
        if once and how != "for-loop" and said.get("sharding") == "fsdp2":
            keys.put("optimizer_args", {"in_backward": True}, "early_step_in_backward")
        else:  # a fused step of one weight makes nothing beside it
            tell = keys.bound if how == "fused" else keys.warn
            tell("early_step_in_backward", "gradients are counted as held until the step", "optimizer")
    keys.close(words("lr eps weight_decay beta1 beta2 fused early_step_in_backward"))


FRAMEWORK = Framework("torchtitan", "torchtitan", "0.2", recognise, read, write, trainer="pytorch",
                      trainer_of=own_of, extends=("memplan",))  # fmt: skip
