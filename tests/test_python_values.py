"""Proves what a program's values come to where its text alone decides them: versions that it asks for, arguments under
a name that is worked out, packages in a folder of their name, settings with a default, metrics of whole logits.
"""

from pathlib import Path

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.asking import one_hint
from memplan.frameworks.reading import read_target
from memplan.spec.reading import JobInput

HEAD = """
import sys, torch, transformers
from packaging import version
from peft import LoraConfig, get_peft_model
from pydantic import Field
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
ID = "Qwen/Qwen2.5-0.5B"
"""
ARGS = "args = TrainingArguments(per_device_train_batch_size=2, bf16=True, eval_strategy='steps'{})\n"
LENGTH = "rows = tokenizer(text, truncation=True, max_length=128)\n"


def read(folder: Path, text: str, **options: object) -> JobInput:
    path = folder / "train.py"
    path.write_text(HEAD + text)
    return read_target(str(path), options)


@pytest.mark.parametrize(
    ("test", "since_5"),
    [
        ("int(transformers.__version__.split('.', maxsplit=1)[0]) >= 5", True),
        ("version.parse(transformers.__version__) >= version.parse('4.56')", True),
        ("version.parse(transformers.__version__) < version.parse('4.56')", False),
    ],
)
@pytest.mark.parametrize("pin", ["", "4.46.3"])
def test_a_version_that_a_program_asks_for(tmp_path: Path, test: str, since_5: bool, pin: str) -> None:
    (tmp_path / "requirements.txt").write_text(f"transformers=={pin}\n" if pin else "")
    given = read(
        tmp_path,
        f"key = 'dtype' if {test} else 'torch_dtype'\nsize = 1 if {test} else 4\n{LENGTH}"
        "model = AutoModelForCausalLM.from_pretrained(ID, **{key: torch.float16})\n"
        "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=size)).train()\n",
    )
    assert (given.job.precision, given.job.batch_size) == ("fp16", 1 if since_5 is not bool(pin) else 4)


def test_an_argument_whose_name_nobody_knows_is_asked_for(tmp_path: Path) -> None:
    model = "model = AutoModelForCausalLM.from_pretrained(ID, **{sys.argv[1]: torch.float16})\n"
    given = read(tmp_path, f"{LENGTH}{model}Trainer(model=model, args=TrainingArguments()).train()\n")
    assert "**" in {each.key for each in given.unread if each.decides}


