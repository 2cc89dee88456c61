"""What a script takes from a file beside it: ``source common.env``, read as text of the script's own."""

import os
from functools import lru_cache
from pathlib import Path

MAX_BYTES, MOST_PARTS = 64 * 1024, 6


def folder_of(path: str) -> str:
    """The whole path of a script's folder, as ``$(cd "$(dirname "$0")" && pwd)`` has it."""
    return str(Path(path).resolve().parent)


def sourced_text(script: str, reference: str) -> tuple[str, str]:
    """(path, text) of a file that a script sources, in its folder or its project; empty for none that is plain text.

    Of a path that is not here its last parts are looked for, two at least: ``$HERE/models/qwen3-4B.sh``."""
    roots, top = roots_of(script)
    parts = reference.split("/")
    ends = ("/".join(parts[-count:]) for count in range(min(len(parts) - 1, MOST_PARTS), 1, -1))
    for name in dict.fromkeys((reference, *ends, "/".join(parts[-2:]))):
        for root in roots:
            path = Path(root, name).resolve()
            if path.is_file() and path.is_relative_to(top) and path.stat().st_size <= MAX_BYTES:
                try:
                    return str(path), path.read_bytes().decode("utf-8-sig")
                except (OSError, UnicodeDecodeError):
                    return reference, ""
    return reference, ""


SIGNS = ("pyproject.toml", "setup.py", "requirements.txt", "LICENSE", "LICENSE.txt", "LICENSE.md", "README.md")
"""What lies at the top of a project; of one that came as an archive, in place of ``.git``."""
MOST_ABOVE = 6


def project_of(folder: Path) -> Path:
    """The working directory, where the folder is in it, unless that merely holds projects; else the checkout around the
    folder, or the outermost folder around it that looks like a project's top; else the folder. Never the whole disk,
    or a home."""
    return _project_of(folder, Path.cwd())


def roots_of(path: str) -> tuple[tuple[str, ...], Path]:
    """Where what a file names is looked for, in this order: in its folder, at the top of its project, in the folders
    between; and that top."""
    return _roots(path, os.getcwd())


@lru_cache(maxsize=256)
def _roots(path: str, here: str) -> tuple[tuple[str, ...], Path]:
    folder = Path(os.path.dirname(os.path.realpath(path)))
    top = _project_of(folder, Path(here))
    between = [each for each in folder.parents if top in each.parents]
    return tuple(map(str, (folder, top, *between))), top


def forget() -> None:
    """Projects are looked for anew: their files may have changed."""
    _project_of.cache_clear()
    _roots.cache_clear()


@lru_cache(maxsize=256)
def _project_of(folder: Path, here: Path) -> Path:
    here, home = here.resolve(), Path.home().resolve()
    around = [top for top in (folder, *folder.parents) if top not in (Path(here.anchor), home, *home.parents)]
    checkout = next((top for top in around if (top / ".git").exists()), None)
    signed = [top for top in around[:MOST_ABOVE] if any((top / name).is_file() for name in SIGNS)]
    if here in around and (here in signed or (here / ".git").exists() or not (checkout or signed)):
        return here
    if here in around:  # what holds several projects is none
        signed = [top for top in signed if top.is_relative_to(here)]
    return checkout or (signed[-1] if signed else here if here in around else folder)
