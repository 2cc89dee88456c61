"""Megatron's jobs, checked: what runs in its layers, and what its arguments and configuration refuse.

Sources: megatron-core 0.14 to 0.16 transformer_config.py, training/arguments.py, pipeline_parallel/schedules.py."""

from memplan.errors import InvalidJob
from memplan.resolve.megatron_adapters import check_adapters, megatron_targets, not_in_megatron
from memplan.resolve.megatron_stages import check_interleaved, check_stages
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.megatron import Megatron
from memplan.spec.model import ModelSpec
from memplan.spec.parallel import Parallel
from memplan.spec.parts import Attention
from memplan.spec.recipe import Recipe
from memplan.tables.trainer import Trainer
from memplan.units import words_of

STEPPED = ("adamw", "sgd", "sgd-momentum")
WAYS = {
    "swift": "each of Megatron's fused products has one adapter, in the weights' dtype; each expert has its own",
    "bridge": "each of Megatron's fused products has one adapter, in the weights' dtype; a rank's experts share one",
}
"""Of adapters in Megatron's layers."""
GROWING = words_of(
    """fp8_format fp4_format mtp_num_layers hidden_dropout attention_dropout num_distributed_optimizer_instances
    moe_expert_imbalance moe_expert_capacity_factor"""
)
"""Settings by which Megatron takes more than layers that stand in for its own."""
SETTINGS_OF_OTHERS = "add trainer: megatron, or leave megatron out"


def runs_in_megatron(
    job: Job, trainer: Trainer, spec: ModelSpec, degrees: Parallel, sharding: str, micro_batches: int, notes: Notes
) -> bool:
    """Whether Megatron's layers run the model; else, on one GPU for each copy, layers as Hugging Face writes them stand
    in for them. Raises InvalidJob where neither will do."""
    if not trainer.megatron:
        if job.megatron.model_fields_set - {"recompute_modules"}:
            raise InvalidJob(f"megatron: settings, and {trainer.title} does not run on Megatron", SETTINGS_OF_OTHERS)
        return False
    why = not_in_megatron(job, spec, trainer)
    if not why:
        _check(job, spec, degrees, sharding, micro_batches)
        check_adapters(job, degrees, trainer, megatron_targets(job.lora, spec, trainer)[1] if job.lora else ())
        _say(job, trainer, spec, degrees, notes)
        return True
    if trainer.name == "megatron" or degrees.model > 1 or degrees.expert > 1:
        hint = "use another trainer, or leave it out"
        hint = "leave precision out: Megatron's --bf16 is bf16-master" if why.startswith("precision") else hint
        raise InvalidJob(f"trainer: {trainer.title} with {why} is not modelled", hint)
    if "optimizer" in job.offload:
        raise InvalidJob(f"offload: optimizer of {trainer.title} with {why} is not modelled", "leave offload out")
    others = set(job.megatron.recompute_modules) - {"core_attn", "mlp", "moe"}
    if others:
        raise InvalidJob(f"megatron.recompute_modules: {min(others)} with {why} is not modelled", "leave it out")
    for name in GROWING:
        if getattr(job.megatron, name) != Megatron.model_fields[name].default:
            raise InvalidJob(f"megatron.{name}: {trainer.title} with {why} is not modelled with it", "leave it out")
    notes.assume(f"{trainer.title}: layers keep what Hugging Face's code keeps; Megatron's kernels may keep less")
    return False


def megatron_settings(job: Job) -> Megatron:
    """The job's settings; ``offload: optimizer`` is all of optimizer_cpu_offload, on the precision-aware optimizer."""
    if "optimizer" not in job.offload or job.megatron.optimizer_cpu_offload:
        return job.megatron
    update = {"use_precision_aware_optimizer": True, "optimizer_cpu_offload": True}
    return job.megatron.model_copy(update=update)


ALIKE = (
    (
        "moe_grouped_gemm",
        False,
        "experts one by one are counted as one grouped product; their outputs are joined once more, for a moment",
    ),
    (
        "disable_parameter_transpose_cache",
        True,
        "no less is counted: FP8 copies of weights stay from one micro-batch to the next",
    ),
    (
        "reduce_scatter_with_fp32_accumulation",
        True,
        "not counted: what is sent of a bucket of gradients stands once more beside it, and its sum in fp32",
    ),
)
"""Settings that are estimated as their opposite: what that leaves out."""


