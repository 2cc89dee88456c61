"""Proves that a launcher's processes are a number of its text, the options' node, or a question: never one unsaid."""

from pathlib import Path

import pytest

from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.commands.slurm import slurm_variables
from memplan.frameworks.reading import read_target
from memplan.resolve import resolve
from memplan.spec.reading import JobInput

TRAIN = "train.py --model_name_or_path Qwen/Qwen2.5-0.5B --output_dir out --per_device_train_batch_size 1"


def read(tmp_path: Path, text: str, **options: object) -> JobInput:
    """The job of a script, TRAIN standing for its training."""
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\n" + text.replace("TRAIN", TRAIN))
    return read_target(str(path), {"sequence_length": 512, **options})


def asked(given: JobInput) -> list[str]:
    return [each.why for each in given.unread if each.asks == "num_gpus"]


@pytest.mark.parametrize(
    ("text", "gpus", "of_a_node"),
    [
        ("torchrun --nproc_per_node=8 TRAIN", 8, None),
        ("torchrun --nproc-per-node 4 --nnodes 2:2 TRAIN", 8, 4),
        ("torchrun --standalone TRAIN", 1, None),
        ("CUDA_VISIBLE_DEVICES=0,2 torchrun --nproc_per_node gpu TRAIN", 2, None),
        ("python -m torch.distributed.launch --nproc_per_node=2 TRAIN", 2, None),
        ("python3 -u -m torch.distributed.run --nproc_per_node=2 TRAIN", 2, None),
        ("python -u -m pdb -m torch.distributed.run --nproc_per_node=2 TRAIN", 2, None),
        ("deepspeed --num_gpus 4 TRAIN", 4, None),
        ("deepspeed --num_gpus=8 --num_nodes=2 --hostfile hosts TRAIN", 16, 8),
        ("deepspeed --include localhost:4,5,6 TRAIN", 3, None),
        ('deepspeed --include="a:0,1@b:0,1" TRAIN', 4, 2),
        ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed TRAIN", 2, None),
        ("CUDA_VISIBLE_DEVICES=3 accelerate launch TRAIN", 1, None),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --mixed_precision bf16 TRAIN", 2, None),
        ("accelerate launch --num_processes 16 --num_machines 2 TRAIN", 16, 8),
        ("CUDA_VISIBLE_DEVICES=1 python TRAIN", 1, None),
        ("mpirun -np 4 python TRAIN", 4, None),
        ("srun --ntasks 16 --ntasks-per-node 8 python -u TRAIN", 16, 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nsrun python TRAIN", 8, 4),
        ("#SBATCH --gres=gpu:a100:4\ndeepspeed TRAIN", 4, None),
        ("#SBATCH -N 2\n#SBATCH --gpus-per-node=8\n"
         "srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE TRAIN", 16, 8),
    ],
)  # fmt: skip
def test_a_number_of_the_text_counts(tmp_path: Path, text: str, gpus: int, of_a_node: int | None) -> None:
    given = read(tmp_path, text)
    assert (given.job.num_gpus, asked(given)) == (gpus, [])
    assert of_a_node is None or given.job.gpus_per_node == of_a_node
    assert given.sources["num_gpus"] == "file"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deepspeed TRAIN", "deepspeed trains on all GPUs that it sees"),
        ("deepspeed --hostfile hosts --num_gpus 8 TRAIN", "deepspeed --num_gpus 8: the number of nodes is not known"),
        ("deepspeed --exclude localhost:0 TRAIN", "all GPUs"),
        ("torchrun --nproc_per_node $GPUS TRAIN", "torchrun --nproc_per_node $GPUS is no number"),
        ("torchrun --nproc_per_node=auto TRAIN", "all GPUs"),
        ('torchrun --nproc_per_node "$(nvidia-smi -L | wc -l)" TRAIN', "all GPUs"),
        (
            "torchrun --nproc_per_node 8 --nnodes $WORLD_SIZE TRAIN",
            "torchrun --nnodes $WORLD_SIZE: the number of nodes",
        ),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 TRAIN", "nnodes 1:4"),
        ("torchrun $DISTRIBUTED_ARGS TRAIN", "torchrun"),
        ("accelerate launch TRAIN", "accelerate launch without a number"),
        ("accelerate launch --multi_gpu TRAIN", "accelerate launch without a number"),
        ("accelerate launch --num_processes $N TRAIN", "num_processes $N"),
        ("srun python TRAIN", "srun"),
        ("mpirun -np $N python TRAIN", "mpirun -np $N"),
    ],
)
def test_what_only_the_machine_knows_is_asked_for(tmp_path: Path, text: str, said: str) -> None:
    found = asked(read(tmp_path, text))
    assert len(found) == 1
    assert said in found[0]
    assert asked(read(tmp_path, text, num_gpus=4)) == []
    assert read(tmp_path, text, num_gpus=4).job.num_gpus == 4


