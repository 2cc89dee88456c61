"""Catalogues: English templates with what they are in another language, and how a finished text finds its own.

A file of a catalogue holds pairs of lines, English first, the other language indented below it::

    # comment
    Fits {gpu} with {size} to spare
        {gpu} 放得下，还剩 {size}

A text is looked up whole, then without its final stop, and then in parts, from the strongest joint to the weakest:
sentences, clauses after a colon or a semicolon, what stands in brackets, items of a list. Where no part of it is
known it stays as it is; a list is another language's as a whole or not at all, since half of one is worse than English.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import NamedTuple

KINDS = {
    "n": r"[-−+]?[\d.,]*\d(?: ?[KMBT](?!\w))?",
    "size": r"[\d.,]+ (?:[KMGT]i?)?B",
    "s": r"(?:s|es)?",
    "word": r"\S+",
    "text": r"(?:(?!; |\. ).)+?",
    "part": r"[^();:,]+?",
    "item": r"(?:(?!; |\. ).)+?",
    "outside": r"(?:(?!; |\. ).)+?",
}
"""What a field may hold, by its name without digits: a number or a count, a size in bytes, the s of a plural, a word
without spaces, a text that is translated itself (behind a colon it may be unknown), a part or an item, which must be
known or have no words to translate, and what another program says. Any other name holds names, as they are, with "or"
and "and" between them: words of a sentence stand there in quotes or are known, so that no entry swallows a clause that
it was not written for."""
ANY = r"(?:(?!; |\. ).)+?"
AS_IT_IS = ("n", "size", "s", "word", "list", "outside")
LABELS = "labels.txt"
"""Entries that stand alone: titles of columns, names of rows. In a sentence or a list the same word may be a key."""
LONGEST = 1200
"""A text that is longer holds what came from outside: it is not looked up."""
STOPS = {".": "。", ":": "：", ",": "，", ";": "；"}
JOINTS = ((". ", "。"), ("; ", "；"), (": ", "："), (", ", "，"), (" + ", " + "))
"""Where a text is taken apart, from the strongest to the weakest, and what stands there then."""
SENTENCES = (". ", "; ")
MOST_PARTS = 40
_WORDS = re.compile(r"(?<![\w./=-])[A-Za-z][a-z]+ [a-z]{2,}(?![\w=-])")
"""Two words of a sentence; names, keys and numbers have none."""
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\bmemplan(?: [\w./=-]+)+")
"""Words that no sentence is made of: a value in quotes, a command to type."""
_BETWEEN_NAMES = re.compile(r"(?<=[^\s,]) (or|and) (?=\S)")
_DIGITS = "0123456789"
_BRACKETS = re.compile(r"(?P<head>.+) \((?P<inside>[^()]+)\)")
_LETTER = re.compile(r"[A-Za-z]")


class Template(NamedTuple):
    """One entry with fields."""

    english: str
    other: str
    longest: str
    """Its longest piece between fields: a text without it cannot be this one."""


class Catalogue:
    """All entries of a language."""

    def __init__(self, entries: dict[str, str], labels: dict[str, str] | None = None) -> None:
        self.labels = labels or {}
        # A sentence is looked up without its stop, which stands or not by what comes behind it.
        entries = dict(_unstopped(*pair) for pair in entries.items())
        self.exact = {english: other for english, other in entries.items() if not fields(english)}
        templates = [Template(each, entries[each], max(pieces(each), key=len)) for each in entries if fields(each)]
        # What says most comes first: the template that leaves the least to its fields.
        self.templates = sorted(templates, key=lambda each: -sum(map(len, pieces(each.english))))
        self._found = lru_cache(maxsize=4096)(self._translated)

    def said(self, text: str) -> str:
        """The text in the other language, as far as it is known; line by line."""
        return "\n".join(self.labels.get(line) or self._found(line) or line for line in text.split("\n"))

    def _translated(self, text: str) -> str | None:
        """The text in the other language; None where nothing of it is known."""
        if len(text) > LONGEST or not _LETTER.search(text):
            return None
        bare = text.strip()
        if bare != text:
            found = self._found(bare)
            return None if found is None else text.replace(bare, found, 1)
        # A full stop is no part of what a field at the end holds.
        sentence = self._stopped(text) if text.endswith(".") else None
        return sentence or self._whole(text) or self._stopped(text) or self._in_parts(text)

    def _whole(self, text: str) -> str | None:
        """One entry, whether it begins with a capital or not; what begins with a key and its colon is no sentence."""
        is_key = text[0].islower() and text.partition(" ")[0].endswith(":")
        return self._entry(text) or (None if is_key else self._entry(text[0].swapcase() + text[1:]))

    def _entry(self, text: str) -> str | None:
        if text in self.exact:
            return self.exact[text]
        for template in self.templates:
            if template.longest in text:
                match = pattern(template.english).fullmatch(text)
                found = match and self._filled(template, match.groupdict())
                if found is not None:
                    return found
        return None

    def _filled(self, template: Template, values: dict[str, str]) -> str | None:
        """The other language with its values; None where its parts are unknown, or for mere joints of unknown texts."""
        said = {name: self._value(template.english, name, value) for name, value in values.items()}
        joins = not _LETTER.search("".join(pieces(template.english)))
        known = {name: value for name, value in said.items() if value is not None}
        if len(known) < len(said) or (joins and known == values):
            return None
        return filled(template.other, known)

    def _value(self, english: str, name: str, value: str) -> str | None:
        if kind(name) in ("part", "item"):
            return self._known(value)
        if kind(name) == "text":
            return self._known(value) or (value if f": {{{name}}}" in english else None)
        return value if kind(name) in AS_IT_IS else self._names(value)

    def _names(self, value: str) -> str | None:
        """Names as they are; None for words of a sentence that are not known."""
        if not _WORDS.search(_QUOTED.sub("", value)):
            return value
        joined = _BETWEEN_NAMES.sub(lambda found: " 或 " if found[1] == "or" else " 和 ", value)
        return self._found(value) or (None if _WORDS.search(_QUOTED.sub("", joined)) else joined)

    def _stopped(self, text: str) -> str | None:
        """A sentence without its stop."""
        found = self._found(text[:-1]) if text[-1] in STOPS else None
        return None if found is None else found + STOPS[text[-1]]

    def _in_parts(self, text: str) -> str | None:
        """The parts of a text at its strongest joint where they are known."""
        for joint, mark in JOINTS:
            parts = split(text, joint)
            found = self._joined(parts, joint, mark) if 1 < len(parts) <= MOST_PARTS else None
            if found is not None:
                return found
        bracketed = _BRACKETS.fullmatch(text)
        if bracketed is not None:
            head, inside = (self._known(each) for each in bracketed.groups())
            if head and inside and (head, inside) != bracketed.groups():
                return f"{head}（{inside}）"
        return None

    def _joined(self, parts: list[str], joint: str, mark: str) -> str | None:
        """The parts, with the longest runs of them that are one entry; None where one stays unknown. Whole sentences
        may: what is known of them is of use."""
        done: list[str] = []
        at, sentences, out = 0, joint in SENTENCES, ""
        while at < len(parts):
            ends = range(len(parts), at, -1)
            runs = ((end, joint.join(parts[at:end])) for end in ends if end - at < len(parts))
            found = ((end, self._whole(run) if end - at > 1 else self._known(run)) for end, run in runs)
            end, said = next(((end, said) for end, said in found if said is not None), (at + 1, None))
            if said is None and not sentences:
                return None
            done.append(said or parts[at])
            at = end
            out += done[-1] + ("" if at == len(parts) else mark if said else joint)
        return None if done == parts else out

    def _known(self, text: str) -> str | None:
        """The text in the other language; itself where it has no words to translate."""
        return self._found(text) or (None if _WORDS.search(text) else text)


def _unstopped(english: str, other: str) -> tuple[str, str]:
    """An entry without the full stops of both sides."""
    both = english.endswith(".") and not english.endswith("..") and other.endswith("。")
    return (english[:-1], other[:-1]) if both else (english, other)


def kind(field: str) -> str:
    """The kind of a field: its name without digits."""
    return field.rstrip(_DIGITS)


@cache
def _parsed(template: str) -> tuple[tuple[str, str | None], ...]:
    """Text and the field behind it, in turn."""
    return tuple((literal, name) for literal, name, _, _ in Formatter().parse(template))


def fields(template: str) -> list[str]:
    """The names of the fields of a template."""
    return [name for _, name in _parsed(template) if name is not None]


def pieces(template: str) -> list[str]:
    """The texts between the fields."""
    return [literal for literal, _ in _parsed(template)]


_CHINESE = re.compile("[\u4e00-\u9fff]")
_LATIN = re.compile("[A-Za-z0-9`-]")
_BETWEEN_CHINESE = re.compile("(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])")


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its values, with a space between Chinese and Latin letters where a value meets the text."""
    out = ""
    for literal, name in _parsed(template):
        for piece in (literal, values[name] if name else ""):
            meets = out and piece and {bool(_CHINESE.match(each)) for each in (out[-1], piece[0])} == {True, False}
            latin = meets and (_LATIN.match(out[-1]) or _LATIN.match(piece[0]))
            out += (" " if latin else "") + piece
    return _BETWEEN_CHINESE.sub("", out)