def _say(job: Job, trainer: Trainer, spec: ModelSpec, degrees: Parallel, notes: Notes) -> None:
    """Settings that decide memory and that nobody named."""
    settings, routed = job.megatron, any(run.layer.experts for run in spec.runs)
    kind = "fused attention" if job.attention != "eager" else "scores that are kept, of which little is measured"
    notes.assume(
        f"{trainer.title}: layers of Transformer Engine 2.11 in megatron-core 0.14 to 0.16, {kind}, dropout "
        f"{max(settings.hidden_dropout, settings.attention_dropout if job.attention == 'eager' else 0):g}"
    )
    if any(getattr(mixer, "style", "") == "sinks" for mixer in spec.mixers) and job.attention != "eager":
        notes.assume("attention: sinks within the fused kernel (TransformerEngine 2.8 with cuDNN 9.13 and later)")
    if any(getattr(mixer, "kind", "") == "gated-delta" for mixer in spec.mixers):
        notes.assume(
            "gated delta nets: megatron-core's, with flash-linear-attention; counted from its code, not measured"
        )
    if spec.tower is not None:
        notes.assume(
            "vision tower: transformers' own module, whole on every rank of the first pipeline stage, and not "
            "recomputed; little is measured"
        )
    if settings.narrow and job.lora is not None:
        notes.assume(
            f"megatron.{settings.narrow_kind}_format: a frozen base has its weights in {settings.narrow_kind.upper()} "
            f"({settings.narrow}); adapters keep their inputs in half precision. From the code: nothing is measured"
        )
    elif settings.narrow:
        kind = settings.narrow_kind
        notes.assume(
            f"megatron.{kind}_format: inputs of products are saved in {kind.upper()} ({settings.narrow}); little is "
            "measured; the high figure has them in half precision"
        )
    for name, value, what in ALIKE:
        if getattr(settings, name) is value and (routed or not name.startswith("moe_")):
            notes.remark(f"megatron.{name}: {str(value).lower()}: {what}")
    if settings.mtp_num_layers and job.method != "sft":
        notes.assume("megatron.mtp_num_layers: its layers run, and make no loss: the model is handed no labels")
    if job.lora is not None:
        notes.assume(f"lora: {WAYS[trainer.adapters.on_megatron]}; little of it is measured")
    if (
        job.method == "sft"
        and trainer.name == "megatron"
        and "cross_entropy_loss_fusion" not in settings.model_fields_set
    ):
        notes.assume(
            "megatron.cross_entropy_loss_fusion: Transformer Engine's kernel, as in Megatron-Bridge's recipes; "
            "Megatron-LM needs --cross-entropy-loss-fusion --cross-entropy-fusion-impl te for it, and takes 4 bytes "
            "per logit more without"
        )
    if degrees.context > 1 and "cp_comm_type" not in settings.model_fields_set:
        notes.assume(
            "megatron.cp_comm_type: p2p, Megatron's default; a2a keeps attention's output of every layer twice"
        )
    if (
        routed
        and settings.moe_expert_capacity_factor is None
        and "moe_expert_imbalance" not in settings.model_fields_set
    ):
        notes.assume(
            "megatron.moe_expert_imbalance: 1, so each rank's experts receive the mean; no token is dropped, and the "
            "fullest rank may receive more"
        )


def sequence_parallel(job: Job, trainer: Trainer, notes: Notes) -> bool:
    """On with tensor parallelism unless the job says no; off without, as Megatron itself switches it off."""
    if job.sequence_parallel and job.tensor_parallel == 1 and trainer.megatron:
        notes.remark("sequence_parallel: without effect, as Megatron switches it off without tensor parallelism")
        return False
    if job.sequence_parallel is not None or not trainer.megatron or job.tensor_parallel == 1:
        return bool(job.sequence_parallel)
    notes.fill("sequence_parallel", True, "default", "tensor parallelism without it is rare, and refused with experts")
    return True


def _check(job: Job, spec: ModelSpec, degrees: Parallel, sharding: str, micro_batches: int) -> None:
    """Raise InvalidJob for what Megatron asserts or raises ValueError for."""
    settings = megatron_settings(job)
    if job.optimizer not in STEPPED:
        raise InvalidJob(f"optimizer: Megatron steps with adam or sgd, not {job.optimizer}", "use optimizer adamw")
    _check_tensor(job, spec, degrees)
    check_stages(spec, degrees, settings)
    check_interleaved(degrees, micro_batches)
    if settings.moe_pad_expert_input_to_capacity and settings.moe_expert_capacity_factor is None:
        raise InvalidJob(
            "megatron.moe_pad_expert_input_to_capacity: needs a capacity", "set megatron.moe_expert_capacity_factor"
        )
    _check_fp8(job, settings)
    if settings.overlap_param_gather and not settings.overlap_grad_reduce:
        raise InvalidJob("megatron.overlap_param_gather: needs overlap_grad_reduce", "set overlap_grad_reduce: true")
    if settings.optimizer_cpu_offload and not settings.use_precision_aware_optimizer:
        raise InvalidJob(
            "megatron.optimizer_cpu_offload: needs use_precision_aware_optimizer",
            "set megatron.use_precision_aware_optimizer: true",
        )
    if settings.use_precision_aware_optimizer and sharding == "ddp":
        raise InvalidJob(
            "megatron.use_precision_aware_optimizer: needs the distributed optimizer",
            "use sharding: distributed-optimizer",
        )


