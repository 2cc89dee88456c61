"""Proves that many files give what each gives alone, in their order, by several processes too, and that equal jobs are
played once.
"""

import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from memplan import meters
from memplan.errors import UsageError
from memplan.frameworks import reading
from memplan.frameworks.checks import many
from memplan.frameworks.checks.checking import check_all
from memplan.frameworks.checks.many import check_many, cores

CARD = {"gpu": "80GB"}
JOB = "model: smollm2-135m\nmethod: sft\nsequence_length: 256\nbatch_size: {}\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Four jobs, of which two are alike, and what is no job."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "a.yaml": JOB.format(1),
        "b.yaml": JOB.format(1),
        "c.yaml": JOB.format(2),
        "d.yaml": "a: [",
        "e.yaml": "x: 1\n",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    return list(texts)


@pytest.mark.skipif(sys.platform != "linux", reason="a process is copied as it stands on Linux alone")
def test_several_processes_give_what_one_gives(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [answer for name in files for answer in check_all(name, CARD, advise=False, play="unsure")]
    monkeypatch.setattr(many, "MANY", 2)
    assert check_many(files, CARD, processes=2) == alone
    assert cores() >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="a process is copied as it stands on Linux alone")
def test_what_ends_all_ends_all_in_several_processes_too(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MANY", 2)
    with pytest.raises(UsageError, match="needs a card"):
        check_many(files, {}, processes=2)


@pytest.mark.skipif(sys.platform != "linux", reason="a process is copied as it stands on Linux alone")
def test_a_process_that_is_killed_takes_no_answer_away(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [answer for name in files for answer in check_all(name, CARD, advise=False, play="unsure")]
    given, submit = iter(range(len(files))), ProcessPoolExecutor.submit

    def broken(pool: ProcessPoolExecutor, *work: Any) -> Any:
        if next(given) == 2:
            raise BrokenProcessPool("killed")
        return submit(pool, *work)

    monkeypatch.setattr(many, "MANY", 2)
    monkeypatch.setattr(ProcessPoolExecutor, "submit", broken)
    assert check_many(files, CARD, processes=2) == alone


def test_what_files_leave_is_let_go_of_where_nothing_collects_it(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = Mock()
    blocks = iter([30, 41, 25, 50, 61, 24])
    monkeypatch.setattr(many, "FEW_BLOCKS", 20)
    monkeypatch.setattr(many, "_KEPT", [20])
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: next(blocks))
    monkeypatch.setattr(gc, "collect", collect)
    check_many(files, CARD)
    assert not collect.called
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    check_many(files[:4], CARD)
    assert (collect.call_count, many._KEPT) == (2, [24])


def test_equal_jobs_are_played_once(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from memplan.engine.allocator import figures

    played = Mock(wraps=figures.played)
    monkeypatch.setattr(meters, "_SEEN", type(meters._SEEN)(maxlen=8))
    monkeypatch.setattr(figures, "played", played)
    one, other, third, *_ = check_many(files, CARD, play=True)
    assert played.call_count == 2
    assert (one.device_bytes, one.text) == (other.device_bytes, other.text)
    assert third.device_bytes > one.device_bytes


def test_of_many_files_a_job_that_surely_fits_is_bounded_and_not_played(files: list[str]) -> None:
    """The bound is of what it needs, and no verdict is another: near the limit the step is played."""
    Path("a.yaml").write_text(JOB.format(48))
    jobs, card = files[:3] + files[1:2], {"gpu": "24GB"}
    bounded, played = check_many(jobs, card), [check_all(name, card, advise=False)[0] for name in jobs]
    assert [each.fits for each in bounded] == [each.fits for each in played] == ["yes"] * 4
    assert [(each.played, each.at_most) for each in bounded] == [(True, False), *[(False, True)] * 3]
    assert (bounded[0], all(each.played for each in played)) == (played[0], True)
    for least, most in zip(played[1:], bounded[1:], strict=True):
        assert most.text.startswith("fits 24GB: at most ")
        assert 0 < most.headroom_bytes < least.headroom_bytes
    assert all(each.played for each in check_many(jobs, card, play=True))


def test_of_many_files_a_job_whose_verdict_no_play_can_change_is_not_played(files: list[str]) -> None:
    """One that allocates more than the card has at the least, and one that is unclear whatever it takes."""
    Path("a.yaml").write_text(JOB.format(512))
    Path("b.yaml").write_text(
        "model_name_or_path: HuggingFaceTB/SmolLM2-135M\nstage: sft\nfinetuning_type: lora\ncutoff_len: 256\n"
        "template: default\ndataset: alpaca\nlora_magic: 3\n"
    )
    jobs, card = files[:3] + files[2:3], {"gpu": "24GB"}
    found, played = check_many(jobs, card), [check_all(name, card, advise=False)[0] for name in jobs]
    assert [each.fits for each in found] == [each.fits for each in played] == ["no", "unclear", "yes", "yes"]
    assert [(each.played, each.at_most) for each in found[:2]] == [(False, False), (False, True)]
    assert all(each.played for each in played[:2])
    assert found[0].missing_bytes > 0


def test_of_many_files_a_project_is_read_once(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    here, anew = Mock(), Mock()
    monkeypatch.setattr(many, "forget", here)
    monkeypatch.setattr(reading, "forget", anew)
    check_many(files, CARD)
    assert (here.call_count, anew.call_count) == (1, 0)
    check_all(files[0], CARD, advise=False)
    assert anew.call_count == 1


def test_programs_of_a_project_are_let_go_of_with_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Mock()
    for name in ("one/a", "one/b", "other/a"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(JOB.format(1))
        (path.parent / "README.md").write_text("")
    monkeypatch.setattr(many, "_PROJECT", [Path()])
    monkeypatch.setattr(many, "leave_programs", left)
    check_many([str(tmp_path / name) for name in ("one/a.yaml", "one/b.yaml", "other/a.yaml")], CARD)
    assert left.call_count == 2


def test_a_folder_tells_its_trainings_and_the_rest_in_one_line(files: list[str]) -> None:
    found = check_many(["."], CARD)
    assert [each.file for each in found] == ["a.yaml", "b.yaml", "c.yaml", "."]
    assert found[-1].text == "in this folder 2 other files (d.yaml, e.yaml)"


@pytest.mark.skipif(sys.platform != "linux", reason="a process is copied as it stands on Linux alone")
def test_ctrl_c_ends_what_was_started_at_once(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It had gone on until all shares were answered. Until then each file is told."""
    told: list[tuple[int, int]] = []

    def tell(text: str, done: int, whole: int) -> None:
        told.append((done, whole))
        raise KeyboardInterrupt

    monkeypatch.setattr(many, "MANY", 2)
    monkeypatch.setattr(many, "TOGETHER", 1)
    with pytest.raises(KeyboardInterrupt):
        check_many(files * 8, CARD, processes=2, tell=tell)
    assert (told, active_children()) == ([(1, 40)], [])
