"""Proves what is read of Axolotl's files, and that what is written comes back."""

from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.checks.checking import check_all
from memplan.frameworks.emit.onto import changed
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.own_words.names import module_names
from memplan.frameworks.reading import framework_of, read_target
from memplan.frameworks.registry import find_framework
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job

QLORA = """base_model: NousResearch/Llama-3.2-1B
datasets: [{path: teknium/GPT4-LLM-Cleaned, type: alpaca}]
output_dir: ./out
adapter: qlora
load_in_4bit: true
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules: [gate_proj, down_proj]
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: paged_adamw_8bit
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
"""


def read(tmp_path: Path, text: str, **options: Any) -> JobInput:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_target(str(path), options)


@pytest.mark.parametrize(
    ("name", "adapter", "precision", "quantization"),
    [
        ("3.2-1B", "qlora", "bf16", "nf4-double"),
        ("3.2-1B", "qlora\nbnb_4bit_quant_type: fp4\nbnb_4bit_use_double_quant: false", "bf16", "nf4-double"),
        ("3.2-1B", "lora", "bf16-amp", "none"),
        ("3.2-1B", "lora\ndeepspeed: ds.json", "auto", "none"),
        ("3.2-1B-bnb-4bit", "lora", "bf16", "nf4-double"),
    ],
)
def test_four_bits_are_quantised_for_qlora_alone(
    tmp_path: Path, name: str, adapter: str, precision: str, quantization: str
) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    found = read(tmp_path, QLORA.replace("3.2-1B", name).replace("adapter: qlora", f"adapter: {adapter}"), num_gpus=8)
    assert (found.job.precision, found.job.quantization or "none") == (precision, quantization)
    assert not [each for each in found.unread if each.decides]


def test_a_published_example(tmp_path: Path) -> None:
    found = read(tmp_path, QLORA)
    job = found.job
    assert (job.trainer, job.trainer_version, job.method) == ("transformers", "5.14", "sft")
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (2, 4, 2048)
    assert (job.quantization, job.kbit_upcast, job.optimizer) == ("nf4-double", False, "paged-adamw-8bit")
    assert job.lora is not None
    assert (job.lora.r, job.lora.targets) == (32, ("gate_proj", "down_proj"))
    assert (job.gradient_checkpointing, job.gradient_checkpointing_reentrant, job.attention) == ("full", True, "flash")
    assert found.sources["batch_size"] == "file"
    assert found.sources["gradient_checkpointing_reentrant"] == "trainer"
    assert framework_of(str(tmp_path / "config.yaml")).name == "axolotl"
    assert not [line for line in found.warnings if "not counted" in line]


@pytest.mark.parametrize(
    ("lines", "key", "value"),
    [
        ("lora_rank_pattern: {down_proj: 8}", "rank_pattern", (("down_proj", 8),)),
        ("peft_layers_to_transform: [0, 2]", "layers_to_transform", (0, 2)),
        ("peft_trainable_token_indices: [5, 6, 7]", "trainable_token_indices", (("embed_tokens", 3),)),
        ("lora_target_linear: true", "targets", ("all-linear", "gate_proj", "down_proj")),
        ("lora_target_linear: true\nlora_target_modules: [lm_head]", "targets", ("all-linear", "lm_head")),
        ("lora_target_modules: [q_proj, lm_head, embed_tokens]", "targets", ("q_proj", "lm_head", "embed_tokens")),
        (
            "lora_target_linear: true\nlora_target_modules: [q_proj]\nbase_model: mistralai/Mixtral-8x7B-v0.1",
            "targets",
            ("k_proj", "o_proj", "q_proj", "v_proj"),
        ),
        ("peft_init_lora_weights: pissa\npeft_ensure_weight_tying: false", "dora", False),
    ],
)
def test_what_adapters_stand_on_is_read(lines: str, key: str, value: object, tmp_path: Path) -> None:
    kept = [line for line in QLORA.splitlines() if line.split(":")[0] not in lines]
    text = "\n".join([*kept, lines, ""]).replace("NousResearch/Llama-3.2-1B", "meta-llama/Llama-3.1-8B")
    found = read(tmp_path, text)
    assert found.job.lora is not None
    assert getattr(found.job.lora, key) == value
    assert resolve(found).adapter is not None


