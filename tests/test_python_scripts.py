"""Proves that programs and notebooks are read as they would run: what a trainer is given, whatever way it went there.

What only a run knows is asked for, never guessed; nothing is run.
"""

import json
import textwrap
from pathlib import Path

import pytest

from memplan.errors import InvalidJob, NoTraining
from memplan.frameworks.checks.checking import Checked, check_file
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.reading import read_target
from memplan.resolve import resolve
from memplan.spec.reading import JobInput

HEAD = """
import os, argparse, torch
from dataclasses import dataclass, field
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, HfArgumentParser
from transformers import Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
ID = "Qwen/Qwen2.5-0.5B"
"""
MODEL = "model = AutoModelForCausalLM.from_pretrained(ID, dtype=torch.bfloat16)\n"
SFT = "SFTTrainer(model=model, args=SFTConfig(output_dir='o', max_length=512, bf16=True), train_dataset=data).train()\n"


def read(folder: Path, text: str, name: str = "train.py", **options: object) -> JobInput:
    """The job of a program, HEAD before it."""
    path = folder / name
    path.write_text(HEAD + textwrap.dedent(text))
    return read_target(str(path), options)


def check(folder: Path, text: str, **options: object) -> Checked:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.dedent(text))
    return check_file(str(path), {"gpu": "a100-80gb", **options})


def asked(given: JobInput) -> set[str]:
    return {each.asks for each in given.unread if each.asks}


def decides(given: JobInput) -> set[str]:
    return {each.decides for each in given.unread if each.decides}


def test_a_qlora_script_is_read_whole(tmp_path: Path) -> None:
    given = read(tmp_path, """
        def main(rank: int = 16):
            config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
            model = AutoModelForCausalLM.from_pretrained(
                ID, quantization_config=config, attn_implementation="flash_attention_2")
            model = prepare_model_for_kbit_training(model)
            lora = LoraConfig(r=rank * 2, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
            model = get_peft_model(model, lora)
            args = SFTConfig(per_device_train_batch_size=4, gradient_accumulation_steps=2, max_length=1024, bf16=True)
            trainer = SFTTrainer(model=model, args=args, train_dataset=data)
            trainer.train()
        if __name__ == "__main__":
            main()
        """)  # fmt: skip
    job = given.job
    assert (job.model, job.method, job.trainer) == ("Qwen/Qwen2.5-0.5B", "sft", "trl")
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (4, 2, 1024)
    assert (job.quantization, job.kbit_upcast, job.attention) == ("nf4-double", True, "flash")
    assert job.lora is not None
    assert (job.lora.r, job.lora.targets, job.lora.dropout) == (32, ("q_proj", "v_proj"), 0.1)
    assert str(job.gradient_checkpointing) == "full"
    assert not decides(given)
    assert given.origins["batch_size"] == f"{tmp_path}/train.py, line 17: per_device_train_batch_size"


@pytest.mark.parametrize(
    ("before", "value", "size"),
    [
        ("B = 2", "B * 3", 6),
        ("cfg = {'b': 3}", "cfg['b']", 3),
        ("cfg = dict(b=3)", "cfg.get('b', 1)", 3),
        ("cfg = {}", "cfg.get('b', 5)", 5),
        ("class C:\n    b = 7\nc = C()", "c.b", 7),
        ("@dataclass\nclass C:\n    b: int = field(default=9)\nc = C()", "c.b", 9),
        ("@dataclass\nclass C:\n    b: int = 9\nc = C(b=2)", "c.b", 2),
        ("p = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=6)\na = p.parse_args()",
         "a.batch_size", 6),
        ("@dataclass\nclass A:\n    b: int = 11\na, = HfArgumentParser(A).parse_args_into_dataclasses()", "a.b", 11),
        ("b = int(os.environ.get('B', 12))", "b", 12),
        ("b = 1\nif torch.cuda.is_available():\n    b = 13", "b", 13),
        ("def f(x, y=2):\n    return x * y\nb = f(7)", "b", 14),
        ("b = 4\nb += 1", "b", 5),
        ("b, c = 3, 4", "c", 4),
        ("kw = dict(per_device_train_batch_size=8)", "1, **{}", 1),
        ("for b in [2, 3]:\n    pass", "b", 3),
        ("b = 3 if unknown() else 3", "b", 3),
        ("try:\n    b = 21\nexcept Exception:\n    b = 1", "b", 21),
    ],
)  # fmt: skip
def test_a_value_is_followed_to_where_it_is_written(tmp_path: Path, before: str, value: str, size: int) -> None:
    text = f"{before}\n{MODEL}" + SFT.replace("max_length", f"per_device_train_batch_size={value}, max_length")
    given = read(tmp_path, text)
    assert (given.job.batch_size, given.sources["batch_size"], asked(given)) == (size, "file", set())


