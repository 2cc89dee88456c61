"""Proves what is read of XTuner's configs and commands, and that what is not modelled is said."""

from functools import partial
from pathlib import Path

import pytest
from framework_cases import changed, read_text, unclear_text

from memplan.frameworks.draft import NotKnown
from memplan.frameworks.reading import framework_of
from memplan.frameworks.xtuner.source import TABLE, own

CONFIG = """import torch
from mmengine.optim import AmpOptimWrapper
from peft import LoraConfig
from torch.optim import AdamW
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from xtuner.dataset import process_hf_dataset
from xtuner.model import SupervisedFinetune

path = "Qwen/Qwen2.5-0.5B"
max_length = 1024
batch_size = 2
accumulative_counts = 8
sequence_parallel_size = 1
accumulative_counts *= sequence_parallel_size
tokenizer = dict(type=AutoTokenizer.from_pretrained, pretrained_model_name_or_path=path)
model = dict(
    type=SupervisedFinetune,
    llm=dict(
        type=AutoModelForCausalLM.from_pretrained,
        pretrained_model_name_or_path=path,
        torch_dtype=torch.float16,
        quantization_config=dict(
            type=BitsAndBytesConfig, load_in_4bit=True, bnb_4bit_use_double_quant=True, bnb_4bit_quant_type="nf4"),
    ),
    lora=dict(type=LoraConfig, r=16, lora_alpha=32, lora_dropout=0.1, bias="none", task_type="CAUSAL_LM"),
)
train_dataset = dict(type=process_hf_dataset, tokenizer=tokenizer, max_length=max_length, pack_to_max_length=True)
train_dataloader = dict(batch_size=batch_size, num_workers=0, dataset=train_dataset)
optim_wrapper = dict(
    type=AmpOptimWrapper,
    optimizer=dict(type=AdamW, lr=2e-4),
    accumulative_counts=accumulative_counts,
    loss_scale="dynamic",
    dtype="bfloat16",
)
"""
START, END = CONFIG.index("        quantization_config"), CONFIG.index("    ),\n    lora")
FULL = (CONFIG[:START] + CONFIG[END:]).replace(
    '    lora=dict(type=LoraConfig, r=16, lora_alpha=32, lora_dropout=0.1, bias="none", task_type="CAUSAL_LM"),\n', ""
)
read, unclear = partial(read_text, name="config.py"), partial(unclear_text, name="config.py")


def test_config(tmp_path: Path) -> None:
    given = read(tmp_path, CONFIG)
    job = given.job
    assert framework_of(str(tmp_path / "config.py")).name == "xtuner"
    assert not given.unread
    assert (job.model, job.trainer, job.method, job.num_gpus) == ("Qwen/Qwen2.5-0.5B", "xtuner", "sft", 1)
    assert (job.batch_size, job.gradient_accumulation_steps, job.sequence_length) == (2, 8, 1024)
    assert (job.precision, job.quantization, job.attention) == ("bf16-amp", "nf4-double", "flash")
    assert job.gradient_checkpointing == "full"
    assert job.lora is not None
    assert (job.lora.r, job.lora.targets) == (16, "all-linear")
    assert any("without DeepSpeed" in warning for warning in given.warnings)


@pytest.mark.slow
def test_command_with_its_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(CONFIG, encoding="utf-8")
    text = "NPROC_PER_NODE=4 xtuner train config.py --deepspeed deepspeed_zero2"
    text += " --cfg-options train_dataloader.batch_size=4"
    job = read(tmp_path, text, name="run.sh").job
    assert (job.num_gpus, job.sharding, job.batch_size, job.dtype) == (4, "zero2", 4, "bf16")
    assert job.kbit_upcast is False
    alone = read(tmp_path, "xtuner train config.py --deepspeed deepspeed_zero3_offload", name="one.sh").job
    assert (alone.num_gpus, alone.sharding) == (1, "zero3")
    assert unclear(tmp_path, "NPROC_PER_NODE=$N xtuner train config.py", name="n.sh")


def test_full_weights_are_half_where_flash_attn_loads_them(tmp_path: Path) -> None:
    job = read(tmp_path, FULL).job
    assert (job.precision, job.autocast, job.lora) == ("bf16", True, None)
    eager = changed(FULL, "torch_dtype=torch.float16,", 'attn_implementation="eager",')
    assert read(tmp_path, eager).job.precision == "bf16-amp"


def test_names_of_its_own(tmp_path: Path) -> None:
    text = "xtuner train internlm2_chat_7b_qlora_alpaca_512_e3 --deepspeed deepspeed_zero2"
    job = read(tmp_path, text, name="run.sh").job
    assert (job.model, job.sequence_length, job.quantization) == ("internlm/internlm2-chat-7b", 512, "nf4-double")
    for name in ("mixtral_8x7b_qlora_oasst1_e3", "internlm2_5_chat_7b_qlora_alpaca_e3", "llama3_8b_dpo_custom_e3"):
        assert own(name) is None
    stems = [line.split()[0] for line in TABLE]
    assert all(own(f"{stem}_full_custom_sft_e1") for stem in stems)
    with pytest.raises(NotKnown, match="somebodys"):
        read(tmp_path, "xtuner train somebodys_qlora_alpaca_e3", name="other.sh")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("sequence_parallel_size = 1", "sequence_parallel_size = 2", "sequence_parallel"),
        ("type=AdamW, lr", "type=Lion, lr", "optimizer"),
        ("import SupervisedFinetune", "import LLaVAModel as SupervisedFinetune", "LLaVAModel"),
        ('path = "Qwen/Qwen2.5-0.5B"', 'path = "baichuan-inc/Baichuan2-7B-Chat"', "kernel"),
        ("batch_size = 2", "batch_size = int(open('x').read())", "batch_size"),
    ],
)  # fmt: skip
def test_what_decides_and_is_not_modelled(tmp_path: Path, old: str, new: str, word: str) -> None:
    assert word in unclear(tmp_path, changed(CONFIG, old, new))


def test_preferences(tmp_path: Path) -> None:
    text = changed(FULL, "import SupervisedFinetune", "import DPO").replace("type=SupervisedFinetune", "type=DPO")
    job = read(tmp_path, text).job
    assert (job.method, job.trainer) == ("dpo", "xtuner")
    ipo = text.replace("type=DPO,", 'type=DPO,\n    loss_type="ipo",')
    assert read(tmp_path, ipo).job.method == "ipo"


def test_its_newer_trainer_is_named(tmp_path: Path) -> None:
    text = "from xtuner.v1.train import TrainerConfig\ntrainer = TrainerConfig(model_cfg=None)\n"
    assert "XTuner 1" in unclear(tmp_path, text)
