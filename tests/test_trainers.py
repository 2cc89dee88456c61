"""Proves that every trainer × method × era is priced or refused by name, and that heads cost what their sources say.

Bytes per logit at the peaks were measured on CPU with a tracker of live ATen storages over the trainers' own code, or
follow from the code that a row names; where PyTorch scatters in place on a card and the tape, as a dispatch mode does,
out of place, or sums two gradients, the tape's figure is 2 or 4 bytes more in backward.
"""

from itertools import pairwise
from typing import Any

import pytest
from traced_jobs import SMALL

from memplan.engine.build import build_ledger
from memplan.engine.losses.head_of_pass import reference_head, rollout_head
from memplan.engine.micro_step import stages
from memplan.engine.traces import Alive
from memplan.errors import InvalidJob
from memplan.moments import phase_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe
from memplan.tables.choices import CHOICES
from memplan.tables.trainer import Trainer
from memplan.tables.trainers import SHOWN_HEADS, TRAINERS

MODEL = {**SMALL, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 160}
MODEL |= {"head_dim": 16, "num_hidden_layers": 1}
ERAS = [era for eras in TRAINERS.values() for era in eras]
ROWS, LENGTH = 4, 256
LOGITS = ROWS * LENGTH * SMALL["vocab_size"]


def recipe_of(**keys: Any) -> Recipe:
    job = {"model": MODEL, "sequence_length": LENGTH, "batch_size": 2, "gradient_checkpointing": "none"}
    return resolve(read_job({**job, **keys}))


def name(era: Trainer) -> str:
    return f"{era.name} {era.since}".strip()


@pytest.mark.parametrize("method", ["sft", "reward", "dpo", "ipo", "kto", "orpo", "cpo", "simpo"])
@pytest.mark.parametrize("era", ERAS, ids=name)
def test_a_trainer_trains_a_method_or_names_those_it_has(era: Trainer, method: str) -> None:
    keys = {"trainer": era.name, "trainer_version": era.since or None, "method": method}
    if method in era.methods.later:
        with pytest.raises(InvalidJob, match=f"{era.title}'s {method} is not modelled yet"):
            recipe_of(**keys)
        return
    if era.methods.names and method not in era.methods.names:
        with pytest.raises(
            InvalidJob, match=f"{era.title}( {era.since})? has no {method}: it trains {era.methods.names[0]}"
        ) as caught:
            recipe_of(**keys)
        assert "use trainer: " in caught.value.hint
        assert era.name not in caught.value.hint.split(",")[0].split()
        return
    recipe = recipe_of(**keys)
    assert max(build_ledger(recipe, detailed=False).totals()) > 0
    again = resolve(read_job({key: value for key, value in recipe.provenance.job.items() if value is not None}))
    assert again.loss.head == recipe.loss.head, "the job as reported asks for the same code"


def coefficients(keys: dict[str, Any]) -> tuple[float, float, float]:
    """Bytes per logit: most in forward over all passes, most in backward, kept when backward starts."""
    rows = ROWS if recipe_of(**keys).method.pairs else ROWS // 2
    recipe = recipe_of(**keys, **({} if rows == ROWS else {"batch_size": ROWS}))
    most = {"forward": 0.0, "backward": 0.0}
    held = 0.0
    for traced, point in stages(recipe):
        tail = traced.tail
        peaks = tail.forward if point == "forward" else tail.backward
        largest = max(logits(alive) for alive in peaks.values())
        most[point] = max(most[point], largest + (held if point == "forward" else 0))
        held += logits(tail.saved) if point == "forward" else 0
    kept = logits(next(traced for traced, point in stages(recipe) if point == "backward").tail.saved)
    return round(most["forward"], 1), round(most["backward"], 1), round(kept, 1)


def logits(alive: Alive) -> float:
    found: float = sum(size for tag, size in alive.tags.items() if tag.category == "logits") / LOGITS
    return found


