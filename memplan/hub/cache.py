"""The Hugging Face cache, read directly, so that a cached model costs no import of huggingface_hub.

Layout (huggingface_hub's "Understand caching" guide)::

    $HF_HUB_CACHE/models--{organisation}--{name}/refs/{branch or tag}        holds a commit
    $HF_HUB_CACHE/models--{organisation}--{name}/snapshots/{commit}/{file}   the file, or a link to its blob"""

import errno
import os
import re
from pathlib import Path

_COMMIT = re.compile(r"[0-9A-Za-z]{1,64}")
DEFAULT_REVISION = "main"


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads, by the same variables in the same order as its constants.py."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(folder)))


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The folder of the commit that a branch, tag or commit was last seen at; None when it is not cached."""
    repository = _repository(repo_id)
    commit = _commit_of(repository, revision or DEFAULT_REVISION)
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and _is_there(snapshot) else None


def cached_file(repo_id: str, filename: str, revision: str | None) -> Path | None:
    """The path of a cached file; None when it is not there (a link to a deleted blob is not)."""
    snapshot = cached_snapshot(repo_id, revision)
    return snapshot / filename if snapshot and _is_there(snapshot / filename) else None


def cached_models() -> list[str]:
    """Repositories whose config.json is cached at some revision, in order of their names."""
    repositories = [
        folder
        for folder in _listing(cache_folder())
        if folder.name.startswith("models--")
        and any(_is_there(snapshot / "config.json") for snapshot in _listing(folder / "snapshots"))
    ]
    return [repository.name.removeprefix("models--").replace("--", "/") for repository in repositories]


def cached_revisions(repo_id: str) -> list[str]:
    """Branches and tags, else commits, at which this repository's config.json is cached."""
    repository = _repository(repo_id)
    refs = repository / "refs"
    try:
        names = sorted(path.relative_to(refs).as_posix() for path in refs.rglob("*") if path.is_file())
    except OSError:
        names = []
    names = [name for name in names if cached_file(repo_id, "config.json", name)]
    commits = [snapshot.name for snapshot in _listing(repository / "snapshots")]
    return names or [commit for commit in commits if cached_file(repo_id, "config.json", commit)]


def _repository(repo_id: str) -> Path:
    """The cache folder of a repository."""
    return cache_folder() / ("models--" + repo_id.replace("/", "--"))


def _commit_of(repository: Path, revision: str) -> str:
    """The commit of a revision: a commit names itself, a branch or tag is looked up; '' when it cannot be told.

    Raises OSError for a pipe or a device in the place of the file, for which huggingface_hub would wait."""
    if {"", ".", ".."} & set(revision.split("/")):
        return ""
    ref = repository / "refs" / revision
    if _is_there(ref) and not (ref.is_file() or ref.is_dir()):
        raise OSError(errno.EINVAL, f"{ref} is no regular file")
    try:
        commit = ref.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        commit = revision
    return commit if _COMMIT.fullmatch(commit) else ""


def _is_there(path: Path) -> bool:
    """Whether a path exists and can be looked at."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _listing(folder: Path) -> list[Path]:
    """What a folder holds, sorted; nothing when it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
