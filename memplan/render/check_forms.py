"""The answers of ``memplan check`` in the forms that other programs show: GitHub, Markdown, JUnit, SARIF."""

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from memplan.errors import printable
from memplan.frameworks.checks.checking import Checked, placed
from memplan.render.data import escaped
from memplan.units import format_bytes

LEVELS = {"no": "error", "error": "error", "tight": "warning", "unclear": "warning"}
"""By verdict; the others are a notice."""
RULES = {
    "no": ("does-not-fit", "The job does not fit its card."),
    "tight": ("fits-tightly", "The job fits its card as expected, but not with the margin."),
    "unclear": ("unclear", "A key that decides memory is not understood."),
    "error": ("not-readable", "The file cannot be read as a training config."),
}
REMARK = ("not-counted", "A key is not counted, or something is assumed.")
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def said(each: Checked) -> str:
    """The answer in a line."""
    return printable(f"{each.text}{f' ({each.hint})' if each.hint else ''}")


def change(each: Checked) -> list[str]:
    """What makes it fit and the lines to write, where that was found."""
    return [printable(f"fits with {each.remedy}:"), *map(printable, each.write)] if each.remedy else []


def github(found: Sequence[Checked]) -> str:
    """GitHub's workflow commands: an annotation at the file's line for each answer and each warning."""
    lines = []
    for each in found:
        text = "\n".join([said(each), *change(each)])
        lines.append(_annotation(LEVELS.get(each.fits, "notice"), each.file, each.line, text))
        for warning in each.warnings:
            line, text = placed(warning, each.file)
            lines.append(_annotation("warning", each.file, line, text))
    return "".join(f"{line}\n" for line in lines)


def _annotation(level: str, file: str, line: int, text: str) -> str:
    place = _unsteered(file).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} file={place},line={line},title=memplan::{_unsteered(text)}"


def _unsteered(text: str) -> str:
    """As GitHub asks: percent signs and line ends; and as a terminal may show it."""
    return "%0A".join(printable(line) for line in text.replace("%", "%25").replace("\r", "%0D").split("\n"))


def markdown(found: Sequence[Checked]) -> str:
    """A line a file in a table; below it what each assumes and does not count, folded away."""
    judged = [each for each in found if each.fits != "skipped"]
    bad = sum(each.exit_code != 0 for each in judged)
    count = f"{len(judged)} training config{'' if len(judged) == 1 else 's'}"
    lines = [f"### memplan: {count}, " + (f"{bad} to change" if bad else "all fit") + "\n"]
    lines += ["| file | fits | needs | usable | on | |", "| --- | --- | ---: | ---: | --- | --- |"]
    lines += [_row(each) for each in found]
    return "\n".join([*lines, "", *(part for each in found for part in _details(each))])


def _row(each: Checked) -> str:
    figures = ["", ""]
    if each.usable_bytes:
        figures = [format_bytes(each.usable_bytes - each.headroom_bytes), format_bytes(each.usable_bytes)]
    cells = [each.name or each.file, f"**{each.fits}**", *figures, each.cards, said(each)]
    return "| " + " | ".join(cell if cell.startswith("**") else _cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return " ".join(escaped(text).split())


def _details(each: Checked) -> Iterator[str]:
    facts = [*(f"assumed: {text}" for text in each.assumed), *(f"warning: {text}" for text in each.warnings)]
    name = printable(each.name or each.file).replace("&", "&amp;").replace("<", "&lt;")
    if each.remedy:
        first, *rest = change(each)
        yield f"<details open><summary>{name}: {_cell(first)}</summary>\n\n```text"
        yield from rest
        yield "```\n</details>\n"
    if facts:
        yield f"<details><summary>{name}: what was assumed</summary>\n"
        yield from (f"- {_cell(fact)}" for fact in facts)
        yield "\n</details>\n"


def junit(found: Sequence[Checked]) -> str:
    """A test case a file: failed where it does not fit, in error where it is unclear or cannot be read."""
    from xml.etree import ElementTree

    kinds = {"no": "failure", "unclear": "error", "error": "error", "skipped": "skipped"}
    counts = {kind: sum(kinds.get(each.fits) == kind for each in found) for kind in ("failure", "error", "skipped")}
    suite = ElementTree.Element(
        "testsuite",
        name="memplan check",
        tests=str(len(found)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
        time="0",
    )
    for each in found:
        name = printable(each.name or each.file)
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": "memplan", "name": name, "file": printable(each.file), "line": str(each.line), "time": "0"},
        )
        kind = kinds.get(each.fits)
        if kind:
            body = "\n".join([said(each), *change(each)])
            ElementTree.SubElement(case, kind, message=said(each)).text = body if kind != "skipped" else None
        facts = [said(each), *(f"assumed: {text}" for text in each.assumed), *(f"warning: {t}" for t in each.warnings)]
        ElementTree.SubElement(case, "system-out").text = printable("\n".join(facts))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def sarif(found: Sequence[Checked]) -> str:
    """SARIF 2.1.0: a result for each file that does not surely fit, and for each warning."""
    from memplan import __version__

    rules = [*RULES.values(), REMARK]
    names = [name for name, _ in rules]
    results = []
    for each in found:
        if each.fits in RULES:
            name = RULES[each.fits][0]
            figures = {"device_bytes": each.device_bytes, "usable_bytes": each.usable_bytes}
            text = "\n".join([said(each), *change(each)])
            results.append(_result(names, name, LEVELS[each.fits], each.file, each.line, text, figures))
        for warning in each.warnings:
            line, text = placed(warning, each.file)
            results.append(_result(names, REMARK[0], "note", each.file, line, printable(text)))
    driver = {
        "name": "memplan",
        "version": __version__,
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in rules],
    }
    log = {"$schema": SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=2) + "\n"


def _result(
    names: Sequence[str], name: str, level: str, file: str, line: int, text: str, figures: dict[str, int] | None = None
) -> dict[str, Any]:
    place = {"artifactLocation": {"uri": quote(file.replace("\\", "/"))}, "region": {"startLine": max(1, line)}}
    found = {"ruleId": name, "ruleIndex": names.index(name), "level": level, "message": {"text": text}}
    return found | {"locations": [{"physicalLocation": place}]} | ({"properties": figures} if figures else {})


FORMS = {"github": github, "markdown": markdown, "junit": junit, "sarif": sarif}
