"""Proves that hosts on a board with their cards are as measured, graphs spare them, and two of a mesh one link."""

from typing import Any

import pytest

from memplan.cost import card, seconds
from memplan.cost.host import on_host
from memplan.cost.links import Group, gather, links, send
from memplan.cost.rates import EXPECTED
from memplan.errors import MemplanError
from memplan.gpus import find_gpu
from memplan.resolve import resolve
from memplan.spec.reading import read_job

MIXTURE: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "method": "sft",
    "trainer": "megatron",
    "sharding": "distributed-optimizer",
    "attention": "flash",
    "num_gpus": 8,
    "expert_parallel": 8,
    "sequence_length": 1024,
}


def took(gpu: str, **settings: Any) -> float:
    return seconds(resolve(read_job({**MIXTURE, "gpu": gpu, "megatron": settings})), card(find_gpu(gpu)))


def test_what_python_issues_takes_longer_on_grace_and_a_librarys_own_loop_does_not() -> None:
    there, here = (card(find_gpu(gpu)) for gpu in ("h100-80gb", "gb200-186gb"))
    slow, fast = (on_host(EXPECTED, on.host, on.chip) for on in (here, there))
    assert slow.launch / fast.launch == pytest.approx(37.08 / 13.48)
    assert slow.module < fast.module  # Transformer Engine's linears became quicker in between
    assert slow.looped == fast.looped


def test_graphs_spare_the_host() -> None:
    """All of an iteration more than attention and routing, and those more than none."""
    scoped = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"]}
    none, some = took("gb200-186gb"), took("gb200-186gb", **scoped)
    whole = took("gb200-186gb", cuda_graph_impl="full_iteration")
    assert whole < 0.8 * some < 0.8 * 0.9 * none
    assert (
        took("gb200-186gb", cuda_graph_impl="none", cuda_graph_scope="attn") == none
    )  # a scope alone captures nothing


def test_a_scope_that_is_none_is_refused() -> None:
    with pytest.raises(MemplanError, match="cuda_graph_scope"):
        took("gb200-186gb", cuda_graph_impl="local", cuda_graph_scope="experts")


@pytest.mark.parametrize(("gpu", "cards"), [("gh200-96gb", 4), ("mi300x-192gb", 8)])
def test_two_cards_of_a_mesh_have_one_link(gpu: str, cards: int) -> None:
    over = links(card(find_gpu(gpu)), EXPECTED)
    assert over.among(2) == pytest.approx(over.within / (cards - 1))
    assert over.among(cards) == over.within
    assert send(1e9, False, over) == pytest.approx(1e9 / over.among(2), rel=0.01)
    # rings of all cards' links together: each card's part goes to each of the others at once
    assert gather(1e9, Group(cards, cards), over) == pytest.approx(1e9 / cards * (cards - 1) / over.within, rel=0.05)


def test_a_switch_gives_two_cards_all_their_links() -> None:
    over = links(card(find_gpu("h100-80gb")), EXPECTED)
    assert over.among(2) == over.among(8) == over.within
