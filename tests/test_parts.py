"""Each training of a script is answered by itself, with the config that it names; what a variable says is asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.cli.app import main
from memplan.errors import InvalidJob, UsageError
from memplan.frameworks.checks import checking
from memplan.frameworks.checks.checking import check_all, worst
from memplan.frameworks.reading import read_opened, read_target

CARD = {"gpu": "h100-80gb"}
TRAIN = "--model_name_or_path smollm2-135m --output_dir o --max_seq_length 512"
TWO = f"""P=4
prepare() {{ python make_data.py --config data.yaml; }}
prepare
accelerate launch --num_processes 2 sft.py {TRAIN} --dataset_name x --per_device_train_batch_size $P
python eval.py {TRAIN} --per_device_train_batch_size 64
train() {{
  torchrun --nproc_per_node $2 finetune.py {TRAIN} --per_device_train_batch_size $1
}}
train 8 4
train $3 4
vllm serve smollm2-135m --tensor-parallel-size 4
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.chdir(tmp_path)

    def one(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")

    return one


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys, "check")


@pytest.mark.slow
def test_each_training_of_a_script_is_answered(write: Callable[[str, str], None]) -> None:
    write("train.sh", TWO)
    found = check_all("train.sh", CARD)
    assert [(each.file, each.line, each.name, each.framework.split()[0]) for each in found] == [
        ("train.sh", 4, "train.sh:4", "TRL"),
        ("train.sh", 9, "train.sh:9", "transformers"),
        ("train.sh", 10, "train.sh:10", "transformers"),
    ]
    assert [(each.job["batch_size"], each.job["num_gpus"]) for each in found[:2]] == [(4, 2), (8, 4)]
    assert found[2].fits == "unclear"
    assert "batch_size is not known" in found[2].text
    assert "name" not in found[0].to_dict()


@pytest.mark.slow
def test_one_of_several_is_named(write: Callable[[str, str], None], run: Run) -> None:
    write("train.sh", TWO)
    with pytest.raises(UsageError, match="3 trainings") as several:
        read_target("train.sh", {})
    assert several.value.hint == "name one of them: train.sh:4, train.sh:9, train.sh:10"
    assert read_target("train.sh:9", {}).job.batch_size == 8
    with pytest.raises(UsageError, match="no training in line 5"):
        read_target("train.sh:5", {})
    assert main(["estimate", "train.sh:9", "--quiet"]) == 0
    code, out, _ = run("train.sh", "train.sh:9", "--gpu", "h100-80gb")
    assert code == 2
    assert [line.partition(": ")[0] for line in out.splitlines() if line[0] != " "] == [
        "train.sh:4", "train.sh:9", "train.sh:10", "train.sh:9",
    ]  # fmt: skip


def test_what_only_a_variable_says_is_asked_for(write: Callable[[str, str], None]) -> None:
    write("a.sh", f"torchrun --nproc_per_node 2 x.py {TRAIN} --per_device_train_batch_size $B --num_train_epochs 1")
    with pytest.raises(InvalidJob, match=r"batch_size is not known: per_device_train_batch_size: '\$B'") as asked:
        read_target("a.sh", {})
    assert asked.value.hint == 'set it: memplan check "B=… bash a.sh"'
    assert read_target("a.sh", {"batch_size": 3}).job.batch_size == 3
    (found,) = check_all("a.sh", CARD)
    assert (found.fits, found.exit_code) == ("unclear", 2)
    write("b.sh", f"torchrun --nproc_per_node 2 x.py {TRAIN} --num_train_epochs 1 --bf16 $1")
    (found,) = check_all("b.sh", CARD)
    assert found.fits == "unclear"
    assert "bf16 (precision)" in found.text


@pytest.mark.slow
def test_accumulation_that_a_variable_says_is_assumed(write: Callable[[str, str], None]) -> None:
    more = "--per_device_train_batch_size 1 --gradient_accumulation_steps $((B / 4))"
    write("a.sh", f"torchrun --nproc_per_node 2 x.py {TRAIN} {more}")
    given = read_target("a.sh", {})
    assert given.job.gradient_accumulation_steps == 2
    assert any("more than one step" in line and "$((B / 4))" in line for line in given.assumptions)
    assert check_all("a.sh", CARD)[0].fits == "yes"


CONFIG = "model_name_or_path: smollm2-135m\nmax_seq_length: 512\nper_device_train_batch_size: 2\noutput_dir: o\n"


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes 4 run.py config.yaml --per_device_train_batch_size=6",
        "torchrun --nproc_per_node 4 train.py --config config.yaml --per_device_train_batch_size 6",
        "torchrun --nproc_per_node 4 app/t.py --config-path ../conf --config-name job per_device_train_batch_size=6",
        "srun bash -c 'torchrun --nproc_per_node 4 app/train.py -cp conf -cn job.yaml +per_device_train_batch_size=6'",
        "cat <<EOF > own.yaml\nmodel_name_or_path: smollm2-135m\nper_device_train_batch_size: $N\nmax_seq_length: 512\n"
        "EOF\ntorchrun --nproc_per_node 4 train.py own.yaml",
    ],
)
def test_a_commands_config_is_read_under_its_options(write: Callable[[str, str], None], command: str) -> None:
    write("config.yaml", CONFIG)
    write("conf/job.yaml", f"defaults:\n  - base\n  - _self_\n{CONFIG}")
    write("conf/base.yaml", "gradient_accumulation_steps: 5\nper_device_train_batch_size: 1\n")
    write("a.sh", f"N=6\n{command}\n")
    job = read_target("a.sh", {}).job
    assert (job.model, job.batch_size, job.num_gpus, job.sequence_length) == ("smollm2-135m", 6, 4, 512)
    assert job.gradient_accumulation_steps == (5 if "conf " in command or "../conf" in command else 1)


