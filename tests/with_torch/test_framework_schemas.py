"""Proves that emitted files load in the parsers of Axolotl, LLaMA-Factory, torchtitan, LitGPT, verl and OpenRLHF, that
none drops a key, and that what bears on memory comes back from them as the job says.

The packages pin versions of each other's libraries: CI installs them without those (``parsers.txt``); each is left out
where it is missing.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from framework_cases import DRAWN, PLAIN

from memplan.errors import MemplanError
from memplan.frameworks.emit.writing import emit, write_files
from memplan.frameworks.openrlhf.keys import FAMILIES
from memplan.frameworks.registry import find_framework
from memplan.frameworks.verl.names import sense
from memplan.jobs import job_names, read_target
from memplan.resolve import resolve
from memplan.spec.reading import JobInput, read_job
from memplan.units import ceil_div

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries, not of memplan
WORKER = Path(__file__).with_name("parser_worker.py")
HOW_MANY = 30
Values = dict[str, Any]
ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}


DRAWS: dict[str, tuple[dict[str, list[Any]], dict[str, list[Any]]]] = {
    **DRAWN,
    "axolotl": (
        {**PLAIN, "method": ["sft", "reward", "dpo", "ipo", "kto", "orpo", "simpo"]},
        {
            "gradient_checkpointing": ["none", "full"],
            "optimizer": ["adamw", "adafactor", "sgd", "adamw-8bit", "paged-adamw-8bit"],
            "attention": ["sdpa", "flash", "eager"],
            "lora": [{"r": 4}, {"r": 16, "dropout": 0.1, "targets": ["q_proj", "v_proj"]}],
            "num_gpus": [1, 4, 16],
            "sharding": ["zero2", "zero3", "fsdp2"],
            "padded": [True, False],
        },
    ),
}


def drawn(name: str) -> list[JobInput]:
    """Every preset job that the framework can run, and jobs at random, the same every time."""
    row = find_framework(name)
    found = []
    for job in job_names():
        asked = read_target(job, {"trainer": row.trainer} if row.trainer else {})
        found.append(asked)
    source = random.Random(7)
    required, optional = DRAWS[name]
    for _ in range(HOW_MANY):
        keys = {key: source.choice(values) for key, values in required.items()}
        keys |= {key: source.choice(values) for key, values in optional.items() if source.random() < 0.5}
        try:
            found.append(read_job({"model": "smollm2-135m", **keys}))
        except MemplanError:
            continue
    return found


def emitted(name: str, folder: Path) -> dict[str, Values]:
    """Folders with files, and the job of each with every key."""
    row = find_framework(name)
    jobs: dict[str, Values] = {}
    for number, asked in enumerate(drawn(name)):
        try:
            made = emit(asked, row)
        except MemplanError:
            continue  # what a framework cannot say is refused: other tests
        path = folder / str(number)
        write_files(made.texts, str(path), True)
        jobs[str(path)] = dict(resolve(made.given).provenance.job)
    return jobs


def runs(*arguments: str) -> list[Any]:
    """What the worker found."""
    quiet = {"OMP_NUM_THREADS": "1", "DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore",
             "AXOLOTL_DO_NOT_TRACK": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(WORKER), *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **quiet}, timeout=900,
    )  # fmt: skip
    found = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert len(found) == max(1, len(arguments) - 1), done.stderr[-3000:]
    return found


def axolotl(job: Values, got: Values) -> Values:
    half = {"bf16": got.get("bf16"), "fp16": got.get("fp16")}
    return {
        "batch_size": got["micro_batch_size"],
        "gradient_accumulation_steps": got["gradient_accumulation_steps"],
        "sequence_length": got["sequence_len"],
        "gradient_checkpointing": "full" if got.get("gradient_checkpointing") else "none",
        "attention": {word: key for key, word in ATTENTION.items()}[got["attn_implementation"]],
        "method": got.get("rl") or ("reward" if got.get("reward_model") else "sft"),
        "lora.r": got.get("lora_r"),
        "sharded": bool(got.get("deepspeed") or got.get("fsdp_config")),
        "half": next((key for key, on in half.items() if on), "no"),
    }


def llamafactory(job: Values, got: Values) -> Values:
    method = {"rm": "reward"}.get(got["stage"], got["stage"])
    loss = {"sigmoid": "dpo"}.get(got["pref_loss"], got["pref_loss"])
    return {
        "batch_size": got["per_device_train_batch_size"],
        "gradient_accumulation_steps": got["gradient_accumulation_steps"],
        "sequence_length": got["cutoff_len"],
        "gradient_checkpointing": "none" if got["disable_gradient_checkpointing"] else "full",
        "attention": {"fa2": "flash", "sdpa": "sdpa", "disabled": "eager"}[got["flash_attn"]],
        "method": loss if method == "dpo" else method,
        "lora.r": got["lora_rank"] if got["finetuning_type"] == "lora" else None,
        "sharded": bool(got["deepspeed"] or got["fsdp"]),
        "half": "bf16" if got["bf16"] or got["pure_bf16"] else "fp16" if got["fp16"] else "no",
        "optimizer": {"adamw_torch_fused": "adamw", "adamw_torch": "adamw", "adamw_8bit": "adamw-8bit",
                      "adamw_bnb_8bit": "adamw-8bit"}.get(got["optim"], got["optim"]),
    }  # fmt: skip


def torchtitan(job: Values, got: Values) -> Values:
    training, parallel, mode = got["training"], got["parallelism"], got["activation_checkpoint"]
    ranks = parallel["data_parallel_shard_degree"] * parallel["data_parallel_replicate_degree"]
    how = mode["mode"] if mode["mode"] != "selective" else f"every:{mode['selective_ac_option']}"
    return {
        "batch_size": training["local_batch_size"],
        "gradient_accumulation_steps": training["global_batch_size"] // training["local_batch_size"] // ranks,
        "sequence_length": training["seq_len"],
        "gradient_checkpointing": how,
        "num_gpus": ranks * parallel["tensor_parallel_degree"],
        "compile": got["compile"]["enable"],
        "optimizer": got["optimizer"]["name"].lower(),
    }


def litgpt(job: Values, got: Values) -> Values:
    train = got["train"]
    return {
        "batch_size": train["micro_batch_size"],
        "gradient_accumulation_steps": train["global_batch_size"] // train["micro_batch_size"] // job["num_gpus"],
        "sequence_length": train["max_seq_length"],
        "num_gpus": got["devices"] * got["num_nodes"],
        "optimizer": got["optimizer"]["class_path"].rpartition(".")[2].lower(),
        "precision": {"bf16-true": "bf16", "bf16-mixed": "bf16-amp", "32-true": "fp32"}[got["precision"]],
    }


def verl(job: Values, got: Values) -> Values:
    gpus = got["trainer"]["n_gpus_per_node"] * got["trainer"]["nnodes"]
    if job["method"] == "sft":
        data, model, engine, optim = got["data"], got["model"], got["engine"], got["optim"]
        batch, total, length = data["micro_batch_size_per_gpu"], data["train_batch_size"], data["max_length"]
        method = "sft"
    else:
        actor, data, model = got["actor_rollout_ref"]["actor"], got["data"], got["actor_rollout_ref"]["model"]
        engine, optim = actor["fsdp_config"], actor["optim"]
        total = actor["ppo_mini_batch_size"] * got["actor_rollout_ref"]["rollout"]["n"]
        batch = actor["ppo_micro_batch_size_per_gpu"]
        length = data["max_prompt_length"] + data["max_response_length"]
        method = {"gae": "ppo"}.get(got["algorithm"]["adv_estimator"], got["algorithm"]["adv_estimator"])
        assert method != "ppo" or got["critic"]["model"]["path"] == model["path"]
    return {
        "method": method,
        "batch_size": batch,
        "gradient_accumulation_steps": ceil_div(total, batch * gpus),
        "sequence_length": length,
        "num_gpus": gpus,
        "sharding": engine["strategy"],
        "gradient_checkpointing": "full" if model["enable_gradient_checkpointing"] else "none",
        "optimizer": optim["optimizer"].lower(),
        "lora.r": model["lora_rank"] or None,
        "attention": {word: key for key, word in ATTENTION.items()}[model["override_config"]["attn_implementation"]],
    }


def openrlhf(job: Values, got: Values) -> Values:
    model = got.get("actor") or got["model"]
    gpus = job["num_gpus"]
    return {
        "batch_size": got["train"]["micro_batch_size"],
        "gradient_accumulation_steps": got["train"]["batch_size"] // got["train"]["micro_batch_size"] // gpus,
        "sequence_length": got["data"]["max_len"],
        "gradient_checkpointing": "full" if model["gradient_checkpointing_enable"] else "none",
        "gradient_checkpointing_reentrant": model["gradient_checkpointing_reentrant"],
        "sharding": f"zero{got['ds']['zero_stage']}",
        "lora.r": got["ds"]["lora"]["rank"] or None,
        "attention": {word: key for key, word in ATTENTION.items()}[got["ds"]["attn_implementation"]],
        **({"num_gpus": model["num_nodes"] * model["num_gpus_per_node"]} if "actor" in got else {}),
    }


SAYS: dict[str, tuple[Callable[[Values, Values], Values], int]] = {
    "axolotl": (axolotl, 16),
    "llamafactory": (llamafactory, 25),
    "torchtitan": (torchtitan, 25),
    "litgpt": (litgpt, 20),
    "verl": (verl, 20),
    "openrlhf": (openrlhf, 20),
}
"""A framework, the job's keys in what its parser made of the files, and the least number of jobs that it can run."""


