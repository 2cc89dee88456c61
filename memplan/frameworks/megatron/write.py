"""Megatron-LM's arguments of a job, in a script that starts it.

Source: Megatron-LM megatron/training/arguments.py and pretrain_gpt.py (core 0.16)."""

from collections.abc import Iterator
from typing import Any

from memplan.errors import InvalidJob
from memplan.frameworks.accelerate.write import run_script
from memplan.frameworks.base import File, Writing
from memplan.frameworks.files.quoting import Variable, shell_word
from memplan.frameworks.megatron.keys import DEFAULTS, DEFAULTS_OF_EXPERTS, MASK, OTHER_NAMES
from memplan.frameworks.megatron.shape import Shape, effective, shape_of
from memplan.spec.job import Job
from memplan.spec.megatron import Megatron
from memplan.units import ceil_div, words_of

Arguments = list[tuple[str, Any, str]]
"""Option, value (True for a switch), what is to be filled in."""
OPTIMIZERS = {"adamw": "adam", "sgd-momentum": "sgd", "sgd": "sgd"}


def write(job: Job, writing: Writing) -> list[File]:
    """run.sh, of pretrain_gpt.py."""
    if job.method != "sft":
        raise InvalidJob(f"method: {job.method} is not what Megatron-LM trains", "use sft, or another framework")
    if not writing.recipe.in_megatron:
        raise InvalidJob("model: its layers are none of Megatron-LM's, as memplan knows them", "use another framework")
    shape = shape_of(writing.recipe.model)
    groups = {
        "LAUNCH": list(_launch(job)),
        "MODEL": list(_model(shape, job)),
        "PARALLEL": list(_parallel(writing)),
        "MEMORY": list(_settings(writing, shape.mixture is not None)),
        "TRAINING": list(_training(job, writing)),
        "DATA": _data(writing.model),
    }
    lines = [
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        'MEGATRON="${MEGATRON:-CHECKOUT}"  # FILL IN: the folder of Megatron-LM\'s repository',
        "",
    ]
    for name, arguments in groups.items():
        lines += [f"{name}=(", *(f"    {_line(*each)}" for each in arguments), ")"]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in groups if name != "LAUNCH")
    lines += ["", 'torchrun "${LAUNCH[@]}" "$MEGATRON/pretrain_gpt.py" \\', f"    {arrays}"]
    head = (
        "Megatron-LM's pretrain_gpt.py (core 0.16), as memplan planned it.",
        "FILL IN what is marked so; --load takes a converted checkpoint, --sft conversations as JSON lines.",
        *writing.expects,
        *_remarks(job, shape),
    )
    return [run_script("\n".join(lines), job, head)]


def _launch(job: Job) -> Iterator[tuple[str, Any, str]]:
    """torchrun's options."""
    nodes = ceil_div(job.num_gpus, job.gpus_per_node)
    yield "nnodes", nodes, ""
    yield "nproc_per_node", job.num_gpus // nodes, ""
    if nodes > 1:
        yield from (("node_rank", Variable("NODE_RANK"), ""), ("master_addr", Variable("MASTER_ADDR"), ""))
        yield "master_port", 29500, ""


def _line(name: str, value: Any, fill: str) -> str:
    """``--hidden-size 4096``; values of several words each quoted."""
    items = value if isinstance(value, (list, tuple)) else [value]
    shown = "" if value is True else f" {' '.join(map(shell_word, items))}"
    return f"--{name}{shown}{f'  # FILL IN: {fill}' if fill else ''}"


def _remarks(job: Job, shape: Shape) -> Iterator[str]:
    """What the arguments cannot say, or say only to those who know the checkpoint."""
    yield "The vocabulary is the tokenizer's, padded; memplan counted that of the model's config."
    if shape.mixture is not None and job.megatron.moe_expert_imbalance != 1:
        yield f"It takes of the data: the fullest experts receive {job.megatron.moe_expert_imbalance} of the mean."
    if not job.megatron.norm_fusion:
        yield "memplan counted norms of PyTorch's operations; Megatron-Core's, which take less, run in one kernel."


