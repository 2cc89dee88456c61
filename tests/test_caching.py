"""Proves the caching allocator's rules: rounding, segments, best fit, splits, merges, expandable segments, pressure.

Examples are small enough to be followed with a pencil; properties hold over arbitrary sequences.
"""

from collections.abc import Iterator

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.allocator.blocks import UNMAPPED, USED, Block, Pool
from memplan.engine.allocator.caching import CachingAllocator, OutOfMemory
from memplan.engine.allocator.events import step_events
from memplan.engine.allocator.replay import StepEvents, play
from memplan.engine.allocator.reserved import SEGMENT_BYTES, Band, reserved_band
from memplan.engine.allocator.settings import Settings, segment_size, settings_of
from memplan.engine.build import build_ledger
from memplan.resolve import resolve
from memplan.spec.allocator import Allocator, divisions_of, read_conf
from memplan.spec.reading import read_job
from memplan.units import GiB, KiB, MiB

EXPANDABLE = Settings(expandable_segments=True)
TINY = {
    "model_type": "llama",
    "vocab_size": 3000,
    "hidden_size": 256,
    "intermediate_size": 700,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1, None, 512),
        (512, None, 512),
        (513, None, 1024),
        (1000, 4, 1024),
        (2049, 4, 2560),
        (5 * KiB, 4, 5 * KiB),
        (5 * KiB + 1, 4, 6 * KiB),
        (1100 * KiB, 4, 1280 * KiB),
        (1100 * KiB, 1, 1100 * KiB),
        (2 * MiB, 2, 2 * MiB),
    ],
)
def test_requests_are_rounded_up(size: int, divisions: int | None, rounded: int) -> None:
    settings = Settings(divisions=divisions_of(str(divisions)) if divisions else ())
    assert settings.round_size(size) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MiB),
        (MiB, 2 * MiB),
        (MiB + 512, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 512, 12 * MiB),
        (31 * MiB, 32 * MiB),
    ],
)
def test_a_segment_follows_from_the_block(size: int, segment: int) -> None:
    assert segment_size(size) == segment
    allocator = CachingAllocator()
    allocator.malloc(size)
    assert allocator.reserved == segment


@pytest.mark.parametrize(
    ("text", "first", "expected"),
    [
        ("4", 0, [4] * 16),
        ("[256:1,512:2,1024:4,>:8]", 0, [1] * 9 + [2, 4, 8, 8, 8, 8, 8]),
        ("[64:8, 128:4,]", 0, [8] * 7 + [4] + [0] * 8),
        ("[131072:2]", 0, [2] * 16),
    ],
)
def test_divisions_by_the_power_of_two(text: str, first: int, expected: list[int]) -> None:
    """Before the first interval its own number, between intervals nothing, behind the last what ``>`` says."""
    assert list(divisions_of(text)) == expected


@pytest.mark.parametrize("text", ["3", "[256:3]", "[200:2]", "[0:2]", "[]", "four", "-4", "1" * 5000, ""])
def test_divisions_that_pytorch_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"power of two|neither"):
        divisions_of(text)


def test_each_power_of_two_is_rounded_by_its_own_divisions() -> None:
    settings = Settings(divisions=divisions_of("[2:4,4:1,8:2]"))
    sizes = (2049 * KiB, 5000 * KiB + 1, 9 * MiB)
    assert [settings.round_size(size) for size in sizes] == [2560 * KiB, 5000 * KiB + 512, 12 * MiB]


def test_small_and_large_blocks_do_not_share_segments() -> None:
    allocator = CachingAllocator()
    allocator.malloc(2 * MiB)
    allocator.malloc(512)
    assert allocator.reserved == 22 * MiB


@pytest.mark.parametrize(("size", "kept"), [(11 * MiB, 12 * MiB), (11 * MiB - 512, 11 * MiB - 512)])
def test_a_large_rest_is_split_off_above_1_mib_only(size: int, kept: int) -> None:
    """Of 12 MiB: the rest of 1 MiB stays with the block, and counts as allocated."""
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(12 * MiB))
    assert allocator.malloc(size).size == allocator.allocated == kept
    assert allocator.reserved == 12 * MiB


