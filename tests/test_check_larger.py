"""Proves what check says of a layout that takes more GPUs than the options name, and of layers spread over them."""

from pathlib import Path

import pytest

from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.checks.larger import most_layers
from memplan.models import load_model

SCRIPT = """torchrun --nproc_per_node 8 --nnodes {nodes} pretrain_gpt.py \\
  --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 \\
  --micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 4 --hidden-dropout 0 --no-create-attention-mask-in-dataloader {more}
"""


def check(folder: Path, nodes: object, more: str = "", gpus: object = 8) -> tuple[str, str, int, str]:
    path = folder / "train.sh"
    path.write_text(SCRIPT.format(nodes=nodes, more=more))
    found = check_file(str(path), {"gpu": "h100-80gb", "num_gpus": gpus})
    return found.fits, found.text.partition(": ")[2], found.exit_code, found.hint


@pytest.mark.parametrize("gpus", [8, "8"])
@pytest.mark.parametrize(("nodes", "world"), [(4, 32), ("$NNODES", 16), (1, 16)])
def test_it_does_not_fit_those_and_its_own_are_estimated(
    tmp_path: Path, nodes: object, world: int, gpus: object
) -> None:
    fits, text, code, hint = check(tmp_path, nodes, gpus=gpus)
    assert (fits, code, hint) == ("no", 1, f"add --num-gpus {world}")
    assert text.startswith(f"its layout takes 16 GPUs; fits {world} × h100-80gb: ")


def test_an_engine_that_takes_more_is_answered_on_those(tmp_path: Path) -> None:
    a = "actor_rollout_ref."
    (tmp_path / "run.sh").write_text(
        f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {a}model.path=Qwen/Qwen3-8B "
        f"{a}rollout.name=vllm {a}rollout.tensor_model_parallel_size=16 {a}rollout.n=8 {a}actor.use_dynamic_bsz=True "
        f"{a}actor.ppo_mini_batch_size=64 trainer.n_gpus_per_node=8 trainer.nnodes=2\n"
    )
    found = check_file(str(tmp_path / "run.sh"), {"gpu": "h100-80gb", "num_gpus": 8})
    assert (found.fits, found.hint) == ("no", "add --num-gpus 16")


def test_a_sequence_that_nobody_modelled_as_shared_is_counted_whole(tmp_path: Path) -> None:
    script = "torchrun --nproc_per_node=8 -m verl.trainer.sft_trainer model.path=Qwen/Qwen3.5-4B data.max_length=4096 "
    script += "data.max_token_len_per_gpu=4096 engine=fsdp engine.ulysses_sequence_parallel_size=2 data.train_files=a\n"
    (tmp_path / "run.sh").write_text(script)
    found = check_file(str(tmp_path / "run.sh"), {"gpu": "h100-80gb", "num_gpus": 8})
    assert (found.fits, "at most" in found.text) == ("yes", True)
    assert [each["key"] for each in found.unread] == ["context_parallel"]


def test_what_is_unclear_of_its_own_stays_so(tmp_path: Path) -> None:
    fits, text, _, _ = check(tmp_path, 2, "--fp32-residual-connection")
    assert (fits, "its layout takes 16 GPUs; unclear: fp32_residual_connection" in text) == ("no", True)


def test_what_no_number_of_gpus_would_help_is_said_instead(tmp_path: Path) -> None:
    """Of a model that is refused on Megatron anyway, the answer is never the next multiple."""
    (tmp_path / "train.yaml").write_text(
        "train: {micro_batch_size: 1, global_batch_size: 64}\nmodel: {tensor_model_parallel_size: 2, "
        "pipeline_model_parallel_size: 8, seq_length: 1024}\ncheckpoint: {pretrained_checkpoint: "
        "/ckpts/NVIDIA-Nemotron-3-Nano-30B-A3B-Base-BF16}\n"
    )
    found = check_file(str(tmp_path / "train.yaml"), {"gpu": "h100-80gb", "num_gpus": 8})
    assert found.fits == "error"
    assert "layers is not modelled" in found.text


def test_a_number_that_only_does_not_divide_is_an_error(tmp_path: Path) -> None:
    assert check(tmp_path, 2, gpus=24)[0] == "error"


def test_enough_of_them_are_taken_as_named(tmp_path: Path) -> None:
    assert check(tmp_path, 4, gpus=16)[0] == "yes"


PROGRAM = """from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
{visible}model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype="float32", {how})
args = SFTConfig(output_dir="o", max_length=1024, per_device_train_batch_size=1)
SFTTrainer(model=model, args=args, train_dataset=data).train()
"""
VISIBLE = 'import os\nos.environ["CUDA_VISIBLE_DEVICES"] = "0,1"\n'


def test_the_fullest_card_holds_no_more_layers_than_accelerate_gives_it() -> None:
    # accelerate 1.15 on meta tensors gives the fullest of 2, 4 and 8 cards so many, on transformers 4 and 5
    given = {"llama-3.1-8b": (18, 12, 7), "qwen2.5-7b": (16, 11, 7), "llama-2-13b": (20, 11, 6), "phi-2": (17, 10, 6)}
    for name, fullest in given.items():
        spec = load_model(name)
        counted = [most_layers(spec, gpus, 1) for gpus in (2, 4, 8)]
        assert all(here <= most < spec.num_layers for here, most in zip(fullest, counted, strict=True)), (name, counted)
        assert most_layers(spec, 8, 4) >= counted[2]  # the embedding weighs more beside quantised layers
    gemma = load_model("gemma-3-1b")  # half of its weights are the embedding
    assert most_layers(gemma, 8, 1) == gemma.num_layers


@pytest.mark.parametrize(
    ("how", "visible", "fits"),
    [
        ('device_map="auto"', "", "yes"),
        ('device_map="sequential"', "", "unclear"),
        ('device_map="auto", max_memory={0: "70GB", 1: "70GB"}', "", "unclear"),
        ('device_map="auto", max_memory={i: "70GB" for i in range(torch.cuda.device_count())}', "", "yes"),
        ('device_map="auto"', VISIBLE, "unclear"),
    ],
)
def test_layers_that_one_process_spreads_are_counted_on_the_fullest_card(
    tmp_path: Path, how: str, visible: str, fits: str
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM.format(how=how, visible=visible))
    found = check_file(str(path), {"gpu": "h100-80gb", "num_gpus": 8})
    assert found.fits == fits, found.text
    assert "at most" in found.text
    assert ("layers 10 of 28" in found.assumed[-1]) is (fits == "yes")
