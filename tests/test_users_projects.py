"""Proves what projects of users showed: modules of their own, programs that a script goes to first, losses of their
own, and files that are filled in before they are YAML.
"""

from pathlib import Path

import pytest
from framework_cases import CARD, checked, written

from memplan.frameworks.checks.checking import check_all

PROGRAM = """\
import argparse
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
{before}
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, required=True)
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
    SFTTrainer(model=model, args=SFTConfig(max_length=512, per_device_train_batch_size=args.bs)).train()
if __name__ == "__main__":
    {start}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("before", "start"),
    [
        ("", "raise SystemExit(main())"),
        ("from own import x", "main()"),  # whose branch nobody can decide
    ],
)
def test_a_program_that_begins_is_a_training_of_its_own(before: str, start: str) -> None:
    written("own.py", "import y\nif y.there():\n    x = 1\nelse:\n    x = 2\n")
    found = checked("train.py", PROGRAM.format(before=before, start=start))
    assert (found.fits, found.hint) == ("unclear", "add --batch-size, such as --batch-size 1")


def test_a_script_goes_to_its_program() -> None:
    written("README.md", "")
    written("training/train.py", PROGRAM.format(before="", start="main()"))
    script = written("scripts/run.sh", 'cd "$ROOT/training"\npython train.py --bs 5\n')
    (found,) = check_all(script, CARD)
    assert found.job["batch_size"] == 5, found.text


def test_a_program_of_a_folder_that_is_not_here_lies_beside_its_script() -> None:
    written("README.md", "")
    written("agent/train.py", PROGRAM.format(before="", start="main()"))
    written("agent/run.sh", "cd /home/me/project\npython scripts/agent/train.py --bs 5\n")
    (found,) = check_all("agent/run.sh", CARD)
    assert found.job["batch_size"] == 5, found.text


def test_a_loss_of_the_programs_own_is_asked_for_and_left_out() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndesirable_weight: 1.0\nmax_length: 512\nloss_type: own_kto\n"
    found = checked("kto.yaml", text)
    assert found.fits == "unclear"
    assert "--without loss_type" in found.hint
    assert checked("kto.yaml", text, without=("loss_type",)).fits == "yes"


def test_a_file_that_is_filled_in_first() -> None:
    text = "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 2\nadapter: lora\nlora_r: 8\n"
    found = checked("axolotl.yaml", f"{text}lora_target_linear: true\noutput_dir: {{{{ out }}}}/run\n")
    assert found.fits == "yes", found.text


OWN = """\
import argparse, yaml
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("-c", "--config", required=True)
c = yaml.safe_load(open(parser.parse_args().config))
model = AutoModelForCausalLM.from_pretrained(c["base"], dtype="bfloat16")
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=c["rows"], max_length=256)).train()
"""


@pytest.mark.parametrize("page", ["", "Usage: `python train.py --config runs/a.yaml`\n"])
def test_a_config_of_no_frameworks_is_its_programs(page: str) -> None:
    written("README.md", page)
    written("train.py", OWN)
    written("runs/a.yaml", "base: Qwen/Qwen2.5-0.5B\nrows: 3\n")
    found = checked("runs/b.yaml", "base: ../models/nobody-knows\nrows: 5\n")
    assert (found.fits, "nobody-knows is not here" in found.text, "--model" in found.hint) == ("unclear", True, True)
    assert checked("runs/b.yaml", "base: Qwen/Qwen2.5-0.5B\nrows: 5\n").job["batch_size"] == 5


OF_KEYS = """\
import argparse, os, yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--config")
c = yaml.safe_load(open(parser.parse_args().config))
model = AutoModelForCausalLM.from_pretrained(c["model"], dtype="bfloat16")
args = DPOConfig("out", per_device_train_batch_size=c["per_device_train_batch_size"], bf16=bool(os.environ["BF16"]))
DPOTrainer(model, None, args, peft_config=LoraConfig(r=c["lora_r"], target_modules=["q_proj"])).train()
"""


def test_keys_that_trl_refuses_are_a_programs() -> None:
    """By TRL's keys alone it is a full training: the program of the project makes adapters, and is asked for bf16."""
    written("README.md", "Usage: `python train.py --config runs/dpo.yaml`\n")
    written("train.py", OF_KEYS)
    text = "model: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 3\nlearning_rate: 1.0e-4\nlora_r: 8\nbeta: 0.1\n"
    assert "--precision bf16" in checked("runs/dpo.yaml", text, model="Qwen/Qwen2.5-0.5B").hint
    job = checked("runs/dpo.yaml", text, model="Qwen/Qwen2.5-0.5B", precision="bf16").job
    assert (job["lora"]["r"], job["batch_size"]) == (8, 3)


