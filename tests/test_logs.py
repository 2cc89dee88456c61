"""Proves what logs of engines and trainers are read to say: every wording, each term over the ranks, what nobody
accounts for, how they died; and that no log, however made, costs more than a moment.
"""

# ruff: noqa: E501, since lines of logs are as long as they are

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from counting import calls

from memplan.cli.app import main
from memplan.errors import UsageError
from memplan.logs.beside import Compared, compared
from memplan.logs.jobs import job_keys
from memplan.logs.reading import process_of, read_log
from memplan.logs.wordings import WORDINGS, compiled
from memplan.units import GiB, MiB

V0_6 = """\
INFO 04-28 04:07:21 llm_engine.py:237] Initializing an LLM engine (v0.6.4.post1) with config: model='some/model-1b', dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, kv_cache_dtype=auto
INFO 04-28 04:07:51 model_runner.py:1077] Loading model weights took 2.0512 GB
INFO 04-28 04:07:51 worker.py:232] Memory profiling results: total_gpu_memory=40.00GiB initial_memory_usage=2.71GiB peak_torch_memory=2.38GiB memory_usage_post_profile=2.81Gib non_torch_memory=0.73GiB kv_cache_size=32.89GiB gpu_memory_utilization=0.90
INFO 04-28 04:07:52 gpu_executor.py:113] # GPU blocks: 365549, # CPU blocks: 11915
INFO 04-28 04:07:52 gpu_executor.py:117] Maximum concurrency for 2048 tokens per request: 2855.85x
"""
V0_8 = """\
INFO 03-14 09:12:55 [model_runner.py:1146] Model loading took 15.2683 GiB and 13.204526 seconds
INFO 03-14 09:13:07 [worker.py:267] Memory profiling takes 11.85 seconds
INFO 03-14 09:13:07 [worker.py:267] the current vLLM instance can use total_gpu_memory (80.00GiB) x gpu_memory_utilization (0.50) = 40.00GiB
INFO 03-14 09:13:07 [worker.py:267] model weights take 15.27GiB; non_torch_memory takes 0.35GiB; PyTorch activation peak memory takes 1.38GiB; the rest of the memory reserved for KV Cache is 23.00GiB.
INFO 03-14 09:13:07 [executor_base.py:111] # cuda blocks: 10467, # CPU blocks: 1820
"""
V1 = """\
(APIServer pid=1) INFO 09-04 10:58:31 [utils.py:233] non-default args: {'model': 'some/model-8b', 'gpu_memory_utilization': 0.5, 'max_num_seqs': 64, 'kv_cache_dtype': 'fp8'}
(EngineCore_DP0 pid=9) INFO 09-04 10:58:50 [core.py:123] Initializing a V1 LLM engine (v0.11.0) with config: model='some/model-8b', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=None, enforce_eager=True, kv_cache_dtype=fp8
(Worker_TP0 pid=11) INFO 09-04 10:59:45 [model_runner.py:408] Model loading took 7.60 GiB memory and 42.5 seconds
(Worker_TP1 pid=12) INFO 09-04 10:59:45 [model_runner.py:408] Model loading took 7.62 GiB memory and 42.5 seconds
(Worker_TP0 pid=11) INFO 09-04 11:00:12 [gpu_worker.py:298] Available KV cache memory: 30.10 GiB
(Worker_TP1 pid=12) INFO 09-04 11:00:12 [gpu_worker.py:298] Available KV cache memory: 30.00 GiB
(EngineCore_DP0 pid=9) INFO 09-04 11:00:12 [kv_cache_utils.py:1087] GPU KV cache size: 873,808 tokens, Maximum concurrency for 8,192 tokens per request: 106.67x
(Worker_TP1 pid=12) INFO 09-04 11:00:17 [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took 0.67 GiB
(Worker_TP1 pid=12) DEBUG 09-04 11:00:17 [gpu_worker.py:391] Free memory on device (79.00/80.00 GiB) on startup. Desired GPU memory utilization is (0.5, 40.0 GiB). Actual usage is 7.62 GiB for weight, 1.97 GiB for peak activation, 0.35 GiB for non-torch memory, and 0.67 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=31331450880` to fit into requested memory. Current kv cache memory in use is 32212254720 bytes.
(EngineCore_DP0 pid=9) INFO 09-04 11:05:17 [cumem.py:228] CuMemAllocator: sleep freed 37.7 GiB memory in total, of which 7.62 GiB is backed up in CPU and the rest 30.08 GiB is discarded directly.
(EngineCore_DP0 pid=9) INFO 09-04 11:05:17 [gpu_worker.py:104] Sleep mode freed 38.25 GiB memory, 1.38 GiB memory is still in use.
"""
V1_NEW = """\
(Worker_TP0_EP0 pid=1159) INFO 09-04 10:59:45 [model_runner.py:408] Model loading took 61.74 GiB memory and 42.528694 seconds
(Worker_TP0_EP0 pid=1159) INFO 09-04 11:00:10 [gpu_model_runner.py:6042] Estimated CUDA graph memory: 0.38 GiB total
(Worker_TP0_EP0 pid=1159) INFO 09-04 11:00:12 [gpu_worker.py:624] Available KV cache memory: 17.41 GiB
(Worker_TP0_EP0 pid=1159) INFO 09-04 11:00:17 [gpu_worker.py:792] CUDA graph pool memory: 0.25 GiB (actual), 0.38 GiB (estimated), difference: 0.12 GiB (50.0%).
(Worker_TP0_EP0 pid=1159) INFO 09-04 11:00:17 [gpu_worker.py:855] Free memory on device (91.64/94.97 GiB) on startup. Desired GPU memory utilization is (0.91, 86.42 GiB). Actual usage is 64.44 GiB for consumed memory (weights + non-torch), 4.19 GiB for peak activation, and 0.38 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=18676332626` (17.39 GiB) to fit into requested memory. Current kv cache memory in use is 17.41 GiB.
"""
SGLANG = """\
[2026-05-15 08:40:01] server_args=ServerArgs(model_path='some/model-8b', tp_size=2, mem_fraction_static=0.7, context_length=32768, dtype='auto', max_running_requests=256)
[2026-05-15 08:40:02 TP0] Load weight begin. avail mem=78.00 GB
[2026-05-15 08:40:02 TP1] Load weight begin. avail mem=77.50 GB
[2026-05-15 08:40:12 TP0] Load weight end. elapsed=9.1 s, type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=70.00 GB, mem usage=8.00 GB.
[2026-05-15 08:40:12 TP1] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=69.50 GB
[2026-05-15 08:40:13 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 400000, K size: 20.00 GB, V size: 20.00 GB
[2026-05-15 08:40:13 TP0] KV Cache is allocated. #tokens: 40000, KV size: 6.00 GB
[2026-05-15 08:40:13 TP0] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state size: 0.10GB, ssm_state size: 0.90GB
[2026-05-15 08:40:14 TP0] Memory pool end. avail mem=23.00 GB
[2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 12.02 s. mem usage=1.50 GB. avail mem=21.25 GB.
[2026-05-15 08:40:32 TP0] max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=256, context_len=32768, available_gpu_mem=21.25 GB
"""
VERL = """\
(WorkerDict pid=7) After FSDP, memory allocated (GB): 5.82, memory reserved (GB): 7.36, device memory used/total (GB): 23.89/80.00
(TaskRunner pid=5) step:1 - global_seqlen/min:100 - perf/max_memory_allocated_gb:38.5 - perf/max_memory_reserved_gb:np.float64(41.25) - perf/cpu_memory_used_gb:88.0
(TaskRunner pid=5) step:2 - global_seqlen/min:100 - perf/max_memory_allocated_gb:36.5 - perf/max_memory_reserved_gb:41.25 - perf/cpu_memory_used_gb:96.0
"""


