"""Proves what programs of users showed: Unsloth's own defaults, the environment they set, losses of their own that are
made of numbers, and configs that a script takes as its argument.
"""

from pathlib import Path

import pytest
from framework_cases import FIRST, SECOND, UNSLOTH, checked

from memplan.frameworks.reading import read_target


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_configs_that_are_taken_from_trl_after_unsloth_have_its_defaults() -> None:
    ours = checked("a.py", UNSLOTH.format(first=FIRST, second=SECOND, arguments="")).job
    theirs = checked("b.py", UNSLOTH.format(first=SECOND, second=FIRST, arguments="")).job
    keys = ("batch_size", "gradient_accumulation_steps", "optimizer")
    assert [ours[key] for key in keys] == [4, 2, "adamw-8bit"]
    assert [theirs[key] for key in keys] == [8, 1, "adamw"]


@pytest.mark.parametrize("said", ["", "bf16=False, fp16=False", "bf16=True"])
def test_unsloth_turns_mixed_precision_on_where_the_arguments_turn_it_off(said: str) -> None:
    job = checked("a.py", UNSLOTH.format(first=SECOND, second=FIRST, arguments=said)).job
    assert (job["dtype"], job["autocast"]) == ("bf16", True)


@pytest.mark.parametrize("how", ['os.environ["{}"] = "{}"', 'os.environ.setdefault("{}", "{}")'])
def test_a_program_sets_its_allocator(how: str) -> None:
    how = "import os\n" + how.format("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    job = checked("a.py", UNSLOTH.format(first=how, second=f"{FIRST}\n{SECOND}", arguments="")).job
    assert job["allocator"]["expandable_segments"]


DPO = """\
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
class Mine(DPOTrainer):
{methods}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
Mine(model=model, args=DPOConfig(max_length=256, per_device_train_batch_size=2, bf16=True)).train()
"""
LOSS = """\
    def dpo_loss(self, chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps):
        logits = (chosen_logps - rejected_logps) - (ref_chosen_logps - ref_rejected_logps)
        return -F.logsigmoid(self.beta * logits) * 2, logits, logits
"""
METRICS = """\
    def get_batch_loss_metrics(self, model, batch, train_eval="train"):
        out = self.concatenated_forward(model, batch)
        losses, _, _ = self.dpo_loss(out["chosen_logps"], out["rejected_logps"], *self.compute_ref_log_probs(batch))
        return losses.mean(), {"logits": out["mean_chosen_logits"].item()}
"""


@pytest.mark.parametrize(
    ("methods", "fits"),
    [
        (LOSS, "yes"),
        (LOSS + METRICS, "yes"),
        (METRICS.replace("out =", "more = model(**batch).logits\n        out ="), "unclear"),
        (METRICS.replace("losses.mean()", "self.mine(model)") + "    def mine(self, model): ...\n", "unclear"),
        (LOSS.replace("chosen_logps, rejected_logps,", "policy_logits, rejected_logps,"), "unclear"),
        (METRICS.replace("get_batch_loss_metrics", "compute_loss"), "yes"),
        (METRICS.replace("losses.mean()", "out['chosen_logits'].softmax(-1).mean()"), "unclear"),
        ("    def concatenated_forward(self, model, batch):\n        return model(**batch)\n", "unclear"),
    ],
)
def test_a_loss_of_log_probabilities_is_a_number_for_each_row(methods: str, fits: str) -> None:
    found = checked("a.py", DPO.format(methods=methods), num_gpus=1)
    assert found.fits == fits, found.text
    assert found.framework in ("TRL 0.22", ""), found.framework  # by torch_dtype; without it by these methods, 0.28
    newer = checked("b.py", DPO.format(methods=methods).replace("torch_dtype", "dtype"))
    assert newer.framework in ("TRL 0.28", "")


TOKENS = """\
from trl import GRPOConfig, GRPOTrainer
class Mine(GRPOTrainer):
    def compute_loss(self, model, inputs, **kwargs):
        logps = self._get_per_token_logps(model, inputs["ids"], inputs["mask"], logits_to_keep)
        return -(logps.exp() * inputs["advantages"]).mean(){more}
Mine(model="Qwen/Qwen2.5-0.5B", args=GRPOConfig(max_completion_length=128{fused}), reward_funcs=[len]).train()
"""


@pytest.mark.parametrize(
    ("more", "fused", "fits"),
    [("", "", "yes"), (" + model(**inputs).loss", "", "unclear"), ("", ", use_liger_loss=True", "unclear")],
)
def test_a_loss_of_trls_own_log_probabilities_of_tokens_is_small(more: str, fused: str, fits: str) -> None:
    found = checked("a.py", TOKENS.format(more=more, fused=fused))
    assert found.fits == fits, found.text
    assert fits != "yes" or found.framework == "TRL 0.19"


PROGRAM = """\
from transformers import AutoModelForCausalLM
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
training_args, model_args = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()
dtype = model_args.dtype if model_args.dtype in ["auto", None] else getattr(torch, model_args.dtype)
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, dtype=dtype)
SFTTrainer(model=model, args=training_args).train()
"""
SCRIPT = """\
config=${1:-"configs/a.yaml"}
n=$(nvidia-smi -L | wc -l)
accelerate launch --num_processes $n train.py --config ${config}
"""
CONFIG = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nmine: 3\nper_device_train_batch_size: {}\nbf16: true\n"
)


