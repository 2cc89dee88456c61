"""Proves what a program's own way decides: loops that end early, settings laid over others, models that it saves and
loads again, the command in its own text; and that what nobody knows is never taken for the default beneath it.
"""

from pathlib import Path

import pytest

from memplan.errors import NoTraining
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.reading import read_target
from memplan.spec.reading import JobInput

HEAD = """
import argparse, json, os, sys, torch, yaml
from dataclasses import dataclass
from pathlib import Path
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel
ID = "Qwen/Qwen2.5-0.5B"
"""
MODEL = "model = AutoModelForCausalLM.from_pretrained(ID, dtype=torch.bfloat16)\n"
SFT = "t = SFTTrainer(model=model, args=SFTConfig(max_length=512, per_device_train_batch_size={}))\nt.train()\n"


def read(folder: Path, text: str, **options: object) -> JobInput:
    """The job of a program behind HEAD."""
    path = folder / "train.py"
    path.write_text(text if text.startswith('"""') else HEAD + text)
    return read_target(str(path), options)


def asked(given: JobInput) -> set[str]:
    return {each.asks for each in given.unread if each.asks}


@pytest.mark.parametrize(
    ("before", "value", "size"),
    [
        ("for n in [8, 4]:\n    if n > 3:\n        break", "n", 8),
        ("n = None\nfor each in [Path('a'), Path('b')]:\n    if each.exists():\n        n = 2\n        break\n"
         "if n is None:\n    sys.exit()", "2", 2),
        ("def f():\n    for i in range(3):\n        try:\n            return 6\n"
         "        except OSError:\n            pass", "f()", 6),
        ("c = {'n': 3}\nif len(data) > 3:\n    c['n'] = 5", "c['n']", 5),
        ("n = 4 if torch.cuda.get_device_properties(0).total_memory > 60e9 else 1", "n", 4),
        ("def merge(a, b):\n    for k, v in b.items():\n"
         "        a[k] = merge(a[k], v) if k in a and isinstance(v, dict) else v\n    return a\n"
         "c = merge({'t': {'n': 1}}, {'t': {'n': 7}})", "c['t']['n']", 7),
        ("c = {'n': 9, 'm': 1}\nc.pop('n')", "c.get('n', 2)", 2),
        ("@dataclass\nclass A:\n    n: int = None\n    def __post_init__(self):\n"
         "        if self.n is None:\n            self.n = 6\na = A()", "a.n", 6),
        ("class C:\n    n = 5\nif not hasattr(C(), 'n'):\n    raise ValueError", "C().n", 5),
        ("n = 3\nif n == 3:\n    raise ValueError('choose another')", "n", 3),
    ],
)  # fmt: skip
def test_a_way_through_a_program(tmp_path: Path, before: str, value: str, size: int) -> None:
    given = read(tmp_path, f"{before}\n{MODEL}{SFT.format(value)}", gpu="h100-80gb")
    assert (given.job.batch_size, asked(given)) == (size, set())


@pytest.mark.parametrize(
    "before",
    [
        "c = C()\nfor k, v in known.items():\n    setattr(c, k, v)",
        "c = C()\nc.__dict__.update(known)",
        "c = C()\nvars(c).update(known)",
        "c = C(**known)",
        "d = {'n': 1}\nd.update(known)\nc = C(d['n'])",
        "d = {'n': 1, **known}\nc = C(d['n'])",
        "def f(n=1):\n    return C(n)\nc = f(**known)",
    ],
)
def test_settings_that_nobody_knows_over_others_leave_none_known(tmp_path: Path, before: str) -> None:
    text = f"@dataclass\nclass C:\n    n: int = 1\nknown = json.load(sys.stdin)\n{before}\n{MODEL}"
    assert asked(read(tmp_path, text + SFT.format("c.n"))) == {"batch_size"}
    assert asked(read(tmp_path, text.replace("json.load(sys.stdin)", "{'n': 3}") + SFT.format("c.n"))) == set()


OPTIONS = "p = argparse.ArgumentParser()\np.add_argument('--model', required=True)\np.add_argument('--bs', default=1)\n"
BY_OPTION = OPTIONS + "a = p.parse_args()\nmodel = AutoModelForCausalLM.from_pretrained(a.model)\n" + SFT.format("a.bs")


def test_the_command_that_a_program_shows(tmp_path: Path) -> None:
    with pytest.raises(NotKnown, match="the option --model of its command"):
        read(tmp_path, BY_OPTION)
    shown = '"""Trains.\n\n  python train.py --smoke-test --model x\n  python train.py --bs 4 \\\\\n'
    shown += '  --model Qwen/Qwen3-4B\n"""'
    given = read(tmp_path, shown + HEAD + BY_OPTION)
    assert (given.job.model, given.job.batch_size, given.sources["model"]) == ("Qwen/Qwen3-4B", 4, "default")
    assert "by the command that the program shows" in given.origins["batch_size"]


