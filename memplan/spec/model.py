"""ModelSpec: what a model is made of, in runs of equal layers.

Nothing here knows a family's name but the label it carries. What a layer is made of stands in ``parts.py``."""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from memplan.spec.base import Described
from memplan.spec.layer import AnyMixer, Front, Layer, Run
from memplan.spec.parts import Attention, Linear, Norm, Part, add_counts
from memplan.tables.quantizations import Stored

if TYPE_CHECKING:
    from memplan.spec.encoders import Encoder, Pooler
    from memplan.spec.vision import Tower
else:  # imported by the families that have one
    Encoder = Pooler = Tower = Described


class Parameters(Described):
    """Parameter elements of a model; tied tensors count once."""

    total: int
    active: int
    """Those that one token uses: all but the experts it is not routed to."""
    by_category: dict[str, int]


class ModelSpec(Described):
    """A language model: embedding, runs of equal layers, final norm, head."""

    name: str
    family: str
    """transformers' ``model_type``."""
    hidden_size: int
    vocab_size: int
    tied: bool
    """The head is the embedding's tensor."""
    runs: tuple[Run, ...]
    final_norm: Norm | None
    head: Linear
    """lm_head, or the score head of a reward model."""
    embedding_parts: int = 1  # ranks that share its rows, of which each makes the gradient of all (DTensor's lookup)
    extra: tuple[Part, ...] = ()
    """What else stands outside the layers: positions, projections, a norm of the embeddings."""
    embedding_width: int | None = None
    """Width of the embedding where it is not hidden_size (opt-350m)."""
    front: tuple[Front, ...] = ()
    """What happens to the embedding's output before the first layer, in order; its parameters are in ``extra``."""
    task: Literal["causal", "masked", "seq2seq"] = "causal"
    """What its class learns: the next token, masked tokens (an encoder alone), or an answer to what an encoder read."""
    bidirectional: bool = False
    """Every position attends to every other: without padding, there is no mask of all positions."""
    encoder: Encoder | None = None
    """The first stack of an encoder-decoder; its layers are the first of ``runs``."""
    transform: Part | None = None
    """Dense layer and norm between the last hidden states and the head of a masked language model."""
    scoring: Pooler | None = None
    """What a reward model of this type has before its score."""
    pooler: Pooler | None = None
    """The same, in a reward model."""
    project_out: Linear | None = None
    """Between the final norm and the head (opt-350m)."""
    buffer_bytes: int = 0
    """Tensors that its class keeps beside the parameters, where they matter: tables of positions, causal masks."""
    embedding_multiplier: bool = False
    """The embedding's output is scaled (Gemma), which keeps one more tensor for a moment."""
    logits_softcap: float | None = None
    softcap_at_once: bool = False
    """One expression caps the logits: those before the cap stay until it is made (RecurrentGemma)."""
    scaled_outside: bool = False
    """The model's forward scales the embedding's output (Granite), which stays where adapters need its gradient."""
    more_masks: frozenset[int | None] = frozenset()
    """Windows of masks that its class makes whether or not a layer takes them."""
    row_masks: bool = False
    """Each row of the batch has masks of its own, since images stand where they will."""
    rotary_sets: int = 1
    """Tables of cos and sin: one for each kind of layer (Gemma 3, OLMo 3)."""
    rotary_elements: int = 0
    """Elements per position of all tables of cos, where kinds of layers have heads of different widths."""
    rotary_positions: int | None = None
    """Positions of the longest table, as an engine makes it whole; a trainer's has those of the batch."""
    rotary_by_row: bool = False
    """Each row of the batch has tables of its own, since images give it positions of its own (Qwen2-VL)."""
    residual_fp32: bool = False
    """The residual stream is kept in fp32 beside half-precision weights (Mamba)."""
    logits_fp32: bool = False
    """The model's own forward casts its logits to fp32 (Mamba, Nemotron-H)."""
    logits_scaled: bool = False
    """The logits are multiplied by a number (Cohere, Granite)."""
    logits_shifted: bool = False
    """A buffer is added to the logits (BART)."""
    scaled_head_input: bool = False
    """What goes into the head is divided by a number (MiniCPM3)."""
    classifies: bool = True
    """transformers has a sequence-classification class of this type: a reward model can be made of it."""
    checkpoints: bool = True
    """Its class supports gradient checkpointing (ALBERT's does not)."""
    router_loss: Literal["none", "off", "zero", "on"] = "none"
    """A load-balancing loss of its routers: none in its class; or as its config says ('zero': coefficient 0, off)."""
    dtype: Literal["bf16", "fp16", "fp32"] | None = None
    """The dtype that the config names, when it does."""
    max_positions: int | None = None
    quantization: Stored | None = None
    """Where the checkpoint is quantised."""
    published: Stored | None = None
    """Where its makers publish it quantised alone, and it is described as it trains: what an engine loads."""
    source: str = ""
    notes: tuple[str, ...] = ()
    spread: tuple[float, float] | None = None
    """Where the layers are assumed: how far what comes and goes in a step may be off, as shares of it, low and high."""
    tower: Tower | None = None
    """What turns images into tokens, in a vision-language model."""
    frozen: frozenset[str] = frozenset()
    """Names of weights outside the layers that are not trained: a tower's are ``vision`` and ``projector``."""
    tower_idle: bool = False
    """No image passes through the tower, so that nothing in it gets a gradient."""
    resting: tuple[Run, ...] = ()
    """Layers that stand among the others and that no forward runs: those that attend to images, without any."""
    numbers: tuple[int, ...] = ()
    """Of the others, their numbers among all, where some rest."""

    @cached_property
    def num_layers(self) -> int:
        """Layers of all runs."""
        return sum(run.count for run in self.runs)

    def layers(self) -> Iterator[Layer]:
        """Each layer, from first to last."""
        return (run.layer for run in self.runs for _ in range(run.count))

    @property
    def mask_form(self) -> str:
        """How the attention mask is made: ``Attention.mask_form`` of the first layer that has one."""
        return next((getattr(mixer, "mask_form", "plain") for mixer in self.mixers), "plain")

    @property
    def fixed_positions(self) -> bool:
        """Whether it fails on a sequence longer than ``max_positions``: learned positions, or tables of so many."""
        tables = any(getattr(mixer, "rotary_tables", "") == "own" for mixer in self.mixers)
        learned = any(step.endswith("positions") for step in self.front)
        return tables or learned or self.mask_form == "boolean"

    @property
    def returns_probabilities(self) -> bool:
        """Whether its layers give eager's probabilities back to the model's loop, as older classes do."""
        return self.num_layers > 1 and any(
            getattr(mixer, "style", "").split("-")[0] in ("gptj", "codegen", "gpt", "bloom", "mpt", "falcon")
            for mixer in self.mixers
        )

    @cached_property
    def widens_stream(self) -> bool:
        """Whether norms stand in the residual stream itself, so that autocast widens it to fp32; or experts give back
        the dtype of what a LayerNorm hands them (PhiMoE)."""
        routed = any(run.layer.experts and run.layer.norms and run.layer.norms[0].kind == "layer" for run in self.runs)
        return routed or "norm" in self.front or any(run.layer.form in ("after-sum", "rwkv") for run in self.runs)

    @property
    def head_parts(self) -> tuple[Part, ...]:
        """What stands between the last hidden states and the head: of masked language models, and of classifiers."""
        return tuple(part for part in (self.transform, self.pooler) if part is not None)

    @property
    def outer_linears(self) -> tuple[Linear, ...]:
        """Linears outside the layers that are not the head: projections of the embedding."""
        found = [linear for part in (*self.extra, *self.head_parts) for linear in part.linears]
        return (*found, *([self.project_out] if self.project_out else []))

    @property
    def streams(self) -> int:
        """Residual streams of its layers."""
        return self.runs[0].layer.streams

    @property
    def has_layer_inputs(self) -> bool:
        """Whether its layers have inputs of their own."""
        return any(run.layer.own_input for run in self.runs)

    @cached_property
    def mixers(self) -> tuple[AnyMixer, ...]:
        """Those of its layers, in their order, each once."""
        return tuple(dict.fromkeys(run.layer.mixer for run in self.runs if run.layer.mixer is not None))

    @cached_property
    def windows(self) -> frozenset[int | None]:
        """The kinds of attention mask that its class makes, by their windows."""
        return frozenset(mixer.window for mixer in self.mixers if mixer.masked) | self.more_masks

    @cached_property
    def rotary_width(self) -> int:
        """Elements per position of the tables of cos, and so of sin, that layers share."""
        return self.rotary_elements or self.rotary_sets * max((mixer.rotary_width for mixer in self.mixers), default=0)

    @cached_property
    def rotary_tables(self) -> frozenset[str]:
        """How its layers read the tables: ``Attention.rotary_tables``."""
        return frozenset(mixer.rotary_tables for mixer in self.mixers if isinstance(mixer, Attention))

    def rotary_itemsize(self, residual: int) -> int:
        """Element size of the tables: fp32 in some classes, else that of the residual stream. Llama 4 has one complex
        number of fp32 for each pair in place of two cosines and two sines."""
        if any(getattr(mixer, "style", "") == "llama4" for mixer in self.mixers):
            return 2
        return 4 if any("fp32" in tables for tables in self.rotary_tables) else residual

    @cached_property
    def buffer_elements(self) -> int:
        """Elements of the tables that its mixers keep in the weights' dtype."""
        of_head = self.vocab_size if self.logits_shifted and self.head.outputs == self.vocab_size else 0
        return of_head + sum(run.count * getattr(run.layer.mixer, "buffer_elements", 0) for run in self.runs)

    @property
    def keeps_rotary(self) -> bool:
        """Layers save the shared tables themselves, and not tables that they made of them."""
        if any(mixer.kind == "compressed" for mixer in self.mixers):
            return False
        return not self.rotary_tables or not all("repeated" in tables for tables in self.rotary_tables)

    @property
    def thawed(self) -> "ModelSpec":
        """The same model with nothing frozen."""
        return self.thawed_copy if self.is_frozen else self

    @cached_property
    def thawed_copy(self) -> "ModelSpec":
        """A copy with nothing frozen; a model that kept itself here could not be compared."""
        nothing: frozenset[str] = frozenset()
        layers = ((run, run.layer.but(frozen=nothing)) for run in self.runs)
        runs = (run.but(layer=layer) for run, layer in layers)
        return self.but(frozen=nothing, runs=tuple(runs))

    @cached_property
    def is_frozen(self) -> bool:
        """Whether any weight is."""
        return bool(self.frozen) or any(run.layer.frozen for run in self.runs)

    @property
    def eager_only(self) -> bool:
        """Whether any layer has attention that only the eager form computes: soft-capped scores, or an older class."""
        return any(mixer.eager_only or mixer.softcap is not None for mixer in self.mixers)

    @property
    def num_heads(self) -> int:
        """Query heads of the first layer that has any."""
        return next((mixer.num_heads for mixer in self.mixers if mixer.num_heads), 0)

    @property
    def intermediate_size(self) -> int:
        """Width of the first feed-forward."""
        return next((run.layer.feed_forward.intermediate for run in self.runs if run.layer.feed_forward), 0)

    @property
    def routed(self) -> bool:
        """Whether any layer has routed experts."""
        return any(run.layer.experts for run in self.runs)

    @property
    def head_is_tied(self) -> bool:
        """Whether the head's weight is the embedding's (never for a score head)."""
        return self.tied and self.head.outputs == self.vocab_size

    @cached_property
    def params(self) -> Parameters:
        """Counts by category: embed, attn, mlp, experts, router, norm, lm_head."""
        counts: dict[str, int] = {"embed": self.vocab_size * (self.embedding_width or self.hidden_size)}
        inactive = 0
        for run in (*self.runs, *self.resting):
            inactive += run.count * run.layer.inactive_parameters
            add_counts(counts, run.layer.by_category.items(), run.count)
        if self.tower:
            add_counts(counts, self.tower.by_category.items())
        for part in (*self.extra, *self.head_parts):
            add_counts(counts, part.by_category.items())
        if self.project_out:
            add_counts(counts, [("other", self.project_out.parameters)])
        if self.final_norm:
            add_counts(counts, [("norm", self.final_norm.parameters)])
        if self.encoder and self.encoder.final_norm:
            add_counts(counts, [("norm", self.encoder.final_norm.parameters)])
        if not self.head_is_tied:
            add_counts(counts, [("lm_head", self.head.parameters)])
        elif self.head.bias:
            add_counts(counts, [("lm_head", self.head.outputs)])
        total = sum(counts.values())
        return Parameters(total=total, active=total - inactive, by_category=counts)

    @property
    def kept_extra(self) -> tuple[Part, ...]:
        """What a reward model keeps of the parts outside the layers: not the vocabulary's second bias."""
        return tuple(part for part in self.extra if part.category != "lm_head")

    def as_reward_model(self) -> "ModelSpec":
        """The sequence-classification form with one label: a score head of h weights in place of the vocabulary's."""
        if self.scoring:
            without = {"transform": None, "pooler": self.scoring, "head": self.scoring.score, "extra": self.kept_extra}
            return self.model_copy(update=without)
        score = Linear(name="score", inputs=self.head.inputs, outputs=1)
        return self.but(head=score, logits_softcap=None, logits_scaled=False, logits_fp32=False)
