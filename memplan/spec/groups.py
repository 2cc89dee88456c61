"""The groups of a recipe: what belongs together, made by one step of ``resolve`` and handed on whole."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from memplan.spec.fsdp import Ddp, FsdpSettings
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recompute import Recompute
from memplan.spec.routing import RouterLoss
from memplan.spec.zero import Zero
from memplan.tables.kernels import NO_KERNELS, Kernels
from memplan.tables.precisions import Precision
from memplan.tables.quantizations import Quantization
from memplan.tables.styles import OffloadStyle, Optimizer


class Quantised(NamedTuple):
    """The quantised linears of a frozen base."""

    scheme: Quantization
    compute_itemsize: int
    """Element size of the products."""
    original_itemsize: int
    """Element size of the weights before: bitsandbytes dequantises to it in backward."""
    fp16: bool = False
    """The compute dtype is fp16, not bf16."""
    experts: bool = False
    """Experts are quantised too: linears of their own before transformers 5, stacked parameters since."""
    stacks: bool = False
    """They are stacked parameters, which are unpacked whole."""
    keeps_inputs: bool = False
    """As old bitsandbytes did, 4-bit products keep their inputs until the graph goes, 8-bit ones twice."""
    share_left: float = 0
    """Share of the linears' weights that are as they were before."""


class LossCode(NamedTuple):
    """What a trainer's loss holds and copies beside its log-probabilities."""

    frees_logits: bool = False
    """Once logits are cast, nobody holds those of the model."""
    holds_logits: bool = False
    """Logits are held until the loss is whole."""
    metrics: str = ""
    """What is copied for the log: a key of the engine's ``METRICS``."""
    metrics_everywhere: bool = False
    """By the reference's forward too, not once at the end."""
    entropy: str = ""
    """How an entropy is made: a key of the engine's ``ENTROPIES``, or none."""
    entropy_gradient: bool = False
    tempered: bool = False
    recomputed: bool = False
    late_sft_term: str = ""
    """The SFT term is made behind the log-probabilities, of the chosen half as it is ('viewed') or 'copied'."""
    leaves_autocast: bool = False
    """Autocast ends with the model's forward, and its outputs become fp32."""
    hidden_states: bool = False
    """The model's outputs hold the hidden states of all layers."""
    stacked: bool = False
    """The reference's logits wait for the policy's, to be concatenated with them."""
    reads_reference: bool = False
    """The loss reads the reference's hidden states and head."""
    projects_completions: bool = False
    """The head projects completions alone."""
    slices_logits: str = ""
    """The loss reads the completions' part of all logits, or all but each row's last position ('labels')."""
    rescales: bool = False
    """Logits are divided by the temperature, whatever it is, and those before let go of."""
    step_outputs: bool = False
    """The loop holds the model's outputs over the step."""
    scoring_entropy: bool = False  # of the rollout
    own_logits: int = 0
    """Bytes for each logit that a loss of the program's own has at once (``spec/own_loss.py``)."""
    own_hidden: int = 0
    """The same for each element of the last hidden states."""
    own_forwards: int = 1
    """Forwards of the policy whose graphs wait for one backward."""

    @property
    def scoring(self) -> "LossCode":
        """What is left of it in a pass without a graph."""
        return self._replace(entropy="", recomputed=False)


class Resident(NamedTuple):
    """A frozen model that stands on the card beside the policy."""

    role: str
    spec: ModelSpec
    itemsize: int
    sharded: bool
    """Split over the ranks as the policy is, not a replica on each."""
    frozen: bool = True
    """False where its weights keep requires_grad, so that autocast caches their casts."""
    quantised: Quantised | None = None


class Critic(NamedTuple):
    """PPO's value model, trained beside the policy and stored as it is; ``own``: where they are not the policy's."""

    spec: ModelSpec
    adapter: Adapter | None = None
    apart: bool = False
    """An engine and a step of its own, before the policy's update; elsewhere one step steps both."""
    together: bool = False
    """One loss and one backward with the policy; elsewhere a backward of its own, before the policy's forward."""
    own: "tuple[Batch, Checkpointing] | None" = None


class OptimizerSettings(NamedTuple):
    """The optimizer's own settings, resolved; those that it does not have are not read."""

    rank: int = 128
    """Of the projections."""
    targets: frozenset[str] | None = None
    """Linears whose gradients are projected; None: every one of the layers."""
    block_size: int = 0
    """Elements of a quantised block; 0: the row's own."""
    min_8bit_size: int = 0
    """Elements from which states are quantised; 0: the row's own."""
    wide_embeddings: bool = False
    """Embeddings keep 32-bit states."""
    max_precondition_dim: int = 10000
    head_elements: int = 1
    """Elements of one attention head's block (Adam-mini)."""


class ImageBatch(NamedTuple):
    """The images of one example, as the processor cuts them."""

    per_example: int
    squares: int
    """Tiles of one image, each a row of the tower's batch."""
    rows: int
    """Patches of a tile, from top to bottom; 0 where no tower sees them."""
    columns: int
    tokens: int
    """Positions of one image in the language model's sequence."""
    pixels: int
    """Numbers of one image in the batch."""
    lines: int = 0
    """Rows of tokens, each with one more at its end (LLaVA-NeXT)."""
    breaks: int = 0
    """Tokens of text that the processor writes among an image's, such as the end of each row (Pixtral)."""
    unpadded: int = 0
    """Tokens of these rows without their ends, before they are shrunk (LLaVA-OneVision)."""
    masked: bool = False
    """Tiles differ in size, so that the smaller ones are filled up and a mask reaches attention (Idefics 2)."""


