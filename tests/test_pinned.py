"""Versions that a project pins decide the defaults of what its files leave out."""

import json
from pathlib import Path

import pytest

from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.project.pinned import pinned, pins_of
from memplan.tables.trainers import find_trainer

PROGRAM = """\
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=512, bf16=True)).train()
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pins_of.cache_clear()


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("requirements.txt", "torch==2.4\ntrl[peft]==0.11.4\n", "0.11.4"),
        ("requirements-train.txt", "trl ~= 0.12.1  # as tried\n", "0.12.1"),
        ("requirements.txt", "trl>=0.8.6,<=0.9.6\n", "0.9.6"),
        ("requirements.txt", "trl>=0.12\n", ""),
        ("requirements.txt", "trl>=0.15.0,<0.16.0\n", "0.15"),
        ("pyproject.toml", '[project]\ndependencies = ["trl>=0.9,<1.0"]\n', "0.29"),
        ("requirements.txt", "# trl==0.9\ntrl-extras==0.1\n", ""),
        ("pyproject.toml", '[project]\ndependencies = [\n  "torch",\n  "trl==0.15.2",\n]\n', "0.15.2"),
        ("pyproject.toml", '[project]\ndependencies = [\n  "trl (==0.15.0)",\n]\n', "0.15.0"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = "~0.8.6"\ntransformers = "^4.40"\n', "0.8.6"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntrl = { version = "0.8.6", extras = ["peft"] }\n', "0.8.6"),
        ("setup.py", "setup(install_requires=['torch', 'trl==0.7.4', 'peft'])\n", "0.7.4"),
        ("environment.yml", "dependencies:\n  - pip:\n    - trl==0.13.0\n", "0.13.0"),
        ("job.sh", "module load cuda\npip install torch \\\n  trl==0.9.4\n", "0.9.4"),
        ("README.md", "`pip install trl==0.8.6`\nor trl==0.1\n", "0.8.6"),
        ("run.sh", "# trl==0.9.4 is what we had\npython train.py\n", ""),
        ("uv.lock", '[[package]]\nname = "trl"\nversion = "0.16.1"\nsource = { registry = "x" }\n', "0.16.1"),
    ],
)
def test_a_version_is_read_where_it_is_named(name: str, text: str, version: str) -> None:
    Path(name).write_text(text)
    assert pinned("train.py", "trl") == ((version, name) if version else ("", ""))
    assert pinned("train.py", "transformers") == ("", "")


@pytest.mark.parametrize(("beneath", "last"), [("4.48.3", "0.17"), ("4.54", "0.20"), ("4.57.3", ""), ("4.38", "0.11")])
def test_transformers_says_which_trl_installs_with_it(beneath: str, last: str) -> None:
    """In UTF-16 with carriage returns, as PowerShell writes what ``pip freeze`` prints."""
    Path("requirements.txt").write_text(f"peft==0.15\r\ntransformers=={beneath}\r\n", encoding="utf-16", newline="")
    said = f"requirements.txt (transformers {beneath})"
    assert pinned("train.py", "trl") == ((last, said) if last else ("", ""))
    assert pinned("train.py", "transformers") == (beneath, "requirements.txt")


def test_pins_of_another_device_are_none() -> None:
    """LLaMA-Factory's setup.py has them as an extra, in each of its forks."""
    Path("setup.py").write_text(
        'extra = {"torch": ["torch>=1.13.1"], "torch-npu": ["torch==2.1.0", "torch-npu==2.1.0"]}\n'
    )
    Path("requirements_npu.txt").write_text("torch==2.1.0\n")
    assert pinned("train.yaml", "torch") == ("", "")


def test_the_nearest_file_pins_and_a_lock_is_stronger_and_of_lists_the_oldest() -> None:
    Path("sft").mkdir()
    Path("README.md").write_text("")
    Path("requirements.txt").write_text("trl==0.9.6\n")
    assert pinned("sft/train.py", "trl")[0] == "0.9.6"
    Path("sft/requirements-a.txt").write_text("trl==0.29\n")
    Path("sft/requirements-b.txt").write_text("trl==0.18\n")
    pins_of.cache_clear()
    assert pinned("sft/train.py", "trl") == ("0.18", "sft/requirements-b.txt, the oldest of several lists,")
    Path("sft/poetry.lock").write_text('[[package]]\nname = "trl"\nversion = "0.20.0"\n')
    pins_of.cache_clear()
    assert pinned("sft/train.py", "trl")[0] == "0.20.0"


