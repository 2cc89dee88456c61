"""Proves what is read of prime-rl's configs: one file of all its parts, a part's own, and commands."""

from pathlib import Path
from typing import Any

import pytest
from framework_cases import decided
from framework_cases import read_text as read

from memplan.api import estimate
from memplan.errors import MemplanError
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.reading import framework_of, read_target
from memplan.render.text import plain
from memplan.render.verdict_view import verdict_blocks
from memplan.resolve import resolve

RL = """seq_len = 4096
max_steps = 10

[model]
name = "Qwen/Qwen3-0.6B"

[deployment]
num_train_gpus = 2
num_infer_gpus = 4

[trainer.optim]
lr = 3e-6

[orchestrator]
batch_size = 128
group_size = 16

[[orchestrator.train.source]]
name = "reverse-text"

[inference.vllm]
tensor_parallel_size = 2
"""
SFT = """max_steps = 10
[model]
name = "Qwen/Qwen3-0.6B"
[data]
name = "mine/sft"
seq_len = 4096
batch_size = 32
micro_batch_size = 2
[deployment]
num_train_gpus = 4
"""


def read_toml(folder: Path, text: str, **options: Any) -> Any:
    return read(folder, text, name="rl.toml", **options)


def test_gpus_as_they_were_said_until_october_2025(tmp_path: Path) -> None:
    job = read_toml(
        tmp_path,
        "trainer_gpus = 4\ninference_gpus = 3\n"
        + RL.replace("[deployment]\nnum_train_gpus = 2\nnum_infer_gpus = 4\n", "").replace("size = 2", "size = 1"),
        num_gpus=8,
    ).job
    assert job.rollout is not None
    assert (job.num_gpus, job.rollout.num_gpus) == (4, 3)


def test_a_trainer_beside_vllm_on_gpus_of_its_own(tmp_path: Path) -> None:
    found = read_toml(tmp_path, RL)
    job = found.job
    assert framework_of(str(tmp_path / "rl.toml")).name == "prime-rl"
    assert (job.trainer, job.method, job.num_gpus, job.sharding) == ("prime-rl", "grpo", 2, "fsdp2")
    assert (job.sequence_length, job.batch_size, job.precision) == (4096, 1, "bf16-amp")
    assert (job.gradient_checkpointing, job.compile, job.loss_head) == ("full", True, "auto")
    assert (job.rollout.placement, job.rollout.num_gpus, job.rollout.tensor_parallel) == ("separate", 4, 2)
    assert job.offload == ("activations",)
    assert {each.key for each in found.unread if each.above} == {"trainer.model.optim_cpu_offload"}
    assert all(each.above for each in found.unread)
    assert resolve(found)


def test_a_ring_shares_sequences_and_ulysses_is_a_bound(tmp_path: Path) -> None:
    ring = SFT + "[model.ac]\nfreq = 1\n"
    shared = read_toml(tmp_path, ring.replace('Qwen3-0.6B"', 'Qwen3-0.6B"\ncp = 2'))
    assert (shared.job.context_parallel, shared.job.sequence_length) == (2, 4096)
    assert estimate(shared).per_gpu.allocated_bytes < estimate(read_toml(tmp_path, ring)).per_gpu.allocated_bytes
    found = read_toml(tmp_path, ring.replace('Qwen3-0.6B"', 'Qwen3-0.6B"\ncp = 2\ncp_style = "ulysses"'))
    assert found.job.context_parallel == 1
    assert "model.cp" in {each.key.removeprefix("trainer.") for each in found.unread if each.above}


OLD = RL.replace("train.source", "env").replace("inference.vllm", "inference").replace("tensor_parallel_size = 2", "")


def test_until_0_6_nothing_is_checkpointed_by_default(tmp_path: Path) -> None:
    found = read_toml(tmp_path, OLD.replace("group_size", "rollouts_per_example"))
    job = found.job
    assert (job.gradient_checkpointing, job.compile, job.loss_head) == ("none", False, "log-softmax")
    assert [each.above for each in found.unread] == [True]
    assert decided(found) == {"trainer.model.fused_lm_head_token_chunk_size": "loss"}