def test_cards_that_a_command_leaves_visible_are_what_is_asked_for(tmp_path: Path) -> None:
    """accelerate's config may start fewer processes: asked for, with that number in the hint."""
    given = read(tmp_path, "CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --config_file absent.yaml TRAIN")
    assert [each.hint for each in given.unread if each.asks == "num_gpus"] == ["add --num-gpus 4"]


def test_all_gpus_of_a_node_are_the_clusters(tmp_path: Path) -> None:
    given = read(tmp_path, "deepspeed TRAIN", cluster="dgx-h100")
    assert (given.job.num_gpus, asked(given)) == (8, [])
    assert "on nodes of 8 GPUs" in given.origins["num_gpus"]
    given = read(tmp_path, "deepspeed --hostfile h TRAIN", cluster={"nodes": 3, "gpus_per_node": 4, "gpu": "h100-80gb"})
    assert (given.job.num_gpus, asked(given)) == (12, [])
    given = read(tmp_path, "torchrun --nproc_per_node $N --nnodes 2 TRAIN", gpus_per_node=4)
    assert (given.job.num_gpus, asked(given)) == (8, [])


def test_a_plain_config_is_on_the_clusters_gpus(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("output_dir: out\nper_device_train_batch_size: 1\n")
    given = read_target(str(path), {"model": "smollm2-135m", "cluster": "dgx-h100", "sequence_length": 512})
    assert resolve(given).provenance.job["num_gpus"] == 8


def test_a_command_line_may_begin_with_variables() -> None:
    given = read_target(f"CUDA_VISIBLE_DEVICES=0,1 deepspeed {TRAIN} --deepspeed zero2.json", {"sequence_length": 512})
    assert (given.job.num_gpus, given.job.sharding) == (2, "zero2")


def test_one_process_on_several_gpus_is_no_ddp(tmp_path: Path) -> None:
    def found(text: str, **options: object) -> list[str]:
        return [each.why for each in read(tmp_path, text, **options).unread if each.decides == "parallelism"]

    assert "2 GPUs is nn.DataParallel" in found("CUDA_VISIBLE_DEVICES=0,1 python TRAIN")[0]
    assert "8 GPUs" in found("python TRAIN", num_gpus=8)[0]
    assert "4 GPUs" in found("#SBATCH --ntasks=1 --gres=gpu:4\n#SBATCH --gres=gpu:4\nsrun python TRAIN")[0]
    assert found("CUDA_VISIBLE_DEVICES=0,1 python TRAIN", num_gpus=1) == found("python TRAIN") == []
    assert read(tmp_path, "python TRAIN").sources["num_gpus"] == "default"


@pytest.mark.slow
def test_states_that_are_shared_need_a_number(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}')
    path = tmp_path / "train.yaml"
    path.write_text("output_dir: out\nper_device_train_batch_size: 1\nbf16: true\ndeepspeed: ds.json\n")
    options = {"model": "smollm2-135m", "gpu": "h100-80gb", "sequence_length": 512}
    found = check_file(str(path), options)
    assert (found.fits, found.exit_code, found.hint) == ("unclear", 2, "add --num-gpus, such as --num-gpus 8")
    assert "num_gpus is not known: zero3 shares among GPUs" in found.text
    assert check_file(str(path), options | {"num_gpus": 8}).fits == "yes"
    path.write_text("output_dir: out\nper_device_train_batch_size: 1\nbf16: true\n")
    assert check_file(str(path), options).fits == "yes"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("FORCE_TORCHRUN=1 NPROC_PER_NODE=4 NNODES=2 llamafactory-cli train c.yaml", 8),
        ("CUDA_VISIBLE_DEVICES=0 llamafactory-cli train c.yaml", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 llamafactory-cli train c.yaml", 2),
        ("FORCE_TORCHRUN=1 llamafactory-cli train c.yaml", None),
        ("llamafactory-cli train c.yaml", None),
        ("NPROC_PER_NODE=8 NNODES=$N llamafactory-cli train c.yaml", None),
        ("torchrun --nproc_per_node 2 src/train.py c.yaml", 2),
        ("accelerate launch --num_processes 4 src/train.py c.yaml", 4),
    ],
)
def test_llama_factory_starts_torchrun_on_all_it_sees(tmp_path: Path, text: str, gpus: int | None) -> None:
    (tmp_path / "c.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: full\ntemplate: qwen\ncutoff_len: 512\n"
    )
    given = read(tmp_path, text)
    assert (given.job.num_gpus, bool(asked(given))) == ((gpus, False) if gpus else (1, True))


