"""Proves that what a user's file leaves open is asked for so that it can be answered, and that nobody is asked for what
the file says: variables, lengths, GPUs, the model, slips of the pen.
"""

from pathlib import Path
from typing import Any

import pytest

from memplan.frameworks.checks.checking import Checked, check_all, check_file

GRPO = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
max_prompt_length: 512
max_completion_length: 1024
num_generations: 8
per_device_train_batch_size: 8
use_vllm: true
vllm_mode: colocate
vllm_gpu_memory_utilization: 0.3
bf16: true
"""
VERL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=512 data.max_response_length=512 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.actor.ppo_mini_batch_size=8 "
    "trainer.n_gpus_per_node=8 "
)
UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import SFTTrainer, SFTConfig
model, tok = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-7B", max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "v_proj"])
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=2048), train_dataset=None).train()
"""
SECTION = """\
model_name: Qwen/Qwen2.5-0.5B-Instruct
train_file: x.jsonl
output_dir: out
max_seq_length: 1024
per_device_train_batch_size: 2
bf16: true
gradient_checkpointing: unsloth
lora:
  r: 16
  alpha: 32
  target_modules: [q_proj, v_proj]
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checked(text: str, name: str, **options: Any) -> Checked:
    Path(name).write_text(text)
    return check_file(name, {"gpu": "80GB", **options})


@pytest.mark.parametrize(
    ("rollout", "length", "completion"),
    [
        ({"gpu_memory_utilization": 0.4}, 1536, 1024),
        ({"completion_length": 256}, 768, 256),
        ({"prompt_length": 256}, 1280, 1024),
        ({"prompt_length": 128, "completion_length": 256}, 384, 256),
    ],
)
def test_an_option_of_the_engine_leaves_the_file_its_lengths(
    rollout: dict[str, Any], length: int, completion: int
) -> None:
    found = checked(GRPO, "grpo.yaml", num_gpus=8, rollout=rollout)
    assert found.fits == "yes", found.text
    assert (found.job["sequence_length"], found.job["completion_length"]) == (length, completion)


def test_a_variable_that_nothing_sets_is_asked_for_with_the_command_that_sets_it() -> None:
    text = VERL + "actor_rollout_ref.rollout.max_num_batched_tokens=${MOST}\n"
    found = checked(text, "run.sh")
    assert found.fits == "unclear"
    assert found.hint.startswith('set it: memplan check "MOST=… bash run.sh", or add --set rollout.')
    (answer,) = check_all("MOST=4096 bash run.sh", {"gpu": "80GB"})
    assert (answer.fits, answer.job["rollout"]["max_num_batched_tokens"]) == ("yes", 4096)
    option = checked(text, "run.sh", rollout={"max_num_batched_tokens": 4096})
    assert (option.fits, option.job["rollout"]["max_num_batched_tokens"]) == ("yes", 4096)


@pytest.mark.parametrize(
    ("filter_", "budget"), [("tr '[:upper:]' '[:lower:]'", 4096), ("tr A-Z a-z", 4096), ("tr -d '[:blank:]'", 4096)]
)
def test_a_switch_in_other_letters_is_the_switch(filter_: str, budget: int) -> None:
    text = f'ON=${{ON:-True}}\nLOW=$(echo "${{ON}}" | {filter_})\n{VERL}'
    text += "actor_rollout_ref.model.use_remove_padding=True "
    text += 'actor_rollout_ref.actor.use_dynamic_bsz="$LOW" actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096 '
    text += "actor_rollout_ref.actor.ppo_mini_batch_size=64\n"
    assert checked(text, "run.sh").job["token_budget"] == budget


def test_unsloth_alone_is_one_process_and_a_launcher_is_not() -> None:
    assert checked(UNSLOTH, "train.py", gpu="h100-80gb", cluster="dgx-h100").job["num_gpus"] == 1
    found = checked("torchrun --nproc_per_node=4 train.py\n", "run.sh")
    assert found.job["num_gpus"] == 4
    found = checked("torchrun --nproc_per_node=$N train.py\n", "run.sh", unquantized_share=0.05)
    assert (found.fits, found.hint) == ("unclear", "add --num-gpus, such as --num-gpus 8")


def test_a_launcher_may_use_a_part_of_each_node() -> None:
    text = (
        "NNODES=2 NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-0.5B-Instruct --train_type lora --max_length 1024\n"
    )
    found = checked(text, "run.sh", gpu="h100-80gb", cluster="dgx-h100")
    assert (found.fits, found.job["num_gpus"], found.job["gpus_per_node"]) == ("yes", 8, 4)


def test_a_missing_model_is_asked_for_before_anything_else() -> None:
    found = checked("deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --max_len 512 --zero_stage 3\n", "run.sh")
    assert found.fits == "unclear"
    assert found.text.startswith("unclear: no model named")
    assert "--model" in found.hint


def test_a_program_of_openrlhf_that_is_not_modelled_is_named() -> None:
    text = "deepspeed --module openrlhf.cli.train_rejection --pretrain Qwen/Qwen2.5-0.5B --max_len 512\n"
    found = checked(text, "run.sh")
    assert "train_rejection is counted as OpenRLHF's train_sft" in found.text
    assert (found.fits, found.hint.split(";")[1].split(",")[0]) == ("unclear", " add --without program")
    own = "deepspeed --num_gpus 1 cli/train_simpo.py --pretrain Qwen/Qwen2.5-0.5B --max_len 512 --bf16 "
    own += "--micro_train_batch_size 1 --zero_stage 3"
    assert checked(own, "run.sh").hint.startswith("add --without program")
    typed = checked(own, "run.sh", method="dpo", without=("program",))
    assert (typed.fits, typed.job["method"]) == ("yes", "dpo")


def test_a_word_of_the_command_that_names_the_model_has_no_adapters() -> None:
    text = """\
