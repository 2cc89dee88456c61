"""Trainer and engine over one RL step, as a person reads it: the worst instant, and what each process holds."""

from collections.abc import Iterator

from memplan.generated import Engine, Together
from memplan.render import words
from memplan.render.blocks import Block, Column, Heading, Prose, Table, definitions
from memplan.report import Report, Verdict
from memplan.tables.choices import options_of_hint
from memplan.units import format_bytes


def fullest(report: Report) -> Together | None:
    """The instant at which the card holds the most; of equal ones that at which the trainer has the most in use."""
    return max(report.rollout, key=lambda at: (at.device_bytes, at.processes[0].allocated_bytes), default=None)


def verdict_words(report: Report, verdict: Verdict) -> str:
    """The verdict's first line where an engine stands beside the trainer, or on a card of its own."""
    engine, usable = report.engine, format_bytes(verdict.usable_bytes)
    if engine is not None and not engine.starts:
        what = "Does not start" if verdict.fits == "no" else "May not start"
        return f"{what} on {verdict.gpu}: {engine.name} {engine.version}: {engine.why}"
    if engine is not None and report.engine_doubt:
        return f"May not start on {verdict.gpu}: {engine.name} {engine.version}: {report.engine_doubt}"
    at = _crossing(report, verdict) if verdict.fits in ("no", "tight") else fullest(report)
    if at is None or len(at.processes) == 1:
        return ""
    later = {each.name: each for each in report.rollout if not each.first}.get(at.name, at)
    step = " of the first step" if at.first and later.device_bytes > at.device_bytes else ""
    parts = " + ".join(f"{each.name} {format_bytes(each.device_bytes)}" for each in at.processes)
    where = f"{at.name}{step}: {parts} of {usable}"
    if verdict.fits == "no":
        return f"Does not fit {verdict.gpu} at {where}"
    if verdict.fits == "tight":
        return f"Tight on {verdict.gpu} at {where}, up to {format_bytes(verdict.high_bytes or at.high_bytes)}"
    return f"Fits {verdict.gpu} with {format_bytes(verdict.headroom_bytes)} to spare, fullest at {where}"


def stands_apart(report: Report) -> bool:
    """Whether the engine beside a training has cards of its own."""
    return bool(report.rollout) and all(len(at.processes) == 1 for at in report.rollout)


def apart_words(engine: Engine, gpus: int | None) -> str:
    """What it holds of them."""
    held = f"{format_bytes(engine.awake_bytes)} of each, {engine.kv_tokens:,} tokens of KV cache"
    if gpus == 1:
        return f"{engine.name} {engine.version} starts on a GPU of its own: {held}"
    cards = f"{gpus} GPUs" if gpus else "GPUs"
    return f"{engine.name} {engine.version} starts on {cards} of its own: {held}"


def _crossing(report: Report, verdict: Verdict) -> Together | None:
    """Where the card is full first, or else fullest."""
    crossing = report.per_gpu.first_crossing
    for at in report.rollout:
        if crossing is not None and at.name == crossing.instant and at.device_bytes > verdict.usable_bytes:
            return at
    return fullest(report) if crossing is None or crossing.phase != "load" else None


def rollout_blocks(report: Report) -> Iterator[Block]:
    """Every instant of a later step by process, and what the first one holds."""
    if report.engine is not None:
        yield from _engine(report.engine)
    if not report.rollout:
        return
    yield Heading("One RL step, process by process")
    both = any(len(at.processes) > 1 for at in report.rollout)
    first = {at.name: at for at in report.rollout if at.first}
    later = [at for at in report.rollout if not at.first]
    titles = ("trainer's torch", "trainer", *(("engine",) if both else ()), "together", "high", "first step")
    rows = [_row(at, first.get(at.name), both) for at in [*_starts(report), *later]]
    yield Table((Column("instant", wrap=True), *(Column(title, right=True) for title in titles)), tuple(rows))
    yield Prose(_meters(report, both), "dim")


def _starts(report: Report) -> list[Together]:
    return [at for at in report.rollout if at.name.startswith("start.")]


def _row(at: Together, first: Together | None, both: bool) -> tuple[str, ...]:
    trainer, engine = at.processes[0], at.processes[1].device_bytes if len(at.processes) > 1 else 0
    figures = (trainer.allocated_bytes, trainer.device_bytes, *((engine,) if both else ()))
    once = format_bytes(first.device_bytes) if first is not None and not at.first else ""
    return (at.name, *map(format_bytes, (*figures, at.device_bytes, at.high_bytes)), once)


