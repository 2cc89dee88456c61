"""Proves what must hold of every ledger, whatever the job: order between strategies, sums, signs, growth.

Jobs are drawn from the tables themselves, so that a new row of a table is tested without a change here. The model is
tiny and the ranks are few, since the rules do not depend on size.
"""

from itertools import pairwise, product
from typing import Any

import pytest
from any_jobs import (
    ANY_JOB,
    ANY_JOB_OF_ONE_GPU,
    MODELS,
    MORE,
    ONE_GPU,
    SHARED,
    Keys,
    choice,
    ledger_of,
    possible,
    step_peak,
)
from drawing import examples, over
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.arch import parse_config
from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.errors import InvalidJob
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.choices import CHOICES
from memplan.tables.optimizers import find_optimizer
from memplan.tables.precisions import PRECISIONS
from memplan.tables.trainers import TRAINERS

STATES = ("parameters", "adapters", "master_weights", "gradients", "optimizer_states")
PADDING = 1 << 14
"""Bytes by which the shards of a tiny model may exceed an exact division: every tensor is padded."""
ERAS = [(name, era.since) for name, eras in TRAINERS.items() for era in eras]


def states(ledger: Ledger) -> int:
    """Model states in the optimizer's step, on every meter: weights, master weights, gradients, optimizer states."""
    step = len(ledger.schedule) - 1
    return sum(row.bytes for row in ledger.rows if row.category in STATES and row.born <= step <= row.dies)


def saved_activations(ledger: Ledger) -> int:
    """What is kept for backward when the first trained forward ends."""
    instant = next(name for name in ledger.schedule if name.endswith(".loss"))
    return ledger.by_category(instant).get("activations", 0)


TOGETHER = ("TRL", "ms-swift", "a bare training loop")
"""Their policy and critic have one backward."""
EXCLUDED = ("trainer: ", "trainer_version: ", "extra_models: distill needs",
    *(f"sharding: {way}: {who}'s policy and critic" for way in CHOICES["sharding"] for who in TOGETHER),
    "optimizer: Megatron steps with", "sharding: distributed-optimizer is Megatron's", *(
    f"sharding: {eras[-1].title} runs on Megatron" for eras in TRAINERS.values() if eras[-1].megatron
))  # fmt: skip
"""How the refusals of a method or a strategy that a trainer has not begin."""


EVERY = [(trainer, version, method) for trainer, version in ERAS for method in CHOICES["method"]]
LAYOUTS = list(product(CHOICES["optimizer"], CHOICES["sharding"]))


@pytest.mark.slow
@over(EVERY)
def test_every_row_of_every_table_builds_a_ledger(job: tuple[str, str, str]) -> None:
    """Trainers and eras × methods, each with a share of optimizers × sharding: together they meet all of those."""
    number = EVERY.index(job)
    assert_built(job, LAYOUTS[number % SHARE :: SHARE])


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "version"), ERAS, ids=lambda text: text or "first")
def test_every_combination_of_the_tables_builds_a_ledger(trainer: str, version: str) -> None:
    """Trainers and eras × methods × optimizers × sharding."""
    for method in CHOICES["method"]:
        assert_built((trainer, version, method), LAYOUTS)


SHARE = 23
"""Each of so many combinations; it divides neither the number of optimizers nor that of strategies."""


def assert_built(job: tuple[str, str, str], layouts: list[tuple[str, str]]) -> None:
    """A ledger, or a refusal that says what cannot run together."""
    trainer, version, method = job
    for optimizer, sharding in layouts:
        keys: Keys = {"method": method, "trainer": trainer, "optimizer": optimizer, "sharding": sharding}
        keys |= {"model": MODELS["untied"], "trainer_version": version or None, "sequence_length": 64}
        way = "zero" if sharding.startswith("zero") else sharding
        row = find_optimizer(optimizer, trainer)
        apart = row is not None and way not in row.shardings
        excluded = (*EXCLUDED, f"optimizer: {optimizer} with {sharding}") if apart else EXCLUDED
        recipe, refused = None, ""
        try:
            recipe = resolve(read_job({**keys, "num_gpus": 1 if sharding == "none" else 4}))
        except InvalidJob as error:
            refused = error.message
        if recipe is None:
            assert refused.startswith(excluded), refused
            continue
        assert not apart
        assert min(build_ledger(recipe, detailed=False).totals()) > 0, keys


