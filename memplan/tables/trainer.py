"""What a row of the trainer table says, in groups, and how its tables by method are read."""

from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from memplan.tables.families import WITHOUT_FLASH, WITHOUT_FLASH_BEFORE
from memplan.tables.styles import CriticUpdate, EntropyUse, LoadedWeights, ReferenceFrom, RouterTerm, SftTerm, Upcast

_NONE: Mapping[str, Any] = MappingProxyType({})
_Word = TypeVar("_Word", bound=str)


class Methods(NamedTuple):
    """Which methods a trainer has, and in which of its versions."""

    names: tuple[str, ...] = ()
    """Methods that it trains; empty for all."""
    later: tuple[str, ...] = ()
    """Methods that it has and memplan does not model yet."""
    first_versions: Mapping[str, str] = _NONE
    """Version from which on a method's loss is the one that is modelled."""
    ended: Mapping[str, str] = _NONE
    """Version in which a method was removed."""
    lacks: Mapping[str, tuple[str, ...]] = _NONE  # degrees of parallelism that a method has not, by method (job keys)


class ModelClasses(NamedTuple):
    """The model classes that a trainer runs."""

    transformers_4: bool = False
    """Those of transformers before 5: checkpoints around FSDP's units, not within; experts are modules of their own."""
    keeps_inputs: tuple[str, ...] = ()
    """Products whose context has A (4 bits, bitsandbytes before 0.43.2) or its columns too (8 bits, before 0.45)."""
    before_5_24: bool = False
    """Those of transformers 5 up to 5.23."""
    warms_up: bool = False
    """Those of transformers 4.51 to 4.57, which ask for half of a model, unpacked, before it is loaded packed."""
    repeats_flash: tuple[str, ...] = ()
    """Model types that repeat keys and values for flash attention, as for eager."""
    repeats_sdpa: bool = False
    """They do before SDPA with and without a mask (transformers before 4.54's ``use_gqa_in_sdpa``)."""
    repeats: bool = False  # its attention repeats keys and values, whatever the kernel
    joined_towers: str = ""  # of Qwen2-VL and Qwen2.5-VL: ``VisionAttention.joined``
    unties: bool = False
    """Its class has a head of its own where the checkpoint ties it to the embeddings: twice the weights."""
    freezes_tower: bool = False
    """Vision tower and projector are not trained where nobody says otherwise."""

    @property
    def newest(self) -> bool:
        """Whether they may be those of the newest transformers that was read."""
        return not (self.transformers_4 or self.before_5_24)

    @property
    def without_flash(self) -> frozenset[str]:
        """Model types whose class refuses flash attention."""
        return WITHOUT_FLASH if self.newest else WITHOUT_FLASH_BEFORE


class Numerics(NamedTuple):
    """Dtypes of weights and outputs."""

    weights: LoadedWeights = "checkpoint"
    checkpoints_dtype: tuple[str, ...] = ()
    """Methods whose trainer calls from_pretrained without a dtype, which then is the checkpoint's."""
    fsdp_in_fp32: bool = False
    """Under FSDP it tells from_pretrained no dtype, which then is fp32; of a quantised base it does."""
    loads_dtype: bool = False
    """A job that says ``dtype: bf16`` says what from_pretrained loads, whatever it would load by itself."""
    autocast: bool = False
    """Forward and loss run under autocast (bf16=True), whatever dtype the weights have."""
    leaves_autocast: bool = False
    """Autocast, where it runs, is around the model's forward alone."""
    autocasts_megatron: bool = False
    """Its Megatron models can run under autocast, which megatron-core leaves with the forward."""
    fp32_outputs: bool = False
    """accelerate's ``convert_outputs_to_fp32`` wraps the forward under native AMP: logits come out in fp32."""


class Checkpointing(NamedTuple):
    """Gradient checkpointing where nobody says it."""

    on: bool = False
    on_if_quantised: bool = False
    """Preparing a quantised model turns it on."""
    reentrant: bool = False
    """``use_reentrant``: transformers before 5, and TRL before it set false itself."""
    forced_from: Mapping[str, str] = _NONE
    """By method the version from which adapters under ZeRO-3 have it, whatever is asked for."""
    modules: tuple[str, ...] = ()
    """What is checkpointed by itself where layers are asked for: norms, attention, mlp, moe; empty for whole layers."""
    from_first: bool = False  # of every n layers the first is checkpointed, not the last