def test_a_small_rest_is_split_off_from_512_bytes() -> None:
    allocator = CachingAllocator()
    assert allocator.malloc(MiB - 512).size == MiB - 512
    allocator.malloc(MiB)
    assert allocator.malloc(512).size == 512
    assert allocator.reserved == 2 * MiB, "all of it is in use"


def test_the_smallest_block_that_holds_it_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size * MiB) for size in (40, 30, 50)]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(29 * MiB).address == blocks[1].address
    assert allocator.malloc(29 * MiB).address == blocks[0].address
    assert allocator.reserved == 120 * MiB


def test_equal_blocks_are_taken_from_the_lowest_address() -> None:
    allocator = CachingAllocator()
    first, second = allocator.malloc(30 * MiB), allocator.malloc(30 * MiB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(30 * MiB) is first


def test_a_freed_block_merges_with_both_neighbours() -> None:
    allocator = CachingAllocator()
    three = [allocator.malloc(5 * MiB) for _ in range(3)]
    for position in (0, 2, 1):
        allocator.free(three[position])
    assert [block.size for block in allocator.pool(small=False).free] == [20 * MiB]
    with pytest.raises(ValueError, match="not in use"):
        allocator.free(three[1])


def test_a_live_block_keeps_its_whole_segment() -> None:
    """The case that makes fragmentation: 19 MiB are free, and cannot be given back."""
    allocator = CachingAllocator(capacity=30 * MiB)
    large, small = allocator.malloc(18 * MiB - 512), allocator.malloc(512)
    allocator.free(large)
    keeper = allocator.malloc(2 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(20 * MiB)
    allocator.free(keeper)
    allocator.malloc(20 * MiB)
    allocator.free(small)
    assert allocator.retries == 2
    assert allocator.reserved == 22 * MiB, "under pressure the free segment of 18 MiB went back"


def test_two_sizes_cannot_share_a_segment_until_pressure() -> None:
    """On a roomy card the allocator holds more than it needs."""
    roomy, tight = CachingAllocator(), CachingAllocator(capacity=40 * MiB)
    for allocator in (roomy, tight):
        allocator.free(allocator.malloc(30 * MiB))
        allocator.malloc(40 * MiB)
    assert (roomy.reserved, tight.reserved) == (70 * MiB, 40 * MiB)


def test_expandable_segments_grow_by_pages_behind_what_is_free() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    block = allocator.malloc(30 * MiB)
    assert allocator.reserved == 40 * MiB
    allocator.free(block)
    assert allocator.malloc(50 * MiB).size == 50 * MiB
    assert allocator.reserved == 60 * MiB, "the same stretch, grown"
    allocator.malloc(512)
    assert allocator.reserved == 62 * MiB, "small blocks grow by 2 MiB"


def test_an_expandable_segment_is_as_large_as_what_is_asked() -> None:
    """Of a job that no card runs, which is answered none the less."""
    allocator, size = CachingAllocator(EXPANDABLE), 1 << 63
    blocks = [allocator.malloc(size) for _ in range(4)]
    assert allocator.allocated == 4 * size <= allocator.reserved
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(size).address == 0


def test_expandable_segments_give_back_whole_free_pages_anywhere() -> None:
    """Of 60 MiB in the middle, from 5 MiB to 65 MiB, only the pages at 20 and 40 MiB are whole."""
    allocator = CachingAllocator(EXPANDABLE)
    _, middle, _ = (allocator.malloc(size * MiB) for size in (5, 60, 5))
    allocator.free(middle)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MiB
    allocator.malloc(60 * MiB)
    assert allocator.reserved == 80 * MiB, "mapped again in the hole"


def test_a_max_split_size_keeps_large_blocks_whole() -> None:
    allocator = CachingAllocator(Settings(max_split_size=50 * MiB))
    allocator.free(allocator.malloc(60 * MiB))
    allocator.malloc(30 * MiB)
    assert allocator.reserved == 90 * MiB, "30 MiB do not come out of 60"
    assert allocator.malloc(52 * MiB).size == 60 * MiB, "52 MiB do, and nothing is split off"


def test_streams_do_not_share_blocks() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MiB, stream=1))
    allocator.malloc(30 * MiB)
    assert allocator.reserved == 60 * MiB
    allocator.malloc(30 * MiB, stream=1)
    assert allocator.reserved == 60 * MiB