def test_a_config_that_is_not_there_is_an_error(write: Callable[[str, str], None]) -> None:
    write("a.sh", "accelerate launch --num_processes 4 run.py gone.yaml\npython plot.py also_gone.yaml\n")
    (found,) = check_all("a.sh", CARD)
    assert found.fits == "error"
    assert "there is no file 'gone.yaml'" in found.text


def test_hydra_groups_and_references(write: Callable[[str, str], None]) -> None:
    write("config/train.yaml", "defaults:\n  - args: small\noutput_dir: o\nper_device_train_batch_size: ${args.size}\n")
    write("config/args/small.yaml", "size: 3\n")
    write("config/args/big.yaml", "# @package _global_\nper_device_train_batch_size: 9\n")
    write("a.sh", "torchrun --nproc_per_node 1 train.py --config-name train ~output_dir\n")
    options = {"model": "smollm2-135m", "sequence_length": 256}
    assert read_target("a.sh", options).job.batch_size == 3


@pytest.mark.parametrize(
    ("words", "batch", "model"),
    [
        ("", 1, "smollm2-135m"),
        ("args=big", 4, "smollm2-135m"),
        ("experiment=sweep", 4, "qwen2.5-0.5b"),  # which overrides both
        ("experiment=sweep args=small", 1, "qwen2.5-0.5b"),  # the command is stronger
        ("+more=eval args.size=6", 6, "smollm2-135m"),
        ("kind@other=big", 1, "smollm2-135m"),
    ],
)
def test_hydra_groups_are_chosen_by_the_command_and_by_configs(
    write: Callable[[str, str], None], words: str, batch: int, model: str
) -> None:
    write("conf/train.yaml", "defaults: [_self_, args: small, model: smol, kind@other: big, experiment: null]\n")
    write("conf/args/small.yaml", "size: 1\n")
    write("conf/args/big.yaml", "size: 4\n")
    write("conf/kind/big.yaml", "size: 9\n")
    write("conf/model/smol.yaml", "name: smollm2-135m\n")
    write("conf/model/qwen.yaml", "name: qwen2.5-0.5b\n")
    write("conf/more/eval.yaml", "# @package _global_\nnoise: 1\n")
    write(
        "conf/experiment/sweep.yaml",
        "# @package _global_\ndefaults:\n  - override /args: big\n  - override /model: qwen\nextra: 1\n",
    )
    write(
        "train.py",
        """import hydra
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
@hydra.main(version_base=None, config_path="conf", config_name="train.yaml")
def main(cfg):
    args = SFTConfig("out", per_device_train_batch_size=cfg.args.size, max_length=128)
    SFTTrainer(AutoModelForCausalLM.from_pretrained(cfg.model.name), args=args, train_dataset=[]).train()
main()
""",
    )
    write("a.sh", f"torchrun --nproc_per_node 1 train.py {words}\n")
    job = read_target("a.sh", {}).job
    assert (job.batch_size, job.model) == (batch, model)


def test_sourced_files_are_read_and_do_not_go_round(write: Callable[[str, str], None]) -> None:
    write("env/common.sh", 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nB=7\n')
    write(
        "a.sh", f"source ./env/common.sh\ntorchrun --nproc_per_node 1 x.py {TRAIN} --per_device_train_batch_size $B\n"
    )
    assert read_target("a.sh", {}).job.batch_size == 7
    write("round.sh", "source round.sh\n")
    assert "source each other" in check_all("round.sh", CARD)[0].text
    write(
        "out.sh",
        f"source /etc/passwd\nsource ../../x\ntorchrun --nproc_per_node 1 x.py {TRAIN} --num_train_epochs $B\n",
    )
    assert check_all("out.sh", CARD)[0].fits == "yes"


@pytest.mark.slow
def test_a_crash_takes_no_others_answer_away(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    write("train.sh", TWO)
    whole = read_opened

    def broken(document: Any, *rest: Any) -> Any:
        if document.place == 9:
            raise RuntimeError("odd")
        return whole(document, *rest)

    monkeypatch.setattr(checking, "read_opened", broken)
    found = check_all("train.sh", CARD)
    assert [each.fits for each in found] == ["yes", "error", "unclear"]
    assert found[1].text == "internal error: RuntimeError: odd"
    assert worst(found) == 70
    code, out, told = run("train.sh", "--gpu", "h100-80gb")
    assert (code, "Traceback" in told) == (70, False)
    assert "train.sh:9: error: internal error" in out