LOSS = """\
optimizer:
  _component_: torch.optim.AdamW
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
enable_activation_checkpointing: true
"""


def test_torchtunes_phi_takes_as_many_tokens_as_it_has_positions() -> None:
    text = "model:\n  _component_: torchtune.models.phi4.lora_phi4_14b\n  lora_attn_modules: [q_proj]\n  lora_rank: 8\n"
    found = checked("phi.yaml", f"{text}tokenizer:\n  max_seq_len: null\nbatch_size: 1\ndtype: bf16\n{LOSS}")
    assert found.job["sequence_length"] == 16384, found.text


def test_a_dtype_that_a_variable_holds_is_asked_for() -> None:
    command = (
        "swift sft --model Qwen/Qwen2.5-0.5B --dataset a --max_length 512 --train_type lora --torch_dtype $DTYPE\n"
    )
    found = checked("run.sh", command)
    assert (found.fits, "--precision bf16" in found.hint) == ("unclear", True)
    assert checked("run.sh", command, precision="bf16").fits == "yes"


ARGV = OWN.replace("import argparse, yaml", "import argparse, sys, yaml").replace("parser.parse_args().config", "{}")


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ("sys.argv[1]", "a.yaml"),
        ("set(sys.argv[2:]) and sys.argv[1:][0]", "a.yaml --x"),
        ("parser.parse_args().config", "-c a.yaml"),
        ("(parser.add_argument('file'), parser.parse_args().file)[1]", "a.yaml -c x"),
    ],
)
def test_words_of_the_command_are_the_programs(taken: str, words: str) -> None:
    written("README.md", "")
    written("src/train.py", ARGV.replace("{}", taken))
    written("runs/a.yaml", "base: Qwen/Qwen2.5-0.5B\nrows: 5\n")  # beside the script that starts it
    assert checked("runs/run.sh", f"python ../src/train.py {words}\n").job["batch_size"] == 5


TUNED = """\
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
BASE = "Qwen/Qwen2.5-0.5B"
model = AutoModelForCausalLM.from_pretrained(BASE, dtype="bfloat16")
"""
SFT = """\
model = get_peft_model(model, LoraConfig(r=24, target_modules=["up_proj"]))
t = SFTTrainer(model=model, args=SFTConfig(max_length=256))
t.train()
t.save_model("./out/sft")
"""
DPO = """\
model = PeftModel.from_pretrained(model, "./out/sft", is_trainable=True)
DPOTrainer(model=model, args=DPOConfig(max_length=256, per_device_train_batch_size=1)).train()
"""


def test_adapters_of_another_program_of_the_project() -> None:
    written("README.md", "")
    written("sft.py", TUNED + SFT)
    found = checked("dpo.py", TUNED + DPO)
    assert (found.fits, found.job["lora"]["r"], found.job["lora"]["targets"]) == ("yes", 24, ["up_proj"]), found.text


def test_adapters_that_peft_makes_of_unsloths_model_leave_checkpointing_to_the_arguments() -> None:
    text = """\
from peft import LoraConfig, get_peft_model
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel
model, _ = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-0.5B", max_seq_length=256, load_in_4bit=True)
model = {}
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=1, gradient_checkpointing=False)).train()
"""
    ways = ('get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))',
            'FastLanguageModel.get_peft_model(model, r=8, target_modules=["q_proj"])')  # fmt: skip
    plain, own = (checked("train.py", text.format(way)).job["gradient_checkpointing"] for way in ways)
    assert (plain, own) == ("none", "full")


