"""The GPU of this machine, as nvidia-smi describes it.

Asked only for ``--gpu local``, and where nothing else says which card is meant: memplan never needs a GPU, and nothing
here imports torch. ``nvidia-smi -q -x`` says in one answer, for a card and for each MIG instance of it, what there is,
what the driver keeps for itself and what processes hold; the first less the second is what torch calls total capacity
(a 23028 MiB A10G less 435 is the 22.06 GiB of its out-of-memory messages)."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from memplan.errors import InvalidJob
from memplan.spec.gpu import Gpu

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

QUERY = ["nvidia-smi", "-q", "-x"]
SHORT = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits"]
TIMEOUT_SECONDS = 15
"""A driver that nothing keeps loaded starts anew for each question, about a second a card."""
HOLDS_SECONDS = 5
GENERATIONS = {
    "Maxwell": "5.2", "Pascal": "6.1", "Volta": "7.0", "Turing": "7.5", "Ampere": "8.6", "Ada Lovelace": "8.9",
    "Hopper": "9.0", "Blackwell": "12.0",
}  # fmt: skip
"""What the driver calls an architecture, and the compute capability of its consumer cards, where it has any."""
_MiB = 1 << 20
_HINT = "name a card (--gpu h100-80gb) or a size (--gpu 80GB)"
_MOST_NAMED = 3


class Card(NamedTuple):
    """A card, or a MIG instance of one: sizes in bytes."""

    name: str
    total: int
    used: int
    reserved: int | None
    """What the driver keeps for itself; None where it does not say (before 510)."""
    others: tuple[tuple[int, str], ...] = ()
    """(bytes, program) of processes on it, the largest first."""
    uuid: str = ""
    whole: int = 0
    """Of a MIG instance: the number of its card, from 1."""
    architecture: str = ""
    """As the driver calls it: Pascal; nothing where it does not say."""

    @property
    def free(self) -> int:
        """What a new process can take."""
        return max(0, self.total - self.used - (self.reserved or 0))


def has_local() -> bool:
    """Whether this machine has a driver to ask, without asking it."""
    return shutil.which(QUERY[0]) is not None


def local_gpu(catalogue: list[Gpu], words_of: Callable[[str], tuple[str, ...]]) -> Gpu:
    """The visible card with the least free memory, since the tightest card decides whether a job fits. ``words_of``:
    the words of a card's name that tell it from others.

    What other processes hold is not usable. Of a card that the catalogue knows no more is usable than there, less what
    they hold: on Windows the driver's figure leaves out what the desktop takes."""
    cards = _visible(_cards())
    card = min(cards, key=lambda card: card.free)
    known = _known(card, catalogue, words_of)
    usable = card.free
    if not card.whole and (known or card.reserved is None):
        nvidia = (gpu for gpu in catalogue if gpu.vendor == "nvidia")
        model = known or min(nvidia, key=lambda gpu: gpu.usable_bytes / gpu.memory_bytes)
        usable = min(usable, card.total * model.usable_bytes // model.memory_bytes - card.used)
    figures = {
        "name": f"{_short_name(card, known)} (local)",
        "title": f"{card.name} (this machine)",
        "memory_bytes": card.total,
        "usable_bytes": max(0, usable),
        "usable_is_assumed": card.reserved is None and (known is None or known.memory_bytes != card.total),
        "form": "slice" if card.whole else known.form if known else "card",
        "here": len(cards),
        "source": _words(card, cards, known),
    }
    if known:
        return known.model_copy(update=figures)
    architecture = GENERATIONS.get(card.architecture, "unknown")
    return Gpu.model_validate({**figures, "vendor": "nvidia", "architecture": architecture})


def _short_name(card: Card, known: Gpu | None) -> str:
    name = known.name if known else "-".join(card.name.removeprefix("NVIDIA ").lower().split())
    return f"{name}-mig-{card.total / 1024 / _MiB:.1f}gib" if card.whole else name


def _words(card: Card, cards: list[Card], known: Gpu | None) -> str:
    """'nvidia-smi: NVIDIA A10G, 23028 MiB, less 435 MiB that the driver keeps, 22 MiB in use (Xorg 22): …'."""
    what = f"a MIG instance of {card.name}" if card.whole else card.name
    kept = f" {card.reserved // _MiB} MiB that the driver keeps," if card.reserved else ""
    names = [f"{name} {size // _MiB}" for size, name in card.others]
    names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    text = f"nvidia-smi: {what}, {card.total // _MiB} MiB, less{kept} {card.used // _MiB} MiB in use"
    text += f" ({', '.join(names)})" if names else ""
    if card.reserved is None and not card.whole:
        share = f"as on {known.name}" if known else "the lowest known of any card, assumed"
        text += f"; torch's share of it is {share}"
    if len(cards) > 1 and card.whole:
        text += f"; the fullest of {len(cards)} instances here, of which a process sees one"
    elif len(cards) > 1:
        names = sorted({each.name for each in cards})
        text += f"; the fullest of {len(cards)} cards here" + (f" ({', '.join(names)})" if len(names) > 1 else "")
    return text


def _ask(question: list[str]) -> str:
    """nvidia-smi's answer, which holds for some seconds: one command asks several times."""
    return _asked(tuple(question), os.environ.get("PATH", ""), int(time.monotonic() // HOLDS_SECONDS))


@lru_cache(maxsize=4)
def _asked(question: tuple[str, ...], path: str, when: int) -> str:
    """InvalidJob when there is no driver, no card or no answer in time."""
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except FileNotFoundError:
        raise InvalidJob("gpu: local, but nvidia-smi is not on this machine", _HINT) from None
    except subprocess.TimeoutExpired:
        raise InvalidJob(f"gpu: local, but nvidia-smi gave no answer in {TIMEOUT_SECONDS} s", _HINT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"gpu: local, but nvidia-smi cannot be run: {error}", _HINT) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InvalidJob(f"gpu: local, but nvidia-smi failed: {said[0] if said else done.returncode}", _HINT)
    return done.stdout


def _cards() -> list[Card]:
    """Every card, each in MIG mode as its instances; by the short answer where the long one fails or is no XML."""
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(_ask(QUERY))
        cards = [card for number, gpu in enumerate(root.findall("gpu"), 1) for card in _of_gpu(gpu, number)]
    except (InvalidJob, ElementTree.ParseError) as error:
        if isinstance(error, InvalidJob) and "nvidia-smi failed" not in error.message:
            raise
        cards = [_of_line(line) for line in _ask(SHORT).splitlines() if line.strip()]
    if not cards:
        raise InvalidJob("gpu: local, but nvidia-smi lists no card", _HINT)
    return cards


def _of_line(line: str) -> Card:
    """'name, total, used', sizes in MiB; '[N/A]' is what cards with shared memory say."""
    name, *sizes = (part.strip() for part in line.rsplit(",", 2))
    if len(sizes) != 2 or not all(size.isascii() and size.isdecimal() for size in sizes) or not int(sizes[0]):
        raise InvalidJob(f"gpu: local, but nvidia-smi does not give the memory of {line.strip()!r}", _HINT)
    return Card(name, int(sizes[0]) * _MiB, int(sizes[1]) * _MiB, None)


def _of_gpu(gpu: "Element", number: int) -> Iterator[Card]:
    """The card; in MIG mode its instances, which is all that a job sees of it."""
    name, uuid = gpu.findtext("product_name") or "a card", gpu.findtext("uuid") or ""
    architecture = (gpu.findtext("product_architecture") or "").strip()
    instances = gpu.findall("mig_devices/mig_device")
    if not instances and (gpu.findtext("mig_mode/current_mig") or "").strip() == "Enabled":
        raise InvalidJob(f"gpu: local, but {name} is in MIG mode and has no instance", "make one: nvidia-smi mig -cgi")
    for device in instances or [gpu]:
        total, used = _size(device, "total"), _size(device, "used")
        if not total or used is None:
            raise InvalidJob(f"gpu: local, but nvidia-smi does not give the memory of {name!r}", _HINT)
        if device is gpu:
            yield Card(name, total, used, _size(gpu, "reserved"), _processes(gpu), uuid, 0, architecture)
        else:
            yield Card(
                name, total, used, _size(device, "reserved"), (), device.findtext("uuid") or uuid, number, architecture
            )


def _size(device: "Element", what: str) -> int | None:
    """'23028 MiB' in bytes; None for '[N/A]', which cards that share the host's memory say, or nothing."""
    number, _, unit = (device.findtext(f"fb_memory_usage/{what}") or "").partition(" ")
    return int(number) * _MiB if number.isascii() and number.isdecimal() and unit == "MiB" else None


def _processes(gpu: "Element") -> tuple[tuple[int, str], ...]:
    """Programs on a card whose memory the driver tells, which it does not on Windows."""
    found = []
    for process in gpu.findall("processes/process_info"):
        number = (process.findtext("used_memory") or "").partition(" ")[0]
        if number.isascii() and number.isdecimal():
            words = (process.findtext("process_name") or "").split() or ["a process"]
            found.append((int(number) * _MiB, words[0].rpartition("/")[2][:40]))
    return tuple(sorted(found, reverse=True))


def _visible(cards: list[Card]) -> list[Card]:
    """The cards that CUDA_VISIBLE_DEVICES leaves; as in CUDA, none after the first number that is no card's.

    Identifiers are the cards whose own begin so; all cards count where none does."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return cards
    parts = [part.strip() for part in wanted.split(",")]
    if any(part.startswith(("GPU-", "MIG-")) for part in parts):
        return [card for card in cards if card.uuid.startswith(tuple(filter(None, parts)))] or cards
    numbers = list(dict.fromkeys(card.whole or -n for n, card in enumerate(cards, 1)))
    chosen = takewhile(lambda part: part.isdecimal() and int(part) < len(numbers), parts)
    kept = {numbers[int(part)] for part in chosen}
    visible = [card for n, card in enumerate(cards, 1) if (card.whole or -n) in kept]
    if not visible:
        raise InvalidJob(f"gpu: local, but CUDA_VISIBLE_DEVICES={wanted!r} leaves none of {len(numbers)} cards", _HINT)
    return visible


def _known(card: Card, catalogue: list[Gpu], words_of: Callable[[str], tuple[str, ...]]) -> Gpu | None:
    """The catalogue's card whose words are all in the driver's name: the most words first, then the nearest memory.

    More than a tenth apart in memory is another card; less is ECC or the driver. A MIG has less than its card."""
    words, found = set(words_of(card.name)), []
    for gpu in catalogue:
        named = set(words_of(gpu.name))
        model = {word for word in named if not word.endswith("gb")}
        difference = abs(gpu.memory_bytes - card.total)
        if model and model <= words and (card.whole or 10 * difference <= card.total):
            found.append((-len(named & words), difference, gpu))
    return min(found, key=lambda candidate: candidate[:2])[2] if found else None