AMP = {"precision": "bf16-amp"}
BF16 = {"precision": "bf16", "autocast": False}
COEFFICIENTS: dict[str, tuple[dict[str, Any], tuple[float, float, float]]] = {
    "TRL to 0.15, DPO": ({"trainer": "trl", "trainer_version": "0.14", "method": "dpo", **AMP}, (12, 12, 4)),
    "TRL to 0.15, SimPO": ({"trainer": "trl", "trainer_version": "0.14", "method": "simpo", **AMP}, (8, 12, 8)),
    "TRL 0.24, SimPO": ({"trainer": "trl", "trainer_version": "0.24", "method": "simpo", **AMP}, (6, 16, 4)),
    "TRL 0.24, SimPO in bf16": ({"trainer": "trl", "trainer_version": "0.24", "method": "simpo", **BF16}, (4, 4, 4)),
    "TRL 0.24, CPO": ({"trainer": "trl", "trainer_version": "0.24", "method": "cpo", **AMP}, (8, 18, 6)),
    "TRL 1.9, DPO": ({"trainer": "trl", "trainer_version": "1.9", "method": "dpo", **AMP}, (13.5, 16, 4)),
    "TRL 1.14, SimPO": ({"trainer": "trl", "trainer_version": "1.14", "method": "simpo", **AMP}, (6, 8, 4)),
    "TRL 1.14, SimPO in bf16": ({"trainer": "trl", "trainer_version": "1.14", "method": "simpo", **BF16}, (2, 4, 2)),
    "TRL 1.14, DPO": ({"trainer": "trl", "trainer_version": "1.14", "method": "dpo", **AMP}, (10, 8, 4)),
    "TRL 1.14, DPO in bf16": ({"trainer": "trl", "trainer_version": "1.14", "method": "dpo", **BF16}, (5, 4, 2)),
    "TRL 1.14, KTO": ({"trainer": "trl", "trainer_version": "1.14", "method": "kto", **AMP}, (14, 8, 4)),
    "TRL 1.14, CPO": ({"trainer": "trl", "trainer_version": "1.14", "method": "cpo", **AMP}, (8, 12, 6)),
    "LLaMA-Factory, SimPO": ({"trainer": "llamafactory", "method": "simpo", **BF16}, (8, 12, 8)),
    "LLaMA-Factory, DPO": ({"trainer": "llamafactory", "method": "dpo", **BF16}, (16, 12, 8)),
    "LLaMA-Factory, KTO": ({"trainer": "llamafactory", "method": "kto", **BF16}, (20, 12, 8)),
    "princeton-nlp/SimPO": ({"trainer": "simpo-repo", "method": "simpo", **AMP}, (8, 12, 8)),
    "OpenRLHF, DPO": ({"trainer": "openrlhf", "method": "dpo"}, (10, 8, 4)),
    "MindSpeed, SimPO": ({"trainer": "mindspeed", "method": "simpo"}, (8, 12, 4)),
    "MindSpeed, DPO": ({"trainer": "mindspeed", "method": "dpo"}, (16, 16, 4)),
    "NeMo-Aligner, DPO": ({"trainer": "nemo-aligner", "method": "dpo"}, (12, 20, 4)),
    "verl": ({"trainer": "verl", "method": "sft"}, (2, 2, 2)),
    "slime before #1788": ({"trainer": "slime", "trainer_version": "0.2", "method": "sft"}, (8, 10, 4)),
    "slime before, entropy": (
        {"trainer": "slime", "trainer_version": "0.2", "method": "sft", "entropy": "metric"},
        (16, 14, 12),
    ),
    "slime #1788, entropy": (
        {"trainer": "slime", "trainer_version": "0.3", "method": "sft", "entropy": "metric"},
        (12, 10, 4),
    ),
    "slime, one softmax": ({"trainer": "slime", "method": "sft"}, (8, 6, 4)),
}


@pytest.mark.parametrize("case", COEFFICIENTS)
def test_bytes_per_logit_of_a_trainer(case: str) -> None:
    """But for each row's last position, which few losses read."""
    keys, expected = COEFFICIENTS[case]
    assert coefficients(keys) == pytest.approx(expected, rel=0.006)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "sft", "entropy": "loss"}, "entropy: cross-entropy makes no log-probabilities"),
        ({"method": "sft", "temperature": 0.7}, "temperature: cross-entropy makes no log-probabilities"),
        ({"method": "reward", "recompute_loss": True}, "recompute_loss: a scalar head has no vocabulary"),
        ({"method": "dpo", "loss_head": "cut-cross-entropy"}, "gives no log-probabilities for dpo"),
        (
            {"trainer": "trl", "method": "dpo", "reference": "offloaded"},
            "reference: TRL keeps no reference on the host",
        ),
        ({"trainer": "slime", "method": "sft", "sharding": "zero2"}, "sharding: slime runs on Megatron"),
        ({"temperature": 0}, "temperature"),
        ({"trainer": "nemo-aligner", "method": "dpo", "entropy": "metric"}, "entropy: NeMo-Aligner's dpo makes none"),
        ({"trainer": "trl", "method": "online-dpo", "entropy": "loss"}, "entropy: TRL's online-dpo has no such option"),
        ({"method": "online-dpo", "sft_term": True}, "sft_term: online-dpo generates both completions"),
        ({"trainer": "llamafactory", "method": "sft", "loss_head": "selective"}, "takes the model's own loss"),
        ({"trainer": "trl", "method": "sft", "loss_head": "selective"}, "takes the model's own loss"),
        ({"trainer": "slime", "method": "sft", "precision": "bf16-amp"}, "precision: slime runs no autocast"),
    ],
)
def test_what_a_head_does_not_do_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        recipe_of(**keys)