@pytest.mark.parametrize(
    ("lora", "back"),
    [
        ({"targets": ["all-linear", "lm_head"], "rank_pattern": {"lm_head": 4}}, True),
        ({"targets": ["q_proj"], "layers_to_transform": [1, 2]}, True),
        ({"targets": ["q_proj"], "trainable_token_indices": 5}, False),
        ({"targets": ["q_proj"], "lora_bias": True}, False),
    ],
    ids=str,
)
def test_adapters_are_written_or_refused(lora: dict[str, Any], back: bool) -> None:
    job = {"model": "llama-3.2-1b", "method": "sft", "trainer": "transformers", "lora": lora}
    row = find_framework("axolotl")
    if back:
        assert emit(read_job(job), row).texts
        return
    with pytest.raises(InvalidJob, match="cannot be said to Axolotl"):
        emit(read_job(job), row)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("rl: dpo", "trainer", "trl"),
        ("rl: ipo", "method", "ipo"),
        ("rl: simpo", "sft_term", True),
        ("rl: simpo\ncpo_alpha: 0", "sft_term", False),
        ("reward_model: true", "method", "reward"),
        ("rl: dpo", "gradient_checkpointing_reentrant", False),
        ("gradient_checkpointing_kwargs: {use_reentrant: false}", "gradient_checkpointing_reentrant", False),
        ("cut_cross_entropy: true", "loss_head", "cut-cross-entropy"),
        ("plugins: [axolotl.integrations.liger.LigerPlugin]\nliger_rms_norm: true", "kernels", "liger"),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}", "sharding", "fsdp2"),
        ("fsdp: [full_shard, auto_wrap]\nfsdp_config: {fsdp_offload_params: false}", "sharding", "fsdp"),
        ("dp_shard_size: 4\ntensor_parallel_size: 2", "num_gpus", 8),
        ("rl: dpo\nactivation_offloading: true", "offload", ("activations",)),
        ("activation_offloading: true", "gradient_checkpointing", "none"),
        ("lora_r: 8", "kbit_upcast_experts", True),
        ("quantize_moe_experts: true", "quantize_experts", True),
        ("quantize_moe_experts: true", "kbit_upcast_experts", None),
    ],
)
def test_one_key(tmp_path: Path, line: str, key: str, value: object) -> None:
    assert getattr(read(tmp_path, f"{QLORA}{line}\n").job, key) == value


def test_a_base_that_fsdp2_divides_is_packed_on_the_host_where_it_loads_sparingly(tmp_path: Path) -> None:
    """loaders/model.py: under version 2 device_map is cpu for the first process of a node, and meta for the others."""
    for version, packs in ((1, False), (2, True)):
        text = f"{QLORA}fsdp_version: {version}\nfsdp_config: {{cpu_ram_efficient_loading: true}}\n"
        assert read(tmp_path, text, num_gpus=8).job.fsdp.packs_on_host is packs


def test_what_shards_leave_of_the_gpus_are_replicas(tmp_path: Path) -> None:
    sharded = f"{QLORA}fsdp_version: 2\nfsdp_config: {{reshard_after_forward: true}}\ndp_shard_size: 2\n"
    for gpus, more, replicas in ((8, "", 4), (4, "dp_replicate_size: 2\n", 2), (2, "", None)):
        fsdp = read(tmp_path, sharded + more, num_gpus=gpus).job.fsdp
        assert (fsdp.replicate if fsdp else None) == replicas


@pytest.mark.parametrize(
    ("line", "precision", "autocast"),
    [
        ("bf16: full", "bf16", False),
        ("bf16: true", "bf16", True),
        ("bf16: true\nreinit_weights: true", "bf16-amp", None),
        ("fp16: true", "fp16", True),
        ("bf16: false", "fp32", None),
    ],
)
def test_the_dtype_that_weights_are_in(tmp_path: Path, line: str, precision: str, autocast: bool | None) -> None:
    text = "".join(each + "\n" for each in QLORA.splitlines() if not each.startswith(("bf16", "adapter", "load_in")))
    job = read(tmp_path, f"{text}{line}\n").job
    assert (job.precision, job.autocast) == (precision, autocast)


