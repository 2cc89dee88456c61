"""Proves what the load-balancing loss of a mixture's routers costs at each instant, which trainers make and read it,
and who refuses it.
"""

from pathlib import Path
from typing import Any

import pytest

from memplan.api import as_input, estimate
from memplan.arch import parse_config
from memplan.engine.build import build_ledger
from memplan.errors import InvalidJob
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.files.documents import document_of
from memplan.frameworks.reading import read_documents
from memplan.frameworks.registry import find_framework, recognise
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

LAYERS, EXPERTS, ROWS, LENGTH = 4, 64, 2, 512
ONE = ROWS * LENGTH * EXPERTS * 2
"""Bytes of one layer's logits in half precision."""
SHAPE = {"hidden_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "vocab_size": 512}
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", **SHAPE, "num_key_value_heads": 2, "intermediate_size": 64, "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
}  # fmt: skip
FULL = {"gradient_checkpointing": "full"}
AMP = {"precision": "bf16-amp", "autocast": True}
ON = {"router_aux_loss": True}


def recipe_of(**keys: Any) -> Recipe:
    job = {"model": MIXTRAL, "trainer": "pytorch", "method": "sft", "precision": "bf16", "optimizer": "sgd"}
    return resolve(read_job({**job, "batch_size": ROWS, "sequence_length": LENGTH, **keys}))


def more(instant: str, **keys: Any) -> int:
    """Bytes that the loss adds at an instant."""
    on, off = (build_ledger(recipe_of(**keys, router_aux_loss=each), detailed=False) for each in (True, False))
    place = on.schedule.index(instant)
    return on.totals()[place] - off.totals()[place]


@pytest.mark.parametrize(
    ("instant", "keys", "expected"),
    [
        pytest.param("policy.last-layer-backward", {}, LAYERS * ONE, id="gradients of all layers' logits wait"),
        pytest.param(
            "policy.last-layer-backward",
            FULL,
            (LAYERS - 1) * ONE,
            id="above checkpoints too, whose peak has used its own",
        ),
        pytest.param("policy.last-layer-backward", AMP, LAYERS * ONE, id="and under autocast, in low precision"),
        pytest.param("policy.first-layer-backward", {}, ONE, id="down to the first layer's own"),
        pytest.param("policy.embedding-backward", {}, 0, id="and nothing is left"),
        pytest.param(
            "policy.last-layer-backward",
            FULL | {"gradient_checkpointing_reentrant": True},
            0,
            id="none where reentrant checkpoints recorded logits without a graph",
        ),
        pytest.param("policy.head-backward", {}, LAYERS * ONE, id="probabilities are gone before the head runs back"),
    ],
)
def test_gradients_of_logits_wait_from_the_loss_to_their_layer(
    instant: str, keys: dict[str, Any], expected: int
) -> None:
    assert more(instant, **keys) == expected


@pytest.mark.parametrize(("keys", "itemsize"), [({}, 2), (AMP, 4)], ids=["bf16", "autocast: softmax in fp32"])
def test_the_tail_keeps_logits_and_probabilities_of_every_layer(keys: dict[str, Any], itemsize: int) -> None:
    probabilities = LAYERS * ONE // 2 * itemsize
    transients = more("policy.forward", **keys)
    assert transients == LAYERS * ONE, "the outputs hold the logits over the head"
    assert more("policy.loss", **keys) >= LAYERS * ONE
    saved = [rows.size for rows in _tail(**keys)]
    assert saved == [probabilities]


def _tail(**keys: Any) -> list[Any]:
    """What the tail has saved of the loss when the outputs are gone."""
    from memplan.engine.micro_step import policy_plan
    from memplan.engine.tail_trace import trace_tail
    from memplan.engine.traces import Alive

    sizes = []
    for each in (True, False):
        plan = policy_plan(recipe_of(**keys, router_aux_loss=each), "policy", ROWS)
        sizes.append(trace_tail(plan.spec, plan.mode, plan.rows, plan.length, plan.head).saved.size)
    return [Alive(sizes[0] - sizes[1])]


def test_a_config_that_asks_for_it_is_a_job_that_does() -> None:
    asked = recipe_of(model=MIXTRAL | {"output_router_logits": True})
    assert asked.loss.router.policy == "read"
    assert build_ledger(asked).totals() == build_ledger(recipe_of(**ON)).totals()
    assert recipe_of(model=MIXTRAL | {"output_router_logits": True}, router_aux_loss=False).loss.router.policy == ""


@pytest.mark.parametrize(
    ("trainer", "version", "method", "asked", "made"),
    [
        ("pytorch", None, "sft", None, ""),
        ("transformers", None, "sft", True, "read"),
        ("trl", None, "sft", None, "read"),
        ("trl", "1.10", "dpo", None, "read"),
        ("trl", None, "simpo", None, ""),
        ("trl", "1.0", "sft", None, ""),
        ("trl", "0.24", "dpo", True, "read"),
        ("llamafactory", None, "sft", True, "read"),
        ("openrlhf", None, "sft", None, "unread"),
        ("openrlhf", None, "dpo", True, "read"),
        ("verl", None, "sft", None, ""),
    ],
)
def test_each_trainer_makes_it_as_its_code_does(
    trainer: str, version: str | None, method: str, asked: bool | None, made: str
) -> None:
    keys: dict[str, Any] = {"trainer": trainer, "method": method, "precision": "auto", "optimizer": "adamw"}
    keys |= {"trainer_version": version} if version else {}
    keys |= {"router_aux_loss": asked} if asked is not None else {}
    assert recipe_of(**keys).loss.router.policy == made


