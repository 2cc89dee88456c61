"""The terms are complete, and the documents say what the engine does.

Every category that a ledger can hold has a term. Every formula and coefficient that MEMORY_ESTIMATION.md gives for
saved activations and loss heads is evaluated and held against the engine, and every figure against its job. Both
languages have the same structure, the same code and the same figures.
"""

# A part that a layer does not have fails when the test runs.
# mypy: disable-error-code="union-attr"

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_documents import DOCUMENTS, job_of, language_of, main, reference_table, refresh

from memplan.engine.build import build_ledger
from memplan.engine.layers.modules import Mode
from memplan.engine.layers.vision.tower_trace import copies_in
from memplan.engine.micro_step import policy_mode, policy_plan
from memplan.engine.tail_trace import TailTrace, tail_trace, trace_tail
from memplan.engine.traces import trace_layer
from memplan.errors import UsageError
from memplan.resolve import resolve
from memplan.spec.job import Job
from memplan.spec.parts import Linear, Norm
from memplan.spec.reading import canonical_key, read_job
from memplan.spec.recipe import Recipe
from memplan.spec.recompute import Recompute
from memplan.tables.terms import TERMS, Term, find_term
from memplan.tables.trainers import TRAINERS

ROOT = Path(__file__).parent.parent
PAIRS = [(name, name.replace(".md", ".zh.md")) for name in DOCUMENTS if language_of(name) == "en"]
QUICK_REFERENCES = ("MEMORY_ESTIMATION.md", "MEMORY_ESTIMATION.zh.md")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def recipe_of(**job: Any) -> Recipe:
    return resolve(read_job({"model": "llama-3-8b", "method": "sft", **job}))


# -- terms -----------------------------------------------------------------------------------------------------------

LORA = {"r": 16, "dropout": 0.1}
JOBS: list[dict[str, Any]] = [
    {"precision": "bf16", "gpu": "h100-80gb"},
    {"precision": "bf16-amp", "gradient_checkpointing": True},
    {"precision": "bf16-amp", "attention": "eager", "padded": True},
    {"method": "dpo", "trainer": "trl", "num_gpus": 8, "sharding": "ddp", "gradient_accumulation_steps": 2},
    {
        "method": "dpo",
        "lora": LORA,
        "gradient_checkpointing": True,
        "extra_models": [{"role": "reward", "model": "llama-3-8b"}],
    },
    {"method": "simpo", "num_gpus": 8, "zero_stage": 0, "trainer": "simpo-repo"},
    {"method": "simpo", "num_gpus": 8, "zero_stage": 1, "pair_pass": "split"},
    {"method": "orpo", "num_gpus": 8, "zero_stage": 2, "trainer": "trl", "trainer_version": "1.14"},
    {"method": "kto", "num_gpus": 8, "zero_stage": 3, "trainer": "trl"},
    {"method": "reward", "num_gpus": 8, "sharding": "fsdp2", "optimizer": "muon"},
    {"model": "mixtral-8x7b", "num_gpus": 8, "sharding": "fsdp2", "gradient_checkpointing": True},
    {"model": "gemma-2-2b", "optimizer": "paged-adamw-8bit", "images": {"width": 336, "height": 336}},
    {"model": "qwen3-30b-a3b", "trainer": "megatron", "num_gpus": 16, "tensor_parallel": 2, "expert_parallel": 8},
]


def emitted() -> set[str]:
    """Categories of the rows of many different jobs."""
    return {row.category for job in JOBS for row in build_ledger(recipe_of(**job)).rows}


def test_every_category_of_a_ledger_has_one_term() -> None:
    covered = [category for term in TERMS.values() for category in term.categories]
    assert len(covered) == len(set(covered))
    assert emitted() == set(covered)


