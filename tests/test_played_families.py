"""Proves that the steps of models whose layers read more than the residual stream are played as they run: the play's
phases are those of traces of the real classes (benchmarks/data).
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.engine.play.step import Player
from memplan.engine.tensors import model_weights
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job

DATA = Path(__file__).parent.parent / "benchmarks" / "data"
TRACED = {
    "unseen-2032-006": "recurrences, selective",
    "unseen-2033-042": "recurrences, every second layer checkpointed",
    "unseen-2033-083": "blocks that share weights",
    "unseen-2033-019": "Gemma 4",
    "unseen-2033-055": "Gemma 3n, reentrant",
    "unseen-2033-102": "Gemma 4, reentrant, adapters",
    "unseen-2043-025": "Gemma 4, reentrant, all trained",
    "ranks-2033-085": "Gemma 3n, FSDP2",
    "ranks-12-017": "both stacks of mT5, adapters under autocast",
    "ranks-12-136": "both stacks of mT5, checkpointed",
    "ranks-2033-056": "routers' logits in a recomputation",
}
ZAMBA: dict[str, Any] = {
    "model_type": "zamba2", "vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 6,
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 16,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_mem_blocks": 1, "use_shared_attention_adapter": True,
    "adapter_rank": 8, "use_mem_rope": True, "tie_word_embeddings": True,
}  # fmt: skip
BERT: dict[str, Any] = {
    "model_type": "deberta-v2", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm", "position_buckets": 64, "share_att_key": True, "max_position_embeddings": 512,
}  # fmt: skip


def phases(job: dict[str, Any]) -> dict[str, int]:
    """The most bytes alive in each phase of a play's second step."""
    events = step_events(resolve(read_job(job)))
    assert events is not None
    found, live, phase = Counter[str](), 0, ""
    marks = {at: name.rsplit(".", 1)[1] for at, name in events.marks if "." in name and "evaluation" not in name}
    for at, (_, size) in enumerate(events.events):
        phase = {"optimizer": "step"}.get(marks[at], marks[at]) if at in marks else phase
        live += size
        if at >= events.start:
            found[phase] = max(found[phase], live)
    return dict(found)


def traced(name: str) -> dict[str, Any]:
    """A row of a round."""
    rows: list[dict[str, Any]] = json.loads((DATA / f"{name.rsplit('-', 1)[0]}.json").read_text())["rows"]
    return next(row for row in rows if row["id"] == name)


@pytest.mark.parametrize("name", TRACED, ids=TRACED.get)
def test_the_play_is_the_trace(name: str) -> None:
    row = traced(name)
    found = phases(row["job"])
    for phase, measured in row["measured"]["phases"].items():
        assert found[phase] == pytest.approx(measured, rel=5e-4), phase


BY_LEDGER = {
    "unseen-2043-022": "copies of weights are gone when logits are copied for the log",
    "unseen-2043-025": "keys that reentrant checkpoints made again",
    "unseen-2043-028": "keys that a reference hands on",
    "ranks-2043-012": "Apertus's activation",
    "ranks-2043-017": "a reference that scores mismatched completions too",
    "ranks-2043-019": "FSDP1 adds up the gradients of two forwards where each gathers anew in another dtype",
    "ranks-2043-022": "FSDP1 over three ranks, reduced in the dtype of the weights",
    "ranks-2043-039": "FSDP1 puts the first layer's gradient together at the end of each graph",
    "unseen-2044-018": "hidden states are there in half precision until all are copied to fp32",
    "ranks-2044-010": "a metric's entropies under autocast",
    "ranks-2044-019": "FSDP2 wraps FalconMamba's mixers too, so that norms alone are gathered ahead",
    "ranks-2044-024": "accelerate stores flat parameters in fp32 of which a bias trains",
    "ranks-2049-032": "norms of FalconMamba's layers, which are units, let go of what is gathered and reduced before",
    "ranks-2045-014": "each of two forwards has its own gradient of FSDP1's root, which was whole in between",
    "ranks-2045-015": "FSDP1 lets go of what accumulated when the base has run as the reference",
    "ranks-2045-039": "layers of Gemma 4's audio tower, which nothing gathers",
    "ranks-2051-014": "FSDP1 without original parameters pads a copy of what three ranks do not share evenly",
    "unseen-2051-024": "stacked experts that autocast does not cast: gradients of two forwards meet at the weight",
    "unseen-2051-012": "hidden states that a reference's outputs hold stand beside the head's product",
    "ranks-2042-041": "FSDP2's last all-gather is gone when logits are copied for the log",
}


@pytest.mark.parametrize("name", BY_LEDGER, ids=BY_LEDGER.get)
def test_the_ledger_is_the_trace(name: str) -> None:
    row = traced(name)
    found = build_report(resolve(read_job(row["job"])), False).per_gpu.phases
    for phase, measured in row["measured"]["phases"].items():
        assert found[phase] == pytest.approx(measured, rel=1e-3), phase


KEYS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_checkpointing_reentrant": False},
    {"lora": {"r": 8}},
    {"freeze": ["layers.0"]},
)


@pytest.mark.parametrize(
    ("model", "method", "keys"),
    [
        *(each for keys in KEYS for each in ((ZAMBA, "sft", keys), (BERT, "reward", keys))),
        *((model, "sft", keys) for model in ("flan-t5-small", "bart-base") for keys in KEYS[:3]),
    ],
)
def test_every_weight_gets_its_gradient(model: dict[str, Any] | str, method: str, keys: dict[str, Any]) -> None:
    """Modules of one name and size (lists, ``intermediate.dense`` and ``output.dense``) are told apart; a block that
    several layers apply is one."""
    recipe = resolve(read_job({"model": model, "method": method, "sequence_length": 128, **keys}))
    player, found = Player(recipe), Counter[str]()
    player.sharding.step = lambda steps: found.update(param.name for param in player.tape.stored)  # type: ignore[method-assign]
    player.steps(1)
    trained = Counter[str]()
    for weight in model_weights(recipe.model, recipe.adapter is None, recipe.adapter):
        trained[weight.name] += weight.copies * weight.trained
    assert {name: count for name, count in trained.items() if count and not name.startswith("conv.")} == dict(found)


@pytest.mark.parametrize("keys", [{"gradient_checkpointing": "none"}, {"gradient_checkpointing": "full"}])
def test_a_table_of_all_layers_is_there(keys: dict[str, Any]) -> None:
    job = {"model": BERT, "method": "reward", "sequence_length": 256, **keys}
    ledger = build_ledger(resolve(read_job(job)))
    assert phases(job)["backward"] == pytest.approx(max(ledger.totals()[2:-1]), rel=2e-3)


@pytest.mark.parametrize("keys", [{}, {"padded": True, "lora": {"r": 8}}, {"gradient_checkpointing": True}])
@pytest.mark.parametrize("model", ["flan-t5-small", "bart-base"])
def test_both_stacks_are_played(model: str, keys: dict[str, Any]) -> None:
    job = {"model": model, "method": "sft", "sequence_length": 512, "completion_length": 128, **keys}
    ledger = build_report(resolve(read_job(job))).per_gpu.phases
    for phase, size in phases(job).items():
        assert size == pytest.approx(ledger[phase], rel=1e-3), phase
