"""Versions of TRL, transformers, LLaMA-Factory, vLLM, bitsandbytes and PyTorch that a project pins: in requirements,
pyproject.toml, setup.py, environment files, or the lock of uv or Poetry; last by what its scripts, its Dockerfile and
its page install. A copy of a package that lies among them is what is imported.

What is installed decides what an argument means that is left out: TRL checkpoints activations by default from 0.22 on,
transformers loads in the checkpoint's dtype from 5 on. A lower bound says which it is not (``transformers>=``). The
file nearest to what is read is taken, of one folder a lock before the rest; of several lists the one that is called as
what is read (requirements-grpo.txt beside grpo/train.py), else the oldest version, which takes more, and is said."""

import os
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from functools import lru_cache
from pathlib import Path

from memplan.frameworks.files.sourced import project_of
from memplan.tables.trainer import version_key

NAMES = ("uv.lock", "poetry.lock", "requirements.txt", "pyproject.toml", "setup.py", "setup.cfg")
_ALSO = re.compile(r"([\w.-]*requirements[\w.-]*\.txt|environment[\w.-]*\.ya?ml|requirements/[\w.-]+\.txt)")
_ASCEND = re.compile(r"(?i)[-_]npu|ascend")
"""Of another device's PyTorch: LLaMA-Factory's extra ``"torch-npu": ["torch==2.1.0", …]``."""
_INSTALLS = re.compile(r"[\w.-]+\.(?:sh|bash|slurm|sbatch)|Dockerfile|README\.md")
MOST_INSTALLING = 60
"""Scripts of one folder that are looked into."""
MAX_BYTES = 4 * 1024 * 1024
_OF = "(trl|transformers|llamafactory|vllm|bitsandbytes|torch)"
_LOCKED = re.compile(rf'^name = "{_OF}"\nversion = "(\d[\w.]*)"', re.MULTILINE)
_NEEDED = re.compile(
    rf"^[ \t\"'-]*{_OF}(?:\[[\w,\s-]*\])?\s*\(?((?:(?:==?|~=|<=|>=|<|>|!=)\s*\d[\w.*]*\s*,?\s*)+)", re.MULTILINE
)
_OF_GIT = re.compile(r"git\+https://github\.com/huggingface/(trl|transformers)(?:\.git)?(?![\w/-])(?:@v(\d[\w.]*\w))?")
"""Of a release's tag, or of none: a commit, or the branch of that day."""
_LISTED = re.compile(rf"[\"']{_OF}(?:\[[\w,\s-]*\])?\s*\(?((?:(?:==|~=|<=|>=|<|>|!=)\s*\d[\w.*]*\s*,?\s*)+)\)?[\"';]")
"""Of a list on one line: ``install_requires=["torch", "trl==0.11.4"]``; Poetry writes ``"trl (==0.11.4)"``."""
_INSTALLED = re.compile(rf"\b{_OF}(?:\[[\w,]+\])?\s*==\s*v?(\d[\w.]*\w)")
_POETRY = re.compile(rf"^{_OF}\s*=\s*(?:\{{[^}}\n]*version\s*=\s*)?\"([~^=]{{0,2}})(\d[\w.]*)", re.MULTILINE)


def pinned(path: str, package: str) -> tuple[str, str]:
    """(version, the file that pins it) of a package in the project around a file; empty where none does. Without a pin
    of its own TRL is the last that takes the transformers that is pinned."""
    here = Path(path).resolve().parent
    top = project_of(here)
    for folder in (here, *here.parents):
        if found := pins_of(str(folder)).get(package):
            return _fitting(found, Path(path).resolve().relative_to(folder))
        if folder == top:
            break
    beneath, whose = pinned(path, "transformers") if package == "trl" else ("", "")
    last = next((last for first, last in TRL_OF if beneath and version_key(beneath) < version_key(first)), "")
    return (last, f"{whose} (transformers {beneath})") if last else ("", "")


OF_LISTS = ", the oldest of several lists,"
"""Behind a list's name: nothing says which of them is meant."""
_WORDS = re.compile(r"(?<![a-z])(?!requirements|environment|txt|ya?ml)[a-z]+")


def _fitting(several: list[tuple[str, str]], path: Path) -> tuple[str, str]:
    """Of what a folder's files pin, strongest first: the list called as the file is, or as a folder around it."""
    first, lists = several[0], [each for each in several if _ALSO.fullmatch(os.path.basename(each[1]))]
    for part in reversed(path.parts if not first[1].endswith(".lock") else ()):
        words = {*_WORDS.findall(part.lower())}
        if mine := [each for each in lists if words & {*_WORDS.findall(os.path.basename(each[1]).lower())}]:
            return mine[0]
    unclear = first in lists and len({version for version, _ in lists}) > 1
    return (first[0], f"{first[1]}{OF_LISTS}") if unclear else first


