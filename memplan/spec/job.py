"""Job: one flat set of keys. What the user said, checked one by one; ``auto`` is still auto here (see ``resolve``)."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from memplan.errors import InvalidJob, did_you_mean
from memplan.spec.allocator import Allocator
from memplan.spec.base import Frozen
from memplan.spec.deepspeed import DeepSpeed
from memplan.spec.fsdp import Ddp, Fsdp
from memplan.spec.gpu import Cluster
from memplan.spec.lengths import Lengths, in_full
from memplan.spec.lora import Lora, module_names
from memplan.spec.megatron import Megatron
from memplan.spec.moments import Evaluation
from memplan.spec.optimizer_args import OptimizerArgs
from memplan.spec.other_models import ExtraModel
from memplan.spec.own_loss import OwnLoss
from memplan.spec.recompute import Offloaded, by_layer, int_of_flag, is_by_layer, listed
from memplan.spec.rollout import Rollout, Sync, offloads
from memplan.tables.choices import CHOICES, INSTEAD, SYNONYMS
from memplan.tables.phases import PHASES


def one_of(key: str, value: object) -> str:
    """The value in its canonical spelling. Raises InvalidJob for an unknown one."""
    text = str(value).strip().lower()
    known = CHOICES[key]
    text = SYNONYMS.get(key, {}).get(text, text)
    for spelling in (text, text.replace("_", "-")):
        if spelling in known:
            return spelling
    listed = f"memplan show {key}s lists them" if key in ("optimizer", "trainer") else ""
    raise InvalidJob(
        f"{key}: unknown value {str(value)[:80]!r}", INSTEAD.get(text) or did_you_mean(text, known, listed)
    )


def _choice(value: object, info: ValidationInfo) -> str:
    return one_of(str(info.field_name), value)


def _layers(value: object, info: ValidationInfo) -> str:
    return value if isinstance(value, str) and is_by_layer(value) else _choice(value, info)


def _checkpointing(value: object) -> object:
    """true is full, false is none; a way by layers in its one spelling."""
    if str(value).isdecimal() and not isinstance(value, bool):
        raise InvalidJob(f"gradient_checkpointing: {value} is no way to checkpoint", f"write every:{value}, or full")
    if isinstance(value, str) and is_by_layer(value):
        return by_layer(value)
    switch = {True: "full", False: "none", "true": "full", "false": "none"}
    return switch.get(value, value) if isinstance(value, (bool, str)) else value


def _number(value: object, info: ValidationInfo) -> object:
    """true is not 1."""
    if isinstance(value, bool):
        key = info.field_name
        raise InvalidJob(f"{key}: {str(value).lower()} is no number", f"write {key}: 1, or more")
    return value


def _resharding(value: object) -> object:
    """true, false, or a number of ranks."""
    text = str(value).strip().lower()
    if value is None or text in ("true", "false"):
        return None if value is None else text == "true"
    if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= 100_000:
        raise InvalidJob(
            f"reshard_after_forward: {text[:40]!r} is neither true, false nor a number of ranks",
            "write true, false, or a number that divides the ranks, such as 8",
        )
    return int(text)


def _version(value: object, info: ValidationInfo) -> object:
    """A version is text: 1.10 as a number would be 1.1."""
    text = str(value)
    if isinstance(value, float) or (value is not None and not re.fullmatch(r"\d[\w.+!-]{0,40}", text, re.ASCII)):
        such = re.search(r"\d+(\.\d+)+", text)
        hint = f'write {info.field_name}: "{such[0]}"' if such else f"leave {info.field_name} out for the newest"
        raise InvalidJob(f"{info.field_name}: {text[:40]!r} is no version", hint)
    return text if value is not None else None


def _phases(value: object) -> object:
    """Names of phases; none for none of them, nothing for all that there are."""
    return None if value is None else listed("phases", value, PHASES)


Phases = Annotated[tuple[str, ...], BeforeValidator(_phases)]
Choice = Annotated[str, BeforeValidator(_choice)]
Checkpointing = Annotated[str, BeforeValidator(_layers), BeforeValidator(_checkpointing)]
Positive = Annotated[int, Field(ge=1, le=10**9), BeforeValidator(_number)]


class Images(Frozen):
    """Images of one example: their size in pixels, or the patches or tokens that one image becomes."""

    per_example: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Images of an example; a pair is one example, whose images both halves see."""
    width: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Pixels, before the processor resizes."""
    height: Annotated[int, Field(ge=1, le=100_000)] | None = None
    patches: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Patches of one image as the vision tower sees them."""
    tokens: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    """Tokens of one image in the sequence."""

    @model_validator(mode="after")
    def _one_form(self) -> "Images":
        given = [self.width is not None or self.height is not None, self.patches is not None, self.tokens is not None]
        if sum(given) != 1 or (self.width is None) != (self.height is None):
            raise InvalidJob(
                "images: give the size of an image in one way",
                "images: {per_example: 1, width: 1024, height: 768}, or patches, or tokens instead of width and height",
            )
        return self


