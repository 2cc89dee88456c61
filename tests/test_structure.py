"""Proves the shape of the package: who may import whom, what stays out of the common path, how long a file may be.

The order of ``LAYERS`` is the architecture in one list: a module may import from the layers before its own, and within
its own package. It is read from the source of every file, so that an import inside a function counts too.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest
from drawing import over

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "memplan"
FILES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    "errors",  # one hierarchy
    "lang",  # what messages are in another language
    "units",  # bytes, counts and their spelling
    "tables",  # one row of data for each method, optimizer, precision, trainer
    "rule_of_thumb",  # closed formulas, on their own
    "spec",  # what is described: model, job, card, recipe
    "files",  # written whole or not at all
    "yaml_lines",  # YAML with line numbers
    "presets",  # where presets are
    "local_gpu",  # the card of this machine
    "gpus",
    "calibrations",  # files of a machine's own rates
    "clusters",
    "strategies",
    "arch",  # config.json -> ModelSpec
    "hub",  # the only network code
    "generic",  # a number of parameters -> ModelSpec
    "models",  # a name -> ModelSpec
    "jobs",  # a name or a file -> Job
    "resolve",  # Job -> Recipe
    "usual",  # what a job of few words is taken to be
    "engine",  # Recipe -> Ledger
    "page",  # an answer as one HTML file
    "notebook",  # the page where an answer is shown by itself
    "drawn",  # what a report says of the lengths that come
    "generated",  # what it says of a generation engine
    "report",  # what a report is
    "meters",  # allocated, reserved, device
    "moments",  # the phases beside the steady step
    "rollout",  # trainer and engine over one RL step
    "priced",  # its meters, phases and processes
    "reporting",  # Ledger -> Report
    "timeline",  # Report -> curves
    "lengths",  # batches drawn from the lengths of a data set
    "cost",  # Recipe -> seconds of a step
    "planner",  # the search
    "remedies",
    "comparison",
    "timed",  # measured steps: files of runs, trainers' logs
    "measurement",  # the form of a measured run
    "truth",  # what was measured
    "accuracy",  # how far estimates are from it
    "trust",  # how sure an estimate is, by rows of its kind
    "api",  # what the world calls
    "ways",  # to train a model, for one who has not said how
    "snapshot",  # what an allocator recorded
    "diagnose",  # what an out-of-memory error says
    "logs",  # what an engine or a trainer printed
    "frameworks",  # training frameworks' files <-> Job
    "asked",  # what is asked of a job, and its answer as JSON
    "render",
    "mcp",  # tools for agents
    "web",  # the page's server, and the page without one
    "widgets",  # its form in a notebook
    "torch",  # pair schedules for training scripts
    "callback",  # estimates inside a Trainer
    "trace",  # real models on fake tensors
    "cli",
    "__main__",
)
WITH_FRAMEWORKS = {"torch", "callback", "trace"}
"""Where torch and its kin may be imported; they come in an optional extra."""
FACE = "__init__"
"""memplan/__init__.py: names of other modules as text, loaded on first use."""
USE_THE_FACE = {"callback", "cli", "__main__", "mcp", "render"}
"""They say which version of memplan wrote something."""
ENGINE_KNOWS = {"errors", "units", "tables", "spec", "engine"}
"""The engine takes a recipe and knows nothing of names, files, screens or the network."""

NETWORK = {"socket", "ssl", "http", "urllib", "urllib3", "requests", "httpx", "aiohttp", "ftplib", "huggingface_hub"}
HARMLESS = {"urllib.parse"}
FRAMEWORKS = {"torch", "transformers", "peft", "trl", "deepspeed", "accelerate", "numpy"}
LONGEST = 300


def place(file: Path) -> str:
    """The layer that a file belongs to: its folder, or its own name at the top."""
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


class Source(NamedTuple):
    """What the tests ask of a file, which is parsed once."""

    imports: tuple[tuple[int, str], ...]
    """(line, dotted name) of everything it imports, in functions, for type checkers, and by name as text, too."""
    modules: frozenset[str]
    """Modules of memplan that it imports when it runs, in functions too."""
    lines: int


@cache
def source(file: Path) -> Source:
    """A file, read and parsed; its tree is not kept, which would burden every collection of garbage."""
    text = file.read_text(encoding="utf-8")
    lines, body = text.splitlines(), ast.parse(text, str(file)).body
    named = [
        (n, name)
        for n, line in enumerate(lines, 1)
        for name in re.findall(r"""["'](memplan[.\w]+)(?::\w+)?["']""", line)
    ]
    found = [(node.lineno, name) for node in statements(body, True) for name in imported_by(node, f"{file}")]
    found += [(number, name) for number, name in named if is_module(name)]
    run = [name for node in statements(body, False) for name in imported_by(node, f"{file}")]
    modules = (name if is_module(name) else name.rpartition(".")[0] for name in run)
    return Source(tuple(found), frozenset(filter(is_module, modules)), len(lines))