@pytest.mark.parametrize(
    "value",
    [
        "len(data)", "args.batch", "int(os.environ['B'])", "cfg['b']", "pick(3)",
        "from_elsewhere.B", "[b for b in data][0]", "10**10**10", "'9' * 10**9",
    ],
)  # fmt: skip
def test_what_only_a_run_knows_is_asked_for(tmp_path: Path, value: str) -> None:
    text = MODEL + SFT.replace("max_length", f"per_device_train_batch_size={value}, max_length")
    assert asked(read(tmp_path, f"import from_elsewhere\n{text}")) == {"batch_size"}
    assert asked(read(tmp_path, f"import from_elsewhere\n{text}", batch_size=2)) == set()
    assert check(tmp_path, text).fits == "unclear"


def test_branches_that_nobody_can_decide_are_asked_about(tmp_path: Path) -> None:
    either = "if len(data) > 3:\n    n = 1\nelse:\n    n = {}\n" + MODEL
    text = either + SFT.replace("max_length", "per_device_train_batch_size=n, max_length")
    assert read(tmp_path, text.format(1)).job.batch_size == 1
    most = read(tmp_path, text.format(2))
    assert (most.job.batch_size, most.sources["batch_size"], asked(most)) == (2, "default", set())
    assert "depends on len(data) > 3: of 1 and 2 what needs the most" in most.origins["batch_size"]
    assert asked(read(tmp_path, text.format("data.n"))) == {"batch_size"}
    changed = MODEL + "if len(data) > 3:\n    model = get_peft_model(model, LoraConfig(r=8))\n" + SFT
    assert asked(read(tmp_path, changed)) == {"lora"}


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        ("for p in model.parameters():\n    p.requires_grad = False", "freezing"),
        ("model.model.layers[0].requires_grad_(False)", "freezing"),
        ("model = PeftModel.from_pretrained(model, 'adapter', is_trainable=True)", "adapters"),
        ("model = prepare(model)", "adapters"),
        ("from peft import IA3Config\nmodel = get_peft_model(model, IA3Config())", "adapters"),
        ("model = get_peft_model(model, LoraConfig(r=8, target_parameters=['x']))", "adapters"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_named(tmp_path: Path, line: str, subject: str) -> None:
    assert subject in decides(read(tmp_path, f"{MODEL}{line}\n{SFT}", model="Qwen/Qwen2.5-0.5B"))


def test_a_loss_of_the_programs_own_is_unclear(tmp_path: Path) -> None:
    own = "class Mine(SFTTrainer):\n    def compute_loss(self, *a):\n        return 0\n"
    assert decides(read(tmp_path, own + MODEL + SFT.replace("SFTTrainer", "Mine"))) == {"loss"}
    assert not decides(read(tmp_path, own.replace("compute_loss", "log") + MODEL + SFT.replace("SFTTrainer", "Mine")))


def test_transformers_own_trainer_is_cut_where_the_tokenizer_cuts(tmp_path: Path) -> None:
    text = """
        LENGTH = 384
        def encode(row):
            return tokenizer(row["text"], truncation=True, max_length=LENGTH)
        data = data.map(encode)
        model = AutoModelForCausalLM.from_pretrained(ID)
        model.gradient_checkpointing_enable()
        Trainer(model, TrainingArguments("out", per_device_train_batch_size=2, fp16=True), train_dataset=data).train()
        """
    given = read(tmp_path, text)
    assert (given.job.sequence_length, given.job.batch_size, given.job.trainer) == (384, 2, "transformers")
    assert str(given.job.gradient_checkpointing) == "full"
    assert given.origins["sequence_length"].startswith(f"{tmp_path}/train.py, line 12")
    assert asked(read(tmp_path, text.replace("max_length=LENGTH", ""))) == {"sequence_length"}
    cut = text.replace('tokenizer(row["text"], truncation=True, max_length=LENGTH)', "ids[:MAX_LEN]").replace(
        "LENGTH", "MAX_LEN"
    )
    assert read(tmp_path, cut).job.sequence_length == 384


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 512,
}  # fmt: skip


