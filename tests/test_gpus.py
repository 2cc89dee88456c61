"""The catalogue of GPUs is whole and holds together; what users write finds the right card, or is told why not."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.errors import InvalidJob
from memplan.gpus import find_gpu, gpu_names, load_gpus
from memplan.presets import presets_dir
from memplan.spec.gpu import Gpu
from memplan.units import GiB, MiB

GPUS = load_gpus()
Driver = Callable[[str], None]


def test_the_catalogue_has_the_makers_it_promises() -> None:
    assert len(GPUS) >= 30
    assert list(GPUS) == gpu_names()
    assert {gpu.vendor for gpu in GPUS.values()} == {"nvidia", "amd", "huawei", "intel"}
    promised = "h100-80gb h100-pcie-80gb a100-80gb a100-40gb h200-141gb b200-180gb rtx-4090-24gb mi300x-192gb"
    assert set(promised.split()) | {"ascend-910b-64gb", "gaudi2-96gb", "gaudi3-128gb"} <= set(GPUS)


def test_names_are_unique_in_the_file() -> None:
    rows = json.loads((presets_dir() / "gpus.json").read_text(encoding="utf-8"))["gpus"]
    assert len(rows) == len(GPUS)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=GPUS)
def test_a_row_holds_together(gpu: Gpu) -> None:
    size = int(gpu.name.rpartition("-")[2].removesuffix("gb"))
    assert gpu.name == gpu.name.lower()
    assert 0.94 * gpu.memory_bytes < gpu.usable_bytes <= gpu.memory_bytes
    assert 0.93 * size * GiB < gpu.memory_bytes <= size * GiB or gpu.name == "gb200-186gb", "the name says its size"
    assert gpu.source
    assert gpu.link
    assert gpu.architecture
    assert gpu.memory_bandwidth_gbps
    assert gpu.link_gbps is None or f"{gpu.link_gbps:g}" in gpu.link
    if gpu.usable_is_assumed:
        assert "assumed" in gpu.source or "GUESS" in gpu.source, "an assumption says how it was made"


@pytest.mark.parametrize(
    ("name", "usable_gib"),
    [
        ("h100-80gb", 79.10),
        ("a100-40gb", 39.25),
        ("ascend-910b-64gb", 60.96),
        ("t4-16gb", 14.56),
        ("gaudi2-96gb", 94.62),
    ],
)
def test_usable_memory_is_the_lowest_that_torch_was_seen_to_report(name: str, usable_gib: float) -> None:
    assert GPUS[name].usable_bytes == int(usable_gib * GiB)
    assert not GPUS[name].usable_is_assumed


def test_cards_without_bf16_say_so() -> None:
    assert {name for name, gpu in GPUS.items() if gpu.fp16_tflops and not gpu.bf16_tflops} == {
        "v100-16gb",
        "v100-32gb",
        "t4-16gb",
    }


@pytest.mark.parametrize("name", gpu_names())
def test_every_name_finds_its_card_however_it_is_spelt(name: str) -> None:
    for text in (name, name.upper(), name.replace("-", "_"), f" {name.replace('-', ' ')} ", name.replace("-", "")):
        assert find_gpu(text) == GPUS[name]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100-80gb"),
        ("h100-pcie", "h100-pcie-80gb"),
        ("H100-SXM5", "h100-80gb"),
        ("a100-80", "a100-80gb"),
        ("a100 80g", "a100-80gb"),
        ("a100-sxm4-40gb", "a100-40gb"),
        ("4090", "rtx-4090-24gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090-24gb"),
        ("a6000", "rtx-a6000-48gb"),
        ("l4", "l4-24gb"),
        ("a10", "a10-24gb"),
        ("h20", "h20-96gb"),
        ("b200", "b200-180gb"),
        ("mi300x", "mi300x-192gb"),
        ("910B", "ascend-910b-64gb"),
        ("gaudi3", "gaudi3-128gb"),
    ],
)
def test_short_forms_that_mean_one_card(text: str, name: str) -> None:
    assert find_gpu(text) == GPUS[name]


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("a100", ["a100-40gb", "a100-80gb"]),
        ("v100", ["v100-16gb", "v100-32gb"]),
        ("gh200", ["gh200-96gb", "gh200-144gb"]),
        ("gaudi", ["gaudi2-96gb", "gaudi3-128gb"]),
        ("6000", ["rtx-pro-6000-96gb", "rtx-6000-ada-48gb"]),
    ],
)
def test_a_short_form_of_several_cards_names_them(text: str, candidates: list[str]) -> None:
    with pytest.raises(InvalidJob, match="several cards") as caught:
        find_gpu(text)
    assert text in caught.value.message
    assert caught.value.hint == "write " + " or ".join(candidates)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("79.1GiB", int(79.1 * GiB)),
        ("24g", 24 * 10**9),
        (" 48 gb ", 48 * 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_a_size_is_a_card_of_that_many_usable_bytes(text: str, size: int) -> None:
    gpu = find_gpu(text)
    assert (gpu.vendor, gpu.usable_bytes, gpu.memory_bytes) == ("custom", size, size)
    assert gpu.name == text.strip()
    assert gpu.usable_is_assumed
    assert str(size) in gpu.source


@pytest.mark.parametrize("text", ["80MB", "1023MiB", "5000TB", "0GB", "9" * 500 + "GB", "1.2.3GB"])
def test_a_size_that_no_card_has_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match="gpu:") as caught:
        find_gpu(text)
    assert "80GB" in caught.value.hint
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 120


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("h1000", "h100-80gb"),
        ("rtx-4909", "rtx-4090-24gb"),
        ("mi300a", "mi300x-192gb"),
        ("ascend-910d", "ascend-910"),
    ],
)
def test_an_unknown_card_brings_a_suggestion(text: str, suggestion: str) -> None:
    with pytest.raises(InvalidJob, match="no such card") as caught:
        find_gpu(text)
    assert "did you mean" in caught.value.hint
    assert suggestion in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "-", "zzz", "x" * 5000, "80", "141", "\n", "gpu\x00"])
def test_nonsense_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        find_gpu(text)
    assert "memplan show gpus" in caught.value.hint
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 120


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Puts a program of that name first on PATH that runs the given Python code, and leaves every card visible."""
    if os.name == "nt":
        pytest.skip("the stand-in is a POSIX script")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(code: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!{sys.executable} -S\nimport sys, time\n{code}\n", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def says(*lines: str) -> str:
    """Code of a driver that answers the one question memplan may ask, and fails on any other."""
    question = ["--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"]
    return f"assert sys.argv[1:] == {question!r}, sys.argv\nprint({chr(10).join(lines)!r})"


def test_local_is_a_known_card_less_what_others_use(nvidia_smi: Driver) -> None:
    nvidia_smi(says("NVIDIA H100 80GB HBM3, 81559, 4"))
    gpu, preset = find_gpu("local"), GPUS["h100-80gb"]
    assert gpu.usable_bytes == preset.usable_bytes - 4 * MiB
    assert gpu.memory_bytes == preset.memory_bytes
    assert (gpu.name, gpu.architecture, gpu.vendor) == ("local", "9.0", "nvidia")
    assert not gpu.usable_is_assumed
    assert "NVIDIA H100 80GB HBM3" in gpu.title
    assert "4 MiB in use" in gpu.source


@pytest.mark.parametrize(
    ("driver_name", "total", "preset"),
    [
        ("NVIDIA H100 PCIe", 81559, "h100-pcie-80gb"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090-24gb"),
        ("Tesla T4", 15360, "t4-16gb"),
        ("NVIDIA GH200 480GB", 97871, "gh200-96gb"),
        ("NVIDIA RTX 6000 Ada Generation", 49140, "rtx-6000-ada-48gb"),
    ],
)
def test_local_knows_drivers_names(nvidia_smi: Driver, driver_name: str, total: int, preset: str) -> None:
    nvidia_smi(says(f"{driver_name}, {total}, 0"))
    gpu = find_gpu("LOCAL")
    known = GPUS[preset]
    assert gpu.architecture == known.architecture
    assert gpu.usable_bytes == total * MiB * known.usable_bytes // known.memory_bytes


def test_an_unknown_local_card_gets_the_lowest_known_share_and_says_so(nvidia_smi: Driver) -> None:
    nvidia_smi(says("NVIDIA GeForce GTX 1080 Ti, 11264, 0"))
    gpu = find_gpu("local")
    share = min(known.usable_bytes / known.memory_bytes for known in GPUS.values() if known.vendor == "nvidia")
    assert gpu.usable_bytes == pytest.approx(11264 * MiB * share, abs=1)
    assert gpu.usable_is_assumed
    assert gpu.architecture == "unknown"
    assert "lowest known" in gpu.source


def test_of_several_local_cards_the_one_with_least_free_memory_decides(nvidia_smi: Driver) -> None:
    nvidia_smi(says("NVIDIA H100 80GB HBM3, 81559, 4", "NVIDIA H100 80GB HBM3, 81559, 30000", "Tesla T4, 15360, 0"))
    assert "Tesla T4" in find_gpu("local").title


@pytest.mark.parametrize(("visible", "used"), [("0", 4), ("1", 30000), ("0,1", 30000), ("GPU-8f6d", 30000), ("0,7", 4)])
def test_only_visible_local_cards_count(
    nvidia_smi: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, used: int
) -> None:
    nvidia_smi(says("NVIDIA H100 80GB HBM3, 81559, 4", "NVIDIA H100 80GB HBM3, 81559, 30000"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert find_gpu("local").usable_bytes == GPUS["h100-80gb"].usable_bytes - used * MiB


def test_a_full_card_has_nothing_usable_rather_than_less(nvidia_smi: Driver) -> None:
    nvidia_smi(says("Tesla T4, 15360, 15300"))
    assert find_gpu("local").usable_bytes == 0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('NVIDIA-SMI has failed: no driver', file=sys.stderr); sys.exit(9)", "NVIDIA-SMI has failed: no driver"),
        ("sys.exit(3)", "failed: 3"),
        ("", "lists no card"),
        ("print('NVIDIA GB10, [N/A], [N/A]')", "does not give the memory of 'NVIDIA GB10"),
        ("print('hello')", "does not give the memory of 'hello'"),
        ("sys.stdout.buffer.write(bytes([255, 254, 10]))", "nvidia-smi"),
    ],
)
def test_a_driver_that_answers_badly_is_an_error_with_a_way_out(nvidia_smi: Driver, code: str, message: str) -> None:
    nvidia_smi(code)
    with pytest.raises(InvalidJob, match="gpu: local") as caught:
        find_gpu("local")
    assert message in caught.value.message
    assert "--gpu 80GB" in caught.value.hint


@pytest.mark.parametrize("visible", ["", "-1", "5"])
def test_no_visible_local_card_is_an_error(nvidia_smi: Driver, monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    nvidia_smi(says("Tesla T4, 15360, 0"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(InvalidJob, match="leaves none of 1 cards"):
        find_gpu("local")


def test_a_driver_that_hangs_is_given_up(nvidia_smi: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi("time.sleep(30)")
    monkeypatch.setattr("memplan.local_gpu.TIMEOUT_SECONDS", 0.3)
    with pytest.raises(InvalidJob, match="gave no answer"):
        find_gpu("local")


def test_no_driver_is_an_error_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidJob, match="nvidia-smi is not on this machine") as caught:
        find_gpu("local")
    assert "--gpu h100-80gb" in caught.value.hint
