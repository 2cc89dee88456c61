"""Proves that a remedy in the words of a job's own file is true: written into the file as it is shown, the file fits;
and that no word of it is memplan's where the file has one."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.cli.app import main
from memplan.cli.options import collect, job_options
from memplan.errors import MemplanError
from memplan.frameworks.emit import onto
from memplan.frameworks.own_words.words import emit_command, in_own_words, own_lines
from memplan.frameworks.reading import read_target
from memplan.report import Remedy
from memplan.spec.option_words import option_words
from memplan.spec.reading import JobInput, with_changes

TRL = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "max_length": 2048, "bf16": True, "output_dir": "x", "dataset_name": "y",
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "gradient_checkpointing": False,
    "learning_rate": 1e-5, "loss_type": ["sigmoid"], "max_prompt_length": 512,
}  # fmt: skip
FACTORY = {
    "model_name_or_path": "Qwen/Qwen3-0.6B", "stage": "sft", "do_train": True, "finetuning_type": "full",
    "template": "qwen3", "cutoff_len": 4096, "dataset": "x", "output_dir": "y", "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2, "bf16": True, "disable_gradient_checkpointing": True,
}  # fmt: skip
AXOLOTL = {
    "base_model": "Qwen/Qwen3-0.6B", "sequence_len": 4096, "micro_batch_size": 8, "gradient_accumulation_steps": 1,
    "optimizer": "adamw_torch_fused", "bf16": True, "datasets": [{"path": "x", "type": "alpaca"}],
}  # fmt: skip
FILES = {"TRL": TRL, "LLaMA-Factory": FACTORY, "Axolotl": AXOLOTL}
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 \\
    data.max_prompt_length=512 data.max_response_length=2048 actor_rollout_ref.model.path=Qwen/Qwen3-0.6B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=1 trainer.nnodes=1
"""
SCRIPT = """from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="x", per_device_train_batch_size=8, max_length=2048, bf16=True)
SFTTrainer(model="Qwen/Qwen3-0.6B", args=args, train_dataset=None).train()
"""


def remedies_of(path: Path, gpu: str) -> tuple[JobInput, list[Remedy]]:
    """The job of a file, and its remedies in the file's words."""
    read = read_target(str(path), {"gpu": gpu})
    return read, list(in_own_words(read, estimate(read)).remedies)


def typed(text: str) -> dict[str, Any]:
    """The job keys of memplan's options, as the command line reads them."""
    taken: dict[str, Any] = {}
    names = {name: row for row in job_options() for written in row.written for name in written.split("/")}
    words = shlex.split(text)
    while words:
        word = words.pop(0)
        assert word != "--set", "a key that has no plain option"
        row = names[word]
        taken[row.parameter] = words.pop(0) if row.metavar else not word.startswith("--no-")
    return collect(taken)[1]