class Numerics(NamedTuple):
    """What modules compute in. Every pass of the policy has it."""

    itemsize: int
    """Element size of weights as modules see them in forward: gathered or cast ones included."""
    autocast: int = 0
    """Element size that autocast runs in; 0 without autocast."""
    half_to_float: bool = False
    """fp16: softmax and log_softmax read fp16 and write fp32 without a converted copy."""
    norm_itemsize: int = 0
    """Element size of stored norms where it differs from the other weights'; 0 elsewhere."""
    stack_itemsize: int = 0
    """The same of stacked experts."""


class Operators(NamedTuple):
    """Whose code runs the layers. Every pass of the policy has it."""

    attention: str
    """sdpa, flash or eager; for sdpa, ``attention_kernel`` chooses as CUDA does."""
    kernels: Kernels = NO_KERNELS
    """Fused kernels in place of the layers' own operations."""
    mixer_kernels: bool = False
    """State spaces and their kin run as the kernels of mamba-ssm and its like do."""
    tiles: int = 0
    """Parts of the sequence that feed-forwards take one after the other; 0: they take it whole."""
    tile_sums: bool = False
    """Their weights' gradients are summed in tensors of their own, beside those of one tile (Axolotl's)."""
    flash_version: int = 2
    """Generation of FlashAttention, where attention is flash."""


class Storage(NamedTuple):
    """How weights and gradients are stored and reduced."""

    precision: Precision
    gradient_itemsize: int
    reduce_itemsize: int


class OptimizerChoice(NamedTuple):
    """The optimizer, resolved."""

    row: Optimizer
    implementation: str
    settings: OptimizerSettings


class Batch(NamedTuple):
    """What a micro-step is made of."""

    size: int
    accumulation: int
    sequence_length: int
    completion_length: int
    padded: bool = False
    """A padding mask reaches attention."""
    masked: bool = False
    """The model is given a mask, whether or not it masks anything: what it makes of it has a row for each of ours."""
    images: ImageBatch | None = None
    """The images of an example."""
    group: int = 1
    """Completions that one example of the batch stands for."""
    eval_size: int = 0
    """Examples per GPU of an evaluation between steps; 0 where the job evaluates nothing."""
    eval_kept: int = 0
    """Batches of it whose logits wait on the card at once."""
    eval_examples: int = 0  # whose logits the host keeps
    step: "Batch | None" = None
    """Of an evaluation: what the step before it took."""
    longest: int = 0
    """Tokens of the longest sequence of a packed row; 0 where rows are sequences."""
    scoring: int = 0
    """Tokens of a packed row that is scored before the update; 0 where rows are the update's."""
    emptied: bool = False  # the allocator's cache is given back before each backward


class Checkpointing(NamedTuple):
    """What is made again in backward, and what waits on the host."""

    form: str = "none"
    """As the job says it: none, full, selective or every:N."""
    reentrant: bool = False
    recompute: Recompute = Recompute()
    offload: OffloadStyle = ""

    @property
    def layers(self) -> bool:
        """Whole layers are checkpointed."""
        return self.form != "none" and not self.recompute.modules


class Loss(NamedTuple):
    """From hidden states to the loss."""

    head: str
    to_fp32: bool = False
    """The trainer casts logits to fp32 before the loss."""
    keeps_outputs: bool = False
    fp32_outputs: bool = False
    """The outputs kept are a copy in fp32 (accelerate, under native AMP)."""
    code: LossCode = LossCode()
    sft_term: bool = False
    pair_pass: str = "concatenated"
    router: RouterLoss = RouterLoss()
    """Where the load-balancing loss of a mixture's routers is made."""


class OtherModels(NamedTuple):
    """What stands beside the policy."""

    reference: str = "none"
    residents: tuple[Resident, ...] = ()
    critic: Critic | None = None


class Sharding(NamedTuple):
    """How model states are divided, and when gradients are reduced."""

    name: str
    ranks: int
    """GPUs that share the model states."""
    reshard_after_forward: bool | int
    """A number above one: shared among so many ranks until backward."""
    sync_each_batch: bool
    gradient_as_bucket_view: bool
    deepspeed: Zero
    fsdp: FsdpSettings = FsdpSettings()
    ddp: Ddp = Ddp.model_construct()
    searches: bool | None = None
    """DDP looks for what is unused before each backward; None where nobody has read whether."""


class Provenance(NamedTuple):
    """What the report says of the job."""

    job: dict[str, Any]
    """The job with every value filled in."""
    sources: dict[str, str]
    origins: Mapping[str, str] = MappingProxyType({})
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unclear: str = ""
    """What decides memory and is not understood of a framework's file, in words."""
    bounded: str = ""
    """What of it is counted as no less than it can take."""
    trains_alone: bool = False
    """Both are of the training alone: an engine beside it is what it is."""