class Job(Frozen):
    """A training job. Every field is a key of a job file; scalars are command-line options too."""

    model: str | dict[str, Any] | None = None
    """Preset name, Hub id, a folder or config.json; an inline config in YAML and Python."""
    revision: str | None = None
    """Branch, tag or commit of the Hub repository."""
    total_params: Annotated[str | int | float | None, BeforeValidator(_number)] = None
    """In place of a model: 8 or 8B, 350M, or a count; a generic dense shape of that size is assumed."""
    method: Choice = "simpo"
    """Training method."""
    trainer: Choice = "pytorch"
    """Trainer: its defaults and its loss code are modelled."""
    trainer_version: Annotated[str | None, BeforeValidator(_version)] = None
    """Version of the trainer; the newest era when not given."""
    batch_size: Positive = 1
    """Examples per GPU and micro-step; a pair is one example of two sequences."""
    gradient_accumulation_steps: Positive = 1
    """Micro-steps per optimizer step."""
    global_batch_size: Positive | None = None
    """Examples per optimizer step over all ranks; accumulation follows from it."""
    sequence_length: Positive = 2048
    """Tokens per sequence as it enters the model."""
    completion_length: Positive | None = None
    """Tokens per sequence that the loss scores; all of them when not given."""
    token_budget: Positive | None = None
    """Tokens of a micro-batch that is packed up to a limit, in place of batch_size × sequence_length."""
    logprob_token_budget: Positive | None = None
    """Tokens of a packed micro-batch of the passes that score a rollout before the update."""
    padded: bool = False
    """An attention mask with padding reaches the model."""
    lengths: Annotated[Lengths | str | None, BeforeValidator(in_full)] = None
    """How long sequences are: a file of lengths, {p50, p90, p99, max}, or {mean, sigma, max} in tokens."""
    dtype: Choice | None = None
    """What the matmuls run in."""
    precision: Choice = "auto"
    """Precision: how weights, gradients and optimizer states are stored."""
    autocast: bool | None = None
    """Forward and loss run under torch.autocast."""
    grad_dtype: Choice = "auto"
    """Dtype of stored gradients."""
    reduce_dtype: Choice = "auto"
    """Dtype of gradient reduction."""
    optimizer: Choice = "adamw"
    """Optimizer."""
    optimizer_impl: Choice = "auto"
    """Implementation of the optimizer's step."""
    optimizer_args: OptimizerArgs = OptimizerArgs.model_construct()
    """The optimizer's own settings: library, rank, targets, block_size, …"""
    gradient_checkpointing: Checkpointing = "none"
    """Activation checkpointing: none, full, selective, every:N for every n-th layer, or full:N,selective:M for the
    first n layers whole and the next m selectively."""
    gradient_checkpointing_reentrant: bool = False
    """Use the reentrant implementation."""
    kernels: Choice = "none"
    """Fused kernels: what stands in place of the model's own code."""
    mixer_kernels: Choice = "auto"
    """What runs state spaces, linear attention and short convolutions: transformers' PyTorch code, or the kernels of
    mamba-ssm, causal-conv1d and flash-linear-attention; auto takes the kernels where a gpu is named."""
    float8: Choice = "none"
    """Products of linears in float8: torchao's recipe of the layers', or TransformerEngine's (te) of all."""
    tiled_mlp: Annotated[int, Field(ge=-1, le=10_000), BeforeValidator(int_of_flag)] = 0
    """Tiles of the sequence that feed-forwards run in, made again in backward; true: sequence over hidden of them."""
    compile: bool = False
    """torch.compile: chains of pointwise operations become one kernel."""
    attention: Choice = "sdpa"
    """Attention implementation."""
    flash_version: Annotated[int, Field(ge=2, le=4)] = 2
    """FlashAttention's generation: 3 has kernels for Hopper, 4 for Blackwell too; memory is the same."""
    loss_head: Choice = "auto"
    """How hidden states become a loss."""
    logits_dtype: Choice = "auto"
    """Dtype that logits are cast to before the loss."""
    sft_term: bool | None = None
    """A language-modelling term beside the preference loss (pref_ftx, cpo_alpha, sft_weight)."""
    entropy: Choice = "none"
    """Entropy of the policy."""
    temperature: Annotated[float, Field(gt=0, le=1000), BeforeValidator(_number)] | None = None
    """Sampling temperature that logits are divided by."""
    router_aux_loss: bool | None = None
    """The load-balancing loss of a mixture of experts (output_router_logits) is part of the loss."""
    recompute_loss: bool | None = None
    """Log-probabilities are computed again in backward."""
    hold_outputs: bool | None = None
    """The loop holds the model's outputs, so the logits, through backward."""
    own_loss: OwnLoss | None = None
    """A program's own loss: what it holds at most (logits, hidden, layers, forwards)."""
    pair_pass: Choice = "concatenated"
    """How the two halves of a pair pass through the model."""
    reference: Choice = "auto"
    """Where reference log-probabilities come from."""
    lora: Lora | None = None
    """Low-rank adapters; null trains all weights."""
    freeze: Annotated[tuple[str, ...], BeforeValidator(module_names)] = ()
    """Patterns of modules that are not trained."""
    quantization: Choice = "none"
    """Quantisation of the frozen base."""
    quantize_experts: bool = False
    """Stacked experts are packed as the base is, and unpacked whole where they are read."""
    unquantized_share: Annotated[float, Field(ge=0, le=1), BeforeValidator(_number)] = 0
    """Share of the linears' weights that the quantised checkpoint leaves in 16 bits (llm_int8_skip_modules)."""
    kbit_upcast: bool | None = None
    """What is not quantised is cast to fp32."""
    kbit_upcast_experts: bool | None = None
    """Stacked experts beside a quantised base are, whatever becomes of the rest."""
    num_gpus: Annotated[int, Field(ge=1, le=100_000), BeforeValidator(_number)] = 1
    """GPUs in all."""
    gpus_per_node: Annotated[int, Field(ge=1, le=1024), BeforeValidator(_number)] = 8
    """GPUs in a node."""
    sharding: Choice | None = None
    """Sharding: how model states are split over the GPUs."""
    zero_stage: Annotated[int, Field(ge=0, le=3), BeforeValidator(_number)] | None = None
    """DeepSpeed's ZeRO stage: short for sharding zero0 to zero3."""
    tensor_parallel: Positive = 1
    """GPUs that share each matmul."""
    pipeline_parallel: Positive = 1
    """Stages that the layers are divided into."""
    context_parallel: Positive = 1
    """GPUs that share each sequence."""
    context_exchange: Choice = "own"
    """How they do in attention: as the trainer, or all keys and values gathered (ring-flash-attention's llama3)."""
    expert_parallel: Positive = 1
    """GPUs that the experts are divided over."""
    expert_tensor_parallel: Positive = 1
    """GPUs that share each expert; tensor_parallel when not given."""
    virtual_pipeline: Positive = 1
    """Chunks of layers on each pipeline stage (the interleaved schedule)."""
    sequence_parallel: bool | None = None
    """Norms and dropouts between tensor-parallel products run on a part of the sequence."""
    reshard_after_forward: Annotated[bool | int | None, BeforeValidator(_resharding)] = None
    """FSDP2: free a layer's gathered weights after its forward; a number: share them among so many ranks."""
    sync_each_batch: bool | None = None
    """Reduce gradients at every micro-step."""
    gradient_as_bucket_view: bool = False
    """DDP: gradients are views of the communication buckets, not a second copy."""
    deepspeed: DeepSpeed = DeepSpeed.model_construct()
    """DeepSpeed's other settings, under their own names: reduce_bucket_size, offload_optimizer, …"""
    fsdp: Fsdp = Fsdp.model_construct()
    """FSDP's other settings, under their own names."""
    ddp: Ddp = Ddp.model_construct()
    """DDP's other settings, under their own names."""
    megatron: Megatron = Megatron.model_construct()
    """Megatron's other settings: recompute_modules."""
    allocator: Allocator = Allocator.model_construct()
    """Settings of PyTorch's caching allocator."""
    empty_cache_steps: Positive | None = None
    """The trainer empties the cache before the backwards of every so manieth step; of more than 1, none is played."""
    offload: Offloaded = ()
    """On the host: activations, or checkpoints, and under DeepSpeed the optimizer and, in stage 3, the parameters."""
    rollout: Rollout | None = None
    """What the policy generates for online methods: groups, lengths, and the engine that does it."""
    sync: Sync = Sync.model_construct()
    """How weights come from the trainer to the engine."""
    trainer_offload: Annotated[tuple[str, ...] | None, BeforeValidator(offloads)] = None
    """What of the trainer is on the host while the engine generates: parameters, optimizer, gradients."""
    extra_models: tuple[ExtraModel, ...] = ()
    """Models that stand beside the policy and the reference: reward models, teachers, a critic."""
    images: Images | None = None
    """Images of an example: pixels in the batch, a pass of the vision tower, tokens of the sequence."""
    eval_batch_size: Positive | None = None
    """Examples per GPU in evaluation."""
    evaluation: Evaluation = Evaluation.model_construct()
    """What evaluation keeps: keeps_logits, accumulation_steps, examples."""
    phases: Phases | None = None
    """Moments beside the steady step: load, resume, first-step, evaluate, save, merge, sync; all that the trainer has
    but resume when not given, none for none."""
    cluster: str | Cluster | None = None
    """Nodes that the job runs on: a preset such as dgx-h100, or {nodes, gpus_per_node, gpu, links, host_memory}."""
    gpu: str | None = None
    """Card: a preset such as h100-80gb; a size such as 80GB or 79.1GiB; or local."""
    calibration: str | None = None
    """File of memplan calibrate: speeds by the machine's own rates; memory does not feel them."""
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the card's usable memory to keep free."""