@pytest.mark.parametrize(("amp", "whole", "half"), [("", "fp32", "bf16"), ("bf16=True", "bf16-amp", "bf16")])
def test_a_checkpoint_of_fp32_is_loaded_in_it(tmp_path: Path, amp: str, whole: str, half: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
    trains = (
        f"Trainer(model, TrainingArguments('out', per_device_train_batch_size=2, {amp}), train_dataset=data).train()"
    )

    def precision(load: str) -> str:
        text = f"model = AutoModelForCausalLM.from_pretrained({load})\n{trains}"
        return str(read(tmp_path, text, sequence_length=64).job.precision)

    named = "'openai-community/gpt2'", f"'{tmp_path}/mine'", "ID, dtype=torch.float32"
    assert {precision(load) for load in named} == {whole}
    assert {precision(load) for load in ("ID", "'openai-community/gpt2', dtype=torch.bfloat16")} == {half}
    few = BITS.format(tmp_path / "mine")
    assert precision(few) == half


BITS = "'{}', quantization_config=BitsAndBytesConfig(load_in_4bit=True)"


@pytest.mark.parametrize(
    ("mapped", "told"),
    [
        ("def rows(row):\n    found = tokenizer(row['x'])\n    return found\ndata = data.map(rows)\n", None),
        ("def rows(row):\n    row['input_ids'] = ids\n    return row\ndata = data.map(rows)\n", None),
        ("from functools import partial\ndef rows(row, n):\n    return {'input_ids': tokenizer(row, max_length=n, "
         "truncation=True)}\ndata = data.map(partial(rows, n=96))\n", 96),
        ("data = data.map(lambda row: tokenizer(row['x']))\n", None),
        ("data = data.map(lambda row: {'text': tokenizer.apply_chat_template(row, tokenize=False)})\n", 512),
        ("def rows(row):\n    return {'size': len(tokenizer(row['x']))}\ndata = data.map(rows)\n", 512),
    ],
)  # fmt: skip
def test_rows_that_come_as_tokens_are_cut_by_newer_trainers_alone(
    tmp_path: Path, mapped: str, told: int | None
) -> None:
    mapped = f"from datasets import load_dataset\ndata = load_dataset('x')['train']\n{mapped}"
    old = MODEL + mapped + SFT.replace("max_length", "max_seq_length").replace("data)", "data, tokenizer=tokenizer)")
    given = read(tmp_path, old)
    assert asked(given) == (set() if told else {"sequence_length"})
    assert given.job.sequence_length == told or not told
    assert read(tmp_path, MODEL + mapped + SFT).job.sequence_length == 512
    fast = old.replace("AutoModelForCausalLM", "FastLanguageModel").replace("model = ", "model, tokenizer = ", 1)
    given = read(tmp_path, f"from unsloth import FastLanguageModel\n{fast}".replace(", tokenizer=tokenizer", ""))
    assert asked(given) == (set() if told else {"sequence_length"})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("SFTTrainer(model=model, args=SFTConfig(max_length=512), train_dataset=data)", None),
        ("SFTTrainer(model=model, args=TrainingArguments('o'), max_seq_length=512, train_dataset=data)", "0.12"),
        ("SFTTrainer(model=model, args=SFTConfig(max_seq_length=512), train_dataset=data)", "0.19"),
        ("SFTTrainer(model=model, args=SFTConfig(max_seq_length=512, use_liger=True), train_dataset=data)", "0.17"),
        ("SFTTrainer(model=model, args=SFTConfig(max_length=512), tokenizer=tokenizer)", "0.15"),
        ("DPOTrainer(model, args=DPOConfig(max_length=512, max_prompt_length=128))", "0.28"),
        ("#!pip install trl==0.17.0\nSFTTrainer(model=model, args=SFTConfig(max_length=512))", "0.17.0"),
    ],
)  # fmt: skip
def test_arguments_that_went_tell_the_version(tmp_path: Path, text: str, version: str | None) -> None:
    given = read(tmp_path, f"{MODEL}t = {text}\nt.train()".replace("t = #", "#"))
    assert given.job.trainer_version == version
    assert version is None or given.origins["trainer_version"]
    assert given.job.kernels == ("liger" if "use_liger" in text else "none")


