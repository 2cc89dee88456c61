"""Proves FSDP's and DDP's own settings: what is refused, what each changes, and the order that must hold."""

from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from memplan.engine.allocator.events import step_events
from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.engine.parallel.fsdp1.flat_parameters import root_trains
from memplan.engine.parallel.fsdp2.frame import Unit
from memplan.engine.play.ddp import InBucket, buckets
from memplan.engine.play.sharding import Groups, Sizes
from memplan.engine.play.units import policy_groups
from memplan.engine.tensors import model_weights
from memplan.errors import InvalidJob
from memplan.reporting import build_report
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.units import MiB

TINY = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 704, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE = TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
BASE: dict[str, Any] = {"model": TINY, "method": "sft", "num_gpus": 8, "sequence_length": 64, "sharding": "fsdp2"}
ONE = BASE | {"sharding": "fsdp"}
NF4 = {"quantization": "nf4"}
STATES = ("parameters", "adapters", "gradients", "optimizer_states")
MODEL = (*STATES, "gathered_parameters", "buffers")


def recipe_of(**keys: Any) -> Recipe:
    return resolve(read_job({**BASE, **keys}))


def ledger_of(**keys: Any) -> Ledger:
    return build_ledger(recipe_of(**keys))


def groups_of(recipe: Recipe) -> Groups:
    """The sizes of its units."""
    weights = model_weights(recipe.model, recipe.adapter is None, recipe.adapter)
    return policy_groups(recipe, weights, lambda part, measure, title: Sizes(measure(part)))


def layers_of(recipe: Recipe) -> list[Unit]:
    return [sizes.unit for sizes in groups_of(recipe).layers]


def states(ledger: Ledger) -> int:
    last = len(ledger.schedule) - 1
    return sum(row.bytes for row in ledger.rows if row.category in STATES and row.born <= last <= row.dies)


def peak(ledger: Ledger, place: str = "gpu") -> int:
    return max(ledger.totals(place=place))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"fsdp": {"replicate": 3}}, "fsdp.replicate: 3 does not divide num_gpus 8"),
        ({"fsdp": {"replicate": 8}}, "leaves nothing to share"),
        ({"fsdp": {"replicat": 2}}, "unknown key 'replicat'"),
        ({"fsdp": {"backward_prefetch": "BACKWARD_PRE"}}, "fsdp2 has no such setting"),
        ({"fsdp": {"fsdp_reshard_after_forward": True}}, "said in a key of its own"),
        ({"reshard_after_forward": 3}, "does not divide the 8 ranks"),
        ({"reshard_after_forward": "half"}, "neither true, false nor a number"),
        ({"sharding": "fsdp", "reshard_after_forward": 4}, "needs FSDP2"),
        ({"sharding": "fsdp", "fsdp": {"sharding_strategy": "NO_SHARD"}}, "NO_SHARD splits nothing"),
        ({"sharding": "fsdp", "fsdp": {"sharding_strategy": "SHARD"}}, "unknown value 'SHARD'"),
        ({"sharding": "fsdp", "fsdp": {"replicate": 2}}, "fsdp.replicate: 2 with sharding_strategy"),
        ({"sharding": "fsdp", "fsdp": {"auto_wrap_policy": "SIZE_BASED_WRAP"}}, "SIZE_BASED_WRAP is not modelled"),
        ({"sharding": "fsdp", "fsdp": {"own_ends": True}}, "fsdp.own_ends: fsdp has no such setting"),
        ({"fsdp": {"checkpoints_within": True}}, "fsdp.checkpoints_within: fsdp2 has no such setting"),
        ({"method": "dpo", "hold_outputs": True}, "leaves no logits in the outputs"),
        ({"sharding": "ddp", "fsdp": {"replicate": 2}}, "settings without FSDP"),
        ({"sharding": "ddp", "ddp": {"comm_hook": "int8"}}, "ddp.comm_hook: unknown value"),
        ({"sharding": "ddp", "ddp": {"bucket_cap": 5}}, "ddp: unknown key 'bucket_cap'"),
        ({"quantization": "int8", "lora": {"r": 4}}, "int8 weights cannot be split"),
        ({"sharding": "fsdp", "lora": {"r": 4}, "precision": "bf16"}, "Must flatten tensors with uniform dtype"),
        (
            {"sharding": "fsdp", "lora": {"r": 4}, "precision": "fp32", "fsdp": {"use_orig_params": False}},
            "uniform requires_grad",
        ),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        recipe_of(**keys)
    assert said in f"{refusal.value.message} {refusal.value.hint}"


