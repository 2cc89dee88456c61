"""The command line run in this process, as several tests do."""

from collections.abc import Callable

import pytest

from memplan.cli.app import main

Run = Callable[..., tuple[int, str, str]]
"""Arguments -> exit code, standard output, standard error."""


def runner_of(capsys: pytest.CaptureFixture[str], *command: str) -> Run:
    """Runs ``command`` with further arguments."""

    def runner(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*command, *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return runner
