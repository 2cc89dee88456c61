"""Proves that emitted files load in the real parsers (TRL, transformers, accelerate, DeepSpeed) and say the same;
that memplan knows their arguments and defaults; and that a tiny model trains from emitted files.

Needs the extra ``frameworks``; each library's tests are left out where it is missing.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from memplan.frameworks.emit.writing import emit, write_files
from memplan.frameworks.hugging_face.arguments import DEFAULTS, FIELDS
from memplan.frameworks.registry import find_framework
from memplan.frameworks.trl.keys import HARMLESS, METHODS, MODEL, TRAINER
from memplan.frameworks.trl.methods import defaults_of
from memplan.spec.reading import read_job

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries, not of memplan
JOB = {"model": "smollm2-135m", "trainer": "trl", "method": "dpo", "batch_size": 2, "sequence_length": 64}
TRL_JOBS: list[dict[str, Any]] = [
    {"method": "sft"},
    {"method": "reward"},
    {"method": "dpo", "lora": {"r": 4, "targets": ["q_proj", "v_proj"]}, "precision": "bf16"},
    {"method": "kto", "optimizer": "adafactor"},
    {"method": "grpo", "rollout": {"group_size": 2}, "reference": "resident"},
    {"method": "rloo", "gradient_checkpointing": "full"},
    {"method": "simpo", "kernels": "liger"},
    {"method": "orpo", "attention": "eager"},
    {"method": "ipo", "reference": "precomputed"},
]


def emitted(folder: Path, framework: str, **keys: Any) -> Path:
    """The folder with the files of a job."""
    job = {key: value for key, value in {**JOB, **keys}.items() if value is not None}
    write_files(emit(read_job(job), find_framework(framework)).texts, str(folder), True)
    return folder


def config_of(method: str) -> Any:
    """TRL's class of arguments for a method."""
    import trl

    name = {"ipo": "dpo", "simpo": "cpo"}.get(method, method)
    if name in ("cpo", "orpo"):
        from importlib import import_module

        return getattr(import_module(f"trl.experimental.{name}"), f"{name.upper()}Config")
    return getattr(trl, {"reward": "RewardConfig"}.get(name, f"{name.upper()}Config"))


@pytest.mark.parametrize("keys", TRL_JOBS, ids=lambda keys: keys["method"])
def test_trl_parses_what_is_emitted(keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    folder = emitted(tmp_path, "trl", **keys)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "1")
    text = (folder / "train.yaml").read_text().replace("bf16: true", "bf16: false")  # no GPU here
    (folder / "train.yaml").write_text(text)
    parser = trl.TrlParser((trl.ScriptArguments, config_of(keys["method"]), trl.ModelConfig))
    script, training, model = parser.parse_args_and_config(
        ["--config", str(folder / "train.yaml"), "--use_cpu"], fail_with_unknown_args=True
    )
    assert script.dataset_name == "DATASET"
    assert model.model_name_or_path == "HuggingFaceTB/SmolLM2-135M"
    assert training.per_device_train_batch_size == 2
    assert model.use_peft == bool(keys.get("lora"))
    assert training.gradient_checkpointing is True, "TRL's default, which a job of TRL's has too"


def test_memplan_s_defaults_are_trl_s() -> None:
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    if tuple(int(part) for part in trl.__version__.split(".")[:2]) < (1, 16):
        pytest.skip("the newest era's defaults")
    for method in ("sft", "dpo", "kto", "reward", "grpo", "rloo", "cpo", "orpo"):
        fields = {row.name: row for row in dataclasses.fields(config_of(method))}
        fields |= {row.name: row for row in dataclasses.fields(trl.ModelConfig)}
        for key, value in defaults_of(method, "").items():
            own = ("optim", "per_device_train_batch_size", "loss_type", "lora_target_modules")  # the last is PEFT's
            if key in own or key not in fields:
                continue
            if key == "dtype" and method in ("cpo", "orpo"):  # their scripts load without ModelConfig's
                continue
            made = fields[key]
            assert made.default == value, f"{method}: {key}"


