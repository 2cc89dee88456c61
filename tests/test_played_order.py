"""Proves the order in which a play makes and lets go of things, which decides how the allocator's blocks lie: names as
the framework's code holds them, kernels' own memory, the streams and events of FSDP1."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from memplan.engine.allocator.caching import CachingAllocator
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.figures import PLAYED_RANKS, Room, played, ranks_of
from memplan.engine.allocator.replay import ELSEWHERE, StepEvents, play
from memplan.engine.allocator.reserved import Unplayed
from memplan.engine.build import build_ledger
from memplan.engine.parallel.fsdp1.flat_parameters import fullest, stepped_by
from memplan.engine.play.other_ranks import ran_ahead
from memplan.engine.play.resident import in_order
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.wrapping import Loaded, _buckets, _wait
from memplan.engine.step_and_evaluation import evaluation_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.units import MiB

TINY: dict[str, Any] = {
    "model_type": "mistral", "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
OLDER = {"trainer": "transformers", "trainer_version": "4.45", "precision": "bf16", "gradient_checkpointing": "full"}
FSDP1: dict[str, Any] = {**OLDER, "num_gpus": 4, "sharding": "fsdp", "precision": "bf16-amp", "attention": "flash"}


WIDE = {**TINY, "hidden_size": 2048, "intermediate_size": 8192}
PACKED: dict[str, Any] = {
    **FSDP1, "precision": "bf16", "autocast": True, "model": WIDE, "lora": {"r": 8}, "quantization": "nf4",
}  # fmt: skip


def recipe(**keys: Any) -> Recipe:
    job = {"model": TINY, "method": "sft", "batch_size": 2, "sequence_length": 512, "gpu": "a100-80gb", **keys}
    return resolve(read_job(job))


def recorded(**keys: Any) -> StepEvents:
    found = step_events(recipe(**keys))
    assert found is not None
    return found


def named(events: StepEvents) -> Iterator[str]:
    """Each event as + or - and the label of its storage."""
    return (("+" if size > 0 else "-") + events.tags[number].label for number, size in events.events)


def before(events: StepEvents, first: str, second: str, start: str) -> bool:
    """Whether one comes before another, from the first event of a name on."""
    found = list(named(events))
    found = found[found.index(start) :]
    return found.index(first) < found.index(second)


def wrapping(events: StepEvents) -> StepEvents:
    """What is before the first pass."""
    return events._replace(events=events.events[: next(at for at, name in events.marks if "." in name)], start=0)


def held(events: StepEvents) -> int:
    allocator = CachingAllocator()
    play(events, allocator)
    return allocator.peak_reserved


def test_a_dropout_mask_is_there_before_what_is_dropped() -> None:
    events = recorded(lora={"r": 8, "dropout": 0.1})
    assert before(events, "+dropout masks", "+dropped-out inputs", "+queries, keys, values")


def test_pefts_result_is_rebound_before_it_is_cast() -> None:
    """The base's result is gone when the sum in fp32 is cast, so that the cast may lie where it lay."""
    found = list(named(recorded(**OLDER, autocast=False, lora={"r": 8, "dropout": 0.0})))
    at = found.index("+adapter sums")
    assert found[at : at + 4] == ["+adapter sums", "-adapter outputs", "-queries, keys, values", "+adapter sums"]


def test_the_summand_of_a_residual_is_gone_when_the_next_norm_runs() -> None:
    found = list(named(recorded(**OLDER)))
    at = found.index("+attention projection")
    assert found.index("-attention projection", at) < found.index("+norm outputs", at)


def test_older_classes_name_what_they_repeat_keys_to() -> None:
    """transformers 4.45: copies live to the end of the attention, what was copied does not."""
    older = recorded(**OLDER, attention="flash")
    assert before(older, "+attention projection", "-repeated keys", "+repeated keys")
    newer = recorded(**{**OLDER, "trainer_version": "4.48"}, attention="sdpa")
    assert before(newer, "-repeated keys", "+attention projection", "+repeated keys")


def test_a_weights_gradient_is_made_before_its_inputs() -> None:
    events = recorded()
    start = next(at for at, name in events.marks if name.endswith("backward"))
    found = [events.tags[number].label for number, size in events.events[start:] if size > 0]
    at = found.index("weight gradients")
    assert found[at + 1] == "gradients in flight"
    assert events.tags[events.events[0][0]].label != "weight gradients"