def asked_of(job: Values, key: str) -> Any:
    """A job's value in the words above."""
    if key == "lora.r":
        return (job.get("lora") or {}).get("r")
    if key == "sharded":
        return str(job["sharding"]).startswith(("zero", "fsdp"))
    if key == "half":
        kind = str(job["precision"]).partition("-")[0]
        return kind if kind != "fp32" else "no"
    return job[key]


def with_nonsense(name: str, folder: str, to: Path) -> str:
    """A copy of a folder with one key more, which no framework has."""
    shutil.copytree(folder, to)
    for path in to.iterdir():
        if path.suffix == ".yaml":
            path.write_text(path.read_text() + "nonsense_key: 3\n")
        elif path.suffix == ".toml":
            path.write_text(path.read_text() + "\n[nonsense_section]\nkey = 3\n")
        elif name == "openrlhf":
            path.write_text(path.read_text().rstrip() + " --ds.nonsense 3\n")
    return str(to)


@pytest.mark.parametrize("name", SAYS)
def test_what_is_emitted_loads_in_the_real_parser(name: str, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    says, least = SAYS[name]
    jobs = emitted(name, tmp_path)
    assert len(jobs) >= least
    *made, spoiled = runs(name, *jobs, with_nonsense(name, next(iter(jobs)), tmp_path / "spoiled"))
    assert spoiled.get("error") or spoiled["unknown"], "a key that the framework does not have is noticed"
    for (path, job), found in zip(jobs.items(), made, strict=True):
        text = "".join(each.read_text() for each in Path(path).iterdir())
        assert "error" not in found, f"{found['error']}\n{text}"
        assert not found["unknown"], text
        said = says(job, found["values"])
        assert {key: asked_of(job, key) for key in said} == said, text


def is_known(name: str, key: str, text: str) -> bool:
    """Whether memplan's reader of a framework has a key's name: as bearing or as harmless."""
    if name == "verl":
        return sense(key) != "unknown"
    if name == "openrlhf" and key.startswith(FAMILIES):
        return True
    plain = {"openrlhf": key.removeprefix("actor.").removeprefix("model."), "litgpt": key.removeprefix("train.")}
    word = rf"(?<!\w){re.escape(plain.get(name, key))}(?!\w)"
    return re.search(word, text) is not None


PREFIXES = ("qgalore_", "apollo_", "galore_")
"""Keys that are put together from such a beginning where they are read."""


@pytest.mark.parametrize("name", SAYS)
def test_every_key_of_the_real_parser_is_known(name: str) -> None:
    """A key that a new version adds is looked at: it bears on memory, or it is harmless."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = Path(__file__).resolve().parents[2] / "memplan" / "frameworks"
    files = [*folder.glob(f"{name}/*.[pt][yx]*")]
    if name == "llamafactory":
        files += folder.glob("hugging_face/arguments.*")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    (keys,) = runs(name)
    assert len(keys) > 30
    assert not [key for key in keys if not key.startswith(PREFIXES) and not is_known(name, key, text)]
