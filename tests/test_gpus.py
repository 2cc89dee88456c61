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
    assert Gpu.model_validate(gpu.model_dump()) == gpu, "it is taken from the file unchecked"
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
    old = {name for name, gpu in GPUS.items() if gpu.vendor == "nvidia" and float(gpu.architecture) < 8}
    assert {"v100-16gb", "t4-16gb", "p100-16gb", "rtx-2080-ti-11gb", "quadro-rtx-8000-48gb"} <= old
    assert not any(GPUS[name].bf16_tflops for name in old)
    assert {name for name, gpu in GPUS.items() if gpu.fp16_tflops} == {n for n in old if GPUS[n].form == "card"}


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
        ("3060", "rtx-3060-12gb"),
        ("3060 8gb", "rtx-3060-8gb"),
        ("3060ti", "rtx-3060-ti-8gb"),
        ("4070 ti", "rtx-4070-ti-12gb"),
        ("RTX 4070 Ti SUPER", "rtx-4070-ti-super-16gb"),
        ("4070tis", "rtx-4070-ti-super-16gb"),
        ("rtx 4090 laptop", "rtx-4090-laptop-16gb"),
        ("4090 mobile", "rtx-4090-laptop-16gb"),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", "rtx-3070-laptop-8gb"),
        ("GeForce RTX 2070 with Max-Q Design", "rtx-2070-laptop-8gb"),
        ("4090d", "rtx-4090-d-24gb"),
        ("1080ti", "gtx-1080-ti-11gb"),
        ("gtx1070", "gtx-1070-8gb"),
        ("NVIDIA GeForce GTX 1660 SUPER", "gtx-1660-super-6gb"),
        ("titanxp", "titan-xp-12gb"),
        ("NVIDIA TITAN X (Pascal)", "titan-x-pascal-12gb"),
        ("Tesla M40", "m40-24gb"),
        ("RTX 5090 D", "rtx-5090-d-32gb"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
        ("H800", "h800-80gb"),
        ("L20", "l20-48gb"),
        ("kaggle p100", "p100-16gb"),
        ("colab t4", "t4-16gb"),
        ("rtx 6000 ada generation", "rtx-6000-ada-48gb"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-96gb"),
    ],
)
def test_short_forms_that_mean_one_card(text: str, name: str) -> None:
    assert find_gpu(text) == GPUS[name]