def test_kernels_take_memory_in_backward_on_a_real_card_alone() -> None:
    """Sums and wide gradients of queries, heads of 64 in tiles of 32; one copy of k and v for every head of queries."""
    within = {"attention's row sums", "gradients of queries in fp32", "gradients of keys of every head"}
    on_card, no_card = recorded(attention="flash"), recorded(attention="flash", gpu=None)
    own = [tag for tag in on_card.tags if tag.label in within]
    wide = 2 * 512 * 512
    assert {(tag.elements, tag.itemsize) for tag in own} == {(2 * 512 * 8, 4), (wide, 4), (wide, 2)}
    assert not [tag for tag in no_card.tags if tag.label in within]


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
def test_a_stream_frees_what_it_has_come_past(behind: int) -> None:
    """Of three blocks of 30 MiB that wait for stream 1, all but the last are free for three more."""
    made = [(number, 30 * MiB) for number in range(3)]
    gone = [(number, -30 * MiB) for number in range(3)]
    again = [(number, 30 * MiB) for number in range(3, 6)]
    waits = dict.fromkeys(range(3), (1,))
    events = StepEvents((*made, *gone, *again), 0, recorded=waits, marks=((6, f"done 1 {behind}"),))
    assert held(events) == (3 + behind) * 30 * MiB


