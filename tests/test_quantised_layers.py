"""Proves that a checkpoint's own files tell which format each of its linears is in, and what an engine holds then."""

import json
from pathlib import Path
from typing import Any

import pytest

from memplan.arch.quantised import stored
from memplan.engine.generation.weights import weights_bytes
from memplan.engine.micro_step import policy_mode
from memplan.gpus import find_gpu
from memplan.models import load_model
from memplan.presets import model_preset
from memplan.resolve import resolve
from memplan.spec.generation import Generator
from memplan.spec.reading import read_job
from memplan.tables.quantizations import Stored

QWEN = {**model_preset("qwen3-8b")["config"], "num_hidden_layers": 3}
HIDDEN, INNER, QKV = 4096, 12288, 6144
MATRICES = {
    **{
        f"self_attn.{name}": size
        for name, size in (("q_proj", 4096), ("k_proj", 1024), ("v_proj", 1024), ("o_proj", 4096))
    },
    **dict.fromkeys(("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), INNER),
}
"""Linears of a layer, and their other side."""
CHANNELS = {"targets": ["Linear"], "weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}
NVFP4 = {"targets": ["re:.*mlp.*"], "weights": {"type": "float", "num_bits": 4, "group_size": 16}}
ATTENTION = [name for name in MATRICES if name.startswith("self_attn")]


def held(model: Any, gpu: str = "h100-80gb", **keys: Any) -> int:
    """Weights on a card, of a model or of a folder."""
    sizes = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "separate": True}
    return weights_bytes(Generator("vllm", "0.13.0", load_model(model), **(sizes | keys)), find_gpu(gpu))


def saved(*sizes: tuple[str, float, float], layers: int = 3) -> float:
    """Bytes less than in 16 bits, where linears take so many bytes for a weight and for an output."""
    outputs = {name: HIDDEN if name == "mlp.down_proj" else size for name, size in MATRICES.items()}
    return layers * sum(
        MATRICES[name] * HIDDEN * (2 - each) - outputs[name] * scale
        for prefix, each, scale in sizes
        for name in MATRICES
        if name.startswith(prefix)
    )


def folder(path: Path, config: dict[str, Any], names: list[str] | None, header: bool = False) -> str:
    """A checkpoint's config with its index, or the header of its one file."""
    (path / "config.json").write_text(json.dumps(config))
    if names is not None and header:
        text = json.dumps({"__metadata__": {}, **{name: {"dtype": "U8"} for name in names}}).encode()
        (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"weights")
    elif names is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(names, "one")}))
    return str(path)


@pytest.mark.parametrize(
    ("groups", "ignore", "sizes"),
    [
        ({"a": CHANNELS}, ["lm_head"], [("", 1, 4)]),
        ({"a": CHANNELS, "b": NVFP4}, ["lm_head"], [("self_attn", 1, 4), ("mlp", 9 / 16, 0)]),
        ({"a": CHANNELS, "b": NVFP4}, ["re:.*self_attn.*"], [("mlp", 9 / 16, 0)]),
    ],
)  # fmt: skip
def test_groups_of_a_config_have_their_own_formats(
    groups: dict[str, Any], ignore: list[str], sizes: list[tuple[str, float, float]]
) -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignore}
    found = held(QWEN) - held({**QWEN, "quantization_config": section})
    assert found == pytest.approx(saved(*sizes), rel=1e-3)