def test_a_config_that_is_not_here_is_told_by_its_name_or_given(tmp_path: Path) -> None:
    given = read(tmp_path, "torchrun --nproc_per_node 4 TRAIN --deepspeed /their/ds_z3_config.json --bf16 true")
    assert given.job.sharding == "zero3"
    assert "ds_z3_config.json is not here, and its name says so" in given.origins["sharding"]
    given = read(tmp_path, "torchrun --nproc_per_node 4 TRAIN --deepspeed zero2_offload.json --bf16 true")
    assert [each.decides for each in given.unread if each.decides] == ["parallelism"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}')
    text = "torchrun --nproc_per_node 4 TRAIN --deepspeed gone.json --bf16 true"
    path = tmp_path / "run.sh"
    path.write_text(text.replace("TRAIN", TRAIN))
    given = read_target(str(path), {"sequence_length": 512}, [str(tmp_path / "mine" / "a.json")])
    assert given.job.sharding == "zero1"
    path.write_text(f"accelerate launch --config_file gone.yaml --num_processes 2 {TRAIN}")
    (tmp_path / "mine" / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    given = read_target(str(path), {"sequence_length": 512}, [str(tmp_path / "mine" / "a.yaml")])
    assert (given.job.num_gpus, given.job.sharding) == (2, "ddp")


def test_a_file_is_looked_for_in_the_folders_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo" / "scripts" / "v1").mkdir(parents=True)
    (tmp_path / "repo" / "scripts" / "zero3.json").write_text('{"zero_optimization": {"stage": 1}}')
    path = tmp_path / "repo" / "scripts" / "v1" / "run.sh"
    monkeypatch.chdir(tmp_path)
    for name in ("./scripts/zero3.json", "$ROOT/scripts/zero3.json"):
        path.write_text(f"deepspeed --num_gpus 2 {TRAIN} --deepspeed {name}")
        assert read_target(str(path), {"sequence_length": 512}).job.sharding == "zero1"


def test_deepspeed_without_a_file_is_asked_for(tmp_path: Path) -> None:
    given = read(tmp_path, "deepspeed --num_gpus 2 TRAIN --deepspeed true")
    absent = ("", "train.py is not here, and may have settings of its own")
    assert [(each.asks, each.why) for each in given.unread] == [
        ("sharding", "deepspeed names no file: the script makes the config"),
        absent,
    ]
    given = read(tmp_path, "deepspeed --num_gpus 2 TRAIN")
    assert [each.why for each in given.unread] == [
        absent[1],
        "it starts under deepspeed, and no file of DeepSpeed's is named",
    ]
    given = read(tmp_path, "deepspeed --num_gpus 2 TRAIN", zero_stage=2)
    assert [(each.asks, each.why) for each in given.unread] == [absent]


@pytest.mark.parametrize(
    ("lines", "gpus", "tasks"),
    [
        ("#SBATCH --gpus=8\n", "8", None),
        ("#SBATCH --gpus-per-task=1\n#SBATCH --ntasks-per-node=4\n", "4", "4"),
        ("#SBATCH -n 16\n#SBATCH -N 2\n#SBATCH --gres gpu:h100_80gb:8,tmp:1\n", "8", "8"),
        ("##SBATCH --gpus=8\n#SBATCH --nodes=$N\n", None, None),
    ],
)
def test_sbatch_lines_are_variables(lines: str, gpus: str | None, tasks: str | None) -> None:
    found = slurm_variables(lines)
    assert (found.get("SLURM_GPUS_ON_NODE"), found.get("SLURM_NTASKS_PER_NODE")) == (gpus, tasks)


@pytest.mark.parametrize(
    "text",
    [
        "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512",
        "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --max_len 512 --zero_stage 2",
        "openrlhf.cli.train_dpo --pretrain Qwen/Qwen2.5-0.5B --max_len 512",
        "torchrun --nproc_per_node $N pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 2 "
        "--seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --use-distributed-optimizer",
    ],
)
def test_programs_with_launchers_of_their_own_ask_too(tmp_path: Path, text: str) -> None:
    assert len(asked(read(tmp_path, text))) == 1
    assert asked(read(tmp_path, text, num_gpus=2)) == []


def test_openrlhf_runs_on_the_cards_that_its_script_leaves_visible(tmp_path: Path) -> None:
    text = "deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-0.5B --max_len 512 --zero_stage 2"
    for before in ("export CUDA_VISIBLE_DEVICES=0,1,2\n", "CUDA_VISIBLE_DEVICES=0,1,2 "):
        assert read(tmp_path, before + text).job.num_gpus == 3


def test_axolotl_and_trl_start_accelerate(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 1\ndatasets: [{path: x, type: alpaca}]\n"
    )
    assert asked(read(tmp_path, "axolotl train c.yaml"))
    assert read(tmp_path, "axolotl train c.yaml --num-processes 4").job.num_gpus == 4
    assert not asked(read(tmp_path, "axolotl train c.yaml --launcher python"))
    given = read(tmp_path, "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 512 --accelerate_config zero3")
    assert (given.job.num_gpus, given.job.sharding) == (8, "zero3")


def test_a_launcher_before_a_script_that_is_not_known_is_unclear(tmp_path: Path) -> None:
    given = read(tmp_path, "accelerate launch --num_processes 2 train_something.py --rank 4", model="smollm2-135m")
    assert [each.decides for each in given.unread] == ["method"]


def test_a_config_that_comes_with_the_framework_is_known(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "base_model: Qwen/Qwen2.5-0.5B\nsequence_len: 512\nmicro_batch_size: 1\ndatasets: [{path: x, type: alpaca}]\n"
        "deepspeed: deepspeed_configs/zero2.json\n"
    )
    given = read_target(str(path), {"num_gpus": 8})
    assert (given.job.sharding, given.job.deepspeed.offload_optimizer is not None) == ("zero2", True)
    assert any("Axolotl's deepspeed_configs/zero2.json is taken" in line for line in given.warnings)


def test_a_trainers_own_precision_stays_under_accelerate(tmp_path: Path) -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\nfinetuning_type: full\ntemplate: qwen\ncutoff_len: 512\n"
    (tmp_path / "c.yaml").write_text(text)
    alone = read_target(str(tmp_path / "c.yaml"), {"num_gpus": 2}).job.precision
    assert read(tmp_path, "accelerate launch --num_processes 2 src/train.py c.yaml").job.precision == alone == "fp32"


def test_tasks_of_slurm_stand_before_a_container_and_a_script_submits_itself(tmp_path: Path) -> None:
    text = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
if [ -z $SLURM_JOB_ID ]; then
    sbatch "$0"
    exit
fi
CMD="pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 --seq-length 128 --vocab-size 1000"
srun --label singularity exec -B /x "$IMAGE" ./launch.sh $CMD --micro-batch-size 1 --global-batch-size 8 --bf16
"""
    (tmp_path / "run.sh").write_text(text)
    found = check_file(str(tmp_path / "run.sh"), {"gpu": "h100-80gb"})
    assert (found.fits, found.job["num_gpus"], found.job["gpus_per_node"]) == ("yes", 8, 4)
