"""How many GPUs a command trains on: a number of its text, all GPUs of a node, or what only the machine knows.

A number that the text does not hold is asked for, and never taken as one. Sources: torch 2.13 distributed/run.py (one
process without ``--nproc_per_node``), DeepSpeed 0.19 launcher/runner.py (all GPUs of a node without an option),
accelerate 1.15 commands/launch.py (the machine's default config, else all GPUs), LLaMA-Factory 0.9.5 launcher.py,
composer 0.32 cli/launcher.py, transformers 5.23 training_args.py (``n_gpu``: nn.DataParallel)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from memplan.clusters import find_cluster
from memplan.frameworks.asking import STAGE
from memplan.frameworks.commands.data_parallel import replicated
from memplan.frameworks.commands.launch import Launch
from memplan.frameworks.draft import ASSUMED, FILE, Draft, Origin
from memplan.frameworks.files.documents import Settings, is_template
from memplan.frameworks.shell.reader import Command, options_of

VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
TASKS = ("srun", "mpirun", "mpiexec", "horovodrun", "orterun")
OF_A_NODE = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
FLAGS = ("standalone", "multi_gpu", "use_deepspeed", "use_fsdp", "no_python", "module", "m", "debug", "quiet", "no_ssh")
"""Launchers' options without a value: a variable behind one is no value of it."""


class Count(NamedTuple):
    """What a text says of its processes."""

    each: int | None
    """Of a node; None where the text does not hold it."""
    nodes: int | None
    said: str
    """What says it, or should: 'torchrun --nproc_per_node $N'."""
    where: str
    """File and line."""
    every: bool = False
    """It starts as many as a node has GPUs."""


def put_gpus(launch: Launch, draft: Draft) -> None:
    """How many GPUs a command runs on, as its launcher and what stands before it say."""
    if launch.launcher == "python":
        _one_process(launch, draft)
    elif launch.launcher == "deepspeed":
        draft.finishers["stage"] = partial(_ask_stage, launch.where)
    count = count_of(launch)
    if count is not None:
        put(count, draft)


def put_every(launch: Launch, draft: Draft) -> None:
    """A launcher that was told no number: as many processes as it sees GPUs."""
    seen = None if (hidden := _hidden(launch)) else visible(launch.command.environment)
    put(Count(seen, 1, f"{launch.launcher} launch without a number", launch.where, not hidden), draft)


def count_of(launch: Launch) -> Count | None:
    """Processes of a command; None where nothing in it starts several."""
    reader = _READERS.get(launch.launcher)
    return reader(launch) if reader else _tasks(launch)


def tasks_before(command: Command, path: str) -> Count | None:
    """Processes that ``srun`` or ``mpirun`` starts, whatever stands between it and the program (a container)."""
    words = command.around + command.words
    place = next((at for at, word in enumerate(words) if word.text.rsplit("/", 1)[-1] in TASKS), len(words))
    return _tasks(Launch("", Settings(path, {}), "", (), command, path, before=words[place:]))


def put(count: Count, draft: Draft) -> None:
    """A number into the job; what the text does not hold is the node's of the options, or asked for at the end."""
    each, nodes = count.each or _of_a_node(draft), count.nodes or _of_the_cluster(draft)[1]
    if each is None or nodes is None:
        why = " trains on all GPUs that it sees" if count.every else " is no number"
        expect(draft, count.where, f"{count.said}{': the number of nodes is not known' if each else why}")
        return
    whole = count.each is not None and count.nodes is not None
    text = f"{count.where}: {count.said}"
    origin = Origin(FILE, text) if whole else Origin(ASSUMED, f"{text}, on nodes of {each} GPUs")
    draft.put("num_gpus", each * nodes, origin)
    if nodes > 1 and "cluster" not in draft.given:
        draft.put("gpus_per_node", each, origin)


def expect(draft: Draft, where: str = "", what: str = "", seen: int | None = None) -> None:
    """A number of GPUs must come from somewhere: ``what`` stands in its place, or nothing at all (one is assumed).
    ``seen``: cards that the command leaves visible, which its hint then names."""
    if what:
        draft.facts.setdefault("processes", (where, what, f"add --num-gpus {seen}" if seen else ""))
    draft.finishers["processes"] = _settle


SPREAD = "one process spreads the layers evenly over its GPUs, of which none holds more than all of them"
"""As accelerate's ``device_map="auto"`` does: ``larger.spread`` counts what the fullest card holds."""


