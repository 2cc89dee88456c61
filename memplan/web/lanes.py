"""Processes that answer, each one request at a time and each in time; and the answers that were given before."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from typing import NamedTuple

from memplan.errors import EXIT_BUG
from memplan.web.answers import BUG, REFUSED, error_text
from memplan.web.worker import PROGRAM

MOST_WAITING = 32
"""Requests that wait for one process."""
TOO_MANY = 429
RENEWED_AFTER = 2000
"""Answers of one process: whatever it has kept by then is given back."""


class Answer(NamedTuple):
    """A status and JSON in UTF-8."""

    status: int
    body: bytes


def error(status: int, message: str, hint: str, code: int = 2) -> Answer:
    """An error as an answer."""
    return Answer(status, error_text(message, hint, code).encode())


class Lane:
    """One process, started when it is first needed, again where it had to be ended."""

    def __init__(self, timeout_s: float, hub: bool) -> None:
        self.timeout_s, self.hub = timeout_s, hub
        self._process: Process | None = None
        self._folder = ""
        self._answers = 0
        self._turn, self.waiting = asyncio.Lock(), 0

    async def ask(self, kind: str, body: str) -> Answer:
        """The answer, or what is said in its place of one that takes too long."""
        if self.waiting >= MOST_WAITING:
            return error(TOO_MANY, "too many requests wait already", "ask again in a moment")
        self.waiting += 1
        try:
            async with self._turn:
                return await self._in_time(kind, body)
        finally:
            self.waiting -= 1

    async def start(self) -> None:
        """Start the process, so that it is warm when the first request comes."""
        async with self._turn:
            await self._started()

    async def _in_time(self, kind: str, body: str) -> Answer:
        try:
            return await asyncio.wait_for(self._answered(kind, body), self.timeout_s)
        except asyncio.TimeoutError:
            await self.stop()
            hint = "fix more of the job, or start memplan web with a longer --timeout"
            return error(REFUSED, f"{kind} took longer than {self.timeout_s:g} s", hint)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            await self.stop()
            return error(BUG, f"{kind} ended before it answered", "report it with what you asked", EXIT_BUG)
        except asyncio.CancelledError:
            await self.stop()  # half an answer may be on its way
            raise

    async def _answered(self, kind: str, body: str) -> Answer:
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"kind": kind, "body": body}).encode() + b"\n")
        await process.stdin.drain()
        status, length = (await process.stdout.readuntil()).split()
        found = Answer(int(status), await process.stdout.readexactly(int(length)))
        self._answers += 1
        if self._answers >= RENEWED_AFTER:
            await self.stop()
        return found

    async def _started(self) -> Process:
        if self._process is None or self._process.returncode is not None:
            await self.stop()
            self._folder = tempfile.mkdtemp(prefix="memplan-web-")
            arguments = ["-c", PROGRAM, self._folder, "hub" if self.hub else "alone"]
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=PIPE,
                stdout=PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(),
            )
        return self._process

    async def stop(self) -> None:
        """End the process, and take its folder away."""
        process, self._process, self._answers = self._process, None, 0
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


def _environment() -> dict[str, str]:
    """This process's, without what would find a memplan or a setting in the working directory."""
    kept = {name: value for name, value in os.environ.items() if name not in ("MEMPLAN_DEBUG", "PYTHONSTARTUP")}
    return kept | {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}


class Kept:
    """The last answers by what was asked, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._held = most_bytes, 0
        self._answers: OrderedDict[tuple[str, bytes], Answer] = OrderedDict()

    def get(self, asked: tuple[str, bytes]) -> Answer | None:
        """What was answered to this before."""
        found = self._answers.get(asked)
        if found is not None:
            self._answers.move_to_end(asked)
        return found

    def put(self, asked: tuple[str, bytes], answer: Answer) -> None:
        """Keep an answer, and let the oldest go."""
        if asked in self._answers or _size(asked, answer) > self._most // 4:
            return
        self._answers[asked] = answer
        self._held += _size(asked, answer)
        while self._held > self._most:
            self._held -= _size(*self._answers.popitem(last=False))


def _size(asked: tuple[str, bytes], answer: Answer) -> int:
    return len(asked[1]) + len(answer.body) + 500
