"""Proves the callback in real, tiny runs: it reads the run right, stops what will not fit, and writes what it saw."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_pairs import tiny_llama
from transformers import Trainer, TrainingArguments

import memplan
from memplan.callback import MemoryCallback, WillNotFit
from memplan.callback.live import job_of
from memplan.errors import InvalidJob, UsageError
from memplan.truth import read_sets

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries that train here, not of memplan


class Rows:
    """Eight sequences of 16 tokens."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(16) + index) % 61
        return {"input_ids": ids, "labels": ids}


def arguments(folder: Path, **settings: Any) -> TrainingArguments:
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2} | settings
    return TrainingArguments(
        str(folder / "out"), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, **settings
    )


def train(folder: Path, callback: MemoryCallback, model: Any = None, **settings: Any) -> Trainer:
    model = model if model is not None else tiny_llama(torch.float32)
    trainer = Trainer(model, arguments(folder, **settings), train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    return trainer


def test_a_run_of_two_steps_is_estimated_and_written_down(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "deep" / "measurement.json"
    callback = MemoryCallback(sequence_length=16, gpu="24GB", file=file, after_steps=2, log=said.append)
    trainer = train(tmp_path, callback)
    assert trainer.state.global_step == 2
    written = json.loads(file.read_text(encoding="utf-8"))
    job = written["job"]
    assert (job["method"], job["trainer"], job["precision"]) == ("sft", "transformers", "fp32")
    assert (job["batch_size"], job["gradient_accumulation_steps"], job["sequence_length"]) == (2, 2, 16)
    assert (job["optimizer"], job["optimizer_impl"], job["attention"]) == ("adamw", "fused", "sdpa")
    assert callback.report is not None
    assert callback.report.model.params.total == sum(weight.numel() for weight in trainer.model.parameters())
    assert written["estimated"]["allocated_bytes"] == callback.report.per_gpu.allocated_bytes > 0
    assert set(written["estimated"]["device_bytes"]) == {"low", "expected", "high"}
    assert written["steps"] == 2
    assert written["versions"]["torch"] == torch.__version__
    assert (written["source"].split(",")[0], written["schema_version"]) == (f"memplan {memplan.__version__}", 1)
    if not torch.cuda.is_available():
        assert written["measured"] == {}
        assert written["hardware"] == {"device": "cpu"}
        assert said[-1] == "memplan: nothing measured: this process has no CUDA device"
    assert "fits 24GB" in said[1]
    assert said[1].endswith(": yes")


def test_the_written_file_is_a_row_of_truth(tmp_path: Path) -> None:
    callback = MemoryCallback(sequence_length=16, file=tmp_path / "m.json", log=lambda line: None)
    train(tmp_path, callback)
    (found,) = read_sets([tmp_path / "m.json"])
    assert [row.job["batch_size"] for row in found.rows] == [2]
    written = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    again = memplan.estimate({key: value for key, value in written["job"].items() if value is not None})
    assert again.per_gpu.allocated_bytes == written["estimated"]["allocated_bytes"]


def test_a_run_that_will_not_fit_is_stopped_before_its_first_step(tmp_path: Path) -> None:
    callback = MemoryCallback(sequence_length=4_000_000, gpu="1GiB", file=tmp_path / "m.json", log=lambda line: None)
    seen: list[Any] = []
    model = tiny_llama(torch.float32)
    model.register_forward_pre_hook(lambda *_: seen.append(1))
    with pytest.raises(WillNotFit, match="this run will not fit 1GiB") as raised:
        train(tmp_path, callback, model)
    assert raised.value.exit_code == 1
    assert raised.value.hint
    assert not seen
    assert not (tmp_path / "m.json").exists()


def test_on_request_it_only_warns(tmp_path: Path) -> None:
    said: list[str] = []
    settings: dict[str, Any] = {"sequence_length": 4_000_000, "gpu": "1GiB", "file": None}
    trainer = train(tmp_path, MemoryCallback(on_no="warn", log=said.append, **settings))
    assert trainer.state.global_step == 2
    assert any("will not fit 1GiB" in line for line in said)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("given", "reason"),
    [({}, "sequence_length: the training arguments name none"), ({"sequence_length": 16, "method": "ppo"}, "ppo")],
)
def test_what_cannot_be_estimated_is_trained_all_the_same(tmp_path: Path, given: Any, reason: str) -> None:
    said: list[str] = []
    trainer = train(tmp_path, MemoryCallback(file=tmp_path / "m.json", log=said.append, **given))
    assert trainer.state.global_step == 2
    assert said[0].startswith("memplan: no estimate: ")
    assert reason in said[0]
    assert json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))["estimated"] is None


def test_measured_stands_beside_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a card's meters in place of a card."""
    meters = {"allocated_bytes": 1 << 20, "reserved_bytes": 1 << 21, "device_bytes": 1 << 29}
    monkeypatch.setattr("memplan.callback.meters.measure", lambda: meters)
    said: list[str] = []
    train(tmp_path, MemoryCallback(sequence_length=16, file=tmp_path / "m.json", log=said.append, gpu="24GB"))
    assert json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))["measured"] == meters
    assert [line.split()[1] for line in said[-3:]] == ["allocated", "reserved", "device"]
    assert "measured 1.00 MiB" in said[-3]


def job(tmp_path: Path, model: Any, **settings: Any) -> dict[str, Any]:
    return job_of(model, arguments(tmp_path, **settings), {"sequence_length": 16})


