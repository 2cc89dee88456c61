"""Proves that the bound of a loss of a program's own is no less than what real torch holds when it runs."""

from typing import Any

import pytest
import torch
from own_loss_cases import HEAD, INIT, LOSSES, TAIL, source
from transformers import Qwen2Config, Qwen2ForCausalLM

from memplan.frameworks.files.documents import document_of
from memplan.frameworks.programs.follow import followed, trainings
from memplan.frameworks.programs.losses.bound import Found, of_method
from memplan.frameworks.programs.run import Known
from memplan.trace.tracker import Tracker

ROWS, LENGTH, WORDS, WIDTH = 4, 64, 8192, 16
LARGE = ROWS * (LENGTH - 1) * WORDS
"""Bytes from which on a tensor is as large as logits."""
STANDS = HEAD.replace(" Trainer,", "") + "class Trainer:\n    def __init__(self, *args, **kw): ...\n"


def found_in(name: str) -> Found:
    run = followed(document_of(HEAD + source(name) + TAIL, f"{name}.py", "python"), Known())
    (trainer,) = trainings(run)
    method = trainer.own.method("compute_loss") if trainer.own else None
    assert method is not None
    return of_method(run, trainer, method, [trainer.values["model"]], inherited=True, small=False)


def held_by(name: str, dtype: torch.dtype, autocast: bool) -> float:
    """The most bytes at once in tensors as large as logits, these and their gradient among them, for each logit."""
    names: dict[str, Any] = {}
    exec(STANDS + source(name), names)
    config = Qwen2Config(vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=False)  # fmt: skip
    model, teacher = (Qwen2ForCausalLM(config).to(dtype) for _ in range(2))
    trainer = names["Own"](teacher=teacher.requires_grad_(False))
    ids = torch.randint(0, WORDS, (ROWS, LENGTH))
    mask = torch.ones_like(ids)
    whole = {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}
    inputs = {"input_ids_a": ids, "mask_a": mask, "input_ids_b": ids.clone(), "mask_b": mask}
    tracker = Tracker("cpu")
    with tracker, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = trainer.compute_loss(model, dict(whole if "(**inputs" in LOSSES[name] else inputs))
        with torch.autocast("cpu", enabled=False):
            loss.backward()
    live = most = 0
    for size, block in tracker.ledger.events:
        live += size if block.bytes >= LARGE else 0
        most = max(most, live)
    return most / (ROWS * LENGTH * WORDS)


@pytest.mark.parametrize("name", LOSSES)
def test_no_less_is_counted_than_is_held(name: str) -> None:
    found = found_in(name)
    for dtype, autocast in ((torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)):
        held, itemsize = held_by(name, dtype, autocast) / found.rows, dtype.itemsize
        assert found.logits + 2 * itemsize >= held - 0.01, (dtype, autocast)
        if dtype is torch.float32:
            assert found.logits + 2 * itemsize <= 2.5 * held


def test_what_is_measured_can_fail() -> None:
    """A plain cross-entropy in fp32: logits, log-softmax, and the gradient of either."""
    assert INIT in source("smoothed")
    assert held_by("smoothed", torch.float32, False) == pytest.approx(12, rel=0.1)
