"""Proves that a play of a few layers, unfolded, is the play of all of them: every event, in its order."""

from typing import Any

import pytest
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from memplan.engine.micro_step import stages
from memplan.engine.parallel.fsdp1.flat_parameters import fullest_rank
from memplan.engine.play.folding import Fold, FoldedPlayer, fold_of
from memplan.engine.play.other_ranks import of_rank
from memplan.engine.play.unfolding import Unfolded, Unlike, played
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 3000, "hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
SLIDING = {**TINY, "model_type": "gemma2", "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 128}
EXPERTS = {
    **TINY, "model_type": "deepseek_v3", "first_k_dense_replace": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 96, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "n_group": 2, "topk_group": 1, "num_key_value_heads": 4,
}  # fmt: skip
ONE: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointed": {"gradient_checkpointing": True},
    "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_reentrant": True},
    "every third": {"gradient_checkpointing": "every:3"},
    "selective": {"gradient_checkpointing": "selective"},
    "by number": {"gradient_checkpointing": "full:7"},
    "two ways": {"gradient_checkpointing": "full:1,keep-matmuls:10"},
    "autocast": {"precision": "bf16-amp", "gradient_accumulation_steps": 4},
    "lora": {"lora": {"r": 8, "dropout": 0.1}, "gradient_checkpointing": True},
    "frozen below": {"freeze": ["layers.0.", "embed_tokens"]},
    "lomo": {"optimizer": "lomo"},
    "dpo": {"method": "dpo"},
    "gradcache": {"method": "simpo", "pair_pass": "gradcache"},
    "two forwards": {"method": "simpo", "pair_pass": "two-forward", "gradient_checkpointing": True},
    "qlora": {"lora": {"r": 8}, "quantization": "nf4", "gradient_checkpointing": True},
}
SEVERAL: dict[str, dict[str, Any]] = {
    "ddp": {"sharding": "ddp"},
    "ddp, views": {"sharding": "ddp", "gradient_as_bucket_view": True},
    "fsdp, qlora": {
        "num_gpus": 2,
        "sharding": "fsdp",
        "lora": {"r": 8},
        "quantization": "nf4",
        "gradient_checkpointing": True,
    },
    "fsdp, lora": {"num_gpus": 2, "sharding": "fsdp", "lora": {"r": 8}, "trainer": "transformers", "autocast": False},
    "fsdp": {"sharding": "fsdp", "gradient_accumulation_steps": 2},
    "fsdp2": {"sharding": "fsdp2", "method": "dpo"},
    "fsdp2, kept": {"sharding": "fsdp2", "reshard_after_forward": False},
    "fsdp2, in parts": {"sharding": "fsdp2", "reshard_after_forward": 2},
    "fsdp2, late": {"sharding": "fsdp2", "sync_each_batch": False, "gradient_accumulation_steps": 3},
    "fsdp2, on the host": {"sharding": "fsdp2", "fsdp": {"cpu_offload": True}},
}
JOBS = {**ONE, **{name: {"num_gpus": 4, **keys} for name, keys in SEVERAL.items()}}


def recipe(**keys: Any) -> Recipe:
    return resolve(read_job({"model": TINY, "method": "sft", "batch_size": 2, "sequence_length": 300, **keys}))


def fold(of: Recipe) -> Fold | None:
    return fold_of([traced.plan for traced, _ in stages(of)])


def deeper(model: dict[str, Any], layers: int) -> dict[str, Any]:
    return {**model, "num_hidden_layers": layers}


def check(of: Recipe) -> None:
    """The same, and not by playing it whole."""
    by = fold(of)
    assert by is not None
    player = FoldedPlayer(of, by)
    start = player.steps(2)
    found, whole = Unfolded(player.tape, by).whole(start), played(of, folds=False)
    assert len(player.tape.events) < len(whole.events)
    assert found.events == whole.events
    assert found._replace(events=()) == whole._replace(events=())


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_it_is_the_play_of_all_layers(name: str) -> None:
    check(recipe(**{**JOBS[name], "model": deeper(TINY, 16)}))


