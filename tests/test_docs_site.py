"""Proves the site's pages: every page of the checkout is in it and in its menu, no link leads nowhere, what stands in a
fence is left as it is, and pictures are made of the command beside them.
"""

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from memplan.cli.commands import whole_command
from memplan.cli.flags import spelling

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    """A script of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site, build = script("site"), script("build")


def in_menu(entry: Any) -> list[str]:
    """Pages that a part of the menu names."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in in_menu(part)]


def test_no_link_leads_nowhere(tmp_path: Path) -> None:
    assert site.gather(tmp_path / "docs") == []


def test_every_page_is_in_the_menu_once(tmp_path: Path) -> None:
    site.gather(tmp_path)
    pages = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.md"))
    settings = yaml.safe_load((ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(in_menu(settings["nav"])) == pages


def test_the_reference_is_of_modules_that_are_there() -> None:
    for _, *modules in site.REFERENCE.values():
        assert all(importlib.util.find_spec(module) for module in modules)


def test_links_are_those_of_the_site(tmp_path: Path) -> None:
    places, lost = site.pages(), list[str]()
    page = ROOT / "docs" / "tutorials" / "trl.md"
    text = "see [plans](../planning.md#top), [home](../../README.md), [files](../../examples/check), [none](gone.md)\n"
    made = site.gathered(page, text + "```\n[a](b.md)\n```\n[x](https://example.org)\n", places, lost)
    first, rest = made.split("\n", 1)
    assert first == "see [plans](../planning.md#top), [home](../index.md), files, none"
    assert rest == "```\n[a](b.md)\n```\n[x](https://example.org)\n"
    assert lost == ["docs/tutorials/trl.md: gone.md"]


def test_a_picture_is_drawn_by_the_command_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "output_of", lambda command, language: f"<svg>{command}</svg>")
    text = "<!-- picture of: memplan accuracy -->\n![dots](pictures/a.svg)\n<!-- end of output -->\n"
    page = ROOT / "docs" / "accuracy.md"
    assert build.pictures_of(text, page) == {
        ROOT / "docs" / "pictures" / "a.svg": "<svg>memplan accuracy --format svg</svg>\n"
    }
    assert build.rebuilt(text) == text
    with pytest.raises(SystemExit, match="no image"):
        build.pictures_of(text.replace("![dots](pictures/a.svg)", ""), page)


@pytest.mark.parametrize("name", ["trl", "llamafactory", "axolotl", "verl", "deepspeed"])
def test_every_tutorial_ends_with_a_job_that_fits(name: str) -> None:
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    _, _, end = text.partition("## 3. What fits")
    assert "iB more " in text
    assert "Does not fit" in text
    assert ": fits " in end
    chinese = (ROOT / "docs" / "tutorials" / f"{name}.zh.md").read_text(encoding="utf-8")
    assert build.IMAGE.findall(chinese) == [file.replace(".svg", "_zh.svg") for file in build.IMAGE.findall(text)]
    theirs = [match.group("form", "command") for match in build.BLOCK.finditer(chinese)]
    assert theirs == [match.group("form", "command") for match in build.BLOCK.finditer(text)]


FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
TYPED = re.compile(r"^(?:\$ )?(?:\w+=\S+ )*memplan ([^\n#|>]+)", re.MULTILINE)
NAMED = re.compile(r"`memplan ([^`\n]+)`")


def commands_of(page: str) -> list[str]:
    """What a page tells to type, in a fence or a sentence; the outputs that it shows are those of real runs."""
    text = build.BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8")).replace("\\\n", " ")
    fenced = [typed for fence in FENCE.findall(text) for typed in TYPED.findall(fence)]
    return [*fenced, *NAMED.findall(FENCE.sub("", text))]


@cache
def options_of(name: str) -> frozenset[str]:
    """Every option of a command."""
    group = whole_command()
    context = group.make_context("memplan", ["estimate"], resilient_parsing=True)
    context.meta["arguments"] = ["--help-all"]
    params = group.get_command(context, name).params
    own = {option for each in params for option in (*each.opts, *each.secondary_opts)}
    return frozenset(own | {"--help", "--help-all"})


@pytest.mark.slow
def test_every_command_of_a_page_is_one_that_memplan_has() -> None:
    """Its name and each of its options; whether it answers depends on files of the reader's."""
    said = [(page, command) for page in build.PAGES for command in commands_of(page)]
    assert len(said) > 100
    for page, command in said:
        name, *words = shlex.split(command.replace("…", ""))
        options = [word.partition("=")[0].strip(",.;") for word in words if re.match(r"--\w", word)]
        known = options_of(name.strip(".,;")) if not name.startswith("-") and name.islower() else frozenset(options)
        unknown = [each for each in options if f"--{spelling(each[2:])}" not in known and each not in known]
        assert unknown == [], (page, command)
