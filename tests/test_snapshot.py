"""Proves that a snapshot is read as plain data alone, how its start is found, and what a play explains of it."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.api import estimate
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.recorded import replay
from memplan.errors import UsageError
from memplan.render.snapshot_svg import measured, snapshot_svg
from memplan.resolve import resolve
from memplan.snapshot.explaining import explain
from memplan.snapshot.reading import read_plain, read_snapshot
from memplan.spec.reading import read_job
from memplan.units import MiB

TINY: dict[str, Any] = {
    "model": {
        "model_type": "llama", "vocab_size": 8192, "hidden_size": 1024, "intermediate_size": 2816,
        "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "method": "sft", "sequence_length": 512,
}  # fmt: skip
BASE = 0x7F0000000000
FRAMES = [
    {"filename": "/x/torch/nn/functional.py", "line": 5, "name": "linear"},
    {"filename": "/home/me/train.py", "line": 31, "name": "keep_copies"},
]


def event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": BASE + address * MiB, "size": int(size * MiB), "stream": 0, **more}


def write(path: Path, events: list[dict[str, Any]], segments: list[dict[str, Any]], **more: Any) -> str:
    file = path / "snapshot.pickle"
    file.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events], **more}))
    return str(file)


def segment(address: int, size: int, *blocks: tuple[int, str], **more: Any) -> dict[str, Any]:
    listed = [{"size": size * MiB, "requested_size": size * MiB, "state": state} for size, state in blocks]
    return {"address": BASE + address * MiB, "total_size": size * MiB, "segment_type": "large", "stream": 0,
            "device": 0, "blocks": listed, **more}  # fmt: skip


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys)


LIVE, FREE = "active_allocated", "inactive"


def test_a_recording_from_the_start_is_replayed(tmp_path: Path) -> None:
    events = [
        event("segment_alloc", 0, 20), event("alloc", 0, 4, frames=FRAMES), event("alloc", 4, 6),
        event("free_requested", 0, 4), event("free_completed", 0, 4), event("alloc", 0, 3),
    ]  # fmt: skip
    file = write(tmp_path, events, [segment(0, 20, (3, LIVE), (1, FREE), (6, LIVE), (10, FREE))])
    snapshot = read_snapshot(file)
    assert snapshot.whole
    assert list(snapshot.places.values()) == ["train.py:31 keep_copies", "", ""]
    found = explain(snapshot)
    assert (found.allocated_peak, found.reserved_peak, found.replayed_peak) == (10 * MiB, 20 * MiB, 20 * MiB)
    assert (found.differences, found.alive) == (0, 2)


def test_what_was_there_before_is_found_by_undoing(tmp_path: Path) -> None:
    """At the start: 30 MiB with 8 in use at its end, and a segment of 12 MiB that goes while it is recorded."""
    events = [
        event("segment_free", 100, 12), event("free_completed", 22, 8), event("segment_alloc", 200, 40),
        event("alloc", 200, 40), event("alloc", 0, 30),
    ]  # fmt: skip
    file = write(tmp_path, events, [segment(0, 30, (30, LIVE)), segment(200, 40, (40, LIVE))])
    snapshot = read_snapshot(file)
    assert not snapshot.whole
    first, second = snapshot.recording.segments
    assert (first.size, [(used.offset, used.requested) for used in first.used]) == (30 * MiB, [(22 * MiB, 8 * MiB)])
    assert (second.size, second.used) == (12 * MiB, ())
    assert [each.measured == each.reserved for each in replay(snapshot.recording)] == [True, True]
    assert explain(snapshot).allocated_peak == 70 * MiB


def test_segments_that_grow(tmp_path: Path) -> None:
    events = [event("segment_map", 0, 20), event("alloc", 0, 15), event("segment_map", 20, 20), event("alloc", 15, 20)]
    segments = [segment(0, 40, (15, LIVE), (20, LIVE), (5, FREE), is_expandable=True)]
    found = explain(read_snapshot(write(tmp_path, events, segments)))
    assert (found.reserved_peak, found.replayed_peak, found.differences) == (40 * MiB, 40 * MiB, 0)
    late = read_snapshot(write(tmp_path, events[2:], segments))
    assert [(each.size // MiB, len(each.used)) for each in late.recording.segments] == [(20, 1)]
    assert explain(late).differences == 0


def test_a_failure_is_played_on_a_card_as_full(tmp_path: Path) -> None:
    events = [event("segment_alloc", 0, 20), event("alloc", 0, 20), {**event("oom", 0, 30), "device_free": 10 * MiB}]
    found = explain(read_snapshot(write(tmp_path, events, [segment(0, 20, (20, LIVE))])))
    assert found.differences == 0
    events[-1]["device_free"] = 40 * MiB
    assert explain(read_snapshot(write(tmp_path, events, [segment(0, 20, (20, LIVE))]))).differences == 1


def played_snapshot(path: Path, extra: int) -> str:
    """A snapshot of a run that does what the play does, and keeps something besides."""
    recorded = step_events(resolve(read_job(TINY)))
    assert recorded is not None
    events, at, where = [event("alloc", 1 << 20, extra, frames=FRAMES)], 0, dict[int, int]()
    for number, size in recorded.events:
        if size > 0:
            where[number] = at
            events.append({"action": "alloc", "addr": BASE + at, "size": size, "stream": 0})
            at += size + 512
        else:
            events.append({"action": "free_completed", "addr": BASE + where[number], "size": -size, "stream": 0})
    return write(path, events, [])


def test_what_nobody_accounts_for_is_told(tmp_path: Path, run: Run) -> None:
    found = explain(read_snapshot(played_snapshot(tmp_path, 77)), estimate(TINY))
    assert found.played_peak
    assert found.explained_bytes == found.played_peak == found.allocated_peak - 77 * MiB
    assert [(row.bytes, row.place) for row in found.unaccounted] == [(77 * MiB, "train.py:31 keep_copies")]
    assert not found.missing
    assert sum(found.by_category.values()) == found.explained_bytes
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(TINY))
    code, out, _ = run("trace", str(job), "--snapshot", str(tmp_path / "snapshot.pickle"))
    assert code == 0
    assert "Nobody accounts for: 77.00 MiB" in out
    assert "train.py:31 keep_copies" in out
    code, out, _ = run("trace", str(job), "--snapshot", str(tmp_path / "snapshot.pickle"), "--json")
    assert json.loads(out)["unaccounted"] == [{"size": 77 * MiB, "number": 1, "place": "train.py:31 keep_copies"}]


def test_without_a_job_it_is_measured_and_replayed(tmp_path: Path, run: Run) -> None:
    file = write(tmp_path, [event("segment_alloc", 0, 20), event("alloc", 0, 4)], [segment(0, 20, (4, LIVE))])
    code, out, _ = run("trace", "--snapshot", file)
    assert code == 0
    assert "reserved agrees after every request" in out
    assert "Estimated" not in out


def test_what_is_alive_is_told_by_where_it_was_asked_for(tmp_path: Path, run: Run) -> None:
    deep = [{"filename": "/x/torch/optim/adamw.py", "line": 9, "name": "step"}]
    asked = [event("alloc", at, 4, frames=frames) for at, frames in ((0, FRAMES), (4, FRAMES), (8, deep), (12, []))]
    failed = {**event("oom", 0, 30, frames=FRAMES), "device_free": MiB}
    file = write(tmp_path, [event("segment_alloc", 0, 20), *asked, failed], [segment(0, 20, *[(4, LIVE)] * 4)])
    found = explain(read_snapshot(file))
    assert [(each.place, each.bytes // MiB, each.number) for each in found.held] == [
        ("train.py:31 keep_copies", 8, 2),
        ("adamw.py:9 step", 4, 1),
        ("", 4, 1),
    ]
    code, out, _ = run("trace", "--snapshot", file)
    assert code == 0
    assert "Out of memory: 30.00 MiB asked for in train.py:31 keep_copies, with 1.00 MiB free." in out
    assert "without frames" in out


def test_the_measured_timeline_is_told_apart_as_the_play_knows_it(tmp_path: Path) -> None:
    found = explain(read_snapshot(played_snapshot(tmp_path, 77)), estimate(TINY))
    points = measured(found).points
    peak = max(points, key=lambda point: point.bytes)
    assert peak.bytes == found.allocated_peak
    assert peak.by_category == {**found.by_category, "nobody_accounts_for": 77 * MiB}
    assert "measured" in snapshot_svg(found)
    alone = explain(read_snapshot(write(tmp_path, [event("segment_alloc", 0, 20), event("alloc", 0, 4)], [])))
    assert [(point.bytes // MiB, point.reserved_bytes) for point in measured(alone).points][-1] == (4, 20 * MiB)


class Evil:
    """Runs a command when it is unpickled by a careless reader."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


