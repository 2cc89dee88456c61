"""One row per format of a quantised base: the tensors that a matrix becomes, and which product its linears run.

Sources: bitsandbytes 0.50.2 functional.py (``quantize_4bit``, ``int8_vectorwise_quant``), hqq 0.2.8 core/quantize.py,
torchao 0.9 dtypes/nf4tensor.py, gptqmodel 7.7 nn_modules/qlinear, peft 0.21 utils/other.py, transformers 5.23."""

from typing import NamedTuple

from memplan.units import ceil_div


class Quantization(NamedTuple):
    """A format of frozen weights."""

    name: str
    title: str
    bits: int
    group: int
    """Elements that share a scale; 0: one scale for each output row."""
    product: str
    """How its linears multiply: a key of ``engine.quantised.PRODUCTS``."""
    upcast: bool
    """``prepare_model_for_kbit_training`` casts what is not quantised to fp32 (never for GPTQ and HQQ)."""
    clones: bool
    """PEFT's layer clones the base's result before it adds the adapters'."""
    source: str
    nested: bool = False
    """The scales are quantised themselves."""
    assumed: bool = False
    """The kernel that runs depends on what is installed: transients are a stated assumption."""

    def tensors(self, rows: int, columns: int) -> dict[str, int]:
        """Bytes of each tensor that a matrix of ``rows`` outputs × ``columns`` inputs becomes."""
        return LAYOUTS[self.name.split("-")[0]](self, rows, columns)


def _four_bit(scheme: Quantization, rows: int, columns: int) -> dict[str, int]:
    """Two values in a byte; an fp32 maximum for each block, or an 8-bit one and an fp32 for 256 blocks."""
    elements = rows * columns
    blocks = ceil_div(elements, scheme.group)
    packed = {"packed weights": ceil_div(elements, 2), "code": 16 * 4}
    if not scheme.nested:
        return packed | {"absmax": blocks * 4}
    return packed | {"absmax": blocks, "absmax of absmax": ceil_div(blocks, 256) * 4, "its code": 1024, "offset": 4}


def _int8(scheme: Quantization, rows: int, columns: int) -> dict[str, int]:
    return {"packed weights": rows * columns, "row scales (SCB)": rows * 4}


def _hqq(scheme: Quantization, rows: int, columns: int) -> dict[str, int]:
    groups = ceil_div(rows * columns, scheme.group)
    return {"packed weights": ceil_div(rows * columns, 2), "scales": groups * 2, "zeros": groups * 2}


def _awq(scheme: Quantization, rows: int, columns: int) -> dict[str, int]:
    """int32 words of 8 weights, fp16 scales, zeros of 4 bits: by group of inputs and output."""
    groups = ceil_div(columns, scheme.group)
    return {
        "packed weights": ceil_div(rows * columns, 2),
        "scales": groups * rows * 2,
        "zeros": groups * ceil_div(rows, 8) * 4,
    }


def _gptq(scheme: Quantization, rows: int, columns: int) -> dict[str, int]:
    return _awq(scheme, rows, columns) | {"group of each input (g_idx)": columns * 4}


LAYOUTS = {"nf4": _four_bit, "fp4": _four_bit, "int8": _int8, "hqq": _hqq, "awq": _awq, "gptq": _gptq}

