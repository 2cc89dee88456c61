"""Proves the arithmetic of the ledger on one that can be followed with a pencil: four instants, six rows."""

import ast
import inspect
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from any_jobs import MODELS

from memplan.engine import ledger
from memplan.engine.ledger import Ledger, Row
from memplan.engine.step_and_evaluation import Joined, evaluation_of
from memplan.resolve import resolve
from memplan.spec.reading import read_job

INSTANTS = ("load", "forward", "backward", "step")


def book() -> Ledger:
    """Weights for good; activations, and gradients after them; a band; a host copy; what CUDA itself takes."""
    found = Ledger(INSTANTS)
    found.add("weights", "weights", 100)
    found.add("activations", "activations", 40, "forward", "backward", low=30, high=60)
    found.add("saved twice", "activations", 2, "forward", "forward", low=0, high=0)
    found.add("gradients", "gradients", 50, "backward", low=50)
    found.add("copies", "offload", 7, "load", "load", place="host")
    found.add("context", "overhead", 11, meter="device", high=12)
    return found


def test_totals_run_over_births_and_deaths_both_included() -> None:
    assert book().totals() == [100, 142, 190, 150]
    assert book().totals(bound="low_bytes") == [100, 130, 180, 150]
    assert book().totals(bound="high_bytes") == [100, 160, 210, 150]
    assert book().totals(place="host") == [7, 0, 0, 0]
    assert book().totals("device") == [11, 11, 11, 11]
    assert book().totals("device", "host") == [0, 0, 0, 0]


def test_bounds_are_the_three_totals_of_the_card() -> None:
    low, expected, high = book().bounds()
    assert (low, expected, high) == ([100, 130, 180, 150], [100, 142, 190, 150], [100, 160, 210, 150])
    assert book().bounds("device") == ([11] * 4, [11] * 4, [12] * 4)


def test_what_lasts_is_there_from_the_first_instant_to_the_last() -> None:
    found = book()
    found.add("first alone", "weights", 3, "load", "step", place="host")
    assert found.lasting() == 100
    assert found.lasting("device") == 11
    assert found.lasting(place="host") == 3
    assert (found.meters("gpu"), found.meters("host")) == ({"allocated", "device"}, {"allocated"})


def test_rows_alive_come_largest_first() -> None:
    assert [row.name for row in book().alive("forward")] == ["weights", "activations", "saved twice"]
    assert [row.name for row in book().alive("backward")] == ["weights", "gradients", "activations"]
    assert [row.name for row in book().alive("load", place="host")] == ["copies"]
    assert [row.name for row in book().alive("step", "device")] == ["context"]
    assert list(book().by_category("forward").items()) == [("weights", 100), ("activations", 42)]
    assert list(book().by_category("backward")) == ["weights", "gradients", "activations"]


def test_nothing_is_no_row_and_no_row_dies_before_it_is_born() -> None:
    found = Ledger(INSTANTS)
    found.add("nothing", "x", 0)
    found.add("nothing, at most nothing", "x", 0, high=0)
    found.add("dead", "x", 5, "backward", "forward")
    assert found.rows == []
    found.add("perhaps", "x", 0, high=1)
    found.add("one instant", "x", 5, "forward", "forward")
    assert [row[:5] for row in found.rows] == [("perhaps", "x", 0, 0, 3), ("one instant", "x", 5, 1, 1)]


def test_a_row_is_exact_where_no_band_is_given() -> None:
    row = Row("weights", "weights", 100, 0, 3)
    assert (row.place, row.meter, row.low_bytes, row.high_bytes) == ("gpu", "allocated", 100, 100)
    assert (row.low, row.high) == (-1, -1)
    banded = row._replace(low=0, high=0)
    assert (banded.low_bytes, banded.high_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("numbers", "formula"), [((), "T·h"), ((1024, 4.0), "T·h = 1,024 × 4"), ((2.03125, "bf16"), "T·h = 2.03125 × bf16")]
)
def test_a_formula_has_its_numbers_put_in(numbers: tuple[object, ...], formula: str) -> None:
    assert Row("x", "x", 1, 0, 0, template="T·h", numbers=numbers).formula == formula