@pytest.mark.parametrize(
    ("code", "impl", "head"),
    [
        ("    fused_lm_head_chunk_size: Annotated[\n        int | None,\n        Field(),\n    ] = None", "hf", "auto"),
        ('    fused_lm_head_chunk_size: int | Literal["auto"] = "auto"', "liger_kernel", "log-softmax"),
        ('    fused_lm_head_token_chunk_size: int | Literal["auto"] = "disabled"', "hf", "log-softmax"),
        ("", "hf", "log-softmax"),
    ],
)
def test_the_code_in_the_project_says_which_head_is_the_default(
    tmp_path: Path, code: str, impl: str, head: str
) -> None:
    (tmp_path / "src/prime_rl/trainer").mkdir(parents=True)
    (tmp_path / "src/prime_rl/trainer/config.py").write_text(f"class ModelConfig:\n{code}\n")
    (tmp_path / "pyproject.toml").touch()
    text = OLD.replace("group_size", "rollouts_per_example")
    found = read_toml(tmp_path, text.replace("[trainer.optim]", f'[trainer.model]\nimpl = "{impl}"\n[trainer.optim]'))
    assert (found.job.loss_head, found.unread) == (head, ())


def test_where_no_word_tells_the_version_the_older_is_a_bound(tmp_path: Path) -> None:
    found = read_toml(tmp_path, OLD.replace("[[orchestrator.env]]", "[[orchestrator.train.env]]"))
    above = ["trainer.model.fused_lm_head_token_chunk_size", "trainer.model.ac"]
    assert [each.key for each in found.unread if each.above] == above


@pytest.mark.parametrize(
    ("text", "old", "new", "key", "value"),
    [
        (RL, "[trainer.optim]", "[trainer.model.ac]\nfreq = 2\n[trainer.optim]", "gradient_checkpointing", "every:2"),
        (RL, "[trainer.optim]", '[trainer.model]\nac = "None"\nac_offloading = "None"\n[trainer.optim]',
         "gradient_checkpointing", "none"),
        (RL, "seq_len = 4096\n", "", "sequence_length", 2048),
        (RL.replace("seq_len = 4096\n", ""), "batch_size = 128", "seq_len = 8192", "sequence_length", 8192),
        (RL, "[trainer.optim]", "[trainer.model]\noptimization_dtype = 'bfloat16'\n[trainer.optim]",
         "precision", "bf16"),
        (RL, "[trainer.optim]", "[trainer.model]\nseq_len = 1024\n[trainer.optim]", "sequence_length", 1024),
        (RL, "num_train_gpus = 2", 'type = "multi_node"\nnum_train_nodes = 2\nnum_infer_nodes = 1', "num_gpus", 16),
        (RL, "[trainer.optim]", '[trainer.optim]\ntype = "muon"', "optimizer", "muon"),
        (SFT, "", "", "method", "sft"),
        (SFT, "", "", "gradient_accumulation_steps", 4),
        (SFT, "", "", "num_gpus", 4),
        (SFT, "max_steps = 10", 'loss_impl = "liger_fused"', "loss_head", "fused"),
    ],
)  # fmt: skip
def test_one_key(tmp_path: Path, text: str, old: str, new: str, key: str, value: Any) -> None:
    assert old in text
    assert getattr(read_toml(tmp_path, text.replace(old, new, 1)).job, key) == value


def test_adapters_on_every_linear(tmp_path: Path) -> None:
    lora = read_toml(tmp_path, RL.replace("[trainer.optim]", "[trainer.model.lora]\n[trainer.optim]")).job.lora
    assert (lora.r, lora.targets) == (16, "all-linear")
    older = "[trainer.model.lora]\nenabled = true\ntarget_modules = ['.*\\.q_proj$', 'v_proj']\n[trainer.optim]"
    lora = read_toml(tmp_path, RL.replace("[trainer.optim]", older)).job.lora
    assert (lora.targets, lora.modules_to_save) == (("q_proj", "v_proj"), ("embed_tokens", "lm_head"))


@pytest.mark.parametrize(
    ("key", "decides"),
    [("[trainer.model.vlm]\nx = 1", "lengths"), ('[trainer.model.quantization]\ntype = "fp8"', "precision"),
     ("[trainer.model]\ndp_replicate = 2", "parallelism"), ("[trainer.model.lora]\ntrain_lm_head = true", "adapters")],
)  # fmt: skip
def test_what_is_not_counted_is_unclear(tmp_path: Path, key: str, decides: str) -> None:
    found = read_toml(tmp_path, RL.replace("[trainer.optim]", f"{key}\n[trainer.optim]"))
    assert decides in {each.decides for each in found.unread if not each.above}


def test_another_part_alone_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "orch.toml"
    path.write_text('batch_size = 128\ngroup_size = 16\n[model]\nname = "Qwen/Qwen3-0.6B"\n[train.sampling]\nx = 1\n')
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == "skipped"


def test_a_trainers_own_file_asks_on_how_many_gpus(tmp_path: Path) -> None:
    found = read_toml(tmp_path, '[model]\nname = "Qwen/Qwen3-0.6B"\nseq_len = 512\n[optim]\nlr = 1e-6\n')
    assert "num_gpus" in {each.asks for each in found.unread}


