"""Does the suite notice a fault? Draws mutants of a package and runs the tests that reach each one's line.

usage: python benchmarks/mutation.py PACKAGE... [--draw 150] [--seed 13] [--at-least 85]

A mutant is one change of one expression or statement: an operator, a comparison, a number, a condition, a returned
value, a statement left out. Tests are collected once; every mutant is a fork of that process in which one function's
code, or one constant, is replaced before the tests run, quickest first, until one fails. What no test reaches, and what
``--seconds`` of tests leave alive, survives. Prints every survivor. Needs Python 3.12 (``sys.monitoring``) and fork.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import os
import pickle
import random
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES: dict[str, tuple[str, str]] = {
    "units": (
        "units.py yaml_lines.py spec/reading.py",
        "units reading yaml_limits user_files frameworks_bad_input plain_data presets_data",
    ),
    "engine/ledger": (
        "engine/ledger.py engine/step_and_evaluation.py",
        "ledger evaluation engine_properties deepspeed_ledger",
    ),
    "engine/tape": (
        "engine/tape/*.py",
        "tape tape_heads tape_layers liveness in_place checkpointing dropout llama_like_layers moe_layers "
        "shared_weights_layers hybrid_layers router_loss freezing optimizers expert_loop unsloth caching "
        "engine_truth tape_operations tape_gradients",
    ),
    "reporting": (
        "reporting.py report.py",
        "reporting quick remedies overhead online evaluation render_views native_parallel compare cost",
    ),
    "resolve": (
        "resolve/*.py",
        "resolve deepspeed fsdp megatron_jobs native_parallel adapters vision foak unsloth checkpointing quantised "
        "freezing online evaluation router_loss trainers in_place clusters optimizers expert_loop deepspeed_ledger "
        "shared_weights_layers megatron_layers caching encoder_layers trace_refusals frameworks frameworks_others "
        "engine_properties terms rule_of_thumb compare plan_switches resolve_edges",
    ),
    "planner/search": (
        "planner/search.py planner/space.py planner/pricing.py planner/moves.py planner/axes.py planner/degrees.py "
        "planner/candidates.py planner/planning.py planner/rejected.py",
        "moves plan plan_native plan_order plan_space plan_switches remedies quick",
    ),
    "hub": ("hub/*.py", "hub cli_hub"),
}
"""Files of each package, below memplan/, and tests that concern it, ``tests/test_*.py``."""


Path_ = tuple[tuple[str, int | None], ...]


class Place(NamedTuple):
    """Where a mutant is: ``path`` leads from the module's tree to the node."""

    file: Path
    path: Path_
    kind: str
    line: int
    begins: int
    """The first line of its statement; 0 for one that runs as the module is imported."""

    def __str__(self) -> str:
        text = self.file.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.kind}: {text}"


# -- mutants -----------------------------------------------------------------------------------------------------------

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What a node may be replaced with, and what that is called."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield from _swapped(node, "op", SWAPS[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield from _swapped(node, "ops", [SWAPS[type(op)]()])
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield f"without {type(node.op).__name__}", operand
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from ((f"{value} -> {value + step}", ast.Constant(value + step)) for step in (1, -1))
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield from _swapped(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=[_, *_]):
            yield from _swapped(node, "ifs", [])
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield from _swapped(node, "value", ast.Constant(None))
    match node:
        case ast.Expr(value=ast.Constant() | ast.Yield()):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))))):
            yield "left out", ast.Expr(ast.Name("__class__", ast.Load()))  # which super() needs in its function
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            yield "left out", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "left out", ast.Pass()


def _swapped(node: ast.AST, field: str, value: Any) -> Iterator[tuple[str, ast.AST]]:
    changed = copy.copy(node)
    setattr(changed, field, value)
    old = getattr(node, field)
    yield f"{type(node).__name__}.{field}: {_name(old)} -> {_name(value)}", changed


