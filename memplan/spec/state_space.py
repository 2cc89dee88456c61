"""Mixers that carry a state along the sequence instead of attending: state spaces, gated delta rules, convolutions."""

from typing import Literal

from memplan.spec.parts import Attention, Mixer, add_counts


class Recurrent(Mixer):
    """What these have in common: no attention mask, no positions."""

    category: str = "ssm"
    state_itemsize: int = 0
    """Bytes of an element of its state as an engine serves it, where the config says; 0: as the model's."""

    @property
    def masked(self) -> bool:
        """A mask of padded tokens at most, never one of pairs."""
        return False


class StateSpace(Recurrent):
    """A selective state space (Mamba): ``state`` numbers for each of ``inner`` channels.

    ``linears``: in_proj (to channels and their gate), x_proj (to the step's low rank, B and C), dt_proj, out_proj;
    ``tensors``: a causal convolution of ``kernel`` steps over each channel, A_log, D; ``norms``: of step, B and C."""

    kind: Literal["state-space"] = "state-space"
    inner: int
    state: int
    kernel: int
    rank: int
    """Width out of which the step of each channel is made."""
    normalised: bool = False
    """Step, B and C are normalised: with the weights of ``norms`` (Jamba), or without any (Falcon Mamba)."""


class StateSpaceDual(Recurrent):
    """A state space of one decay for each head (Mamba 2), computed in chunks.

    ``linears``: in_proj (to gate, channels, B, C and a step for each head), out_proj; ``tensors``: a causal convolution
    over channels, B and C, and dt_bias, A_log, D; ``norms``: of the gated output, when there is one."""

    kind: Literal["state-space-dual"] = "state-space-dual"
    heads: int
    head_dim: int
    groups: int
    """Heads of a group share B and C."""
    state: int
    kernel: int
    chunk: int
    scaled: bool = False
    """Its input, what in_proj makes and its output are multiplied by numbers (Falcon-H1)."""
    gate_first: bool = True
    """The gate is multiplied in before the norm."""

    @property
    def inner(self) -> int:
        """Channels."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Elements per token that pass through the convolution: channels, B and C."""
        return self.inner + 2 * self.groups * self.state


class GatedDelta(Recurrent):
    """A gated delta rule (Gated DeltaNet): a ``key_dim`` × ``value_dim`` state for each value head.

    ``linears``: in_proj_qkvz and in_proj_ba (Qwen3-Next), or in_proj_qkv, in_proj_z, in_proj_b and in_proj_a, and
    out_proj; ``tensors``: a causal convolution over q, k and v, dt_bias and A_log; ``norms``: of each head."""

    kind: Literal["gated-delta"] = "gated-delta"
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    chunk: int = 64

    @property
    def keys(self) -> int:
        """Elements per token of all keys, and of all queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Elements per token of all values."""
        return self.value_heads * self.value_dim

    @property
    def fused(self) -> bool:
        """One linear makes q, k, v and the gate, another both numbers of each head."""
        return len(self.linears) == 3


class GatedRecurrence(Recurrent):
    """A linear recurrence whose decay and input are gated (RG-LRU of RecurrentGemma).

    ``linears``: linear_y, linear_x, linear_out; ``tensors``: a convolution, the decays, both gates."""

    kind: Literal["gated-recurrence"] = "gated-recurrence"
    width: int
    kernel: int
    activation: str = "gelu_pytorch_tanh"
    """Of the branch beside the recurrence."""


class ShortConvolution(Recurrent):
    """A gated causal convolution of a few steps (LFM2). ``linears``: in_proj to gate, gate and channels; out_proj."""

    kind: Literal["short-convolution"] = "short-convolution"
    width: int
    kernel: int


class Lightning(Recurrent):
    """Linear attention in blocks with a fixed decay for each head (MiniMax). ``linears``: qkv_proj, out_proj,
    output_gate; ``norms``: of the output."""

    kind: Literal["lightning"] = "lightning"
    category: str = "attn"
    heads: int
    head_dim: int
    block: int

    @property
    def buffer_elements(self) -> int:
        """Decays of each head: one, one for each position of a block twice, and one for each pair of positions."""
        return self.heads * (1 + 2 * self.block + self.block**2)


class TimeMix(Recurrent):
    """A weighted average over the past (RWKV 4). ``linears``: key, value, receptance, output."""

    kind: Literal["time-mix"] = "time-mix"
    width: int


class BothMixers(Mixer):
    """A state space and attention side by side, whose outputs are added (Falcon-H1)."""

    kind: Literal["both"] = "both"
    state_space: StateSpaceDual
    attention: Attention

    @classmethod
    def of(cls, state_space: StateSpaceDual, attention: Attention) -> "BothMixers":
        """Both, with the modules of each."""
        first, second = state_space, attention
        return cls(
            state_space=first,
            attention=second,
            linears=(*first.linears, *second.linears),
            tensors=(*first.tensors, *second.tensors),
            norms=(*first.norms, *second.norms),
            num_heads=second.num_heads,
        )

    @property
    def dropping(self) -> "Mixer":
        """Attention's probabilities are dropped out."""
        return self.but(attention=self.attention.dropping)

    @property
    def by_category(self) -> dict[str, int]:
        """Parameter elements of each."""
        counts = self.state_space.by_category
        add_counts(counts, self.attention.by_category.items())
        return counts

    @property
    def rotary_width(self) -> int:
        """That of attention."""
        return self.attention.rotary_width
