"""The sizes that a layer of one rank is made of, and what products in FP8 save of inputs, weights and gradients.

TransformerEngine 2.20 pytorch/module/linear.py, layernorm_linear.py, grouped_linear.py; megatron-core 0.16
extensions/transformer_engine.py. Masters, gradients, norms, router, embedding, head and attention stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from memplan.engine.megatron.steps import Product, product
from memplan.engine.megatron.weights import padded_vocabulary
from memplan.spec.gpu import Hardware
from memplan.spec.lora import Adapter
from memplan.spec.megatron import Megatron
from memplan.spec.parts import Bare, Linear
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class Shape(NamedTuple):
    """One micro-batch on one rank."""

    tokens: int
    """T: rows × sequence length / context parallel: what attention, products and head see."""
    local: int
    """t: tokens between tensor-parallel products: T / tensor parallel under sequence parallelism, else T."""
    hidden: int
    itemsize: int
    tensor: int
    context: int
    expert: int
    expert_tensor: int
    sequence: bool
    """Sequence parallelism, where tensor parallelism is on."""
    layer_norm: bool
    settings: Megatron
    spread: float = 1.0
    """Where nobody said how uneven routing is: tokens of the fullest rank over the mean, at the high end."""
    recomputed: frozenset[str] = frozenset()
    """Modules that selective checkpointing makes again."""
    unfused: int = 0
    """Of attention that makes its scores: the keys that each query has one for; 0 where a kernel does without."""

    by_rows: bool = False
    """Attention's kernel wants the tokens of each row side by side, which Megatron's streams have not."""

    adapter: Adapter | None = None
    """LoRA: all else is frozen."""
    way: str = ""
    """Whose adapters: swift's or bridge's."""

    saved: float = 0
    """Bytes of an element of what products save of their inputs; the itemsize, or less in FP8. Adapters' products run
    in half precision (Megatron-Bridge) or, from above, are counted so (mcore-bridge's are Transformer Engine's)."""
    fp8: Fp8 | None = None
    table: int = 0
    """V: rows of the embedding's table on this rank."""

    @property
    def doubt(self) -> float:
        """How much more products may save of their inputs, as a share: FP8 is little measured."""
        return self.itemsize / self.saved - 1 if self.fp8 else 0.0

    def product(self, linears: Iterable[Linear | Bare], expert: bool = False) -> Product:
        """How the product is trained that stands for these linears."""
        return product(self.adapter, (linear.name for linear in linears), self.way, expert)

    @property
    def gathers(self) -> bool:
        """Whether inputs of tensor-parallel products are gathered along the sequence."""
        return self.sequence and self.tensor > 1


UNEVEN = 2.0
"""A guess: nothing is published of how uneven a young router is."""


def _uneven(recipe: Recipe) -> bool:
    """Experts on several ranks, without a capacity that cuts, and no word on how uneven the routing is."""
    settings = recipe.megatron
    said = "moe_expert_imbalance" in settings.model_fields_set
    return recipe.parallel.expert > 1 and not said and settings.moe_expert_capacity_factor is None


def shape_of(recipe: Recipe, rows: int = 0) -> Shape:
    """The sizes of this recipe's micro-batch."""
    degrees = recipe.parallel
    tokens = ceil_div((rows or recipe.rows) * recipe.batch.sequence_length, degrees.context)
    sequence = degrees.sequence and degrees.tensor > 1
    norm = recipe.model.final_norm
    itemsize = recipe.storage.precision.weights if not recipe.storage.precision.mixed else 2
    fp8 = fp8_of(recipe.megatron, recipe.hardware)
    return Shape(
        tokens=tokens,
        local=ceil_div(tokens, degrees.tensor) if sequence else tokens,
        hidden=recipe.model.hidden_size,
        itemsize=itemsize,
        tensor=degrees.tensor,
        context=degrees.context,
        expert=degrees.expert,
        expert_tensor=degrees.expert_tensor,
        sequence=sequence,
        layer_norm=norm is not None and norm.kind.startswith("layer"),
        settings=recipe.megatron,
        spread=UNEVEN if _uneven(recipe) else 1.0,
        recomputed=recipe.checkpointing.recompute.modules,
        unfused=recipe.batch.sequence_length if recipe.operators.attention == "eager" else 0,
        by_rows=recipe.attention_by_rows,
        saved=fp8.saved if fp8 and recipe.adapter is None else itemsize,
        fp8=fp8,
        adapter=recipe.adapter,
        table=padded_vocabulary(recipe.model, degrees, recipe.megatron) // degrees.tensor,
        way=recipe.trainer.adapters.on_megatron,
    )


SOURCE = "TransformerEngine 2.20 pytorch/module/linear.py: _linear_forward_impl, base.py: quantize_weight"
BLOCK = 1 + 1 / 32
"""Bytes of an element with its scale: of 1 byte for 32 (MXFP8), or of 4 bytes for 128 (blockwise)."""
PER_TENSOR = ("delayed", "tensorwise")
NVFP4 = 1 / 2 + 1 / 16
"""The same in FP4: a scale of 1 byte for 16 (2.20 pytorch/tensor/nvfp4_tensor.py: get_scale_shape)."""


class Fp8(NamedTuple):
    """Bytes per element of what products in FP8, or FP4, read."""

    saved: float
    """Of a product's input, saved in one layout."""
    weight: float
    """Of a weight's copies: two layouts, where the card's products need them."""
    gradient: float
    """Of the output's gradient, quantised for both products of backward."""
    projection: bool
    """The output matmul saves an input of its own beside attention's output (delayed scaling)."""
    name: str = "FP8"


def fp8_of(settings: Megatron, hardware: Hardware) -> Fp8 | None:
    """Of these settings. One scale for a tensor: a transposed copy before Blackwell; scales by block: always two."""
    if not settings.narrow:
        return None
    if settings.fp4_format:
        return Fp8(NVFP4, 2 * NVFP4, 2 * NVFP4, projection=False, name="FP4")
    per_tensor = settings.fp8_recipe in PER_TENSOR
    one = 1.0 if per_tensor else BLOCK
    layouts = 1 if per_tensor and hardware.is_blackwell else 2
    of_weight = BLOCK if settings.fp8_recipe == "mxfp8" else 1.0
    return Fp8(one, layouts * of_weight, layouts * one, settings.fp8_recipe == "delayed")