def peak(**keys: Any) -> int:
    """The forward's and backward's peak: the optimizer's step is not what heads change."""
    ledger = build_ledger(recipe_of(**keys), detailed=False)
    return max(t for i, t in zip(ledger.schedule, ledger.totals(), strict=True) if phase_of(i) != "step")


@pytest.mark.parametrize(
    "trainer",
    [
        name
        for name, eras in TRAINERS.items()
        if "dpo" in (eras[-1].methods.names or ["dpo"]) and eras[-1].loss.heads.get("*") != "megatron-cross-entropy"
    ],
)
def test_entropy_temperature_and_an_sft_term_never_cost_less(trainer: str) -> None:
    version = "1.13" if trainer == "trl" else None
    keys = {"trainer": trainer, "trainer_version": version, "method": "dpo"}
    made = ("none",) if trainer == "nemo-aligner" else CHOICES["entropy"]
    sizes = [peak(**keys, entropy=entropy) for entropy in made]
    assert all(a <= b for a, b in pairwise(sizes)), sizes
    assert peak(**keys, temperature=0.7) >= sizes[0]
    assert peak(**keys, sft_term=True) >= peak(**keys, sft_term=False)


def test_a_recomputed_loss_keeps_less_of_an_entropy() -> None:
    keys = {"method": "simpo", "entropy": "loss", "loss_head": "log-softmax"}
    saved = [stages(recipe_of(**keys, recompute_loss=again))[0][0].tail.saved.size for again in (False, True)]
    assert saved[1] < saved[0] / 2


@pytest.mark.parametrize("head", ["fused", "chunked"])
@pytest.mark.parametrize("method", ["sft", "dpo", "kto", "simpo"])
def test_heads_without_logits_do_not_grow_with_them(head: str, method: str) -> None:
    """Twice the tokens cost less than a byte for each logit more."""
    long = [peak(method=method, loss_head=head, batch_size=16, sequence_length=n) for n in (2048, 4096)]
    rows = 16 * (2 if recipe_of(method=method).method.pairs else 1)
    assert long[1] - long[0] < rows * 2048 * SMALL["vocab_size"]


def test_liger_keeps_the_gradients_that_it_makes_in_forward() -> None:
    """liger-kernel 0.8.5: hidden states and head in their own dtype, and logits of a chunk about as large as they."""
    recipe = recipe_of(method="sft", kernels="liger")
    (policy, _), _ = stages(recipe)
    kept = {tag.label: size for tag, size in policy.tail.saved.tags.items()}
    assert kept["head gradient made in forward"] == SMALL["vocab_size"] * 64 * 2
    assert kept["hidden gradient made in forward"] == 2 * LENGTH * 64 * 2
    chunk = next(tag for tag in policy.tail.forward["loss"].tags if tag.label == "logits of a chunk")
    assert chunk.elements == 2 * SMALL["vocab_size"], "512 tokens over 500 rounds"


@pytest.mark.parametrize(("version", "measured"), [("1.6", 61_496_340), ("1.9", 22_866_068)])
def test_ligers_grpo_loss_takes_what_its_own_code_was_measured_to_take(version: str, measured: int) -> None:
    """Live storages of LigerFusedLinearGRPOLoss on CPU, compiled off, 4 x 128 tokens, h 64, V 32,000, its inputs left
    out: liger-kernel 0.6.2, which TRL before 1.7 may have, and 0.8.5. What scores alone makes logits, as without it.
    """
    keys = {"method": "grpo", "trainer": "trl", "trainer_version": version, "precision": "bf16", "batch_size": 4}
    found = recipe_of(**keys, completion_length=128, kernels="liger")
    loss = stages(found)[0][0].tail.forward["loss"]
    inputs = ("residual stream", "norm outputs", "norm statistics")
    assert loss.size - sum(size for tag, size in loss.tags.items() if tag.label in inputs) == pytest.approx(
        measured, rel=1e-3
    )
    plain = recipe_of(**keys, completion_length=128)
    assert rollout_head(found, 4) == rollout_head(plain, 4)
    assert reference_head(found, 4, 2) == reference_head(plain, 4, 2)