_BNB = "bitsandbytes 0.50 functional.py: quantize_4bit, QuantState"
_ROWS = (
    Quantization("nf4", "NF4", 4, 64, "bnb-4bit", True, True, _BNB),
    Quantization("nf4-double", "NF4, absmax quantised too", 4, 64, "bnb-4bit", True, True, _BNB, nested=True),
    Quantization("nf4-torchao", "NF4 of torchao, scalers quantised too", 4, 64, "torchao-nf4", False, False,
        "torchao 0.9 dtypes/nf4tensor.py: NF4Tensor, LinearNF4", nested=True),
    Quantization("fp4", "FP4", 4, 64, "bnb-4bit", True, True, _BNB),
    Quantization(
        "int8", "LLM.int8", 8, 0, "bnb-int8", True, False, "bitsandbytes 0.50 autograd/_functions.py: MatMul8bitLt"
    ),
    Quantization("gptq-4bit", "GPTQ, 4 bits in groups of 128", 4, 128, "gptq", False, False,
        "gptqmodel 7.7 nn_modules/qlinear/torch.py: TorchLinear, the kernel of training", assumed=True),
    Quantization("awq-4bit", "AWQ, 4 bits in groups of 128", 4, 128, "awq", True, False,
        "gptqmodel 7.7 nn_modules/qlinear/gemm_awq.py", assumed=True),
    Quantization("hqq-4bit", "HQQ, 4 bits in groups of 64", 4, 64, "hqq", False, False,
        "hqq 0.2.8 core/quantize.py: HQQMatmulNoCacheMul, the default backend", assumed=True),
)  # fmt: skip
QUANTIZATIONS = {row.name: row for row in _ROWS}
PLAIN_IN_NVFP4 = frozenset(("latent", "gated-delta", "state-space", "state-space-dual"))
"""Kinds of mixers that checkpoints in NVFP4 leave in 16 bits, and indexers with them: NVIDIA's of DeepSeek-R1, Kimi-K2
and GLM-5.2, RedHatAI's of Qwen3.6. Heads, embeddings and what drafts are in 16 bits anywhere."""


class Stored(NamedTuple):
    """How a checkpoint has its linears."""

    form: str
    """The method, with the scheme of its weights where it has several: ``compressed-tensors int4``."""
    group: int = 0
    """Weights that share a scale, where it is not the format's usual number."""
    plain: frozenset[str] = frozenset()
    """Modules, and linears of modules, that are in 16 bits in every layer."""
    layers: tuple[tuple[int, frozenset[str]], ...] = ()
    """Those that are so in one layer beside, by its number."""
    others: tuple[tuple[int, frozenset[tuple[str, str]]], ...] = ()
    """Linears of one layer that are in another format, by its number."""

    @property
    def words(self) -> str:
        """As a report says it."""
        mixed = {form for _, each in self.others for _, form in each}
        if mixed:
            return " and ".join((self.form, *sorted(mixed)))
        plain = self.plain.union(*(names for _, names in self.layers))
        return self.form + f" g{self.group}" * bool(self.group) + f" except {', '.join(sorted(plain))}" * bool(plain)


USUAL = "usual"
"""In place of what it leaves: what published checkpoints do, where a job names the format alone."""
DRAFT = "mtp"
"""Among what a checkpoint leaves in 16 bits: its layers that draft."""
_GATED = ("gate_proj", "up_proj", "down_proj", "gate_up_proj")
LEAVES = {
    "mamba": ("in_proj", "out_proj"),
    "linear_attn": ("in_proj_qkv", "in_proj_qkvz", "in_proj_z", "in_proj_ba", "in_proj_b", "in_proj_a", "out_proj"),
    "self_attn": (
        *("q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj"),
        *("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    ),
    "mlp": _GATED,
    "mlp.shared_expert": _GATED,
    "mlp.experts": _GATED,
}
"""Linears of a layer, by the name of their module in a checkpoint."""
MODULES = {
    "gated-delta": "linear_attn",
    **dict.fromkeys(("state-space", "state-space-dual"), "mamba"),
    **dict.fromkeys(("attention", "shared_kv", "latent"), "self_attn"),
}
"""By kind of mixer."""
LEFT_AT_MOST = frozenset({*LEAVES, DRAFT} - {"mlp", "mlp.experts"})
"""What a published checkpoint leaves in 16 bits: all but the feed-forwards (NVIDIA's Gemma 4 31B in NVFP4), and what
drafts (llm-compressor's, which copy it)."""
