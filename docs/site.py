"""The documentation as a site: pages of the checkout, gathered into one folder, and a reference from docstrings.

``python docs/site.py`` needs ``pip install -e ".[docs]"``, and writes build/site; every link is checked. ``--gather``
alone needs nothing: it gathers the pages into build/docs, and exits 1 where a link leads nowhere. Pages keep the links
that they have in the checkout; those to files that are no page, such as examples, become their names.
"""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "docs"
SETTINGS = ROOT / "docs" / "mkdocs.yml"
AT_TOP = ("README.md", "README.zh.md", "MEMORY_ESTIMATION.md", "MEMORY_ESTIMATION.zh.md", "CONTRIBUTING.md")
"""Pages of the checkout's top level."""
FIRST = "index.md"
"""What README.md is called in the site."""
REFERENCE = {
    "api": ("The library", "memplan.api", "memplan.models"),
    "report": ("A report", "memplan.report"),
    "timeline": ("A step as curves", "memplan.timeline"),
    "job": ("A job", "memplan.spec.job"),
    "errors": ("Errors", "memplan.errors"),
}
"""Pages of the reference: the title, and the modules whose docstrings they are made of."""
LINK = re.compile(r"(?P<mark>!?)\[(?P<words>[^\]]*)\]\((?P<to>[^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~)")


def pages() -> dict[Path, Path]:
    """Every page and picture of the checkout, with its place in the site."""
    found = {ROOT / name: Path(FIRST if name == "README.md" else name) for name in AT_TOP}
    files = (path for path in sorted((ROOT / "docs").rglob("*")) if path.suffix in (".md", ".svg"))
    return found | {path: path.relative_to(ROOT / "docs") for path in files}


def gathered(page: Path, text: str, places: dict[Path, Path], lost: list[str]) -> str:
    """A page's text with its links as they are in the site. ``lost``: those that lead nowhere are added."""
    here = places[page].parent

    def link(match: re.Match[str]) -> str:
        to, _, anchor = match.group("to").partition("#")
        if not to or "://" in to or to.startswith("mailto:"):
            return match.group()
        target = (page.parent / to).resolve()
        if target in places:
            up = "../" * len(here.parts)
            place = up + places[target].as_posix()
            return f"{match.group('mark')}[{match.group('words')}]({place}{'#' + anchor if anchor else ''})"
        if not target.exists():
            lost.append(f"{page.relative_to(ROOT)}: {match.group('to')}")
        return match.group("words")

    return "".join(LINK.sub(link, part) if is_prose else part for part, is_prose in _parts(text))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Lines, and whether they are prose: what stands in a fence is left as it is."""
    fenced = False
    for line in text.splitlines(keepends=True):
        if FENCE.match(line):
            fenced = not fenced
        yield line, not fenced


def gather(out: Path = OUT) -> list[str]:
    """Write every page of the site; the links that lead nowhere."""
    places, lost = pages(), list[str]()
    shutil.rmtree(out, ignore_errors=True)
    for source, place in places.items():
        (out / place).parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        made = gathered(source, text, places, lost) if source.suffix == ".md" else text
        (out / place).write_text(made, encoding="utf-8")
    (out / "reference").mkdir(parents=True, exist_ok=True)
    for name, (title, *modules) in REFERENCE.items():
        parts = "\n\n".join(f"::: {module}" for module in modules)
        (out / "reference" / f"{name}.md").write_text(f"# {title}\n\n{parts}\n", encoding="utf-8")
    return lost


def main() -> int:
    """Gather the pages, then build the site."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gather", action="store_true", help="no site: the pages alone, and their links")
    arguments = parser.parse_args()
    lost = gather()
    for each in lost:
        print(f"leads nowhere: {each}")
    if lost or arguments.gather:
        return int(bool(lost))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(SETTINGS)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
