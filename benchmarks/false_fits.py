"""The hunt for false fits: every run that memplan says fits, and that died or held more than the high figure.

    python benchmarks/false_fits.py [FILE…] [--ran]

Two kinds of truth: measured runs (``presets/measurements``, or truth files that are named), whose reserved or device
figure is held against memplan's high one; and runs that ended out of memory (``benchmarks/data/died.json``, with the
same reports' runs that did not), whose end is held against the verdict. With ``--ran`` the other error too: published
speeds (``throughput.json``) of runs that memplan says do not fit. Rows that memplan gets wrong are looked at one
by one: ``read`` says what was found. Then the run is no evidence, or its cause is known and not modelled, or it stays
open, in as many words. Exits with 1 where a row is wrong that nobody has read.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from memplan.errors import MemplanError
from memplan.report import Report
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.truth import read_sets
from memplan.units import GiB

sys.path.insert(0, str(Path(__file__).resolve().parent))
from throughput import rows

HERE = Path(__file__).resolve().parent / "data"
METERS = ("reserved", "device")
READ = {
    "fms-a100_80gb-060": "Mixtral's router fills some experts more than others: its allocated is 1.6 % higher too",
    "fms-a100_80gb-062": "the same with twice the batch: allocated 1.9 % more than even experts take; not modelled",
    "titan-pr355-a100": "its fp32 logits live through backward, and no segments expand; 6 of 8 GiB are open",
    "titan-pr812-float8-eager": "this version saved abs of whole weights, mended a week later",
    "torchtune-llama2-7b-lora-4090": "torchtune 0.1 holds shifted logits, 1.0 GiB in fp32, in backward: not modelled",
    "trace-tinyllama-fp4-lora-1x1000": "bitsandbytes before 0.43.1 kept each 4-bit product's input; 0.5 GiB are open",
}
"""Of measured rows above the high figure."""
MEGATRON = "described as Megatron's: fp32 gradients, and weights copied into buffers while they are loaded"
RAN = {
    "llm-foundry": "flash-attn's loss works in the logits; PyTorch's is estimated",
    "aleph-13b": MEGATRON,
    "aleph": MEGATRON,
    "bloom": MEGATRON,
    "automodel": "FSDP2 beside a pipeline is described as Megatron's distributed optimizer",
    "prime-rl": "its loss is compiled; the logits' copies of PyTorch's are estimated",
    "nemo-24.07": "gradients in bf16 (optim.grad_sync_dtype) are not described",
    "nemo-fp8": "gradients in bf16 (optim.grad_sync_dtype) are not described; SFT of 70B is 4 GiB over then",
    "dgxc": "1.3 and 3.9 GiB over in BF16: open",
    "megatron-bridge": "the table has micro-batches of 4 on H100, its recipe of 1",
    "qwen1": "its code has one adapter for queries, keys and values, and three are described: 76.4 of 75.6 GiB by one",
    "tii": "ZeroRedundancyOptimizer shares the states, which DDP is described with whole: 5 to 8 GiB; the rest is open",
    "lightning-gpt2": "its transformers left GPT-2's logits in half precision; today's copy in fp32 is estimated",
    "fla": "its own loss works in the logits; PyTorch's is estimated",
    "halo": "Liger's loss works in the logits; PyTorch's is estimated, 0.2 GiB over",
    "fsdp-qlora": "1 to 3.5 GiB more allocated than the card has, or segments beside what fits: open",
    "ljm565": "5 GiB and more of segments beside what is allocated, which has room: open",
    "trl-1m": "what checkpoints keep goes to the host, which no key says of several GPUs",
    "gpt2-cards": "the whole is compiled, its loss too: logits are counted as eager torch holds them",
    "oellm-30b": "torchtitan's mixtures without checkpoints are as eager torch's, 15 GiB and more over: open",
    "vectorlm": "8B on one card: 60 GiB of weights, gradients and states, 28 of logits and checkpoints: open",
}
"""Of published speeds whose runs do not fit, by set."""


class Case(NamedTuple):
    """A run and what memplan says of it."""

    id: str
    said: str
    """The verdict, or the high figure."""
    truth: str
    wrong: bool
    read: str


def estimated(job: dict[str, Any]) -> Report | None:
    """None for what is refused."""
    try:
        return build_report(resolve(read_job(job)), None)
    except MemplanError:
        return None


def above(paths: list[str]) -> Iterator[Case]:
    """Every measured figure, against the high one of its meter."""
    for row in (row for group in read_sets(paths) if group.kind != "traced" for row in group.rows):
        meters = [meter for meter in METERS if meter in row.meters]
        if row.unusable or not meters or row.job.get("method") == "generate":
            continue
        report = estimated(row.job)
        for meter in meters if report else ():
            assert report is not None
            high = getattr(report.per_gpu, f"{meter}_bytes").high
            truth = f"{meter} {row.meters[meter] / GiB:.2f} GiB"
            yield Case(row.id, f"at most {high / GiB:.2f}", truth, row.meters[meter] > high, READ.get(row.id, ""))


def ended(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of a file of ``data``, with their whole jobs."""
    data = json.loads((HERE / name).read_text(encoding="utf-8"))
    for row in data["rows"]:
        of = data["sets"][row["set"]]
        model = data["models"].get(row["model"], row["model"]) if "model" in row else row["job"]["model"]
        yield row, {**of["job"], **row["job"], "model": model}


def died() -> Iterator[tuple[str, Case]]:
    """Runs of either end, each with its set."""
    for row, job in ended("died.json"):
        ran, report = row.get("ran", False), estimated(job)
        if report is None:
            yield row["set"], Case(row["id"], "refused", "died", False, "")
            continue
        fits = report.verdict.fits if report.verdict else "unknown"
        wrong = fits == ("no" if ran else "yes")
        yield row["set"], Case(row["id"], fits, "ran" if ran else "died", wrong, row.get("read", ""))


def ran() -> Iterator[tuple[str, Case]]:
    """Runs with a published speed, each with its set."""
    for row, job, _ in rows():
        report = estimated(job)
        fits = report.verdict.fits if report and report.verdict else "refused"
        yield row["set"], Case(row["id"], fits, "ran", fits == "no", RAN.get(row["set"], ""))


def show(cases: list[Case]) -> int:
    """Those that are wrong, by what was read of them; how many nobody has read."""
    wrong = [case for case in cases if case.wrong]
    for read in dict.fromkeys(case.read for case in wrong):
        print(f"  {read or 'NOT READ'}")
        for case in wrong:
            if case.read == read:
                print(f"    {case.id}: memplan {case.said}, the run {case.truth}")
    return sum(not case.read for case in wrong)


def main() -> int:
    """Both hunts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="FILE", help="truth files of measured runs; memplan's own else")
    parser.add_argument("--ran", action="store_true", help="published speeds of runs that do not fit too")
    asked = parser.parse_args()
    measured = list(above(asked.paths))
    over = sum(case.wrong for case in measured)
    print(f"{len(measured)} measured figures of reserved and device memory, {over} above the high one")
    unread = show(measured)
    found: dict[str, list[Case]] = {}
    for name, case in chain(died(), ran() if asked.ran else ()):
        found.setdefault(name, []).append(case)
    for name, cases in found.items():
        said = Counter((case.truth, case.said) for case in cases)
        parts = ", ".join(f"{count} {truth}: {fits}" for (truth, fits), count in sorted(said.items()))
        print(f"{name}: {len(cases)} runs ({parts})")
        unread += show(cases)
    print(f"{unread} wrong and not read")
    return int(unread > 0)


if __name__ == "__main__":
    sys.exit(main())