def test_what_a_program_saves_it_may_load_again(tmp_path: Path) -> None:
    first = (
        MODEL + "m = get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))\nm.save_pretrained('./out/')\n"
    )
    on = f"{first}model = PeftModel.from_pretrained(model, 'out', is_trainable=True)\n{SFT.format(1)}"
    assert read(tmp_path, on).job.lora.r == 4  # type: ignore[union-attr]
    other = read(tmp_path, on.replace("model, 'out'", "model, 'elsewhere'").replace("m.save", "m = 0\nmodel.save"))
    assert asked(other) == {"lora"}
    load = "model, _ = FastLanguageModel.from_pretrained({}, load_in_4bit=False)\n"
    merged = f"{load.format('ID')}model.save_pretrained_merged('out')\n{load.format(chr(39) + 'out' + chr(39))}"
    assert read(tmp_path, merged + SFT.format(1)).job.model == "Qwen/Qwen2.5-0.5B"


def test_of_several_lists_of_modules_all_are_counted(tmp_path: Path) -> None:
    text = MODEL + "there = scan(model)\nnames = [n for n in ['q_proj', 'c_attn'] if n in there]\n"
    given = read(
        tmp_path, text + "model = get_peft_model(model, LoraConfig(r=4, target_modules=names))\n" + SFT.format(1)
    )
    assert given.job.lora is not None
    assert set(given.job.lora.targets) == {"q_proj", "c_attn"}
    assert asked(given) == set()


def test_functions_that_nothing_calls_train_by_what_others_give_them(tmp_path: Path) -> None:
    load = "model = AutoModelForCausalLM.from_pretrained(self.c['m'])\n"
    method = "".join(f"        {line}\n" for line in (load + SFT.format(1)).splitlines())
    own = f"class W:\n    def __init__(self, c):\n        self.c = c\n    def go(self):\n{method}"
    with pytest.raises(NoTraining, match="no training of its own"):
        read(tmp_path, own)
    with pytest.raises(NotKnown, match="AdapterTrainer is a trainer that is not read"):
        read(tmp_path, "from adapters import AdapterTrainer\nAdapterTrainer(model=1).train()\n")
    with pytest.raises(NotKnown, match="finetune_recipe is a trainer that is not read"):
        read(tmp_path, "from nemo.collections import llm\nllm.llama3_8b.finetune_recipe(name='a')\n")
    with pytest.raises(NoTraining, match="trains on the CPU"):
        read(tmp_path, MODEL + "Trainer(model=model, args=TrainingArguments(use_cpu=True)).train()\n")