def test_a_config_that_a_script_takes_as_its_argument_is_read_as_its_program_does() -> None:
    Path("README.md").write_text("")
    Path("train.py").write_text(PROGRAM)
    Path("run.sh").write_text(SCRIPT)
    Path("configs").mkdir()
    Path("configs/a.yaml").write_text(CONFIG.format(1))
    found = checked("configs/b.yaml", CONFIG.format(3), num_gpus=2)
    assert (found.fits, found.job["batch_size"], found.job["precision"]) == ("yes", 3, "bf16-amp"), found.text
    assert any("as run.sh starts it" in each for each in found.assumed)


def test_no_without_quotes_is_one_process_of_accelerates() -> None:
    Path("one.yaml").write_text("distributed_type: NO\ncompute_environment: LOCAL_MACHINE\nnum_processes: 1\n")
    Path("sft.yaml").write_text(CONFIG.format(1).replace("mine: 3\n", ""))
    assert read_target("sft.yaml", {}, ["one.yaml"]).job.num_gpus == 1


TRUNCATED = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
tokenizer = AutoTokenizer.from_pretrained("x")
tokenizer.model_max_length = 300
rows = load("x").map(lambda row: tokenizer(row["text"], truncation=True))
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
Trainer(model=model, train_dataset=rows, args=TrainingArguments(per_device_train_batch_size=2)).train()
"""


def test_a_tokenizer_cuts_at_what_it_was_told() -> None:
    found = checked("a.py", TRUNCATED)
    assert (found.fits, found.job["sequence_length"]) == ("yes", 300)
    assert checked("b.py", TRUNCATED.replace("300", "100_000")).fits == "unclear"
    told = TRUNCATED.replace("tokenizer.model_max", "if tokenizer.model_max_length > 10**5:\n    tokenizer.model_max")
    told = told.replace('.map(lambda row: tokenizer(row["text"], truncation=True))', "").replace(
        "Trainer(model", "SFTTrainer(max_seq_length=tokenizer.model_max_length, model"
    )
    found = checked("d.py", "from trl import SFTTrainer\n" + told)
    assert found.job["sequence_length"] == 300, found.text
    assert "no bound of its own" in str(found.assumed)
    cut = TRUNCATED.replace("truncation=True", "truncation=True, max_length=200")
    assert checked("c.py", cut).job["sequence_length"] == 200


def test_an_option_that_is_no_number_is_said_before_anything_is_counted_with_it() -> None:
    found = checked("a.py", TRUNCATED, sequence_length="--num-gpus")
    assert (found.fits, found.text) == ("error", "sequence_length: '--num-gpus' is no whole number")


ADAPTER = """\
import importlib
import os
from abc import ABC, abstractmethod
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Base(ABC):
    def __init__(self, name, rows=1):
        self.name, self.rows = name, rows
    @abstractmethod
    def load(self): ...
class Small(Base):
    def __init__(self, name="Qwen/Qwen2.5-0.5B"):
        super().__init__(name, rows=3)
    def load(self):
        return AutoModelForCausalLM.from_pretrained(self.name)