def test_what_is_not_understood_is_named_with_its_line(tmp_path: Path) -> None:
    warnings = read(tmp_path, f"{QLORA}sequence_lem: 4096\nrelora: true\n").warnings
    assert any("line 18: sequence_lem is not counted: not understood" in line for line in warnings)
    assert any("line 19: relora" in line for line in warnings)
    unread = read(tmp_path, f"{QLORA}fp8: true\n").unread
    assert {(each.key, each.decides) for each in unread} >= {("fp8", "quantisation")}
    unread = read(
        tmp_path, QLORA.replace("NousResearch/Llama-3.2-1B", "mine/VL") + "processor_type: AutoProcessor\n"
    ).unread
    assert {each.asks for each in unread} >= {"sequence_length", "images"}  # rows of its processor are cut nowhere
    with pytest.raises(InvalidJob, match=r"line 18: rl: ebft is not modelled"):
        read(tmp_path, f"{QLORA}rl: ebft\n")


def test_deepspeed_is_followed_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero3.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    assert read(tmp_path, f"{QLORA}deepspeed: ds/zero3.json\n").job.sharding == "zero3"
    asked = read(tmp_path, f"{QLORA}deepspeed: ../../../ds.json\n").unread[0]
    assert (asked.asks, "is outside of" in asked.why) == ("sharding", True)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"model.layers.[\d]+.(mlp|self_attn).(up|down|q)_proj", ("up_proj", "down_proj", "q_proj")),
        (r".*\.mlp\.down_proj$", ("down_proj",)),
        (r"(a\.(q|k)_proj|b\.fc[12])", ()),
    ],
)
def test_the_linears_that_an_expression_ends_in(pattern: str, names: tuple[str, ...]) -> None:
    assert module_names(pattern) == names


DRAWN = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["sft", "reward", "dpo", "ipo", "kto", "orpo", "simpo"]),
        "batch_size": st.integers(1, 8),
        "gradient_accumulation_steps": st.sampled_from([1, 16]),
        "sequence_length": st.sampled_from([128, 1000]),
        "gradient_checkpointing": st.sampled_from(["none", "full"]),
    },
    optional={
        "optimizer": st.sampled_from(["adamw", "adafactor", "sgd", "adamw-8bit", "paged-adamw-8bit"]),
        "attention": st.sampled_from(["sdpa", "flash", "eager"]),
        "lora": st.sampled_from([{"r": 4}, {"r": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}]),
        "num_gpus": st.sampled_from([1, 4, 16]),
        "sharding": st.sampled_from(["zero2", "zero3", "fsdp2"]),
        "padded": st.booleans(),
    },
)


@examples(25, suppress_health_check=list(HealthCheck))
@given(keys=DRAWN)
def test_drawn_jobs_come_back(keys: dict[str, Any]) -> None:
    assume("sharding" not in keys or keys.get("num_gpus", 1) > 1)
    asked = read_job({"model": "smollm2-135m", **keys})
    try:
        resolve(asked)
    except MemplanError:
        assume(False)
    try:
        made = sorted(emit(asked, find_framework("axolotl")).texts)
    except InvalidJob as error:
        made = [error.message]
    # Under FSDP Axolotl upcasts the adapters alone, where the bare loop's mixed precision keeps fp32 shards.
    sharded_adapters = "lora" in keys and str(keys.get("sharding", "")).startswith("fsdp")
    said = sharded_adapters and "precision: bf16-amp cannot be said to Axolotl" in made[0]
    assert "axolotl.yaml" in made or said


def test_what_axolotl_does_not_train_is_refused() -> None:
    with pytest.raises(InvalidJob, match="method: rloo is not what Axolotl trains"):
        emit(read_job({"model": "smollm2-135m", "method": "rloo"}), find_framework("axolotl"))
    with pytest.raises(InvalidJob, match="pair_pass: split cannot be said"):
        emit(read_job({"model": "smollm2-135m", "method": "dpo", "pair_pass": "split"}), find_framework("axolotl"))


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("axolotl train config.yaml", 1),
        ("axolotl train config.yaml --launcher torchrun -- --nproc_per_node=4", 4),
        ("axolotl train config.yaml --launcher accelerate -- --num_processes 8", 8),
        ("accelerate launch --num_processes 2 -m axolotl.cli.train config.yaml", 2),
        ("torchrun --nproc_per_node 8 -m axolotl.cli.train config.yaml", 8),
    ],
)
@pytest.mark.parametrize("zero", [False, True])
def test_a_script_says_on_how_many_gpus(tmp_path: Path, command: str, gpus: int, zero: bool) -> None:
    """The config's own DeepSpeed is stronger than what a launcher does without one."""
    text = QLORA.replace("load_in_4bit: true\n", "").replace("adapter: qlora", "adapter: lora")
    (tmp_path / "config.yaml").write_text(text + "deepspeed: ds.json\n" * zero, encoding="utf-8")
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    job = read_target(str(tmp_path / "run.sh"), {}).job
    assert (job.num_gpus, job.batch_size, job.sequence_length) == (gpus, 2, 2048)
    assert job.sharding == (
        "zero2" if zero else "ddp" if gpus > 1 and command.startswith("accelerate") else job.sharding
    )


