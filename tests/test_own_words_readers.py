"""Proves, for the example of every reader, that the first remedy is in the file's own words, and that the command which
writes it into the file makes a file with the figure that was stated."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from memplan.api import estimate
from memplan.cli.app import main
from memplan.frameworks.own_words.words import emit_command, in_own_words
from memplan.frameworks.reading import read_target

EXAMPLES = {
    "framework_cases.LITGPT": ("train.yaml", "4GiB"),
    "framework_cases.LLAMAFACTORY": ("train.yaml", "21GiB"),
    "framework_cases.VERL": ("run.sh", "14GiB"),
    "test_frameworks.DPO": ("train.yaml", "6GiB"),
    "test_frameworks_axolotl.QLORA": ("train.yaml", "5GiB"),
    "test_frameworks_megatron_bridge.RUN": ("run.sh", "11GiB"),
    "test_frameworks_prime_rl.OLD": ("rl.toml", "11GiB"),
    "test_frameworks_rollout.UNSLOTH": ("train.py", "16GiB"),
    "test_frameworks_slime.APART": ("run.sh", "17GiB"),
    "test_frameworks_torchtune.SINGLE": ("train.yaml", "38GiB"),
    "test_frameworks_xtuner.CONFIG": ("config.py", "4GiB"),
    "test_llamafactory_v1.PLAIN": ("train.yaml", "8GiB"),
    "test_own_words.SCRIPT": ("train.py", "7GiB"),
    "test_own_words.VERL": ("run.sh", "73GiB"),
}
NOT_THE_FILES = {"--num-gpus", "--nodes"}


def written(example: str, folder: Path) -> tuple[Path, str]:
    """The file of an example, and the card that it does not fit."""
    module, _, name = example.partition(".")
    file, gpu = EXAMPLES[example]
    path = folder / file
    path.write_text(getattr(importlib.import_module(module), name), encoding="utf-8")
    return path, gpu


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.slow
def test_the_first_remedy_is_in_the_files_words_and_its_command_writes_it(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, gpu = written(example, tmp_path)
    read = read_target(str(path), {"gpu": gpu})
    first = in_own_words(read, estimate(read)).remedies[0]
    said = "\n".join(line for line in first.write if not line.startswith("or: "))
    assert first.fits == "yes"
    assert set(re.findall(r"--[a-z][\w-]*", said.partition("options: ")[2])) <= NOT_THE_FILES, said
    command = emit_command(read, first.changes)
    assert (f"or: {command}" in first.write) is bool(command)
    if command:
        assert main([*shlex.split(command)[1:], "--force"]) == 0
        capsys.readouterr()
        beside = {key: first.changes[key] for key in ("allocator",) if key in first.changes}
        again = estimate(read_target(str(path), {"gpu": gpu, **beside}))
        assert again.verdict is not None
        assert again.verdict.usable_bytes - again.verdict.headroom_bytes == first.device_bytes