def divided(draft: Draft, key: str, where: str, why: str, hint: str = "") -> None:
    """One process with several cards, over which the layers are spread: none holds more than a process that has one,
    unless states are counted shared."""

    def finish(draft: Draft) -> None:
        said = draft.said
        sharded = said.get("zero_stage") or str(said.get("sharding") or "").startswith(("zero", "fsdp"))
        shared = sharded and int(said.get("num_gpus") or 1) > 1
        (draft.warn if shared else draft.bound)(key, where, why, "parallelism", hint=hint)

    draft.finishers["divided"] = finish


def _settle(draft: Draft) -> None:
    """When every file is read: one GPU where nothing starts several and nothing is shared, else a question."""
    if {"num_gpus", "cluster"} & draft.given or "num_gpus" in draft.values:
        return
    where, what, hint = draft.facts.get("processes") or (*_shared(draft), "")
    if what:
        draft.ask("num_gpus", where, what, hint)
    else:
        draft.put("num_gpus", 1, Origin(ASSUMED, "no file says on how many GPUs it runs: add --num-gpus"))


def _shared(draft: Draft) -> tuple[str, str]:
    """(where, what) of states that are shared among GPUs, where the files say so."""
    sharding = str(draft.values.get("sharding") or "")
    if not sharding.startswith(("zero1", "zero2", "zero3", "fsdp", "distributed")):
        return "", ""
    return draft.origins["sharding"].text, f"{sharding} shares among GPUs, and no file says how many"


def _ask_stage(where: str, draft: Draft) -> None:
    """The ``deepspeed`` command without a config of DeepSpeed's in any file: the program makes one itself, which says
    the stage and what a model that is loaded in half precision is trained in."""
    if "sharding" in draft.values:
        return
    what = "it starts under deepspeed, and no file of DeepSpeed's is named"
    if not {"sharding", "zero_stage"} & draft.given and all(each.asks != "sharding" for each in draft.unread):
        draft.ask("sharding", where, what, STAGE)
    half = draft.facts.get("load", ("",))[0] in ("bf16", "fp16") and draft.facts.get("amp", ("no",))[0] == "no"
    if half and "deepspeed dtype" not in draft.facts:
        draft.ask("precision", where, what)


def number(value: object) -> int | None:
    """A whole number above zero; None for a variable, a word, nothing."""
    text = str(value).strip("\"' ")
    return int(text) if text.isdigit() and 0 < len(text) < 7 and int(text) else None


def visible(environment: Mapping[str, str]) -> int | None:
    """GPUs that a process sees: those that a variable names, or that SLURM gives; None where the text does not say."""
    for name in VISIBLE:
        text = environment.get(name, "").strip("\"' ")
        if text:
            return None if is_template(text) or "$" in text else len([part for part in text.split(",") if part.strip()])
    return next((found for name in OF_A_NODE if (found := number(environment.get(name)))), None)


def _of_a_node(draft: Draft) -> int | None:
    """GPUs of a node, as the options say."""
    return number(draft.options["gpus_per_node"]) if "gpus_per_node" in draft.given else _of_the_cluster(draft)[0]


def _of_the_cluster(draft: Draft) -> tuple[int | None, int | None]:
    """(GPUs of a node, nodes) of the cluster that the options name or describe."""
    given = draft.options.get("cluster")
    if isinstance(given, Mapping):
        return number(given.get("gpus_per_node", 8)), number(given.get("nodes"))
    found = find_cluster(given) if given else None
    return (found.gpus_per_node, found.nodes) if found else (None, None)


def _torchrun(launch: Launch) -> Count:
    """One process without an option; ``gpu`` and ``auto`` are every GPU."""
    values, env = launch.options.values, launch.command.environment
    given = values.get("nproc_per_node", env.get("PET_NPROC_PER_NODE"))
    if given is None and not _hidden(launch):
        given = 1
    every = str(given) in ("gpu", "auto", "cuda") or "nvidia-smi" in str(given)
    each = visible(env) if every else number(given)
    nodes = values.get("nnodes", env.get("PET_NNODES", 1))
    low, _, high = str(nodes).partition(":")
    machines = number(low) if low == (high or low) else None
    return _said(launch, "nproc_per_node" if each is None or machines else "nnodes", each, machines, every)


def _deepspeed(launch: Launch) -> Count:
    """``--num_gpus``, or the slots of ``--include``; else what the variable names, else every GPU of each node."""
    values = launch.options.values
    nodes = number(values.get("num_nodes")) if values.keys() & {"num_nodes", "hostfile", "H"} else 1
    include = str(values.get("include") or values.get("i") or "").strip("\"'")
    if include:
        hosts = [host.partition(":")[2] for host in include.split("@")]
        slots = {len([slot for slot in host.split(",") if slot]) for host in hosts}
        each = slots.pop() if len(slots) == 1 and not is_template(include) and "$" not in include else 0
        return _said(launch, "include", each or None, len(hosts), not each)
    given = values.get("num_gpus", values.get("num_accelerators"))
    if given is not None and str(given) != "-1":
        return _said(launch, "num_gpus", number(given), nodes)
    alone = nodes == 1 and "exclude" not in values and not _hidden(launch)
    return _said(launch, "", visible(launch.command.environment) if alone else None, nodes, True)