@pytest.mark.parametrize(
    ("pins", "checkpointing", "precision", "named"),
    [
        ("", "full", "bf16", ""),
        ("trl==0.21.0\ntransformers==4.53\n", "none", "bf16-amp", "requirements.txt pins trl 0.21.0"),
        ("trl==0.24.0\ntransformers==4.56\n", "full", "bf16-amp", "requirements.txt pins trl 0.24.0"),
    ],
)
def test_a_programs_defaults_are_those_of_the_version_that_its_project_pins(
    pins: str, checkpointing: str, precision: str, named: str
) -> None:
    Path("requirements.txt").write_text(pins)
    Path("train.py").write_text(PROGRAM)
    found = check_file("train.py", {"gpu": "80GB"})
    assert found.fits == "yes", found.text
    assert (found.job["gradient_checkpointing"], found.job["precision"]) == (checkpointing, precision)
    assert found.job.get("trainer_version", "") == named.rpartition(" ")[2]


def test_a_copy_in_the_project_is_of_its_own_version() -> None:
    Path("requirements.txt").write_text("trl==0.15.0\n")
    for init, version, said in (
        ('__version__ = "0.19.1"\n', "", "0.19.1"),
        ("f.read('VERSION')\n", "0.22.0\n", "0.22.0"),
    ):
        for root in (Path(), Path("trl")):
            (root / "trl").mkdir(parents=True, exist_ok=True)
            (root / "trl" / "__init__.py").write_text(init)
            (root / "VERSION").write_text(version or "9.9")
            pins_of.cache_clear()
            assert pinned("train.py", "trl")[0] == said
            (root / "trl" / "__init__.py").unlink()
            (root / "VERSION").unlink()


def test_a_pin_is_stronger_than_an_argument_that_is_still_taken() -> None:
    Path("train.py").write_text(PROGRAM.replace('B")', 'B", torch_dtype="bfloat16")'))
    assert check_file("train.py", {"gpu": "80GB"}).framework == "TRL 0.22"
    Path("requirements.txt").write_text("trl==0.27.0\nbitsandbytes<1.0\n")
    pins_of.cache_clear()
    assert check_file("train.py", {"gpu": "80GB"}).framework == "TRL 0.27.0"
    assert pinned("train.py", "bitsandbytes")[0] == "0.99"


def test_a_lower_bound_says_which_version_it_is_not() -> None:
    Path("requirements.txt").write_text("transformers>=4.43.0\n")
    assert pinned("train.sh", "transformers>=") == ("4.43.0", "requirements.txt")
    command = "deepspeed llava/train/train_mem.py --vision_tower openai/clip-vit-large-patch14-336 --bf16 True "
    command += "--model_name_or_path lmsys/vicuna-7b-v1.5 --mm_projector_type mlp2x_gelu --model_max_length 2048 "
    command += "--per_device_train_batch_size 1 "
    Path("train.sh").write_text(f"{command} --evaluation_strategy no --output_dir x\n")
    options = {"gpu": "80GB", "num_gpus": 8, "zero_stage": 3}
    assert check_file("train.sh", options).framework == "transformers 4.45"
    Path("requirements.txt").unlink()
    pins_of.cache_clear()
    assert check_file("train.sh", options).framework == "transformers 4.37.2"


def test_arguments_of_a_command_are_read_in_the_version_that_is_pinned() -> None:
    Path("requirements.txt").write_text("trl==0.21.0\n")
    Path("run.sh").write_text("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512 --bf16\n")
    found = check_file("run.sh", {"gpu": "80GB", "num_gpus": 1})
    assert (found.framework, found.job["gradient_checkpointing"]) == ("TRL 0.21.0", "none"), found.text


FOUR_BIT = """\
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer
kind = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", quantization_config=kind)
lora = LoraConfig(r=8, target_modules=["q_proj"])
SFTTrainer(model=model, peft_config=lora, args=SFTConfig(per_device_train_batch_size=2, max_length=512, bf16=True))
"""