def written(values: dict[str, Any], remedy: Remedy) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's settings with the lines in place, and what stands beside them as memplan's options."""
    made, beside = json.loads(json.dumps(values)), dict[str, Any]()
    for line in remedy.write:
        where, _, said = line.partition(": ")
        if where == "environment":
            assert said == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
            beside["allocator"] = {"expandable_segments": True}
        elif where == "options":
            beside |= typed(said)
        elif where != "or":
            path, _, value = said.partition(": ")
            *outer, last = path.split(".")
            inner = made
            for name in outer:
                inner = inner.setdefault(name, {})
            inner[last] = yaml.safe_load(value)
    return made, beside


@given(
    name=st.sampled_from(sorted(FILES)),
    batch=st.sampled_from([1, 4, 8]),
    length=st.sampled_from([1024, 4096]),
    gpu=st.sampled_from(["6GiB", "8GiB", "12GiB", "20GiB"]),
)
@examples(6)
@pytest.mark.slow
def test_a_file_with_its_remedy_as_shown_fits(
    name: str, batch: int, length: int, gpu: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    values = dict(FILES[name])
    for key in ("per_device_train_batch_size", "micro_batch_size"):
        values |= {key: batch} if key in values else {}
    for key in ("max_length", "cutoff_len", "sequence_len"):
        values |= {key: length} if key in values else {}
    path = tmp_path_factory.mktemp("own") / "train.yaml"
    path.write_text(yaml.safe_dump(values))
    _, remedies = remedies_of(path, gpu)
    assume(any(remedy.fits == "yes" for remedy in remedies))
    for remedy in remedies:
        assert remedy.write
        made, beside = written(values, remedy)
        path.write_text(yaml.safe_dump(made))
        again = estimate(with_changes(read_target(str(path), {"gpu": gpu, **beside}), {}))
        assert again.verdict is not None
        assert again.verdict.fits == "yes" or remedy.fits != "yes", (remedy.title, remedy.write)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.slow
def test_a_smaller_batch_is_said_in_the_files_own_keys(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(FILES[name]))
    _, remedies = remedies_of(path, "16GiB")
    said = "\n".join(line for remedy in remedies for line in remedy.write)
    key = "micro_batch_size" if name == "Axolotl" else "per_device_train_batch_size"
    assert re.search(rf"train.yaml, line \d+: {key}: \d", said)
    assert "--batch-size" not in re.sub(r"or: .*", "", said)


@pytest.mark.slow
def test_a_command_and_a_script_get_the_argument_to_change(tmp_path: Path) -> None:
    shell, program = tmp_path / "run.sh", tmp_path / "train.py"
    shell.write_text(VERL)
    program.write_text(SCRIPT)
    of_shell = [line for remedy in remedies_of(shell, "40GiB")[1] for line in remedy.write]
    of_program = [line for remedy in remedies_of(program, "9GiB")[1] for line in remedy.write]
    assert any("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=" in line for line in of_shell)
    assert any(line.endswith("train.py: dtype='bfloat16'") for line in of_program)


@pytest.mark.slow
def test_the_command_that_writes_them_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(AXOLOTL))
    read, remedies = remedies_of(path, "16GiB")
    command = next(
        (emit_command(read, remedy.changes) for remedy in remedies if emit_command(read, remedy.changes)), ""
    )
    assert command.startswith("memplan emit axolotl ")
    assert main([*shlex.split(command)[1:], "--force"]) == 0
    capsys.readouterr()
    again = estimate(read_target(str(path), {"gpu": "16GiB", "allocator": {"expandable_segments": True}}))
    assert again.verdict is not None
    assert again.verdict.fits == "yes"


@pytest.mark.slow
def test_check_shows_one_remedy_for_a_file_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(FACTORY))
    assert main(["check", str(path), "--gpu", "12GiB"]) == 1
    out = capsys.readouterr().out
    assert out.count("fits with ") == 1
    assert main(["check", str(path), "--gpu", "12GiB", "--json"]) == 1
    row = json.loads(capsys.readouterr().out)[0]
    assert row["remedy"]
    assert all(line in out for line in row["write"])


@pytest.mark.slow
def test_no_place_for_files_takes_no_answer_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk, or a server that may write nothing: the command that would write the lines is not told."""

    def refused(**_: str) -> None:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("memplan.frameworks.emit.read_back.tempfile.TemporaryDirectory", refused)
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(FACTORY))
    assert main(["check", str(path), "--gpu", "12GiB"]) == 1
    out = capsys.readouterr().out
    assert "fits with " in out
    assert "memplan emit" not in out


@pytest.mark.slow
def test_what_is_not_in_a_file_has_no_words_of_one() -> None:
    read = read_target("qwen3-0.6b", {"gpu": "6GiB"})
    assert all(remedy.write == () for remedy in in_own_words(read, estimate(read)).remedies)
    with pytest.raises(MemplanError):
        read_target("nosuch", {})


