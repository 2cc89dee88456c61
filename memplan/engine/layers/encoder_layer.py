"""Layers and heads of encoders (BERT, RoBERTa, ELECTRA, DistilBERT, ALBERT, DeBERTa), as in transformers 5.23."""

from memplan.engine.layers.activations import activate
from memplan.engine.layers.mixers import mix
from memplan.engine.layers.modules import Pass, norm, project
from memplan.engine.layers.norm_placement import dropped
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Layer


def encoder_layer(p: Pass, layer: Layer, x: Tensor) -> Tensor:
    """A norm of each sum with the residual. BERT's modules hold what goes into their last linear until the norm is done
    ('inner' of ``locals_held``), ALBERT's queries, keys and values ('states'); all hold what they add until then."""
    tape, norms, spec = p.tape, layer.norms, layer.feed_forward
    assert spec is not None
    holds = "inner" in layer.locals_held
    with tape.at("attention"):
        p.held = [] if layer.locals_held else None
        hidden, weights = mix(p, layer.mixer, x)
        context, p.held = p.held, None
        hidden = dropped(p, layer, "mixer", hidden)
        middle = norm(p, norms[0], ops.add(tape, hidden, x, "residual stream"), "h")
        del hidden, context  # BertAttention rebinds ``attention_output`` when the norm has returned
    with tape.at("feed-forward"):
        inner = activate(tape, spec.activation, project(p, middle, spec.linears[0], "F", "up"))
        hidden = project(p, inner, spec.linears[1], "h", "feed-forward output")
        if not holds:
            # ``holds``: feed_forward_chunk names ``intermediate_output`` to its end (BertLayer)
            del inner
        hidden = dropped(p, layer, "feed-forward", hidden)
        out = norm(p, norms[1], ops.add(tape, hidden, middle, "residual stream"), "h")
    del weights  # the second of BertSelfAttention's outputs
    return out


def pooled(p: Pass, pooler: Pooler, hidden: Tensor) -> tuple[Pass, Tensor]:
    """The dense layer over the first position of each row, or over the mean of all; and a pass over one position."""
    tape, one = p.tape, p.part(p.rows, 1)
    width = hidden.dim.elements // p.tokens
    if pooler.mean:
        weighed = ops.with_constant(tape, hidden, hidden.itemsize, "weighed states")
        x = ops.mean(tape, weighed, one.dim("h", width)) if weighed.itemsize == ops.FP32 else summed(p, weighed, width)
        del weighed  # ``(last_hidden_state * attention_mask.unsqueeze(-1)).sum(dim=1)``: a temporary (ModernBERT)
    else:
        x = ops.view(tape, hidden, one.dim("h", width), whole=False)
    if pooler.first_dropout:
        x = ops.dropout(tape, x, "pooled states")
    x = project(one, x, pooler.linears[0], "h", "pooled states", quantised=False)
    x = activate(tape, pooler.activation, x)
    if pooler.norms:
        x = norm(one, pooler.norms[0], x, "h")
    if pooler.dropout:
        x = ops.dropout(tape, x, "pooled states")
    return one, x


def summed(p: Pass, x: Tensor, width: int) -> Tensor:
    """``x.sum(dim=1)``: its gradient is a view."""
    dim, itemsize = x.dim, x.itemsize
    node = p.tape.node((x,), (), lambda t, g: (g[0],))
    del dim
    return p.tape.new(Dim("rows·h", p.rows * width), itemsize, "pooled states", node)
