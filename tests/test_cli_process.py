"""The installed command as a process: exit codes, pipes, terminals, colours, widths, and what it imports."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="pseudo-terminals and /dev/full are POSIX")
SMALL = "smollm2-135m"
COMMAND = [sys.executable, "-m", "memplan"]
ROOT = Path(__file__).parent.parent


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what decides colours and widths."""
    unwanted = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "MEMPLAN_DEBUG", "PYTHONWARNINGS"}
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}


def process(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(**variables),
        check=False,
    )


def on_terminal(*arguments: str, told: bool = True, **variables: str) -> str:
    """What a terminal receives; not ``told``: without what is said beside the answer, such as that it takes long."""
    ours, theirs = pty.openpty()
    beside = theirs if told else subprocess.DEVNULL
    child = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=beside, env=environment(**variables))
    os.close(theirs)
    received = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            part = os.read(ours, 65536)
        except OSError:
            break
        if not part:
            break
        received += part
    assert child.wait() == 0
    os.close(ours)
    return received.decode()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        pytest.param(["estimate", SMALL, "--json"], 0, marks=pytest.mark.slow),
        pytest.param(["estimate", "llama-3.1-8b", "--gpu", "t4", "--fail-over"], 1, marks=pytest.mark.slow),
        pytest.param(["estimate", SMALL, "--method", "sympo"], 2, marks=pytest.mark.slow),
        (["estimate", "no-such-model"], 3),
    ],
)
def test_exit_codes(arguments: list[str], code: int) -> None:
    done = process(*arguments)
    assert done.returncode == code
    assert ("error: " in done.stderr) is (code in (2, 3))
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_is_piped_is_plain_and_100_wide() -> None:
    out = process("estimate", "llama-3.1-8b", "--method", "dpo").stdout
    assert "\x1b" not in out
    assert 90 < max(map(len, out.splitlines())) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 160])
def test_columns_decides_the_width(width: int) -> None:
    out = process("estimate", "llama-3.1-8b", "--method", "sft", "--gpu", "h100-80gb", COLUMNS=str(width)).stdout
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out