OWN_TRAINER = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class {name}(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        return drawn(model(**inputs).logits).sum()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16"{more})
{name}(model=model, args=TrainingArguments(per_device_train_batch_size=1)).train()
"""


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MyDPOTrainer", "write its job in memplan's keys"),  # whose reference is nowhere
        ("MyORPOTrainer", "add --set own_loss.logits=16"),
        ("Weighted", "add --without compute_loss"),
    ],
)
def test_a_trainer_of_ones_own_for_another_method_is_no_supervised_one(name: str, hint: str) -> None:
    found = checked("train.py", OWN_TRAINER.format(name=name, more=""), sequence_length=256)
    assert (found.fits, found.hint.startswith(hint)) == ("unclear", True), found.hint


def test_what_transformers_refuses_together() -> None:
    more = ", load_in_8bit=True, quantization_config=BitsAndBytesConfig(load_in_4bit=True)"
    text = f"from transformers import BitsAndBytesConfig\n{OWN_TRAINER.format(name='T', more=more)}"
    assert "which transformers refuses" in checked("train.py", text, sequence_length=256).text
    found = checked("train.py", text.replace("load_in_8bit", "load_in_4bit"), sequence_length=256)
    assert "compute_loss of its own" in found.text  # the same twice was taken before 4.38


PLUGIN = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, zero_optimization: {stage: 2}}
mixed_precision: bf16
num_processes: 2
"""


def test_accelerate_passes_over_keys_of_deepspeeds_own() -> None:
    written("zero.yaml", PLUGIN)
    text = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 256 --accelerate_config zero.yaml\n"
    (found,) = check_all(written("run.sh", text), {"gpu": "80GB"})
    assert (found.fits, found.job["sharding"]) == ("yes", "zero3"), found.text
    assert any("passes over it" in each for each in found.warnings)


def test_images_that_no_key_tells_are_counted_from_above() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-VL-7B-Instruct\nstage: sft\ntemplate: qwen2_vl\ncutoff_len: 512\n"
    text += "do_train: true\nfinetuning_type: lora\nbf16: true\nper_device_train_batch_size: 1\n"
    assert "at most" in checked("sft.yaml", text).text


def test_an_argument_of_experts_that_nobody_knows_decides() -> None:
    text = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --bf16 "
    text += "--max-position-embeddings 128 --micro-batch-size 1 --vocab-size 320 --num-experts 4 --moe-new-thing 3\n"
    found = checked("run.sh", text)
    assert (found.fits, "moe_new_thing" in found.text) == ("unclear", True)


def test_deepspeed_passes_over_where_parameters_wait_below_stage_3() -> None:
    plugin = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_param_device: nvme, "
    plugin += "offload_optimizer_device: nvme}\n"
    zero = '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, "bf16": {"enabled": true}}'
    for name, text in (("zero.yaml", plugin), ("zero.json", zero)):
        how = "--accelerate_config" if name == "zero.yaml" else "--deepspeed"
        written(name, text)
        command = f"trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 256 {how} {name}\n"
        (found,) = check_all(written("run.sh", command), {"gpu": "80GB", "num_gpus": 2})
        assert (found.fits, found.job["sharding"]) == ("yes", "zero2"), found.text
        assert any("passes over it below stage 3" in each for each in found.warnings)
        assert found.job["deepspeed"].get("offload_optimizer", {}).get("device") in (None, "cpu")


@pytest.mark.slow
def test_the_share_that_a_hint_names_starts_where_others_use_the_card() -> None:
    text = (
        "model_name_or_path: Qwen/Qwen2.5-1.5B\ntorch_dtype: bfloat16\nuse_vllm: true\nvllm_mode: colocate\n"
        "vllm_gpu_memory_utilization: 0.06\nmax_prompt_length: 64\nmax_completion_length: 64\nnum_generations: 2\n"
        "per_device_train_batch_size: 2\nbf16: true\n"
    )
    found = checked("grpo.yaml", text, trainer_version="0.18", method="grpo")
    share = found.hint.removeprefix("gpu_memory_utilization: ")
    assert found.fits == "no", found.text
    again = text.replace("0.06", share)
    assert checked("grpo.yaml", again, trainer_version="0.18", method="grpo").fits == "yes", found.hint


def test_a_program_of_that_name_is_verls_only_in_verls_folder() -> None:
    written("src/sft_trainer.py", PROGRAM.format(before="", start="main()"))
    assert checked("a.sh", "torchrun --nproc_per_node 1 src/sft_trainer.py --bs 4\n").job["batch_size"] == 4


def test_a_command_on_a_page_that_leaves_the_model_alone_open_is_asked_for_that() -> None:
    text = PROGRAM.format(before="import yaml", start="main()")
    text = text.replace('"--bs", type=int, required=True', '"--config"')
    text = text.replace("args.bs", 'cfg["bs"]').replace('"Qwen/Qwen2.5-0.5B"', 'cfg["model"]')
    text = text.replace("    model =", "    cfg = yaml.safe_load(open(args.config))\n    model =")
    written("README.md", "Usage: `python train.py --config conf/a.yaml`\n")
    written("conf/a.yaml", "model: ./mine\nbs: 3\n")
    found = checked("train.py", text)
    assert found.fits == "unclear"
    assert "--model" in found.hint
    assert "batch" not in found.hint
    assert checked("train.py", text, model="Qwen/Qwen2.5-0.5B").job["batch_size"] == 3


def test_a_loop_of_ones_own_behind_a_name_of_trls_is_no_trainer_of_trls() -> None:
    written("train_sft.py", "model = load()\nfor batch in rows:\n    accelerator.backward(model(**batch).loss)\n")
    written("c.yaml", "model: {name: Qwen/Qwen2.5-0.5B}\noptimization: {micro_batch_size: 4}\n")
    found = checked("a.sh", "accelerate launch --num_processes 1 train_sft.py --config c.yaml\n", model="qwen2.5-0.5b")
    assert (found.fits, found.hint) == ("unclear", "write its job in memplan's keys")
    assert "loop of the program's own" in str(found.unread)


DATA_SET = """\
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Rows(Dataset):
    def __init__(self, tokenizer, rows, longest):
        self.tokenizer, self.longest = tokenizer, longest
    def __getitem__(self, index):
        return self.tokenizer(self.rows[index], truncation=True, max_length=self.longest)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
arguments = TrainingArguments("out", per_device_train_batch_size=2)
few, many = Rows(tokenizer, rows, 128), Rows(tokenizer, rows, 384)
Trainer(model=model, args=arguments, train_dataset=many, eval_dataset=few).train()
"""


def test_a_data_set_of_ones_own_says_how_long_its_rows_are() -> None:
    assert checked("train.py", DATA_SET).job["sequence_length"] == 384


def test_targets_with_their_commas_are_none_of_the_models() -> None:
    options = "--model_name_or_path Qwen/Qwen2.5-0.5B --use_peft --lora_target_modules q_proj, v_proj --max_length 128"
    found = checked("a.sh", f"accelerate launch --num_processes 1 sft.py {options}\n")
    assert (found.fits, found.job["lora"]["targets"]) == ("yes", ["v_proj"])
    assert any("with its comma" in each for each in found.warnings)


BESIDE = """\
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl import DPOConfig, DPOTrainer
{beside}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16").to("cuda")
reference = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16").to("cuda")
DPOTrainer(model, ref_model=reference, args=DPOConfig("out", max_length=256), train_dataset=rows).train()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", device_map="auto")
"""
JUDGE = 'AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-1.5B", dtype=torch.float16{})'


@pytest.mark.parametrize(
    ("beside", "counted"),
    [
        ("", False),
        (f"judge = {JUDGE.format('')}", False),  # on the host
        (f"judge = {JUDGE.format('')}.cuda()", True),
        (f"judge = {JUDGE.format('')}.cuda().to('cpu')", False),
        ("judge = " + JUDGE.format(", device_map='auto'"), True),
        (f"judge = {JUDGE.format('')}.cuda()\ndel judge", False),
        (
            f"class Judge:\n    def __init__(self):\n        self.m = {JUDGE.format('')}.to('cuda')\njudge = Judge()",
            True,
        ),
    ],
)
def test_a_model_that_the_program_has_on_its_card_beside_the_trainers(beside: str, counted: bool) -> None:
    job = checked("train.py", BESIDE.format(beside=beside)).job
    row = {"role": "reward", "model": "Qwen/Qwen2.5-1.5B", "precision": "fp16"}
    found = [{key: each[key] for key in row} for each in job["extra_models"]]
    assert found == ([row] if counted else [])


@pytest.mark.parametrize(("more", "said"), [("", True), (", load_in_4bit=False", False)])
def test_a_second_model_of_unsloths_is_of_few_bits_where_nothing_says(more: str, said: bool) -> None:
    load = f"judge, words = FastLanguageModel.from_pretrained('Qwen/Qwen2.5-1.5B'{more})"
    found = checked("train.py", BESIDE.format(beside=f"from unsloth import FastLanguageModel\n{load}"))
    assert ("of few bits on the card" in str(found.unread)) == said


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ("from sentence_transformers import SentenceTransformer\njudge = SentenceTransformer('BAAI/bge-m3')", True),
        (
            "from sentence_transformers import SentenceTransformer\njudge = SentenceTransformer('a/b', device='cpu')",
            False,
        ),
        ("from vllm import LLM\njudge = LLM(model='Qwen/Qwen2.5-7B')", True),
        ("from transformers import pipeline\njudge = pipeline('text-classification', model='a/toxic')", True),
        (
            "from transformers import pipeline\njudge = pipeline('text-classification', model='a/toxic', device=-1)",
            False,
        ),
    ],
)
def test_a_model_that_another_library_puts_on_the_card_is_said(loads: str, said: bool) -> None:
    written("rewards.py", f"{loads}\ndef score(completions, **kwargs):\n    return judge(completions)\n")
    found = checked("train.py", REWARDED)
    assert ("beside the one that is trained" in str(found.unread), found.fits) == (said, "unclear" if said else "yes")
    assert checked("train.py", BESIDE.format(beside=loads)).fits == ("unclear" if said else "yes")


