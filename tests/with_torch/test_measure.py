"""Proves memplan measure in real, tiny runs on the CPU: what its file holds, several processes, and no memory left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from traced_jobs import TINY, job
from transformers import LlamaConfig, LlamaForCausalLM

from memplan.cli.app import main
from memplan.errors import InvalidJob, ModelNotFound, UsageError
from memplan.measurement import Measurement, errors_of
from memplan.spec.reading import read_job
from memplan.trace.attempt import Attempt, search
from memplan.trace.devices import HISTORY, CpuDevice, CudaDevice, this_device
from memplan.trace.measure import measure
from memplan.trace.world import World, read_world
from memplan.units import GiB, MiB

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries that train here, not of memplan

SIZED = {
    "hidden_size": 256, "intermediate_size": 704, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 32, "num_hidden_layers": 4, "vocab_size": 2000,
}  # fmt: skip
"""Large enough that counters and rounding to 512 bytes do not show."""
COMMON: dict[str, Any] = {"attention": "eager", "batch_size": 2, "sequence_length": 128, "optimizer_impl": "fused"}


def described(**keys: Any) -> dict[str, Any]:
    return job(TINY, SIZED, **{**COMMON, **keys})


def measured(device: CpuDevice | None = None, find_max: bool = False, **keys: Any) -> Measurement:
    found = measure(described(**keys), steps=2, device=device, find_max=find_max)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "keys",
    [
        {"precision": "bf16"},
        {"precision": "fp32"},
        {"precision": "bf16", "gradient_checkpointing": "full"},
        {"precision": "bf16", "method": "dpo"},
        {"precision": "bf16", "method": "reward"},
        {"precision": "bf16", "method": "simpo", "pair_pass": "split"},
        {"precision": "bf16", "gradient_accumulation_steps": 2, "padded": True},
        {"precision": "bf16", "lora": {"r": 8}, "method": "dpo"},
    ],
    ids=str,
)
def test_every_phase_is_what_memplan_estimates(keys: dict[str, Any]) -> None:
    found = measured(**keys)
    errors = errors_of(found)
    assert set(errors) == {"forward", "backward", "step", "allocated"}
    for what, (estimated, real) in errors.items():
        assert abs(estimated - real) <= 0.005 * real, what


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(described()), encoding="utf-8")  # JSON is YAML
    return path


def test_the_file_holds_a_row_of_truth(job_file: Path, tmp_path: Path) -> None:
    from memplan.truth import read_sets

    out = tmp_path / "found.json"
    assert main(["measure", str(job_file), "--steps", "2", "--output", str(out)]) == 0
    written = json.loads(out.read_text(encoding="utf-8"))
    assert set(written["measured"]) == {"allocated_bytes", "phases"}, "a CPU reserves nothing and has no driver"
    assert written["meter"] == "tracked on cpu"
    assert written["hardware"] == {"device": "cpu"}
    assert written["versions"]["torch"] == torch.__version__
    assert (written["steps"], written["weights"], written["schema_version"]) == (2, "random", 1)
    assert written["id"].startswith("llama-sft-b2-s128-cpu-")
    again = read_job(written["job"]).job
    assert (again.batch_size, again.sequence_length, again.optimizer_impl) == (2, 128, "fused")
    row = read_sets([out])[0].rows[0]
    assert row.id == written["id"]
    assert row.phases == written["measured"]["phases"]
    assert row.meters == {"allocated": written["measured"]["allocated_bytes"]}


def test_nothing_is_overwritten_unless_forced(
    job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    out.write_text("mine", encoding="utf-8")
    for option in ("--output", "--snapshot"):
        assert main(["measure", str(job_file), option, str(out)]) == 2
        assert f"{option} {out} exists already" in capsys.readouterr().err
        assert out.read_text(encoding="utf-8") == "mine"
    assert main(["measure", str(job_file), "--steps", "2", "--output", str(out), "--force"]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["measured"]


def test_real_weights_are_read_from_a_folder(tmp_path: Path) -> None:
    config = LlamaConfig(**{key: value for key, value in TINY.items() if key != "model_type"})
    LlamaForCausalLM(config).save_pretrained(tmp_path / "weights")
    weights = str(tmp_path / "weights")
    found = measure(job(TINY, **COMMON), steps=2, weights=weights)
    drawn = measure(job(TINY, **COMMON), steps=2)
    assert found is not None
    assert drawn is not None
    assert found.measured == drawn.measured
    assert found.weights == weights
    with pytest.raises(ModelNotFound, match="--weights"):
        measure(job(TINY, **COMMON), steps=2, weights=str(tmp_path / "nowhere"))


class Counters:
    """torch.cuda's counters of a card that one phase after another fills: 10, 20, … bytes, twice that reserved."""

    def __init__(self) -> None:
        self.phase = 0

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "set_device": lambda index: None,
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": self.reset,
            "max_memory_allocated": lambda: 10 * self.phase,
            "max_memory_reserved": lambda: 20 * self.phase,
            "mem_get_info": lambda: (1000 - 30 * self.phase, 1000),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def reset(self) -> None:
        self.phase += 1