@cache
def pattern(template: str) -> "re.Pattern[str]":
    """What a finished text of this template looks like."""
    parts = []
    for literal, name in _parsed(template):
        parts.append(re.escape(literal))
        if name is not None:
            parts.append(f"(?P<{name}>{KINDS.get(kind(name), ANY)})")
    return re.compile("".join(parts))


def split(text: str, joint: str) -> list[str]:
    """The text at each joint that stands in no brackets."""
    parts, depth, begin, at = [], 0, 0, 0
    while at < len(text):
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth <= 0 and text.startswith(joint, at):
            parts.append(text[begin:at])
            begin = at = at + len(joint)
        else:
            at += 1
    return [*parts, text[begin:]]


def entries_of(text: str, place: str = "") -> dict[str, str]:
    """The pairs of a catalogue's file. Raises ValueError for a line without its pair."""
    found: dict[str, str] = {}
    english = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line[0] == " ":
            if not english or english in found:
                raise ValueError(f"{place}:{number}: no English line above, or one that is there already")
            found[english], english = line.strip(), ""
        elif english:
            raise ValueError(f"{place}:{number}: the line above has no other language below it")
        else:
            english = line.rstrip()
    return found


def files(language: str) -> list[Path]:
    """The files of a language's catalogue."""
    return sorted((Path(__file__).parent / language).glob("*.txt"))


@cache
def catalogue(language: str) -> Catalogue:
    """The catalogue of a language, read once."""
    entries: dict[str, str] = {}
    labels: dict[str, str] = {}
    for file in files(language):
        found = entries_of(file.read_text(encoding="utf-8"), file.name)
        (labels if file.name == LABELS else entries).update(found)
    return Catalogue(entries, labels)
