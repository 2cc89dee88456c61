"""The card of this machine is read off nvidia-smi as drivers really answer: cards, MIG instances, other processes.

The figures are those of recorded answers: influxdata/telegraf, plugins/inputs/nvidia_smi/testdata (b272631), for the
A10G, the T4, the RTX 3090, the RTX 4000 SFF Ada, the A100 in MIG mode and the driver of before 510.
"""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.api import estimate
from memplan.cli.app import main
from memplan.errors import InvalidJob
from memplan.gpus import find_gpu, load_gpus
from memplan.local_gpu import _asked
from memplan.units import GiB, MiB

Driver = Callable[[str], None]


def memory(total: int, reserved: int | None, used: int) -> str:
    """A card's or an instance's memory, in MiB; drivers before 510 say nothing of what they keep."""
    kept = f"<reserved>{reserved} MiB</reserved>" if reserved is not None else ""
    free = f"<free>{total - (reserved or 0) - used} MiB</free>"
    return f"<fb_memory_usage><total>{total} MiB</total>{kept}<used>{used} MiB</used>{free}</fb_memory_usage>"


def card(name: str, figures: str, mode: str = "N/A", instances: str = "None", processes: str = "", n: int = 0) -> str:
    """One card of ``nvidia-smi -q -x``, with the elements that are read and a few that are not."""
    return (
        f'<gpu id="00000000:{n:02X}:00.0"><product_name>{name}</product_name><mig_mode><current_mig>{mode}'
        f"</current_mig><pending_mig>{mode}</pending_mig></mig_mode><mig_devices>{instances}</mig_devices>"
        f"<uuid>GPU-{n}a6c50</uuid>{figures}<bar1_memory_usage><total>256 MiB</total></bar1_memory_usage>"
        f"<processes>{processes}</processes></gpu>"
    )


def instance(index: int, total: int, used: int) -> str:
    """One MIG instance."""
    return (
        f"<mig_device><index>{index}</index><gpu_instance_id>{index + 3}</gpu_instance_id>"
        f"{memory(total, 0, used)}</mig_device>"
    )


def process(name: str, used: str) -> str:
    """One process."""
    return (
        f"<process_info><pid>725</pid><type>C</type><process_name>{name}</process_name>"
        f"<used_memory>{used}</used_memory></process_info>"
    )


def answer(*cards: str) -> str:
    """The whole answer."""
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    return f"{head}<nvidia_smi_log><driver_version>535.54.03</driver_version>{''.join(cards)}</nvidia_smi_log>\n"


