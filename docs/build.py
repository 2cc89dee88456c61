"""Keep the output that README and docs show true: run each command and put its output where the page shows it.

A page marks a place so, and everything between the two comments is written here::

    <!-- output of: memplan estimate llama-3.1-8b -->
    <!-- end of output -->

``markdown of:`` in place of ``output of:`` runs the command with ``--format markdown`` and puts its Markdown there, as
part of the page. ``picture of:`` writes the command's SVG into the file that the image between the comments names.
A page whose name ends in ``.zh.md`` is Chinese, and so are its outputs. ``python docs/build.py``
writes the pages, or those that are named; ``python docs/build.py --check`` exits 1 when one is out of date.
"""

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "README.md",
    "README.zh.md",
    "MEMORY_ESTIMATION.md",
    "MEMORY_ESTIMATION.zh.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
BLOCK = re.compile(
    r"<!-- (?P<form>output|markdown|picture) of: (?P<command>.+?) -->\n(?P<body>.*?)<!-- end of output -->", re.DOTALL
)
IMAGE = re.compile(r"!\[[^\]]*\]\((?P<file>[^)]+\.svg)\)")
FIRST_LINES = re.compile(r" \| head -n (\d+)$")


def language_of(page: str) -> str:
    """``zh`` for the name of a Chinese page, else ``en``."""
    return "zh" if page.endswith(".zh.md") else "en"


asking = Lock()
running: dict[tuple[str, str], Future[str]] = {}
commands = ThreadPoolExecutor(os.cpu_count())  # each is a process of its own


def output_of(command: str, language: str) -> str:
    """What a command prints; one that several pages show runs once, though they ask for it at the same time."""
    with asking:
        if (command, language) not in running:
            running[command, language] = commands.submit(printed_by, command, language)
    return running[command, language].result()


def printed_by(command: str, language: str) -> str:
    """What a command prints, as a reader without colours and without a network sees it. ``| head -n N`` cuts it."""
    cut = FIRST_LINES.search(command)
    words = shlex.split(FIRST_LINES.sub("", command))
    if words[0] == "memplan":
        words = [sys.executable, "-m", "memplan", *words[1:]]
    elif words[0] == "python":
        words = [sys.executable, *words[1:]]
    reader = {"NO_COLOR": "1", "COLUMNS": "100", "HF_HUB_OFFLINE": "1", "MEMPLAN_LANG": language}
    environment = {**os.environ, **reader, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", timeout=600, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    lines = done.stdout.rstrip().splitlines()
    return "\n".join(lines[: int(cut.group(1))] if cut else lines)


def pictures_of(text: str, page: Path) -> dict[Path, str]:
    """Every marked picture of a page, drawn anew, by its file."""
    found = {}
    for match in BLOCK.finditer(text):
        if match.group("form") == "picture":
            image = IMAGE.search(match.group("body"))
            if image is None:
                raise SystemExit(f"{page}: no image between the comments of: {match.group('command')}")
            drawn = output_of(f"{match.group('command')} --format svg", language_of(page.name))
            found[(page.parent / image.group("file")).resolve()] = drawn + "\n"
    return found


def rebuilt(text: str, language: str = "en") -> str:
    """The page with every marked output made anew."""

    def block(match: re.Match[str]) -> str:
        command = match.group("command")
        if match.group("form") == "picture":
            return match.group()
        speaks = "en" if command.startswith("python ") else language  # its own words, once for both languages
        if match.group("form") == "markdown":
            made = output_of(f"{command} --format markdown", speaks)
            return f"<!-- markdown of: {command} -->\n\n{made}\n\n<!-- end of output -->"
        shown = FIRST_LINES.sub("", command)
        return (
            f"<!-- output of: {command} -->\n```console\n$ {shown}\n{output_of(command, speaks)}\n```\n"
            "<!-- end of output -->"
        )

    return BLOCK.sub(block, text)


def files_of(name: str) -> dict[Path, str]:
    """A page and its pictures made anew, by file; of a page that is not there nothing."""
    path = ROOT / name
    if not path.exists():
        return {}
    page = path.read_text(encoding="utf-8")
    return {path: rebuilt(page, language_of(name)), **pictures_of(page, path)}


def main() -> int:
    """Write the pages, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a page is out of date")
    parser.add_argument("pages", nargs="*", help="these alone, by their paths in the checkout")
    arguments = parser.parse_args()
    check, stale = arguments.check, 0
    names = [*dict.fromkeys(arguments.pages or PAGES)]
    with ThreadPoolExecutor(len(names)) as pages:
        each = [*pages.map(files_of, names)]
    for files in each:
        for file, after in files.items():
            shown = file.relative_to(ROOT)
            before = file.read_text(encoding="utf-8") if file.exists() else ""
            if before == after:
                continue
            stale += 1
            if check:
                print("".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{shown}", "now")))
            else:
                file.write_text(after, encoding="utf-8")
                print(f"written: {shown}")
    if check and stale:
        print(f"{stale} page(s) out of date: run python docs/build.py")
    return int(check and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