def test_fsdp1_holds_what_its_host_has_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two gathered units in forward, three in backward; without a limit on gathers, as many as a stream takes the
    launches of."""
    limited, free = recorded(**FSDP1), recorded(**FSDP1, fsdp={"limit_all_gathers": False})
    assert limited.events == free.events
    assert set(limited.recorded.values()) == {(0,), (1,), (2,)}
    assert held(limited) < held(free)
    monkeypatch.setattr("memplan.engine.play.fsdp1.LAUNCHES", 300)
    assert held(limited) < held(recorded(**FSDP1, fsdp={"limit_all_gathers": False})) < held(free)


def test_a_reentrant_checkpoint_gathers_for_the_recomputation_and_again_for_backward() -> None:
    """transformers 4 checkpoints the wrapped layer; from 5 on the layer checkpoints itself within its unit."""

    def gathers(**keys: Any) -> int:
        tags = recorded(**{**FSDP1, **keys}).tags
        return sum(tag.label == "gathered flat parameter" and tag.elements > 0 for tag in tags)

    older, newer = gathers(), gathers(trainer_version="5.23", gradient_checkpointing_reentrant=True)
    assert older - newer == 2 * TINY["num_hidden_layers"]


def test_wrapping_leaves_shards_in_what_was_made_for_whole_units() -> None:
    events = recorded(**FSDP1)
    labels = [tag.label for tag in events.tags]
    units = TINY["num_hidden_layers"] + 1
    assert labels.count("flat parameter before it is sharded") == units
    assert labels.count("flat shard") == 2 * units  # in the loaded dtype, then in fp32
    assert _buckets([200 * MiB, 100 * MiB, 10 * MiB]) == [[200 * MiB, 100 * MiB], [10 * MiB]]


def test_every_rank_steps_on_its_own_pieces_of_one_size() -> None:
    of = recipe(**FSDP1)
    pieces = [stepped_by(of, rank) for rank in range(4)]
    sizes = [sum(piece.elements for piece in own) for own in pieces]
    assert len(set(sizes)) == 1
    assert len({tuple(piece.elements for piece in own) for own in pieces}) > 1
    alone = fullest(of, in_order(of.model, True, None))
    assert sum(piece.elements * piece.copies for piece in alone) == sizes[0]
    assert ranks_of(of) == (None, 1, 2, 3)
    assert len(ranks_of(recipe(**{**FSDP1, "num_gpus": 64}))) == PLAYED_RANKS
    assert ranks_of(recipe()) == (None,)


def test_what_is_held_is_that_of_the_rank_that_holds_most() -> None:
    of = recipe(**FSDP1)
    allocated = max(build_ledger(of, detailed=False).totals())
    found = played(of, allocated, Room(1 << 40, 1 << 40))
    assert not isinstance(found, Unplayed)
    each = [step_events(of, rank=rank) for rank in ranks_of(of)]
    assert found.endless == max(held(events) for events in each if events)


def test_fsdp1_beside_adapters_reaches_the_ledgers_peak() -> None:
    """Adapters are units, frozen units hold inputs of checkpoints and their gradients to the end of backward. Units
    whose shards go to the host are made on the card as others are."""
    keys = {**FSDP1, "precision": "bf16", "autocast": True, "lora": {"r": 8}, "sequence_length": 2048}
    host = recipe(**keys, fsdp={"cpu_offload": True})
    made = step_events(host)
    assert made is not None
    assert "flat parameter before it is sharded" in {tag.label for tag in made.tags}
    for of in (recipe(**keys, quantization="nf4"), recipe(**keys), host):
        events = step_events(of)
        assert events is not None
        assert events.peak == pytest.approx(max(build_ledger(of, detailed=False).totals()), rel=0.01)


def test_ranks_that_are_sent_their_weights_run_ahead_of_what_sends_them() -> None:
    """What they were sent is free only when it has come: a bucket of every unit, as far as a stream takes launches."""
    of = recipe(**PACKED, fsdp={"cpu_ram_efficient_loading": True})
    first = step_events(of)
    assert first is not None
    ahead = ran_ahead(first)
    buckets = [size for number, size in first.events if size > 0 and first.tags[number].label == "broadcast bucket"]
    assert len(buckets) == WIDE["num_hidden_layers"] + 1
    assert held(wrapping(ahead)) - held(wrapping(first)) == pytest.approx(sum(buckets[:-1]), rel=0.1)
    found = played(of, max(build_ledger(of, detailed=False).totals()), Room(1 << 40, 1 << 40))
    assert not isinstance(found, Unplayed)
    assert found.on_card is not None
    assert found.on_card == held(ahead) - (held(ahead) - held(first)) // 4
    assert (found.on_card + found.left_over, found.on_card - found.beneath) == (held(ahead), held(first))


def test_a_stream_takes_so_many_launches_ahead() -> None:
    units = [Loaded([4 * MiB] * 7, [], buckets=1, launches=100)] * 20
    tape, launched = PlayTape(), deque[Loaded]()
    for unit in units:
        _wait(tape, launched)
        launched.append(unit)
    waiting = [int(name.rpartition(" ")[2]) for _, name in tape.marks if name.startswith(ELSEWHERE)]
    assert waiting == [*range(11), *[10] * 9]


def test_a_base_that_is_packed_on_the_card_is_whole_there_when_units_are_made() -> None:
    kept = recorded(**PACKED, fsdp={"cpu_ram_efficient_loading": False})
    labels = [name for name in named(kept) if name[1:] in ("weights before they are sharded", "flat shard")]
    assert labels.index("+flat shard") == labels.count("+weights before they are sharded")


def test_foaks_fused_head_is_foaks() -> None:
    events = recorded(**OLDER, kernels="foak", loss_head="fused")
    labels = [tag.label for tag in events.tags]
    assert recipe(**OLDER, kernels="foak", loss_head="fused").loss.head == "foak-chunks"
    assert labels.count("logits of a chunk in fp32") == labels.count("scaled gradient of a chunk") > 2
    assert events.peak == pytest.approx(
        max(build_ledger(recipe(**OLDER, kernels="foak", loss_head="fused"), detailed=False).totals()), rel=0.005
    )


@pytest.mark.parametrize(
    ("trainer", "version", "method"),
    [("trl", "0.27", "kto"), ("trl", "1.9", "dpo"), ("trl", "1.14", "ipo"), ("llamafactory", None, "kto")],
)
def test_an_evaluation_holds_the_logits_that_its_loss_names(trainer: str, version: str | None, method: str) -> None:
    """The policy's logits are there in the forwards after them; without them the play was 17 to 36 % below the ledger
    and the traces."""
    keys = {"trainer": trainer, "trainer_version": version, "method": method, "eval_batch_size": 8}
    of = recipe(**{key: value for key, value in keys.items() if value is not None}, model={**TINY, "vocab_size": 64000})
    events, evaluation = step_events(of), evaluation_of(of)
    assert events is not None
    assert evaluation is not None
    assert events.peak == pytest.approx(max(build_ledger(evaluation, detailed=False).totals()), rel=0.01)