def test_a_card_is_read_at_the_end_of_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    Counters().put(monkeypatch)
    device = this_device(0)
    assert isinstance(device, CudaDevice)
    with device.running():  # its reset is phase 1, where the model is made
        for phase in ("forward-1", "step-1", "end-1", "forward", "backward", "forward", "step", "end"):  # 2 to 9
            device.begin(phase)
    assert device.readings() == {
        "allocated_bytes": 80,
        "reserved_bytes": 160,
        "device_bytes": 240,
        "phases": {"forward": 70, "backward": 60, "step": 80},
    }
    with pytest.raises(UsageError, match="LOCAL_RANK=1"):
        this_device(1)


def test_a_snapshot_is_kept_where_memory_runs_out_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    Counters().put(monkeypatch)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **settings: said.append(settings))
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", said.append)
    with pytest.raises(torch.OutOfMemoryError), this_device(0).history("snapshot.pickle"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert said == [{"max_entries": HISTORY}, "snapshot.pickle", {"enabled": None}]


@pytest.mark.parametrize(
    ("name", "memory", "card"),
    [
        ("NVIDIA H100 80GB HBM3", 79 * GiB, "h100-80gb"),
        ("NVIDIA H200", 139 * GiB, "h200-141gb"),
        ("NVIDIA A100-SXM4-40GB", 39 * GiB, "a100-40gb"),
        ("Some Card", 7 * GiB, f"{7 * GiB // 1024}KiB"),
    ],
)
def test_a_card_is_found_in_the_catalogue(name: str, memory: int, card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Counters().put(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (memory, memory))
    assert this_device(0).card() == card


class Full(CpuDevice):
    """A device that runs out where a phase begins with more than it has."""

    has_limit = True

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def begin(self, phase: str) -> None:
        super().begin(phase)
        if self.tracker.allocated() > self.limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_out_of_memory_is_a_result() -> None:
    found = measured(Full(30 * MiB))
    assert found.measured == {}
    assert found.out_of_memory is not None
    # The optimizer's states are new in the second step.
    assert (found.out_of_memory["phase"], found.out_of_memory["step"]) == ("backward", 2)
    assert found.out_of_memory["batch_size"] == 2
    assert found.out_of_memory["reached"]["allocated_bytes"] > 30 * MiB
    assert found.estimated["allocated_bytes"] > 30 * MiB
    assert json.loads(json.dumps(found.to_dict()))["out_of_memory"]["phase"] == "backward"


def test_find_max_measures_the_largest_batch_that_fits() -> None:
    device = Full(80 * MiB)
    found = measured(device, find_max=True, batch_size=1)
    largest = found.largest_batch_size
    assert largest is not None
    assert largest > 2
    assert found.job["batch_size"] == largest
    assert found.out_of_memory is not None
    assert found.out_of_memory["batch_size"] == largest + 1
    assert measured(device, batch_size=largest).measured == found.measured
    assert measured(device, batch_size=largest + 1).measured == {}


def test_find_max_says_that_nothing_fits() -> None:
    found = measured(Full(MiB), find_max=True)
    assert (found.largest_batch_size, found.measured) == (0, {})
    assert found.out_of_memory is not None
    assert found.out_of_memory["batch_size"] == 1


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 7, 8, 100])
@pytest.mark.parametrize("start", [1, 3, 8])
def test_the_search_finds_every_limit(limit: int, start: int) -> None:
    asked: list[int] = []

    def run(size: int) -> Attempt:
        asked.append(size)
        return Attempt([{}]) if size <= limit else Attempt([], {"batch_size": size})

    found = search(start, run)
    assert found.batch_size == limit
    assert found.out_of_memory == {"batch_size": limit + 1}
    assert len(asked) == len(set(asked)), "no size is tried twice"


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"trainer": "trl"}, "trainer: trl cannot be measured"),
        ({"optimizer": "lion", "optimizer_impl": "auto"}, "optimizer: lion cannot be measured"),
        ({"num_gpus": 2}, "num_gpus: 2, but this run has 1 process"),
        ({"pair_pass": "split", "method": "dpo", "sft_term": True}, "sft_term: not measured with pair_pass split"),
    ],
    ids=str,
)
def test_what_the_steps_cannot_run_is_refused_by_name(keys: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidJob) as raised:
        measure(described(**keys))
    assert word in raised.value.message