@pytest.mark.parametrize(
    ("pins", "version", "unclear"),
    [
        ("trl==0.9.4\nbitsandbytes==0.42\n", "0.9.4", False),
        ("trl==0.9.4\nbitsandbytes==0.45.0\n", "0.10", False),
        ("trl==0.11.4\nbitsandbytes==0.41.3\n", "0.7", False),
        ("trl==0.17.0\nbitsandbytes==0.45.0\n", "0.17.0", False),
        ("trl==0.17.0\nbitsandbytes==0.41.3\n", "0.17.0", True),
    ],
)
def test_an_older_or_newer_bitsandbytes_decides_what_products_keep(pins: str, version: str, unclear: bool) -> None:
    Path("requirements.txt").write_text(pins)
    Path("train.py").write_text(FOUR_BIT)
    found = check_file("train.py", {"gpu": "80GB", "num_gpus": 1})
    assert (found.job["trainer_version"], "bitsandbytes" in found.text) == (version, unclear), found.text


@pytest.mark.parametrize(
    ("pins", "version", "precision"),
    [
        ("transformers>=4.41.2,<=4.45.0\n", "0.8", "bf16-amp"),
        ("transformers>=4.45.0,<=4.52.4,!=4.46.*\n", "0.9.3", "bf16"),
        ("llamafactory[metrics]==0.9.2\ntransformers==4.57.1\n", "0.9.2", "bf16-amp"),
        ("transformers==4.57.1\n", "0.9.4", "bf16"),
        ("transformers==5.2\n", "0.9.5", "bf16"),
    ],
)
def test_llamafactory_is_of_the_version_that_goes_with_what_is_pinned(pins: str, version: str, precision: str) -> None:
    """Before 0.9.3 its weights are in fp32 under FSDP (model/patcher.py: is_fsdp_enabled)."""
    Path("requirements.txt").write_text(pins)
    keys = {"stage": "sft", "do_train": True, "finetuning_type": "lora", "template": "qwen", "bf16": True}
    keys |= {"model_name_or_path": "Qwen/Qwen2.5-7B", "cutoff_len": 1024, "per_device_train_batch_size": 1}
    Path("sft.json").write_text(json.dumps(keys))
    found = check_file("sft.json", {"gpu": "80GB", "num_gpus": 8, "sharding": "fsdp"})
    assert (found.job["trainer_version"], found.job["precision"]) == (version, precision)


def test_llamafactory_beside_old_transformers_repeats_keys_for_flash_attention() -> None:
    """transformers 4.45 models/mistral/modeling_mistral.py: MistralFlashAttention2 calls repeat_kv."""
    old, new = (find_trainer("llamafactory", version).models.repeats_flash for version in ("0.8.3", "0.9.3"))
    assert "mistral" in old
    assert not new


@pytest.mark.parametrize(("more", "version"), [("", "0.28"), ("vllm_max_model_len: 1024\n", "0.17")])
def test_a_sign_that_is_older_than_the_method_is_the_programs_own(more: str, version: str) -> None:
    lines = "model_name_or_path: Qwen/Qwen2.5-0.5B\nnum_generations: 8\nmax_prompt_length: 256\nbeta: 0.04\n"
    lines += "max_completion_length: 256\nper_device_train_batch_size: 8\nevaluation_strategy: 'no'\nbf16: true\n"
    Path("grpo.yaml").write_text(lines + more)
    job = check_file("grpo.yaml", {"gpu": "h100-80gb", "num_gpus": 1}).job
    assert (job["method"], job["batch_size"], job["trainer_version"]) == ("grpo", 8, version)


@pytest.mark.parametrize(
    ("program", "version", "said"),
    [
        ("sft/train/01_sft.py", "0.29", ""),
        ("rl/train/02_grpo.py", "0.18", ""),
        ("run.py", "0.18", "requirements-grpo.txt, the oldest of several lists, pins trl 0.18"),
    ],
)
def test_of_several_lists_the_one_called_as_the_program_is_taken(program: str, version: str, said: str) -> None:
    Path("requirements-grpo.txt").write_text("trl==0.18\n")
    Path("requirements-train.txt").write_text("trl==0.29\n")
    Path("README.md").write_text("")
    Path(program).parent.mkdir(parents=True, exist_ok=True)
    Path(program).write_text(PROGRAM)
    found = check_file(program, {"gpu": "80GB"})
    assert found.job["trainer_version"] == version
    assert [each for each in found.warnings if "pins" in each] == [said] * bool(said)


