"""Proves quantised bases against bitsandbytes and PEFT: bytes of weights, saved bytes of layers, refusals."""

import json
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.engine.layers.modules import Pass, project
from memplan.engine.micro_step import policy_mode
from memplan.engine.tape.tags import Dim
from memplan.engine.tape.tape import Tape
from memplan.engine.traces import LayerTrace, trace_layer
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.parts import Linear
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.quantizations import QUANTIZATIONS
from memplan.tables.styles import PassStyle
from memplan.units import GiB

SAVED = json.loads((Path(__file__).parent / "data/adapters/saved_by_nf4_layers.json").read_text())["rows"]
MEASURED: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "vocab_size": 512, "intermediate_size": 640, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = MEASURED | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
FORMATS = sorted(QUANTIZATIONS)

BYTES = [
    # scheme, outputs, inputs: bytes of weight, absmax, code, offset, second absmax, second code (bitsandbytes 0.50.2)
    ("nf4", 64, 64, [2048, 64, 256]),
    ("nf4", 48, 96, [2304, 64, 288]),
    ("fp4", 1408, 512, [360448, 64, 45056]),
    ("nf4", 300, 100, [15000, 64, 1876]),
    ("nf4-double", 1408, 512, [360448, 64, 11264, 176, 1024, 4]),
    ("nf4-double", 300, 100, [15000, 64, 469, 8, 1024, 4]),
    ("int8", 1408, 512, [720896, 5632]),
]


def recipe(model: Any = None, **keys: Any) -> Recipe:
    base = {"model": model or MEASURED, "method": "sft", "trainer": "pytorch", "precision": "bf16", "lora": {"r": 8}}
    return resolve(read_job(base | {"batch_size": 1, "sequence_length": 128} | keys))


def layer(resolved: Recipe, style: PassStyle = "plain", length: int = 128) -> LayerTrace:
    return trace_layer(resolved.model.runs[0].layer, policy_mode(resolved), 1, length, style)


def bytes_of(resolved: Recipe, category: str) -> int:
    return sum(row.bytes for row in build_ledger(resolved).rows if row.category == category)


@pytest.mark.parametrize(("scheme", "rows", "columns", "tensors"), BYTES)
def test_tensors_are_those_of_bitsandbytes(scheme: str, rows: int, columns: int, tensors: list[int]) -> None:
    assert list(QUANTIZATIONS[scheme].tensors(rows, columns).values()) == tensors


@pytest.mark.parametrize(("scheme", "bits"), [("gptq-4bit", 4.16), ("awq-4bit", 4.16), ("hqq-4bit", 4.5)])
def test_formats_that_carry_zeros_cost_what_their_groups_say(scheme: str, bits: float) -> None:
    size = sum(QUANTIZATIONS[scheme].tensors(4096, 4096).values())
    assert size * 8 / 4096**2 == pytest.approx(bits, rel=0.002)


