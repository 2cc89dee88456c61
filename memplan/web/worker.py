"""One process that answers: a line of JSON in; a line of status and length, then the answer, out; and so on. It may
touch its own folder, and the code and tables of Python and memplan."""

import gc
import json
import os
import sys

from memplan.mcp.within import READ_ANYWAY, downloads_dir, is_in, own_places, touched

PROGRAM = "import sys; sys.path[:] = filter(None, sys.path); from memplan.web.worker import main; main()"
"""What ``python -c`` runs of it: without the working directory among the places to import from."""
WARM = (
    {"job": {"model": "llama-3.1-8b", "method": "dpo", "gpu": "h100-80gb", "lora": {}}},
    {"job": {"model": "llama-3.1-8b", "method": "dpo", "gpu": "h100-80gb", "num_gpus": 8, "sharding": "zero3"}},
)
"""What is asked before anybody asks, so that the first answer is as quick as the next."""
COLLECTED_AFTER = 10
"""Answers from one look for garbage to the next: a play leaves 2 MB of blocks that know each other."""


def main() -> None:
    """Warm up, keep to the folder, answer. Arguments: the folder, and whether the Hub may be asked."""
    from memplan.web.answers import in_folder

    folder, hub = sys.argv[1], sys.argv[2] == "hub"
    if not hub:
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=os.path.join(folder, "no-hub"))
    keep_alone(folder, hub)
    for body in WARM:
        in_folder(folder, "estimate", json.dumps(body))
    gc.collect()
    gc.freeze()
    gc.disable()
    for number, line in enumerate(sys.stdin.buffer):
        request = json.loads(line)
        status, text = in_folder(folder, request["kind"], request["body"])
        data = text.encode()
        sys.stdout.buffer.write(b"%d %d\n%b" % (status, len(data), data))
        sys.stdout.buffer.flush()
        if number % COLLECTED_AFTER == 0:
            gc.collect()


OUTWARD = ("socket.connect", "socket.bind", "socket.getaddrinfo", "os.system", "os.exec", "os.posix_spawn")
MAY_START = ("nvidia-smi",)
"""Which says what card this machine has."""


def keep_alone(folder: str, hub: bool) -> None:
    """From now on this process opens no file elsewhere, reaches no network and starts no program: PermissionError, as
    if the system had refused it. ``hub``: but what the Hub takes."""
    folder, beyond = os.path.realpath(folder), [downloads_dir(), *READ_ANYWAY] if hub else []
    readable = (folder, os.devnull, *map(os.path.realpath, (*own_places(), *beyond)))
    writable = (folder, os.devnull, *([os.path.realpath(downloads_dir())] if hub else []))

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and os.path.basename(str(arguments[0])) not in MAY_START:
            raise PermissionError(1, "no program is started for a request")
        if event in OUTWARD and not hub:
            raise PermissionError(1, "no network for a request")
        path, changes = touched(event, arguments)
        allowed = writable if changes and "__pycache__" not in path else readable
        if path and not any(is_in(path, root) for root in allowed):
            raise PermissionError(13, "no file of this machine is opened for a request")

    sys.addaudithook(hook)
