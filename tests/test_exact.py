"""Proves that ``--exact`` says what it needs, where torch is not installed or nothing names a model."""

import importlib.util

import pytest

from memplan.cli.app import main
from memplan.errors import EXIT_USAGE


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["estimate", "llama-3.2-1b", "--exact"]) == EXIT_USAGE
    shown = capsys.readouterr().err
    assert "--exact needs torch and transformers" in shown
    assert 'pip install "memplan[trace]"' in shown


def test_it_needs_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--total-params", "8B", "--exact"]) == EXIT_USAGE
    assert "--exact needs a model" in capsys.readouterr().err
