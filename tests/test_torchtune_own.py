"""``tune run`` with one of torchtune's own configs: the table says what the file says, as far as memory feels it."""

from pathlib import Path

import pytest
from framework_cases import read_text as read

from memplan.frameworks.torchtune import own
from memplan.frameworks.torchtune.keys import BUILDER, MODELS
from memplan.tables.texts import parts_of

NAMES = [row.partition("=")[0] for text in parts_of(own.__file__).values() for row in text.split()]

LLAMA_1B = """
model:
  _component_: torchtune.models.llama3_2.lora_llama3_2_1b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 64
  lora_alpha: 128
  lora_dropout: 0.0
tokenizer: {max_seq_len: null}
dataset: {_component_: torchtune.datasets.alpaca_cleaned_dataset, packed: False}
batch_size: 4
optimizer: {_component_: torch.optim.AdamW, fused: True, weight_decay: 0.01, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
gradient_accumulation_steps: 8
compile: False
dtype: bf16
enable_activation_checkpointing: False
enable_activation_offloading: False
"""
MISTRAL_7B = """
model: {_component_: torchtune.models.mistral.mistral_7b}
tokenizer: {max_seq_len: null}
batch_size: 2
optimizer: {_component_: bitsandbytes.optim.PagedAdamW, lr: 5e-6}
optimizer_in_bwd: True
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
gradient_accumulation_steps: 1
compile: False
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: True
"""
LLAMA_70B = """
model:
  _component_: torchtune.models.llama3_3.qlora_llama3_3_70b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
tokenizer: {max_seq_len: null}
batch_size: 2
optimizer: {_component_: torch.optim.AdamW, fused: True}
loss: {_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}
gradient_accumulation_steps: 1
compile: False
dtype: bf16
enable_activation_checkpointing: True
enable_activation_offloading: False
"""


@pytest.mark.parametrize(
    ("name", "recipe", "text"),
    [
        ("llama3_2/1B_lora_single_device", "lora_finetune_single_device", LLAMA_1B),
        ("mistral/7B_full_low_memory", "full_finetune_single_device", MISTRAL_7B),
        ("llama3_3/70B_qlora", "--nproc_per_node 8 lora_finetune_distributed", LLAMA_70B),
    ],
)
def test_a_name_is_read_as_its_file(name: str, recipe: str, text: str, tmp_path: Path) -> None:
    command = f"tune run {recipe} --config {name} batch_size=3\n"
    by_name = read(tmp_path, command, "run.sh")
    assert any(f"{name} is taken as torchtune 0.6.1 has it" in each for each in by_name.warnings)
    (tmp_path / "recipes/configs" / name).parent.mkdir(parents=True)
    (tmp_path / "recipes/configs" / f"{name}.yaml").write_text(text)
    (tmp_path / "README.md").touch()
    by_file = read(tmp_path, command, "run.sh")
    assert not any("is taken" in each for each in by_file.warnings)
    assert by_name.job == by_file.job
    assert by_name.job.batch_size == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_row_names_a_model(name: str) -> None:
    values = own.own_config(name)
    assert values is not None
    component = values["model._component_"]
    match = BUILDER.fullmatch(component.rpartition(".")[2])
    assert match is not None
    assert match["name"] in MODELS or "model.embed_dim" in values
    adapted = "lora" in name or "dora" in name
    assert bool(match["kind"]) == adapted == ("model.lora_rank" in values)
    assert values["batch_size"] > 0


def test_every_name_stands_once() -> None:
    assert len(NAMES) == len(set(NAMES)) == 163