def _model(shape: Shape, job: Job) -> Iterator[tuple[str, Any, str]]:
    """What the model is made of."""
    yield "num-layers", shape.layers, ""
    yield "hidden-size", shape.hidden, ""
    yield "num-attention-heads", shape.heads, ""
    if shape.latent:
        ranks = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
        yield "multi-latent-attention", True, ""
        yield from ((name, value, "") for name, value in zip(ranks, shape.latent, strict=True) if value)
    elif shape.groups != shape.heads:
        yield "group-query-attention", True, ""
        yield "num-query-groups", shape.groups, ""
    if not shape.latent and shape.head * shape.heads != shape.hidden:
        yield "kv-channels", shape.head, ""
    yield "ffn-hidden-size", shape.width or (shape.mixture.width if shape.mixture else 0), ""
    if shape.gated:
        yield "swiglu", True, ""
    elif shape.activation == "relu2":
        yield "squared-relu", True, ""
    if shape.rms:
        yield "normalization", "RMSNorm", ""
    yield "norm-epsilon", "1e-6" if shape.rms else "1e-5", "as in the checkpoint's config.json"
    yield from _positions(shape, job)
    if shape.qk_norm:
        yield "qk-layernorm", True, ""
    if not shape.bias:
        yield "disable-bias-linear", True, ""
    if shape.qkv_bias:
        yield "add-qkv-bias", True, ""
    if not shape.tied:
        yield "untie-embeddings-and-output-weights", True, ""
    yield "vocab-size", shape.vocabulary, ""
    yield from (
        ("attention-dropout", str(job.megatron.attention_dropout), ""),
        ("hidden-dropout", str(job.megatron.hidden_dropout), ""),
    )
    yield from _experts(shape)


def _positions(shape: Shape, job: Job) -> Iterator[tuple[str, Any, str]]:
    if shape.positions:
        yield "position-embedding-type", "learned_absolute", ""
        yield "max-position-embeddings", shape.positions, ""
        return
    yield "position-embedding-type", "rope" if shape.rotary else "none", ""
    yield "max-position-embeddings", job.sequence_length, ""
    if shape.rotary:
        yield "rotary-base", "10000", "rope_theta of the checkpoint's config.json"
        if not shape.latent and shape.rotary != shape.head:
            yield "rotary-percent", shape.rotary / shape.head, ""


def _experts(shape: Shape) -> Iterator[tuple[str, Any, str]]:
    """Mixtures of experts, and how they are chosen."""
    found = shape.mixture
    if found is None:
        return
    yield "num-experts", found.experts, ""
    yield "moe-router-topk", found.active, ""
    yield "moe-ffn-hidden-size", found.width, ""
    if found.shared:
        yield "moe-shared-expert-intermediate-size", found.shared, ""
    if found.gate:
        yield "moe-shared-expert-gate", True, ""
    if shape.dense:
        yield "moe-layer-freq", f"([0]*{shape.dense}+[1]*{shape.layers - shape.dense})", ""
    if found.sigmoid:
        yield "moe-router-score-function", "sigmoid", ""
    if found.corrected and not found.sigmoid:
        raise InvalidJob(
            "model: its experts are chosen by a softmax and a bias of each, which Megatron-LM refuses",
            "emit for another framework, or name another model",
        )
    if found.corrected:
        yield "moe-router-enable-expert-bias", True, ""
    if found.groups:
        yield "moe-router-num-groups", found.groups, ""
        yield "moe-router-group-topk", found.kept_groups, ""