def test_preference_and_online_trainers_keep_their_models(tmp_path: Path) -> None:
    dpo = read(tmp_path, MODEL + "ref = AutoModelForCausalLM.from_pretrained(ID)\n"
               "DPOTrainer(model, ref, args=DPOConfig(per_device_train_batch_size=1)).train()")  # fmt: skip
    assert (dpo.job.method, dpo.job.reference) == ("dpo", "resident")
    grpo = read(tmp_path, "GRPOTrainer(model=ID, reward_funcs=[f, 'a/reward'], args=GRPOConfig("
                "num_generations=4, max_completion_length=256, per_device_train_batch_size=4), "
                "peft_config=LoraConfig(r=8)).train()")  # fmt: skip
    assert (grpo.job.method, grpo.job.completion_length) == ("grpo", 256)
    assert [dict(row)["model"] for row in grpo.job.model_dump()["extra_models"]] == ["a/reward"]
    assert grpo.job.precision == "bf16-amp"  # TRL loads a model by its name in float32


UNSLOTH = """
from unsloth import FastLanguageModel, is_bfloat16_supported
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name='Qwen/Qwen3-32B', max_seq_length=2048, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, use_gradient_checkpointing="unsloth")
t = SFTTrainer(model=model, tokenizer=tokenizer, args=SFTConfig(per_device_train_batch_size=2, optim="adamw_8bit",
               fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported()))
t.train()
"""


def test_unsloth_is_its_own_kernels(tmp_path: Path) -> None:
    given = read(tmp_path, UNSLOTH, gpu="a100-80gb")
    job = given.job
    assert (job.kernels, job.quantization, job.kbit_upcast, job.sequence_length) == (
        "unsloth",
        "nf4-double",
        False,
        2048,
    )
    assert (job.precision, job.trainer_version, given.framework) == ("bf16", "0.23", "Unsloth, TRL 0.23")
    assert job.lora is not None
    assert len(job.lora.targets) == 7
    assert read(tmp_path, UNSLOTH, gpu="t4-16gb").job.precision == "fp16"
    dpo = UNSLOTH.replace("SFT", "DPO").replace("tokenizer=tokenizer", "ref_model=None")
    assert (read(tmp_path, dpo).job.kernels, decides(read(tmp_path, dpo))) == ("none", {"attention"})
    assert any("hold no less" in each for each in read(tmp_path, dpo).warnings)
    engine = UNSLOTH.replace("load_in_4bit", "fast_inference=True, load_in_4bit")
    assert decides(read(tmp_path, engine)) == {"engine"}  # nothing is generated, and yet it is there


@pytest.mark.parametrize(("amp", "precision", "bound"), [("bf16", "bf16-amp", True), ("fp16", "fp16", False)])
def test_halves_of_another_kind_under_autocast_are_counted_from_above(
    tmp_path: Path, amp: str, precision: str, bound: bool
) -> None:
    """Each product casts the weight, and saves the copy."""
    model = MODEL.replace("bfloat16", "float16")
    given = read(
        tmp_path, model + SFT.replace("bf16=True", f"bf16={amp == 'bf16'}, fp16={amp == 'fp16'}"), gpu="a100-80gb"
    )
    assert resolve(given).storage.precision.name == precision
    assert [each.above for each in given.unread if each.decides == "precision"] == [True] * bound


FAST = """
    from unsloth import FastLanguageModel  # pip install unsloth=={}
    model, tok = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-0.5B", max_seq_length={}{})
    SFTTrainer(model=model, train_dataset=data, args=SFTConfig(per_device_train_batch_size=2)).train()
"""
ADAPTED = ")\n    model = FastLanguageModel.get_peft_model(model, r=16"


