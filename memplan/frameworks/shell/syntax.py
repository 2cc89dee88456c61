"""A script's text as its parts: words as they are written, commands, conditions, loops, functions. Nothing is put in.

What a shell refuses is taken as it was meant where that is plain (a stray ``fi``); a quote that does not close is not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.shell.reader import MAX_LINE, SHORTER

MAX_NESTED = 60
"""Blocks within blocks, and brackets within a word."""
MAX_TOKENS = 200_000
_BLANK = re.compile(r"[ \t\r]+")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|\|\||\|&|\||&|\(|\)|\n")
PLACEHOLDER = re.compile(r"<[A-Za-z][\w .,:/-]{0,60}(?<![ /])>(?=[\s/\"'\\]|$)")
"""``<path to model>``, ``<ROOT>/model``: what somebody is to fill in, in a script that no shell runs as it is."""
_REDIRECT = re.compile(r"(\d*)(&>>|&>|>>|>&|>\||<<<|<<-|<<|<>|<&|>(?!\()|<(?!\())")
_PLAIN = re.compile(r"[^]\s'\"\\`$(){};&|<>#]+")
_QUOTED = re.compile(r"[^\"\\$`]+")
_TAKES_BRACKETS = re.compile(r"[A-Za-z_][\w]*(?:\[[^\]\s]*\])?\+?=$|.*[?*+@!]$", re.DOTALL)
_DOCUMENT = re.compile(
    r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n(?:(?![ \t]*\1[ \t\r]*$)[^\n]*\n)*?[ \t]*\1(?=\s)", re.MULTILINE
)
"""A here-document within ``$( … )``."""
_CONTINUED = re.compile(r"\\[ \t\r]*(?:#[^\n]*)?\n(?P<between>(?:[ \t\r]*(?:#[^\n]*)?\n)*)(?P<next>[^\n]*)")
_OPTION = re.compile(r"\s*(?:['\"]?-{1,2}[A-Za-z]|['\"]?[+~]{0,2}[A-Za-z_]\w*(?:\.[\w@-]+)+=|\"?\$\{\w+\[@)")
"""A line that goes on with a command's options."""
_GOES_ON = re.compile(
    r"\n(?:[ \t\r]*(?:`[ \t]*#[^`\n]*`[ \t\r]*(?:\\[ \t\r]*)?|\\)\n)*[ \t\r]*"
    r"(?=--[A-Za-z]|[+~]{0,2}[A-Za-z_]\w*(?:\.[\w@-]+)+=)"
)
"""A line that begins with an option, or sets a dotted name, behind one whose backslash was forgotten; between them
maybe comments in backquotes, each with a backslash."""
_STARTS = frozenset(("if", "then", "elif", "else", "do", "while", "until", "!", "{", "time", "for"))


_CLOSES = {"(": ")", "{": "}", "[": "]"}


class Raw(NamedTuple):
    """A word as it is written, quotes and all, and its line."""

    text: str
    line: int


class Token(NamedTuple):
    """A word, an operator, a redirection, ``(( … ))`` or ``[[ … ]]``."""

    kind: str
    """word, operator, redirect, sum or test."""
    text: str
    line: int