import argparse
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
args = parser.parse_args()
config = GRPOConfig(per_device_train_batch_size=8, max_completion_length=64, bf16=True)
GRPOTrainer(model=args.model, reward_funcs=[], args=config, train_dataset=None).train()
"""
    found = checked(text, "train.py", num_gpus=1, model="qwen2.5-0.5b", sequence_length=128)
    assert found.fits == "yes", found.text
    assert "lora" not in found.job


def test_a_section_of_adapters_is_read_as_the_flat_keys() -> None:
    found = checked(SECTION, "train.yaml")
    assert found.fits == "yes", found.text
    assert (found.job["lora"]["r"], found.job["lora"]["targets"]) == (16, ["q_proj", "v_proj"])
    assert found.job["gradient_checkpointing"] == "full"
    assert "lora" not in checked(SECTION + "  enabled: false\n", "train.yaml").job
    other = checked(SECTION + "  layers: 3\n", "train.yaml")
    assert (other.fits, other.unread[0]["key"]) == ("unclear", "lora")


@pytest.mark.parametrize(
    ("written", "meant"), [("micro_batchsize", "micro_batch_size"), ("secuence_len", "sequence_len")]
)
def test_a_slip_is_named_with_the_key_that_is_meant(written: str, meant: str) -> None:
    text = f"base_model: Qwen/Qwen2.5-0.5B-Instruct\nsequence_len: 512\nmicro_batch_size: 1\n{meant}: 8\n"
    text = "".join(dict.fromkeys(line + "\n" for line in text.splitlines() if not line.startswith(meant)))
    found = checked(f"{text}{written}: 8\ndatasets: []\n", "axolotl.yaml")
    without = f"If not, add --without {written}, if that takes no memory"
    assert (found.fits, found.hint) == ("unclear", f"did you mean {meant}? {without}")


def test_a_key_that_looks_like_nothing_is_left_alone() -> None:
    found = checked(
        "base_model: Qwen/Qwen2.5-0.5B-Instruct\nsequence_len: 512\nfrobnicate: 8\ndatasets: []\n", "a.yaml"
    )
    assert not any("did you mean" in text for text in found.warnings)


def test_a_job_in_json_is_a_job() -> None:
    found = checked('{"model": "qwen2.5-0.5b", "method": "sft", "batch_size": 2, "sequence_length": 512}', "job.json")
    assert (found.fits, found.job["batch_size"]) == ("yes", 2)
    wrong = checked('{"model": "qwen2.5-0.5b", "method": "sft", "batch_sise": 2, "sequence_length": 512}', "job.json")
    assert (wrong.fits, wrong.hint) == ("error", "did you mean batch_size?")


@pytest.mark.parametrize("text", ["lora: {r: 8}\ntraining: {epochs: 2}\n", "tables:\n  768: 3\nname: x\n"])
def test_a_projects_own_file_is_nobodys(text: str) -> None:
    assert checked(text, "own.yaml").text == "no training config that memplan knows"


def test_parts_of_galores_names_are_the_linears_under_them() -> None:
    text = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: sft
finetuning_type: full
use_galore: true
galore_target: mlp,self_attn
cutoff_len: 512
per_device_train_batch_size: 1
pure_bf16: true
"""
    found = checked(text, "galore.yaml", num_gpus=1)
    assert set(found.job["optimizer_args"]["targets"]) == {
        *("gate_proj", "up_proj", "down_proj"),
        *("q_proj", "k_proj", "v_proj", "o_proj"),
    }


def test_a_trainer_with_processes_of_its_own_is_no_data_parallel() -> None:
    found = checked(VERL, "run.sh", num_gpus=8)
    assert not any("DataParallel" in each["why"] for each in found.unread)
    hf = "python run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --block_size 128\n"
    assert any("DataParallel" in each["why"] for each in checked(hf, "clm.sh", num_gpus=8).unread)


