"""The page without a server: a folder of files in which the engine itself runs in the browser, and no data leaves it.

``python -m memplan.web.build DIR`` takes Python for browsers (Pyodide) from its npm package and pydantic-core's wheel
for it from PyPI, or from where ``--pyodide`` and ``--core`` say; what else memplan needs is pure Python and taken from
where it is installed. Typer, Rich and the Hub's client stay out. Needs node, and npm unless ``--pyodide`` is given."""

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import files, version
from pathlib import Path

from memplan.errors import EXIT_DONE, MemplanError, UsageError
from memplan.presets import presets_dir
from memplan.web.page import MAKERS, index, page_file

PYODIDE = "314.0.7"
PYTHON, PLATFORM = "3.14", "pyemscripten_2026_0_wasm32"
PACKAGE = Path(__file__).resolve().parents[1]
PURE = ("pydantic", "annotated-types", "typing-extensions", "typing-inspection", "PyYAML")
"""What memplan imports beside itself, all of it Python."""
UNUSED = ("v1", "mypy.py")
"""Of it, what no import reaches."""
LEFT = ("cli", "callback", "trace", "torch", "__main__.py", "mcp/server.py", "mcp/worker.py")
"""Of memplan, what a browser has no use for; of its page, what a server needs."""
LEFT_OF_WEB = ("server.py", "serving.py", "lanes.py", "alone.py", "build.py", "page.py", "fields.py", "static")
OF_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
OWN = ("engine.js", "engined.js", "kept.js")
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'none'; base-uri 'none'"
)


def build(folder: Path, pyodide: Path | None = None, core: Path | None = None) -> None:
    """Write the site into a folder, which is made. Raises UsageError where something for it is not to be had."""
    if folder.exists() and any(folder.iterdir()) and not (folder / "engine.bin").exists():
        raise UsageError(f"{folder} holds something else", "name a new folder")
    with tempfile.TemporaryDirectory() as rest:
        scratch = Path(rest)
        python = unpacked(pyodide or packed(scratch), scratch)
        wheel = core or downloaded(scratch)
        (folder / "pyodide").mkdir(parents=True, exist_ok=True)
        for name in OF_PYODIDE:
            shutil.copyfile(python / name, folder / "pyodide" / name)
        with zipfile.ZipFile(scratch / "source.zip", "w") as archive:
            for name, data in engine_files(wheel):
                archive.writestr(name, data)
        compiler = PACKAGE / "web" / "static" / "compile.mjs"
        done(["node", str(compiler), str(python), str(scratch / "source.zip"), str(folder)])
    for name in MAKERS:
        found = page_file(name)
        assert found is not None
        (folder / name).write_bytes(found[0])
    (folder / "fetched.js").unlink()
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    (folder / "index.html").write_text(index("engined.js").replace("<!-- policy -->", policy), encoding="utf-8")
    for name in OWN:
        (folder / name).write_text((PACKAGE / "web" / "static" / name).read_text(encoding="utf-8"), encoding="utf-8")
    _keep_all(folder)


def _keep_all(folder: Path) -> None:
    """Tell the service worker what there is to keep, and of which content."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    kept = folder / "kept.js"
    digest = hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]
    text = kept.read_text(encoding="utf-8").replace("DIGEST", digest)
    named = json.dumps(["./", *(name for name in names if name != "kept.js")])
    kept.write_text(text.replace("NAMES = []", f"NAMES = {named}"), encoding="utf-8")


def engine_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of what the browser's Python imports and reads."""
    for package in PURE:
        for each in files(package) or ():
            if each.suffix == ".py" and not {"..", *UNUSED} & set(each.parts):
                yield each.as_posix(), Path(str(each.locate())).read_bytes()
    for path in sorted(PACKAGE.rglob("*")):
        name = path.relative_to(PACKAGE).as_posix()
        left = (*LEFT, *(f"web/{each}" for each in LEFT_OF_WEB), "_presets")
        if (
            path.is_file()
            and "__pycache__" not in name
            and not any(name == x or name.startswith(f"{x}/") for x in left)
        ):
            yield f"memplan/{name}", path.read_bytes()
    for path in sorted(presets_dir().rglob("*")):
        name = path.relative_to(presets_dir()).as_posix()
        if path.is_file() and not name.startswith("measurements/"):
            yield f"memplan/_presets/{name}", path.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith((".pyi", "/")):
                yield name, archive.read(name)


def packed(scratch: Path) -> Path:
    """Pyodide's npm package, fetched."""
    done(["npm", "pack", "--silent", f"pyodide@{PYODIDE}"], scratch)
    return scratch / f"pyodide-{PYODIDE}.tgz"


def unpacked(place: Path, scratch: Path) -> Path:
    """The folder of Pyodide's files, of a package or of a folder that is named."""
    if place.is_file():
        named, place = place, scratch / "npm"
        place.mkdir()
        with tarfile.open(named) as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member)  # None of what is no plain file
                if content is not None:
                    (place / Path(member.name).name).write_bytes(content.read())  # the package has no folders
    missing = [name for name in OF_PYODIDE if not (place / name).is_file()]
    if missing:
        raise UsageError(f"{place}: no {missing[0]} there", "name what npm pack pyodide writes, or its folder unpacked")
    return place


def downloaded(scratch: Path) -> Path:
    """The wheel of pydantic-core for the browser's Python, of the version that the installed pydantic asks for."""
    wanted = f"pydantic-core=={version('pydantic-core')}"
    tags = ["--python-version", PYTHON, "--implementation", "cp", "--abi", "cp314", "--platform", PLATFORM]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done([*pip, *tags, "--dest", str(scratch), wanted])
    return next(scratch.glob("pydantic_core-*.whl"))


def done(command: Sequence[str], folder: Path | None = None) -> None:
    """Run a program. Raises UsageError where it fails or is not there."""
    try:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"{command[0]} is not on this machine", f"install {command[0]}, or see --help") from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines()
        why = next(
            (line for line in reversed(said) if "error" in line.lower()), said[-1] if said else "no reason given"
        )
        raise UsageError(f"{Path(command[0]).name} failed: {why[:200]}", "see --help for what can be given as a path")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    words = argparse.ArgumentParser(prog="python -m memplan.web.build", description="The page without a server.")
    words.add_argument("folder", type=Path, metavar="DIR", help="where to write the site")
    words.add_argument("--pyodide", type=Path, metavar="PATH", help="Pyodide's npm package, or its folder")
    words.add_argument("--core", type=Path, metavar="WHEEL", help=f"pydantic-core's wheel for {PLATFORM}")
    given = words.parse_args(arguments)
    try:
        build(given.folder, given.pyodide, given.core)
    except MemplanError as error:
        sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
        return error.exit_code
    size = sum(path.stat().st_size for path in given.folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{given.folder}: {size / 1e6:.1f} MB; serve it with python -m http.server -d {given.folder}\n")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