@pytest.mark.parametrize(
    ("loads", "said"),
    [
        ("SentenceTransformer('BAAI/bge-m3')", "puts BAAI/bge-m3 on the card"),
        ("SentenceTransformer('BAAI/bge-m3', device='cpu')", ""),
        (
            "AutoModelForSequenceClassification.from_pretrained(path).to(device)",
            "a second model on the card is not known",
        ),
        ("AutoTokenizer.from_pretrained(path)", ""),
    ],
)
def test_a_model_that_a_reward_loads_when_it_is_first_called(loads: str, said: str) -> None:
    text = f"""from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer
judge = None
def get():
    global judge
    if judge is None:
        judge = {loads}
    return judge
def score(completions, **kwargs):
    return get().encode(completions)
"""
    written("rewards.py", text)
    found = checked("train.py", REWARDED)
    assert (said in str(found.unread), found.fits) == (True, "unclear" if said else "yes")


REWARDED = """\
from rewards import score
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig("out", per_device_train_batch_size=8, num_generations=8, max_completion_length=64)
GRPOTrainer("Qwen/Qwen2.5-0.5B", reward_funcs=[score], args=args, train_dataset=rows).train()
"""


def test_functions_of_a_reward_within_one_another_end() -> None:
    turns = "def shown(e):\n" + "".join(
        f"    if e.kind == {n}:\n        return shown(e.first) + shown(e)\n" for n in range(9)
    )
    text = f"{turns}def score(completions, **rest):\n    return [shown(each) for each in completions]\n"
    assert checked("train.py", text + REWARDED.replace("from rewards import score\n", "")).fits == "yes"


