"""The parts of a script: commands, conditions, loops, functions, out of its tokens (``shell_syntax``)."""

import re
from collections.abc import Collection
from dataclasses import replace

from memplan.frameworks.shell.nodes import Block, Branch, Chain, Choice, Function, Loop, Node, Redirect, Simple
from memplan.frameworks.shell.reader import SHORTER
from memplan.frameworks.shell.syntax import MAX_NESTED, Raw, Scanner, Token

_NAME = re.compile(r"[A-Za-z_][\w:.-]*")
_END = Token("operator", "", 0)
_JOINS = ("&&", "||", "|", "|&")


def parse(scanner: Scanner) -> tuple[Node, ...]:
    """All that a text holds."""
    parser = _Parser(scanner)
    found: list[Node] = []
    while parser.token is not _END:
        found += parser.body(())
        parser.take()  # what closes nothing
    return tuple(found)


class _Parser:
    """Takes tokens one by one."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner, self.tokens, self.place, self.depth = scanner, scanner.tokens, 0, 0

    @property
    def token(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else _END

    def take(self) -> Token:
        token = self.token
        self.place += 1
        return token

    def at(self, *texts: str) -> bool:
        """Whether the next token is one of these words or operators."""
        return self.token.kind in ("word", "operator") and self.token.text in texts

    def skip(self, *texts: str) -> bool:
        """Take the next token where it is one of these."""
        found = self.at(*texts)
        self.place += found
        return found

    def lines(self) -> None:
        while self.skip("\n"):
            pass

    def deeper(self) -> None:
        """One block further in. Raises InvalidJob for more than a person writes."""
        self.depth += 1
        if self.depth > MAX_NESTED:
            raise self.scanner.error(0, f"blocks nested deeper than {MAX_NESTED} levels", SHORTER)

    def body(self, until: Collection[str]) -> tuple[Node, ...]:
        """Commands up to one of these words, which stays; or up to what closes a block that nobody opened."""
        found: list[Node] = []
        self.deeper()
        while self.token is not _END:
            if self.skip("\n", ";", "&"):
                continue
            if self.at(*until) or self.at(*_CLOSING):
                break
            before = self.place
            found.append(self.chain())
            if self.place == before:
                self.take()
        self.depth -= 1
        return tuple(found)

    def chain(self) -> Node:
        """Commands joined by ``&&``, ``||`` and pipes."""
        negated = False
        while self.at("!", "time"):
            negated ^= self.take().text == "!"
        parts: list[tuple[str, Node]] = [("", self.command())]
        while self.at(*_JOINS):
            sign = self.take().text
            self.lines()
            parts.append((sign.replace("|&", "|"), self.command()))
        return parts[0][1] if len(parts) == 1 and not negated else Chain(tuple(parts), negated)

    def command(self) -> Node:
        """One command, or a block with its redirections."""
        reader = _BLOCKS.get(self.token.text) if self.token.kind in ("word", "operator") else None
        if reader is None:
            return self.simple()
        line = self.take().line
        node, redirects = reader(self, line), self.redirects()
        return replace(node, redirects=tuple(redirects)) if isinstance(node, Block) else node

    def redirects(self) -> list[Redirect]:
        found = []
        while self.token.kind == "redirect":
            bodies = self.scanner.bodies.get(self.place, [])
            sign, target = self.take().text, self.take()
            found.append(Redirect(sign, Raw(target.text, target.line), bodies))
        return found

    def simple(self) -> Node:
        """Words up to an operator; ``name ()`` begins a function."""
        if self.token.kind in ("sum", "test"):
            token = self.take()
            return Simple((Raw(token.text, token.line),), tuple(self.redirects()), token.kind)
        words: list[Raw] = []
        redirects: list[Redirect] = []
        while self.token.kind in ("word", "redirect") and self.token is not _END:
            redirects += self.redirects()
            if self.token.kind == "word":
                token = self.take()
                words.append(Raw(token.text, token.line))
            if len(words) == 1 and self.at("(") and _NAME.fullmatch(words[0].text):
                self.take()
                self.skip(")")
                return self.function(words[0])
        return Simple(tuple(words), tuple(redirects))

    def function(self, name: Raw) -> Node:
        """What follows ``name()``."""
        self.lines()
        self.deeper()
        body = self.command()
        self.depth -= 1
        return Function(name.text, body.body if isinstance(body, Block) else (body,), name.line)

    def named_function(self, line: int) -> Node:
        """``function name { … }``."""
        name = self.take()
        if self.skip("("):
            self.skip(")")
        return self.function(Raw(name.text, line))

    def block(self, line: int) -> Node:
        """``{ … }``."""
        body = self.body(("}",))
        self.skip("}")
        return Block(body)

    def inner(self, line: int) -> Node:
        """``( … )``."""
        body = self.body((")",))
        self.skip(")")
        return Block(body)

    def branch(self, line: int) -> Node:
        """``if … then … elif … else … fi``."""
        arms: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        otherwise = False
        while True:
            condition = () if otherwise else self.body(("then",))
            self.skip("then")
            arms.append((condition, self.body(("elif", "else", "fi"))))
            if otherwise or not self.at("elif", "else"):
                break
            otherwise = self.take().text == "else"
        self.skip("fi")
        return Branch(tuple(arms), line)

    def loop(self, line: int) -> Node:
        """``while``."""
        condition = self.body(("do",))
        return Loop("", None, condition, self.loop_body(), line)

    def until(self, line: int) -> Node:
        """``until``: once, whatever it waits for."""
        self.body(("do",))
        return Loop("", None, (), self.loop_body(), line)

    def each(self, line: int) -> Node:
        """``for`` and ``select``."""
        name = self.take()
        words: list[Raw] | None = None
        if name.kind != "sum":
            words = []
            self.lines()
            if self.skip("in"):
                while self.token.kind == "word" and self.token is not _END:
                    token = self.take()
                    words.append(Raw(token.text, token.line))
            else:
                words.append(Raw('"$@"', line))
        self.skip(";")
        self.lines()
        return Loop(name.text, None if words is None else tuple(words), (), self.loop_body(), line)

    def loop_body(self) -> tuple[Node, ...]:
        if not self.skip("do") and self.skip("{"):
            body = self.body(("}",))
            self.skip("}")
            return body
        body = self.body(("done",))
        self.skip("done")
        return body

    def choice(self, line: int) -> Node:
        """``case word in pattern) … ;; esac``."""
        word = self.take()
        self.lines()
        self.skip("in")
        arms = []
        while True:
            while self.skip("\n", ";;", ";&", ";;&", ";", "("):
                pass
            if self.at("esac") or self.token is _END:
                break
            patterns = []
            while self.token.kind == "word" and self.token is not _END:
                patterns.append(Raw(self.token.text, self.take().line))
                self.skip("|")
            if not self.skip(")") and not patterns:
                self.take()
            arms.append((tuple(patterns), self.body((";;", ";&", ";;&", "esac"))))
        self.skip("esac")
        return Choice(Raw(word.text, word.line), tuple(arms))


_CLOSING = ("}", ")", "fi", "done", "esac", "then", "else", "elif", "do", ";;", ";&", ";;&")
_BLOCKS = {
    "if": _Parser.branch,
    "for": _Parser.each,
    "select": _Parser.each,
    "while": _Parser.loop,
    "until": _Parser.until,
    "case": _Parser.choice,
    "function": _Parser.named_function,
    "{": _Parser.block,
    "(": _Parser.inner,
}