def test_a_category_finds_its_term() -> None:
    for term in TERMS.values():
        for category in term.categories:
            assert find_term(category) is term


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_a_row_is_complete(term: Term) -> None:
    assert TERMS[term.key] is term
    assert len(re.findall(r"[.?](?: |$)", term.what.replace("0.1 ", ""))) == 2, "two sentences"
    assert term.title
    assert term.formula
    assert term.source
    assert term.zh.title
    assert bool(term.categories) == bool(term.lifetime) == bool(term.shards)
    assert bool(term.lifetime) == bool(term.zh.lifetime)
    assert bool(term.shards) == bool(term.zh.shards)
    assert set(term.see) <= set(TERMS) - {term.key}
    if term.zh.formula:
        assert numbers(term.zh.formula) == numbers(term.formula)


@pytest.mark.parametrize("name", QUICK_REFERENCES)
def test_every_term_has_its_section(name: str) -> None:
    anchors = set(re.findall(r'<a id="([a-z0-9-]+)"></a>', text_of(name)))
    assert {term.section for term in TERMS.values()} <= anchors


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("optimizer-states", "optimizer-states"),
        ("optimizer_states", "optimizer-states"),
        ("Optimizer states", "optimizer-states"),
        ("adam", "optimizer-states"),
        ("optimizer", "optimizer-states"),
        ("kv", "attention"),
        ("grads", "gradients"),
        ("gradient checkpointing", "checkpointing"),
        ("nvidia-smi", "meters"),
        ("激活值", "activations"),
        ("  ZeRO 3 ", "zero"),
    ],
)
def test_a_term_is_found_by_the_words_that_people_use(word: str, key: str) -> None:
    assert find_term(word).key == key


def test_an_unknown_term_is_an_error_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        find_term("optimiser-state")
    assert caught.value.message == "no term 'optimiser-state' to explain"
    assert caught.value.hint == "did you mean optimizer-states?"
    with pytest.raises(UsageError) as caught:
        find_term("xyzzy")
    assert caught.value.hint == "memplan show terms lists them"


def test_no_two_terms_share_a_word() -> None:
    seen: dict[str, str] = {}
    for term in TERMS.values():
        for word in (term.key, term.title, *term.aliases, *term.categories):
            folded = re.sub(r"[-_ ]+", "-", word.lower())
            assert seen.setdefault(folded, term.key) == term.key, word


# -- the documents are up to date --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_up_to_date(name: str) -> None:
    assert refresh(text_of(name), language_of(name)) == text_of(name), "run python tests/made_documents.py --write"


@pytest.mark.parametrize("name", QUICK_REFERENCES)
def test_the_tables_are_what_the_terms_give(name: str) -> None:
    text, language = text_of(name), language_of(name)
    assert text.split("<!-- terms:begin -->")[1].split("<!-- terms:end -->")[0].strip() == reference_table(language)


STALE = """
```yaml
model: llama-3-8b
method: sft
precision: bf16
```

<!-- figures: parameters, peak -->
| what | keys | parameters | peak |
| --- | --- | --- | --- |
| as it is | `{}` | 1.00 GiB | `x` |
| no figures yet | `{precision: fp32}` |

| another table | `{}` | stays |
"""


def test_a_stale_figure_is_brought_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "guide.md"
    path.write_text(STALE, encoding="utf-8")
    assert main([str(path)]) == 1
    assert capsys.readouterr().err == f"{path}: not up to date\n"
    assert path.read_text(encoding="utf-8") == STALE
    assert main(["--write", str(path)]) == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[10:12] == [
        "| as it is | `{}` | 14.96 GiB | `step.optimizer` |",
        "| no figures yet | `{precision: fp32}` | 29.92 GiB | `step.optimizer` |",
    ]
    assert lines[13] == "| another table | `{}` | stays |"
    assert main([str(path)]) == 0


def test_a_column_that_is_none_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        refresh(STALE.replace("figures: parameters", "figures: parameter"), "en")
    assert caught.value.message == "no column 'parameter' of figures"
    assert "parameters" in caught.value.hint


# -- formulas and coefficients -----------------------------------------------------------------------------------------