def test_adapters_that_an_option_says_are_off_where_the_reference_scores() -> None:
    text = REWARDED.replace("from rewards import score\n", "score = print\n").replace("64)", "64, beta=0.1)")
    lora = {"r": 8, "targets": "all-linear"}
    assert checked("train.py", text, lora=lora).job["reference"] == "adapter"
    assert checked("train.py", text).job["reference"] == "resident"


def test_a_copy_of_a_model_is_another_model() -> None:
    text = BESIDE.replace("reference = Auto", "import copy\nother = copy.deepcopy(model)\nreference = Auto")
    assert [each["model"] for each in checked("train.py", text.format(beside="")).job["extra_models"]] == [
        "Qwen/Qwen2.5-0.5B"
    ]
    text = text.replace("copy.deepcopy(model)", "copy.deepcopy(dict(a=1))")
    assert not checked("train.py", text.format(beside="")).job["extra_models"]


def test_a_model_beside_the_trainers_that_nobody_knows_is_said() -> None:
    found = checked("train.py", BESIDE.format(beside="judge = AutoModelForCausalLM.from_pretrained(path).cuda()"))
    assert "a second model on the card is not known" in str(found.unread)
    assert found.fits == "unclear"


def test_a_program_that_is_here_is_followed_whatever_keys_it_shares_with_a_known_script() -> None:
    written(
        "train_sft.py",
        """from dataclasses import dataclass
from peft import LoraConfig
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import SFTConfig, SFTTrainer
@dataclass
class Mine:
    dataset_path: str = None
    use_lora: bool = False
    r: int = 8
mine, args = HfArgumentParser((Mine, SFTConfig)).parse_args_into_dataclasses()
lora = LoraConfig(r=mine.r, target_modules=["q_proj"]) if mine.use_lora else None
SFTTrainer(AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"), args=args, peft_config=lora).train()
""",
    )
    options = "--dataset_path d --use_lora --r 32 --max_length 128 --per_device_train_batch_size 2"
    assert checked("a.sh", f"torchrun --nproc_per_node 1 train_sft.py {options}\n").job["lora"]["r"] == 32