@pytest.mark.parametrize(
    ("version", "length", "head"),
    [
        ("2024.8", 2048, "cross-entropy"),
        ("2025.3.19", 2048, "cut-cross-entropy"),
        ("2025.3.19", 512, "cross-entropy"),
        ("2025.9.1", 2048, "auto"),
        ("2026.4", 512, "auto"),
    ],
)
def test_a_pinned_unsloth_has_the_loss_of_its_day(tmp_path: Path, version: str, length: int, head: str) -> None:
    given = read(tmp_path, FAST.format(version, length, ADAPTED), gpu="t4-16gb")
    assert given.job.loss_head == head
    share = given.job.unquantized_share
    assert (share > 0) == (version != "2024.8")


@pytest.mark.parametrize(("gpu", "precision"), [("t4-16gb", "fp16-amp"), ("l4-24gb", "bf16")])
def test_unsloth_trains_all_of_a_model_in_fp32_where_the_card_has_no_bf16(
    tmp_path: Path, gpu: str, precision: str
) -> None:
    given = read(tmp_path, FAST.format("2026.4", 512, ", full_finetuning=True"), gpu=gpu)
    assert resolve(given).storage.precision.name == precision
    assert "quantisation" in decides(
        read(tmp_path, FAST.format("2026.4", 512, ", full_finetuning=True, qat_scheme='int4'"), gpu=gpu)
    )


def cells(*texts: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": text.splitlines(True)} for text in texts]})


def test_a_notebook_is_its_cells(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(cells("%%capture\n!pip install trl==0.17.0\n%matplotlib inline", HEAD, "x = !ls\nhelp?", MODEL,
                          "%%html\n<b>",
                          SFT.replace("max_length", "per_device_train_batch_size=3,\nmax_length")))  # fmt: skip
    given = read_target(str(path), {})
    assert (given.job.batch_size, given.job.trainer_version) == (3, "0.17.0")
    assert given.origins["batch_size"].startswith(f"{path}, cell 6, line 1")
    path.write_text(cells(HEAD, MODEL, SFT + "print 'x'"))
    with pytest.raises(NotKnown):
        read_target(str(path), {})


def test_a_program_without_a_training_is_skipped(tmp_path: Path) -> None:
    assert check(tmp_path, "print(1)").fits == "skipped"
    assert check(tmp_path, "def build(model):\n    return SFTTrainer(model=model, args=SFTConfig())").fits == "skipped"
    own = check(tmp_path, MODEL + "for x in data:\n    mine(model(x).logits).backward()")
    assert (own.fits, own.line) == ("unclear", 11)
    assert "training loop of the program's own" in own.text
    with pytest.raises(NoTraining):
        read(tmp_path, "print(1)")


def test_modules_and_configs_beside_the_program_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.py").write_text("from shapes import B\nNAME = 'Qwen/Qwen2.5-0.5B'\n")
    (tmp_path / "shapes.py").write_text("B = 5\n")
    (tmp_path / "c.yaml").write_text("train: {length: 640}\n")
    given = read(tmp_path, """
        import yaml, settings
        from pathlib import Path
        from settings import NAME
        with open(Path(__file__).parent / "c.yaml") as file:
            cfg = yaml.safe_load(file)
        args = SFTConfig(per_device_train_batch_size=settings.B, max_length=cfg["train"]["length"])
        SFTTrainer(model=NAME, args=args).train()
        """)  # fmt: skip
    assert (given.job.batch_size, given.job.sequence_length, asked(given)) == (5, 640, set())


def test_a_command_is_its_program_under_its_options(tmp_path: Path) -> None:
    read(tmp_path, "p = argparse.ArgumentParser()\np.add_argument('--bs', type=int, default=1)\nargs = p.parse_args()\n"
         + MODEL + SFT.replace("max_length", "per_device_train_batch_size=args.bs, max_length"))  # fmt: skip
    script = tmp_path / "run.sh"
    script.write_text("torchrun --nproc_per_node 4 train.py --bs 2\n")
    given = read_target(str(script), {})
    assert (given.job.batch_size, given.job.num_gpus, given.job.sequence_length) == (2, 4, 512)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000, "x = " + "a." * 100_000 + "b", "x = " + "-" * 100_000 + "1", "x = " + "[" * 200 + "]" * 200,
        "x = 1" + " + 1" * 50_000, "def f():\n    f()\n    f()\nf()", "f = 1\n" * 70_000, "x = '''" + "a" * 200_000,
        "def a():\n    b(); b()\ndef b():\n    a(); a()\na()\nb()", "\x00", "print 'x'", "x = 9" * 40_000,
        "\n".join(f"def f{n}():\n    f{n + 1}(); f{n + 1}()" for n in range(40)) + "\nf0()",
    ],
    ids=range(13),
)  # fmt: skip
def test_hostile_text_is_one_error_quickly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(InvalidJob):
        read_target(str(path), {})


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    read(tmp_path, f"open({str(mark)!r}, 'w').write('x')\nos.system('touch {mark}')\n__import__('os').mkdir('{mark}')\n"
         + MODEL + SFT)  # fmt: skip
    assert not mark.exists()