def marked_rows(name: str, mark: str) -> list[list[str]]:
    """The cells of the table that follows a mark."""
    lines = text_of(name).split(f"<!-- {mark} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def evaluate(formula: str, letters: dict[str, int]) -> int:
    """``16h + 4kv + 6Hs`` with numbers for the letters; letters that stand together are multiplied."""
    total = 0
    for term in formula.replace(" ", "").split("+"):
        match = re.fullmatch(r"(\d*)((?:kv|[A-Za-z])*)", term)
        assert match, term
        product = int(match.group(1) or 1)
        for letter in re.findall("kv|[A-Za-z]", match.group(2)):
            product *= letters[letter]
        total += product
    return total


def letters_of(recipe: Recipe) -> dict[str, int]:
    layer = recipe.model.runs[0].layer
    mixer, experts = layer.mixer, layer.feed_forward.experts
    return {
        "h": recipe.model.hidden_size,
        "q": mixer.num_heads * mixer.head_dim,
        "kv": mixer.num_kv_heads * mixer.head_dim,
        "F": experts.intermediate if experts else layer.feed_forward.intermediate,
        "H": mixer.num_heads,
        "K": mixer.num_kv_heads,
        "s": recipe.batch.sequence_length,
        "r": recipe.adapter.rank if recipe.adapter else 0,
        "E": experts.count if experts else 0,
        "k": experts.active if experts else 0,
    }


def saved_per_token(recipe: Recipe) -> float:
    """What the engine's tape of one layer keeps, without autocast's copies of weights."""
    rows, length = 8, recipe.batch.sequence_length
    trace = trace_layer(recipe.model.runs[0].layer, policy_mode(recipe), rows, length, "plain")
    return (trace.saved.size - copies_in(trace)) / (rows * length)


@pytest.mark.parametrize("name", QUICK_REFERENCES)
def test_the_formulas_of_saved_bytes_are_the_engines(name: str) -> None:
    rows = marked_rows(name, "saved-bytes")
    assert len(rows) > 15
    for _, keys, formula, figure in rows:
        given = yaml.safe_load(keys.strip("`"))
        for model in [given["model"]] if "model" in given else ["llama-3-8b", "mistral-nemo-12b"]:
            recipe = recipe_of(**{**given, "model": model}, sequence_length=1024)
            expected = evaluate(formula.strip("`"), letters_of(recipe))
            assert saved_per_token(recipe) == pytest.approx(expected, abs=20), (keys, model)
            if model != "mistral-nemo-12b":
                assert f"{expected:,}" == figure, keys


def test_the_lines_of_a_llama_layer_add_up_to_its_formula() -> None:
    rows = text_of("MEMORY_ESTIMATION.md").split("| line of the model |")[1].split("\n\n")[0].splitlines()[2:]
    cells = " + ".join(row.strip("|").split("|")[-1].strip() for row in rows)
    letters = letters_of(recipe_of(precision="bf16", sequence_length=1024))
    assert evaluate(cells, letters) == evaluate("16h + 4q + 4kv + 8F + 4H + 8", letters) == 200_840


def in_attention(mode: Mode) -> Mode:
    return mode._replace(operators=mode.operators._replace(attention="eager"))


def figures_of(trace: TailTrace) -> tuple[object, ...]:
    peaks = [{point: alive.size for point, alive in each.items()} for each in (trace.forward, trace.backward)]
    return trace.saved.size, *peaks, *trace[4:]


@pytest.mark.parametrize("name", QUICK_REFERENCES)
def test_the_coefficients_of_loss_heads_are_the_engines(name: str) -> None:
    rows = marked_rows(name, "loss-heads")
    assert len(rows) > 10
    vocabulary, sequences, length = 1 << 16, 4, 512
    for _, keys, *figures in rows:
        recipe = recipe_of(**yaml.safe_load(keys.strip("`")), sequence_length=length)
        plan = policy_plan(recipe, "policy", sequences)
        outputs = vocabulary if recipe.model.head.outputs > 1 else 1
        spec = recipe.model.model_copy(
            update={
                "hidden_size": 8,
                "vocab_size": vocabulary,
                "final_norm": Norm(name="norm", width=8),
                "head": Linear(name="lm_head", inputs=8, outputs=outputs),
            }
        )
        trace = trace_tail(spec, plan.mode, sequences, length, plan.head)
        for other in (plan.mode._replace(recompute=Recompute(every=2, policy="products")), in_attention(plan.mode)):
            assert figures_of(tail_trace(spec, other, sequences, length, plan.head, True, "keep", True)) == figures_of(
                trace
            )
        elements = vocabulary * sequences * length
        worst = [max(alive.size for alive in peaks.values()) for peaks in (trace.forward, trace.backward)]
        found = [round(size / elements, 1) for size in (*worst, trace.saved.size)]
        assert found == [float(figure) for figure in figures], keys


@pytest.mark.parametrize("name", QUICK_REFERENCES)
def test_every_era_of_every_trainer_is_in_the_table_of_heads(name: str) -> None:
    section = text_of(name).split('<a id="loss-head"></a>')[1].split('<a id="pair-pass"></a>')[0]
    for trainer, eras in TRAINERS.items():
        lines = "".join(line for line in section.splitlines() if line.startswith(f"| `{trainer}` |"))
        assert lines, trainer
        assert all(era.since in lines for era in eras)


# -- both languages, commands and jobs ---------------------------------------------------------------------------------

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_OPTIONS = {
    "json", "explain", "rule_of_thumb", "format", "output", "no_gradient_checkpointing", "help", "strategies", "verify",
    "lora_r", "lora_targets", "lora_dtype", "lora_dropout",
}  # fmt: skip
"""Options of the command line that are no key of a job."""


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d[\d.,]*\d|\d", text))


def without_comments(block: str) -> str:
    return "\n".join(line.split("  #")[0].rstrip() for line in block.splitlines() if not line.lstrip().startswith("#"))


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_structure(english: str, chinese: str) -> None:
    levels = [re.findall(r"^#+(?= )", BLOCK.sub("", text_of(name)), re.MULTILINE) for name in (english, chinese)]
    assert levels[0] == levels[1]
    anchors = [re.findall(r'<a id="[^"]+"></a>', text_of(name)) for name in (english, chinese)]
    assert anchors[0] == anchors[1]


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_code(english: str, chinese: str) -> None:
    pairs = list(zip(BLOCK.findall(text_of(english)), BLOCK.findall(text_of(chinese)), strict=True))
    assert pairs
    for (kind, first), (other_kind, second) in pairs:
        assert kind == other_kind
        if kind:
            assert without_comments(first) == without_comments(second)
        assert numbers(first) == numbers(second)


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_have_the_same_figures(english: str, chinese: str) -> None:
    figures = [
        [line.split("|", 2)[2] for line in text_of(name).splitlines() if line.startswith("|") and "`{" in line]
        for name in (english, chinese)
    ]
    assert figures[0]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_job_of_a_document_resolves(name: str) -> None:
    for kind, block in BLOCK.findall(text_of(name)):
        if kind == "yaml":
            assert resolve(read_job(job_of(block, "{}")))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_option_of_a_command_is_a_key_of_the_job(name: str) -> None:
    for kind, block in BLOCK.findall(text_of(name)):
        commands = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("memplan ")]
        assert kind != "bash" or commands or block.startswith(("pip ", "python ", "export ", "PYTORCH"))
        for command in commands:
            for option in re.findall(r"--([a-z][a-z0-9-]*)", command):
                assert canonical_key(option) in {*Job.model_fields, *OTHER_OPTIONS}, command


def test_the_python_of_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [block for kind, block in BLOCK.findall(text_of(DOCUMENTS[2])) if kind == "python" and "memplan" in block]
    for block in blocks:
        exec(compile(block, "guide", "exec"), {})
    assert blocks
    assert "step.optimizer" in capsys.readouterr().out