def test_trl_does_not_ask_where_the_coefficient_is_zero() -> None:
    keys = {"trainer": "trl", "precision": "auto", "optimizer": "adamw"}
    assert recipe_of(model=MIXTRAL | {"router_aux_loss_coef": 0.0}, **keys).loss.router.policy == ""


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"model": "llama-3-8b"}, "no load-balancing loss"),
        ({"model": "deepseek-v3"}, "no load-balancing loss"),
        ({"method": "reward"}, "never adds it"),
        ({"trainer": "verl"}, "never adds it"),
        ({"trainer": "llamafactory", "method": "dpo"}, "never adds it"),
        ({"trainer": "llamafactory", "model": "gpt-oss-20b"}, "does not reach"),
        ({"trainer": "megatron", "num_gpus": 8}, "never adds it"),
    ],
)
def test_what_cannot_make_or_read_it_refuses_the_key_by_name(keys: dict[str, Any], why: str) -> None:
    base = {"precision": "auto", "optimizer": "adamw", **keys}
    with pytest.raises(InvalidJob, match="router_aux_loss") as caught:
        recipe_of(**ON, **base)
    assert why in caught.value.message


# -- frameworks --------------------------------------------------------------------------------------------------------

FILES = {
    "llamafactory": ("stage: sft\nfinetuning_type: lora\ntemplate: x\nmoe_aux_loss_coef: 0.01\n", "job.yaml"),
    "openrlhf": (
        "deepspeed --num_gpus 8 --module openrlhf.cli.train_sft --model.model_name_or_path {model} "
        "--model.aux_loss_coef 0.01\n",
        "run.sh",
    ),
    "trl": ("trl sft --model_name_or_path {model} --router_aux_loss_coef 0.01\n", "run.sh"),
    "axolotl": (
        "base_model: {model}\nmicro_batch_size: 1\nsequence_len: 512\ndatasets: []\n"
        "overrides_of_model_config:\n  output_router_logits: true\n",
        "job.yml",
    ),
}


def read(framework: str, model: str, folder: Path) -> Recipe:
    text, name = FILES[framework]
    text = text.format(model=model) if "{model}" in text else f"model_name_or_path: {model}\n{text}"
    path = folder / name
    path.write_text(text)
    document = document_of(text, str(path), {"yaml": "yaml", "yml": "yaml", "sh": "shell"}[name.partition(".")[2]])
    return resolve(read_documents([(document, recognise(document) or find_framework(framework))], {}))


@pytest.mark.parametrize("framework", FILES)
def test_switches_of_frameworks_turn_it_on(framework: str, tmp_path: Path) -> None:
    assert read(framework, "mixtral-8x7b", tmp_path).loss.router.policy == "read"


@pytest.mark.parametrize("framework", FILES)
def test_a_switch_that_reaches_no_router_is_remarked_and_nothing_more(framework: str, tmp_path: Path) -> None:
    found = read(framework, "llama-3-8b", tmp_path)
    assert found.loss.router.policy == ""
    assert any("router_aux_loss" in each and "no load-balancing loss" in each for each in found.provenance.warnings)


@pytest.mark.parametrize(
    ("framework", "keys", "word"),
    [
        ("trl", {"router_aux_loss": False}, "router_aux_loss_coef: 0.0"),
        ("trl", {"method": "simpo", **ON}, "output_router_logits: true"),
        ("llamafactory", ON, "moe_aux_loss_coef: 0.001"),
        ("openrlhf", {"sharding": "zero3", **ON}, "--model.aux_loss_coef 0.001"),
        ("axolotl", ON, "output_router_logits: true"),
    ],
)
def test_files_say_it_again(framework: str, keys: dict[str, Any], word: str) -> None:
    job = {"model": "mixtral-8x7b", "method": "sft", "batch_size": 1, "sequence_length": 512, "num_gpus": 8, **keys}
    written = emit(as_input(job), find_framework(framework))
    assert word in "\n".join(written.texts.values())
    assert resolve(written.read_back(as_input(job).job)).loss.router == resolve(written.given).loss.router


def test_the_report_gives_the_key_back() -> None:
    report = estimate(
        {"model": "mixtral-8x7b", "method": "sft", "trainer": "trl", "batch_size": 1, "sequence_length": 512}
    )
    assert report.job["router_aux_loss"] is True
    assert any("one-hot" in each for each in report.assumptions)
    again = estimate({**report.job, "router_aux_loss": False})
    assert again.per_gpu.allocated_bytes <= report.per_gpu.allocated_bytes


def test_models_without_routers_know_no_such_loss() -> None:
    dense = parse_config({"model_type": "llama", **SHAPE}, "cut")
    sparse = parse_config({**MIXTRAL}, "cut")
    assert (dense.router_loss, sparse.router_loss) == ("none", "off")


@pytest.mark.parametrize("family", ["granitemoe", "phimoe"])
@pytest.mark.parametrize(
    ("keys", "runs"),
    [
        ({"method": "sft"}, False), ({"method": "dpo"}, False), ({"method": "sft", "trainer_version": "1.9"}, False),
        ({"method": "sft", "router_aux_loss": False}, True), ({"method": "dpo", "trainer_version": "1.9"}, True),
        ({"method": "orpo"}, True), ({"method": "sft", "trainer": "transformers"}, True),
    ],
)  # fmt: skip
def test_trl_fails_where_its_own_loss_asks_a_config_for_num_experts(
    family: str, keys: dict[str, Any], runs: bool
) -> None:
    job = {"trainer": "trl", "model": {"model_type": family}, **keys}
    if runs:
        assert resolve(read_job(job)).model.family == family
        return
    with pytest.raises(InvalidJob) as caught:
        resolve(read_job(job))
    assert "reads num_experts" in caught.value.message
    assert "router_aux_loss_coef: 0" in caught.value.hint