TRL_OF = (("4.46", "0.11"), ("4.50", "0.17"), ("4.51", "0.18"), ("4.53", "0.19"), ("4.55", "0.20"), ("4.56", "0.22"))
"""Below this transformers, the last TRL that installs with it (trl 0.12 to 0.23 setup.py, setup.cfg)."""


@lru_cache(maxsize=256)
def pins_of(folder: str) -> dict[str, list[tuple[str, str]]]:
    """By package, the versions that the files of one folder pin, and the file of each: the strongest first."""
    try:
        here = set(os.listdir(folder))
        inner = os.path.join(folder, "requirements")
        here |= {f"requirements/{name}" for name in os.listdir(inner)} if os.path.isdir(inner) else set()
    except OSError:
        return {}
    lists = sorted(name for name in here - set(NAMES) if _ALSO.fullmatch(name) and not _ASCEND.search(name))
    found = _copied(folder, here)
    installing = sorted(name for name in here if _INSTALLS.fullmatch(name))[:MOST_INSTALLING]
    for names in (*((name,) for name in NAMES if name in here), lists, installing):
        read = [(pin, os.path.join(folder, name)) for name in names for pin in _of_file(os.path.join(folder, name))]
        for (package, version), path in sorted(read, key=lambda each: version_key(each[0][1])):
            found.setdefault(package, []).append((version, os.path.relpath(path)))
    return found


_NUMBER = re.compile(r"(\d[\w.]*)")
_OWN = re.compile(r"^__version__ = [\"'](\d[\w.]*)[\"']", re.MULTILINE)


def _copied(folder: str, here: set[str]) -> dict[str, list[tuple[str, str]]]:
    """Of packages that lie in a folder, or in a checkout there, what they say of themselves: ``__version__``, or the
    file VERSION that TRL has beside its code from 0.20 on."""
    found: dict[str, list[tuple[str, str]]] = {}
    for package in here & {"trl", "transformers"}:
        for root in (Path(folder), Path(folder, package)):
            code = root / package / "__init__.py"
            text = code.read_text("utf-8", "replace") if code.is_file() else ""
            files = (root / package / "VERSION", root / "VERSION") if re.search(r"VERSION|version\(", text) else ()
            said = _OWN.search(text) or next(
                (_NUMBER.match(each.read_text()) for each in files if each.is_file()), None
            )
            if said:
                found.setdefault(package, [(said[1], os.path.relpath(code))])
    return found


def _of_file(path: str) -> list[tuple[str, str]]:
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_BYTES:
        return []
    written = Path(path).read_bytes()
    encoding = "utf-16" if written[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8"  # PowerShell's ``pip freeze >``
    return _versions(written.decode(encoding, "replace").replace("\r\n", "\n"), os.path.basename(path))


def _versions(text: str, name: str) -> list[tuple[str, str]]:
    if name.endswith(".lock"):
        return _LOCKED.findall(text)
    if _INSTALLS.fullmatch(name):
        commands = text.replace("\\\n", " ").splitlines() if "install" in text else ()
        return [pin for line in commands if "install " in line for pin in _INSTALLED.findall(line)]
    lines = "\n".join(line for line in text.splitlines() if not (line.lstrip().startswith("#") or _ASCEND.search(line)))
    specs = [found for each in (_NEEDED, _LISTED) for found in each.findall(lines)]
    needed = [(package, _newest(spec, package)) for package, spec in specs]
    needed += [(f"{package}>=", least[1]) for package, spec in specs if (least := re.search(r">=\s*(\d[\w.]*)", spec))]
    needed += [(package if tag else f"{package}@", tag or "git") for package, tag in _OF_GIT.findall(lines)]
    dotted = [(package, sign, version) for package, sign, version in _POETRY.findall(lines)]
    exact = [(package, version) for package, sign, version in dotted if sign != "^" or version.startswith("0.")]
    return [(package, version) for package, version in (*needed, *exact) if version]


LAST_OF = {"transformers 4": "4.57", "trl 0": "0.29"}


def _newest(spec: str, package: str) -> str:
    """The newest version that a requirement lets in, where it names it, or the first that is too new: ``==0.11.4``,
    ``~=4.40``, ``>=0.8,<=0.9.6``, ``>=0.15,<0.16``."""
    found = re.search(r"(?:(?<![<>!=~])={1,2}|~=|<=)\s*(\d[\w.]*\w)", spec)
    below = None if found else re.search(r"<\s*(\d+(?:\.\d+)*)", spec)
    if below is None:
        return found.group(1) if found else ""
    parts = [int(part) for part in below.group(1).split(".")]
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    before = ".".join(str(part) for part in (*parts[:-1], max(parts[-1] - 1, 0)))
    return before if len(parts) > 1 else LAST_OF.get(f"{package} {before}", f"{before}.99")