def read(tmp_path: Path, text: str) -> Compared:
    """A log of this text, compared with nothing."""
    file = tmp_path / "x.log"
    file.write_text(text, encoding="utf-8")
    return compared(read_log(str(file)), None)


def terms(found: Compared) -> dict[str, float]:
    """GiB, or numbers, as measured."""
    size = {"bytes": GiB, "number": 1}
    return {term.name: round(term.measured / size[term.unit], 4) for term in found.terms if term.measured is not None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V0_6, {"weights": 2.0512, "activation": 0.3288, "non_torch": 0.73, "kv": 32.89, "kv_blocks": 365549,
                "free_at_start": 37.29, "total": 40.0, "budget": 36.0, "concurrency": 2855.85}),
        (V0_8, {"weights": 15.27, "activation": 1.38, "non_torch": 0.35, "kv": 23.0, "budget": 40.0, "kv_blocks": 10467,
                "kv_tokens": 167472}),
        (V1, {"weights": 7.62, "activation": 1.97, "non_torch": 0.35, "graphs": 0.67, "kv": 30.0, "budget": 40.0,
              "kv_tokens": 873808, "concurrency": 106.67, "max_model_len": 8192, "asleep": 1.38, "sleep_host": 7.62,
              "slept": 38.25, "free_at_start": 79.0, "total": 80.0}),
        (V1_NEW, {"weights": 61.74, "non_torch": 2.7, "activation": 4.19, "graphs": 0.25, "graphs_estimated": 0.38,
                  "kv": 17.41, "budget": 86.42}),
        (SGLANG, {"weights": 8.0, "kv": 46.0, "state": 1.0, "graphs": 1.5, "free_at_start": 77.5, "free_at_end": 21.25,
                  "kv_tokens": 400000, "max_model_len": 32768}),
        (VERL, {"max_allocated": 38.5, "max_reserved": 41.25, "host": 96.0, "allocated": 5.82, "device": 23.89}),
    ],
    ids=["vllm 0.6", "vllm 0.8 V0", "vllm 0.11", "vllm 0.33", "sglang", "verl"],
)  # fmt: skip
def test_each_version_says_its_terms(tmp_path: Path, text: str, expected: dict[str, float]) -> None:
    found = terms(read(tmp_path, text))
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "term", "size"),
    [
        ("  train_mem_gpu_peaked_delta = 1024MB\n before_init_mem_gpu = 0MB\n init_mem_gpu_alloc_delta = 512MB\n"
         " train_mem_gpu_alloc_delta = 512MB", "max_allocated", 2048 * MiB),
        ('{"before_init_mem_gpu": 0, "init_mem_gpu_alloc_delta": 5,\n"train_mem_gpu_alloc_delta": 6,\n'
         '"train_mem_gpu_peaked_delta": 7}', "max_allocated", 18),
        ("{'loss': 0.1, 'memory(GiB)': 53.5, 'step': 1}", "max_reserved", 53.5 * GiB),
        ("[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.5 | max allocated: 2048.0 | reserved: 3000.0 | max "
         "reserved: 3072.0", "max_allocated", 2 * GiB),
        ("MA 14.96 GB         Max_MA 15.0 GB         CA 15.05 GB         Max_CA 16 GB", "max_reserved", 16 * GiB),
        ("step: 10  loss:  7.1  memory: 47.25GiB(49.7%)  tps: 100", "max_reserved", 47.25 * GiB),
        ("Peak reserved memory = 12.5 GB.", "max_reserved", 12.5 * GiB),
        ("|  0%   45C  P0    70W / 350W |  20480MiB / 24576MiB |      0%  Default |", "device", 20 * GiB),
        ("Memory-Usage after offload: {'gpu': '0', 'total_GB': 140, 'free_GB': 88, 'used_GB': 52, 'allocated_GB': 80.5, "
         "'reserved_GB': 81.0}", "reserved", 81 * GiB),
        ('{"step": 1, "data": {"perf/max_memory_reserved_gb": 44.5, "perf/cpu_memory_used_gb": 9}}', "max_reserved",
         44.5 * GiB),
        ('{"log": "INFO [gpu_worker.py:1] Available KV cache memory: -0.19 GiB\\n", "stream": "stderr"}', "kv",
         -0.19 * GiB),
    ],
)  # fmt: skip
def test_other_wordings(tmp_path: Path, line: str, term: str, size: float) -> None:
    found = {each.name: each.measured for each in read(tmp_path, line).terms}
    assert found[term] == round(size)