def test_a_scale_is_a_row_s_a_block_s_or_a_tensor_s_and_in_16_bits_where_marlin_multiplies() -> None:
    def of(strategy: str, gpu: str = "h100-80gb") -> int:
        group = {"targets": ["Linear"], "weights": {**CHANNELS["weights"], "strategy": strategy}}  # type: ignore[dict-item]
        section = {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
        return held({**QWEN, "quantization_config": section}, gpu)

    rows = 3 * (QKV + HIDDEN + 2 * INNER + HIDDEN)
    assert of("channel") - of("tensor") == pytest.approx(rows * 4, rel=0.02)
    assert of("block") == held({**QWEN, "quantization_config": {"quant_method": "fp8"}})
    assert of("channel", "a100-80gb") == of("tensor", "a100-80gb") < of("channel")


def test_modelopt_lists_the_format_of_each_linear(tmp_path: Path) -> None:
    listed = {
        f"model.layers.{at}.mlp.{name}_proj": {"quant_algo": "NVFP4"}
        for at in range(3)
        for name in ("gate", "up", "down")
    }
    listed |= {f"model.layers.1.{name}": {"quant_algo": "FP8"} for name in ATTENTION}
    section = {"quant_algo": "MIXED_PRECISION", "quantized_layers": listed}
    found = held(QWEN) - held({**QWEN, "quantization_config": {**section, "quant_method": "modelopt"}})
    assert found == pytest.approx(saved(("mlp", 9 / 16, 0)) + saved(("self_attn", 1, 0), layers=1), rel=1e-3)
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": section}))
    assert held(QWEN) - held(folder(tmp_path, QWEN, None)) == found
    for path, algorithm in (("model.layers.0.mlp.up_proj", "W1A1"), ("model.layers.*.mlp.up_proj", "FP8")):
        unknown: dict[Any, Any] = {**listed, path: {"quant_algo": algorithm}, 3: None}
        assert stored("modelopt", {**section, "quantized_layers": unknown}, QWEN) == Stored("modelopt")


@pytest.mark.parametrize("header", [False, True])
def test_the_names_of_a_checkpoint_s_tensors_tell_what_its_list_does_not(tmp_path: Path, header: bool) -> None:
    names = [f"model.layers.{at}.{name}.weight" for at in range(3) for name in (*MATRICES, "input_layernorm")]
    names += ["lm_head.weight", "vision_tower.encoder.layers.0.mlp.up_proj.weight_scale"]
    packed = [f"model.layers.{at}.{name}" for at in (0, 2) for name in ATTENTION]
    section = {"quant_method": "compressed-tensors", "config_groups": {"a": CHANNELS}, "ignore": ["re:.*nobody.*"]}
    config = {**QWEN, "quantization_config": section}
    path = folder(tmp_path, config, [*names, *(f"{name}.weight_scale" for name in packed)], header)
    assert held(QWEN) - held(path) == pytest.approx(saved(("self_attn", 1, 4), layers=2), rel=1e-3)
    spec = load_model(path)
    assert spec.quantization
    assert spec.quantization.words == "compressed-tensors fp8 except mlp, mtp, self_attn"
    assert load_model(config).quantization == Stored("compressed-tensors")


def test_names_that_say_their_format_need_no_scheme(tmp_path: Path) -> None:
    ends = {"self_attn": ("weight", "weight_scale"), "mlp": ("weight_packed", "weight_scale", "weight_global_scale")}
    names = [
        f"model.layers.{at}.{name}.{end}" for at in range(3) for name in MATRICES for end in ends[name.split(".")[0]]
    ]
    section = {"quant_method": "compressed-tensors", "config_groups": {}}
    path = folder(tmp_path, {**QWEN, "quantization_config": section}, names)
    assert held(QWEN) - held(path) == pytest.approx(saved(("self_attn", 1, 4), ("mlp", 9 / 16, 0)), rel=1e-3)


def test_a_folder_whose_index_cannot_be_read_is_known_by_its_config(tmp_path: Path) -> None:
    config = {**QWEN, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": CHANNELS}}}
    path = folder(tmp_path, config, None)
    (tmp_path / "model.safetensors.index.json").write_text("{")
    assert load_model(path).quantization == load_model(config).quantization


def test_layers_of_a_tower_are_none_of_the_language_model() -> None:
    section = {"quant_method": "compressed-tensors", "config_groups": {"a": CHANNELS}}
    ignored: dict[str, Any] = {"ignore": ["lm_head", "vision_tower.encoder.layers.0.self_attn.k_proj"]}
    assert stored("compressed-tensors", section | ignored, QWEN) == stored("compressed-tensors", section, QWEN)


@pytest.mark.parametrize(
    ("model", "itemsize"), [("gemma-3-4b", 2), ("qwen3.5-4b", 2), ("olmo-2-7b", 2), ("qwen3-4b", 4)]
)
def test_norms_that_cast_back_leave_the_residual_stream_narrow(model: str, itemsize: int) -> None:
    job = {"model": model, "method": "simpo", "trainer": "trl", "quantization": "nf4", "lora": {"r": 16}}
    assert policy_mode(resolve(read_job(job))).residual_itemsize == itemsize