@pytest.mark.parametrize("row", SAVED, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_a_layer_saves_what_bitsandbytes_and_peft_save(row: dict[str, Any]) -> None:
    lora = {"r": 8, "targets": row["targets"], "dtype": row["dtype"], "dora": row["dora"]}
    keys = {"autocast": row["autocast"], "attention": "eager", "lora": lora}
    found = layer(recipe(quantization=row["quantization"], kbit_upcast=row["upcast"], **keys))
    assert found.saved.size == row["saved"]


def test_what_is_not_quantised_keeps_its_dtype_or_is_upcast() -> None:
    rest = 2 * 512 * 256 + 5 * 256
    packed = {
        upcast: bytes_of(recipe(quantization="nf4", kbit_upcast=upcast), "parameters") for upcast in (False, True)
    }
    assert packed[True] - packed[False] == 2 * rest


def test_stacked_experts_are_quantised_only_where_they_were_linears() -> None:
    lora = {"r": 8, "targets": ["q_proj"]}
    new = recipe(MIXTRAL, quantization="nf4", lora=lora, trainer="transformers", kbit_upcast=False)
    old = recipe(
        MIXTRAL, quantization="nf4", lora=lora, trainer="transformers", kbit_upcast=False, trainer_version="4.48"
    )
    experts = 2 * 4 * 3 * 256 * 640
    difference = bytes_of(new, "parameters") - bytes_of(old, "parameters")
    assert difference == pytest.approx(experts * (2 - 0.5625), rel=0.01)


EXPERTS = 2 * 4 * 3 * 256 * 640


def stacked(**keys: Any) -> Recipe:
    of = {
        "quantization": "nf4",
        "trainer": "transformers",
        "kbit_upcast": False,
        "lora": {"r": 8, "targets": ["q_proj"]},
    }
    return recipe(MIXTRAL, **(of | keys))


def test_stacked_experts_that_are_packed_are_saved_whole_by_their_products() -> None:
    plain, packed = stacked(), stacked(quantize_experts=True)
    fewer = bytes_of(plain, "parameters") - bytes_of(packed, "parameters")
    assert fewer == pytest.approx(EXPERTS * (2 - 0.5625), rel=0.01)
    assert layer(packed).saved.size - layer(plain).saved.size == EXPERTS  # of one layer in bf16
    again = [layer(each, "checkpoint") for each in (plain, packed)]
    assert again[0].saved.size == again[1].saved.size


def test_stacked_experts_stay_as_preparing_them_left_them() -> None:
    """trl 1.16 experimental/cpo/cpo_trainer.py and Axolotl's loaders/model.py cast others back."""
    cast = stacked(kbit_upcast_experts=True)
    assert bytes_of(cast, "parameters") - bytes_of(stacked(), "parameters") == 2 * EXPERTS
    trl = {"trainer": "trl", "method": "simpo", "kbit_upcast": None}
    rest = bytes_of(stacked(**trl, kbit_upcast_experts=False), "parameters")
    assert bytes_of(stacked(**trl), "parameters") - rest == 2 * EXPERTS
    assert not stacked(kbit_upcast_experts=True, quantize_experts=True).numerics.stack_itemsize


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"quantization": "none"}, "quantize_experts: true without quantization"),
        ({"quantization": "none", "quantize_experts": False, "kbit_upcast_experts": True}, "kbit_upcast_experts: true"),
        ({"quantization": "int8"}, "experts in int8 are not modelled"),
        ({"trainer_version": "4.48"}, "experts are linears in transformers 4"),
        ({"model": MEASURED}, "has no experts"),
    ],
)
def test_experts_that_are_not_packed_are_refused_by_name(keys: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidJob, match=what):
        recipe(
            **({"model": MIXTRAL, "quantization": "nf4", "trainer": "transformers", "quantize_experts": True} | keys)
        )


def test_int8_inputs_outlive_checkpoints_unless_reentrant() -> None:
    kept = {
        style: layer(recipe(quantization="int8", gradient_checkpointing="full"), style)
        for style in ("plain", "checkpoint", "reentrant")
    }
    assert kept["checkpoint"].lingering == kept["plain"].lingering > 128 * 640 * 2
    assert kept["checkpoint"].saved.size == kept["checkpoint"].boundary + kept["checkpoint"].lingering
    assert kept["reentrant"].lingering == 0


def test_old_four_bit_products_keep_their_inputs() -> None:
    """bitsandbytes before 0.43.2: each its own cast of the fp32 residual stream."""
    kept = {
        version: layer(recipe(quantization="nf4", trainer="transformers", trainer_version=version), "checkpoint")
        for version in ("4.42", "4.43")
    }
    assert kept["4.43"].lingering == 0
    assert kept["4.42"].lingering == 128 * (6 * 256 + 640) * 2


def test_old_eight_bit_products_keep_the_columns_of_their_inputs() -> None:
    """bitsandbytes before 0.45: ``CAt`` of each product, whatever inputs they share."""
    new, old = (recipe(quantization="int8", trainer="transformers", trainer_version=each) for each in ("4.48", "4.46"))
    more = layer(old, "checkpoint").lingering - layer(new, "checkpoint").lingering
    assert more == 128 * (6 * 256 + 640)
    assert any("bitsandbytes before 0.45" in each for each in old.provenance.warnings)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize(("name", "version"), [("int8", "4.48"), ("int8", "4.46"), ("nf4", "4.42")])