def test_what_cannot_be_is_put_down_to_what_was_not_understood(tmp_path: Path) -> None:
    quantised = "model = AutoModelForCausalLM.from_pretrained(ID, load_in_4bit=True)\n"
    loaded = check(tmp_path, f"{quantised}model = PeftModel.from_pretrained(model, 'adapter')\n{SFT}")
    assert (loaded.fits, "lora is not known" in loaded.text) == ("unclear", True)
    assert check(tmp_path, quantised + SFT).fits == "error"  # 4-bit weights cannot be trained
    own = check(tmp_path, quantised.replace("ID", "'out/sft'") + SFT)  # what is saved there may be adapters
    assert (own.fits, "lora" in own.hint) == ("unclear", True)


@pytest.mark.parametrize(("setting", "asks"), [("beta", "reference"), ("max_prompt_length", "sequence_length")])
def test_what_decides_only_where_a_policy_generates_is_asked_for_there(tmp_path: Path, setting: str, asks: str) -> None:
    def asked_of(method: str) -> set[str]:
        rewards = "reward_funcs=f, " if method == "GRPO" else ""
        return asked(
            read(tmp_path, f"{method}Trainer(model=ID, {rewards}args={method}Config({setting}=data.x)).train()")
        )

    assert (asked_of("GRPO"), asked_of("DPO")) == ({asks}, set())


def test_what_a_program_adds_to_the_arguments_it_reads_itself(tmp_path: Path) -> None:
    own = "@dataclass\nclass Mine(SFTConfig):\n    bits: str = 'fp32'\n    lora_r: int = 64\n    max_length: int = 99\n"
    given = read(tmp_path, f"{own}SFTTrainer(model=ID, args=Mine(output_dir='o')).train()")
    assert (given.job.sequence_length, given.job.lora, given.job.quantization) == (99, None, "none")


def test_a_model_that_the_trainer_loads_is_read_as_one_that_the_program_loads(tmp_path: Path) -> None:
    config = "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')"
    kwargs = f"dict(quantization_config={config}, attn_implementation='eager')"
    text = f"SFTTrainer(model=ID, args=SFTConfig(model_init_kwargs={kwargs}), peft_config=LoraConfig(r=8)).train()"
    job = read(tmp_path, text).job
    assert (job.quantization, job.attention) == ("nf4", "eager")
    assert "quantisation" in decides(read(tmp_path, text.replace(kwargs, "made()")))
    assert (
        read(tmp_path, "SFTTrainer(model=ID, args=SFTConfig(model_init_kwargs={})).train()").job.precision == "bf16-amp"
    )


def test_a_head_for_classes_is_counted_as_a_rewards_of_half_as_many_pairs(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from peft import LoraConfig, get_peft_model\n"
        "from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments\n"
        "model = AutoModelForSequenceClassification.from_pretrained('Qwen/Qwen2.5-0.5B', num_labels=3)\n"
        "model = get_peft_model(model, LoraConfig(r=8, target_modules=['q_proj'], modules_to_save=['score']))\n"
        "args = TrainingArguments(output_dir='x', per_device_train_batch_size=3)\n"
        "Trainer(model=model, args=args, train_dataset=data).train()\n"
    )
    found = check_file(str(path), {"gpu": "h100-80gb", "sequence_length": 256})
    assert found.fits == "yes"
    assert found.job["lora"]["modules_to_save"] == []
    assert (found.unread, found.job["method"], found.job["batch_size"]) == ((), "reward", 2)