def _meters(report: Report, both: bool) -> str:
    """Which meter shows what."""
    generator = report.recipe.generator if report.recipe is not None else None
    if generator is None or generator.engine == "hf":
        return "The cache of transformers' generate is the trainer's own: torch's meters show it."
    if not both:
        return "The engine is on cards of its own; trainer's torch is torch.cuda.memory_allocated of its process."
    if generator.own_process:
        return (
            "nvidia-smi shows the sum; torch's meters show each process its own, which a sleeping engine's do not fall."
        )
    return (
        "nvidia-smi shows the sum. torch's meters of this process count the engine too, and do not fall when it "
        "sleeps: trainer's torch is what is left of them without it."
    )


def _engine(engine: Engine) -> Iterator[Block]:
    yield Heading(f"The engine on each of its cards: {engine.name} {engine.version}")
    yield engine_table(engine)
    held = f"awake {format_bytes(engine.awake_bytes)}, asleep {format_bytes(engine.asleep_bytes)} on the device"
    yield Prose(f"{held}; {engine.max_concurrency:,.1f} sequences of the longest length at once.")


def engine_blocks(report: Report, width: int) -> Iterator[Block]:
    """A report of an engine alone, the verdict first."""
    engine, job = report.engine, report.job
    assert engine is not None
    yield from engine_verdict(report)
    rollout = job["rollout"]
    degrees = (f"{rollout[key]} {title}" for key, title in DEGREES.items() if rollout.get(key, 1) > 1)
    shape = f"up to {rollout['max_model_len']:,} tokens, {rollout['max_num_seqs']:,} sequences at once"
    batch = f"{rollout['max_num_batched_tokens']:,} tokens of a forward"
    yield definitions(
        [
            ("model", words.model_words(report).removesuffix(", all trained")),
            ("engine", f"{engine.name} {engine.version}; {shape}, {batch}"),
            ("GPUs", ", ".join([f"{job['num_gpus']} × {job.get('gpu')}", *degrees])),
        ]
    )
    yield Heading(f"What each GPU holds while it generates: {format_bytes(report.per_gpu.device_bytes.expected)}")
    yield engine_table(engine)
    device = report.per_gpu.device_bytes
    asleep = f"; {format_bytes(engine.asleep_bytes)} asleep" if rollout.get("sleep", "none") != "none" else ""
    yield Prose(f"On the device {format_bytes(device.low)} to {format_bytes(device.high)}{asleep}.", "dim")
    yield Heading("Assumed")
    for text in report.assumptions:
        yield Prose(text, "dim")


DEGREES = {
    "tensor_parallel": "share each matmul",
    "pipeline_parallel": "stages",
    "data_parallel": "copies",
    "expert_parallel": "share the experts",
}


def engine_verdict(report: Report) -> Iterator[Block]:
    """Starts or not, with the cache in tokens and requests, or with what to change."""
    engine, verdict, length = report.engine, report.verdict, report.job["rollout"]["max_model_len"]
    assert engine is not None
    card = verdict.gpu if verdict else report.job.get("gpu")
    if not engine.starts:
        starts = "does not start" if verdict is None or verdict.fits != "tight" else "may not start"
        yield Heading(f"{engine.name} {engine.version} {starts} on {card}: {engine.why}", "bad")
        yield Prose(f"Change: {options_of_hint(engine.hint)}")
        return
    if engine.doubt:
        yield Heading(f"{engine.name} {engine.version} may not start on {card}: {engine.doubt}", "warn")
        yield Prose(f"Change: {options_of_hint(engine.hint)}")
        return
    style = "good" if verdict is None or verdict.fits == "yes" else "warn"
    yield Heading(f"{engine.name} {engine.version} starts on {card}: {engine.kv_tokens:,} tokens of KV cache", style)
    yield Prose(f"{engine.max_concurrency:,.2f} requests of {length:,} tokens at once.")
    if verdict is not None and verdict.fits != "yes":
        left = format_bytes(verdict.headroom_bytes)
        yield Prose(f"{left} of the card are left beside it; at worst less than the margin.", "dim")


def engine_table(engine: Engine) -> Table:
    """What its budget is made of, and what lies beside it."""
    rows = [
        ("weights", engine.weights_bytes, ""),
        ("KV cache", engine.kv_bytes, f"{engine.kv_tokens:,} tokens of {engine.kv_bytes_per_token:,} bytes"),
        *[("states of requests", engine.states_bytes, "a pool of their own")] * bool(engine.states_bytes),
        ("profile run", engine.activation_bytes, "kept free for a full batch"),
        ("outside PyTorch", engine.non_torch_bytes, ""),
        ("CUDA graphs", engine.graph_bytes, ""),
    ]
    columns = (Column("of one GPU"), Column("bytes", right=True), Column("which is", style="dim"))
    shown = [(name, format_bytes(size), what) for name, size, what in rows]
    return Table(columns, (*shown, ("its share of the card", format_bytes(engine.budget_bytes), "")))