def test_runs_that_are_drawn_from_lengths_are_said() -> None:
    job = "model: qwen2.5-0.5b\nmethod: sft\nsequence_length: 512\nlengths: {p50: 100, p90: 200, p99: 300, max: 400}\n"
    found = checked(job, "job.yaml")
    assert found.text.endswith("; none of 100 runs drawn from its lengths dies")
    assert "sequence_length 400 (the longest that comes, of 512 allowed)" in found.assumed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("reward_model_path: qwen2.5-0.5b\nsft_model_path: qwen2.5-0.5b\nresponse_length: 64\n", "ppo.yaml"),
        ("accelerate launch --num_processes 2 ppo.py --model_name_or_path qwen2.5-0.5b --reward_model_path "
         "qwen2.5-0.5b --sft_model_path qwen2.5-0.5b --response_length 64 --num_ppo_epochs 1 --bf16\n", "ppo.sh"),
    ],
)  # fmt: skip
def test_trls_ppo_is_that_of_the_last_version_that_has_it(text: str, name: str) -> None:
    extra = "model_name_or_path: qwen2.5-0.5b\nnum_ppo_epochs: 4\nbf16: true\n" if name.endswith("yaml") else ""
    found = checked(text + extra, name)
    assert (found.fits, found.job["method"], found.job["trainer_version"]) == ("yes", "ppo", "1.12"), found.text


def test_what_a_logger_kept_of_a_run_is_named() -> None:
    found = checked("_wandb: {value: {m: []}}\nmodel_name_or_path: {value: a/b}\nbf16: {value: true}\n", "config.yaml")
    assert "Weights & Biases" in found.text


def test_one_part_of_a_programs_own_config_is_no_training() -> None:
    text = "_target_: src.loop.Loop\nmax_prompt_length: 64\nmax_completion_length: 64\nnum_generations: 4\n"
    found = checked(text + "per_device_train_batch_size: 4\n", "loop.yaml", model="qwen2.5-0.5b")
    assert (found.fits, "Hydra" in found.text) == ("error", True)


def test_all_that_is_missing_is_asked_for_at_once() -> None:
    text = VERL.replace("Qwen/Qwen2.5-0.5B", "$BASE").replace("response_length=512", "response_length=$N")
    text += "actor_rollout_ref.rollout.gpu_memory_utilization=$5\n"
    found = checked(text, "run.sh")
    assert found.fits == "unclear"
    options = "--sequence-length 2048 --set rollout.gpu_memory_utilization=0.5"
    assert f"--model Qwen/Qwen2.5-7B {options}" in found.hint
    assert options in checked(text.replace("$BASE", "/my/model"), "run.sh").hint


@pytest.mark.parametrize(
    ("file", "fits"),
    [
        ("/data/gpt2-vocab.json", "yes"),
        ("/data/mine_131072/vocab.json", "unclear"),
        ("/data/a_tokenizer_131072/vocab.json", "yes"),
    ],
)
def test_a_vocabulary_of_ones_own_is_not_gpt_2s(file: str, fits: str) -> None:
    text = "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 "
    text += "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 4 --bf16 "
    assert checked(f"{text} --tokenizer-type GPT2BPETokenizer --vocab-file {file}\n", "run.sh").fits == fits


STRANGE = """python train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \\
  --hf-checkpoint Qwen/Qwen3-0.6B \\
  --rollout-max-response-len 512 --rollout-max-prompt-len 512 --use-dynamic-batch-size --max-tokens-per-gpu 4096 \\
  --rollout-num-gpus-per-engine 1 --attn-of-my-own 3
"""


def test_a_key_that_no_framework_has_may_be_said_to_take_no_memory() -> None:
    asked = checked(STRANGE, "run.sh")
    assert (asked.fits, asked.hint) == ("unclear", "add --without attn_of_my_own, if that takes no memory")
    answered = checked(STRANGE, "run.sh", without=("attn_of_my_own",))
    assert (answered.fits, answered.exit_code) == ("yes", 0)
    assert "without attn_of_my_own (--without)" in answered.assumed
    idle = checked(STRANGE, "run.sh", without=("attn_of_my_own", "hf_checkpoint"))
    assert [each for each in idle.warnings if "nothing is left out" in each] == [
        "--without hf_checkpoint: it is read, asked for, or not in the file: nothing is left out"
    ]


def test_what_is_known_to_take_memory_has_no_such_hint() -> None:
    found = checked(STRANGE.replace("--attn-of-my-own 3", "--use-opd"), "run.sh")
    assert (found.fits, found.hint) == ("unclear", "")


def test_a_completion_is_part_of_the_sequence_that_an_option_names() -> None:
    found = checked(VERL + "\n", "run.sh", sequence_length="256")
    assert (found.job.get("sequence_length"), found.job.get("completion_length")) == (256, 256), found.text
    assert any("are cut to the 256 of --sequence-length" in line for line in found.warnings)