@given(keys=ANY_JOB)
@examples(200)
def test_any_job_is_priced_or_refused_by_name(keys: Keys) -> None:
    refusal, peak = None, 1
    try:
        peak = build_report(resolve(read_job(keys))).per_gpu.allocated_bytes
    except InvalidJob as error:
        refusal = error
    assert peak > 0
    assert refusal is None or (refusal.message.isprintable() and refusal.hint)


@given(keys=ANY_JOB)
@examples(60)
def test_rows_sum_to_the_totals_and_to_the_categories(keys: Keys) -> None:
    ledger = possible(keys)
    totals = ledger.totals()
    assert len(totals) == len(ledger.schedule)
    for instant, total in zip(ledger.schedule, totals, strict=True):
        alive = ledger.alive(instant)
        assert sum(row.bytes for row in alive) == total == sum(ledger.by_category(instant).values())
        assert all(row.high_bytes > 0 for row in alive)
    for row in ledger.rows:
        assert row.category
        assert 0 <= row.born <= row.dies < len(ledger.schedule)
        assert 0 <= row.low_bytes <= row.bytes <= row.high_bytes


@given(keys=ANY_JOB)
@examples(50)
def test_totals_alone_are_those_of_the_written_out_ledger(keys: Keys) -> None:
    detailed = possible(keys)
    recipe = resolve(read_job({"model": MODELS["untied"], "batch_size": 2, "sequence_length": 64, **keys}))
    short = build_ledger(recipe, detailed=False)
    assert short.schedule == detailed.schedule
    for bound in ("low_bytes", "bytes", "high_bytes"):
        assert short.totals(bound=bound) == detailed.totals(bound=bound)


@given(keys=ANY_JOB)
@examples(50)
def test_the_report_agrees_with_its_ledger(keys: Keys) -> None:
    ledger = possible(keys)
    report = build_report(
        resolve(read_job({"model": MODELS["untied"], "batch_size": 2, "sequence_length": 64, **keys}))
    )
    gpu = report.per_gpu
    assert gpu.allocated_bytes == max(ledger.totals()) == step_peak(gpu) == sum(gpu.by_category.values())
    assert {instant.name: instant.allocated_bytes for instant in gpu.instants}[gpu.peak_instant] == gpu.allocated_bytes
    assert gpu.allocated_range.low <= gpu.allocated_bytes <= gpu.allocated_range.high
    for band, below in ((gpu.reserved_bytes, gpu.allocated_bytes), (gpu.device_bytes, gpu.reserved_bytes.expected)):
        assert band.low <= band.expected <= band.high
        assert band.expected >= below


@given(keys=ANY_JOB, key=st.sampled_from(["batch_size", "sequence_length"]))
@examples(60)
def test_more_tokens_never_use_less(keys: Keys, key: str) -> None:
    smaller, larger = possible(keys), possible(keys | {key: 2 * keys[key]})
    assert max(larger.totals()) >= max(smaller.totals())


@given(keys=st.fixed_dictionaries(ONE_GPU, optional=MORE | SHARED))
@examples(60)
def test_checkpointing_never_keeps_more_for_backward(keys: Keys) -> None:
    everything, checkpoints = (possible(keys | {"gradient_checkpointing": style}) for style in ("none", "full"))
    assume(not keys.get("trainer") or resolved_style(keys) == "none")
    assert saved_activations(checkpoints) <= saved_activations(everything)


def resolved_style(keys: Keys) -> Any:
    """What a job that turns checkpointing off resolves to."""
    keys = {"model": MODELS["untied"], **keys, "gradient_checkpointing": "none"}
    return resolve(read_job(keys)).provenance.job["gradient_checkpointing"]


@given(keys=ANY_JOB, sharding=choice("sharding"), ranks=st.sampled_from([2, 4]))
@examples(60)
def test_more_ranks_never_hold_more_model_states_each(keys: Keys, sharding: str, ranks: int) -> None:
    assume(sharding != "none")
    fewer, more = (possible(keys | {"sharding": sharding, "num_gpus": count}) for count in (ranks, 2 * ranks))
    assert states(more) <= states(fewer) + PADDING


