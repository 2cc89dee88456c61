"""Proves that the library, as the command line, tells by name what it was given in error."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import memplan
from memplan.errors import MemplanError

JOB = {"model": "llama-3.1-8b", "method": "sft", "gpu": "h100-80gb"}
WRONG: dict[str, Callable[[Any], object]] = {
    "a job is a mapping of keys, not int": lambda api: api.estimate(5),
    "a model is a name or a config, not int": lambda api: api.load_model(5),
    "vary is keys with their values, not int": lambda api: api.compare(JOB, vary=5),
    "what varies is no key with a list of values": lambda api: api.compare(JOB, vary={5: [1]}),
    "strategies is the path of a file, not int": lambda api: api.compare(JOB, strategies=5),
    "allow is a list of names, not int": lambda api: api.plan(JOB, allow=5),
    "ask is a list of names, not list": lambda api: api.plan(JOB, ask=[5]),
    "--allow: unknown change 'flora'": lambda api: api.plan(JOB, allow="flora"),
}


@pytest.mark.parametrize(("said", "call"), WRONG.items(), ids=WRONG)
def test_what_is_no_argument_is_told_in_words(said: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(MemplanError) as caught:
        call(memplan)
    assert caught.value.message.startswith(said)
    assert caught.value.hint


def test_the_first_job_of_a_process_is_written_out() -> None:
    """Groups of keys that nobody gave have no schema before it."""
    program = "from memplan import Job; print(Job(model='qwen3-8b', lora={'r': 8}).model_dump(mode='json')['fsdp'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("{")