def test_a_package_lies_in_a_folder_of_its_name(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    inner = tmp_path / "tools" / "tools"
    inner.mkdir(parents=True)
    (inner / "loading.py").write_text(
        "from pydantic import Field\nclass Settings:\n    size: int = Field(default=6, alias='SIZE')\n"
    )
    args = "SFTConfig(max_length=64, per_device_train_batch_size=Settings().size)"
    given = read(tmp_path, f"from tools.loading import Settings\nSFTTrainer(model=ID, args={args}).train()\n")
    assert given.job.batch_size == 6


@pytest.mark.parametrize(
    ("steps", "more", "kept", "asked"),
    [
        (", eval_accumulation_steps=4", "", 4, set()),
        ("", "", None, {"evaluation"}),
        ("", ", preprocess_logits_for_metrics=best", None, set()),
        (", prediction_loss_only=True", "", None, set()),
    ],
)
def test_metrics_keep_the_logits_of_what_is_evaluated(
    tmp_path: Path, steps: str, more: str, kept: int | None, asked: set[str]
) -> None:
    head = f"def best(logits, labels):\n    return logits.argmax(-1)\n{LENGTH}{ARGS.format(steps)}"
    model = "model = AutoModelForCausalLM.from_pretrained(ID)\n"
    trainer = f"Trainer(model=model, args=args, compute_metrics=best{more}).train()\n"
    given = read(tmp_path, head + model + trainer)
    assert given.job.evaluation.accumulation_steps == kept
    assert {each.asks for each in given.unread if each.asks} == asked


@pytest.mark.parametrize(
    ("after", "rows", "asked"), [("", None, []), ("evaluate", 4, []), ("predict", 4, ["evaluation"])]
)
def test_what_is_evaluated_after_training_is_counted(
    tmp_path: Path, after: str, rows: int | None, asked: list[str]
) -> None:
    head = LENGTH + ARGS.replace("'steps'", "'no'").format(", per_device_eval_batch_size=4")
    trainer = "model = AutoModelForCausalLM.from_pretrained(ID)\ntrainer = Trainer(model=model, args=args)\n"
    given = read(tmp_path, f"{head}{trainer}trainer.train()\n{f'trainer.{after}(rows)' if after else ''}\n")
    assert given.job.eval_batch_size == rows
    assert [each.asks for each in given.unread if each.asks] == asked


def test_a_class_that_loads_what_the_checkpoint_says_loads_its_model(tmp_path: Path) -> None:
    head = """from dataclasses import dataclass
from transformers import AutoConfig, HfArgumentParser
CLASSES = {}
class MyAutoModel:
    @staticmethod
    def from_pretrained(name, *args, **kwargs):
        return CLASSES[AutoConfig.from_pretrained(name).architectures[0]].from_pretrained(name, *args, **kwargs)
@dataclass
class Own:
    model_name_or_path: str = "x"
own, args = HfArgumentParser((Own, TrainingArguments)).parse_args_into_dataclasses()
dtype = torch.float16 if args.fp16 else torch.bfloat16 if args.bf16 else torch.float32
model = MyAutoModel.from_pretrained(own.model_name_or_path, torch_dtype=dtype)
"""
    (tmp_path / "train.py").write_text(f"{HEAD}{head}{LENGTH}Trainer(model=model, args=args).train()\n")
    (tmp_path / "run.sh").write_text(
        "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 true --per_device_train_batch_size 3\n"
    )
    given = read_target(str(tmp_path / "run.sh"), {"num_gpus": 1})
    assert (given.job.model, given.job.precision, given.job.batch_size) == ("Qwen/Qwen2.5-0.5B", "bf16", 3)


def test_a_program_that_is_not_followed_is_not_its_options_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from elsewhere import main\nmain()\n")
    (tmp_path / "run.sh").write_text(
        "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --num_train_epochs 1 --max_length 64\n"
    )
    given = read_target(str(tmp_path / "run.sh"), {"num_gpus": 1})
    assert [each.key for each in given.unread if each.decides] == ["program"]
    assert one_hint(given.unread) == "add --without program, if its own settings are those of its command"


LOSS = """
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification
class Pairs(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        {}
        loss = -F.logsigmoid(j - k).mean()
        return loss
"""
ONE = "scores = model(input_ids=inputs['input_ids'])[0]\n        j, k = scores[::2], scores[1::2]"
TWO = "j = model(inputs['a'])[0]\n        k = model(inputs['b'])[0]"


@pytest.mark.parametrize(
    ("body", "labels", "passes"),
    [
        (ONE, 1, "concatenated"),
        (TWO, 1, "two-forward"),
        (TWO, 3, "two-forward"),
        (TWO + "; x = self.teacher(inputs)", 1, ""),
    ],
)
def test_a_loss_that_compares_the_scores_of_pairs(tmp_path: Path, body: str, labels: int, passes: str) -> None:
    (tmp_path / "requirements.txt").write_text("transformers==4.31\n")
    model = f"model = AutoModelForSequenceClassification.from_pretrained('facebook/opt-125m', num_labels={labels})\n"
    trainer = "Pairs(model=model, args=TrainingArguments(per_device_train_batch_size=3)).train()\n"
    given = read(tmp_path, LENGTH + LOSS.format(body) + model + trainer)
    if passes:
        job = given.job
        assert (job.method, job.pair_pass, job.batch_size, job.attention) == ("reward", passes, 3, "eager")
    assert bool(passes) is not any(each.key == "compute_loss" for each in given.unread)


@pytest.mark.parametrize(("model", "length"), [("Qwen/Qwen2.5-0.5B", 192), ("google/flan-t5-small", 128)])
def test_two_halves_of_a_row_are_one_for_a_causal_model(tmp_path: Path, model: str, length: int) -> None:
    cuts = "max_source_length, max_target_length = 64, 128\n"
    cuts += "a = tokenizer.encode(text=x, truncation=True, max_length=max_source_length)\n"
    cuts += "b = tokenizer.encode(text=y, truncation=True, max_length=max_target_length)\n"
    auto = "Seq2SeqLM" if "t5" in model else "CausalLM"
    made = f"from transformers import AutoModelFor{auto}\nmodel = AutoModelFor{auto}.from_pretrained('{model}')\n"
    given = read(tmp_path, f"{cuts}{made}Trainer(model=model, args=TrainingArguments()).train()\n")
    assert given.job.sequence_length == length


def test_a_program_under_a_root_that_nobody_sets_is_the_one_that_lies_here(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "sft").mkdir()
    args = "SFTConfig(max_length=64, per_device_train_batch_size=5)"
    (tmp_path / "sft" / "train.py").write_text(f"{HEAD}SFTTrainer(model=ID, args={args}).train()\n")
    (tmp_path / "run.sh").write_text('HERE="$PROJECT/sft"\npython3 "$HERE/train.py"\n')
    assert read_target(str(tmp_path / "run.sh"), {"num_gpus": 1}).job.batch_size == 5


def test_arguments_as_a_mapping_go_on_into_another_config(tmp_path: Path) -> None:
    text = (
        "from trl import DPOConfig, DPOTrainer\nfirst = TrainingArguments(per_device_train_batch_size=3, optim='sgd')\n"
        "args = DPOConfig(**first.to_dict(), max_length=128)\n"
        "DPOTrainer(model=AutoModelForCausalLM.from_pretrained(ID), args=args).train()\n"
    )
    job = read(tmp_path, text).job
    assert (job.batch_size, job.optimizer, job.sequence_length) == (3, "sgd", 128)
    assert job.gradient_checkpointing == "none"  # which DPOConfig alone would turn on


def test_peft_s_class_makes_adapters_as_get_peft_model_does(tmp_path: Path) -> None:
    text = (
        "from peft import PeftModelForCausalLM\nlora = LoraConfig(r=4, target_modules=['q_proj'])\n"
        "model = PeftModelForCausalLM(AutoModelForCausalLM.from_pretrained(ID), peft_config=lora, adapter_name='a')\n"
        "SFTTrainer(model=model, args=SFTConfig(max_length=128)).train()\n"
    )
    lora = read(tmp_path, text).job.lora
    assert lora is not None
    assert (lora.r, lora.targets) == (4, ("q_proj",))


def test_a_registry_of_trainers_by_their_own_names(tmp_path: Path) -> None:
    text = (
        "class Mine(SFTTrainer):\n    pass\nKNOWN = {}\n"
        "def register(each):\n    KNOWN[each.__name__] = each\nregister(Mine)\nregister(SFTTrainer)\n"
        "KNOWN.get('Mine')(model=AutoModelForCausalLM.from_pretrained(ID), args=SFTConfig(max_length=96)).train()\n"
    )
    assert read(tmp_path, text).job.sequence_length == 96


def test_fire_takes_words_in_brackets_for_a_list(tmp_path: Path) -> None:
    text = (
        "import fire\ndef main(targets=['q_proj'], bs=1):\n    lora = LoraConfig(r=4, target_modules=targets)\n"
        "    model = AutoModelForCausalLM.from_pretrained(ID)\n    args = SFTConfig(max_length=96,"
        " per_device_train_batch_size=bs)\n    SFTTrainer(model=model, args=args, peft_config=lora).train()\n"
        "fire.Fire(main)\n"
    )
    (tmp_path / "train.py").write_text(HEAD + text)
    (tmp_path / "a.sh").write_text("torchrun --nproc_per_node 1 train.py --targets '[k_proj, v_proj]' --bs 2\n")
    job = read_target(str(tmp_path / "a.sh"), {}).job
    assert job.lora is not None
    assert (job.lora.targets, job.batch_size) == (("k_proj", "v_proj"), 2)


def test_a_parser_of_h4s_takes_a_config_first(tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n"
        "class H4ArgumentParser(HfArgumentParser):\n    def parse(self):\n"
        "        return self.parse_yaml_file(sys.argv[1])\n"
        "@dataclass\nclass M:\n    name: str = None\n@dataclass\nclass A(SFTConfig):\n    mine: int = 1\n"
        "m, args = H4ArgumentParser((M, A)).parse()\n"
        "SFTTrainer(model=AutoModelForCausalLM.from_pretrained(m.name), args=args).train()\n"
    )
    (tmp_path / "run_sft.py").write_text(HEAD + text)
    (tmp_path / "c.yaml").write_text("name: Qwen/Qwen2.5-0.5B\nmax_length: 64\nper_device_train_batch_size: 5\n")
    (tmp_path / "a.sh").write_text("torchrun --nproc_per_node 1 run_sft.py c.yaml --max_length=128\n")
    job = read_target(str(tmp_path / "a.sh"), {}).job
    assert (job.model, job.sequence_length, job.batch_size) == ("Qwen/Qwen2.5-0.5B", 128, 5)


def test_a_model_that_is_loaded_here_or_by_its_trainer_is_one(tmp_path: Path) -> None:
    text = (
        "tokenizer, kwargs, model = AutoTokenizer.from_pretrained(ID), dict(dtype=torch.bfloat16), ID\n"
        "if '<|im_start|>' in tokenizer.chat_template:\n"
        "    model, kwargs = AutoModelForCausalLM.from_pretrained(ID, **kwargs), None\n"
        "SFTTrainer(model=model, args=SFTConfig(model_init_kwargs=kwargs, max_length=128)).train()\n"
    )
    found = read(tmp_path, text, num_gpus=1)
    assert (found.job.precision, [each.key for each in found.unread if each.decides]) == ("bf16", [])
    other = read(tmp_path, text.replace("(ID, **", "('gpt2', **"), num_gpus=1)
    assert {"model", "quantization"} <= {each.key for each in other.unread if each.decides}


@pytest.mark.parametrize(
    ("bits", "after", "precision", "checkpointing"),
    [
        ("", "", "fp32", "none"),  # which peft casts whole, and does not checkpoint
        ("", "model = model.to(torch.bfloat16)\n", "bf16", "none"),
        (", load_in_8bit=True", "", "bf16", "full"),
    ],
)
def test_a_whole_model_that_is_prepared_as_if_it_had_few_bits(
    tmp_path: Path, bits: str, after: str, precision: str, checkpointing: str
) -> None:
    text = (
        "from peft import prepare_model_for_kbit_training\n"
        f"model = AutoModelForCausalLM.from_pretrained(ID, torch_dtype=torch.bfloat16{bits})\n"
        f"model = prepare_model_for_kbit_training(model)\n{after}"
        "model = get_peft_model(model, LoraConfig(r=4, target_modules=['self_attn.q_proj', 'mlp.up_proj']))\n"
        f"{LENGTH}Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=2)).train()\n"
    )
    job = read(tmp_path, text).job
    assert (job.precision, job.gradient_checkpointing) == (precision, checkpointing)
    assert job.lora is not None
    assert job.lora.targets == ("q_proj", "up_proj")


@pytest.mark.parametrize(
    ("given", "batch", "why"),
    [({}, 16, "evaluation scores 12 completions"), ({"batch_size": 8}, 8, "more rows than --batch-size")],
)
def test_an_evaluation_of_more_completions_than_a_step_is_counted_as_a_step(
    tmp_path: Path, given: dict[str, int], batch: int, why: str
) -> None:
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(per_device_train_batch_size=8, num_generations=8,"
        " eval_strategy='steps', per_device_eval_batch_size=12)\n"
        "GRPOTrainer(model=ID, args=args, reward_funcs=f, train_dataset=a).train()\n"
    )
    found = read(tmp_path, text, **given)
    assert found.job.batch_size == batch
    assert why in f"{found.unread}{found.warnings}"


def test_rows_are_no_longer_than_what_a_tokenizers_limit_is_compared_with(tmp_path: Path) -> None:
    text = (
        "args = SFTConfig(max_length=min(tokenizer.model_max_length, 640))\n"
        "SFTTrainer(model=AutoModelForCausalLM.from_pretrained(ID), args=args).train()\n"
    )
    assert read(tmp_path, text).job.sequence_length == 640


def test_rows_that_are_cut_in_pieces(tmp_path: Path) -> None:
    text = (
        "block_size = 320\ndef group(rows):\n    whole = {key: sum(rows[key], []) for key in rows}\n"
        "    return {k: [t[i : i + block_size] for i in range(0, n, block_size)] for k, t in whole.items()}\n"
        + ARGS.format("")
        + "Trainer(model=AutoModelForCausalLM.from_pretrained(ID), args=args, train_dataset=data.map(group)).train()\n"
    )
    assert read(tmp_path, text).job.sequence_length == 320


FEW_BITS = """\
from peft import prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig
model = AutoModelForCausalLM.from_pretrained(ID, quantization_config=BitsAndBytesConfig(load_in_4bit=True),
                                             attn_implementation="flash_attention_2")
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8, target_modules=["q_proj"]))
"""
CAPPED = "model = AutoModelForCausalLM.from_pretrained('google/gemma-2-9b', attn_implementation='sdpa')\n"


@pytest.mark.parametrize(
    ("model", "bf16", "kernel"), [(CAPPED, True, "eager"), (FEW_BITS, False, "sdpa"), (FEW_BITS, True, "flash")]
)
def test_an_attention_that_runs_otherwise_than_asked_for_is_counted_from_above(
    tmp_path: Path, model: str, bf16: bool, kernel: str
) -> None:
    args = ARGS.format("").replace("bf16=True", f"bf16={bf16}")
    given = read(tmp_path, f"{LENGTH}{args}{model}Trainer(model=model, args=args).train()\n")
    assert (given.job.attention, [each.above for each in given.unread]) == (kernel, [True] * (kernel != "flash"))


def test_a_head_that_is_no_language_models_is_refused(tmp_path: Path) -> None:
    start = "from transformers import LongformerConfig, LongformerForMaskedLM\n"
    model = "model = LongformerForMaskedLM(LongformerConfig())\n"
    with pytest.raises(InvalidJob, match="a head for MaskedLM"):
        read(tmp_path, f"{start}{LENGTH}{ARGS.format('')}{model}Trainer(model=model, args=args).train()\n")


def test_strings_within_strings_that_only_a_later_python_reads(tmp_path: Path) -> None:
    more = (
        """row = {"text": f"{x["a"]:>{n}} {{}}" + f'{"".join(f"{y['b']}" for y in x)}'}\nsize = 2 if f"{1}" else 4\n"""
    )
    model = "model = AutoModelForCausalLM.from_pretrained(ID, torch_dtype=torch.bfloat16)\n"
    rest = "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=size)).train()\n"
    assert read(tmp_path, f"{more}{LENGTH}{model}{rest}").job.batch_size == 2