@pytest.mark.slow
def test_force_color_colours_a_pipe_and_no_color_forbids_it() -> None:
    assert "\x1b[" in process("show", "methods", FORCE_COLOR="1").stdout
    assert "\x1b" not in process("show", "methods", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert "\x1b" not in process("show", "methods", FORCE_COLOR="0").stdout


@pytest.mark.slow
def test_colours_are_the_only_difference_on_a_terminal() -> None:
    coloured = on_terminal("show", "methods", COLUMNS="100")
    plain = on_terminal("show", "methods", COLUMNS="100", NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert plain.replace("\r\n", "\n") == process("show", "methods").stdout
    assert "\x1b" not in on_terminal("show", "methods", TERM="dumb")


@pytest.mark.slow
def test_json_has_no_colours_anywhere() -> None:
    assert "\x1b" not in on_terminal("estimate", SMALL, "--json", told=False, FORCE_COLOR="1")


@pytest.mark.slow
def test_a_reader_that_leaves_ends_it_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run(
        [*COMMAND, "estimate", SMALL, "--json"], stdout=writing, stderr=subprocess.PIPE, env=environment(), check=False
    )
    os.close(writing)
    assert child.returncode == 141
    assert child.stderr == b""


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["memplan", "estimate", {model!r}]
from memplan.cli.app import run
run()
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["memplan.cli.edge", "typer", "memplan.cli.commands", "memplan.cli.estimate"])
def test_an_interrupt_while_modules_are_loaded_is_quiet(module: str) -> None:
    script = INTERRUPTED.format(module=module, model=SMALL)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_little_is_loaded_before_an_interrupt_is_looked_after() -> None:
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import memplan.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", script], capture_output=True, text=True, check=True)
    assert {"typing", "re", "enum", "memplan.errors"}.isdisjoint(done.stdout.split())


NO_PLUGINS = """
import sys
from memplan.cli.app import without_plugins
without_plugins()
import pydantic
class Model(pydantic.BaseModel):
    number: int
Model(number=1)
stand_in = sys.modules["pydantic.plugin._loader"]
assert "importlib.metadata" not in sys.modules
assert stand_in.PYDANTIC_ENTRY_POINT_GROUP == "pydantic"
real = sys.modules["pydantic.plugin._loader"]
assert real is not stand_in
assert tuple(real.get_plugins()) == tuple(stand_in.get_plugins()) == ()
"""


def test_what_stands_for_pydantics_loader_of_plugins_finds_what_that_finds() -> None:
    subprocess.run([sys.executable, "-c", NO_PLUGINS], check=True, env=environment())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "line",
    ["show gpus", *(pytest.param(each, marks=pytest.mark.slow) for each in ("--help", "--version", "completion bash"))],
)
def test_a_full_disk_is_an_error(line: str) -> None:
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [*COMMAND, *line.split()], stdout=full, stderr=subprocess.PIPE, text=True, env=environment(), check=False
        )
    assert child.returncode == 2
    assert child.stderr.startswith("error: cannot write to standard output")
    assert len(child.stderr.splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "redirected", "code", "said"),
    [
        (f"estimate {SMALL}", ">&-", 2, "error: standard output is closed"),
        ("--help", ">&-", 2, "error: standard output is closed"),
        (f"estimate {SMALL} --method sft", "2>&-", 0, "allocated"),
        (f"compare {SMALL} --vary batch_size=1,2", "2>&-", 0, "batch_size"),
        (f"plan {SMALL} --gpu t4 --top 1", "2>&-", 0, "t4"),
        (f"estimate {SMALL} --method sympo", "2>&-", 2, ""),
        (f"estimate {SMALL} --method sympo", "2>/dev/full", 2, ""),
        (f"estimate {SMALL} --method sympo", ">&- 2>&-", 2, ""),
        (f"estimate {SMALL} --method sft", "<&-", 0, "allocated"),
    ],
)
def test_closed_streams(line: str, redirected: str, code: int, said: str) -> None:
    """Whatever a caller has closed, the exit code is that of the command, and the other stream is as always."""
    child = subprocess.run(
        ["sh", "-c", f'"$@" {redirected}', "sh", *COMMAND, *line.split()],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert child.returncode == code, child.stderr
    assert said in child.stdout + child.stderr
    assert "Traceback" not in child.stderr


@pytest.mark.slow
def test_a_language_that_is_asked_for_is_written_whatever_the_terminal_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memplan", "estimate", "nosuch", "--lang", "zh"],
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        check=False,
    )
    assert "错误" in done.stderr.decode("utf-8")
    assert b"??" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_any_encoding_of_the_terminal(encoding: str) -> None:
    done = subprocess.run(
        [*COMMAND, "estimate", SMALL, "--method", "sft"],
        capture_output=True,
        env=environment(PYTHONIOENCODING=encoding),
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" not in done.stdout
    assert b"####" in done.stdout
    data = subprocess.run(
        [*COMMAND, "estimate", SMALL, "--json"],
        capture_output=True,
        env=environment(PYTHONIOENCODING=encoding),
        check=False,
    )
    assert "×" in data.stdout.decode("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--version"], ["estimate", SMALL]])
def test_heavy_modules_are_not_imported(arguments: list[str]) -> None:
    heavy = {"rich", "huggingface_hub", "yaml", "httpx", "requests", "torch"}
    heavy |= set() if len(arguments) > 1 else {"pydantic.main", "memplan.spec.job"}
    script = (
        "import sys, typer; before = set(sys.modules)\n"  # early versions of typer import rich themselves
        f"from memplan.cli.app import main; main({arguments!r})\n"
        "sys.stderr.write(' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    loaded = done.stderr.split()
    assert "memplan.cli.edge" in loaded
    assert heavy.isdisjoint(loaded)
