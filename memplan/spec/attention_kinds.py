"""Attention beside plain softmax attention: low-rank (MLA, DeepSeek-V2), whose keys and values of all heads come out of
one narrow latent; keys and values shared with later layers (Gemma 3n and 4); DeepSeek-V4's over compressed entries."""

from typing import Literal

from memplan.spec.base import Described
from memplan.spec.parts import Attention, Mixer, Part


class Indexer(Part):
    """Chooses the tokens that each query attends to (DeepSeek sparse attention): never trained by the loss.

    ``linears``: wq_b, wk, weights_proj; ``norms``: of the keys."""

    chooses = True
    category: str = "attn"
    heads: int
    width: int
    """Elements of a head."""
    rope: int
    """Those of them that turn."""
    topk: int


class LatentAttention(Mixer):
    """``num_heads`` heads, whose queries and keys are ``nope`` + ``rope`` wide and whose values are ``value`` wide.

    ``linears`` in the order of the forward: q_proj, or q_a_proj and q_b_proj; kv_a_proj_with_mqa, kv_b_proj, o_proj.
    ``norms``: of the query's latent when there is one, and of the key's."""

    kind: Literal["latent"] = "latent"
    latent: int
    """Elements of the latent of keys and values (``kv_lora_rank``)."""
    nope: int
    rope: int
    value: int
    rotary: Literal["interleaved", "half", "complex"] = "interleaved"
    """How the rotated part turns: even and odd elements apart; halves; or as complex numbers in fp32."""
    indexed: bool = False
    """Attends through a mask of chosen tokens, which is always there."""
    hands_on: bool = False
    """The choice goes to the next layer (GLM-5)."""
    topk: int = 0
    """How many tokens are chosen for each query."""
    indexer: Indexer | None = None
    """Chooses these tokens; None: the choice of the layer before."""

    @property
    def query_low_rank(self) -> bool:
        """Whether queries come out of a latent too."""
        return len(self.norms) == 2

    @property
    def masked(self) -> bool:
        """An indexed layer's mask is its own; the model's, which it starts from, is in ``ModelSpec.more_masks``."""
        return not self.indexed

    @property
    def rotary_width(self) -> int:
        """cos and sin of the part that turns."""
        return self.rope


class SharedKV(Described):
    """Keys and values that several layers read: those of the last layer of a kind that makes its own."""

    kind: str
    """full_attention or sliding_attention."""
    width: int
    """Elements per token of its keys, and of its values."""


class SharedKVAttention(Attention):
    """Softmax attention whose queries, keys and values are normalised, values without weights.

    ``linears``: q_proj, k_proj, v_proj, o_proj; without v_proj where values are the keys, before their norm; q_proj
    and o_proj alone where keys and values are an earlier layer's. ``norms``: of q, and of k where it makes any."""

    kind: Literal["shared_kv"] = "shared_kv"
    makes_kv: str = ""
    """Later layers of this kind read its keys and values."""
    reads: str = ""
    """Its keys and values are those of an earlier layer, of this kind."""
    shared_kv: tuple[SharedKV, ...] = ()
    """Keys and values that it, or any layer above, reads of others or makes for others: their gradients wait here."""

    @property
    def fused_qkv(self) -> bool:
        """No linear makes all three."""
        return False


class LayerInput(Part):
    """An embedding of each token for each layer: gated by the residual stream, projected and added to it.

    ``linears``: per_layer_input_gate, per_layer_projection; ``norms``: of what is added."""

    category: str = "other"
    width: int
    layers: int
    """The table holds ``layers`` × ``width`` elements for each token."""
    activation: str


class Compressor(Part):
    """Makes one entry of many tokens. ``linears``: kv_proj, gate_proj; an indexer's own q_b_proj and weights_proj.
    ``tensors``: a bias of each position in a block."""

    category: str = "attn"


class CompressedAttention(Mixer):
    """``linears`` in the order of the forward: q_a_proj, q_b_proj, kv_proj, o_a_proj (one matrix for each group of
    heads), o_b_proj. The compressor of a layer, and its indexer, are parts of the layer."""

    kind: Literal["compressed"] = "compressed"
    head_dim: int
    rope: int
    """Elements at the end of each head that turn."""
    groups: int
    """Of heads, each projected by a matrix of its own."""
    compress: Literal["none", "sparse", "heavy"]
    """Attends to a window alone; to chosen ones of compressed tokens; to all of heavily compressed ones."""
    rate: int = 0
    """Tokens that become one entry."""
    compressor: Compressor | None = None
    indexer: Compressor | None = None
    index_heads: int = 0
    topk: int = 0
    """Entries that each token attends to."""

    @property
    def rotary_width(self) -> int:
        """One cos for each pair that turns."""
        return self.rope // 2

    def entries(self, length: int) -> int:
        """Entries that a sequence makes."""
        return length // self.rate if self.rate else 0
