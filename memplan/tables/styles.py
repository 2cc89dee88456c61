"""Words that choose one of several ways, each a type, so that a misspelt one is an error before anything runs.

The columns of the optimizers' table: what is kept between steps, what a step holds, where it cannot run."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

LoadedWeights = Literal["checkpoint", "fp32", "trained-fp32"]
"""The dtype that a trainer's weights get where the job names no precision: the checkpoint's; all fp32, under autocast;
or fp32 for what trains, and the checkpoint's for what is frozen."""
SftTerm = Literal["logits", "free", "viewed", "copied", "scored"]
"""What a trainer's SFT term is made of: a pass of its own over the logits, before the log-probabilities; the
log-probabilities that are there already (free); or, behind them and in every forward, the chosen half of the logits as
it is viewed or copied; or scored tokens, once the reference has spoken."""
RouterTerm = Literal["model", "always", "recorded", "unread", "none"]
"""The load-balancing loss of routers under a trainer: part of the loss where the model's config or the job asks for it
(model); wherever the class has one with a coefficient (always); made in any case, part of the loss where the job asks
(recorded); made where the config asks, not part of it (unread); or never made."""
CriticUpdate = Literal["together", "own-backward", "own-step", "own-process"]
"""How PPO's critic trains: one loss and one backward with the policy; a backward of its own before the policy's forward
and one step for both; an engine and a step of its own, before the policy's update; or these in a process of its own."""
PARTED = ("own-step", "own-process")
"""Of these, where the critic's engine is none of the policy's."""
Upcast = Literal["all", "norms", "none"]
"""What is left in fp32 beside a quantised base: all that is not quantised, norms (4 bits), or nothing."""
EntropyUse = Literal["none", "metric", "loss"]
"""What is done with the policy's entropy: nothing, a number for the log, or a term of the loss."""
ReferenceFrom = Literal["none", "resident", "adapter", "precomputed", "offloaded"]
"""Where reference log-probabilities come from: nowhere; a second model on the card; the base with its adapters off; the
data set; or a second model on the host, swapped in for its forward."""
PassStyle = Literal["plain", "checkpoint", "reentrant", "no-grad"]
"""How one pass goes through its layers: with a graph that saves what backward needs; checkpointed by
``torch.utils.checkpoint`` with saved-tensor hooks; by its ``CheckpointFunction``; or forward alone."""
OffloadStyle = Literal["", "torch", "trl", "unsloth", "inputs"]
"""How saved tensors go to the host: not at all; ``save_on_cpu``; TRL's ``OffloadActivations``, on a stream of its own;
or the inputs of checkpointed layers alone (Unsloth)."""
SavedBy = Literal["", "products", "attention", "matmuls"]
"""What selective checkpointing keeps beside a layer's input: nothing, attention's output and every second matmul's,
attention's alone, or that and every matmul's."""
RouterUse = Literal["", "read", "unread"]
"""The routers' load-balancing loss in a pass: not made; part of the loss; or made by the model's class and not read."""
SharedCasts = Literal["", "first", "second"]
"""Two forwards of one autocast region share the copies of the weights and the gradients of these: first makes them, and
in its backward the sum is cast; second finds them there, and its gradients wait in low precision."""
KeyRepeats = Literal["", "class", "function"]
"""Who repeats keys and values to all heads: nobody; attention's class, letting go of them; or a function it calls."""
FlatAdapters = Literal["", "together", "apart"]
"""FSDP1 beside adapters: a layer's weights get gradients where its flat parameter holds a trained one. together:
adapters are in it; apart: they are units of their own, and trained biases are in it."""
ZeroWrapper = Literal["", "plain", "unfused", "fused", "bf16", "zero", "zero3"]
"""What of DeepSpeed steps: nothing; stage 0 in fp32, FP16_UnfusedOptimizer and FP16_Optimizer; BF16_Optimizer; stages 1
and 2; or stage 3."""
Device = Literal["none", "cpu", "nvme"]
"""Where DeepSpeed offloads states to."""


