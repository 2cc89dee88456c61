"""A script that a script writes and then starts, or hands to a cluster, is read with what the script put into it."""

from pathlib import Path

import pytest

from memplan.frameworks.commands.launch import launch_of
from memplan.frameworks.commands.scripts import run_script

BODY = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:4\nrun $M \\$SLURM_NNODES \\$SLURM_GPUS_ON_NODE \\$1\nEOF\n"
SETTING = "M=big\n"


def commands(text: str) -> list[list[str]]:
    return [list(command.texts) for command in run_script(text, "a.sh").commands]


@pytest.mark.parametrize(
    "text",
    [
        f"cat > job.sbatch <<EOF\n{BODY}sbatch job.sbatch",
        f"cat <<EOF > jobs/$M.slurm\n{BODY}cd jobs\nID=$(sbatch --parsable $M.slurm)",
        f"T=$(mktemp)\ncat > $T <<EOF\n{BODY}ID=$(sbatch $T | awk '{{print $4}}')",
        f"cat > job.sbatch <<EOF\n{BODY}bsub < job.sbatch",
        f"cat > job.sbatch <<EOF\n{BODY}echo 'now: sbatch job.sbatch'",
        f"sbatch <<EOF\n{BODY}",
        f"ID=$(sbatch --parsable <<EOF\n{BODY})",
        f"cat <<EOF | sbatch\n{BODY}",
        f"J=$(cat <<EOF\n{BODY})\necho \"$J\" | sbatch",
        "sbatch -N 2 --gres=gpu:4 --wrap='run big $SLURM_NNODES $SLURM_GPUS_ON_NODE $1'",
        "sbatch -N 2 --gres=gpu:4 --wrap \"run $M \\$SLURM_NNODES \\$SLURM_GPUS_ON_NODE \\$1\"",
    ],
)  # fmt: skip
def test_jobs(text: str) -> None:
    assert [each for each in commands(SETTING + text) if each[0] == "run"] == [["run", "big", "2", "4", "$1"]]


@pytest.mark.parametrize(
    "text",
    [
        "cat > t.sh <<'EOF'\nM=${1:-small}\nrun $M\nEOF\nchmod +x t.sh\n./t.sh",
        "cat > t.sh <<'EOF'\nM=small\nrun $M\nsbatch t.sh\nEOF\nbash -x t.sh",
        "{\necho '#!/bin/bash'\necho 'run small'\n} > t\nsrun -N 1 ./t",
        "echo 'run small' > t.sh\nnohup t.sh &",
        "cat > env.sh <<EOF\nM=small\nEOF\nsource env.sh\nrun $M",
        "C='run small'\nsrun bash -x -c \"$C\"",
    ],
)
def test_own_scripts(text: str) -> None:
    """What is exported is theirs, and a script that hands itself on is gone through once."""
    assert [each for each in commands(SETTING + text) if each[0] == "run"] == [["run", "small"]]


def test_quoted_here_document_has_its_own_variables() -> None:
    text = "M=big\nexport N=8\ncat > t.sh <<'EOF'\nrun $M $N\nEOF\nbash t.sh"
    assert commands(text)[-1] == ["run", "$M", "8"]


def test_loop_values_are_said() -> None:
    text = "for B in 2 4; do\ncat > $B.sh <<EOF\nrun $B\nEOF\nsbatch $B.sh\nsbatch <<EOF\nwalk $B\nEOF\ndone"
    found = run_script(text, "a.sh").commands
    assert [(each.texts, "2 is taken, the first value" in each.remarks[0]) for each in found] == [
        (("run", "2"), True),
        (("walk", "2"), True),
    ]


def test_configs_and_programs_are_no_scripts() -> None:
    text = (
        "cat > a.yaml <<EOF\nrun x\nEOF\ncat > a.py <<EOF\nrun y\nEOF\nsrun accelerate launch --config_file a.yaml a.py"
    )
    assert [each[:2] for each in commands(text)] == [["srun", "accelerate"]]


def test_a_script_that_is_handed_to_ray_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("run --x $1\n")
    for start in ("./train.sh", "bash train.sh"):
        found = run_script(f"ray job submit --address=http://x -- {start} 8", str(tmp_path / "a.sh")).commands
        assert [each.texts for each in found if each.texts[0] == "run"] == [("run", "--x", "8")]


@pytest.mark.parametrize(
    "start", ["torchrun --no-python --nproc-per-node=4", "accelerate launch --no_python --nproc_per_node 4"]
)
def test_processes_of_a_shell_that_a_launcher_starts(start: str) -> None:
    """Every process is a shell: what it runs has the launcher's processes, not one."""
    found = run_script(f"echo 'python train.py --x 1' > w.sh\n{start} bash w.sh", "a.sh").commands[-1]
    launch = launch_of(found, "a.sh")
    assert launch is not None
    assert (launch.launcher, launch.options.values["nproc_per_node"]) == (start.split(maxsplit=1)[0], 4)
    assert (launch.program, [word.text for word in launch.words]) == ("train.py", ["--x", "1"])


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("if [ $X ]; then\ncat > t.sh <<EOF\nrun a\nEOF\nelse\ncat > t.sh <<EOF\nrun b\nEOF\nfi", "run a", True),
        (
            "echo -n 'run a' > t.sh\nif [ $X ]; then echo ' --b' >> t.sh; else echo ' --c' >> t.sh; fi",
            "run a --b",
            True,
        ),
        ("echo 'run a' > t.sh\nif [ $X ]; then echo 'run b' > t.sh; fi", "run a", True),
        ("if [ $X ]; then echo 'run a' > t.sh; else echo 'run a' > t.sh; fi", "run a", False),
    ],
)
def test_files_of_conditions(text: str, words: str, said: bool) -> None:
    """One arm's text, as of variables, and that it is so is said."""
    found = [each for each in run_script(f"{text}\nbash t.sh", "a.sh").commands if each.texts[0] == "run"]
    assert [" ".join(each.texts) for each in found] == [words]
    assert ("under a condition" in str(found[0].remarks)) is said


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("A=1\nexport B=2\nrun", {"B": "2"}),
        ("A=1\nexport A\nB=2 run", {"A": "1", "B": "2"}),
        ("set -a\nA=1\nset +a\nB=2\nrun", {"A": "1"}),
        ("set -euxa; A=1; set -o pipefail; run", {"A": "1"}),
        ("#SBATCH --nodes=2\nSLURM_NNODES=3\nrun", {"SLURM_NNODES": "3"}),
    ],
)
def test_a_command_has_what_is_exported(text: str, passed: dict[str, str]) -> None:
    found = run_script(text, "a.sh").commands[-1].environment
    assert {name: found[name] for name in ("A", "B", "SLURM_NNODES") if name in found} == passed


def test_of_arms_the_first_that_has_anything_counts() -> None:
    """Nobody says the arguments of a script that is read: ``$*`` is none, and its loop is gone through all the same."""
    text = 'if [[ $# -gt 0 ]]; then\nG="$*"\nelse\nG="${G:-a b}"\nfi\nfor X in $G; do run "$X"; done'
    assert commands(text) == [["run", "a"]]
    switch = 'if $LESS; then\nM=""\nelse\nM="--gradient-checkpointing"\nfi\nrun $M'  # which may be left out
    assert commands(switch)[-1] == ["run"]
