"""Proves that a file of a user's is asked about once: bounds beside questions, models that see, tasks of a job array,
and files that lie elsewhere than their reference says.
"""

import json
from functools import partial
from pathlib import Path

import framework_cases
import pytest
from framework_cases import written

checked = partial(framework_cases.checked, num_gpus=8)
OPTIONS = "--per_device_train_batch_size 2 --max_length 512 --bf16 --output_dir x"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


R1_V = "torchrun --nproc_per_node 8 src/open_r1/grpo.py {} --max_pixels 401408 --bf16 --max_prompt_length 512\n"


def test_a_bound_is_told_beside_what_is_asked_for() -> None:
    found = checked("a.sh", R1_V.format("--model_name_or_path OUR_CKPT"))
    told = "if that is too much, add --without max_pixels, to be answered as if it were not there"
    assert (found.fits, found.hint) == ("unclear", f"add --model Qwen/Qwen2.5-VL-7B-Instruct; {told}")


@pytest.mark.parametrize("named", ["<PATH-TO-Qwen2-VL-2B-Instruct>", "<your/Qwen2-VL-2B-Instruct>"])
def test_what_is_to_be_filled_in_may_name_its_model(named: str) -> None:
    found = checked("a.sh", R1_V.format(f"--model_name_or_path '{named}'"))
    assert found.job["model"] == "Qwen/Qwen2-VL-2B-Instruct"


@pytest.mark.parametrize("named", ["", "--model_name_or_path $MODEL "])
def test_towers_that_are_trained_ask_for_a_model_that_sees(named: str) -> None:
    flags = "--tune_mm_vision True --tune_mm_llm True --model_max_length 4096"
    found = checked("a.sh", f"torchrun --nproc_per_node 8 train.py {named}{flags} {OPTIONS}\n")
    assert found.fits == "unclear"
    assert "--model Qwen/Qwen2.5-VL-7B-Instruct" in found.hint


ARRAY = """\
#!/bin/bash
#SBATCH --array={}
#SBATCH --gres=gpu:8
NAMES=("Qwen/Qwen2.5-0.5B 256" "Qwen/Qwen2.5-1.5B 512")
read MODEL LENGTH <<< "${{NAMES[$SLURM_ARRAY_TASK_ID]}}"
trl sft --model_name_or_path $MODEL --max_length $LENGTH --per_device_train_batch_size 2 --output_dir x
"""


@pytest.mark.parametrize(
    ("array", "model", "length"),
    [("0-1%1", "Qwen/Qwen2.5-0.5B", 256), ("1", "Qwen/Qwen2.5-1.5B", 512), ("0,1", "Qwen/Qwen2.5-0.5B", 256)],
)
def test_of_a_job_array_the_first_task_is_taken_and_said(array: str, model: str, length: int) -> None:
    found = checked("a.sbatch", ARRAY.format(array))
    assert (found.job["model"], found.job["sequence_length"]) == (model, length)
    assert "a.sbatch: a loop over SLURM_ARRAY_TASK_ID is taken, the first value" in found.warnings


def test_a_file_of_its_references_name_beside_the_script_is_taken_for_it() -> None:
    written("train/zero3.json", json.dumps({"zero_optimization": {"stage": 3}}))
    start = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --deepspeed train/scripts/zero3.json"
    found = checked("train/a.sh", f"{start} {OPTIONS}\n")
    assert found.job["sharding"] == "zero3"
    assert any("is not here, and train/zero3.json is taken for it" in each for each in found.warnings)


LOOP = """\
import argparse
from accelerate import Accelerator
from torch.optim import AdamW
from transformers import AutoModelForCausalLM
accelerator = Accelerator(gradient_accumulation_steps=1)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
optimizer = AdamW(model.parameters(), lr=1e-5)
rows = [tokenizer(text, max_length=512, truncation=True) for text in data]
loader = DataLoader(rows, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    loss = model(**batch).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_a_loop_deepspeeds_accumulation_stands_as_accelerate_takes_it() -> None:
    written("zero2.json", json.dumps({"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 64}))
    written("accelerate.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: zero2.json}\n")
    written("train.py", LOOP)
    found = checked("a.sh", "accelerate launch --config_file accelerate.yaml train.py\n")
    assert (found.fits, found.job["gradient_accumulation_steps"], found.job["sharding"]) == ("yes", 64, "zero2")


MEGATRON = """\
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 \\
    --max-position-embeddings 512 --micro-batch-size 1 --global-batch-size 8 --bf16 --vocab-size 32000 {}