class Fused(NamedTuple):
    """LOMO: a gradient updates its weight when the next one comes; so many bytes per element are alive then."""

    half: int
    """Of weights in half precision."""
    single: int
    waits: bool = True
    """False: it updates its weight as it comes (a hook behind its accumulation)."""


class Bucket(NamedTuple):
    """DeepSpeed: a gradient is copied into a bucket; one of more than ``most`` elements waits for the next one."""

    most: int


GradientMode = Literal["keep", "add", "sum", "meet", "join"] | Fused | Bucket
"""What becomes of a weight's new gradient. keep: it is ``.grad`` itself. add: it is added in place to the one there and
freed. sum: another graph of the same backward left one in the engine's buffer, and their sum is a third. meet: the
same, and both are freed, since the sum is added to the ``.grad`` of micro-steps before. join: the sum itself becomes
``.grad`` (FSDP2's whole gradients, which wait for their reduction)."""


EVERYWHERE = ("none", "ddp", "zero", "fsdp", "fsdp2", "distributed-optimizer")
"""Ways of sharding, ZeRO's stages as one."""


class Blocks(NamedTuple):
    """A block-wise quantised state: codes of ``bits`` and one fp32 scale for each ``size`` elements."""

    bits: int
    size: int
    least: int = 4096
    """Tensors with fewer elements are not quantised."""
    whole: bool = False
    """Tensors that are no multiple of the block are not quantised."""
    wide: int = 0
    """Bytes per element of a state that is not quantised; 0 for the stepped tensor's own."""
    table: int = 0
    """Bytes of the code's lookup table, beside each state."""
    shared_table: int = 0
    """Bytes of the lookup table that all tensors share, for each state."""


class Optimizer(NamedTuple):
    """States kept between steps, temporaries alive within one."""

    name: str
    title: str
    library: str = "torch"
    """Whose code is modelled, in the words of ``optimizer_args.library``."""
    under_trainers: bool = False
    """The row that Hugging Face's Trainer, and what is built on it, means by the name."""
    rule: str = "elementwise"
    """Which states a tensor gets: a key of ``engine.optimizer_states.RULES``."""
    per_element: int = 0
    """Full states: of the tensor's shape, and of its dtype unless ``state_itemsize`` says otherwise."""
    state_itemsize: int = 0
    blocks: Blocks | None = None
    paged: bool = False
    """Large states live in managed memory: not seen by torch's allocator, evictable to the host."""
    skips_embeddings: bool = False
    """Hugging Face's Trainer registers embeddings for 32-bit states."""
    trainer_block: int = 0
    """Block size that Hugging Face's Trainer passes; 0 where it passes none."""
    rank: int = 0
    """Rank of the projections when the job gives none."""
    states_of_frozen: bool = False
    """Frozen tensors get states, too."""
    fused_backward: Fused | None = None
    """The weight is updated inside backward and its gradient freed; None where gradients stay until the step."""
    implementations: tuple[str, ...] = ("foreach", "fused", "loop")
    default_implementation: str = "foreach"
    foreach_copies: int = 0
    """Copies of all stepped tensors alive in a foreach step."""
    step: str = "in-place"
    """What a step that goes tensor by tensor allocates: a key of ``engine.optimizer_steps.PROGRAMS``."""
    gathers: bool = False
    """Under FSDP2 its step gathers what it needs of a whole matrix."""
    band: bool = False
    """The step's temporaries hang on a compiler: none to all of them."""
    arguments: tuple[str, ...] = ()
    """Keys of ``optimizer_args`` that it takes, beside ``library``."""
    shardings: tuple[str, ...] = EVERYWHERE
    refusals: Mapping[str, str] = MappingProxyType({})
    """Why it cannot run: by way of sharding, or ``lora``, ``experts`` (stacked ones), ``accumulation``, ``passes``."""
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def factored(self) -> bool:
        """A row and a column of statistics for each matrix in place of a full state."""
        return self.rule == "factored"

    @property
    def bytes_per_element(self) -> float:
        """Of block-wise quantised states; 0 elsewhere."""
        return self.per_element * (self.blocks.bits / 8 + 4 / self.blocks.size) if self.blocks else 0.0
