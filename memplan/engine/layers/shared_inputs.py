"""Names of what a layer reads beside the residual stream, or hands on: ``Pass.shared``."""

RELATIVE = "relative positions"
LAYER_INPUTS = "inputs of all layers"
ROWS = "rows of a table for the inputs of all layers"
CROSS_MASK = "mask of texts against images"
EMBEDDED = "embedding output that shared blocks read"
ROUTER_LOGITS = "router logits"
BIAS, CROSS_BIAS, MEMORY = "bias of relative positions", "bias of the attention to the encoder", "encoder's output"


def keys_of(kind: str) -> str:
    """The name of the keys that layers of this kind share."""
    return f"keys of {kind}"


def values_of(kind: str) -> str:
    """The name of their values."""
    return f"values of {kind}"