@pytest.mark.parametrize(
    ("text", "gib", "of"),
    [
        ("a100 3g.20gb", 19.5, "a100-40gb"),
        ("3g.20gb", 19.5, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.20gb", 19.5, "a100-80gb"),
        ("h200-141gb-3g.71gb", 69.5, "h200-141gb"),
    ],
)
def test_a_slice_of_a_card_is_a_card_with_a_share_of_its_speed(text: str, gib: float, of: str) -> None:
    found, whole = find_gpu(text), GPUS[of]
    assert (found.form, found.architecture, found.usable_bytes) == ("slice", whole.architecture, int(gib * GiB))
    assert found.bf16_tflops is not None
    assert whole.bf16_tflops is not None
    assert found.bf16_tflops < whole.bf16_tflops / 2


def test_no_slice_has_more_than_its_part_of_the_card() -> None:
    """Profiles of a card are cut from its memory: as many as there can be fit in it, with what the driver keeps."""
    for of in json.loads((presets_dir() / "gpus.json").read_text(encoding="utf-8"))["slices"]:
        whole = GPUS[of["of"]]
        for profile, gib in of["gib"].items():
            written = int(profile.partition(".")[2].removesuffix("gb"))
            assert gib <= written, "a profile's name is its memory, rounded up"
            assert gib * (whole.memory_bytes // (written * 10**9)) * GiB <= whole.memory_bytes


@pytest.mark.parametrize(
    ("text", "gigabytes", "architecture"),
    [("A40-24Q", 24, "8.6"), ("GRID A100D-20C", 20, "8.0"), ("grid t4-16q", 16, "7.5"), ("v100d-8q", 8, "7.0")],
)
def test_a_virtual_machines_share_is_less_than_its_profile_says(text: str, gigabytes: int, architecture: str) -> None:
    found = find_gpu(text)
    assert (found.form, found.architecture, found.memory_bytes) == ("vgpu", architecture, gigabytes * GiB)
    share = min(gpu.usable_bytes / gpu.memory_bytes for gpu in GPUS.values())
    assert found.usable_bytes < share * found.memory_bytes, "assumed below what any card was seen to give"
    assert found.usable_is_assumed


@pytest.mark.parametrize(
    ("text", "kind"),
    [("m3 max", "Apple"), ("M1", "Apple"), ("mps", "Apple"), ("arc a770", "Intel"), ("b580", "Intel"),
     ("rx 7900 xtx", "Radeon"), ("tpu v4", "TPU")],
)  # fmt: skip
def test_a_kind_of_card_without_a_model_is_refused_with_the_reason(text: str, kind: str) -> None:
    with pytest.raises(InvalidJob, match="no model of") as caught:
        find_gpu(text)
    assert kind in caught.value.message
    assert "--gpu 16GB" in caught.value.hint


@pytest.mark.parametrize("text", ["2xT4", "T4 x2", "2 x t4"])
def test_several_cards_in_one_are_a_card_and_a_number(text: str) -> None:
    with pytest.raises(InvalidJob, match="several cards") as caught:
        find_gpu(text)
    assert caught.value.hint == "write --gpu t4-16gb --num-gpus 2"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("kaggle", "several cards", "--gpu t4-16gb --num-gpus 2 or --gpu p100-16gb"),
        ("Colab", "several cards", "l4-24gb"),
        ("DGX Spark", "no memory of its own", "such as --gpu 64GB"),
        ("strix halo 96gb", "no memory of its own", "such as --gpu 96GB"),
        ("7900xtx", "Radeon", "--attention eager"),
        ("9070 XT", "Radeon", "--attention eager"),
        ("m3 max 64gb", "Apple", "--gpu 64GB"),
        ("cpu", "training on a CPU", "--gpu 16GB"),
    ],
)
def test_what_is_no_one_card_says_what_to_write(text: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidJob, match=message) as caught:
        find_gpu(text)
    assert hint in caught.value.hint


def test_who_lends_a_card_is_no_part_of_its_name() -> None:
    assert [find_gpu(text).name for text in ("runpod 4090", "lambda a10", "colab l4")] == [
        "rtx-4090-24gb", "a10-24gb", "l4-24gb"]  # fmt: skip


def test_a_name_alone_is_the_usual_size_and_the_rare_one_has_to_be_said() -> None:
    rare = [gpu for gpu in GPUS.values() if not gpu.usual]
    assert rare
    for gpu in rare:
        short = gpu.name.rpartition("-")[0]
        assert find_gpu(short).usual
        assert find_gpu(short) != gpu
        assert find_gpu(gpu.name) == gpu


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("a100", ["a100-40gb", "a100-80gb"]),
        ("v100", ["v100-16gb", "v100-32gb"]),
        ("gh200", ["gh200-96gb", "gh200-144gb"]),
        ("gaudi", ["gaudi2-96gb", "gaudi3-128gb"]),
        ("6000", ["rtx-pro-6000-96gb", "rtx-6000-ada-48gb", "quadro-rtx-6000-24gb"]),
        ("4060 ti", ["rtx-4060-ti-8gb", "rtx-4060-ti-16gb"]),
        ("3080 laptop", ["rtx-3080-laptop-8gb", "rtx-3080-laptop-16gb"]),
        ("a800", ["a800-40gb", "a800-80gb"]),
        ("MIG 3g.40gb", ["a100-80gb-3g.40gb", "h100-80gb-3g.40gb"]),
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
        ("rtx-4080-24gb", "rtx-4080-16gb"),
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
    assert (gpu.name, gpu.architecture, gpu.vendor) == ("h100-80gb (local)", "9.0", "nvidia")
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
    nvidia_smi(says("NVIDIA GeForce GTX 980 Ti, 6144, 0"))
    gpu = find_gpu("local")
    share = min(known.usable_bytes / known.memory_bytes for known in GPUS.values() if known.vendor == "nvidia")
    assert gpu.usable_bytes == pytest.approx(6144 * MiB * share, abs=1)
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
