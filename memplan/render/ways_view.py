"""The ways to train a model as a person reads them: which fit, how long a sequence each holds, what to type next."""

import shlex
from collections.abc import Iterator

from memplan.render.blocks import Block, Cell, Column, Heading, Prose, Span, Table, definitions
from memplan.render.verdict_view import STYLES
from memplan.spec.option_words import option_words
from memplan.units import format_bytes, format_count
from memplan.ways import Way, Ways

NAMES = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}
WORDS = {"unknown": "–", "refused": "cannot"}
ROOMY = 60
"""From this width on there is a column for the bytes."""


def ways_blocks(found: Ways, command: str, width: int) -> Iterator[Block]:
    """The answer in one line, a line a way, what to type, how to say another training. ``command``: as typed."""
    yield Heading(_answer(found), "good" if any(way.fits == "yes" for way in found.rows) else "bad")
    yield Prose(f"{found.spec.name}, {format_count(found.spec.params.total)} parameters; {_card(found)}", "dim")
    yield _table(found, width)
    yield Prose("What to type next, for all of one and what to change:")
    yield definitions([(NAMES[way.name], f"{command} {_options(way)}") for way in found.rows if way.fits != "refused"])
    yield Prose(
        "For preference training put --method dpo (or simpo, orpo, kto, grpo, …: memplan show methods) in place of "
        "sft: it reads pairs, so it needs more. A training config that you have: memplan check FILE."
    )
    yield Heading("Assumed")
    for text in _assumed(found):
        yield Prose(text, "dim")


def _answer(found: Ways) -> str:
    """'LoRA and QLoRA fit rtx-4090-24gb; full fine-tuning does not'."""
    if found.gpu is None:
        cards = [f"{NAMES[way.name]} {way.smallest_card or 'none'}" for way in found.rows]
        return f"Smallest cards: {', '.join(cards)}"
    fit = [NAMES[way.name] for way in found.rows if way.fits == "yes"]
    tight = [NAMES[way.name] for way in found.rows if way.fits == "tight"]
    rest = [NAMES[way.name] for way in found.rows if way.fits not in ("yes", "tight")]
    card = f"{found.num_gpus} × {found.gpu.name}" if found.num_gpus > 1 else found.gpu.name
    if not fit and not tight:
        return f"Nothing fits {card} at {found.sequence_length:,} tokens: neither {' nor '.join(rest)}"
    parts = [f"{_and(fit)} fit{'s' if len(fit) == 1 else ''} {card}"] if fit else []
    if tight:
        parts.append(f"{_and(tight)} {'is' if len(tight) == 1 else 'are'} tight{'' if fit else f' on {card}'}")
    if rest:
        parts.append(f"{_and(rest)} {'does' if len(rest) == 1 else 'do'} not")
    return "; ".join(parts)


def _and(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


def _card(found: Ways) -> str:
    if found.gpu is None:
        return "no card is named: --gpu 4090, --gpu 24GB, or memplan show gpus"
    margin = found.given.job.margin
    usable = format_bytes(found.gpu.usable_bytes)
    less = format_bytes(found.gpu.usable_bytes * (1 - margin))
    return f"{found.gpu.title}: {usable} usable, {less} after the {100 * margin:g} % margin"


def _table(found: Ways, width: int) -> Table:
    named = found.gpu is not None
    columns = [Column("training"), *([Column("fits"), Column("sequences up to", right=True)] if named else [])]
    columns += [Column("smallest card")] * (not named)
    columns += [Column(f"needs at {found.sequence_length:,} tokens", right=True)] * (width >= ROOMY)
    return Table(tuple(columns), tuple(_row(way, named)[: len(columns)] for way in found.rows))


def _row(way: Way, named: bool) -> tuple[Cell, ...]:
    needs = format_bytes(way.device.expected) if way.device else "–"
    if not named:
        return way.title, way.smallest_card or "none", needs
    longest = f"{way.longest_sequence:,} tokens" if way.longest_sequence else "–"
    return way.title, Span(WORDS.get(way.fits, way.fits), STYLES.get(way.fits, "")), longest, needs


def _options(way: Way) -> str:
    return option_words(way.changes)


def typed(model: str | None, given: Ways) -> str:
    """The command as it was typed, with a card that was found by itself."""
    job, said = given.given.job, given.given.sources
    keys = {key: value for key, value in job.model_dump(exclude_unset=True).items() if key in said and key != "model"}
    name = shlex.quote(model) if model else ""
    if isinstance(keys.get("gpu"), str):
        keys["gpu"] = shlex.quote(keys["gpu"])
    return " ".join(filter(None, ("memplan estimate", name, option_words(keys))))


def _assumed(found: Ways) -> Iterator[str]:
    """What was taken where nothing was said."""
    job, said = found.given.job, found.given.sources
    size = f"{job.batch_size} sequence{'s' if job.batch_size > 1 else ''} a micro-step"
    yield f"supervised fine-tuning by TRL's trainer, {size}, activation checkpointing as is its default"
    if any(way.name != "full" for way in found.rows):
        half = next(way.changes["precision"] for way in found.rows if way.name != "full")
        rank = "" if "lora" in said else " r 8 on all linear layers,"
        yield f"LoRA:{rank} its base loaded in {half} (dtype={half} for the model: TRL loads fp32 by default)"
    yield "needs: what nvidia-smi is expected to show; fits: even at worst the margin stays free"
    yield from found.notes
    yield from (f"{NAMES[way.name]} cannot be: {way.why}" for way in found.rows if way.why)
    if found.gpu is not None and found.gpu.usable_is_assumed and not found.gpu.here:
        yield f"usable memory of {found.gpu.name} is derived, not published: {found.gpu.source}"
