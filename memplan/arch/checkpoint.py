"""Why a checkpoint's total differs from the parameters of the model that transformers builds from it.

Each difference is a note with its count, so that the published total can be had from the model's: layers that only
predict further tokens, which transformers drops; buffers of the routers; scales of a quantised checkpoint."""

from collections.abc import Mapping

from memplan.arch.config import Config
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.units import ceil_div

MXFP4_BLOCK = 32


def with_checkpoint_notes(spec: ModelSpec, config: Config) -> ModelSpec:
    """The spec with a note for what its checkpoint holds beside the parameters, where the config says so."""
    notes = [*prediction_layers(spec, config), *scales(spec, config)]
    if notes:
        notes += correction_biases(spec)
    return spec.but(notes=(*spec.notes, *notes))


def prediction_layers(spec: ModelSpec, config: Config) -> list[str]:
    """Layers for multi-token prediction: each one more layer, a projection of two hidden states and three norms."""
    number = number_of_prediction_layers(config)
    if not number:
        return []
    size = prediction_layer(spec)
    return [
        f"the checkpoint holds {number} more layer{'s' if number > 1 else ''} for multi-token prediction, of "
        f"{size} parameters each, and may repeat embedding and head beside them: transformers leaves them out, and "
        "they take no memory"
    ]


def number_of_prediction_layers(config: Config) -> int:
    """As the config says; a missing or null key is none."""
    key = "num_nextn_predict_layers" if "num_nextn_predict_layers" in config.keys else "num_mtp_layers"
    number = config.keys.get(key)
    if number is None:
        return 0
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 1000:
        raise config.wrong(key, "an integer from 0 to 1000", number)
    return number


def prediction_layer(spec: ModelSpec) -> int:
    """Elements of one: the last layer again with the bias of its router, 2h × h and three norms (DeepSeek-V3, GLM)."""
    last, h = spec.runs[-1].layer, spec.hidden_size
    return last.parameters + correction(last) + 2 * h * h + 3 * h


def correction(layer: Layer) -> int:
    """Elements of the bias that corrects the choice of a layer's experts."""
    return layer.experts.count if layer.experts and layer.experts.routing.corrected else 0


def correction_biases(spec: ModelSpec) -> list[str]:
    """The routers' biases are buffers: in the checkpoint's total, and no parameters."""
    count = sum(run.count * correction(run.layer) for run in spec.runs)
    return [f"the routers' correction biases, {count} elements, are buffers that a checkpoint counts"] if count else []


def scales(spec: ModelSpec, config: Config) -> list[str]:
    """Scales of quantised weights: one for each block of an fp8 matrix, one for 32 weights of an mxfp4 expert."""
    section = config.keys.get("quantization_config")
    section = section if isinstance(section, Mapping) else {}
    count, method = 0, spec.quantization.form if spec.quantization else ""
    if method == "fp8":
        block = section.get("weight_block_size") or (128, 128)
        if (
            not isinstance(block, (list, tuple))
            or len(block) != 2
            or not all(isinstance(side, int) and side > 0 for side in block)
        ):
            raise config.wrong("quantization_config.weight_block_size", "two positive integers", block)
        count = sum(run.count * fp8_scales(run.layer, block[0], block[1]) for run in spec.runs)
        count += number_of_prediction_layers(config) * fp8_scales(spec.runs[-1].layer, block[0], block[1])
    if method == "mxfp4":
        count = sum(run.count * weights_of_experts(run.layer) // MXFP4_BLOCK for run in spec.runs)
    return (
        [f"scales of the quantised weights, {count} elements, are counted in the checkpoint's total"] if count else []
    )


def fp8_scales(layer: Layer, rows: int, columns: int) -> int:
    """Blocks of all its matrices but the router: each expert's gate, up and down are matrices of their own."""
    routed, h, total = layer.experts, layer.width, 0
    matrices = [(linear.outputs, linear.inputs, 1) for linear in layer.linears]
    if routed:
        matrices.remove((routed.router.outputs, routed.router.inputs, 1))
        matrices += [(routed.intermediate, h, 2 * routed.count), (h, routed.intermediate, routed.count)]
    for outputs, inputs, copies in matrices:
        total += copies * ceil_div(outputs, rows) * ceil_div(inputs, columns)
    return total


def weights_of_experts(layer: Layer) -> int:
    """Elements of the experts' matrices, without biases."""
    return sum(bare.parameters for bare in layer.experts.stacked if len(bare.shape) > 2) if layer.experts else 0