@given(keys=ANY_JOB, ranks=st.sampled_from([2, 4, 7]))
@examples(60)
def test_each_zero_stage_holds_no_more_model_states_than_the_one_before(keys: Keys, ranks: int) -> None:
    keys = {key: value for key, value in keys.items() if key not in SHARED} | {"num_gpus": ranks}
    zero = [possible(keys | {"zero_stage": stage}) for stage in (0, 1, 2, 3)]
    none, some = (any(row.category == "master_weights" for row in ledger.rows) for ledger in zero[:2])
    made = some and not none  # of half-precision weights, which stage 0 updates themselves
    held = [states(ledger) for ledger in zero[made:]]
    assert all(after <= before + PADDING for before, after in pairwise(held)), held


SPLIT = {  # weights, gradients, master weights and optimizer states: divided by the ranks or not
    "none": (False, False, False),
    "ddp": (False, False, False),
    "zero0": (False, False, False),
    "zero1": (False, True, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
    "fsdp2": (True, True, True),
}
"""ZeRO-1 frees the gradients of other ranks' partitions before the step, so there it holds what ZeRO-2 does."""
assert {*SPLIT, "fsdp", "distributed-optimizer"} == set(CHOICES["sharding"])


@pytest.mark.parametrize(
    ("sharding", "name"),
    [
        (way, name)
        for way, name in product(SPLIT, PRECISIONS)
        if way.startswith("zero") == bool(PRECISIONS[name].master)
    ],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_model_states_in_the_step_are_the_textbooks(sharding: str, name: str, accumulation: int) -> None:
    """Parameters × bytes of each state of AdamW, over the ranks that share it (ZeRO, arXiv:1910.02054, figure 1).

    DeepSpeed keeps the gradients of parameters that a boundary cuts whole on both sides of it.
    """
    ranks, row = 4, PRECISIONS[name]
    keys: Keys = {"sharding": sharding, "num_gpus": ranks, "precision": name, "method": "sft", "optimizer": "adamw"}
    keys |= {"gradient_accumulation_steps": accumulation}
    params = parse_config(MODELS["untied"], "untied").params.total
    split = [ranks if divided else 1 for divided in SPLIT[sharding]]
    sizes = (row.weights / split[0], row.gradients / split[1], (row.master + 2 * row.states) / split[2])
    largest = MODELS["untied"]["vocab_size"] * MODELS["untied"]["hidden_size"]
    cut = 2 * largest * row.gradients if sharding in ("zero1", "zero2") else 0
    assert params * sum(sizes) - PADDING <= states(ledger_of(**keys)) <= params * sum(sizes) + PADDING + cut


@given(keys=ANY_JOB_OF_ONE_GPU)
@examples(40)
def test_a_pair_keeps_what_two_sequences_keep(keys: Keys) -> None:
    keys = keys | {"pair_pass": "concatenated", "reference": "none", "loss_head": "log-softmax", "sft_term": False}
    pairs, sequences = keys | {"method": "simpo"}, keys | {"method": "sft", "batch_size": 2 * keys["batch_size"]}
    assert saved_activations(possible(pairs)) == saved_activations(possible(sequences))


@given(keys=ANY_JOB_OF_ONE_GPU, stage=st.sampled_from([0, 1, 2, 3]))
@examples(50)
def test_accumulation_never_changes_what_the_step_holds(keys: Keys, stage: int) -> None:
    keys = keys | {"zero_stage": stage, "num_gpus": 4}
    once, twice = (states(possible(keys | {"gradient_accumulation_steps": steps})) for steps in (1, 2))
    assert abs(twice - once) <= PADDING


@given(keys=ANY_JOB)
@examples(50)
def test_lora_trains_fewer_parameters_and_holds_fewer_states(keys: Keys) -> None:
    keys = {key: value for key, value in keys.items() if key not in ("lora", "reference")}
    full = build_of(keys)
    adapted = build_of(keys | {"lora": {"r": 1, "targets": ["q_proj"]}})
    assert adapted.model.params.trainable < full.model.params.trainable
    assert adapted.model.params.total == full.model.params.total


def build_of(keys: Keys) -> Any:
    try:
        return build_report(resolve(read_job({"model": MODELS["untied"], "sequence_length": 64, **keys})))
    except InvalidJob:
        assume(False)
        raise