ALONE = '[model]\nname = "Qwen/Qwen3-0.6B"\n[optim]\nlr = 1e-6\n'


def test_a_trainers_own_file_asks_how_long_the_rows_are(tmp_path: Path) -> None:
    found = read_toml(tmp_path, ALONE, num_gpus=8)
    assert {each.asks for each in found.unread if not each.above} == {"sequence_length"}
    told = read_toml(tmp_path, ALONE, num_gpus=8, sequence_length=512, loss_head="fused")
    assert [each.above for each in told.unread] == [True]


@pytest.mark.parametrize("name", ["orch.toml", "orchestrator.toml"])
@pytest.mark.parametrize(
    ("packs", "length"),
    [("seq_len = 24576", 24576), ("seq_len = 2048\nmicro_batch_size = 8", 16384), ("max_steps = 1", 2048)],
)
def test_the_orchestrator_beside_a_trainer_says_how_long_the_rows_are(
    tmp_path: Path, name: str, packs: str, length: int
) -> None:
    (tmp_path / name).write_text(f'{packs}\nbatch_size = 128\n[model]\nname = "Qwen/Qwen3-0.6B"\n')
    found = read_toml(tmp_path, ALONE, num_gpus=8)
    assert found.job.sequence_length == length
    assert not [each for each in found.unread if not each.above]


def test_rows_of_several_samples_are_as_long_as_all(tmp_path: Path) -> None:
    old = OLD.replace("seq_len = 4096\n", "").replace("batch_size = 128", "seq_len = 1024\nmicro_batch_size = 4")
    assert read_toml(tmp_path, old).job.sequence_length == 4096


@pytest.mark.parametrize(("name", "above"), [("sign_sgd", True), ("shampoo", False)])
def test_an_optimizer_counted_as_another(tmp_path: Path, name: str, above: bool) -> None:
    found = read_toml(tmp_path, RL.replace("[trainer.optim]", f'[trainer.optim]\ntype = "{name}"'))
    assert [each.above for each in found.unread if each.key == "trainer.optim.type"] == [above]


def test_whole_logits_are_in_fp32_and_named_before_and_after_they_are_divided() -> None:
    """Four of T × V × 4 bytes in the backward of the loss: both of these, and the gradients of both."""
    job = {"model": "qwen3-0.6b", "method": "grpo", "trainer": "prime-rl", "sequence_length": 2048, "batch_size": 1}
    found = estimate(job | {"loss_head": "log-softmax", "gpu": "h100-80gb", "rollout": {"engine": "none"}})
    assert found.per_gpu.by_category["logits"] == pytest.approx(4 * 2048 * 151936 * 4, rel=0.01)


def test_gpus_that_generate_do_not_train(tmp_path: Path) -> None:
    assert read_toml(tmp_path, RL, num_gpus=8).job.num_gpus == 2
    assert read_toml(tmp_path, RL, num_gpus=1).job.num_gpus == 1
    unsaid = RL.replace("num_train_gpus = 2\n", "")
    found = read_toml(tmp_path, unsaid, num_gpus=8)
    assert found.job.num_gpus == 8
    assert any("one trains by default" in line for line in found.warnings)
    assert any("2 of 8 GPUs train" in line for line in read_toml(tmp_path, RL, num_gpus=8).warnings)