def test_a_block_that_another_stream_uses_is_free_when_both_are_done() -> None:
    """Not allocated any more, but held: the next request takes a segment of its own until then."""
    allocator = CachingAllocator()
    block = allocator.malloc(30 * MiB)
    allocator.free(block, used_by=(1, 2))
    assert allocator.allocated == 0
    with pytest.raises(ValueError, match="not in use"):
        allocator.free(block)
    for stream, reserved in ((1, 60), (2, 90)):
        allocator.malloc(30 * MiB)
        assert allocator.reserved == reserved * MiB
        allocator.stream_done(stream)
    allocator.malloc(30 * MiB)
    assert allocator.reserved == 90 * MiB


def test_under_pressure_every_stream_is_waited_for() -> None:
    allocator = CachingAllocator(capacity=40 * MiB)
    allocator.free(allocator.malloc(30 * MiB), used_by=(1,))
    allocator.malloc(40 * MiB)
    assert (allocator.reserved, allocator.retries) == (40 * MiB, 1)


def test_what_a_graph_holds_is_its_own_until_the_end() -> None:
    allocator = CachingAllocator(capacity=60 * MiB)
    allocator.free(allocator.malloc(30 * MiB, graph=1))
    allocator.malloc(30 * MiB)
    allocator.empty_cache()
    assert allocator.reserved == 60 * MiB
    with pytest.raises(OutOfMemory):
        allocator.malloc(2 * MiB)


def test_idle_segments_are_collected_above_the_threshold() -> None:
    """The 30 MiB have been idle for longer than both are on average, and go; then 52 MiB are left, and 40 stay."""
    settings = settings_of(
        Allocator(garbage_collection_threshold=0.5, per_process_memory_fraction=0.5), card_bytes=120 * MiB
    )
    assert settings.collect_above == 60 * MiB
    allocator = CachingAllocator(settings)
    first, second, other = (allocator.malloc(size * MiB) for size in (30, 40, 12))
    allocator.free(first)
    allocator.free(other)
    allocator.malloc(12 * MiB)
    allocator.free(second)
    allocator.malloc(60 * MiB)
    assert allocator.reserved == (40 + 12 + 60) * MiB


def test_the_threshold_alone_does_nothing() -> None:
    assert settings_of(Allocator(garbage_collection_threshold=0.5), 80 * GiB) == Settings()


def test_a_segment_that_was_there_before() -> None:
    allocator = CachingAllocator()
    blocks = allocator.adopt(allocator.pool(small=False), 20 * MiB, [(2 * MiB, 4 * MiB), (6 * MiB, 5 * MiB)])
    assert (allocator.reserved, allocator.allocated) == (20 * MiB, 9 * MiB)
    allocator.malloc(9 * MiB)
    allocator.malloc(2 * MiB)
    assert allocator.reserved == 20 * MiB, "9 MiB behind the two, 2 MiB before them"
    check(allocator, [*blocks, *(block for block in allocator_blocks(blocks[0]) if block not in blocks)])
    with pytest.raises(ValueError, match="overlap"):
        allocator.adopt(allocator.pool(small=False), 20 * MiB, [(0, 4 * MiB), (2 * MiB, MiB)])


def allocator_blocks(block: Block) -> list[Block]:
    """Those in use of the segment that a block is in."""
    while block.prev:
        block = block.prev
    found: list[Block] = []
    walk: Block | None = block
    while walk:
        found += [walk] if walk.state == USED else []
        walk = walk.next
    return found


@pytest.mark.parametrize(
    ("text", "found", "unread"),
    [
        ("expandable_segments:True", {"expandable_segments": True}, ()),
        (
            "'expandable_segments:true, max_split_size_mb:128,'",
            {"expandable_segments": True, "max_split_size_mb": 128},
            (),
        ),
        ("roundup_power2_divisions:[256:1,>:4]", {"roundup_power2_divisions": "[256:1,>:4]"}, ()),
        ("garbage_collection_threshold:0.8,backend:native", {"garbage_collection_threshold": 0.8}, ()),
        ("pinned_use_background_threads:True", {}, ()),
        ("backend:cudaMallocAsync", {}, ("backend:cudaMallocAsync",)),
        ("max_split_size_mb:3", {}, ("max_split_size_mb:3",)),
        ("max_split_size_mb=128", {}, ("max_split_size_mb=128",)),
        ("$CONF", {}, ("$CONF",)),
        ("", {}, ()),
    ],
)
def test_what_the_environment_says(text: str, found: dict[str, object], unread: tuple[str, ...]) -> None:
    assert read_conf(text) == (found, unread)