def statements(body: Iterable[ast.AST], for_checkers: bool) -> Iterator[ast.stmt]:
    """Every statement, those inside others too; those under ``if TYPE_CHECKING`` where they are asked for."""
    for node in body:
        if isinstance(node, ast.stmt):
            yield node
        if not for_checkers and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, ()), for_checkers)


def imported_by(node: ast.stmt, file: str) -> list[str]:
    """Dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, f"{file}:{node.lineno}: write imports from the top: memplan.…"
    return [f"{node.module}.{alias.name}" for alias in node.names]


@cache
def is_module(text: str) -> bool:
    """Whether a text is the dotted name of a module of memplan."""
    if not re.fullmatch(r"memplan(\.\w+)+", text, re.ASCII):
        return False
    path = ROOT.joinpath(*text.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def own_imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, layer) of what a file imports from memplan itself."""
    for line, name in source(file).imports:
        parts = name.split(".")
        if parts[0] == "memplan" and len(parts) > 1:
            known = (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").is_file()
            yield line, parts[1] if known else FACE


def test_every_module_has_its_place_in_the_order() -> None:
    assert {place(file) for file in FILES} <= {*LAYERS, FACE}
    assert len(set(LAYERS)) == len(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer: str) -> None:
    allowed = set(LAYERS[: LAYERS.index(layer) + 1]) | ({FACE} if layer in USE_THE_FACE else set())
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports memplan.{name}"
        for file in FILES
        if place(file) == layer
        for line, name in own_imports(file)
        if name not in allowed
    ]
    assert not wrong, f"{layer} may import: {', '.join(sorted(allowed))}"


def test_the_engine_knows_only_what_is_described() -> None:
    files = [file for file in FILES if place(file) == "engine"]
    assert files
    assert {name for file in files for _, name in own_imports(file)} <= ENGINE_KNOWS


def test_modules_of_a_package_do_not_import_in_circles() -> None:
    """Imports inside functions count; only those for type checkers alone make no circle."""
    names = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in FILES}
    TopologicalSorter({name: source(file).modules - {name} for file, name in names.items()}).prepare()


@over(FILES)
def test_only_hub_speaks_to_the_network_and_nobody_loads_a_framework(file: Path) -> None:
    names = [name for _, name in source(file).imports if not any(name.startswith(harmless) for harmless in HARMLESS)]
    tops = {name.split(".")[0] for name in names}
    assert not tops & NETWORK or place(file) == "hub"
    assert not tops & FRAMEWORKS or place(file) in WITH_FRAMEWORKS, "an estimate needs no framework"


@over(FILES)
def test_a_file_is_short_enough_to_read(file: Path) -> None:
    assert source(file).lines <= LONGEST


HEAVY = ("rich", "huggingface_hub", "yaml", "httpx", "requests", "torch", "numpy")


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter holds after this code."""
    program = f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


VERSION = "from memplan.cli.app import main\nassert main(['--version']) == 0"
ESTIMATE = "from memplan.cli.app import main\nassert main(['estimate', 'llama-3.1-8b', '--json']) == 0"
DENSE = "from memplan.api import estimate\nassert estimate({'model': 'llama-3.1-8b'}).per_gpu.allocated_bytes"
OF_OTHERS = (
    "memplan.engine.layers.encoder_layer",
    "memplan.engine.layers.t5_layer",
    "memplan.engine.megatron",
    "memplan.engine.layers.attention.bert",
    "memplan.engine.layers.attention.mla",
    "memplan.engine.layers.state_space.mamba",
    "memplan.engine.layers.moe.experts",
    "memplan.engine.losses.chunked_heads",
    "memplan.engine.parallel.fsdp.rows",
    "memplan.engine.parallel.zero.stage3",
    "memplan.engine.parallel.zero.states",
    "memplan.engine.layers.vision.tower_trace",
    "memplan.spec.attention_kinds",
    "memplan.spec.state_space",
    "memplan.spec.vision",
)
"""What a dense model on one GPU has no use for."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "absent"),
    [
        pytest.param("import memplan", (*HEAVY, "pydantic", "typer"), id="import memplan"),
        pytest.param(VERSION, HEAVY, id="memplan --version"),
        pytest.param(ESTIMATE, HEAVY, id="memplan estimate llama-3.1-8b --json"),
        pytest.param(DENSE, (*HEAVY, *OF_OTHERS), id="a dense model on one GPU"),
    ],
)
def test_the_common_path_loads_nothing_heavy(code: str, absent: tuple[str, ...]) -> None:
    assert not loaded_by(code) & set(absent)


def test_what_a_dense_model_does_not_load_is_there() -> None:
    assert all(map(is_module, OF_OTHERS))
