"""What a process that answers requests may touch: its own folder, and the code and tables of Python and memplan."""

import os
import sys

from memplan.mcp.within import CHANGES, READ_ANYWAY, READS, WRITES, downloads_dir, is_in, own_places

OUTWARD = ("socket.connect", "socket.bind", "socket.getaddrinfo", "os.system", "os.exec", "os.posix_spawn")
MAY_START = ("nvidia-smi",)
"""Which says what card this machine has."""


def keep_alone(folder: str, hub: bool) -> None:
    """From now on this process opens no file elsewhere, reaches no network and starts no program: PermissionError, as
    if the system had refused it. ``hub``: but what the Hub takes.
    """
    folder, beyond = os.path.realpath(folder), [downloads_dir(), *READ_ANYWAY] if hub else []
    readable = (folder, os.devnull, *map(os.path.realpath, (*own_places(), *beyond)))
    writable = (folder, os.devnull, *([os.path.realpath(downloads_dir())] if hub else []))

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and os.path.basename(str(arguments[0])) not in MAY_START:
            raise PermissionError(1, "no program is started for a request")
        if event in OUTWARD and not hub:
            raise PermissionError(1, "no network for a request")
        if event not in READS + CHANGES or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        flags = arguments[2] if event == "open" else 0
        changes = event in CHANGES or (isinstance(flags, int) and bool(flags & WRITES))
        if changes and "__pycache__" in path:
            changes = False
        if not any(is_in(path, root) for root in (writable if changes else readable)):
            raise PermissionError(13, "no file of this machine is opened for a request")

    sys.addaudithook(hook)