class Mine(Trainer):
    def __init__(self, adapter, **kwargs):
        super().__init__(model=adapter.load(), args=arguments(adapter), **kwargs)
def length(name, usual):
    value = os.getenv(name)
    if value is None:
        return usual
    return int(value)
def arguments(adapter):
    return importlib.import_module("parts." + "own").arguments(adapter.rows)
print(tokenizer("x", truncation=True, max_length=length("MAX_LENGTH", 128)))
Mine(Small()).train()
"""
PART = """\
from transformers import TrainingArguments
def arguments(rows):
    return TrainingArguments(per_device_train_batch_size=rows)
"""


def test_what_a_class_above_sets_is_known_and_a_module_by_its_name() -> None:
    Path("parts").mkdir()
    Path("parts/own.py").write_text(PART)
    found = checked("a.py", ADAPTER)
    assert found.fits == "yes", found.text
    assert (found.job["model"], found.job["batch_size"]) == ("Qwen/Qwen2.5-0.5B", 3)
    assert found.job["sequence_length"] == 128


SCORED = """\
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments
class RewardTrainer(Trainer):
    def compute_loss(self, model, inputs, **kwargs):
        outputs = model(input_ids=inputs["input_ids"])
        return torch.log(torch.sigmoid({}) + 1e-10).mean()
model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=2)
RewardTrainer(model=model, args=TrainingArguments(per_device_train_batch_size=2)).train()
"""


@pytest.mark.parametrize(
    ("of", "fits"),
    [("outputs.logits", "yes"), ("outputs.hidden_states[-1]", "unclear"), ("logits[jidx] - logits[kidx]", "unclear")],
)
def test_a_loss_of_a_head_for_classes_makes_little(of: str, fits: str) -> None:
    assert checked("a.py", SCORED.format(of), sequence_length=256).fits == fits


def test_rows_of_a_head_for_classes_stay_whole_beside_a_loss_that_an_option_gives() -> None:
    found = checked("a.py", SCORED.format("outputs.logits"), sequence_length=256, own_loss={"logits": 16})
    assert (found.job["method"], found.job["batch_size"]) == ("sft", 2), found.text


DRY = """\
import json
import yaml
from dataclasses import dataclass
from typing import Any, Dict, Mapping
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
DEFAULTS = {"dry_run": True, "model": {"name": "x", "rows": 1}}
@dataclass
class Config:
    dry_run: bool
    model: Dict[str, Any]
def merged(base, update):
    result = dict(base)
    for key, value in update.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result
def train(config):
    model = AutoModelForCausalLM.from_pretrained(config.model["name"])
    Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=config.model["rows"])).train()
def main():
    config = Config(**merged(json.loads(json.dumps(DEFAULTS)), yaml.safe_load(open("c.yaml"))))
    if config.dry_run:
        return 0
    train(config)
    return 0
if __name__ == "__main__":
    raise SystemExit(main())
