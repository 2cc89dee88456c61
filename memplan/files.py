"""Files written whole or not at all, so that a full disk costs nothing; what to type for a missing one."""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

Content: TypeAlias = str | bytes | Iterable[str]
"""A text, or its parts as they come, or bytes."""


def write_whole(path: str, text: Content, force: bool) -> None:
    """Write a file. With ``force`` one that is there is replaced once the new one is complete; else it stays.

    The new file is written beside the old, in UTF-8, with its mode and owner; a link is followed, and a device or a
    pipe is written to. Raises OSError, or ValueError for a path that cannot be."""
    target = os.path.realpath(path)
    there = os.path.exists(target)
    if force and there and not stat.S_ISREG(os.stat(target).st_mode):
        _filled(os.open(target, os.O_WRONLY), text)
    elif force and there:
        _replaced(target, text)
    else:
        descriptor = os.open(target if force else path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _filled_or_gone(descriptor, path, text)


def _replaced(target: str, text: Content) -> None:
    """Put a new file in the place of an old one that may be written."""
    import tempfile

    os.close(os.open(target, os.O_WRONLY))  # a folder that may be written does not make a file that may
    old = os.stat(target)
    descriptor, beside = tempfile.mkstemp(prefix=".memplan-", dir=os.path.dirname(target))
    with suppress(OSError):  # only root may give a file away
        os.chown(beside, old.st_uid, old.st_gid)
    os.chmod(beside, stat.S_IMODE(old.st_mode))
    _filled_or_gone(descriptor, beside, text)
    os.replace(beside, target)


def _filled_or_gone(descriptor: int, path: str, text: Content) -> None:
    """Fill a file that is ours; half of one is taken away, whatever ended it."""
    try:
        _filled(descriptor, text)
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def _filled(descriptor: int, text: Content) -> None:
    parts = [text] if isinstance(text, (str, bytes)) else text
    with open(descriptor, "wb") as file:
        for part in parts:
            file.write(part if isinstance(part, bytes) else part.encode("utf-8", "backslashreplace"))
        file.flush()
        with suppress(OSError):  # what is no file cannot be synchronised
            os.fsync(descriptor)


MOST_LISTED = 2000
"""Entries of a folder that are looked at for a name that is near."""


def instead_of_missing(path: str, otherwise: str = "", endings: Iterable[str] = ()) -> str:
    """What to type instead of a path where nothing is: one beside it whose name is near; the folder that is missing;
    ``otherwise``, or what lies there with such an ending. A person's slip in an ending counts as near."""
    from itertools import islice

    from memplan.errors import nearest

    folder, name = os.path.split(os.path.expanduser(path))
    if folder and not os.path.isdir(folder):
        return f"there is no folder {folder}"
    try:
        with os.scandir(folder or ".") as entries:
            there = sorted(entry.name for entry in islice(entries, MOST_LISTED) if not entry.name.startswith("."))
    except (OSError, ValueError):
        there = []
    stem = os.path.splitext(name)[0]
    alike = [each for each in there if os.path.splitext(each)[0] == stem] or nearest(name, there, a_word_more=False)
    if alike:
        return "did you mean " + " or ".join(os.path.join(os.path.dirname(path), each) for each in alike[:3]) + "?"
    such = [each for each in there if each.lower().endswith(tuple(endings))] if endings else []
    listed = f"here is {', '.join(os.path.join(os.path.dirname(path), each) for each in such[:4])}" if such else ""
    return "; ".join(filter(None, [otherwise, listed]))