def test_what_products_keep_is_played(name: str, version: str, reentrant: bool) -> None:
    keys = {"gradient_checkpointing": "full", "gradient_checkpointing_reentrant": reentrant}
    found = recipe(quantization=name, trainer="transformers", trainer_version=version, **keys)
    played = step_events(found)
    assert played is not None
    assert played.peak == pytest.approx(max(build_ledger(found, detailed=False).totals()), rel=1e-4)


def test_only_gptq_keeps_dequantised_weights_for_backward() -> None:
    matrices = 2 * sum(linear.inputs * linear.outputs for linear in recipe().model.runs[0].layer.linears)
    plain = layer(recipe()).saved.size
    assert layer(recipe(quantization="gptq-4bit")).saved.size - plain == matrices
    assert layer(recipe(quantization="nf4")).saved.size == plain


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_base_is_smaller_and_its_adapters_are_the_same(name: str) -> None:
    small, whole = recipe(quantization=name, kbit_upcast=False if name != "gptq-4bit" else None), recipe()
    assert bytes_of(small, "parameters") < bytes_of(whole, "parameters")
    assert bytes_of(small, "adapters") == bytes_of(whole, "adapters")


@examples(25)
@given(st.sampled_from(FORMATS), st.integers(1, 64), st.booleans(), st.booleans())
def test_more_rank_is_more_bytes(name: str, rank: int, dora: bool, checkpointing: bool) -> None:
    dora = dora and name != "awq-4bit"
    keys = {"quantization": name, "gradient_checkpointing": "full" if checkpointing else "none"}
    low, high = (recipe(lora={"r": r, "dora": dora}, **keys) for r in (rank, rank + 16))
    assert max(build_ledger(low).totals()) < max(build_ledger(high).totals())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"quantization": "nf4", "lora": None}, "quantization: nf4 weights cannot be trained"),
        ({"kbit_upcast": True}, "kbit_upcast: true without quantization"),
        (
            {"quantization": "hqq-4bit", "kbit_upcast": True},
            "kbit_upcast: prepare_model_for_kbit_training casts nothing",
        ),
        ({"quantization": "int8", "sharding": "zero3", "num_gpus": 2, "precision": "auto"}, "sharding: zero3 with"),
        ({"quantization": "hqq-4bit", "zero_stage": 3, "num_gpus": 2, "precision": "auto"}, "sharding: zero3 with"),
        (
            {"quantization": "nf4", "zero_stage": 3, "num_gpus": 2, "precision": "auto", "offload": ["parameters"]},
            "sharding: zero3 with quantization nf4: a quantised base with parameters on the host",
        ),
        ({"quantization": "awq-4bit", "lora": {"dora": True}}, "lora.dora: PEFT has no DoRA over AWQ"),
        ({"quantization": "nf5"}, "quantization: unknown value 'nf5'"),
        ({"lora": {"modules_to_save": ["norm"]}}, "lora.modules_to_save: 'norm' is not modelled"),
    ],
)
def test_what_libraries_refuse_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        recipe(**keys)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    ("trainer", "version", "method", "norms", "upcast"),
    [
        ("trl", "1.16", "dpo", 0, False),
        ("trl", "1.16", "simpo", 4, None),
        ("trl", "0.24", "sft", 4, None),
        ("transformers", None, "sft", 0, True),
        ("llamafactory", None, "dpo", 0, False),
    ],
)
def test_each_trainer_prepares_a_quantised_base_its_way(
    trainer: str, version: str | None, method: str, norms: int, upcast: bool | None
) -> None:
    found = recipe(trainer=trainer, trainer_version=version, method=method, quantization="nf4")
    assert (found.numerics.norm_itemsize, found.provenance.job.get("kbit_upcast")) == (norms, upcast)
    assert found.numerics.itemsize == (4 if upcast else 2)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_deepspeed_undoes_the_upcast(stage: int) -> None:
    keys = {"trainer": "transformers", "quantization": "nf4", "zero_stage": stage, "num_gpus": 2, "precision": "auto"}
    found = recipe(**keys)
    assert (found.numerics.norm_itemsize, found.storage.precision.weights, found.numerics.itemsize) == (0, 2, 2)