@pytest.mark.parametrize(("version", "head"), [("0.24", "selective"), ("0.27", "liger-policy")])
def test_ligers_kernels_bring_its_grpo_loss_where_the_trainer_takes_the_one_switch_for_both(
    version: str, head: str
) -> None:
    keys = {"method": "grpo", "trainer": "trl", "trainer_version": version, "precision": "bf16"}
    assert recipe_of(**keys, kernels="liger").loss.head == head
    assert recipe_of(**keys, loss_head="fused").loss.head == "liger-policy"


def test_a_swapped_reference_takes_no_room_of_its_own() -> None:
    keys = {"method": "dpo", "trainer": "nemo-aligner"}
    recipe = recipe_of(**keys)
    assert (recipe.others.reference, recipe.others.residents) == ("offloaded", ())
    assert peak(**keys) < peak(**keys, reference="resident")


def test_megatron_states_are_eighteen_bytes_a_parameter() -> None:
    recipe = recipe_of(trainer="slime", method="sft")
    assert recipe_of(trainer="slime", method="sft", num_gpus=2).sharding.name == "distributed-optimizer"
    ledger = build_ledger(recipe)
    states = ledger.by_category(ledger.schedule[0])
    total = sum(states[kind] for kind in ("parameters", "gradients", "master_weights", "optimizer_states"))
    assert total == pytest.approx(18 * recipe.model.params.total, rel=1e-3)


def test_every_shown_head_is_one_that_a_job_can_ask_for() -> None:
    assert set(SHOWN_HEADS.values()) <= set(CHOICES["loss_head"])


@pytest.mark.parametrize(("trainer", "twice"), [("litgpt", True), ("trl", False)])
def test_litgpts_model_has_a_head_of_its_own(trainer: str, twice: bool) -> None:
    found = recipe_of(model=SMALL | {"tie_word_embeddings": True}, method="sft", trainer=trainer)
    assert found.model.tied is not twice
    assert any("the embeddings of" in said and "there twice" in said for said in found.provenance.assumptions) is twice
    tied = recipe_of(model=SMALL | {"tie_word_embeddings": True}, method="sft").model.params.total
    assert found.model.params.total - tied == (SMALL["vocab_size"] * SMALL["hidden_size"] if twice else 0)


@pytest.mark.parametrize(
    ("trainer", "method", "drops"),
    [("trl", "sft", True), ("trl", "dpo", False), ("trl", "grpo", True), ("trl", "reward", False),
     ("llamafactory", "simpo", False), ("llamafactory", "sft", True), ("openrlhf", "dpo", True)],
)  # fmt: skip
def test_some_trainers_turn_the_adapters_dropout_off(trainer: str, method: str, drops: bool) -> None:
    recipe = recipe_of(trainer=trainer, method=method, lora={"r": 8, "dropout": 0.05})
    assert recipe.adapter is not None
    assert recipe.adapter.dropout is drops
    assert drops != any("turns dropout off" in line for line in recipe.provenance.assumptions)


@pytest.mark.parametrize(
    ("method", "keys", "precision"),
    [
        ("cpo", {}, "bf16"), ("simpo", {}, "bf16"), ("orpo", {}, "bf16"), ("dpo", {}, "bf16-amp"),
        ("cpo", {"trainer_version": "0.24"}, "bf16-amp"), ("orpo", {"dtype": "fp16"}, "fp16-amp"),
        ("cpo", {"model": SMALL | {"torch_dtype": "float32"}}, "bf16-amp"),
    ],
)  # fmt: skip
def test_trl_loads_the_policy_of_cpo_and_orpo_by_the_checkpoints_dtype(
    method: str, keys: dict[str, Any], precision: str
) -> None:
    recipe = recipe_of(trainer="trl", method=method, **keys)
    assert recipe.storage.precision.name == precision
    assert recipe.numerics.autocast == 2


@pytest.mark.parametrize(
    ("trainer", "version", "said"),
    [
        ("litgpt", "0.1", "LitGPT 0.5 alone was read"),
        ("openrlhf", "0.3.1", "OpenRLHF 0.11 alone was read"),
        ("openrlhf", "0.11.2", None),
        ("torchtune", "0.2", None),
        ("xtuner", "0.1", "XTuner was read at one commit"),
        ("pytorch", "2.9", "a bare loop has no versions"),
    ],
)
def test_a_version_that_decides_nothing_is_said(trainer: str, version: str, said: str | None) -> None:
    told = recipe_of(trainer=trainer, trainer_version=version, method="sft").provenance.warnings
    assert [(said or "") in text for text in told if "decides nothing" in text] == [True] * bool(said)