@pytest.mark.parametrize(
    ("given_name", "value", "field", "resolved"),
    [
        ("fsdp_sharding_strategy", 2, "keeps_gathered", True),
        ("fsdp_backward_prefetch_policy", "BACKWARD_POST", "backward_prefetch", "BACKWARD_POST"),
        ("fsdp_offload_params", "true", "cpu_offload", True),
        ("fsdp_use_orig_params", False, "use_orig_params", False),
        ("fsdp_sync_module_states", True, "replicas", 1),
    ],
)
def test_accelerates_names_are_read(given_name: str, value: Any, field: str, resolved: Any) -> None:
    assert getattr(recipe_of(sharding="fsdp", fsdp={given_name: value}).sharding.fsdp, field) == resolved


def test_prefetching_is_that_of_whoever_wraps() -> None:
    assert recipe_of(sharding="fsdp").sharding.fsdp.backward_prefetch == "BACKWARD_PRE"
    assert recipe_of(sharding="fsdp", trainer="transformers").sharding.fsdp.backward_prefetch == "NO_PREFETCH"


@pytest.mark.parametrize("base", [BASE, ONE], ids=["fsdp2", "fsdp"])
def test_hybrid_sharding_holds_what_the_ranks_of_one_copy_hold(base: dict[str, Any]) -> None:
    hybrid = {"replicate": 2} if base is BASE else {"sharding_strategy": "HYBRID_SHARD", "replicate": 2}
    four, copies = ledger_of(**base | {"num_gpus": 4}), ledger_of(**base | {"fsdp": hybrid})
    assert states(copies) == states(four) > states(ledger_of(**base))