def test_every_argument_of_trl_and_transformers_is_known() -> None:
    """A new argument is looked at: it bears on memory, or it is harmless."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    classes = [config_of(method) for method in ("sft", "dpo", "kto", "reward", "grpo", "rloo", "cpo", "orpo")]
    names = {row.name for made in (*classes, trl.ModelConfig, trl.ScriptArguments) for row in dataclasses.fields(made)}
    taken = {key for row in METHODS.values() for key in row} | set(MODEL) | set(TRAINER) | set(DEFAULTS)
    reader = Path(__file__).resolve().parents[2] / "memplan" / "frameworks" / "trl"
    code, tables = (
        "".join(path.read_text(encoding="utf-8") for path in reader.glob(f"*.{end}")) for end in ("py", "txt")
    )
    listed = {*tables.replace(":", " ").split()}
    unknown = {name for name in names - FIELDS - HARMLESS - taken - listed if f'"{name}"' not in code}
    assert not unknown


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_gpus": 4, "sharding": "ddp"},
        {"num_gpus": 8, "sharding": "zero3"},
        {"num_gpus": 16, "sharding": "fsdp2", "reshard_after_forward": False},
        {"num_gpus": 16, "sharding": "fsdp2", "context_parallel": 4, "fsdp": {"replicate": 2}, "method": "sft"},
        {"num_gpus": 2, "sharding": "fsdp", "fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}},
    ],
    ids=lambda keys: keys.get("sharding", "one"),
)
def test_accelerate_loads_what_is_emitted(keys: dict[str, Any], tmp_path: Path) -> None:
    config_args = pytest.importorskip("accelerate.commands.config.config_args", reason="accelerate is not installed")
    folder = emitted(tmp_path, "accelerate", **keys)
    found = config_args.load_config_from_file(str(folder / "accelerate.yaml"))
    assert found.num_processes == keys.get("num_gpus", 1)
    kind = {"ddp": "MULTI_GPU", "zero3": "DEEPSPEED", "fsdp2": "FSDP", "fsdp": "FSDP"}
    assert found.distributed_type.value == kind.get(keys.get("sharding", ""), "NO")
    if "fsdp" in keys.get("sharding", ""):
        assert found.fsdp_config["fsdp_version"] == (2 if keys["sharding"] == "fsdp2" else 1)
    sizes = found.parallelism_config or {}
    assert sizes.get("parallelism_config_cp_size", 1) == keys.get("context_parallel", 1)
    assert not sizes or math.prod(sizes.values()) == keys["num_gpus"]


def test_deepspeed_loads_what_is_emitted(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    paths = [
        emitted(tmp_path / str(stage), "deepspeed", zero_stage=stage, gradient_accumulation_steps=4) / "deepspeed.json"
        for stage in range(4)
    ]
    program = (
        "import json, sys\n"
        "from deepspeed.runtime.config import DeepSpeedConfig\n"
        "for path in sys.argv[1:]:\n"
        "    found = DeepSpeedConfig(path)\n"
        "    print('FOUND', json.dumps([found.zero_config.stage, found.train_micro_batch_size_per_gpu,"
        " found.gradient_accumulation_steps, bool(found.bfloat16_config.enabled),"
        " found.zero_config.reduce_bucket_size]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, paths)],
        capture_output=True, text=True, check=False, env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )  # fmt: skip
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert [row[:4] for row in found] == [[stage, 2, 4, True] for stage in range(4)], done.stderr[-2000:]
    assert {row[4] for row in found[1:]} == {576 * 576}


def test_transformers_parses_what_is_emitted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = emitted(tmp_path, "transformers", trainer="transformers", method="sft", gradient_accumulation_steps=3)
    text = (folder / "training_args.yaml").read_text().replace("bf16: true", "bf16: false")
    (folder / "training_args.yaml").write_text(text + "use_cpu: true\n")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (found,) = parser.parse_yaml_file(str(folder / "training_args.yaml"))
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (2, 3)
    assert found.optim == "adamw_torch_fused"


def test_every_argument_of_transformers_is_known() -> None:
    transformers = pytest.importorskip("transformers")
    assert {row.name for row in dataclasses.fields(transformers.TrainingArguments)} <= FIELDS


def test_a_tiny_model_trains_from_emitted_files(tmp_path: Path) -> None:
    """Two steps on the CPU through accelerate's launcher and TRL's own script, from the files as they are but for the
    placeholders, bf16 and the device.
    """
    pytest.importorskip("trl", reason="TRL is not installed")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    model = tmp_path / "tiny"
    config = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    made = transformers.LlamaConfig(**config, intermediate_size=64, vocab_size=64, bos_token_id=1, eos_token_id=2)
    transformers.LlamaForCausalLM(made).save_pretrained(model)
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **{f"w{n}": n for n in range(4, 64)}}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(model)
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"prompt": "w4 w5", "chosen": f" w{n} w9", "rejected": f" w{n} w8"} for n in range(10, 26)]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = emitted(tmp_path / "run", "trl", model=str(model), gradient_accumulation_steps=2)
    file = folder / "train.yaml"
    text = file.read_text().replace("dataset_name: DATASET", f"dataset_name: {data}").replace("OUTPUT", "out")
    text = text.replace("bf16: true", "bf16: false").replace("adamw_torch_fused", "adamw_torch")
    file.write_text(text + "use_cpu: true\nmax_steps: 2\nreport_to: none\n")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", "--config_file", "accelerate.yaml", "--cpu",
         "--mixed_precision", "no", "-m", "trl.scripts.dpo", "--config", "train.yaml"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "out" / "model.safetensors").exists()