def _parallel(writing: Writing) -> Iterator[tuple[str, Any, str]]:
    """How the GPUs are divided."""
    degrees, settings = writing.recipe.parallel, writing.recipe.megatron
    yield "tensor-model-parallel-size", degrees.tensor, ""
    if degrees.sequence:
        yield "sequence-parallel", True, ""
    yield "pipeline-model-parallel-size", degrees.pipeline, ""
    if degrees.virtual > 1 and not settings.pipeline_model_parallel_layout:  # which says it, and stands alone
        yield "num-virtual-stages-per-pipeline-rank", degrees.virtual, ""
    if degrees.context > 1:
        yield "context-parallel-size", degrees.context, ""
        yield "cp-comm-type", settings.cp_comm_type, ""
    if any(run.layer.experts is not None for run in writing.recipe.model.runs):
        yield "expert-model-parallel-size", degrees.expert, ""
        yield "expert-tensor-parallel-size", degrees.expert_tensor, ""
    if writing.recipe.sharding.name == "distributed-optimizer":
        yield "use-distributed-optimizer", True, ""


SWITCHED_OFF = {
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion",
    "apply_rope_fusion": "no-rope-fusion",
}
"""Settings that are on in Megatron-LM, and how it is told that they are off."""
WITH_OTHERS = words_of(
    """recompute_modules recompute_method recompute_num_layers cp_comm_type attention_backend attention_dropout
    hidden_dropout create_attention_mask_in_dataloader"""
)
"""Settings that stand with what they belong to."""


def _settings(writing: Writing, experts: bool) -> Iterator[tuple[str, Any, str]]:
    """Recomputation, and Megatron's own settings that differ from what Megatron-LM does by itself."""
    settings, kind = effective(writing.recipe), writing.recipe.provenance.job["gradient_checkpointing"]
    if kind != "none":
        yield "recompute-granularity", kind, ""
    if kind == "full":
        yield "recompute-method", settings.recompute_method, ""
        yield "recompute-num-layers", settings.recompute_num_layers, ""
    elif kind == "selective":
        yield "recompute-modules", settings.recompute_modules, ""
    names = {new: old for old, new in OTHER_NAMES.items()}
    defaults = {**DEFAULTS, **(DEFAULTS_OF_EXPERTS if experts else {})}
    for name, row in Megatron.model_fields.items():
        value = getattr(settings, name)
        if name in WITH_OTHERS or value == defaults.get(name, row.default) or (name.startswith("moe_") and not experts):
            continue
        option = names.get(name, name).replace("_", "-")
        if value is False and name in SWITCHED_OFF:
            option, value = SWITCHED_OFF[name], True
        if value not in (False, None):
            yield option, value, ""


def _training(job: Job, writing: Writing) -> Iterator[tuple[str, Any, str]]:
    """Batch, sequence, precision, optimizer."""
    yield "micro-batch-size", job.batch_size, ""
    yield "global-batch-size", job.batch_size * writing.recipe.batch.accumulation * writing.recipe.parallel.data, ""
    yield "seq-length", job.sequence_length, ""
    masks = job.sequence_length**2 * job.batch_size
    if masks >= MASK and not writing.recipe.megatron.create_attention_mask_in_dataloader:
        yield "no-create-attention-mask-in-dataloader", True, ""
    kernel = effective(writing.recipe).attention_backend
    yield "attention-backend", "unfused" if job.attention == "eager" else kernel, ""
    half = job.precision.partition("-")[0]
    if half != "fp32":
        yield half, True, ""
    if half == "fp16" and job.grad_dtype != "fp16":
        yield "accumulate-allreduce-grads-in-fp32", True, ""
    yield "optimizer", OPTIMIZERS.get(job.optimizer, job.optimizer), ""
    if job.optimizer == "sgd":
        yield "sgd-momentum", "0.0", ""
    yield "train-iters", 1000, "steps"
    yield "lr", "1e-5", "the learning rate"


def _data(model: str) -> Arguments:
    return [
        ("data-path", "DATASET", "a prefix that tools/preprocess_data.py wrote"),
        ("tokenizer-type", "HuggingFaceTokenizer", ""),
        ("tokenizer-model", model or "TOKENIZER", "" if model else "the model's, on the Hub or in a folder"),
        ("save", "CHECKPOINTS", "where checkpoints go"),
        ("save-interval", 500, ""),
    ]