def test_a_folder_that_is_not_here_is_the_model_of_its_name(tmp_path: Path) -> None:
    for name, model in (
        ("/data/Qwen/Qwen9-9B/", "Qwen/Qwen9-9B"),
        ("C:\\m\\qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    ):
        text = HEAD.replace('"Qwen/Qwen2.5-0.5B"', repr(name)) + MODEL + SFT.format(1)
        assert check_or_job(tmp_path, text) == model
    either = "ID = './models/mine' if os.path.isdir('./models/mine') else 'Qwen/Qwen2.5-0.5B'\n" + MODEL + SFT.format(1)
    given = read(tmp_path, either)
    assert (given.job.model, given.sources["model"]) == ("Qwen/Qwen2.5-0.5B", "default")


def check_or_job(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(read_target(str(folder / "train.py"), {}).job.model)


def test_packing_without_flash_attention_is_one_row(tmp_path: Path) -> None:
    given = read(tmp_path, MODEL + SFT.format("4, packing=True"))
    assert (given.job.batch_size, given.job.sequence_length, given.sources["batch_size"]) == (1, 2048, "default")
    flash = MODEL.replace("dtype=", "attn_implementation='flash_attention_2', dtype=")
    assert read(tmp_path, flash + SFT.format("4, packing=True")).job.batch_size == 4


def test_a_librarys_answer_is_not_known(tmp_path: Path) -> None:
    text = (
        "from transformers.utils import is_flash_attn_2_available\nn = 2 if is_flash_attn_2_available() else data.n\n"
    )
    assert asked(read(tmp_path, text + MODEL + SFT.format("n"))) == {"batch_size"}


def test_what_becomes_of_a_model_after_training_is_another_matter(tmp_path: Path) -> None:
    text = f"{MODEL}model = get_peft_model(model, LoraConfig(r=4, target_modules=['q_proj']))\n{SFT.format(1)}"
    assert read(tmp_path, f"{text}model = model.merge_and_unload()\n").job.lora.r == 4  # type: ignore[union-attr]


def test_data_that_is_not_here_ends_no_program(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in (MODEL + SFT.format(3)).splitlines())
    text = f"def main():\n    rows = []\n    if len(rows) < 10:\n        return\n{body}main()\n"
    assert read(tmp_path, text).job.batch_size == 3


def test_an_import_tells_the_version(tmp_path: Path) -> None:
    old = "from trl import DataCollatorForCompletionOnlyLM\n" + MODEL + SFT.format(1)
    assert read(tmp_path, old).job.trainer_version == "0.19"
    path = tmp_path / "train.py"
    assert check_file(str(path), {"gpu": "h100-80gb"}).fits == "yes"


def test_what_becomes_of_a_model_behind_its_trainer_changes_nothing(tmp_path: Path) -> None:
    """Compiling makes another object, and adapters are merged when the training is over."""
    made = "t = Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=2))\n"
    begin = f"model = get_peft_model(AutoModelForCausalLM.from_pretrained(ID), LoraConfig(r=4))\n{made}"
    late = read(tmp_path, f"{begin}model = torch.compile(model)\nt.train()\nmerged = t.model.merge_and_unload()\n")
    assert (late.job.compile, late.job.lora is None) == (False, False)
    early = read(tmp_path, f"model = torch.compile(AutoModelForCausalLM.from_pretrained(ID))\n{made}t.train()\n")
    assert early.job.compile


@pytest.mark.parametrize(
    ("body", "clear"),
    [
        (
            "self.seen += inputs['labels'].ne(-100).sum()\n        return super().compute_loss(model, inputs, **more)",
            True,
        ),
        ("loss = super(Own, self).compute_loss(model, inputs)\n        return loss * self.weight", True),
        ("loss, out = super().compute_loss(model, inputs, True)\n        return loss + out.logits.mean()", False),
        ("return super().compute_loss(model, inputs) + super().compute_loss(model, inputs)", False),
        ("return model(**inputs).loss", False),
    ],
)
def test_a_loss_that_only_looks_on(tmp_path: Path, body: str, clear: bool) -> None:
    own = f"class Own(SFTTrainer):\n    def compute_loss(self, model, inputs, **more):\n        {body}\n"
    given = read(tmp_path, f"{own}{MODEL}{SFT.format(2).replace('SFTTrainer', 'Own')}")
    assert ("loss" not in {each.decides for each in given.unread}) == clear


def test_a_file_of_a_trainer_alone_trains_nothing(tmp_path: Path) -> None:
    own = "class Own(Trainer):\n    def training_step(self, model, inputs):\n        self.accelerator.backward(1)\n"
    with pytest.raises(NoTraining):
        read(tmp_path, own)
    with pytest.raises(NotKnown, match="loop of the program's own"):
        read(tmp_path, f"{own}loss.backward()\n")


@pytest.mark.slow
def test_layers_over_several_cards_take_no_more_than_one_that_has_them_all(tmp_path: Path) -> None:
    spread = MODEL.replace("ID,", "ID, device_map='auto',")
    path = tmp_path / "train.py"
    path.write_text(HEAD + spread + SFT.format(1))
    found = check_file(str(path), {"gpu": "80GB", "num_gpus": 8})
    assert (found.fits, "at most" in found.text) == ("yes", True)
    shared = check_file(str(path), {"gpu": "80GB", "num_gpus": 8, "sharding": "zero3"})
    assert shared.fits == "unclear"
    large = check_file(str(path), {"gpu": "2GB", "num_gpus": 2})
    assert (large.fits, large.hint) == ("unclear", "add --num-gpus 1, where it sees one")


def test_what_starts_the_command_that_a_program_shows(tmp_path: Path) -> None:
    """Its launcher's config is the program's too, by its name where it is not here."""
    begin = "accelerate launch --num_processes 4 --config_file configs/zero3.yaml"
    given = read(tmp_path, f'"""\n{begin} train.py --bs 2 --model Qwen/Qwen3-4B\n"""\n{HEAD}{BY_OPTION}')
    assert (given.job.sharding, given.job.num_gpus) == ("zero3", 4)
    assert "its name says so" in given.origins["sharding"]


@pytest.mark.parametrize(
    ("strategy", "size"),
    [("'steps' if len(data) else 'no'", 8), ("cfg['eval']", 8), ("'no'", None), ("IntervalStrategy.NO", None)],
)
def test_an_evaluation_that_may_be_is_counted(tmp_path: Path, strategy: str, size: int | None) -> None:
    args = f"SFTConfig(max_length=512, per_device_train_batch_size=2, eval_strategy={strategy})"
    head = "from transformers import IntervalStrategy\n"
    given = read(tmp_path, f"{head}{MODEL}SFTTrainer(model=model, args={args}).train()\n", gpu="h100-80gb")
    assert (given.job.eval_batch_size, asked(given)) == (size, set())


def test_a_trainer_that_a_function_hands_back_is_the_trainer(tmp_path: Path) -> None:
    other = SFT.format(2).replace("t = ", "u = ").replace("t.train", "train_on_responses_only(u, 'x').train")
    head = "from unsloth.chat_templates import train_on_responses_only\n"
    (tmp_path / "train.py").write_text(f"{HEAD}{head}{MODEL}{SFT.format(1)}{MODEL}{other}")
    from memplan.frameworks.reading import documents_of

    assert len(documents_of(str(tmp_path / "train.py"))) == 2


@pytest.mark.parametrize(
    ("r", "targets", "wanted"), [("cfg.r", "['q_proj']", "lora.r"), ("4", "cfg.t", "lora.targets")]
)
def test_of_adapters_what_the_text_has_is_not_asked_for(tmp_path: Path, r: str, targets: str, wanted: str) -> None:
    lora = f"LoraConfig(r={r}, target_modules={targets}, layers_to_transform=cfg.layers)"
    args = "SFTConfig(max_length=512, per_device_train_batch_size=2)"
    text = f"{MODEL}SFTTrainer(model=model, args={args}, peft_config={lora}).train()\n"
    assert asked(read(tmp_path, text, gpu="h100-80gb")) == {wanted}
    typed = {"lora.r": {"r": 2}, "lora.targets": {"targets": ["o_proj"]}}[wanted]
    given = read(tmp_path, text, gpu="h100-80gb", lora=typed)
    made = given.job.lora
    assert made is not None
    assert (made.r, made.targets) == ((2, ("q_proj",)) if wanted == "lora.r" else (4, ("o_proj",)))
    assert asked(given) == set()


SAVED = '{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "r": 32, "target_modules": ["up_proj"]}'


@pytest.mark.parametrize(
    "load",
    [
        "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(ID), './old', is_trainable=True)",
        "AutoPeftModelForCausalLM.from_pretrained('old', is_trainable=True)",
        "FastLanguageModel.from_pretrained('old', max_seq_length=512)[0]",
    ],
)
def test_adapters_that_another_program_saved_are_trained_on(tmp_path: Path, load: str) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old/adapter_config.json").write_text(SAVED)
    head = "from peft import AutoPeftModelForCausalLM\n"
    given = read(tmp_path, f"{head}model = {load}\n{SFT.format(1)}", gpu="h100-80gb")
    made = given.job.lora
    assert made is not None
    assert (given.job.model, made.r, made.targets) == ("Qwen/Qwen2.5-0.5B", 32, ("up_proj",))
    assert asked(given) == set()


def test_hydras_config_over_its_schema_goes_on_as_mappings(tmp_path: Path) -> None:
    """OmegaConf.to_container gives the settings; what another library's call gives is nobody's settings."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "sft.yaml").write_text("defaults: [base]\nargs: {per_device_train_batch_size: 3}\n")
    text = f"""
import hydra
from omegaconf import OmegaConf
@dataclass
class Args:
    max_length: int = 384
    per_device_train_batch_size: int = 1
@dataclass
class Config:
    args: Args = Args()
@hydra.main(config_path="conf", config_name="sft")
def main(cfg: Config):
    {MODEL}    given = OmegaConf.to_container(cfg.args, resolve=True)
    SFTTrainer(model=model, args=SFTConfig(**given)).train()
main()
"""
    job = read(tmp_path, text).job
    assert (job.sequence_length, job.batch_size) == (384, 3)
    text = text.replace("OmegaConf.to_container(cfg.args, resolve=True)", "torch.load(cfg.args, batch_size=2)")
    assert {"batch_size", "sequence_length"} <= asked(read(tmp_path, text))


def test_trainers_that_a_condition_chooses_among_and_what_a_parser_leaves(tmp_path: Path) -> None:
    """Of a trainer and its subclass the one with changes; ``parse_args_and_config`` gives what is left, where asked."""
    (tmp_path / "a.yaml").write_text("max_length: 320\nper_device_train_batch_size: 5\nbf16: true\n")
    text = f"""
from trl import TrlParser
class Mine(SFTTrainer):
    def evaluate(self):
        return {{}}
given = TrlParser((SFTConfig,)).parse_args_and_config(return_remaining_strings=True)
if len(given) == 2:
    args, _ = given
{MODEL}
kind = Mine if "x" in os.environ["DATA"] else SFTTrainer
kind(model=model, args=args).train()
"""
    job = read(tmp_path, text)
    assert job.framework.startswith("TRL")
    assert "batch_size" in asked(job)
