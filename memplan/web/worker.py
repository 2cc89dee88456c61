"""One process that answers: a line of JSON in; a line of status and length, then the answer, out; and so on."""

import gc
import json
import os
import sys

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
    from memplan.web.alone import keep_alone
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