@dataclass
class Scanner:
    """The tokens of a text."""

    text: str
    path: str
    first: int = 1
    """Line of its beginning."""
    tokens: list[Token] = field(default_factory=list)
    bodies: dict[int, list[str]] = field(default_factory=dict)
    """Texts of here-documents, by the place of their redirection among the tokens."""
    joined: list[int] = field(default_factory=list)
    """Lines that a shell ends a command at, before options of it."""

    def __post_init__(self) -> None:
        self._ends = [match.start() for match in re.finditer("\n", self.text)]
        self._pending: list[int] = []
        self._last = {closing: self.text.rfind(closing) for closing in ("))", "]]")}

    def line(self, place: int) -> int:
        """The line of a place."""
        return self.first + bisect_right(self._ends, place - 1)

    def error(self, place: int, problem: str, hint: str) -> InvalidJob:
        """An error at a place (to be raised)."""
        return InvalidJob(f"{self.path}, line {self.line(place)}: {problem}", hint)

    def scan(self) -> Scanner:
        """All tokens."""
        place = 0
        while place < len(self.text):
            place = self._step(place)
            if len(self.tokens) > MAX_TOKENS:
                raise self.error(place, f"more than {MAX_TOKENS} words", SHORTER)
        return self

    def _step(self, place: int) -> int:
        text = self.text
        if text[place] == "\\":
            after = self._after_backslash(place)
            if after != place:
                return after
        blank = _BLANK.match(text, place)
        if blank:
            return blank.end()
        if text[place] == "#":
            end = text.find("\n", place)
            return len(text) if end < 0 else end
        if self._starts():
            for kind, opening, closing in (("sum", "((", "))"), ("test", "[[", "]]")):
                opens = text.startswith(opening, place) and place < self._last[closing]
                end = text.find(closing, place) if opens else -1
                if end > 0:
                    return self._put(kind, text[place + 2 : end], place, end + 2)
        redirect = _REDIRECT.match(text, place)
        if redirect and not PLACEHOLDER.match(text, place):
            return self._redirect(redirect)
        if text[place] == "(" and not self._starts() and not re.match(r"\(\s*\)", text[place : place + 80]):
            return self._word(place)  # as a shell does not allow: --layers ([0]*1)
        goes_on = None if self._pending or not self.tokens or self._starts() else _GOES_ON.match(text, place)
        if goes_on:
            self.joined.append(self.line(place))
            return goes_on.end()
        operator = _OPERATOR.match(text, place)
        if operator:
            self._put("operator", operator.group(), place, 0)
            return self._documents(operator.end()) if operator.group() == "\n" else operator.end()
        return self._word(place)

    def _word(self, place: int) -> int:
        end = end_of_word(self.text, place)
        if end < 0:
            raise self.error(place, "no closing quotation", "close the quote")
        if end - place > MAX_LINE:
            raise self.error(place, f"a command of more than {MAX_LINE} characters", SHORTER)
        return self._put("word", self.text[place:end], place, max(end, place + 1))

    def _put(self, kind: str, text: str, place: int, end: int) -> int:
        self.tokens.append(Token(kind, text, self.line(place)))
        return end

    def _starts(self) -> bool:
        """Whether a command may begin here."""
        if not self.tokens:
            return True
        last = self.tokens[-1]
        return last.kind == "operator" or (last.kind == "word" and last.text in _STARTS)

    def _after_backslash(self, place: int) -> int:
        """Behind the end of a continued line, with comments and empty lines in it where options follow these."""
        match = _CONTINUED.match(self.text, place)
        if match is None:
            return len(self.text) if place == len(self.text) - 1 else place
        ended = match.group()[1 : match.start("between") - place].strip("\r\n")  # a blank, or a comment
        if "#" not in ended and not match.group("between"):
            self.joined += [self.line(place)] if ended else []
            return match.start("next")
        if not _OPTION.match(match.group("next")):
            return self.text.index("\n", place)
        self.joined.append(self.line(match.start("between")))
        return match.start("next")

    def _redirect(self, match: re.Match[str]) -> int:
        place = match.end()
        blank = _BLANK.match(self.text, place)
        place = blank.end() if blank else place
        end = end_of_word(self.text, place)
        if match.group(2) in ("<<", "<<-"):
            self._pending.append(len(self.tokens))
            self.bodies[len(self.tokens)] = []
        self._put("redirect", match.group(2), match.start(), 0)
        return self._put("word", self.text[place : max(end, place)], place, max(end, place))

    def _documents(self, place: int) -> int:
        """Texts of the here-documents that begin at this line's end."""
        for at in self._pending:
            word = self.tokens[at + 1].text.strip("'\"\\")
            tabs = r"\t*" if self.tokens[at].text == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(word)}[ \t\r]*$", re.MULTILINE).search(self.text, place)
            stop = end.start() if end else len(self.text)
            body = self.text[place:stop]
            self.bodies[at].append(re.sub(r"^\t+", "", body, flags=re.MULTILINE) if tabs else body)
            place = min(len(self.text), end.end() + 1) if end else len(self.text)
        self._pending.clear()
        return place


ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL)
"""``$'…'``, in which a backslash stands before a quote."""


def end_of_word(text: str, place: int, whole: bool = True) -> int:
    """Where the word that begins here ends; -1 where a quote or a bracket does not close.

    Without ``whole`` it ends with the first quote or bracket that closes."""
    start = place
    closing: list[str] = []
    while place < len(text):
        top, char = closing[-1] if closing else "", text[place]
        plain = (_QUOTED if top == '"' else _PLAIN).match(text, place)
        if plain:
            place = plain.end()
            continue
        held = PLACEHOLDER.match(text, place) if char == "<" and not closing else None
        if held:
            place = held.end()
            continue
        if char == "\\":
            if not closing and re.match(r"\\[ \t\r]*\n", text[place : place + 200]):
                return place
            place += 2
            continue
        if char == "$" and top != '"' and (ansi := ANSI.match(text, place)):
            place = ansi.end() - 1
        elif char == "'" and top != '"':
            place = text.find("'", place + 1)
            if place < 0:
                return -1
        elif char in '"`':
            if top == char:
                closing.pop()
            else:
                closing.append(char)
        elif char == "$" and text[place + 1 : place + 2] in _CLOSES:
            closing.append(_CLOSES[text[place + 1]])
            place += 1
        elif top == '"':
            pass
        elif char == "#" and top == ")" and text[place - 1] in " \t\n":
            end = text.find("\n", place)
            place = (len(text) if end < 0 else end) - 1
        elif char == "(" and (top == ")" or _opens(text, start, place, top)):
            closing.append(")")
        elif char == "<" and top == ")" and (document := _DOCUMENT.match(text, place)):
            place = document.end() - 1
        elif char == top:
            closing.pop()
        elif not top and (char in " \t\r\n;&|" or (char in "<>()" and place > start)):
            return place
        place += 1
        if len(closing) > MAX_NESTED:
            return -1
        if not whole and not closing:
            return place
    return -1 if closing else min(place, len(text))


def _opens(text: str, start: int, place: int, top: str) -> bool:
    """Whether a bracket within a word opens an array, a process or a pattern, or is of the word's own."""
    if top:
        return False
    array = _TAKES_BRACKETS.match(text, start, place) is not None
    return array or place == start or text[place - 1] in "<>"