FLAGGED = QLORA.replace("attn_implementation: flash_attention_2", "flash_attention: true")


def test_a_flag_of_attention_gives_way_to_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Axolotl refuses flags beside attn_implementation, and took these alone before it had that."""
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path, FLAGGED).job.attention == "flash"
    with pytest.raises(InvalidJob, match="flash_attention beside attn_implementation, which Axolotl refuses"):
        read(tmp_path, f"{FLAGGED}attn_implementation: sdpa\n")
    (tmp_path / "config.yaml").write_text(FLAGGED, encoding="utf-8")
    wanted = read_target("config.yaml", {"attention": "sdpa"})
    text = changed("config.yaml", emit(wanted, find_framework("axolotl")), wanted.job)
    assert text == FLAGGED.replace("flash_attention: true", "flash_attention: false")
    (old,) = check_all("config.yaml", {"gpu": "v100-32gb"})
    assert old.hint == "write config.yaml, line 17: flash_attention: false; config.yaml: sdp_attention: true"


@pytest.mark.parametrize(
    ("more", "release", "version"),
    [
        ("", "0.18", "5.14"),
        ("flash_attn_fuse_qkv: false", "0.11", "4.53.1"),
        ("flash_attn_fuse_qkv: false\nflash_attn_rms_norm: false", "0.11", "4.53.1"),
        ("s2_attention:", "0.18", "5.14"),
        ("type: sharegpt.load_role", "0.4.1", "4.41.1"),
        ("type: chat_template", "0.18", "5.14"),
    ],
)
def test_keys_that_went_tell_the_release(tmp_path: Path, more: str, release: str, version: str) -> None:
    of_set = more.startswith("type")
    text = QLORA.replace("type: alpaca", more) if of_set else f"{QLORA}{more}\n"
    found = read(tmp_path, text)
    assert found.job.trainer_version == version
    assert f"Axolotl {release} takes transformers {version}" in found.origins["trainer_version"]


@pytest.mark.parametrize(
    ("kind", "model", "rows", "more", "fits"),
    [
        ("sharegpt", "mistralai/Mistral-7B-v0.1", 16, "", "unclear"),
        ("sharegpt", "mistralai/Mistral-7B-v0.1", 2, "", "yes"),
        ("sharegpt", "mistralai/Mistral-7B-v0.1", 16, "4.43", "yes"),
        ("sharegpt", "mistralai/Mistral-7B-v0.1", 16, "4.41.1", "unclear"),
        ("alpaca", "mistralai/Mistral-7B-v0.1", 16, "", "yes"),
        ("sharegpt", "NousResearch/Llama-3.2-1B", 16, "", "yes"),
    ],
)
def test_a_whole_mask_of_mistral_s_packed_rows(
    tmp_path: Path, kind: str, model: str, rows: int, more: str, fits: str
) -> None:
    path = tmp_path / "config.yaml"
    text = QLORA.replace("alpaca", kind).replace("NousResearch/Llama-3.2-1B", model)
    path.write_text(text.replace("micro_batch_size: 2", f"micro_batch_size: {rows}"), encoding="utf-8")
    options = {"gpu": "h200", **({"trainer_version": more} if more else {})}
    (found,) = check_all(str(path), options)
    assert found.fits == fits, found.text
    assert ("a mask of 32768 × 32768, 24.00 GiB" in found.text) == (fits == "unclear")


ABOVE = ("flash_attn_fuse_mlp", "flash_attn_rms_norm", "flash_attn_cross_entropy", "chunked_cross_entropy")


@pytest.mark.parametrize("key", ABOVE)
def test_what_takes_no_more_is_counted_from_above(tmp_path: Path, key: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{QLORA}{key}: true\n", encoding="utf-8")
    rows = [check_all(str(path), {"gpu": gpu})[0] for gpu in ("h100-80gb", "4GB")]
    assert [row.fits for row in rows] == ["yes", "unclear"]
