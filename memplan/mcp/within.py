"""Which files a call may open: those of the folders that the server was given, and what Python and memplan are made of.

A hook of the interpreter's audit events (PEP 578) refuses every other; it cannot be taken out again, so it is for a
process that does one call."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

READ_ANYWAY = ("/proc", "/sys", "/dev", "/usr/share", "/usr/lib", "/etc/mime.types", "/etc/ssl", "/etc/pki")
"""What libraries read of the system: cards, certificates, kinds of files."""
READS = ("open", "os.listdir", "os.scandir")
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of opening that change a file."""


def keep_within(folders: Iterable[str]) -> None:
    """From now on this process opens no file elsewhere: PermissionError, as if the system had refused it."""
    own = tuple(os.path.realpath(place) for place in (*own_places(), sys.prefix, sys.base_prefix, *READ_ANYWAY))
    roots = (*(os.path.realpath(folder) for folder in folders), *own)
    downloads = os.path.realpath(downloads_dir())

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        path, changes = touched(event, arguments)
        if not path or is_in(path, downloads) or path == os.devnull:
            return
        if changes and not ("__pycache__" in path and any(is_in(path, place) for place in own)):
            raise PermissionError(13, "nothing is written for an agent", path)
        if not any(is_in(path, root) for root in roots):
            raise PermissionError(13, "outside the folders that memplan mcp was given", path)

    sys.addaudithook(hook)


def touched(event: str, arguments: tuple[object, ...]) -> tuple[str, bool]:
    """The file that an event is about, and whether it is changed; empty for another event, or a descriptor's."""
    if event not in READS + CHANGES or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return "", False
    flags = arguments[2] if event == "open" else 0
    changes = event in CHANGES or (isinstance(flags, int) and bool(flags & WRITES))
    return os.path.realpath(os.fsdecode(arguments[0])), changes


def is_in(path: str, root: str) -> bool:
    """Whether a path is a folder, or lies in it; both real."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def own_places() -> list[str]:
    """Where Python's packages and memplan lie, but for the working directory, which is none of them."""
    here = os.path.realpath(os.getcwd())
    packages = [path for path in sys.path if path and os.path.realpath(path) != here]
    own = Path(__file__).resolve().parents[1]
    presets = str(own.parent / "presets")
    return [*packages, str(own), presets]


def downloads_dir() -> str:
    """Where huggingface_hub keeps what it downloads; the only place that is written to."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return os.path.expanduser(home)