def test_a_version_of_a_page_is_said() -> None:
    Path("README.md").write_text("`pip install transformers==4.53 trl==0.19`\n")
    Path("train.py").write_text(PROGRAM)
    found = check_file("train.py", {"gpu": "80GB"})
    assert found.job["precision"] == "bf16-amp"
    assert "README.md pins trl 0.19" in found.warnings


ASKING = """\
import inspect
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
kw = {"per_device_train_batch_size": 2}
"""
IF_TAKEN = 'if "evaluation_strategy" in inspect.signature(TrainingArguments).parameters:\n    '
IF_THERE = 'if hasattr(TrainingArguments, "evaluation_strategy"):\n    '
OLD = 'kw["evaluation_strategy"] = "no"\n'
TRAINS = "Trainer(model=model, args=TrainingArguments(**kw), train_dataset=rows).train()\n"
SIFTED = """\
def taken(kind, kw):
    names = inspect.signature(kind.__init__).parameters
    return {key: value for key, value in kw.items() if key in names}
kw["evaluation_strategy"] = "no"
Trainer(model=model, args=TrainingArguments(**taken(TrainingArguments, kw)), train_dataset=rows).train()
"""
ANEW = """\
args = TrainingArguments(**kw)
try:
    trainer = Trainer(model=model, args=args, tokenizer=words)
except TypeError:
    trainer = Trainer(model=model, args=args, processing_class=words)
trainer.train()
"""


@pytest.mark.parametrize(
    ("program", "known"),
    [
        (OLD + TRAINS, True),
        (IF_TAKEN + OLD + TRAINS, False),
        (IF_THERE + OLD + TRAINS, False),
        (SIFTED, False),
        (ANEW, False),
        ("try:\n    x = 1\nexcept TypeError:\n" + "    \n" * 40 + "    pass\n" + OLD + TRAINS, True),
        (IF_TAKEN + OLD + TRAINS.replace("train_", "tokenizer=words, train_"), True),  # which the Trainer is given so
    ],
)
def test_an_argument_that_a_program_asks_its_library_for_tells_no_version(program: str, known: bool) -> None:
    Path("train.py").write_text(ASKING + program)
    found = check_file("train.py", {"gpu": "80GB", "sequence_length": 256})
    assert (found.job["dtype"] == "fp32") is known
    assert any("no dtype" in each for each in found.warnings) is not known


IN_FP32 = """\
import torch
from transformers import AutoModelForCausalLM, Trainer
from elsewhere import arguments
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.float32).to("{device}")
Trainer(model=model, args=arguments(), train_dataset=rows).train()
"""


def test_a_precision_goes_with_the_dtype_that_the_program_names_or_it_is_said() -> None:
    Path("train.py").write_text(IN_FP32.format(device="cuda"))
    asked = {"gpu": "80GB", "sequence_length": 256, "batch_size": 1, "gradient_checkpointing": "full"}
    asked["optimizer"] = "adamw"
    assert check_file("train.py", asked).hint.startswith("add --precision bf16-amp")
    for precision, said in (("bf16", True), ("bf16-amp", False), ("fp32", False)):
        found = check_file("train.py", {**asked, "precision": precision})
        assert any(each.endswith(f"in fp32: --precision {precision} replaces it") for each in found.warnings) is said


def test_a_program_for_mps_and_a_method_that_is_not_the_files_are_told_of() -> None:
    for device, said in (("mps", True), ("cpu", False)):
        Path("train.py").write_text(IN_FP32.format(device=device))
        found = check_file("train.py", {"gpu": "80GB", "sequence_length": 256})
        assert any("runs on mps" in each for each in found.warnings) is said
    Path("train.py").write_text(PROGRAM)
    for method, said in (("dpo", True), ("sft", False)):
        found = check_file("train.py", {"gpu": "80GB", "method": method})
        assert any(f"trains by sft: {method}" in each for each in found.warnings) is said