@pytest.mark.parametrize("ranks", [2, 7, 16])
@pytest.mark.parametrize("name", ["nf4", "fp4", "nf4-double"])
def test_zero_3_splits_packed_weights_and_gathers_them_packed(name: str, ranks: int) -> None:
    """Scales, which are no parameters, stay whole; what is gathered is a quarter of what bf16 weights are."""
    keys = {"precision": "auto", "zero_stage": 3, "num_gpus": ranks, "deepspeed": {"param_persistence_threshold": 0}}
    alone, split, plain = recipe(quantization=name), recipe(quantization=name, **keys), recipe(**keys)
    rows = {
        label: {row.name: row.bytes for row in build_ledger(found).rows}
        for label, found in (("one", alone), ("all", split))
    }
    packed, scales = "quantised weights of the policy", "scales of the quantised weights of the policy"
    assert rows["all"][scales] == rows["one"][scales]
    assert 0 <= rows["all"][packed] * ranks - rows["one"][packed] < ranks * 2 * 7 * 512
    assert 0 < _gathered_in_layers(split) < 0.4 * _gathered_in_layers(plain)


def _gathered_in_layers(found: Recipe) -> int:
    ledger = build_ledger(found)
    at = ledger.index["policy.layer-forward"]
    return sum(row.bytes for row in ledger.rows if row.category == "gathered_parameters" and row.born <= at <= row.dies)


def test_trl_casts_adapters_over_a_quantised_base_but_not_magnitudes() -> None:
    adapter = recipe(trainer="trl", method="dpo", quantization="nf4", lora={"r": 8, "dora": True}).adapter
    assert adapter is not None
    assert (adapter.itemsize, adapter.magnitude_itemsize) == (2, 4)


def test_preparing_turns_checkpointing_on_under_the_trainer() -> None:
    assert recipe(trainer="transformers", quantization="nf4").checkpointing.layers
    assert not recipe(trainer="transformers", quantization="nf4", gradient_checkpointing="none").checkpointing.layers


