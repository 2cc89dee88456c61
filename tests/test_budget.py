"""Proves that a budget is kept, that a larger one gets no less, and that the search finds the best of all ways."""

import json
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

import memplan
from memplan.cli.app import main
from memplan.cost import card, seconds
from memplan.errors import UsageError
from memplan.planner.budget import read_budget, within
from memplan.planner.budget_search import Search, Sized
from memplan.planner.budget_ways import WORDS, Way, Ways, with_keys, without_ways
from memplan.report import Report
from memplan.reporting import peak
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.recompute_settings import TOLD, told
from memplan.tables.trainers import TRAINERS

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 4, "intermediate_size": 1408, "vocab_size": 1000, "head_dim": 64,
    "tie_word_embeddings": False,
}  # fmt: skip
SLIDING = {**LLAMA, "model_type": "gemma2", "query_pre_attn_scalar": 64, "sliding_window": 128}
EXPERTS = {
    **LLAMA, "model_type": "deepseek_v3", "first_k_dense_replace": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 96, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "n_group": 2, "topk_group": 1, "num_key_value_heads": 8,
}  # fmt: skip
JOB: dict[str, Any] = {
    "model": LLAMA, "method": "sft", "trainer": "pytorch", "batch_size": 2, "sequence_length": 1024,
    "gpu": "a100-80gb", "optimizer": "sgd",
}  # fmt: skip
EIGHT: dict[str, Any] = {"num_gpus": 8, "optimizer": "adamw"}
JOBS: dict[str, dict[str, Any]] = {
    "one card": JOB,
    "adapters": {**JOB, "lora": {"r": 8}},
    "kinds in turn": {**JOB, "model": SLIDING},
    "dpo": {**JOB, "method": "dpo"},
    "fsdp2": {**JOB, **EIGHT, "sharding": "fsdp2"},
    "zero3": {**JOB, **EIGHT, "sharding": "zero3", "trainer": "trl"},
    "trl": {**JOB, "trainer": "trl"},
    "torchtune": {**JOB, "trainer": "torchtune"},
    "megatron": {**JOB, **EIGHT, "trainer": "megatron", "tensor_parallel": 2},
    "stages": {**JOB, **EIGHT, "trainer": "megatron", "pipeline_parallel": 3, "num_gpus": 3,
               "gradient_accumulation_steps": 6},
    "experts": {**JOB, **EIGHT, "model": EXPERTS, "trainer": "megatron", "expert_parallel": 4},
    "openrlhf": {**JOB, **EIGHT, "trainer": "openrlhf", "sharding": "zero2"},
}  # fmt: skip
OFFSETS = (0.0, 0.2, 0.5, 0.8, 0.999)


def allocated(way: Way) -> int:
    return peak(way.recipe).allocated.high