PEFTS = """\
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import SFTConfig, SFTTrainer
@dataclass
class ModelArguments:
    model_name_or_path: str
    use_peft_lora: bool = False
def main(model_args, args):
    model = prepare(model_args)
    SFTTrainer(model=model, tokenizer=tokenizer, args=args).train()
main(*HfArgumentParser((ModelArguments, SFTConfig)).parse_args_into_dataclasses())
"""


def test_a_program_that_is_here_is_no_known_script_whose_options_it_has() -> None:
    """Its trainer is of TRL 0.15, whose logits are whole: by the options alone it was read as the newest TRL's."""
    written("train.py", PEFTS)
    options = "--model_name_or_path $M --use_peft_lora --use_4bit_quantization --max_length 128"
    found = checked("a.sh", f"python train.py {options}\n", model="Qwen/Qwen2.5-0.5B")
    assert (found.fits, found.job["trainer_version"]) == ("unclear", "0.15")
    assert "use_4bit_quantization" not in str(found.unread)


COMMANDS = """\
import argparse
from trl import GRPOConfig, GRPOTrainer, ModelConfig, SFTConfig, SFTTrainer, TrlParser
def train(args, model, own):
    if own.first:
        args = SFTConfig("out", max_length=64)
        SFTTrainer(model.model_name_or_path, args=args, train_dataset=rows).train()
        return
    GRPOTrainer(model.model_name_or_path, reward_funcs=score, args=args, train_dataset=rows).train()
def evaluate(args):
    pass
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(dest="command", parser_class=TrlParser)
one = commands.add_parser("train", dataclass_types=[GRPOConfig, ModelConfig])
one.add_argument("--first", action="store_true")
one.set_defaults(work=train, parser=one)
other = commands.add_parser("eval")
other.add_argument("--first", default=True)
other.set_defaults(work=evaluate)
known, rest = parser.parse_known_args()
known.work(*known.parser.parse_args_and_config(return_remaining_strings=True)[:-1])
"""


