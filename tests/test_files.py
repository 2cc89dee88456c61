"""Files are written whole or not at all, and what was there before outlives a full disk."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.files import write_whole

ROOT = Path(__file__).parent.parent
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
{code}
"""
COMMAND = "from memplan.cli.app import main; sys.exit(main(sys.argv[1:]))"


def under_a_limit(*arguments: str, limit: int = 1000, code: str = COMMAND) -> subprocess.CompletedProcess[str]:
    """memplan where no file may grow above so many bytes, as on a disk that is full."""
    command = [sys.executable, "-c", LIMITED.format(limit=limit, code=code), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_a_report_that_does_not_fit_leaves_what_was_there(tmp_path: Path, there: bool) -> None:
    file = tmp_path / "report.json"
    if there:
        file.write_text("old")
    done = under_a_limit("estimate", "smollm2-135m", "--force", "-o", str(file))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"error: cannot write {file}: File too large"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == ({"report.json": "old"} if there else {})


@pytest.mark.slow
def test_files_of_a_framework_that_do_not_fit_leave_what_was_there(tmp_path: Path) -> None:
    for name in ("train.yaml", "run.sh"):
        (tmp_path / name).write_text("old")
    line = f"emit trl smollm2-135m --method sft --trainer trl --force -o {tmp_path}"
    done = under_a_limit(*line.split(), limit=100)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot write")
    assert len(done.stderr.splitlines()) == 2
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"train.yaml": "old", "run.sh": "old"}


@pytest.mark.slow
def test_a_part_of_a_framework_s_files_is_not_half_a_file(tmp_path: Path) -> None:
    """Each file is whole: the small one new, the large one as it was."""
    for name in ("a.yaml", "b.sh"):
        (tmp_path / name).write_text("old")
    script = (
        "from memplan.frameworks.emit.writing import write_files; write_files({'a.yaml': 'new', 'b.sh': 'x' * 5000}, "
    )
    done = under_a_limit(code=f"{script}{str(tmp_path)!r}, True)")
    assert f"cannot write {tmp_path}: File too large" in done.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.yaml": "new", "b.sh": "old"}


def test_a_file_is_replaced_with_its_mode_and_through_its_link(tmp_path: Path) -> None:
    file, link = tmp_path / "real" / "a.txt", tmp_path / "link.txt"
    file.parent.mkdir()
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(str(link), "new", force=True)
    assert link.is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(str(tmp_path / "a.txt"), "ab\n", force=True)
        write_whole(str(tmp_path / "b.txt"), "ab\n", force=False)
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.txt", "b.txt")] == [0o640, 0o640]


def test_without_force_nothing_is_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "a.txt", tmp_path / "link.txt"
    file.write_text("old")
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(FileExistsError):
            write_whole(str(path), "new", force=False)
    assert file.read_text() == "old"


def test_a_device_is_written_to_and_stays_one() -> None:
    write_whole(os.devnull, "text", force=True)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