FP8_FROM = {"delayed": 8.9, "tensorwise": 8.9, "blockwise": 9.0, "mxfp8": 10.0, "nvfp4": 10.0}
"""Compute capability that a recipe needs (TransformerEngine 2.20 pytorch/quantization.py: check_recipe_support)."""


def _check_fp8(job: Job, settings: Megatron) -> None:
    """Raise InvalidJob for what products in FP8 or FP4 do not run with."""
    if settings.fp8_format and settings.fp4_format:
        raise InvalidJob("megatron.fp4_format: not with fp8_format", "leave one of them out")
    kind = settings.narrow_kind
    if settings.narrow and job.dtype not in (None, "bf16"):
        message = f"megatron.{kind}_format: products in {kind.upper()} need bf16, not {job.dtype}"
        raise InvalidJob(message, "use dtype bf16")
    for kind, usual in (("fp8", "hybrid"), ("fp4", "e2m1")):
        if getattr(settings, f"{kind}_param_gather") and not getattr(settings, f"{kind}_format"):
            raise InvalidJob(
                f"megatron.{kind}_param_gather: needs {kind}_format", f"set megatron.{kind}_format: {usual}"
            )


def check_card(recipe: Recipe, notes: Notes) -> None:
    """Raise InvalidJob for a card without the matmuls that the settings ask for. Says which attention it runs."""
    settings, gpu = recipe.megatron, recipe.hardware.gpu
    if recipe.attention_by_rows and settings.attention_backend == "auto":
        notes.assume(
            "megatron.attention_backend: flash, as Transformer Engine prefers before Hopper: with several rows each "
            "layer keeps attention's output twice; fused keeps it once"
        )
    if not settings.narrow or gpu is None:
        return
    wanted, kind = FP8_FROM[settings.narrow], settings.narrow_kind
    if gpu.capability < wanted:
        others = [name for name, least in FP8_FROM.items() if least <= gpu.capability]
        raise InvalidJob(
            f"megatron.{kind}_recipe: {settings.narrow} needs compute capability {wanted}, and {gpu.name} has "
            f"{gpu.architecture}",
            f"use {'fp8_format hybrid in place of fp4_format' if settings.fp4_format else f'fp8_recipe {others[0]}'}"
            if others
            else f"leave {kind}_format out",
        )


def _check_tensor(job: Job, spec: ModelSpec, degrees: Parallel) -> None:
    """Query groups, feed-forward widths, sequence lengths."""
    tensor, context = degrees.tensor, degrees.context
    for run in spec.runs:
        mixer, part = run.layer.mixer, run.layer.feed_forward
        groups = mixer.num_kv_heads if isinstance(mixer, Attention) else 0
        if groups and groups % tensor and tensor % groups:
            raise InvalidJob(
                f"tensor_parallel: {tensor} is neither multiple nor divisor of the {groups} key/value heads",
                f"use {groups}",
            )
        states = getattr(mixer, "key_heads", 0)
        if states % (tensor * context):
            raise InvalidJob(f"tensor_parallel: {tensor} by context_parallel {context} does not divide the {states} "
                             "key heads of the gated delta nets", "use fewer")  # fmt: skip
        local = spec.num_heads // tensor
        if context > 1 and job.megatron.cp_comm_type == "a2a" and local % context:
            raise InvalidJob(
                f"context_parallel: {context} does not divide the {local} heads of a tensor-parallel rank (a2a)",
                "use cp_comm_type: p2p",
            )
        width = part.intermediate if part is not None and part.linears else 0
        if width % tensor:
            raise InvalidJob(f"tensor_parallel: {tensor} does not divide the feed-forward width {width}", "use fewer")
        experts = part.experts if part is not None else None
        if experts is not None and tensor > 1 and not degrees.sequence:
            raise InvalidJob(
                "sequence_parallel: false, and experts with tensor_parallel need it", "add --sequence-parallel true"
            )
        if experts is not None and experts.intermediate % degrees.expert_tensor:
            raise InvalidJob(
                f"expert_tensor_parallel: {degrees.expert_tensor} does not divide the experts' width "
                f"{experts.intermediate}",
                "use expert_tensor_parallel 1",
            )
    parts = 2 * context if context > 1 else 1
    if job.sequence_length % parts:
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is no multiple of 2 × context_parallel = {parts}",
            f"use {job.sequence_length // parts * parts or parts}",
        )
    if degrees.sequence and job.sequence_length // context % tensor:
        raise InvalidJob(
            f"sequence_length: {job.sequence_length} is no multiple of context × tensor parallel = {context * tensor}",
            f"use {job.sequence_length // (context * tensor) * context * tensor or context * tensor}",
        )