@pytest.mark.parametrize(("more", "method", "length"), [("", "grpo", 768), (" --first", "sft", 64)])
def test_the_command_of_a_program_that_has_several(more: str, method: str, length: int) -> None:
    written("main.py", COMMANDS)
    options = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 8 --max_completion_length 256"
    job = checked("a.sh", f"accelerate launch --num_processes 1 main.py train {options}{more}\n").job
    assert (job["method"], job["sequence_length"]) == (method, length)


def test_a_sum_that_comes_to_no_step_of_accumulation_is_one() -> None:
    text = """import os
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
args = TrainingArguments("out", gradient_accumulation_steps=2 // 2 // int(os.environ.get("WORLD_SIZE", 1)))
ids = tokenizer(text, truncation=True, max_length=64)
Trainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"), args=args, train_dataset=ids).train()
"""
    assert checked("train.py", text, num_gpus=8).job["gradient_accumulation_steps"] == 1


def test_a_program_that_is_too_long_to_follow_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.frameworks.programs.run.MAX_STEPS", 5)
    found = checked("train.py", REWARDED)
    assert found.fits == "unclear"
    assert "more than is followed of one program" in found.text


def test_the_version_that_is_pinned_is_the_one_whose_defaults_are_said() -> None:
    written("requirements.txt", "trl==0.18.1\n")
    text = "from trl import SFTTrainer\nSFTTrainer('Qwen/Qwen2.5-0.5B', train_dataset=rows).train()\n"
    assumed = str(checked("train.py", text).assumed)
    assert "TRL 0.18.1: max_length 1024" in assumed
    assert "TRL 1.16" not in assumed
    assert "no logits are made" not in assumed


def test_an_option_that_the_script_is_given_is_asked_for() -> None:
    written("train.py", OF_LORA)
    found = checked("a.sh", "python train.py --r $1\n")
    assert found.fits == "unclear"
    assert "add --lora-r" in found.hint


OF_LORA = """\
import argparse
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--r", type=int, default=8)
parser.add_argument("--saved", default=None)
said = parser.parse_args()
lora = LoraConfig(r=said.r, target_modules=["q_proj"], modules_to_save=said.saved)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
SFTTrainer(model, args=SFTConfig("out", max_length=64), peft_config=lora, train_dataset=rows).train()
"""


def test_a_module_that_the_model_does_not_have_is_not_saved_whole() -> None:
    written("train.py", OF_LORA)
    bare, named = (checked("a.sh", f"python train.py{more}\n") for more in ("", " --saved wte"))
    assert (named.fits, named.device_bytes) == ("yes", bare.device_bytes)
    assert "qwen2 has no wte, which PEFT passes over" in str(named.warnings)


def test_a_peft_of_the_projects_own_is_said() -> None:
    written("train.py", OF_LORA)
    assert "of the project's own" not in str(checked("a.sh", "python train.py\n").warnings)
    written("peft/src/peft/__init__.py", "from .lora import LoraConfig\n")
    assert "a PEFT of the project's own is beside it" in str(checked("a.sh", "python train.py\n").warnings)


def test_ppo_with_a_value_head_on_its_model_is_unclear() -> None:
    text = """from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer
model = AutoModelForCausalLMWithValueHead.from_pretrained("Qwen/Qwen2.5-0.5B")
PPOTrainer(PPOConfig(batch_size=8), model, None, tokenizer)
"""
    for found in (checked("ppo.py", text), checked("a.sh", "accelerate launch ppo.py --batch_size 8\n")):
        assert found.fits == "unclear"
        assert "whose model has its own value head" in found.text