def test_a_lower_bound_is_stronger_than_an_argument_that_is_still_taken(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl>=0.27.0\n")
    text = MODEL.replace("dtype=", "torch_dtype=") + SFT
    assert read(tmp_path, text).job.trainer_version == "0.27.0"
    assert read(tmp_path, text.replace("max_length", "max_seq_length")).job.trainer_version == "0.19"
    (tmp_path / "requirements.txt").write_text("trl>=0.9\n")
    assert read(tmp_path, text).job.trainer_version == "0.22"


def test_a_program_that_says_it_is_alone_runs_on_one_gpu(tmp_path: Path) -> None:
    alone = "os.environ['WORLD_SIZE'] = '1'\n" + MODEL + SFT
    assert read(tmp_path, alone).job.num_gpus == 1
    assert any("runs on 1 GPU: 4 are counted" in each for each in read(tmp_path, alone, num_gpus=4).warnings)
    (tmp_path / "run.sh").write_text("export WORLD_SIZE=1\ntorchrun --nproc_per_node 4 train.py\n")
    (tmp_path / "train.py").write_text(HEAD + MODEL + SFT)
    assert read_target(str(tmp_path / "run.sh"), {}).job.num_gpus == 4


@pytest.mark.parametrize(
    ("bound", "length"), [("max_prompt_length=64, ", 64 + 32), ("max_prompt_length=0, ", 512 + 32)]
)
def test_a_prompt_that_is_cut_at_nothing_is_whole(tmp_path: Path, bound: str, length: int) -> None:
    text = f"args = GRPOConfig({bound}max_completion_length=32)\nGRPOTrainer(ID, args=args, reward_funcs=f).train()\n"
    given = read(tmp_path, text)
    assert given.job.sequence_length == length
    assert ("nothing bounds a prompt" in given.origins["sequence_length"]) is (length > 512)


def test_the_trainer_hands_its_bits_to_the_model_that_it_loads(tmp_path: Path) -> None:
    bits = "bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4')\n"
    trains = "SFTTrainer(ID, args=SFTConfig(max_length=64{}), peft_config=LoraConfig(r=4){}).train()\n"
    kwargs, few = ", model_init_kwargs={'dtype': torch.bfloat16}", ", quantization_config=bits"
    kinds = [read(tmp_path, bits + trains.format(*each)).job for each in (("", few), (kwargs, few), (kwargs, ""))]
    assert [job.quantization for job in kinds] == ["nf4", "nf4", "none"]


def test_a_server_of_which_nothing_is_said_decides_no_refusal(tmp_path: Path) -> None:
    text = (
        "args = GRPOConfig(use_vllm=True, vllm_mode='server', model_init_kwargs={{'dtype': torch.bfloat16}})\n"
        "GRPOTrainer('{}', args=args, reward_funcs=f, peft_config=LoraConfig(r=4)).train()\n"
    )
    large = text.format("Qwen/Qwen3-32B")  # whose 40,960 tokens by default do not fit beside it
    small = check(tmp_path, text.format("Qwen/Qwen2.5-0.5B"), gpu="h100-80gb")
    assert (small.fits, check(tmp_path, large, gpu="h100-80gb").fits) == ("yes", "unclear")
    assert check(tmp_path, large, gpu="h100-80gb", rollout={"engine": "none"}).fits == "yes"


def test_dora_that_the_text_does_not_hold_is_counted(tmp_path: Path) -> None:
    """And the scale of the adapters is not asked for."""
    given = read(tmp_path, MODEL + "lora = LoraConfig(r=8, use_dora=ready(), use_rslora=ready())\n" + SFT.replace(
        "args=", "peft_config=lora, args="))  # fmt: skip
    assert given.job.lora is not None
    assert given.job.lora.dora
    assert ("use_dora", True) in {(each.key, each.above) for each in given.unread}
    assert "lora" not in asked(given)