def _name(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else value
    return ast.unparse(first) if isinstance(first, ast.expr) else type(first).__name__


def places(file: Path) -> list[Place]:
    """Every mutant of a file."""
    return list(_walk(file, ast.parse(file.read_text(encoding="utf-8")), (), 0, False))


SKIPPED = {"annotation", "returns", "decorator_list", "type_params", "bases", "keywords_of_class"}


def _walk(file: Path, node: ast.AST, path: Path_, begins: int, inside: bool) -> Iterator[Place]:
    """Mutants of a node and of what is in it; ``inside`` a function."""
    if _is_for_types(node):
        return
    begins = getattr(node, "lineno", 0) if isinstance(node, ast.stmt) and inside else begins
    line = getattr(node, "lineno", begins)
    yield from (Place(file, path, kind, line, begins) for kind, _ in changes(node))
    for field, value in ast.iter_fields(node):
        if field in SKIPPED:
            continue
        within = inside or (isinstance(node, ast.FunctionDef) and field == "body")
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _walk(file, child, (*path, (field, index)), begins, within)


def _is_for_types(node: ast.AST) -> bool:
    """What only a type checker reads, or what says that something cannot be."""
    checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return checking or isinstance(node, ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr)


# -- putting one in place ----------------------------------------------------------------------------------------------


def install(place: Place) -> None:
    """Replace the code of the one function that holds the mutant, or the one constant."""
    source = place.file.read_text(encoding="utf-8")
    tree = ast.parse(source)
    node: Any = tree
    owners: list[ast.AST] = [tree]
    for field, index in place.path:
        parent, node = node, getattr(node, field) if index is None else getattr(node, field)[index]
        owners.append(node)
    field, index = place.path[-1]
    changed: Any = ast.copy_location(dict(changes(node))[place.kind], node)
    if index is None:
        setattr(parent, field, changed)
    else:
        getattr(parent, field)[index] = changed
    ast.fix_missing_locations(tree)
    module = import_module(".".join(place.file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    function = next((each for each in owners if isinstance(each, ast.FunctionDef)), None)
    body = next((name for name, _ in place.path[owners.index(function) : len(place.path)]), "") if function else ""
    if function is not None and body == "body":
        names = [
            each.name
            for each in owners[: owners.index(function) + 1]
            if isinstance(each, ast.ClassDef | ast.FunctionDef)
        ]
        found = _plain(reduce(_member, names, module))
        _replace(found, _code(compile(tree, str(place.file), "exec"), function))
        return
    fresh = types.ModuleType(module.__name__)
    fresh.__dict__.update(__file__=str(place.file), __package__=module.__package__)
    try:
        exec(compile(tree, str(place.file), "exec"), fresh.__dict__)
    except Exception:
        os._exit(1)  # the module cannot even be imported
    statement: Any = owners[1]
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        _defaults(getattr(module, statement.name), getattr(fresh, statement.name))
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for changed in {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}:
        old, new = getattr(module, changed), getattr(fresh, changed)
        for each in list(sys.modules.values()):
            if getattr(each, "__dict__", {}).get(changed) is old:
                setattr(each, changed, new)


def _replace(function: types.FunctionType, new: types.CodeType) -> None:
    """Give a function new code, and with it the functions that it made before."""
    codes = dict(_pairs(function.__code__, new))
    function.__code__ = new
    if len(codes) > 1:
        gc.unfreeze()
        for each in gc.get_objects():
            if isinstance(each, types.FunctionType) and each.__code__ in codes:
                each.__code__ = codes[each.__code__]


def _pairs(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """The code of a function and of those in it, beside what becomes of each."""
    yield old, new
    inner = [[each for each in code.co_consts if isinstance(each, types.CodeType)] for code in (old, new)]
    for before, after in zip(*inner, strict=False):
        yield from _pairs(before, after)


def _defaults(old: Any, new: Any) -> None:
    """A function's default arguments, or those of a class's fields and methods."""
    if not isinstance(old, type):
        was, now = _plain(old), _plain(new)
        was.__defaults__, was.__kwdefaults__ = now.__defaults__, now.__kwdefaults__
        return
    for name, value in vars(new).items():
        if isinstance(_plain(value), types.FunctionType):
            _defaults(vars(old)[name], value)
        elif isinstance(value, int | str | tuple | frozenset) and not name.startswith("__"):
            setattr(old, name, value)


def _member(owner: Any, name: str) -> Any:
    return vars(owner)[name]


def _plain(found: Any) -> Any:
    """The function itself, under what decorators made of it."""
    for attribute in ("__wrapped__", "fget", "func", "__func__"):
        inner = getattr(found, attribute, None)
        if inner is not None and (attribute == "__wrapped__" or not isinstance(found, types.FunctionType)):
            return _plain(inner)
    return found


def _code(module: types.CodeType, function: ast.FunctionDef) -> types.CodeType:
    """The code of a function, found where its definition begins."""
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    stack = [module]
    while stack:
        code = stack.pop()
        if code.co_name == function.name and code.co_firstlineno == first:
            return code
        stack += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    raise LookupError(function.name)


# -- running tests -----------------------------------------------------------------------------------------------------


class Runner:
    """A pytest plugin: in place of the tests it runs mutants."""

    def __init__(self, package: str, files: list[Path], draw: int, seed: int, seconds: float, again: str) -> None:
        self.package, self.files, self.seconds = package, files, seconds
        every = [place for file in files for place in places(file)]
        drawn = sorted(random.Random(seed).sample(every, min(draw, len(every))))
        self.drawn = [place for place in drawn if str(place) in again] if again else drawn
        self.every = len(every)
        self.failed = False
        self.killed = 0

    def pytest_configure(self) -> None:
        """Properties draw the same examples every time, and do not look for smaller ones that fail."""
        from hypothesis import Phase, settings

        settings.register_profile("mutation", settings(), phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails kills."""
        self.failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Every mutant, each in a process of its own."""
        reached, times = self._forked(partial(self._reach, session))
        for number, place in enumerate(self.drawn):
            tests = sorted(self._tests(reached, place), key=times.__getitem__)
            limit = 2 + 4 * min(self.seconds, sum(times[each] for each in tests))
            alive = not tests or self._forked(partial(self._survives, session, place, tests), limit)
            self.killed += not alive
            if alive:
                print(
                    f"  {place}",
                    "" if tests else "(no test comes here)",
                    alive if isinstance(alive, str) else "",
                    flush=True,
                )
            print(f"{number + 1} of {len(self.drawn)}, {self.killed} killed", end="\r", file=sys.stderr, flush=True)
        return True

    def _tests(self, reached: dict[tuple[str, int], list[int]], place: Place) -> set[int]:
        """Those that come to the mutant's line; to its file where it runs as the module is imported."""
        name = str(place.file)
        if place.begins:
            return {*reached.get((name, place.line), ()), *reached.get((name, place.begins), ())}
        return {number for (file, _), numbers in reached.items() if file == name for number in numbers}

    def _forked(self, work: Callable[[], Any], limit: float = 0) -> Any:
        """What ``work`` returns in a fork; None where it dies or takes too long."""
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            silent = os.open(os.devnull, os.O_RDWR)
            os.dup2(silent, 1), os.dup2(silent, 2)
            signal.setitimer(signal.ITIMER_PROF, limit)  # seconds of CPU; the signal ends the process
            try:
                told = pickle.dumps(work())
            except Exception as error:
                told = pickle.dumps(repr(error))
            with os.fdopen(write, "wb") as out:
                out.write(told)
            os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as said:
            answer = said.read()
        os.waitpid(child, 0)
        return pickle.loads(answer) if answer else None

    def _passes(self, session: pytest.Session, number: int) -> bool:
        """Whether one test passes."""
        self.failed = False
        item = session.items[number]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def _reach(self, session: pytest.Session) -> tuple[dict[tuple[str, int], list[int]], list[float]]:
        """The tests that run each line, and how long each takes; of those that pass as the code is."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        files, lines = {str(file) for file in self.files}, set()
        reached: dict[tuple[str, int], list[int]] = {}
        times = []

        def line(code: types.CodeType, number: int) -> Any:
            if code.co_filename in files:
                lines.add((code.co_filename, number))
            return monitoring.DISABLE

        monitoring.use_tool_id(monitoring.PROFILER_ID, "mutation")
        monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.LINE, line)
        monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.LINE)
        for number in range(len(session.items)):
            forget()
            lines.clear()
            monitoring.restart_events()
            begun = time.process_time()
            passed = self._passes(session, number)
            times.append(time.process_time() - begun)
            for where in lines if passed else ():
                reached.setdefault(where, []).append(number)
        return reached, times

    def _survives(self, session: pytest.Session, place: Place, tests: list[int]) -> bool:
        """Whether every test passes that comes to the mutant's line, as far as time goes."""
        forget()
        install(place)
        begun = time.process_time()
        for number in tests:
            if not self._passes(session, number):
                return False
            if time.process_time() - begun > self.seconds:
                break
        return True


def forget() -> None:
    """Let go of what was computed before."""
    for module in list(sys.modules.values()):
        if str(getattr(module, "__file__", None)).startswith(str(ROOT)):
            for each in list(vars(module).values()):
                if hasattr(each, "cache_clear"):
                    each.cache_clear()


def score(package: str, draw: int, seed: int, seconds: float, again: str) -> float:
    """Print the share of mutants of a package that its tests kill, and those they do not."""
    names, tests = PACKAGES[package]
    files = [file for name in names.split() for file in sorted((ROOT / "memplan").glob(name))]
    runner = Runner(package, files, draw, seed, seconds, again)
    chosen = [str(ROOT / "tests" / f"test_{name}.py") for name in tests.split()]
    pytest.main([*chosen, "-s", "-n0", "-p", "no:cacheprovider", "-q"], plugins=[runner])
    print(f"{package}: {runner.killed} of {len(runner.drawn)} mutants killed, drawn of {runner.every}", flush=True)
    return runner.killed / len(runner.drawn)


def main() -> None:
    """Exit code 1 where a package's share is below ``--at-least``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", default=list(PACKAGES), metavar="PACKAGE")
    parser.add_argument("--draw", type=int, default=150)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--seconds", type=float, default=10, help="CPU seconds of tests for each mutant")
    parser.add_argument("--at-least", type=float, default=0, metavar="PERCENT")
    parser.add_argument("--again", type=Path, help="only the mutants that an earlier output names")
    given = parser.parse_args()
    again = given.again.read_text(encoding="utf-8") if given.again else ""
    shares = [score(package, given.draw, given.seed, given.seconds, again) for package in given.packages]
    sys.exit(int(min(shares) * 100 < given.at_least))


if __name__ == "__main__":
    main()