@lru_cache(maxsize=64)
def searched(name: str) -> tuple[Search, Ways, tuple[Sized, ...]]:
    """A job's search, its ways, and every one of them."""
    ways = Ways(without_ways(read_job(JOBS[name])))
    gpu = ways.none.recipe.hardware.gpu
    assert gpu is not None
    on, starts, first = card(gpu), [], 0
    for run in ways.none.recipe.model.runs:
        starts.append(first)
        first += run.count
    grids = list(ways.grids())
    search = Search(grids, lambda way: seconds(way.recipe, on), allocated, ways.none, starts)
    every = [search.kept]
    for grid in grids:
        numbers = range(grid.most + 1)
        pairs = product(numbers, (0,) if grid.single else numbers)
        every += [search.sized(grid, a, b) for a, b in pairs if a + b <= grid.most]
    return search, ways, tuple(every)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_the_fastest_is_the_fastest_of_all_ways(name: str) -> None:
    search, _, every = searched(name)
    sizes = sorted({each.bytes for each in every})
    assert len(sizes) > 1
    for budget in [sizes[0] - 1, *(size + more for size in sizes for more in (0, 1))]:
        found = search.best(budget)
        fitting = [each.order for each in every if each.bytes <= budget]
        assert (found.order if found else None) == min(fitting, default=None), (name, budget)
    assert search.least().bytes == sizes[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_ways_are_what_the_job_with_their_keys_is(name: str) -> None:
    """Grids are resolved once: every way again, from a job that says it."""
    _, ways, every = searched(name)
    gpu = ways.none.recipe.hardware.gpu
    assert gpu is not None
    for each in every:
        anew = resolve(with_keys(ways.given, each.way.keys))
        assert (peak(anew).allocated.high, seconds(anew, card(gpu))) == (each.bytes, each.seconds), each.way.name


@pytest.mark.slow
@examples(20)
@given(st.sampled_from(["adapters", "fsdp2", "trl", "megatron"]), st.floats(0, 1.1), st.floats(0, 1.1))
def test_a_larger_budget_gets_no_slower_and_no_smaller(name: str, one: float, other: float) -> None:
    search = searched(name)[0]
    low, high = search.least().bytes, search.kept.bytes
    first, second = (search.best(int(low + share * (high - low))) for share in sorted((one, other)))
    assert first is not None
    assert second is not None
    assert second.seconds <= first.seconds
    assert second.bytes >= first.bytes
    assert first.bytes <= low + min(one, other) * (high - low) + 1


def bands(report: Report) -> list[tuple[int, int, int]]:
    meters = report.per_gpu.allocated_range, report.per_gpu.device_bytes, report.per_gpu.reserved_bytes
    return [(of.low, report.per_gpu.allocated_bytes, of.high) for of in meters]


@pytest.mark.slow
@pytest.mark.parametrize("meter", ["device", "allocated"])
@pytest.mark.parametrize("name", ["one card", "adapters", "fsdp2", "zero3", "megatron"])
def test_a_plan_stays_within_and_is_what_estimate_says(name: str, meter: str) -> None:
    given_ = read_job({**JOBS[name], "gpu": "a100-80gb"})
    whole = within(given_, 1 << 36, meter).budget
    assert whole is not None
    assert whole.all_kept
    key = f"{meter}_bytes"
    sizes = [getattr(row, key) for row in whole.rows]
    before: tuple[float, int] | None = None
    for share in OFFSETS:
        budget = int(sizes[0] + share * (sizes[-1] - sizes[0]))
        found = within(given_, budget, meter)
        assert found.plans
        assert found.budget is not None
        plan, chosen = found.plans[0], found.budget.chosen
        report = memplan.estimate({key: value for key, value in plan.job.items() if value is not None})
        assert bands(report) == bands(plan.report)
        assert report.per_gpu.allocated_bytes == plan.report.per_gpu.allocated_bytes == chosen.allocated_bytes
        assert getattr(chosen, key) <= budget
        if before is not None:
            assert chosen.tokens_per_second >= before[0]
            assert getattr(chosen, key) >= before[1]
        before = chosen.tokens_per_second, getattr(chosen, key)


@pytest.mark.slow
def test_two_ways_of_a_layer_do_nearly_as_well_as_any_number() -> None:
    """Of all ways to give six layers one of three ways each, the best is faster by less than one layer made again."""
    search, ways, _ = searched("fsdp2")
    gpu = ways.none.recipe.hardware.gpu
    assert gpu is not None
    every = []
    for counts in product(range(7), repeat=3):
        if 0 < sum(counts) <= 6:
            how = ",".join(f"{word}:{count}" for word, count in zip(WORDS, counts, strict=True) if count)
            recipe = resolve(with_keys(ways.given, {"gradient_checkpointing": how}))
            every.append((peak(recipe).allocated.high, seconds(recipe, card(gpu))))
    assert ways.full is not None
    layer = (seconds(ways.full.recipe, card(gpu)) - search.kept.seconds) / 6
    for budget, _ in every:
        found = search.best(budget)
        assert found is not None
        assert found.seconds <= min(took for size, took in every if size <= budget) + layer


def test_every_trainer_says_how_it_is_told() -> None:
    assert set(TRAINERS) <= set(TOLD)
    assert told("trl", "Axolotl 0.19") is TOLD["axolotl"]
    assert told("pytorch", "torchtitan 0.2") is TOLD["torchtitan"]
    assert told("trl", "TRL 1.16", "unsloth") is TOLD["unsloth"]


WRITTEN = [
    ("trl", {"trainer": "trl", "lora": {"r": 8}}, ["activations"]),
    ("transformers", {"trainer": "transformers"}, []),
    ("megatron", {**EIGHT, "trainer": "megatron", "tensor_parallel": 2}, []),
    ("verl", {**EIGHT, "trainer": "verl", "sharding": "fsdp2"}, []),
    ("openrlhf", {**EIGHT, "trainer": "openrlhf", "sharding": "zero2"}, []),
    ("llamafactory", {"trainer": "llamafactory"}, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "keys", "more"), WRITTEN, ids=[row[0] for row in WRITTEN])
def test_the_lines_are_what_emit_writes(framework: str, keys: dict[str, Any], more: list[str]) -> None:
    """Every way that a trainer with files can be told, in the words that its files have."""
    from memplan.frameworks.emit.writing import emit
    from memplan.frameworks.registry import find_framework
    from memplan.planner.budget import lines

    ways = Ways(without_ways(read_job({**JOB, **keys, "model": "qwen2.5-0.5b", "optimizer": "adamw"})))
    found = [grid.at(min(2, grid.most), 0) for grid in ways.grids()]
    assert found
    assert set(more) <= set(ways.kinds())
    for way in (ways.none, *found[:6], *found[-3:]):
        texts = "\n".join(emit(with_keys(ways.given, way.keys), find_framework(framework)).texts.values())
        for line in lines(way, ways.told):
            assert all(word in texts for word in _words(line)), (line, texts)


def _words(line: str) -> list[str]:
    """The words of a line, whatever stands between them; of a comment none."""
    if line.startswith("#"):
        return []
    plain = line.replace("{", " ").replace("}", " ").replace(",", " ").replace("=", " ")
    return [word.lstrip("+-") for word in plain.split() if word.lower() not in ("true", "false")]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["plan", *arguments])
    return code, "".join(capsys.readouterr())


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB))
    return str(path)