@pytest.mark.parametrize("keys", [{"quantization": "nf4-double"}, {"load_in_4bit": True}])
def test_an_8b_model_in_four_bits_fits_a_24_gb_card(keys: dict[str, Any]) -> None:
    job = {"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "gpu": "rtx-4090", "lora": {"r": 16}}
    report = estimate(job | {"gradient_checkpointing": "full"} | keys)
    assert report.verdict is not None
    assert report.verdict.fits == "yes"
    labels = {row.label if hasattr(row, "label") else row.name for row in report.per_gpu.ledger}
    assert {"quantised weights of the policy", "unquantised weights of the policy"} <= labels


@pytest.mark.parametrize(("name", "scales"), [("nf4", 0), ("nf4-double", 2)])
@pytest.mark.parametrize("tokens", [64, 1024])
def test_a_forward_holds_matrix_and_scales_then_three_results(name: str, scales: int, tokens: int) -> None:
    """Few tokens: the product's locals decide (bitsandbytes 0.50 ``_dequant_linear_fallback``). Many: the clone, which
    has taken the base result's place (PEFT 0.21 tuners/lora/bnb.py), the adapters' output and the sum.
    """
    resolved = recipe(quantization=name, lora={"r": 8, "targets": ["down_proj"], "dtype": "bf16"})
    tape, matrix, result = Tape(), 640 * 256 * 2, tokens * 256 * 2
    tape.grad_enabled = False
    p = Pass(tape, policy_mode(resolved), 1, tokens)
    x = tape.new(Dim("T·f", tokens * 640), 2, "x")
    out = project(p, x, Linear(name="down_proj", inputs=640, outputs=256), "h", "outputs")
    most = max(matrix + scales * 640 * 256 // 64 * 4 + result, 3 * result)
    assert max(size for size, _ in tape.peaks.values()) == tokens * 640 * 2 + most
    assert tape.live == tokens * 640 * 2 + out.dim.elements * 2


def test_linears_of_a_tower_and_its_projector_are_packed_too() -> None:
    vision = {"model_type": "clip_vision_model", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 4, "image_size": 28, "patch_size": 14}
    seeing = {"model_type": "llava", "text_config": MEASURED, "vision_config": vision, "image_token_index": 7}
    packed = [
        bytes_of(recipe(model, quantization="nf4", kbit_upcast=False), "parameters") for model in (seeing, MEASURED)
    ]
    whole = [bytes_of(recipe(model), "parameters") for model in (seeing, MEASURED)]
    linears = 2 * (4 * 128 * 128 + 2 * 128 * 256) + 128 * 256 + 256 * 256
    saved = whole[0] - packed[0] - (whole[1] - packed[1])
    assert saved == pytest.approx(linears * (2 - 0.5625), rel=0.05)


NEOX: dict[str, Any] = {
    "model_type": "gpt_neox", "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096,
    "vocab_size": 1024, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "forward", "backward"), [(2, 505_666_560, 555_958_272), (6, 1_256_893_440, 1_307_185_152)]
)
def test_autocast_s_layer_norms_widen_what_four_bit_linears_give_back(layers: int, forward: int, backward: int) -> None:
    """Peaks of ``memplan trace``: the residual stream is fp32 from the first layer's output on."""
    job = {"model": NEOX | {"num_hidden_layers": layers}, "method": "sft", "precision": "bf16", "autocast": True}
    found = estimate(job | {"quantization": "nf4", "lora": {"r": 16}, "batch_size": 4, "sequence_length": 1024})
    assert found.per_gpu.phases["forward"] == pytest.approx(forward, rel=0.001)
    assert found.per_gpu.phases["backward"] == pytest.approx(backward, rel=0.001)


def test_falcon_s_linears_are_no_plain_ones() -> None:
    model = {
        "model_type": "falcon",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 512,
    }
    assert any("type(module) is nn.Linear" in said for said in recipe(model, quantization="nf4").provenance.warnings)
    old = recipe(model, quantization="nf4", trainer="trl", trainer_version="0.19")
    assert not any("type(module)" in said for said in old.provenance.warnings)


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp2"])
def test_fsdp_offloads_packed_weights_too_but_not_their_scales(sharding: str) -> None:
    job: dict[str, Any] = {"model": "llama-3.1-8b", "trainer": "transformers", "method": "sft", "lora": {"r": 8}}
    job |= {
        "sharding": sharding,
        "num_gpus": 2,
        "quantization": "nf4-double",
        "precision": "bf16",
        "gradient_checkpointing": "full",
    }
    kept, away = (estimate({**job, **more}).per_gpu for more in ({}, {"fsdp": {"cpu_offload": True}}))
    places = {row.name: row.place for row in away.ledger if "quantised weights of the policy" in row.name}
    assert places["quantised weights of the policy"] == "host"
    assert places["scales of the quantised weights of the policy"] == "gpu"
    packed = next(row.bytes for row in kept.ledger if row.name == "quantised weights of the policy")
    assert packed > 1.5 * GiB
    assert kept.phases["step"] - away.phases["step"] >= packed


@pytest.mark.parametrize("sharding", ["fsdp", "fsdp2"])
def test_a_quantised_base_waits_on_the_host_under_fsdp(sharding: str) -> None:
    """The general key says what FSDP's own does; of the base the card holds what is gathered."""
    keys = {"quantization": "nf4", "sharding": sharding, "num_gpus": 2, "lora": {"r": 8, "dtype": "bf16"}}
    on_card, general, own = (
        sum(row.bytes for row in build_ledger(recipe(**keys, **more)).rows
            if row.category == "parameters" and row.place == "gpu")
        for more in ({}, {"offload": ["parameters"]}, {"fsdp": {"cpu_offload": True}})
    )  # fmt: skip
    assert general == own < on_card


@pytest.mark.parametrize(("version", "upcast", "itemsize"), [("1.16", True, 2), ("1.16", False, 2), ("0.27", True, 4)])
def test_trl_casts_adapters_of_a_ready_model_too(version: str, upcast: bool, itemsize: int) -> None:
    found = recipe(quantization="nf4", kbit_upcast=upcast, lora={"r": 8}, trainer="trl", trainer_version=version)
    assert found.adapter is not None
    assert found.adapter.itemsize == itemsize
