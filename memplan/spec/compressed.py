"""DeepSeek-V4's attention: one key/value head over a window, beside keys and values compressed from further back."""

from typing import Literal

from memplan.spec.parts import Mixer


class CompressedAttention(Mixer):
    """``linears`` in the order of the forward: q_a_proj, q_b_proj, kv_proj, o_a_proj (one matrix for each group of
    heads), o_b_proj. The compressor of a layer, and its indexer, are parts of the layer.
    """

    kind: Literal["compressed"] = "compressed"
    head_dim: int
    compress: Literal["none", "sparse", "heavy"]
    """Attends to a window alone; to chosen ones of compressed tokens; to all of heavily compressed ones."""
