"""From a described layer to the steps that Megatron runs it in; what Megatron has no layer for is refused."""

from functools import lru_cache

from memplan.engine.megatron import te
from memplan.engine.megatron.attention import self_attention
from memplan.engine.megatron.feed_forward import dense
from memplan.engine.megatron.gated_delta import gated_delta
from memplan.engine.megatron.head import checkpointed_mtp, with_projection
from memplan.engine.megatron.latent import latent_attention
from memplan.engine.megatron.moe import mixture
from memplan.engine.megatron.shape import Shape
from memplan.engine.megatron.steps import Held, Step, Steps, checkpointed
from memplan.spec.attention_kinds import LatentAttention
from memplan.spec.layer import Layer
from memplan.spec.parts import Attention
from memplan.spec.state_space import GatedDelta

RECOMPUTE = "megatron-core 0.14 transformer/transformer_block.py: _checkpointed_forward"


@lru_cache(maxsize=512)
def layer_steps(s: Shape, layer: Layer) -> Steps:
    """The steps of one layer, in forward order, without full recomputation."""
    mixer, part = layer.mixer, layer.feed_forward
    steps: list[Step] = []
    if isinstance(mixer, LatentAttention):
        steps += latent_attention(s, mixer)
    elif isinstance(mixer, GatedDelta):
        steps += gated_delta(s, mixer)
    elif isinstance(mixer, Attention):
        steps += self_attention(s, mixer)
    if part is not None and part.experts is not None:
        steps += mixture(s, part, part.experts)
    elif part is not None:
        steps += dense(s, part)
    return tuple(steps)


@lru_cache(maxsize=512)
def mtp_steps(s: Shape, layer: Layer) -> Steps:
    """The steps of a layer of multi-token prediction."""
    return with_projection(s, layer_steps(s, layer))


def made_again_steps(s: Shape, layer: Layer, mtp: bool = False) -> Steps:
    """The same under full recomputation: what goes into the layer is kept, all else is made again."""
    return checkpointed_mtp(s, mtp_steps(s, layer)) if mtp else recomputed_steps(s, layer)


@lru_cache(maxsize=512)
def recomputed_steps(s: Shape, layer: Layer) -> Steps:
    """The same under full recomputation: the layer's input is kept, all else is made again."""
    parts = s.tensor if s.settings.distribute_saved_activations and not s.gathers else 1
    steps = layer_steps(s, layer)
    name = steps[0].kept[0].name
    whole = te.stream(s, name)
    kept = Held(name, "t·h·e/tensor parallel", (s.local, s.hidden, s.itemsize, 1 / parts)) if parts > 1 else whole
    return checkpointed(steps, kept)