REFUSED = [
    (["--budget", "70"], "no size"),
    (["--budget", "free:70GiB"], "no budget"),
    (["--budget", "0GiB"], "no budget"),
    (["--budget", "200GiB"], "more than a100-80gb has"),
    (["--budget", "2GiB", "--pareto"], "--budget with --pareto"),
    (["--budget", "2GiB", "--maximize", "batch_size"], "--budget with --maximize"),
    (["--budget", "2GiB", "--recompute", "full"], "gradient_checkpointing, which is given"),
    (["--budget", "2GiB", "--method", "generate"], "generate trains nothing"),
    (["--budget", "2GiB", "--method", "grpo", "--set", "rollout.engine=vllm"], "takes its share of the card"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "said"), REFUSED)
def test_a_budget_that_makes_no_sense_is_an_error(
    arguments: list[str], said: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, job, *arguments)
    assert code == 2
    assert said in text
    assert "hint:" in text


def test_a_budget_has_a_size_and_a_meter() -> None:
    assert read_budget("70GiB") == (70 << 30, "device")
    assert read_budget("Allocated: 1.5GiB") == (3 << 29, "allocated")
    with pytest.raises(UsageError):
        read_budget("allocated:")


@pytest.mark.slow
def test_the_least_and_the_most_are_said(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, job, "--budget", "100MiB")
    assert code == 1
    assert "Nothing stays within 100.0 MiB in nvidia-smi; the least is" in text
    code, text = run(capsys, job, "--budget", "60GiB")
    assert code == 0
    assert "all is kept" in text
    assert "# no gradient checkpointing" in text


@pytest.mark.slow
def test_a_plan_of_a_budget_is_emitted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = tmp_path / "job.yaml"
    keys = {**JOB, **EIGHT, "trainer": "trl", "sharding": "fsdp2", "model": "qwen2.5-1.5b"}
    small.write_text(json.dumps(keys))
    found = memplan.plan(keys, budget="allocated:8GiB")
    assert found.budget is not None
    assert found.plans
    assert found.budget.chosen.name.startswith("every:")
    code, text = run(capsys, str(small), "--budget", "allocated:8GiB", "--json")
    assert code == 0
    made = tmp_path / "plan.json"
    made.write_text(text)
    assert json.loads(text)["budget"]["lines"] == list(found.budget.lines)
    assert main(["emit", "trl", str(made)]) == 0
    assert f"every_n_layers: {found.budget.chosen.name[6:]}" in capsys.readouterr().out
