"""The environment's word on PyTorch's allocator, as every framework's launch may give it."""

from collections.abc import Mapping

from memplan.frameworks.draft import FILE, Draft, Origin
from memplan.spec.allocator import VARIABLES, read_conf


def put_allocator(environment: Mapping[str, str], where: str, draft: Draft) -> None:
    """The job's ``allocator``; what is not modelled is warned of, and decides a little."""
    name = next((name for name in VARIABLES if environment.get(name)), None)
    if name is None:
        return
    found, unread = read_conf(environment[name])
    if found:
        draft.put("allocator", found, Origin(FILE, f"{where}: {name}"))
    for text in unread:
        draft.warn(name, where, f"{text[:60]} is not modelled: the reserved figure does not feel it", decides="")