class Parallelism(NamedTuple):
    """Sharding and the reduction of gradients."""

    sharding: str = ""
    """How it runs when the job names no sharding."""
    reduce_dtype: str = ""
    """Dtype of FSDP's reductions; empty for the compute dtype."""
    syncs_each_batch: bool = True
    """Gradients are reduced at every micro-step; False where all but the last run under ``no_sync``."""
    reshards_root: bool = False
    """Under FSDP2 the root is told to reshard after forward too, and an untied input embedding is a unit of its own."""
    sequence: Literal["", "ulysses", "accelerate", "gathered"] = ""
    """How ranks share it: heads exchanged (DeepSpeed-Ulysses under FSDP), keys and values gathered (ring attention
    under DeepSpeed), or accelerate's: the first under DeepSpeed, and torch's ring under FSDP2."""
    shares_embedding: bool = False  # by transformers' plans, and the head of a tied one with it
    searches: Literal["", "never", "trainer", "whole"] = ""  # when DDP looks for what is unused (resolve/stopping)
    searches_towers: str = ""  # from which version on it does for a model that sees


class Adapters(NamedTuple):
    """LoRA and quantised bases."""

    kbit_upcast: Mapping[str, Upcast] = _NONE
    """What is left in fp32 beside a quantised base, by method; ``*`` for the rest."""
    quantised_dtype: str = ""
    """Dtype that adapters over a quantised base are cast to, also where a program has prepared it (trl 1.16 trainer/
    sft_trainer.py: what is trained of a model that is_loaded_in_4bit); not where the trainer prepares it itself."""
    lists_linears: bool = False
    """It hands PEFT the names of all linear modules in place of all-linear, so that stacked experts rest."""
    on_megatron: Literal["", "swift", "bridge"] = ""
    """Whose adapters stand in Megatron's layers (``engine/megatron/adapters``); empty where none are modelled."""


class Loss(NamedTuple):
    """Which program turns hidden states into a loss, and what is added to it."""

    heads: Mapping[str, str] = _NONE
    """Loss head by method; ``*`` stands for every method that is not named."""
    adapter_heads: Mapping[str, str] = _NONE
    """Loss head by method where LoRA trains, when it is another."""
    liger_heads: Mapping[str, str] = _NONE
    """Loss head by method under Liger's kernels, when it is another."""
    fused_heads: Mapping[str, str] = _NONE
    """What a fused loss head is, by method, when it is not TRL's tiles."""
    sft_term: tuple[str, ...] = ()
    """Methods whose default loss adds a cross-entropy over the chosen half."""
    sft_term_of: Mapping[str, SftTerm] = _NONE
    """What that is made of, by method: logits where nothing is said."""
    router_term: Mapping[str, RouterTerm] = _NONE
    """The load-balancing loss of routers, by method: model where nothing is said."""
    balanced: tuple[str, ...] = ()
    """Model types whose load-balancing loss its switch turns on; empty for all."""
    compiles_layers: bool = False
    """torch.compile is of the layers alone, around their checkpoints: the loss runs as it is, and what is recomputed
    takes what it takes uncompiled (eight published runs of prime-rl, five shapes)."""
    skips_logits: bool = False
    """Under Liger's kernels an evaluation makes none either, unless a metric reads them."""
    kl_after_policy: bool = False
    """KTO's mismatched completions are scored after the policy's forward, not before it."""


class Logits(NamedTuple):
    """What the loss code does with logits, and what it and its caller hold. Methods by name; ``*`` for all."""

    fp32: tuple[str, ...] = ()
    """Methods for which the trainer itself calls ``logits.float()``."""
    freed: bool = False
    """Once logits are cast, nobody holds those of the model."""
    held: tuple[str, ...] = ()
    """Methods in which logits are held until the loss is whole, so over the reference's forward."""
    outputs_held: bool = False
    """The caller holds the model's outputs, so the logits, over backward; transformers' ``compute_loss`` lets go."""
    step_outputs: tuple[str, ...] = ()
    """Methods whose loop holds the model's outputs over the step, until the next micro-step has its own."""
    hidden_states: bool = False
    """Preference losses ask the model for all hidden states, which its outputs hold until scores are there."""
    of_completions: tuple[str, ...] = ()
    """Methods whose head projects the completions alone (``logits_to_keep``)."""
    sliced: Mapping[str, str] = _NONE
    """What the loss reads of all logits, by method: 'completions', or all but each row's last position ('labels')."""
    rescaled: tuple[str, ...] = ()
    """Methods that divide the logits by the temperature whatever it is, and let go of those before."""
    tempered_in_place: bool = False
    """Logits are divided by the temperature in place."""
    metrics: Mapping[str, str] = _NONE
    """What is copied of the logits for the log, by method (a key of the engine's ``METRICS``)."""
    metrics_everywhere: bool = False
    """The reference's forward makes the same copies as the policy's; otherwise they are made once, at the end."""


class Entropy(NamedTuple):
    """The entropy of the policy's distributions."""

    by: str = "rows"
    """How it is made of logits (a key of the engine's ``ENTROPIES``)."""
    used_as: Mapping[str, EntropyUse] = _NONE
    """What is done with it by default, by method."""
    keeps_graph: bool = False
    """Its graph is built even where its gradient is not used."""
    scoring: bool = False
    """Scoring the rollouts makes it too."""
    compiled: bool = False
    """torch.compile is put around it where rows are packed."""