def _composer(launch: Launch) -> Count:
    """``-n``, else every GPU; ``--world_size`` over nodes of so many."""
    values = launch.options.values
    key = next((key for key in ("nproc", "n") if key in values), "")
    each = number(values[key]) if key else visible(launch.command.environment)
    world = number(values.get("world_size")) or each
    nodes = max(1, world // each) if each and world else None if "world_size" in values else 1
    return _said(launch, key, each, nodes, not key)


def _said(launch: Launch, key: str, each: int | None, nodes: int | None, every: bool = False) -> Count:
    """A count with the words that say it."""
    value = launch.options.values.get(key)
    said = f"{launch.launcher}{f' --{key}' if key else ''}{'' if value is None else f' {str(value)[:40]}'}"
    where = launch.options.where(key) if key in launch.options.lines else launch.where
    return Count(each, nodes, said, where, every)


def _hidden(launch: Launch) -> bool:
    """Whether a variable that is not known stands among a launcher's options, and may hold any of them."""
    words = launch.command.texts[len(launch.before) : len(launch.command.words) - len(launch.words)]
    for before, word in zip(("", *words), words, strict=False):
        value = before.startswith("-") and "=" not in before and before.lstrip("-").replace("-", "_") not in FLAGS
        if word.startswith(("$", "{{")) and not value:
            return True
    return False


def _tasks(launch: Launch) -> Count | None:
    """Tasks that ``srun`` or ``mpirun`` before a program start, each a process of the training."""
    if not launch.before:
        return None
    name, env = launch.before[0].text.rsplit("/", 1)[-1], launch.command.environment
    options, _, _ = options_of(launch.before[1:])
    if name == "srun":
        nodes = _first(options, env, "nodes", "N", "SLURM_NNODES")
        total = _first(options, env, "ntasks", "n", "SLURM_NTASKS")
        each = _first(options, env, "ntasks_per_node", "", "SLURM_NTASKS_PER_NODE")
        if not (nodes or total or each):
            return Count(None, 1, "srun", launch.where)
        if not each:
            each = max(1, (total or nodes or 1) // (nodes or 1))
        return Count(each, nodes or max(1, (total or each) // each), f"srun of {each} tasks a node", launch.where)
    if name in TASKS:
        given = next((options[key] for key in ("np", "n", "c") if key in options), None)
        return Count(number(given), 1, f"{name} -np {given}", launch.where)
    return None


def _first(options: Mapping[str, object], env: Mapping[str, str], *names: str) -> int | None:
    """A number of an option under its long or short name, else of SLURM's variable."""
    found = options.get(names[0], options.get(names[1]))
    return number(found) if found is not None else number(env.get(names[2]))


def _one_process(launch: Launch, draft: Draft) -> None:
    """``python train.py``: one process. transformers' Trainer makes nn.DataParallel of several visible GPUs."""
    tasks, seen = _tasks(launch), visible(launch.command.environment)
    if tasks is not None and tasks.each != 1:
        return
    if seen == 1:
        draft.put("num_gpus", 1, Origin(FILE, f"{launch.where}: one GPU is visible"))
        return
    several = number(draft.options.get("num_gpus")) or seen or _of_the_cluster(draft)[0] or 1
    if several > 1:
        draft.finishers["data parallel"] = partial(replicated, launch.where, several)


_READERS: dict[str, Callable[[Launch], Count | None]] = {
    "torchrun": _torchrun,
    "deepspeed": _deepspeed,
    "composer": _composer,
}


def of_variables(launch: Launch, forced: bool) -> Count:
    """Programs that start torchrun themselves, as ``NPROC_PER_NODE`` and ``NNODES`` say: LLaMA-Factory's, ms-swift's.

    ``forced``: torchrun whatever is visible; else where several GPUs are."""
    env = launch.command.environment
    each, seen = env.get("NPROC_PER_NODE"), visible(env)
    if seen == 1 and not forced:
        return Count(1, 1, "one GPU is visible", launch.where)
    nodes = number(env["NNODES"]) if "NNODES" in env else 1
    if each:
        return Count(number(each), nodes, f"NPROC_PER_NODE {each[:40]}", launch.where)
    return Count(seen, nodes, launch.program, launch.where, True)