def test_every_wording_finds_its_own_word() -> None:
    """A pattern that could only match lines without its word would never be asked."""
    texts = [V0_6, V0_8, V1, V1_NEW, SGLANG, VERL]
    for each in compiled():
        for text in texts:
            for line in text.splitlines():
                assert not each.pattern.search(line) or each.wording.word in line.lower(), each.wording
    assert all(wording.word == wording.word.lower() for wording in WORDINGS)


def test_seconds_of_loading_are_no_bytes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing in it"):
        read(tmp_path, "INFO [default_loader.py:384] Loading weights took 122.79 seconds\n")


def test_ranks_become_one_figure_with_its_range(tmp_path: Path) -> None:
    found = {term.name: term for term in read(tmp_path, V1).terms}
    kv, weights = found["kv"], found["weights"]
    assert (kv.measured, kv.high, kv.ranks) == (30 * GiB, round(30.1 * GiB), 2)
    assert (weights.measured, weights.low) == (round(7.62 * GiB), round(7.6 * GiB))
    assert [process_of(line) for line in V1.splitlines()[2:4]] == ["Worker_TP0 11", "Worker_TP1 12"]
    assert process_of(SGLANG.splitlines()[3]) == "TP0"


@pytest.mark.parametrize(
    ("text", "left"),
    [(V0_8, 0.0), (V1, 0.06), (V1_NEW, 0.0), (SGLANG, 0.25)],
    ids=["vllm 0.8", "vllm 0.11", "vllm 0.33 subtracts its estimate", "sglang"],
)
def test_what_nobody_accounts_for(tmp_path: Path, text: str, left: float) -> None:
    found = read(tmp_path, text)
    assert round(found.unaccounted[0].bytes / GiB, 2) == left