SMALL = "Qwen/Qwen3-0.6B"
OLD_OPENRLHF = (
    f"deepspeed --num_gpus 2 --module openrlhf.cli.train_dpo --pretrain {SMALL} --micro_train_batch_size 4 "
    "--train_batch_size 8 --zero_stage 2 --bf16 --attn_implementation sdpa"
)
SWIFT = f"NPROC_PER_NODE=2 swift sft --model {SMALL} --train_type lora --max_length 512 --torch_dtype bfloat16"
MEGATRON = (
    "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --bf16 "
    "--seq-length 512 --max-position-embeddings 512 --micro-batch-size 2 --global-batch-size 4 --vocab-size 32000"
)
PLUGIN = "axolotl.integrations.liger.LigerPlugin"
ADAPTERS = {**AXOLOTL, "adapter": "lora", "lora_r": 8, "lora_target_linear": True}
WORDED = [
    ("yaml", {**AXOLOTL, "plugins": ["a.b"]}, {"kernels": "liger"}, f"plugins: [a.b, {PLUGIN}]"),
    ("yaml", ADAPTERS, {"quantization": "nf4"}, "adapter: qlora"),
    ("yaml", ADAPTERS, {"quantization": "nf4"}, "load_in_4bit: true"),
    ("yaml", {**FACTORY, "finetuning_type": "lora"}, {"quantization": "nf4"}, "quantization_bit: 4"),
    ("yaml", TRL, {"lora": {"r": 16}}, "use_peft: true"),
    ("sh", OLD_OPENRLHF, {"batch_size": 1}, "--micro_train_batch_size 1"),
    ("sh", OLD_OPENRLHF, {"gradient_checkpointing": "full"}, "--gradient_checkpointing"),
    ("sh", SWIFT, {"sequence_length": 256}, "--max_length 256"),
    ("sh", MEGATRON, {"gradient_checkpointing": "full"}, "--recompute-granularity full"),
]