"""


@pytest.mark.parametrize("without", [(), ("fine_grained_activation_offloading",)])
def test_what_waits_on_the_host_and_is_counted_on_the_card_is_a_bound(without: tuple[str, ...]) -> None:
    given = {"without": without} if without else {}
    found = checked("a.sh", MEGATRON.format("--fine-grained-activation-offloading"), **given)
    assert (found.fits, found.at_most) == ("yes", True)
    assert "at most" in found.text


def test_a_bound_is_not_why_a_layout_takes_more_gpus() -> None:
    layout = "--pipeline-model-parallel-size 2 --num-experts 16 --expert-model-parallel-size 16 --moe-router-topk 2"
    found = checked("a.sh", MEGATRON.format(f"{layout} --fine-grained-activation-offloading"))
    assert (found.fits, found.hint) == ("no", "add --num-gpus 32")
    assert "its layout takes 32 GPUs" in found.text


def test_a_blank_behind_a_backslash_is_told_before_the_command_too() -> None:
    found = checked("a.sh", f"A=1 \\\nB= \\  \nswift sft --model Qwen/Qwen2.5-0.5B {OPTIONS}\n")
    assert "a.sh, line 2: a shell ends the command here; the options behind it are counted" in found.warnings


def test_gpus_of_an_option_are_counted_by_axolotls_search() -> None:
    found = checked("a.yaml", "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 2\n", num_gpus="8")
    assert (found.fits, found.job["num_gpus"]) == ("yes", 8)


PROGRAM = """\
import argparse
from trl import SFTConfig, SFTTrainer
{imports}
KNOWN = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B"]
parser = argparse.ArgumentParser()
parser.add_argument("--model_path")
parser.add_argument("--double_quant", type=bool)
parser.add_argument("--max_len", type=int)
args = parser.parse_args()
{body}
SFTTrainer(model=model, args=SFTConfig("o", per_device_train_batch_size=2, bf16=True, max_length=args.max_len)).train()
"""


@pytest.mark.parametrize(
    "test", ["args.model_path not in KNOWN", "args.model_path != 'x'", "args.model_path.endswith('B')"]
)
def test_what_a_command_leaves_to_a_variable_is_compared_with_nothing(test: str) -> None:
    body = f"model = args.model_path\nif {test}:\n    model = KNOWN[0]"
    written("train.py", PROGRAM.format(imports="", body=body))
    found = checked("a.sh", "torchrun --nproc_per_node 8 train.py --model_path $1 --max_len 512\n")
    assert (found.fits, "add --model" in found.hint) == ("unclear", True)


def test_what_stands_beside_a_variable_is_known_all_the_same() -> None:
    body = "model = KNOWN[1] if 'Qwen2.5-7B' in args.model_path else KNOWN[0]"
    written("train.py", PROGRAM.format(imports="", body=body))
    found = checked("a.sh", "torchrun --nproc_per_node 8 train.py --model_path $HOME/Qwen2.5-7B --max_len 512\n")
    assert found.job["model"] == "Qwen/Qwen2.5-7B"


def test_a_program_of_unsloths_is_followed_whatever_its_options_are_like() -> None:
    body = """model, tokenizer = FastLanguageModel.from_pretrained(args.model_path, max_seq_length=args.max_len)
model = FastLanguageModel.get_peft_model(model, r=8)"""
    written("qlora_finetune.py", PROGRAM.format(imports="from unsloth import FastLanguageModel", body=body))
    options = "--model_path Qwen/Qwen2.5-0.5B --double_quant true --max_len 512"
    found = checked("a.sh", f"python qlora_finetune.py {options}\n", num_gpus=1)
    assert (found.fits, found.framework[:7]) == ("yes", "Unsloth"), found.text