A10G = card("NVIDIA A10G", memory(23028, 435, 22), processes=process("/usr/lib/xorg/Xorg", "22 MiB"))
RTX_3090 = card("NVIDIA GeForce RTX 3090", memory(24576, 316, 1))
BUSY_3090 = card("NVIDIA GeForce RTX 3090", memory(24576, 316, 9000), n=1, processes=process("python a.py", "8990 MiB"))
FOUR_SLICES = "".join(instance(index, 19968, 12) for index in range(4))
A100_SLICED = card("NVIDIA A100-SXM4-80GB", memory(81920, 869, 50), "Enabled", FOUR_SLICES)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Puts a program of that name first on PATH that gives this answer to ``-q -x`` and fails on another question."""
    if os.name == "nt":
        pytest.skip("the stand-in is a POSIX script")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(text: str) -> None:
        _asked.cache_clear()
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        code = f"import sys\nassert sys.argv[1:] == ['-q', '-x'], sys.argv\nsys.stdout.write({text!r})\n"
        program.write_text(f"#!{sys.executable} -S\n{code}", encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(program.parent))

    return install


@pytest.mark.parametrize(
    ("text", "name", "usable"),
    [
        (A10G, "a10g-24gb (local)", int(21.98 * GiB) - 22 * MiB),  # the catalogue's lowest is less than the 22571 free
        (card("Tesla T4", memory(15360, 388, 1032)), "t4-16gb (local)", int(14.56 * GiB) - 1032 * MiB),
        (
            card("NVIDIA RTX 4000 SFF Ada Generation", memory(20475, 460, 3534)),
            "rtx-4000-sff-ada-20gb (local)",
            (20475 - 460 - 3534) * MiB,
        ),
        (card("NVIDIA GeForce GTX 980 Ti", memory(6144, 90, 0)), "geforce-gtx-980-ti (local)", 6054 * MiB),
    ],
    ids=["A10G", "T4", "RTX 4000 SFF Ada", "a card that the catalogue lacks"],
)
def test_usable_is_what_the_driver_leaves_and_others_do_not_hold(
    nvidia_smi: Driver, text: str, name: str, usable: int
) -> None:
    nvidia_smi(answer(text))
    found = find_gpu("local")
    assert (found.name, found.usable_bytes, found.here) == (name, usable, 1)
    assert not found.usable_is_assumed


def test_a_card_that_the_catalogue_lacks_is_of_the_generation_that_the_driver_says(nvidia_smi: Driver) -> None:
    """A new one would have bf16 and flash attention, which this one has not."""
    text = card("NVIDIA GeForce GTX 980 Ti", memory(6144, 90, 0))
    for said, bf16 in (("Maxwell", False), ("Ampere", True), ("of tomorrow", True)):
        brand = f"</product_name><product_architecture>{said}</product_architecture>"
        nvidia_smi(answer(text.replace("</product_name>", brand)))
        assert find_gpu("local").has_bf16 is bf16


def test_an_older_driver_does_not_say_what_it_keeps(nvidia_smi: Driver) -> None:
    nvidia_smi(answer(card("NVIDIA GeForce RTX 3090", memory(24576, None, 100))))
    assert find_gpu("local").usable_bytes == load_gpus()["rtx-3090-24gb"].usable_bytes - 100 * MiB


def test_processes_are_named_the_largest_first(nvidia_smi: Driver) -> None:
    programs = [("cosmic-comp", 410), ("/usr/bin/ollama runner", 2800), ("firefox", 200), ("Xwayland", 50)]
    processes = "".join(process(name, f"{size} MiB") for name, size in programs) + process("a.exe", "N/A")
    nvidia_smi(answer(card("NVIDIA RTX 4000 SFF Ada Generation", memory(20475, 460, 3534), processes=processes)))
    assert "3534 MiB in use (ollama 2800, cosmic-comp 410, firefox 200, 1 more)" in find_gpu("local").source


def test_of_several_cards_the_fullest_decides_and_all_are_counted(nvidia_smi: Driver) -> None:
    nvidia_smi(answer(RTX_3090, BUSY_3090))
    found = find_gpu("local")
    assert found.here == 2
    assert found.source.endswith("9000 MiB in use (python 8990); the fullest of 2 cards here")
    nvidia_smi(answer(RTX_3090, A10G))
    assert find_gpu("local").source.endswith("of 2 cards here (NVIDIA A10G, NVIDIA GeForce RTX 3090)")


def test_a_job_is_of_all_cards_that_are_seen_and_of_one_instance(nvidia_smi: Driver) -> None:
    job = {"model": "smollm2-135m", "method": "sft", "gpu": "local"}
    nvidia_smi(answer(RTX_3090, BUSY_3090))
    found = estimate(job)
    assert (found.job["num_gpus"], found.job["sharding"]) == (2, "ddp")
    assert found.origins["num_gpus"] == "the cards that this machine shows"
    assert estimate({**job, "num_gpus": 1}).job["num_gpus"] == 1
    nvidia_smi(answer(A100_SLICED))
    sliced = estimate(job)
    assert sliced.job["num_gpus"] == 1
    assert any("the fullest of 4 instances here, of which a process sees one" in text for text in sliced.assumptions)


@pytest.mark.parametrize(
    ("visible", "count", "used"), [("0", 1, 1), ("1,0", 2, 9000), ("1", 1, 9000), ("GPU-1a", 1, 9000)]
)
def test_only_visible_cards_count(
    nvidia_smi: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, count: int, used: int
) -> None:
    nvidia_smi(answer(RTX_3090, BUSY_3090))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = find_gpu("local")
    assert found.here == count
    assert f" {used} MiB in use" in found.source


def test_a_card_in_mig_mode_is_its_instances(nvidia_smi: Driver) -> None:
    nvidia_smi(answer(A100_SLICED))
    found = find_gpu("local")
    assert (found.name, found.form, found.here) == ("a100-80gb-mig-19.5gib (local)", "slice", 4)
    assert found.usable_bytes == (19968 - 12) * MiB
    assert found.architecture == "8.0"
    assert "a MIG instance of NVIDIA A100-SXM4-80GB" in found.source


def test_a_card_in_mig_mode_without_instances_runs_nothing(nvidia_smi: Driver) -> None:
    nvidia_smi(answer(card("NVIDIA A100-SXM4-40GB", memory(40960, 455, 0), "Enabled")))
    with pytest.raises(InvalidJob, match="has no instance") as caught:
        find_gpu("local")
    assert "mig -cgi" in caught.value.hint


def test_a_card_that_shares_the_hosts_memory_is_refused(nvidia_smi: Driver) -> None:
    nvidia_smi(answer(card("NVIDIA GB10", "<fb_memory_usage><total>N/A</total><used>N/A</used></fb_memory_usage>")))
    with pytest.raises(InvalidJob, match="does not give the memory of 'NVIDIA GB10'"):
        find_gpu("local")


def test_an_estimate_names_the_card_and_says_what_else_is_on_it(
    nvidia_smi: Driver, capsys: pytest.CaptureFixture[str]
) -> None:
    nvidia_smi(answer(RTX_3090, BUSY_3090))
    assert main(["estimate", "smollm2-135m", "--method", "sft", "--gpu", "local", "--num-gpus", "3"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Fits rtx-3090-24gb (local) with ")
    assert "3 × rtx-3090-24gb (local) on one node" in said.out
    assert "9000 MiB in use (python 8990)" in " ".join(said.out.split())
    assert "this machine shows 2" in said.err


@pytest.mark.slow
def test_check_is_of_the_card_of_this_machine_where_none_is_named(
    nvidia_smi: Driver, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("model: smollm2-135m\nmethod: sft\n", encoding="utf-8")
    nvidia_smi(answer(A10G))
    assert main(["check", str(file)]) == 0
    said = capsys.readouterr().out
    assert "fits a10g-24gb (local)" in said
    assert "gpu local (nvidia-smi: NVIDIA A10G" in said
    nvidia_smi(answer(card("NVIDIA A10G", memory(23028, 435, 22000))))
    assert main(["check", str(file)]) == 1, "others hold the card"
    assert main(["check", str(file), "--gpu", "a10g"]) == 0


def test_check_without_a_card_asks_for_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = tmp_path / "job.yaml"
    file.write_text("model: smollm2-135m\nmethod: sft\n", encoding="utf-8")
    assert main(["check", str(file)]) == 2
    assert "check needs a card to fit" in capsys.readouterr().err


@pytest.mark.slow
def test_the_ways_are_of_the_card_of_this_machine(nvidia_smi: Driver, capsys: pytest.CaptureFixture[str]) -> None:
    nvidia_smi(answer(RTX_3090, BUSY_3090))
    assert main(["estimate", "llama-3.2-1b"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("LoRA and QLoRA fit 2 × rtx-3090-24gb (local); full fine-tuning is tight")
    assert "memplan estimate llama-3.2-1b --gpu local --method sft" in said
    assert "9000 MiB in use (python 8990)" in said
    assert "the fullest of 2 cards here" in said
