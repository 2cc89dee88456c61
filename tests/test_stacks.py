"""Proves that what layers own and what they share is all that is alive when they are played together: at every moment
of a pass both add up to the tape's own sum.
"""

from itertools import accumulate
from typing import Any

import pytest
from drawing import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from stacks import plan_of

from memplan.engine.bounds import at_least, held_at_least
from memplan.engine.kept import kept_by_layers
from memplan.engine.layers.modules import Mode
from memplan.engine.play import stacks
from memplan.engine.play.cut import Cut, Played
from memplan.engine.play.encoder_decoder import TwoStacks
from memplan.engine.play.stack import Reached, StackRun, StackTape
from memplan.engine.play.weights import Weights, listed
from memplan.engine.traces import AFTER, BACKWARD, FORWARD
from memplan.errors import InvalidJob
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.groups import Numerics, Operators
from memplan.spec.reading import read_job
from memplan.tables.styles import PassStyle

GEMMA: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 64,
    "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 512, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 128,
}  # fmt: skip
ZAMBA: dict[str, Any] = {
    "model_type": "zamba2", "vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 5, "n_mamba_heads": 8,
    "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"], "num_attention_heads": 4,
    "mamba_d_state": 32, "intermediate_size": 512, "adapter_rank": 16, "chunk_size": 64, "num_mem_blocks": 2,
}  # fmt: skip
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 512, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm", "position_buckets": 64, "share_att_key": True, "max_position_embeddings": 512,
}  # fmt: skip
T5: dict[str, Any] = {
    "model_type": "t5", "d_model": 256, "d_kv": 32, "num_heads": 8, "d_ff": 512, "num_layers": 3, "vocab_size": 512,
}  # fmt: skip
BF16, AMP = Mode(Numerics(2), Operators("sdpa")), Mode(Numerics(4, autocast=2), Operators("eager"), in_place=True)


@pytest.mark.parametrize("style", ["plain", "checkpoint", "reentrant"])
@pytest.mark.parametrize("mode", [BF16, AMP], ids=["bf16", "amp"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(GEMMA, id="inputs and keys", marks=pytest.mark.slow),
        pytest.param(ZAMBA, id="weights", marks=pytest.mark.slow),
        pytest.param(DEBERTA, id="a table"),
        pytest.param(T5, id="an encoder's output"),
    ],
)
def test_what_is_own_and_what_is_shared_is_all(config: dict[str, Any], mode: Mode, style: PassStyle) -> None:
    if style == "reentrant" and config is T5:
        pytest.skip("memplan refuses it")
    plan = plan_of(config, mode, 2, 96, style, memory=96 if config is T5 else 0)
    tape = StackTape(plan)
    kind = TwoStacks if config is T5 else StackRun
    cut = Cut(Played(tape, kind(tape, Weights(tape, {}, listed(plan.spec)), Reached(embedding=True))))
    found, live = cut.stack(), [0, *accumulate(size for _, size in tape.events)]
    layers = found.layers
    apart = [trace.casts * (style != "plain") for trace in layers]
    for place, (what, i, point) in enumerate(cut.moments):
        if what not in (FORWARD, BACKWARD, AFTER):
            continue
        one = layers[i].forward if what == FORWARD else layers[i].backward[point] if what == BACKWARD else found.after
        below = sum(trace.saved.size for trace in layers[: max(i, 0)])
        below += sum(apart[:i]) if what == FORWARD else 0
        above = sum(trace.gradients for trace in layers[i + 1 :]) if what != FORWARD else 0
        shared = sum(each.size for each in found.shared if each.first <= place <= each.last)
        assert below + one.size + above + shared == live[cut.at[place]], (what, i, point)


@given(
    config=st.sampled_from([GEMMA, ZAMBA, DEBERTA, T5]),
    method=st.sampled_from(["sft", "simpo", "dpo", "reward"]),
    keys=st.fixed_dictionaries(
        {
            "batch_size": st.integers(1, 3),
            "gradient_checkpointing": st.sampled_from(["none", "full", "every:2"]),
            "attention": st.sampled_from(["sdpa", "eager"]),
        },
        optional={
            "pair_pass": st.sampled_from(["concatenated", "two-forward", "split"]),
            "lora": st.just({"r": 8}),
            "precision": st.sampled_from(["bf16", "bf16-amp"]),
        },
    ),
)
@examples(6)
def test_what_a_search_asks_first_is_below_the_peak(config: dict[str, Any], method: str, keys: dict[str, Any]) -> None:
    try:
        found = resolve(read_job({"model": config, "method": method, "sequence_length": 64, "gpu": "80GB", **keys}))
    except InvalidJob:
        assume(False)
        raise
    assert 0 < kept_by_layers(found) < held_at_least(found) <= at_least(found) <= peak(found, search=True).device.high


def test_reentrant_checkpoints_of_some_layers_are_refused_where_others_make_the_keys() -> None:
    """Asked for, or forced by TRL on adapters under ZeRO-3."""
    forced = {"trainer": "trl", "lora": {"r": 8}, "zero_stage": 3, "num_gpus": 2}
    for keys in ({"gradient_checkpointing_reentrant": True}, forced):
        job = {"model": GEMMA, "method": "sft", **keys}
        resolve(read_job({**job, "gradient_checkpointing": "full"}))
        with pytest.raises(InvalidJob, match="refuses the second time"):
            resolve(read_job({**job, "gradient_checkpointing": "every:2"}))


@pytest.mark.parametrize("style", ["plain", "checkpoint"])
@pytest.mark.parametrize("config", [GEMMA, ZAMBA, DEBERTA, T5], ids=["gemma", "zamba", "deberta", "t5"])
@pytest.mark.parametrize("length", [96, 101], ids=["whole", "rounded"])
def test_what_many_rows_keep_follows_from_few(config: dict[str, Any], style: PassStyle, length: int) -> None:
    plan = plan_of(config, AMP, 5, length, style, memory=length if config is T5 else 0)
    kept, storages = stacks._kept(plan, Reached(embedding=True))
    found = stacks.kept_at_least(plan, Reached(embedding=True))
    assert kept - 2 * (plan.rows - 1) * storages * 512 <= found <= kept