# -- properties -------------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.integers(1, 4 * KiB), st.integers(1, 3 * MiB), st.integers(1, 60 * MiB))
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1000)), max_size=60)


def everything(pool: Pool, live: list[Block]) -> Iterator[Block]:
    """Every block of a pool."""
    yield from pool.free
    yield from (block for _, block in pool.unmapped)
    yield from (block for block in live if block.pool is pool)


def check(allocator: CachingAllocator, live: list[Block]) -> None:
    """Bytes add up, links go both ways, and no two neighbours could be one."""
    mapped = 0
    for pool in allocator.pools.values():
        for block in everything(pool, live):
            mapped += block.size if block.state != UNMAPPED else 0
            if block.next is not None:
                assert block.next.prev is block
                assert block.next.address == block.address + block.size
                assert block.state == USED or block.state != block.next.state
    assert mapped == allocator.reserved >= allocator.allocated == sum(block.size for block in live)


@examples(60)
@given(STEPS, st.booleans(), st.sampled_from([None, 100 * MiB]), st.sampled_from([None, 16 * MiB]))
def test_what_always_holds(
    steps: list[tuple[bool, int, int]], expandable: bool, capacity: int | None, limit: int | None
) -> None:
    """On two streams."""
    allocator = CachingAllocator(Settings(expandable, max_split_size=limit), capacity)
    live: list[Block] = []
    for frees, size, which in steps:
        if frees and live:
            allocator.free(live.pop(which % len(live)))
        else:
            try:
                live.append(allocator.malloc(size, which % 2))
            except OutOfMemory:
                assert capacity is not None
        check(allocator, live)
        assert capacity is None or allocator.reserved <= capacity
    assert allocator.peak_reserved >= allocator.peak_allocated
    while live:
        allocator.free(live.pop())
    allocator.empty_cache()
    check(allocator, live)
    assert allocator.reserved == allocator.allocated == 0


@examples(60)
@given(st.lists(st.integers(1, 60 * MiB), min_size=1, max_size=40))
def test_without_frees_expandable_segments_waste_a_page_at_most(sizes: list[int]) -> None:
    allocator = CachingAllocator(EXPANDABLE)
    for size in sizes:
        allocator.malloc(size)
    assert allocator.reserved - allocator.allocated < 22 * MiB


@examples(40)
@given(STEPS)
def test_a_capacity_that_is_never_reached_changes_nothing(steps: list[tuple[bool, int, int]]) -> None:
    roomy = CachingAllocator()
    tight = CachingAllocator(capacity=60 * 62 * MiB)
    for allocator in (roomy, tight):
        live: list[Block] = []
        for frees, size, which in steps:
            if frees and live:
                allocator.free(live.pop(which % len(live)))
            else:
                live.append(allocator.malloc(size))
    assert (roomy.reserved, roomy.peak_reserved, tight.retries) == (tight.reserved, tight.peak_reserved, 0)


# -- whole steps ------------------------------------------------------------------------------------------------------