@pytest.mark.slow
def test_layers_that_hold_each_others_weights_are_all_played() -> None:
    """With ``forward_prefetch`` a layer's gradients live on into the next one's backward."""
    ahead = {"num_gpus": 4, "sharding": "fsdp", "fsdp": {"forward_prefetch": True}, "gradient_checkpointing": True}
    of = recipe(**ahead, model=deeper(TINY, 16))
    with pytest.raises(Unlike):
        check(of)
    assert played(of) == played(of, folds=False)


@pytest.mark.parametrize(
    ("model", "period", "template"), [(deeper(SLIDING, 14), 2, 4), (deeper(EXPERTS, 12), 1, 5), (deeper(TINY, 9), 1, 3)]
)
def test_layers_repeat_by_what_they_are(model: dict[str, Any], period: int, template: int) -> None:
    of = recipe(model=model)
    by = fold(of)
    assert by is not None
    assert (by.period, by.template) == (period, template)
    check(of)


@pytest.mark.slow
@examples(12)
@given(
    st.sampled_from((TINY, SLIDING, EXPERTS)),
    st.integers(8, 24),
    st.sampled_from(tuple(JOBS)),
    st.sampled_from((None, 1, 2, 4)),
)
def test_at_every_depth(model: dict[str, Any], layers: int, name: str, every: int | None) -> None:
    again = {"gradient_checkpointing": f"every:{every}"} if every else {}
    try:
        of = recipe(**{**JOBS[name], **again, "model": deeper(model, layers)})
    except InvalidJob:  # of experts, dropout of adapters and checkpoints by operations are refused
        assume(model is not EXPERTS)
        raise
    if fold(of):
        check(of)


@pytest.mark.slow
def test_a_layer_that_reaches_over_those_left_out_is_played_whole() -> None:
    """Gradients that waited for another graph's: the last layer of one lets go of the first layer's of the other."""
    keys: dict[str, Any] = {"sync_each_batch": False, "pair_pass": "two-forward", "gradient_accumulation_steps": 4}
    of = recipe(model=deeper(TINY, 12), num_gpus=4, sharding="fsdp2", method="simpo", **keys)
    by = fold(of)
    assert by is not None
    player = FoldedPlayer(of, by)
    start = player.steps(2)
    with pytest.raises(Unlike, match="reaches over"):
        Unfolded(player.tape, by).whole(start)
    assert played(of) == played(of, folds=False)


def test_layers_that_do_not_play_alike_are_refused() -> None:
    of = recipe()
    by = fold(of)
    assert by is not None
    player = FoldedPlayer(of, by)
    start, tape = player.steps(2), player.tape
    at = next(piece.first_event for piece in tape.pieces if piece.layer == by.behind)
    tape.events[at] = tape.events[at][0], tape.events[at][1] + 512
    with pytest.raises(Unlike, match="alike"):
        Unfolded(tape, by).whole(start)


def test_what_goes_layer_by_layer_behind_the_layers_is_not_folded() -> None:
    assert fold(recipe(model=deeper(TINY, 6))) is None
    mixtral = {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert fold(recipe(model=mixtral)) is not None
    assert fold(recipe(model={**mixtral, "output_router_logits": True})) is None


@pytest.mark.parametrize("keys", [{}, {"optimizer_impl": "loop"}, {"gradient_accumulation_steps": 2}])
def test_the_play_of_a_rank_is_that_of_another_but_for_its_optimizer(keys: dict[str, Any]) -> None:
    """With the fullest rank's own pieces put in, nothing is moved; others' have other sizes."""
    of = recipe(num_gpus=3, sharding="fsdp", fsdp={"use_orig_params": True}, **keys)
    whole, others = played(of), {rank: of_rank(played(of), of, rank) for rank in range(3)}
    same = others[fullest_rank(of)]
    assert same.sizes == whole.sizes
    assert (same.start, same.marks) == (whole.start, whole.marks)
    assert len({tuple(each.sizes) for each in others.values()}) > 1
    for each in others.values():
        live = set[int]()
        for number, size in each.events:
            assert (number in live) == (size < 0)
            live ^= {number}
        sizes = {number: size for number, size in each.events if size > 0}
        assert all(sizes[number] >= each.tags[number].elements for number in sizes)