def test_lora_is_read_from_the_live_model(tmp_path: Path) -> None:
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.1, use_rslora=True)
    model = get_peft_model(tiny_llama(torch.bfloat16), config)
    read = job(tmp_path, model, bf16=True)
    targets = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    expected = {"r": 4, "alpha": 8, "targets": targets, "dropout": 0.1, "dtype": "fp32", "rslora": True, "bias": "none"}
    assert read["lora"] == expected
    assert (read["precision"], read["autocast"]) == ("bf16", True)
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert memplan.estimate(read).model.params.trainable == trainable


QV = ["q_proj", "v_proj"]
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"target_modules": ["q_proj", "lm_head", "embed_tokens"]}, {"targets": ["embed_tokens", "lm_head", "q_proj"]}),
    ({"target_modules": QV, "layers_to_transform": [1]}, {"layers_to_transform": [1]}),
    ({"target_modules": r".*\.0\..*(q|v)_proj"}, {"layers_to_transform": [0], "targets": QV}),
    ({"target_modules": QV, "rank_pattern": {"self_attn.q_proj": 8}}, {"rank_pattern": {"q_proj": 8}}),
    ({"target_modules": QV, "trainable_token_indices": [3, 7]}, {"trainable_token_indices": {"embed_tokens": 2}}),
    ({"target_modules": QV, "lora_bias": True, "modules_to_save": ["lm_head"]}, {"modules_to_save": ["lm_head"]}),
    ({"target_modules": "all-linear", "exclude_modules": ["q_proj"], "init_lora_weights": "pissa"}, {"r": 4}),
]


@pytest.mark.parametrize(("settings", "expected"), SETTINGS, ids=[str(row[1]) for row in SETTINGS])
def test_every_setting_of_peft_that_trains_is_read(
    settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    model = get_peft_model(tiny_llama(torch.float32), LoraConfig(r=4, **settings))
    read = job(tmp_path, model)
    assert read["lora"] | expected == read["lora"]
    trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    assert memplan.estimate(read).model.params.trainable == trainable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": r".*(0.self_attn.q_proj|1.mlp.down_proj)"}, "adapted in different layers"),
        ({"target_modules": QV, "rank_pattern": {r".*\.0\..*q_proj": 2}}, "q_proj with ranks 2, 4"),
        ({"target_modules": QV, "layer_replication": [(0, 2), (0, 2)]}, "layer_replication of PEFT"),
        ({"target_modules": QV, "alora_invocation_tokens": [1]}, "alora_invocation_tokens of PEFT"),
        ({"target_modules": ["lm_head"], "ensure_weight_tying": True}, "ensure_weight_tying of PEFT"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_settings_of_peft_that_are_not_modelled_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = get_peft_model(tiny_llama(torch.float32), LoraConfig(r=4, **settings))
    with pytest.raises(InvalidJob, match=message):
        job(tmp_path, model)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"bf16": True}, {"precision": "bf16-amp"}),
        ({"optim": "sgd"}, {"optimizer": "sgd"}),
        ({"optim": "sgd", "optim_args": "momentum=0.9"}, {"optimizer": "sgd-momentum"}),
        ({"optim": "adamw_torch"}, {"optimizer": "adamw", "optimizer_impl": "foreach"}),
        ({"optim": "adafactor"}, {"optimizer": "adafactor"}),
        ({}, {"gradient_checkpointing": "none", "num_gpus": 1, "sharding": "none"}),
    ],
)
def test_training_arguments_become_keys(tmp_path: Path, settings: Any, expected: dict[str, Any]) -> None:
    read = job(tmp_path, tiny_llama(torch.float32), **settings)
    assert {key: read[key] for key in expected} == expected
    memplan.estimate(read)


def test_checkpointing_under_either_name(tmp_path: Path) -> None:
    args, model = arguments(tmp_path), tiny_llama(torch.float32)
    args.gradient_checkpointing = args.activation_checkpointing = True
    args.gradient_checkpointing_kwargs = {"use_reentrant": True}
    read = job_of(model, args, {"sequence_length": 16})
    assert read["gradient_checkpointing"] == "full"
    assert read["gradient_checkpointing_reentrant"] is True


@pytest.mark.parametrize(
    ("settings", "message"), [({"on_no": "shout"}, "on_no: unknown value 'shout'"), ({"after_steps": 1}, "after_steps")]
)
def test_settings_that_cannot_be(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MemoryCallback(**settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"beta": 0.0}, {"reference": "none", "completion_length": 8}),
        ({"beta": 0.04, "entropy_coef": 0.01}, {"reference": "resident", "entropy": "loss"}),
        ({"beta": 0.0, "max_prompt_length": 24}, {"sequence_length": 32, "completion_length": 8}),
    ],
)
def test_an_update_after_a_rollout_is_read_from_its_arguments(
    tmp_path: Path, settings: dict[str, Any], said: dict[str, Any]
) -> None:
    class GRPOConfig(TrainingArguments):  # type: ignore[misc]
        """TRL's by name."""

    args = arguments(tmp_path)
    args.__class__ = GRPOConfig
    for name, value in {"max_completion_length": 8, **settings}.items():
        setattr(args, name, value)
    given = {} if "sequence_length" in said else {"sequence_length": 16}
    job = job_of(tiny_llama(torch.float32), args, given)
    assert {key: job[key] for key in said} == said
    assert (job["method"], job["trainer"]) == ("grpo", "trl")
    assert memplan.estimate(job).per_gpu.allocated_bytes > 0