HOSTILE: dict[str, bytes] = {
    "a command": pickle.dumps({"device_traces": [[Evil()]], "segments": []}),
    "a command, in text": pickle.dumps(Evil(), protocol=0),
    "a class by stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "an instance": b"(ios\nsystem\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "something outside": b"\x80\x02\x8c\x01xQ.",
    "built from a list": b"\x80\x02]}\x8c\x01aK\x01sb.",
    "called text": b"\x80\x02\x8c\x01x)R.",
    "cut short": pickle.dumps({"device_traces": [[{"action": "alloc"}]]})[:-9],
    "a length that is not there": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "text": b"hello",
    "nothing": b"",
    "nested": b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".",
    "a number": pickle.dumps(3),
    "no events": pickle.dumps({"device_traces": [[]], "segments": []}),
    "events of text": pickle.dumps({"device_traces": [["alloc"]], "segments": []}),
    "negative bytes": pickle.dumps({"device_traces": [[event("alloc", 0, -4)]], "segments": []}),
    "too many bytes": pickle.dumps({"device_traces": [[event("alloc", 0, 1 << 70)]], "segments": []}),
    "segments of no list": pickle.dumps({"device_traces": [[event("alloc", 0, 4)]], "segments": 3}),
    "a block that is not there": pickle.dumps({
        "device_traces": [[event("free_completed", 0, 4), event("segment_alloc", 0, 20), event("alloc", 0, 4)]],
        "segments": [segment(0, 20, (4, FREE), (8, LIVE), (8, FREE))],
    }),
    "a petabyte of pages": pickle.dumps(
        {"device_traces": [[event("segment_unmap", 0, 1 << 30)]], "allocator_settings": {"expandable_segments": True}}
        | {"segments": []}
    ),
    "blocks over each other": pickle.dumps(
        {"device_traces": [[event("alloc", 64, 4)]]}
        | {"segments": [segment(0, 20, (4, LIVE)) | {"blocks": [
            {"address": BASE, "size": 8 * MiB, "state": LIVE}, {"address": BASE + MiB, "size": 8 * MiB, "state": LIVE},
        ]}]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_foreign_files_are_one_line(name: str, tmp_path: Path, run: Run, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "x.pickle"
    file.write_bytes(HOSTILE[name])
    code, out, told = run("trace", "--snapshot", str(file))
    assert (code, out) == (2, "")
    assert told.startswith("error: ")
    assert len([line for line in told.splitlines() if line.startswith("error:")]) == 1
    assert "hint: " in told
    assert not (tmp_path / "evil").exists()


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: Any) -> None:
    for path in (str(tmp_path), str(tmp_path / "absent"), "\0"):
        with pytest.raises(UsageError):
            read_plain(path)
    (tmp_path / "large").write_bytes(b"x" * 100)
    monkeypatch.setattr("memplan.snapshot.reading.LARGEST", 50)
    with pytest.raises(UsageError, match="at most are read"):
        read_plain(str(tmp_path / "large"))


def test_plain_containers_are_read(tmp_path: Path) -> None:
    plain = {"a": [1, 2.5, None, True, "x", b"y", (1, 2)], "b": {"c": -(1 << 70)}}
    for protocol in range(6):
        (tmp_path / "x").write_bytes(pickle.dumps(plain, protocol=max(protocol, 3)))
        assert read_plain(str(tmp_path / "x")) == plain