def test_commands(tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text(RL)
    (tmp_path / "sft.toml").write_text(SFT)
    script = tmp_path / "run.sh"
    script.write_text("uv run rl @ rl.toml --trainer.model.seq-len 1024 --deployment.num-train-gpus 8\n")
    job = read_target(str(script), {}).job
    assert (job.sequence_length, job.num_gpus) == (1024, 8)
    script.write_text("torchrun --nproc-per-node 2 src/prime_rl/trainer/sft/train.py @ sft.toml\n")
    job = read_target(str(script), {}).job
    assert (job.method, job.num_gpus, job.gradient_accumulation_steps) == ("sft", 2, 8)


def test_files_under_one_another(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(RL)
    found = read_toml(
        tmp_path,
        'toml_files = ["base.toml"]\nseq_len = 512\n[model]\nname = "Qwen/Qwen3-1.7B"\n[orchestrator]\nx = 1\n',
    )
    assert (found.job.sequence_length, str(found.job.model)) == (512, "Qwen/Qwen3-1.7B")


def test_a_file_that_includes_itself_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(MemplanError, match="over one another"):
        read_toml(tmp_path, f'toml_files = ["rl.toml"]\n{RL}')


def test_who_knows_the_version_says_whether_layers_are_checkpointed(tmp_path: Path) -> None:
    text = '[model]\nname = "Qwen/Qwen2.5-0.5B"\nseq_len = 2048\n\n[loss]\ntype = "default"\n'
    asked = read(tmp_path, text, "trainer.toml", num_gpus=8)
    assert [each.asks for each in asked.unread if each.decides] == ["loss_head", "gradient_checkpointing"]
    told = read(tmp_path, text, "trainer.toml", num_gpus=8, gradient_checkpointing="full", loss_head="fused")
    assert not any(each.decides for each in told.unread)


def test_experts_multiply_beside_their_adapters_and_weigh_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each projection's product, its adapter's and their sum are rows of their own: no stack with adapters added."""
    job = {
        "model": "qwen3-30b-a3b",
        "method": "grpo",
        "trainer": "prime-rl",
        "num_gpus": 8,
        "sequence_length": 65536,
        "lora": {"r": 16},
    }
    job |= {"rollout": {"engine": "none"}, "sharding": "fsdp2", "attention": "flash", "gradient_checkpointing": "full"}
    own = estimate(job).per_gpu.allocated_bytes
    monkeypatch.setattr("memplan.engine.micro_step.ORDERED", frozenset())
    assert own - estimate(job).per_gpu.allocated_bytes > 4 * 65536 * 8 * 2048


def test_what_a_layer_recomputes_takes_what_it_takes_uncompiled() -> None:
    job = {"model": "qwen3-0.6b", "method": "grpo", "trainer": "prime-rl", "num_gpus": 2, "sequence_length": 16384}
    job |= {"rollout": {"engine": "none"}, "sharding": "fsdp2"}
    peaks = {
        (on, again): estimate({**job, "compile": on, "gradient_checkpointing": again}).per_gpu.allocated_bytes
        for on in (True, False)
        for again in ("full", "none")
    }
    assert peaks[True, "full"] == peaks[False, "full"]
    assert peaks[True, "none"] < peaks[False, "none"]


def test_a_row_is_as_long_as_the_trainer_packs_it_whatever_the_engine_bounds(tmp_path: Path) -> None:
    job = read_toml(tmp_path, f"{RL}max_model_len = 2048\n").job
    assert (job.sequence_length, job.token_budget) == (2048, 4096)


@pytest.mark.slow
def test_what_is_counted_from_above_is_told_what_makes_it_fit(tmp_path: Path) -> None:
    (tmp_path / "rl.toml").write_text(RL.replace("lr = 3e-6", 'type = "sign_sgd"').replace("-0.6B", "-4B"))
    found = check_file(str(tmp_path / "rl.toml"), {"gpu": "32GB", "num_gpus": 2})
    assert (found.fits, bool(found.remedy)) == ("unclear", True), found.text
    report = estimate(read_target(str(tmp_path / "rl.toml"), {"gpu": "32GB", "num_gpus": 2}))
    assert "Counted from above it fits with, cheapest first:" in plain([*verdict_blocks(report, 100)], 100)


def test_longer_rows_of_validation_and_more_copies_in_flight_are_told(tmp_path: Path) -> None:
    held = "[val.data]\nseq_len = {}\nmicro_batch_size = 2\n"
    rows = "trainer.val.data.seq_len"
    assert rows not in decided(read(tmp_path, SFT + held.format(4096), name="sft.toml"))
    assert decided(read(tmp_path, SFT + held.format(8192), name="sft.toml"))[rows] == "lengths"
    key = "trainer.model.ac_offloading.max_inflight_activations"
    several = SFT.replace("[data]", "[model.ac_offloading]\nmax_inflight_activations = {}\n[data]")
    assert key not in decided(read(tmp_path, several.format(5), name="sft.toml"))
    assert decided(read(tmp_path, several.format(20), name="sft.toml"))[key] == "activations"


def test_a_micro_batch_of_nothing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "sft.toml"
    path.write_text(SFT.replace("micro_batch_size = 2", "micro_batch_size = 0"), encoding="utf-8")
    found = check_file(str(path), {"gpu": "80GB"})
    assert (found.fits, "micro_batch_size: '0' is too small" in found.text) == ("error", True), found.text


@pytest.mark.parametrize(
    ("said", "gpus"), [("num_gpus = 2", 2), ('type = "multi_node"\nnum_nodes = 3\ngpus_per_node = 4', 12)]
)
def test_supervised_training_says_its_gpus(tmp_path: Path, said: str, gpus: int) -> None:
    """configs/sft.py: SingleNodeDeploymentConfig, MultiNodeDeploymentConfig."""
    text = SFT.replace("num_train_gpus = 4", said)
    assert read_toml(tmp_path, text).job.num_gpus == gpus
    other = read_toml(tmp_path, text, num_gpus="8")
    assert other.job.num_gpus == 8
    assert any(f"runs on {gpus} GPUs: 8 are counted" in each for each in other.warnings)