"""


def test_a_dry_run_by_default_is_gone_past_and_a_merged_config_is_known() -> None:
    Path("c.yaml").write_text("model: {name: Qwen/Qwen2.5-0.5B}\n")
    found = checked("a.py", DRY, sequence_length=256)
    assert (found.fits, found.job["model"], found.job["batch_size"]) == ("yes", "Qwen/Qwen2.5-0.5B", 1), found.text


def test_a_switch_to_train_is_taken_as_on_where_nothing_is_trained_without_it() -> None:
    text = TRUNCATED.replace("Trainer(model=", "if args.do_train:\n    Trainer(model=")
    asked = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--do_train', action='store_true')\n"
    found = checked("a.py", asked + "args = p.parse_args()\n" + text)
    assert (found.fits, found.job["sequence_length"]) == ("yes", 300), found.text


def test_a_section_of_a_project_is_no_model_of_memplans_own() -> None:
    text = "model: {model_id: gemma_1b_en, dtype: bfloat16}\nlora: {rank: 8}\n"
    assert "model_type" not in checked("c.yaml", text).text
    own = text.replace("model_id: gemma_1b_en, dtype: bfloat16", "hidden_size: 64, vocab_size: 32")
    assert "model_type" in checked("d.yaml", own).text


ADAPTED = """\
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import {config}, {trainer}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
lora = LoraConfig(r=16, target_modules="all-linear")
{wrap}
{trainer}(model=model, args={config}({arguments}), {handed}).train()
"""
WRAPPED = {"wrap": "model = get_peft_model(model, lora)", "handed": ""}
BY_TRAINER = {"wrap": "", "handed": "peft_config=lora"}


@pytest.mark.parametrize(
    ("trainer", "arguments", "version", "how", "reference"),
    [
        ("DPO", "max_length=256", "1.16", WRAPPED, "second-adapter"),
        ("DPO", "max_length=256", "1.16", BY_TRAINER, "adapter"),
        ("DPO", "max_length=256", "0.28", WRAPPED, "adapter"),
        ("DPO", 'max_length=256, ref_adapter_name="sft"', "0.12", WRAPPED, "second-adapter"),
        ("DPO", "max_length=256, precompute_ref_log_probs=True", "1.16", WRAPPED, "second-adapter"),
        ("DPO", "max_length=256, precompute_ref_log_probs=True", "1.16", BY_TRAINER, "precomputed"),
        ("GRPO", "beta=0.04", "0.27", WRAPPED, "second-adapter"),
        ("GRPO", "beta=0.0", "1.16", WRAPPED, "none"),
        ("GRPO", "beta=0.0 if float(x) > 1 else 0.01", "1.16", WRAPPED, "second-adapter"),
        ("KTO", "max_length=256", "1.1", WRAPPED, "adapter"),
    ],
)
def test_a_model_that_is_adapted_before_the_trainer_has_a_second_set_of_adapters(
    trainer: str, arguments: str, version: str, how: dict[str, str], reference: str
) -> None:
    text = ADAPTED.format(trainer=f"{trainer}Trainer", config=f"{trainer}Config", arguments=arguments, **how)
    assert checked("a.py", text, trainer_version=version).job["reference"] == reference


def test_towers_that_unsloth_loads_beside_a_language_model_are_said() -> None:
    text = UNSLOTH.format(first=FIRST, second=SECOND, arguments="").replace(
        "Qwen/Qwen2.5-0.5B", "unsloth/gemma-3n-E4B-it"
    )
    found = checked("a.py", text)
    assert found.fits == "unclear"
    assert "towers of images and of sound are loaded too" in str(found.unread)


COLLATED = """\
from transformers import AutoModelForCausalLM
from trl import DPOTrainer
from trl.trainer.utils import DPODataCollatorWithPadding
def is_adapter_model(name):
    return "adapter_config.json" in list_files(name)
name = "Qwen/Qwen2.5-0.5B"
if is_adapter_model(name):
    name = base_of(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype="bfloat16")
collator = DPODataCollatorWithPadding(tokenizer, max_length={length}, max_prompt_length=128)
DPOTrainer(model, model, args=args(), beta=0.1, data_collator=collator, tokenizer=tokenizer).train()
"""


def test_a_collator_of_pairs_cuts_and_a_copied_question_for_adapters_is_answered() -> None:
    found = checked("a.py", COLLATED.format(length=777), batch_size=1, precision="bf16", optimizer="adamw")
    assert (found.job["model"], found.job["sequence_length"]) == ("Qwen/Qwen2.5-0.5B", 777), found.text


PARTIAL = """\
from functools import partial
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
def cut(model_max_length, tokenizer, row):
    return {"input_ids": tokenizer(row["text"])["input_ids"][:model_max_length]}