def test_neighbours_stay_within_the_schedule() -> None:
    found = book()
    assert [found.after(name) for name in INSTANTS] == ["forward", "backward", "step", "step"]
    assert [found.before(name) for name in INSTANTS] == ["load", "load", "forward", "backward"]


def test_a_layer_has_its_turn_where_the_next_below_has_it() -> None:
    names = ("layer-7-backward", "layer-4-backward", "first-layer-backward")
    found = Ledger([f"policy.{name}" for name in names])
    turns = [found.turn_of("policy", f"layer-{i}-backward") for i in (7, 6, 5, 4, 3, 1)]
    assert turns == [f"policy.{names[i]}" for i in (0, 1, 1, 1, 2, 2)]
    assert found.turn_of("policy", "first-layer-backward") == "policy.first-layer-backward"


def test_a_step_and_an_evaluation_are_one_ledger() -> None:
    step, evaluation = Ledger(("load", "step")), Ledger(("eval", "loss", "end"))
    step.add("weights", "weights", 100)
    step.add("weights", "weights", 100)
    step.add("moments", "states", 8)
    step.add("early", "weights", 1, "load", "load")
    evaluation.add("weights", "weights", 100)
    evaluation.add("cache", "states", 5)
    evaluation.add("loss", "logits", 3, "loss", "loss")
    evaluation.add("to the end", "logits", 2, "loss", "end")
    evaluation.add("at the end", "logits", 9, "end", "end")
    evaluation.add("from the start", "logits", 4, "eval", "loss")
    evaluation.add("moments", "states", 8, "eval", "loss")
    joined = Joined(step, evaluation)
    assert joined.schedule == ("load", "step", "evaluation-eval", "evaluation-loss")
    assert [(row.name, row.born, row.dies) for row in joined.rows] == [
        ("weights", 0, 3), ("weights", 0, 1), ("moments", 0, 1), ("early", 0, 0), ("cache", 2, 3), ("loss", 3, 3),
        ("to the end", 3, 3), ("from the start", 2, 3), ("moments", 2, 3),
    ]  # fmt: skip
    assert joined.totals() == [209, 208, 117, 122]
    assert joined.lasting() == 208


def test_an_evaluation_has_a_batch_of_its_own_and_does_not_accumulate() -> None:
    job = {"model": MODELS["tied"], "gradient_accumulation_steps": 4, "batch_size": 2}
    after = evaluation_of(resolve(read_job({**job, "eval_batch_size": 3})))
    assert after is not None
    assert (after.batch.size, after.batch.accumulation, after.evaluating) == (3, 1, True)
    assert evaluation_of(resolve(read_job(job))) is None
    assert Ledger(()).detailed


def told_of(call: ast.Call, module: ModuleType) -> set[str]:
    """What a call of ``told`` looks for in the text: what it says, else how its row's name begins; of a local of the
    function every text that begins a word of the module, or of one whose classes it plays."""
    given = [word.value for word in call.keywords if word.arg == "of"]
    assert isinstance(call.func, ast.Attribute)
    assert isinstance(call.func.value, ast.Call)
    name = (given or call.func.value.args)[0]
    if isinstance(name, ast.Subscript) or (isinstance(name, ast.Name) and name.id not in vars(module)):
        sources = {module} | {sys.modules[each.__module__] for each in vars(module).values() if isinstance(each, type)}
        plays = sources if isinstance(name, ast.Subscript) else {module}
        words = [each for source in plays for each in ast.walk(ast.parse(inspect.getsource(source)))]
        said = {str(each.value) for each in words if isinstance(each, ast.Constant)}
        return {text for text in ledger._texts() if {text, f"{text}, "} & said}
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    begins = str(eval(ast.unparse(first), vars(module)))
    return {max((text for text in ledger._texts() if begins.startswith(text)), key=len)}


def test_every_row_that_is_told_has_its_text_and_every_text_its_row() -> None:
    told = set()
    for path in sorted(Path(ledger.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ".told(" in text:
            module = import_module(".".join(path.with_suffix("").parts[path.parts.index("memplan") :]))
            calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
            told |= {
                each for call in calls if getattr(call.func, "attr", "") == "told" for each in told_of(call, module)
            }
    assert told == set(ledger._texts())
    assert {len(each) for each in ledger._texts().values()} == {3}