def test_what_a_cpu_cannot_do_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="--find-max"):
        measure(described(), find_max=True)
    with pytest.raises(UsageError, match="--snapshot"):
        measure(described(), snapshot=str(tmp_path / "snapshot"))
    with pytest.raises(UsageError, match="--steps 1"):
        measure(described(), steps=1)


def test_other_errors_are_not_taken_for_out_of_memory() -> None:
    class Broken(CpuDevice):
        def begin(self, phase: str) -> None:
            raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        measured(Broken())


def test_a_process_knows_its_place() -> None:
    assert read_world({}) == World(0, 1, 0)
    assert read_world({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}) == World(3, 4, 1)
    for wrong in ({"WORLD_SIZE": "two"}, {"RANK": "4", "WORLD_SIZE": "4"}):
        with pytest.raises(UsageError):
            read_world(wrong)


def torchrun(
    *arguments: str, program: tuple[str, ...] = ("-m", "memplan", "measure")
) -> subprocess.CompletedProcess[str]:
    """A program, memplan measure unless another is named, in two processes that share the CPU."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    command = [*launcher, *program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.parametrize(
    ("keys", "bound"),
    [
        ({"sharding": "ddp"}, 0.005),
        ({"sharding": "fsdp2", "precision": "bf16"}, 0.005),
        # DDP adds up gradients of two micro-steps, and reduces them once.
        ({"sharding": "ddp", "gradient_accumulation_steps": 2, "sync_each_batch": False}, 0.005),
        # gloo frees what it reduced when its thread is done, which may be in the next phase: by a layer's gradients.
        ({"sharding": "fsdp2", "precision": "bf16-amp", "method": "dpo"}, 0.1),
    ],
    ids=str,
)
def test_two_processes_give_one_file(keys: dict[str, Any], bound: float, tmp_path: Path) -> None:
    path, out = tmp_path / "job.yaml", tmp_path / "found.json"
    path.write_text(json.dumps(described(**keys)), encoding="utf-8")
    done = torchrun(str(path), "--steps", "2", "--output", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    written = json.loads(out.read_text(encoding="utf-8"))
    assert (written["job"]["num_gpus"], written["job"]["sharding"]) == (2, keys["sharding"])
    assert written["hardware"]["processes"] == len(written["ranks"]) == 2
    allocated = written["measured"]["allocated_bytes"]
    assert allocated == max(rank["allocated_bytes"] for rank in written["ranks"])
    assert abs(written["estimated"]["allocated_bytes"] - allocated) <= bound * allocated


def test_only_the_first_process_prints(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(described(sharding="ddp")), encoding="utf-8")
    done = torchrun(str(path), "--steps", "2", "--format", "csv")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "what,measured_bytes,estimated_bytes"
    assert [line.split(",")[0] for line in lines[1:]] == ["forward", "backward", "step", "allocated"]


RUNS_OUT = """
import json, sys, torch
from memplan.trace.devices import CpuDevice
from memplan.trace.measure import measure
from memplan.trace.world import read_world

class Full(CpuDevice):
    def begin(self, phase):
        super().begin(phase)
        if read_world().rank == 1 and phase == "backward-1":
            raise torch.OutOfMemoryError("CUDA out of memory")

found = measure(json.loads(sys.argv[1]), device=Full())
if found is not None:
    print(json.dumps(found.to_dict()))
"""


def test_the_first_process_tells_of_memory_that_another_ran_out_of(tmp_path: Path) -> None:
    """It waits in a collective for the other, and finds word from it when that fails."""
    script = tmp_path / "runs_out.py"
    script.write_text(RUNS_OUT, encoding="utf-8")
    done = torchrun(json.dumps(described(sharding="ddp")), program=(str(script),))
    assert done.returncode == 0, done.stderr
    written = json.loads(done.stdout)
    assert written["measured"] == {}
    lost = written["out_of_memory"]
    assert (lost["rank"], lost["phase"], lost["step"]) == (1, "backward", 1)


def test_too_many_processes_are_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(described(num_gpus=4)), encoding="utf-8")
    done = torchrun(str(path))
    assert done.returncode != 0
    assert done.stderr.count("error: num_gpus: 4, but this run has 2 processes") == 1
