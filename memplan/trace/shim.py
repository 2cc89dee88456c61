"""What lets fake CUDA tensors live on a build of torch without CUDA: a small library, compiled once for each version.

It must be in the process before torch is imported, since torch looks for a device's hooks once. A CUDA build of torch
needs none of it. Where there is no compiler, the reason is kept and fake CPU tensors have to do (see ``device``)."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("shim.cpp")
COMPILERS = ("c++", "g++", "clang++")
COMPILE_SECONDS = 240
"""A patient limit: ten seconds is usual."""


class Shim(NamedTuple):
    """Whether fake CUDA tensors can be had, and if not, why."""

    works: bool
    reason: str = ""


_loaded: list[Shim] = []
"""At most one: a library is loaded once for each process."""


def load_shim() -> Shim:
    """Make fake CUDA tensors possible in this process, compiling at first use; says why where it cannot be."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def is_too_late() -> bool:
    """Whether torch was imported before it could be prepared."""
    folder = torch_folder()
    return not _loaded and "torch" in sys.modules and folder is not None and not has_cuda_build(folder)


def torch_folder() -> Path | None:
    """Where torch is installed, found without importing it."""
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def has_cuda_build(folder: Path) -> bool:
    """Whether this torch was built for CUDA (or for ROCm, which answers to the same name)."""
    return any((folder / "lib").glob("*torch_cuda*")) or any((folder / "lib").glob("*torch_hip*"))


def _load() -> Shim:
    folder = torch_folder()
    if folder is None:
        return Shim(False, "torch is not installed")
    if has_cuda_build(folder):
        return Shim(True)
    try:
        ctypes.CDLL(str(compiled(folder)), ctypes.RTLD_GLOBAL)
    except (OSError, subprocess.SubprocessError) as error:
        return Shim(False, " ".join(str(error).split())[:200])
    return Shim(True)


def compiled(folder: Path) -> Path:
    """The library for the torch in ``folder``, from the cache or made now.

    Raises OSError where there is no compiler or it fails."""
    key = hashlib.sha256(f"{metadata.version('torch')} {folder}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    path = cache_folder() / f"shim-{key}.so"
    if not path.is_file():
        _compile(folder, path)
    return path


def cache_folder() -> Path:
    """Where compiled libraries are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "memplan"


def _compile(folder: Path, path: Path) -> None:
    """Compile beside the final place and rename, so that no other process ever sees half a library."""
    compiler = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), *COMPILERS])), None)
    if compiler is None:
        raise OSError("no C++ compiler found (" + ", ".join(COMPILERS) + ")")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(handle)
    try:
        done = subprocess.run(
            command(compiler, folder, made), capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise OSError(f"{compiler} failed: {first}")
        os.replace(made, path)
    finally:
        Path(made).unlink(missing_ok=True)


def command(compiler: str, folder: Path, made: str) -> list[str]:
    """The compiler's command line: against the headers and libraries of the torch that will be imported."""
    headers = [f"-I{folder / 'include'}", f"-I{folder / 'include/torch/csrc/api/include'}"]
    libraries = [f"-L{folder / 'lib'}", f"-Wl,-rpath,{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    return [compiler, "-shared", "-fPIC", "-std=c++20", "-O0", *headers, str(SOURCE), "-o", made, *libraries]