def test_hybrid_sharding_holds_what_it_adds_to_gradients_until_backward_is_done() -> None:
    """``AllReduceState``: a step's first reduction makes the gradients, a later micro-step's stands beside them."""
    held = {
        steps: sum(
            row.bytes
            for row in ledger_of(fsdp={"replicate": 2}, precision="fp32", gradient_accumulation_steps=steps).rows
            if row.name.startswith("reduced gradients")
        )
        for steps in (1, 2)
    }
    recipe = recipe_of(precision="fp32")
    assert held == {1: 0, 2: sum(unit.gradients for unit in layers_of(recipe)) // 4}


def test_accelerate_makes_units_of_the_embedding_and_of_norm_and_head() -> None:
    recipe = recipe_of(trainer="transformers")
    own = groups_of(recipe)
    told = recipe_of(fsdp={"own_ends": True})
    assert groups_of(told) == own
    matrix = 1000 * 256 * 2
    assert tuple(sizes.unit.gathered for sizes in own.ends) == (0, matrix, matrix + 256 * 2)
    plain = recipe_of()
    assert groups_of(plain).root.unit.gathered == 2 * matrix + 256 * 2


def test_checkpoints_within_frozen_units_let_go_of_their_inputs_and_outputs_held_stay() -> None:
    """Around them they are held, with their gradients, by the hooks that reshard; logits are what a loop holds."""
    keys: dict[str, Any] = {
        "sharding": "fsdp", "trainer": "transformers", "trainer_version": "4.38", "lora": {"r": 8}, "num_gpus": 2,
        "gradient_checkpointing": "full", "gradient_checkpointing_reentrant": True, "sequence_length": 512,
    }  # fmt: skip
    inside = keys | {"fsdp": {"checkpoints_within": True}}
    around, within, held = ledger_of(**keys), ledger_of(**inside), ledger_of(**inside, hold_outputs=True)
    names = [{row.name for row in ledger.alive("policy.first-layer-backward")} for ledger in (around, within, held)]
    kept = [any(name.startswith("inputs of checkpoints above") for name in each) for each in names]
    assert kept == [True, False, False]
    assert max(held.totals()) - max(within.totals()) == 512 * 1000 * 4


def test_amd_cards_have_no_expandable_segments() -> None:
    for gpu, expands in (("mi300x", False), ("h100-80gb", True)):
        hardware = recipe_of(gpu=gpu, allocator={"expandable_segments": True}).hardware
        assert hardware.expandable_segments is expands


def test_a_tied_embedding_opens_the_tail() -> None:
    recipe = recipe_of(trainer="transformers", model=TINY | {"tie_word_embeddings": True})
    own = groups_of(recipe)
    assert own.opens
    assert own.first.unit.gathered == 0
    assert own.last.unit.gathered == 1000 * 256 * 2 + 256 * 2


def test_resharding_to_a_number_keeps_that_part_of_the_layers() -> None:
    always, some, never = (
        ledger_of(reshard_after_forward=how).by_category("policy.loss")["gathered_parameters"]
        for how in (True, 4, False)
    )
    layers = sum(unit.gathered for unit in layers_of(recipe_of()))
    assert some - always == pytest.approx(layers // 4, rel=3e-3)
    assert never > some


def test_stacked_experts_are_padded_to_the_ranks() -> None:
    """Four experts over eight ranks: half of every gathered layer is padding."""
    four, eight = (recipe_of(model=MIXTURE, num_gpus=ranks) for ranks in (4, 8))
    whole, padded = (layers_of(recipe)[0].gathered for recipe in (four, eight))
    experts, router = 4 * 3 * 256 * 704 * 2, 4 * 256 * 2
    assert padded - whole == experts + router


def test_gradients_wait_without_the_padding_of_their_reduction() -> None:
    recipe = recipe_of(model=MIXTURE, sync_each_batch=False, gradient_accumulation_steps=2)
    layer = layers_of(recipe)[0]
    assert layer.waiting == layer.gradients < layer.reduced


def test_layers_that_are_kept_stay_through_the_reference_behind_them() -> None:
    """LLaMA-Factory scores with the policy first: what its forward keeps gathered is there in the reference's."""
    keys = {"method": "dpo", "trainer": "llamafactory", "precision": "bf16-amp", "reshard_after_forward": 2}
    ledger = ledger_of(**keys)
    own = recipe_of(**keys)
    for instant in ("reference.gather", "reference.forward"):
        kept = [row for row in ledger.alive(instant) if row.name == "parts of gathered weights of layers"]
        whole = sum(unit.gathered for unit in layers_of(own))
        assert sum(row.bytes for row in kept) == pytest.approx(whole // 2, rel=2e-3)


def test_units_are_cast_on_one_rank_too() -> None:
    """FSDP2 computes in copies whatever the ranks; FSDP1 leaves the model as it is."""
    one, two = (recipe_of(num_gpus=ranks) for ranks in (1, 2))
    assert one.in_units
    assert two.in_units
    assert not recipe_of(num_gpus=1, sharding="fsdp").in_units


SMALL = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "vocab_size": 8000, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
MADE_AGAIN, TIED = {"gradient_checkpointing": "full"}, {"model": SMALL | {"tie_word_embeddings": True}}


@pytest.mark.parametrize(
    ("keys", "traced"),
    [
        ({"precision": "bf16-amp"}, (231499776, 305475072, 272704000)),
        ({"precision": "bf16-amp"} | MADE_AGAIN, (229109248, 305475072, 272704000)),
        ({"precision": "bf16"} | MADE_AGAIN, (125445120, 158712320, 136360448)),
        ({"precision": "bf16-amp"} | TIED | MADE_AGAIN, (171764736, 229452800, 207167488)),
        ({"precision": "bf16-amp", "lora": {"r": 8}}, (97565184, 98669568, 71782912)),
        ({"precision": "bf16-amp", "gradient_accumulation_steps": 3}, (299671552, 338245632, 272704000)),
    ],
    ids=str,
)
def test_one_rank_gathers_nothing(keys: dict[str, Any], traced: tuple[int, int, int]) -> None:
    """torch 2.13 on a process group of one: each weight is cast and copied when its unit begins, none ahead."""
    job = {"model": SMALL, "method": "sft", "trainer": "pytorch", "sharding": "fsdp2", "num_gpus": 1, "batch_size": 1,
           "sequence_length": 64, "optimizer_impl": "fused", **keys}  # fmt: skip
    recipe = resolve(read_job(job))
    found = build_report(recipe).per_gpu.phases
    assert [found[phase] for phase in ("forward", "backward", "step")] == pytest.approx(traced, rel=5e-4)
    events = step_events(recipe)
    assert events is not None
    assert events.peak == pytest.approx(max(traced), rel=5e-4)


def test_offload_moves_states_to_the_host() -> None:
    card, host = ledger_of(), ledger_of(fsdp={"cpu_offload": True})
    assert host.by_category("step.optimizer").get("optimizer_states", 0) == 0
    assert peak(host, "host") >= states(card)
    assert peak(host) < peak(card)


def test_pinned_memory_is_rounded_up() -> None:
    pinned, plain = (peak(ledger_of(fsdp={"cpu_offload": True, "pin_memory": pin}), "host") for pin in (True, False))
    assert pinned > plain


def test_packed_weights_are_split_and_scales_are_not() -> None:
    rows = {row.name: row.bytes for row in ledger_of(quantization="nf4", lora={"r": 4}).rows}
    alone = {row.name: row.bytes for row in ledger_of(quantization="nf4", lora={"r": 4}, sharding="ddp").rows}
    assert rows["quantised weights of the policy"] * 8 == alone["quantised weights of the policy"]
    assert (
        rows["scales of the quantised weights of the policy"] == alone["scales of the quantised weights of the policy"]
    )


def test_a_flat_gradient_stands_beside_those_it_is_made_of() -> None:
    rows = {row.name: row.bytes for row in ledger_of(sharding="fsdp", sequence_length=16).rows}
    layer = layers_of(recipe_of())[0].gradients
    assert rows["flat gradient of layers"] == rows["whole gradients of layers"] == layer


def test_shard_grad_op_keeps_every_layer() -> None:
    full, kept = (
        ledger_of(sharding="fsdp", fsdp={"sharding_strategy": how}).by_category("policy.loss")["gathered_parameters"]
        for how in ("FULL_SHARD", "SHARD_GRAD_OP")
    )
    layers = sum(unit.gathered for unit in layers_of(recipe_of()))
    assert kept - full == layers


def test_shard_grad_op_keeps_adapters_that_are_units() -> None:
    """accelerate's policy for PEFT wraps each: whole from its forward to its backward (_post_forward_reshard)."""
    keys = {**ONE, "trainer": "transformers", "precision": "bf16", "lora": {"r": 8}, "num_gpus": 3}
    full, kept = (
        resolve(read_job(keys | {"fsdp": {"sharding_strategy": how}})) for how in ("FULL_SHARD", "SHARD_GRAD_OP")
    )
    adapters = [each for each in model_weights(kept.model, False, kept.adapter) if each.adapter]
    whole = sum(512 * -(-(-(-each.elements // 3) * 3 * 2) // 512) * each.copies for each in adapters)
    named, at = "gathered flat parameter of an adapter", "policy.loss"
    assert sum(row.bytes for row in build_ledger(kept).alive(at) if row.name == named) == whole
    assert not any(row.name == named for row in build_ledger(full).rows)
    events = step_events(kept)
    assert events is not None
    assert events.peak == pytest.approx(max(build_ledger(kept, detailed=False).totals()), rel=5e-3)


def test_buckets_are_cut_as_the_reducer_cuts_them() -> None:
    half = InBucket(MiB // 8, 1, 4)
    cut = buckets([half] * 60, 25 * MiB, MiB)
    assert [len(bucket) for bucket in cut] == [2, 50, 8]


@pytest.mark.parametrize(("hook", "more"), [("bf16_compress_hook", True), ("powerSGD_hook", True), ("none", False)])
def test_hooks_add_buffers(hook: str, more: bool) -> None:
    keys = {"sharding": "ddp", "precision": "fp32", "ddp": {"comm_hook": hook}}
    buffers = [ledger_of(**each).by_category("policy.reduce")["buffers"] for each in (keys, keys | {"ddp": {}})]
    assert (buffers[0] > buffers[1]) == more


def flattened(keys: dict[str, Any]) -> dict[str, Any]:
    """Adapters in the weights' dtype, which torch asks for where both are in one flat parameter."""
    alone = keys["precision"] != "bf16" or keys["trainer"] != "pytorch" or not keys["lora"]
    return keys if alone else keys | {"lora": {"r": 4, "dtype": "bf16"}}


SHARDED = st.fixed_dictionaries(
    {
        "sharding": st.sampled_from(["fsdp", "fsdp2"]),
        "model": st.sampled_from([TINY, MIXTURE]),
        "trainer": st.sampled_from(["pytorch", "transformers"]),
        "precision": st.sampled_from(["bf16", "bf16-amp", "fp32"]),
        "gradient_checkpointing": st.sampled_from(["none", "full"]),
        "gradient_accumulation_steps": st.sampled_from([1, 3]),
        "sync_each_batch": st.booleans(),
        "lora": st.sampled_from([None, {"r": 4}]),
    }
).map(flattened)
PADDING = 1 << 20
"""Bytes by which tensors of a tiny model may be padded."""


@given(SHARDED, st.sampled_from([2, 4, 8, 16]))
@examples(25)
def test_more_ranks_never_hold_more_of_the_states(keys: dict[str, Any], ranks: int) -> None:
    """Up to the padding of stacked experts, of which a rank holds whole ones; hybrid sharding lies between."""
    few, many = (states(ledger_of(**keys | {"num_gpus": count})) for count in (ranks, 2 * ranks))
    assert many <= few + PADDING
    hybrid = {"replicate": 2} if keys["sharding"] == "fsdp2" else {"sharding_strategy": "HYBRID_SHARD", "replicate": 2}
    assert states(ledger_of(**keys | {"num_gpus": 2 * ranks, "fsdp": hybrid})) == few


@given(SHARDED)
@examples(20)
def test_resharding_never_raises_what_the_model_occupies(keys: dict[str, Any]) -> None:
    """Weights, gradients, states and buffers: at no instant more than where layers stay gathered."""
    two: dict[str, Any] = {"reshard_after_forward": False}
    one: dict[str, Any] = {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}
    how: tuple[dict[str, Any], dict[str, Any]] = (two if keys["sharding"] == "fsdp2" else one, {})
    kept, freed = (ledger_of(**keys | each) for each in how)

    def most(ledger: Ledger) -> int:
        return max(sum(ledger.by_category(instant).get(name, 0) for name in MODEL) for instant in ledger.schedule)

    assert most(freed) <= most(kept) + PADDING


WIDE = TINY | {"vocab_size": 64000}
POST_NORM = {
    "model_type": "opt", "hidden_size": 256, "ffn_dim": 1024, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 1000, "max_position_embeddings": 2048, "word_embed_proj_dim": 128, "do_layer_norm_before": False,
}  # fmt: skip
LATE = {"sync_each_batch": False, "gradient_checkpointing": "full"}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": WIDE, "trainer": "verl", "gradient_checkpointing": "full"},
        {"model": WIDE, "trainer": "llamafactory-v1", "sequence_length": 256},
        {"model": WIDE, "sharding": "fsdp", "gradient_accumulation_steps": 4, **LATE},
        {"model": WIDE | {"tie_word_embeddings": True}, "reshard_after_forward": False, **LATE,
         "gradient_accumulation_steps": 4},
        {"model": POST_NORM, "trainer": "trl", "lora": {"r": 8, "dora": True}, "gradient_checkpointing": "full",
         "sequence_length": 1024},
        {"model": WIDE, "sharding": "fsdp", "trainer": "transformers", "trainer_version": "4.38", "hold_outputs": True,
         "lora": {"r": 8}, "gradient_checkpointing": "full", "gradient_checkpointing_reentrant": True,
         "fsdp": {"checkpoints_within": True}, "sequence_length": 512},
    ],
    ids=["embedding-apart", "root-returns", "between-micro-steps", "tied", "outputs-cast", "checkpoints-within"],
)  # fmt: skip
def test_the_play_and_the_ledger_reach_one_peak(keys: dict[str, Any]) -> None:
    """Where a unit is reduced beside another that is gathered, where gradients wait, and where outputs are cast."""
    recipe = recipe_of(**keys)
    recorded = step_events(recipe)
    assert recorded is not None
    assert recorded.peak == pytest.approx(peak(build_ledger(recipe)), rel=0.005)


def test_an_embedding_apart_is_gathered_while_the_root_is_reduced() -> None:
    """FSDP2 ends a backward with its root, and then what else no input's gradient has reduced (verl)."""
    ledger = ledger_of(model=WIDE, trainer="verl")
    rows = {row.name: row.bytes for row in ledger.alive("policy.reduce")}
    assert rows["gathered weights of the embedding"] == 64000 * 256 * 2
    assert rows["reduce-scatter input of the root"] == (64000 * 256 + 256) * 4


def test_the_last_micro_step_reduces_what_has_waited_beside_its_own() -> None:
    """The flat gradient that waited, the one that autograd has added to it, a cast of their sum and its shard are there
    at once: 1,084,258,304 bytes in memplan trace (torch 2.13), 0.9 of that without one of them."""
    model = TINY | {"vocab_size": 64000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2}
    model |= {"num_attention_heads": 8}
    keys = {"trainer": "pytorch", "precision": "bf16-amp", "gradient_checkpointing": "full", "optimizer_impl": "fused"}
    waits = {"sync_each_batch": False, "gradient_accumulation_steps": 3, "reduce_dtype": "fp32"}
    of = resolve(read_job({**ONE, **keys, **waits, "num_gpus": 2, "sequence_length": 256, "model": model}))
    events = step_events(of)
    assert events is not None
    assert events.peak == pytest.approx(1_084_258_304, rel=2e-4)
    assert max(build_ledger(of, detailed=False).totals()) == pytest.approx(1_084_258_304, rel=2e-4)


def test_a_projectors_adapter_that_no_image_reaches_makes_a_flat_gradient() -> None:
    """The root asks for a gradient as soon as one of its weights does, and gets it through embedding and head."""
    qwen = resolve(read_job(ONE | {"model": "qwen2.5-vl-7b", "lora": {"r": 8}, "trainer": "pytorch"}))
    text = resolve(read_job(ONE | {"model": "qwen2.5-7b", "lora": {"r": 8}, "trainer": "pytorch"}))
    assert root_trains(qwen)
    assert not root_trains(text)


def test_trained_copies_of_embedding_and_head_are_units_of_their_own() -> None:
    """accelerate's policy for PEFT wraps them (``modules_to_save``): gathered for their own forward and backward, and
    reduced to shards in fp32, as memplan trace has it (torch 2.13)."""
    model = TINY | {"vocab_size": 64000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2}
    model |= {"num_attention_heads": 8}
    keys = {"trainer": "transformers", "precision": "bf16-amp", "gradient_checkpointing": "full", "num_gpus": 2}
    saved = {"lora": {"r": 8, "modules_to_save": ["embed_tokens", "lm_head"]}, "optimizer_impl": "fused"}
    events = step_events(resolve(read_job({**ONE, **keys, **saved, "sequence_length": 256, "model": model})))
    assert events is not None
    assert events.peak == pytest.approx(927_460_352, rel=2e-3)


def test_a_frozen_unit_is_whole_until_the_unit_before_is() -> None:
    """The hook that reshards it hangs behind the one that gathers: 138,840,064 bytes in memplan trace (torch 2.13)."""
    wide = TINY | {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8}
    keys = {"trainer": "trl", "lora": {"r": 8}, "gradient_checkpointing": "full", "model": wide, "num_gpus": 4}
    keys |= {"precision": "bf16-amp", "sequence_length": 128, "fsdp": {"backward_prefetch": "NO_PREFETCH"}}
    events = step_events(resolve(read_job({**ONE, **keys})))
    assert events is not None
    assert events.peak == pytest.approx(138_840_064, rel=2e-3)


@pytest.mark.parametrize(("sharding", "base", "itemsize"), [("fsdp", {}, 4), ("fsdp2", {}, 4), ("fsdp2", NF4, 2)])
def test_accelerate_trains_copies_in_fp32_but_beside_four_bits(
    sharding: str, base: dict[str, Any], itemsize: int
) -> None:
    def states(**adapter: Any) -> int:
        given = {"trainer": "llamafactory", "precision": "bf16", "sharding": sharding, **base}
        ledger = build_ledger(recipe_of(**given, lora={"r": 8, **adapter}))
        return sum(row.bytes for row in ledger.rows if row.category == "optimizer_states")

    assert states(modules_to_save=["lm_head"]) - states() == 2 * itemsize * 1000 * 256 // 8