class Reference(NamedTuple):
    """The reference model of preference and policy losses."""

    default: ReferenceFrom = "resident"
    """Where its log-probabilities come from when all weights train."""
    with_lora: ReferenceFrom = "adapter"
    """The same when LoRA trains."""
    by_method: Mapping[str, ReferenceFrom] = _NONE
    """The same by method, when the KL term is off by default."""
    places: tuple[ReferenceFrom, ...] = ()
    """Every place where they can come from; empty where that was not looked up."""
    offloads: bool = False
    """It can live on the host and be swapped in for its forward."""
    beside: bool = False
    """On the card for its forward it stands beside the policy, rather than in its place."""
    frozen: bool = True
    """False where its weights keep requires_grad, so that autocast caches casts of them."""
    first: bool = False
    """It scores the batch before the policy's forward, so that nothing of the policy is alive then."""
    follows_policy: bool = False
    """It is loaded in the dtype that the policy is stored in; elsewhere in the compute dtype."""


class Rollouts(NamedTuple):
    """Online methods: what is scored, and the other models that train or judge."""

    scored: bool = False
    """The policy scores its completions before the update; elsewhere the rollout's scores serve, or the update's."""
    counts_prompts: bool = False
    """An example of the batch is a prompt with its group of completions; elsewhere each completion is one."""
    critic: CriticUpdate = "own-backward"
    critic_adapters: bool = False
    """Where LoRA trains the policy it trains the critic; elsewhere all of the critic trains."""
    reward_like_policy: tuple[str, ...] = ()
    """Methods that need a reward model on the card: one of the policy's shape, where the job names none."""


class Trainer(NamedTuple):
    """The defaults of one trainer for a range of its versions, ``since`` included."""

    name: str
    title: str
    since: str = ""
    """First version of the era; empty for the first era, and for trainers with one."""
    runs_on: Literal["torch", "accelerate", "megatron"] = "torch"
    """What prepares the model: the trainer's own code; accelerate, whose settings DDP and FSDP then have; or Megatron,
    whose states are bf16 weights, an fp32 buffer of gradients that stays, fp32 main weights and moments."""
    methods: Methods = Methods()
    models: ModelClasses = ModelClasses()
    numerics: Numerics = Numerics()
    optimizer_impl: str = "auto"
    checkpointing: Checkpointing = Checkpointing()
    parallelism: Parallelism = Parallelism()
    adapters: Adapters = Adapters()
    disables_dropout: tuple[str, ...] = ()
    """Methods in which it sets every ``nn.Dropout`` of policy and reference to 0, once the adapters are there."""
    loss: Loss = Loss()
    logits: Logits = Logits()
    entropy: Entropy = Entropy()
    reference: Reference = Reference()
    rollouts: Rollouts = Rollouts()
    switches: Mapping[str, tuple[Any, ...]] = _NONE
    """What it can be told of a plan's choices, by job key (trainer_switches.txt); a key that is not named is free."""
    switches_over_several: Mapping[str, tuple[Any, ...]] = _NONE  # where that is otherwise on several GPUs
    source: str = ""

    @property
    def passes_mask(self) -> bool:
        """Whether its batches have an attention mask where nothing is padded (transformers 5.23 data/data_collator.py,
        trl 1.16 trainer/sft_trainer.py and dpo_trainer.py, openrlhf 0.11 models/actor.py: forward)."""
        return self.runs_on == "accelerate" or self.name == "openrlhf"

    @property
    def megatron(self) -> bool:
        """Whether it runs on Megatron."""
        return self.runs_on == "megatron"

    def can_be_told(self, key: str, value: Any, several: bool = False) -> bool:
        """Whether a switch has this value; of a mapping or several words, each of them. None leaves it unsaid."""
        known = self.switches_over_several.get(key, self.switches.get(key)) if several else self.switches.get(key)
        parts = value if isinstance(value, (Mapping, list, tuple)) else (value,)
        return known is None or value is None or all(part in known for part in parts)


def by_method(table: Mapping[str, _Word], method: str, default: _Word) -> _Word:
    """What a table says of a method, or of all that it does not name."""
    return table.get(method, table.get("*", default))


def names_method(names: tuple[str, ...], method: str) -> bool:
    """Whether a list of methods holds one, or all."""
    return method in names or "*" in names


@lru_cache(maxsize=256)
def version_key(text: str) -> tuple[int, ...]:
    """'1.16.0' -> (1, 16, 0), for comparing eras; what is not a number ends the key."""
    return tuple(map(int, takewhile(str.isdecimal, text.split("."))))