JOBS: dict[str, dict[str, object]] = {
    "full": {},
    "checkpointing": {"gradient_checkpointing": True},
    "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_reentrant": True},
    "fused": {"optimizer_impl": "fused"},
    "loop": {"optimizer_impl": "loop"},
    "adafactor": {"optimizer": "adafactor"},
    "autocast": {"precision": "bf16-amp"},
    "lora": {"lora": {"r": 8}},
    "lora, checkpointing": {"lora": {"r": 8}, "gradient_checkpointing": True},
    "accumulation": {"gradient_accumulation_steps": 4},
    "dpo": {"method": "dpo"},
    "simpo in halves": {"method": "simpo", "pair_pass": "split"},
    "simpo, gradcache": {"method": "simpo", "pair_pass": "gradcache"},
    "kto": {"method": "kto", "batch_size": 2},
    "tied": {"model": {**TINY, "tie_word_embeddings": True}},
    "gemma": {"model": "gemma-2-2b", "sequence_length": 512},
    "two forwards, accumulated": {"method": "simpo", "pair_pass": "two-forward", "gradient_accumulation_steps": 2},
    "8-bit states": {"optimizer": "adamw-8bit"},
    "muon": {"optimizer": "muon"},
    "lomo": {"optimizer": "lomo"},
    "experts": {"model": "qwen3-30b-a3b", "sequence_length": 256},
    "qlora": {"lora": {"r": 8}, "quantization": "nf4", "gradient_checkpointing": True},
    "ddp": {"num_gpus": 2, "sharding": "ddp"},
    "fsdp2": {"num_gpus": 2, "sharding": "fsdp2", "gradient_checkpointing": True},
    "fsdp2, kept whole": {"num_gpus": 4, "sharding": "fsdp2", "reshard_after_forward": False},
    "fsdp2, accumulated whole": {
        "num_gpus": 2,
        "sharding": "fsdp2",
        "gradient_accumulation_steps": 4,
        "sync_each_batch": False,
    },
    "fsdp2, dpo": {"num_gpus": 2, "sharding": "fsdp2", "method": "dpo"},
    "fsdp1": {"num_gpus": 2, "sharding": "fsdp", "gradient_checkpointing": True},
}


def recorded(**keys: object) -> tuple[StepEvents | None, int]:
    """The events of a tiny job, and the ledger's allocated peak."""
    recipe = resolve(read_job({"model": TINY, "method": "sft", "batch_size": 2, "sequence_length": 700, **keys}))
    return step_events(recipe), max(build_ledger(recipe, detailed=False).totals())


@pytest.mark.parametrize("name", JOBS)
def test_the_events_of_a_step_reach_the_ledgers_peak(name: str) -> None:
    """Two ways to one figure: every layer played in full, and instants put together from one layer of each kind."""
    events, allocated = recorded(**JOBS[name])
    assert events is not None
    assert events.peak == pytest.approx(allocated, rel=0.005)


def test_steps_after_the_second_are_the_same() -> None:
    recipe = resolve(read_job({"model": TINY, "method": "sft", "batch_size": 2, "sequence_length": 700}))
    peaks = []
    for steps in (2, 3, 4):
        events = step_events(recipe, steps)
        assert events is not None
        live = sum(size for _, size in events.events[: events.start])
        peaks.append((events.peak, live, len(events.events) - events.start))
    assert len(set(peaks)) == 1


def test_the_simulation_starts_where_the_bytes_say() -> None:
    events, _ = recorded()
    assert events is not None
    allocator = CachingAllocator()
    play(events, allocator)
    assert allocator.peak_allocated >= events.peak
    assert allocator.allocated >= sum(size for _, size in events.events)
    tight = CachingAllocator(capacity=events.peak - 1)
    with pytest.raises(OutOfMemory):
        play(events, tight)


def test_what_is_not_played_is_refused() -> None:
    assert recorded(sharding="zero3", num_gpus=2, deepspeed={"zero_quantized_weights": True})[0] is None


# -- the band ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("checkpointing", [False, True])
@given(size=st.integers(1, 1 << 40), share=st.floats(0, 1))
def test_the_band_is_in_order_and_of_what_comes_and_goes(
    expandable: bool, checkpointing: bool, size: int, share: float
) -> None:
    lasting = int(size * share)
    band = reserved_band(Band(size, size, size), lasting, expandable, checkpointing)
    assert size <= band.low <= band.expected <= band.high <= 2 * size + SEGMENT_BYTES
    if lasting == size:
        assert band.high < size + SEGMENT_BYTES


@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_weights_and_expandable_segments_narrow_the_band(checkpointing: bool) -> None:
    size = 70 * GiB

    def high(lasting: int, expandable: bool) -> int:
        return reserved_band(Band(size, size, size), lasting, expandable, checkpointing).high

    assert high(60 * GiB, False) < high(30 * GiB, False)
    assert high(30 * GiB, True) < high(30 * GiB, False)