def other(model_max_length, row):
    return row["input_ids"][: model_max_length - 1]
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=1, bf16=True)
Trainer(model=model, args=args, train_dataset=rows.map(partial(cut, 777, tokenizer))).train()
"""


def test_what_a_mapped_function_is_given_beforehand_cuts() -> None:
    assert checked("a.py", PARTIAL).job["sequence_length"] == 777


@pytest.mark.parametrize("other", ["None", '["embed_tokens"]'])
def test_of_modules_that_one_of_two_lists_saves_all_are_counted(other: str) -> None:
    text = ADAPTED.format(trainer="SFTTrainer", config="SFTConfig", arguments="max_length=256", **WRAPPED)
    text = text.replace("lora =", f'import os\nends = ["lm_head"] if os.path.exists("x") else {other}\nlora =')
    found = checked("a.py", text.replace('"all-linear"', '"all-linear", modules_to_save=ends'))
    assert set(found.job["lora"]["modules_to_save"]) == {"lm_head", *other.strip('["]').split()} - {"None"}, found.text


GENERATED = """\
import os, sys
import trl.import_utils as utils
from transformers import AutoModelForCausalLM
sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "../shared")))
from names import MODEL
from trl import GRPOConfig, GRPOTrainer
utils.is_weave_available = lambda: False
model = AutoModelForCausalLM.from_pretrained(MODEL, device_map="auto", dtype="bfloat16")
args = GRPOConfig(generation_batch_size=16, num_generations=8, max_completion_length=128)
GRPOTrainer(model=model, args=args, reward_funcs=[len]).train()
"""


def test_modules_lie_where_a_program_adds_a_path_and_one_process_generates_for_all_cards() -> None:
    for name, text in (("shared/names.py", 'MODEL = "Qwen/Qwen2.5-0.5B"\n'), ("rl/x.py", "")):
        Path(name).parent.mkdir()
        Path(name).write_text(text)
    found = checked("rl/a.py", GENERATED, num_gpus=4)
    assert (found.fits, found.job["rollout"]["max_num_seqs"]) == ("yes", 16), found.text
    alone = checked("rl/a.py", GENERATED.replace('device_map="auto", ', ""), num_gpus=4)
    assert alone.job["rollout"]["max_num_seqs"] == 4


def test_a_field_whose_lack_its_class_refuses_is_asked_for() -> None:
    found = checked("a.py", REFUSING, num_gpus=8)
    assert (found.fits, "--sharding" in found.hint) == ("unclear", True)
    assert checked("b.py", REFUSING.replace("is None", "== 'x'"), num_gpus=8).fits == "yes"


REFUSING = """
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

@dataclass
class Arguments:
    config_path: Optional[str] = field(default=None)

    def __post_init__(self):
        if self.config_path is None:
            raise ValueError("config_path")

data_args = HfArgumentParser(Arguments).parse_args_into_dataclasses()[0]
args = GRPOConfig(output_dir="x", deepspeed=data_args.config_path, max_prompt_length=64, max_completion_length=64,
                  per_device_train_batch_size=1, bf16=True)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=[len], args=args, train_dataset=None).train()
"""


SHORT = """\
from dataclasses import dataclass
import argparse
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Mine:
    max_seq_length: int = 512
{parser}
bias[:, rows : rows + block_size] = 1
rows = [tokenizer(text, max_length=mine.max_seq_length, truncation=True) for text in data]
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
Trainer(model=model, args=TrainingArguments(bf16=True, per_device_train_batch_size=1), train_dataset=rows).train()
"""
HUGGING = "mine, args = HfArgumentParser((Mine, TrainingArguments)).parse_args_into_dataclasses()\nblock_size = 4096"
PLAIN = """\
parser = argparse.ArgumentParser()
parser.add_argument("--max_seq_length", type=int, default=512)
parser.add_argument("--block_size", type=int, default=4096)
mine = parser.parse_args()
block_size = mine.block_size"""


@pytest.mark.parametrize("parser", [HUGGING, PLAIN])
def test_an_option_may_be_shortened_as_argparse_takes_it(parser: str) -> None:
    """Elements of a tensor that are written to are no row that is cut."""
    Path("train.py").write_text(SHORT.format(parser=parser))
    for option, length in (("--max_seq_len 1024", 1024), ("--max_seq_length 256", 256), ("--maximum 99", 512)):
        found = checked("run.sh", f"python train.py {option}\n").job
        assert found["sequence_length"] == length, option


def test_a_command_that_speaks_of_images_is_asked_for_a_model_that_sees() -> None:
    text = SHORT.format(parser=PLAIN).replace('"Qwen/Qwen2.5-0.5B"', "elsewhere()")
    Path("train.py").write_text(text)
    hint = checked("run.sh", "python train.py --video_path /data\n").hint
    assert hint.startswith("add --model Qwen/Qwen2.5-VL-7B-Instruct")
    assert "images.per_example=1" in hint
