"""The lines of a log that say something of memory, however long the log is: words are looked for in large pieces of the
file, and only the lines around them are read."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from memplan.errors import UsageError, printable

PIECE = 4 << 20
MOST_BYTES = 4 << 30
"""Of a file; what comes behind is not read."""
LONGEST_LINE = 64 << 10
"""Characters of a line that are looked at: a step of verl's is a few thousand."""
MOST_LINES = 200_000
"""Lines with one of the words in them."""
WIDTHS = range(60, 401)
"""Columns of a terminal whose lines were copied as it broke them."""
_RECORD = re.compile(rb"\s*(?:\x1b\[|\(\w+ |\[?\d{4}-\d\d|INFO|WARNING|ERROR|DEBUG|Traceback)")
HINT = "name the text that the engine or the trainer printed"


class Line(NamedTuple):
    """A line with a word that may say something of memory."""

    number: int
    text: str


class Scan:
    """One walk through a log; afterwards it knows whether it saw all."""

    def __init__(self, path: str, words: Iterable[str], whole: Iterable[str] = ()) -> None:
        """``whole``: words of lines that are put together again where a terminal broke them."""
        self.path = printable(path)
        self._path = path
        self._words = [word.encode().lower() for word in words]
        self._whole = [word.encode().lower() for word in whole]
        self.cut = ""
        """Why it ended before the file did; empty where it saw all."""

    def lines(self) -> Iterator[Line]:
        """In their order. Raises UsageError for what is no readable text."""
        try:
            with open(self._path, "rb", opener=_opened) as file:
                yield from self._found(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"{self.path}: cannot be read: {reason}", HINT) from None

    def _found(self, file: BinaryIO) -> Iterator[Line]:
        number, count, seen = 1, 0, 0
        for piece in _pieces(file):
            if not seen and b"\0" in piece:
                raise UsageError(f"{self.path}: a binary file, not text", HINT)
            at, seen = 0, seen + len(piece)
            for start, end in self._spans(piece):
                number += piece.count(b"\n", at, start)
                at = start
                yield Line(number, self._text(piece, start, end)[:LONGEST_LINE].decode("utf-8", "replace"))
                count += 1
                if count >= MOST_LINES:
                    self.cut = f"only the first {MOST_LINES:,} lines that speak of memory were read"
                    return
            number += piece.count(b"\n", at)
            if seen >= MOST_BYTES:
                self.cut = f"only the first {MOST_BYTES >> 30} GiB were read"
                return

    def _text(self, piece: bytes, start: int, end: int) -> bytes:
        """The line; a broken one with what follows, up to the first that is shorter, or begins another record."""
        text, width = piece[start:end], end - start
        if width not in WIDTHS or not any(word in text.lower() for word in self._whole):
            return text
        while end < len(piece) and len(text) < LONGEST_LINE:
            start, end = end + 1, _end(piece, end + 1)
            line = piece[start:end]
            if _RECORD.match(line):
                break
            text += line
            if end - start != width:
                break
        return text

    def _spans(self, piece: bytes) -> list[tuple[int, int]]:
        """Where lines with one of the words begin and end. A word at a time is far faster than all as one pattern."""
        folded, spans = piece.lower(), set[tuple[int, int]]()
        for word in self._words:
            at = folded.find(word)
            while at >= 0:
                start = max(piece.rfind(b"\n", 0, at), piece.rfind(b"\r", 0, at)) + 1
                end = _end(piece, at)
                spans.add((start, end))
                at = folded.find(word, end)
        return sorted(spans)


def _end(piece: bytes, start: int) -> int:
    """Where a line ends: progress bars end theirs with a carriage return."""
    end = piece.find(b"\n", start)
    end = end if end >= 0 else len(piece)
    turn = piece.find(b"\r", start, end)
    return turn if turn >= 0 else end


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """Large pieces that end where lines do; a line longer than a piece is torn."""
    rest = b""
    while data := file.read(PIECE):
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end:
            end = len(data) if len(data) >= 2 * PIECE else 0
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest


def _opened(path: str, flags: int) -> int:
    """Open a plain file. What waits for a writer, never ends, or is no file is refused before it is read."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is no file")
    return descriptor