def test_the_job_that_a_log_tells_of(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(V1, encoding="utf-8")
    assert job_keys(read_log(str(file))) == {
        "model": "some/model-8b",
        "method": "generate",
        "num_gpus": 2,
        "gpu": "80.00GiB",
        "rollout": {
            "engine": "vllm",
            "engine_version": "0.11.0",
            "tensor_parallel": 2,
            "pipeline_parallel": 1,
            "data_parallel": 1,
            "max_model_len": 8192,
            "max_num_seqs": 64,
            "gpu_memory_utilization": 0.5,
            "dtype": "bf16",
            "kv_dtype": "fp8",
            "enforce_eager": True,
            "sleep": "1",
        },
    }
    file.write_text(V1.replace("enforce_eager=True", "language_model_only=True"), encoding="utf-8")
    assert job_keys(read_log(str(file)))["rollout"]["language_model_only"] is True
    file.write_text(SGLANG, encoding="utf-8")
    rollout = job_keys(read_log(str(file)))["rollout"]
    assert (rollout["mem_fraction_static"], rollout["tensor_parallel"], rollout["max_model_len"]) == (0.7, 2, 32768)
    assert "gpu_memory_utilization" not in rollout


def test_the_last_start_counts_and_ranks_of_one_start_do_not_begin_anew(tmp_path: Path) -> None:
    small = V1.replace("7.60 GiB", "3.60 GiB").replace("7.62 GiB", "3.62 GiB").replace("pid=1", "pid=2")
    found = read(tmp_path, V1 + small)
    assert (found.starts, found.ranks, terms(found)["weights"]) == (2, 2, 3.62)
    other = V1.replace("EngineCore_DP0", "EngineCore_DP1").replace("Worker_TP", "Worker_DP1_TP")
    assert (read(tmp_path, V1 + other).starts, read(tmp_path, V1 + other).ranks) == (1, 4)
    actors = [V0_6.replace("INFO 04", f"(VllmGenerationWorker pid={pid}) INFO 04") for pid in (7, 8, 9)]
    assert (read(tmp_path, "".join(actors)).starts, read(tmp_path, "".join(actors)).ranks) == (1, 3)
    assert read(tmp_path, V0_6 + V0_6).starts == 2


DEATHS = [
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "start.engine", "larger"),
    ("ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory utilization "
     "(0.92, 21.67 GiB). Decrease GPU memory utilization", "start.engine", "asks for 21.67 GiB and 12.18 GiB"),
    ("ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is needed, "
     "which is larger than the available KV cache memory (10.91 GiB). Based on the available memory, the estimated "
     "maximum model length is 59584.", "start.engine", "at most 59584"),
    ("ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
     "cache (88272). Try", "start.engine", "at most 88272"),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests", "start.engine", "1024"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "start.engine", "mem_fraction_static"),
    ("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62", "sync.resume-weights", "woke"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", "unknown", "2.50 GiB"),
    ("ray.exceptions: 1 Workers (tasks / actors) killed due to memory pressure (OOM)", "host", "node"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "instant", "word"), DEATHS)
def test_how_it_died(tmp_path: Path, text: str, instant: str, word: str) -> None:
    found = read(tmp_path, f"{V1}{text}\n{text}\n")
    (died,) = found.died
    assert (died.instant, died.count, died.line) == (instant, 2, len(V1.splitlines()) + 1)
    assert word in died.why
    assert "{" not in died.why
    assert not read(tmp_path, f"{V1}{text}\n{V1.replace('pid=', 'pid=9')}").died, (
        "an earlier start's death is not the last's"
    )


def of_report(**engine: Any) -> Any:
    """A report with an engine of these figures."""
    from dataclasses import replace

    from memplan.api import estimate
    from memplan.generated import Engine

    names = ("budget_bytes", "weights_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes", "kv_bytes",
             "kv_bytes_per_token", "kv_tokens", "max_concurrency", "awake_bytes", "asleep_bytes")  # fmt: skip
    report = estimate({"model": "qwen2.5-0.5b", "gpu": "h100-80gb"})
    made = {**dict.fromkeys(names, 0), "starts": True, "why": "", **engine}
    return replace(report, engine=Engine(name="vllm", version="0.11.0", **made))


def test_estimated_stands_beside_measured(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(V1 + VERL, encoding="utf-8")
    report = of_report(weights_bytes=8 * GiB, kv_tokens=800_000)
    found = {term.name: term for term in compared(read_log(str(file)), report).terms}
    assert found["weights"].difference == 8 * GiB - round(7.62 * GiB)
    assert (found["kv_tokens"].estimated, found["kv_tokens"].difference) == (800_000, -73_808)
    assert found["max_allocated"].estimated == report.per_gpu.allocated_bytes
    assert found["slept"].estimated is None


def test_a_verdict_that_the_log_contradicts_is_called_wrong(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(V1, encoding="utf-8")
    assert compared(read_log(str(file)), of_report()).contradicts == ""
    assert "does not start, and it did" in compared(read_log(str(file)), of_report(starts=False)).contradicts
    file.write_text(V1 + DEATHS[0][0], encoding="utf-8")
    assert "'yes' of this job, and it died" in compared(read_log(str(file)), of_report()).contradicts


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.log"
    file.write_text(VERL, encoding="utf-8")
    assert main(["check", "--log", str(file), "qwen2.5-0.5b", "--gpu", "h100-80gb", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = next(term for term in found["terms"] if term["name"] == "max_allocated")
    assert row["measured"] == round(38.5 * GiB)
    assert row["estimated"] > 0
    assert row["difference"] == row["estimated"] - row["measured"]
    file.write_text(V1 + DEATHS[1][0], encoding="utf-8")
    assert main(["check", "--log", str(file), "qwen2.5-0.5b", "--gpu", "h100-80gb"]) == 1
    assert "died at start.engine: the engine asks for 21.67 GiB" in " ".join(capsys.readouterr().out.split())


def test_what_the_log_does_not_say_is_told_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.log"
    file.write_text(VERL, encoding="utf-8")
    assert main(["check", "--log", str(file)]) == 0
    assert "not estimated: " in capsys.readouterr().err
    assert main(["check", "--log", str(tmp_path / "no.log")]) == 2
    assert main(["check", "--log", str(file), "a.yaml", "b.yaml"]) == 2


@pytest.mark.parametrize(
    "data",
    [
        b"model loading took " * 200_000,
        b"Model loading took " + b"9" * 100_000 + b" GiB\n",
        b"\r" * 500_000 + b"Available KV cache memory: nan GiB",
        b'{"a":' * 100_000 + b"Available KV cache memory: 1 GiB",
        b"[" * 100_000 + b" TP0] Load weight end" + b" avail mem=" * 5000,
        "Available KV cache memory: ١٢ GiB\n".encode() * 1000 + b"\xff\xfe GPU KV cache size: tokens",
        b"No available memory for the cache blocks" * 5000,
        b"(Worker pid=1) " * 5000 + b"Model loading took 1e99 GiB",
    ],
    ids=range(8),
)
def test_no_text_costs_more_than_a_moment(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(data)

    def read() -> None:
        with suppress(UsageError):
            compared(read_log(str(file)), None).to_dict()

    assert calls(read) < 1_000_000


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(b"\0" * 100)
    with pytest.raises(UsageError, match="a binary file"):
        read_log(str(file))
    for path in ("/dev/zero", str(tmp_path)):
        with pytest.raises(UsageError, match="cannot be read"):
            read_log(path)
    os.symlink(tmp_path / "loop", tmp_path / "loop")
    with pytest.raises(UsageError, match="cannot be read"):
        read_log(str(tmp_path / "loop"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no file"):
        read_log(str(tmp_path / "pipe"))


def test_a_quantization_without_its_bits_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.log"
    file.write_text(
        "INFO [core.py:109] Initializing a V1 LLM engine (v0.23.0) with config: model='Qwen/Qwen3-8B', "
        "quantization=compressed-tensors\nINFO Model loading took 5.98 GiB memory and 35.1 seconds\n"
    )
    log = read_log(str(file))
    assert "quantization" not in job_keys(log)["rollout"]
    assert "add --set rollout.quantization=nvfp4" in log.warnings[-1]
    log = read_log(str(file))
    assert job_keys(log, {"rollout": {"quantization": "nvfp4"}})["rollout"]["quantization"] == "nvfp4"
    assert not any("how many bits" in each for each in log.warnings)


@pytest.mark.slow
def test_a_long_log_is_read_to_its_end_and_a_cut_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.log"
    noise = b"something else is said here of no interest at all\n"
    file.write_bytes(noise * 200_000 + VERL.encode())
    found = read_log(str(file))
    assert found.processes["TaskRunner 5"].terms["max_allocated"].line == 200_003
    monkeypatch.setattr("memplan.logs.scanning.MOST_LINES", 2)
    cut = read_log(str(file))
    assert "only the first 2 lines" in cut.warnings[0]


def test_settings_that_a_terminal_broke_are_put_together(tmp_path: Path) -> None:
    """A copied screen: lines of one width, whose last is shorter; the next record is none of them."""
    head = "(APIServer pid=7) INFO 09-04 01:02:21 [utils.py:326] non-default args: {'model': 'Qwen2-7B-Instruct', "
    said = head + "'max_model_len': 16384, 'tensor_parallel_size': 2, 'gpu_memory_utilization': 0.25}"
    width = 100
    lines = [said[at : at + width] for at in range(0, len(said), width)]
    after = "(Worker pid=8) INFO 09-04 01:02:57 [topk_topp_sampler.py:50] Using FlashInfer for top-p & top-k sampling."
    more = "(Worker pid=8) INFO 09-04 01:03:00 [gpu_worker.py:276] Available KV cache memory: 5.01 GiB"
    file = tmp_path / "x.log"
    file.write_text("\n".join([*lines, after, more]) + "\n")
    keys = job_keys(read_log(str(file)))
    rollout = {"engine": "vllm", "tensor_parallel": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.25}
    assert keys["rollout"] == rollout | {"sampler": "flashinfer"}
    assert keys["num_gpus"] == 2