@pytest.mark.parametrize(("ending", "text", "changes", "said"), WORDED)
@pytest.mark.slow
def test_the_words_are_those_of_the_file(
    ending: str, text: Any, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = tmp_path / f"train.{ending}"
    path.write_text(text if ending == "sh" else yaml.safe_dump(text))
    lines = own_lines(read_target(str(path), {"gpu": "141GiB"}), changes)
    assert said in [line.partition(": ")[2] for line in lines], lines
    assert not any(line.startswith("options") for line in lines)


def test_ligers_keys_do_nothing_without_its_plugin(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    liger = {"liger_rms_norm": True, "liger_fused_linear_cross_entropy": True}
    path.write_text(yaml.safe_dump({**AXOLOTL, **liger}))
    read = read_target(str(path), {})
    assert read.job.kernels == "none"
    assert any("do nothing without plugins" in text for text in read.warnings)
    path.write_text(yaml.safe_dump({**AXOLOTL, **liger, "plugins": [PLUGIN]}))
    assert read_target(str(path), {}).job.kernels == "liger"


def test_whether_a_file_can_be_changed_is_told_without_looking_for_the_fewest_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    makes = onto._Trial.makes

    def counted(self: onto._Trial, text: str) -> Any:
        tried.append(text)
        return makes(self, text)

    monkeypatch.setattr(onto._Trial, "makes", counted)
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(TRL))
    given = read_target(str(path), {"gpu": "24GB"})
    assert emit_command(given, {"gradient_checkpointing": "full", "batch_size": 1}).endswith(f"--onto {path}")
    assert len(tried) <= 4


LAUNCHER = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 2
"""


@pytest.mark.parametrize(
    ("sharding", "lines"),
    [
        ("zero3", ["distributed_type: DEEPSPEED", "deepspeed_config: {zero_stage: 3}"]),
        ("fsdp2", ["distributed_type: FSDP",
                   "fsdp_config: {fsdp_version: 2, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP}"]),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_sharding_is_said_to_the_launcher_whose_file_is_beside(sharding: str, lines: list[str], tmp_path: Path) -> None:
    train, launcher = tmp_path / "train.yaml", tmp_path / "accelerate.yaml"
    train.write_text(yaml.safe_dump({**TRL, "per_device_train_batch_size": 1}))
    launcher.write_text(LAUNCHER)
    given = read_target(str(train), {"gpu": "141GiB"}, [str(launcher)])
    said = own_lines(given, {"sharding": sharding})
    assert [line.partition(": ")[2] for line in said] == lines
    assert all(line.startswith(str(launcher)) for line in said)
    launcher.write_text(LAUNCHER.replace("distributed_type: MULTI_GPU", "\n".join(lines)))
    assert read_target(str(train), {}, [str(launcher)]).job.sharding == sharding


@pytest.mark.slow
def test_sharding_is_said_by_the_config_of_trl_where_no_launcher_is_given(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(TRL))
    given = read_target(str(path), {"gpu": "141GiB", "num_gpus": 4})
    assert own_lines(given, {"sharding": "zero3"}) == (f"{path}: accelerate_config: zero3",)
    (line,) = own_lines(given, {"sharding": "zero3", "offload": ["parameters"]})  # which TRL's own configs do not say
    path.write_text(f"{yaml.safe_dump(TRL)}\n{line.removeprefix(f'{path}: ')}\n")
    again = read_target(str(path), {"gpu": "141GiB", "num_gpus": 4})
    recipe = estimate(again).recipe
    assert recipe is not None
    assert recipe.zero_stage == 3
    assert again.job.deepspeed.offload_param is not None
    assert again.job.deepspeed.offload_param.device == "cpu"


def test_a_file_of_trls_arguments_says_how_it_starts(tmp_path: Path) -> None:
    """trl 1.16 cli/commands/training.py hands on to accelerate what a file has and the trainer does not know."""
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump({**TRL, "accelerate_config": "zero3", "num_processes": 4}))
    given = read_target(str(path), {})
    assert (given.job.sharding, given.job.num_gpus) == ("zero3", 4)
    assert read_target(str(path), {"num_gpus": 2}).job.num_gpus == 2


@pytest.mark.slow
def test_more_gpus_than_a_node_has_are_more_nodes(tmp_path: Path) -> None:
    path = tmp_path / "litgpt.yaml"
    path.write_text("checkpoint_dir: checkpoints/Qwen/Qwen3-0.6B\ndevices: 4\nnum_nodes: 1\ntrain: {global_batch_size: "
                    "64, micro_batch_size: 1, max_seq_length: 512}\n")  # fmt: skip
    said = own_lines(read_target(str(path), {"gpu": "141GiB"}), {"num_gpus": 32})
    assert [line.partition(": ")[2] for line in said] == ["devices: 8", "num_nodes: 4"]


def test_options_of_lists_are_typed_as_the_command_line_reads_them() -> None:
    words = option_words({"lora": {"r": 8, "targets": ("q_proj", "v_proj")}})
    assert words == "--lora-r 8 --lora-targets q_proj,v_proj"
    assert typed(words)["lora"]["targets"] in (["q_proj", "v_proj"], "q_proj,v_proj", ("q_proj", "v_proj"))
    assert option_words({"images": None}) == "--set images=null"


@pytest.mark.slow
def test_words_move_nothing_else_to_the_host(tmp_path: Path) -> None:
    """offload_params moves parameters while the engine generates, and FSDP's for good."""
    path = tmp_path / "run.sh"
    path.write_text(VERL.replace("trainer.nnodes=1", "trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp2"))
    given = read_target(str(path), {"gpu": "400GiB"})
    at = "actor_rollout_ref.actor.fsdp_config"
    said = own_lines(given, {"trainer_offload": ["optimizer", "parameters"]})
    assert [line.partition(": ")[2] for line in said] == [f"{at}.optimizer_offload=true", f"{at}.param_offload=true"]


def test_parts_of_a_rollout_are_said_by_a_key_each(tmp_path: Path) -> None:
    path = tmp_path / "grpo.yaml"
    keys = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.5, "num_generations": 8}
    text = {key: value for key, value in TRL.items() if key not in ("loss_type", "max_length")} | keys
    path.write_text(yaml.safe_dump({**text, "max_completion_length": 512}, sort_keys=False))
    read = read_target(str(path), {"gpu": "h100-80gb", "num_gpus": 1})
    lines = own_lines(read, {"rollout": {"sleep": "1", "gpu_memory_utilization": 0.3}})
    assert [line.partition(": ")[2] for line in lines] == [
        "vllm_enable_sleep_mode: true",
        "vllm_gpu_memory_utilization: 0.3",
    ]