@pytest.mark.parametrize(
    ("before", "cls", "after", "kernels"),
    [
        ("apply_liger_kernel_to_qwen2()", "AutoModelForCausalLM", "", "liger"),
        ("", "AutoLigerKernelForCausalLM", "", "liger"),
        ("", "AutoModelForCausalLM", "apply_liger_kernel_to_qwen2()", "none"),
        ("", "AutoLigerKernelForCausalLM", "swiglu=False", "none"),
        ("apply_liger_kernel_to_qwen2(fused_linear_cross_entropy=False)", "AutoModelForCausalLM", "", "none"),
        ("if len(rows) > 3:\n    apply_liger_kernel_to_qwen2()", "AutoModelForCausalLM", "", "none"),
        ("apply_liger_kernel_to_llama()", "AutoModelForCausalLM", "", "none"),
    ],
)
def test_kernels_that_are_put_in_before_the_model_is_made(before: str, cls: str, after: str, kernels: str) -> None:
    text = f"""from liger_kernel.transformers import *
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
{before}
model = {cls}.from_pretrained("Qwen/Qwen2.5-0.5B"{f", {after}" if "=" in after else ""})
{after}
ids = tokenizer(text, truncation=True, max_length=64)
Trainer(model=model, args=TrainingArguments("out"), train_dataset=ids).train()
"""
    assert checked("train.py", text).job["kernels"] == kernels


@pytest.mark.parametrize("name", ["requirements/train.txt", "vllm_requirements.txt"])
def test_lists_of_packages_by_other_names(name: str) -> None:
    written(name, "trl==0.18.1\n")
    text = "from trl import SFTTrainer\nSFTTrainer('Qwen/Qwen2.5-0.5B', train_dataset=rows).train()\n"
    assert checked("train.py", text).job["trainer_version"] == "0.18.1"


@pytest.mark.parametrize(
    ("model", "targets"), [("openai-community/gpt2", ["c_attn"]), ("Qwen/Qwen2.5-0.5B", ["q_proj", "v_proj"])]
)
def test_modules_that_peft_takes_by_the_models_type(model: str, targets: list[str]) -> None:
    written("train.py", OF_LORA.replace(', target_modules=["q_proj"]', "").replace("Qwen/Qwen2.5-0.5B", model))
    assert checked("a.sh", "python train.py\n").job["lora"]["targets"] == targets


def test_a_length_that_an_option_gives_is_not_asked_for_a_second_time() -> None:
    options = "--model_name_or_path Qwen/Qwen2.5-0.5B --model_max_length 512 --cutoff_len 256 --num_train_epochs 1"
    found = checked("a.sh", f"torchrun --nproc_per_node 1 gone.py {options}\n", sequence_length=128)
    assert (found.fits, found.job["sequence_length"]) == ("yes", 128)


def test_a_model_that_is_moved_to_another_device_is_the_same_model() -> None:
    text = OF_LORA.replace('"Qwen/Qwen2.5-0.5B")', '"Qwen/Qwen2.5-0.5B").npu()')
    assert checked("train.py", text).job["model"] == "Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize("given", ["Judge()", "[Judge().score]", "[Judge()]"])
def test_an_object_that_the_trainer_is_given_has_a_model(given: str) -> None:
    judge = """from sentence_transformers import SentenceTransformer
class Judge:
    def __init__(self):
        self.encoder = SentenceTransformer("BAAI/bge-m3")
    def score(self, completions, **kwargs):
        return self.encoder.encode(completions)
"""
    text = judge + REWARDED.replace("from rewards import score\n", "").replace("[score]", given)
    assert "puts BAAI/bge-m3 on the card" in str(checked("train.py", text).unread)


def test_where_nothing_pins_trl_its_newest_loss_is_said() -> None:
    written("requirements.txt", "trl>=0.7\n")
    text = "from trl import SFTTrainer\nSFTTrainer('Qwen/Qwen2.5-0.5B', train_dataset=rows).train()\n"
    said = "loss_head fused (TRL's newest: no logits are made; until 1.6 all were)"
    assert said in checked("train.py", text).assumed
    assert said not in checked("train.py", text, trainer_version="1.16").assumed
