"""Loads emitted files in one framework's real parser: python parser_worker.py FRAMEWORK FOLDER …

One line of JSON a folder: {"error": …}, or {"unknown": [keys that the parser drops], "values": {what it made of them}}.
A process of its own: these packages change what they import. Where a package's ``__init__`` loads kernels or a cluster
that no parser needs (torchtitan, verl), only its config modules are loaded.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import io
import json
import os
import shlex
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

Found = dict[str, Any]


def folder_of(name: str) -> Path:
    """Where a package is installed, without loading it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def without_init(name: str) -> None:
    """The package as a bare name with its folder, so that its modules load and its ``__init__`` does not."""
    module = types.ModuleType(name)
    module.__spec__ = find_spec(name)
    module.__path__ = [str(folder_of(name))]
    sys.modules[name] = module


def command(folder: Path) -> list[str]:
    """The words of the last command of run.sh, without assignments before it."""
    text = (folder / "run.sh").read_text(encoding="utf-8").replace("\\\n", " ").replace("$PWD", str(folder))
    words = shlex.split(text.strip().splitlines()[-1])
    while "=" in words[0]:
        words.pop(0)
    return words


def lost(given: Any, kept: Any, at: str = "") -> Iterator[str]:
    """Dotted names that are in one and not in the other."""
    if not isinstance(given, Mapping) or not isinstance(kept, Mapping) or not kept:
        return  # an empty mapping takes any key
    for key, value in given.items():
        if key not in kept and value is not None:
            yield f"{at}{key}"
        else:
            yield from lost(value, kept.get(key), f"{at}{key}.")


def axolotl(folder: Path) -> Found:
    """Its pydantic schema with the plugins' arguments, as on an H100; what the schema does not have, it drops."""
    from axolotl.utils.config import prepare_plugins, validate_config
    from axolotl.utils.dict import DictDefault

    given = yaml.safe_load((folder / "axolotl.yaml").read_text(encoding="utf-8"))
    values = DictDefault(given)
    prepare_plugins(values)
    card = {"bf16": True, "fp8": True, "n_gpu": 8, "n_node": 1, "compute_capability": "sm_90"}
    made = validate_config(values, capabilities=card, env_capabilities={"torch_version": "2.13.0"})
    kept = json.loads(json.dumps(made.to_dict(), default=str))
    return {"unknown": sorted(lost(given, kept)), "values": kept}


def llamafactory(folder: Path) -> Found:
    """Its argument classes by HfArgumentParser, which raises for what they do not have."""
    from llamafactory.hparams import parser
    from transformers.training_args import ParallelMode, TrainingArguments

    given = yaml.safe_load((folder / "llamafactory.yaml").read_text(encoding="utf-8"))
    if "deepspeed" in given:
        given["deepspeed"] = str(folder / given["deepspeed"])
    given["use_cpu"] = True
    several = "FORCE_TORCHRUN" in (folder / "run.sh").read_text(encoding="utf-8")
    mode = ParallelMode.DISTRIBUTED if several else ParallelMode.NOT_PARALLEL
    TrainingArguments.parallel_mode = property(lambda self: mode)
    parser.is_torch_bf16_gpu_available = lambda: True
    parser._check_extra_dependencies = lambda *arguments: None  # liger, galore_torch: not installed here
    parts = parser.get_train_args(given)
    values: Found = {}
    for part in parts:
        values |= {key: value for key, value in vars(part).items() if not key.startswith("_")}
    return {"unknown": [], "values": json.loads(json.dumps(values, default=str))}


def torchtitan(folder: Path) -> Found:
    """Its ConfigManager, which raises for what its dataclasses do not have."""
    import dataclasses

    if "torchtitan" not in sys.modules:
        without_init("torchtitan")
    from torchtitan.config.manager import ConfigManager

    made = ConfigManager().parse_args(["--job.config_file", str(folder / "torchtitan.toml")])
    return {"unknown": [], "values": dataclasses.asdict(made)}


def litgpt(folder: Path) -> Found:
    """The command line of run.sh by jsonargparse, as ``litgpt`` builds it; it exits at what it does not have."""
    from jsonargparse import CLI, capture_parser, set_docstring_parse_options
    from litgpt.__main__ import PARSER_DATA

    set_docstring_parse_options(attribute_docstrings=True)
    words = command(folder)[1:]
    words[words.index("--config") + 1] = str(folder / "litgpt.yaml")
    made = capture_parser(lambda: CLI({words[0]: PARSER_DATA[words[0]]}, as_positional=False)).parse_args(words)
    found = made.as_dict()
    return {"unknown": [], "values": json.loads(json.dumps(found.get(words[0], found), default=str))}


def verl(folder: Path) -> Found:
    """Hydra's composition over its own defaults, and its dataclasses made of it, which raise for what they lack."""
    if "verl" not in sys.modules:
        without_init("verl")
        served = types.ModuleType("verl.workers.rollout.vllm_rollout.utils")  # needs vLLM
        served.get_vllm_max_lora_rank = int  # type: ignore[attr-defined]
        sys.modules["verl.workers.rollout.vllm_rollout"] = types.ModuleType("verl.workers.rollout.vllm_rollout")
        sys.modules[served.__name__] = served
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    given = yaml.safe_load((folder / "verl.yaml").read_text(encoding="utf-8"))
    of = given.pop("defaults")[0]
    given.pop("hydra")
    if of not in BASES:
        with initialize_config_dir(str(folder_of("verl.trainer.config")), version_base=None):
            BASES[of] = OmegaConf.to_container(compose(of))
    with initialize_config_dir(str(folder), version_base=None):
        made = compose("verl")
    if of == "ppo_trainer":
        OmegaConf.set_struct(made, False)
        del made.critic.model["_target_"], made.actor_rollout_ref.model["_target_"]  # they would ask the Hub
        validate_config(made, need_reference_policy(made), need_critic(made))
    else:
        for section in (made.engine, made.optim):
            omega_conf_to_dataclass(section)
    kept = OmegaConf.to_container(made, resolve=False)
    return {"unknown": sorted(lost(given, BASES[of])), "values": json.loads(json.dumps(kept, default=str))}


def openrlhf(folder: Path) -> Found:
    """The script's own main block: its argument parser and checks, with the training left out."""
    words = command(folder)
    module = words[words.index("-m") + 1]
    path = Path(folder_of("openrlhf"), *module.split(".")[1:]).with_suffix(".py")
    if "openrlhf.utils" not in sys.modules:
        without_init("openrlhf.utils")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    block = next(node for node in reversed(tree.body) if isinstance(node, ast.If))
    taken: list[Any] = []
    names = {"argparse": argparse, "datetime": datetime.datetime, "os": os, "train": taken.append}
    before, sys.argv = sys.argv, [module, *words[words.index(module) + 1 :]]
    try:
        exec(compile(ast.Module(block.body, []), str(path), "exec"), names)
    finally:
        sys.argv = before
    plain = json.loads(json.dumps(taken[0], default=lambda one: vars(one) if hasattr(one, "__dict__") else str(one)))
    return {"unknown": [], "values": plain}


BASES: dict[str, Any] = {}
"""verl's own defaults, by the name of the file."""


def names_of(name: str) -> list[str]:
    """Every key that a framework's parser has."""
    import dataclasses

    if name == "axolotl":
        from axolotl.utils.schemas.config import AxolotlInputConfig

        return sorted(AxolotlInputConfig.model_fields)
    if name == "llamafactory":
        from llamafactory.hparams import parser

        return sorted({row.name for made in parser._TRAIN_ARGS for row in dataclasses.fields(made)})
    if name == "torchtitan":
        without_init("torchtitan")
        from torchtitan.config import job_config

        sections = (job_config.Training, job_config.Parallelism)
        return sorted({each.name for made in sections for each in dataclasses.fields(made)})
    if name == "litgpt":
        import inspect

        from litgpt.__main__ import PARSER_DATA
        from litgpt.args import TrainArgs

        starts = [PARSER_DATA[one] for one in ("finetune_full", "finetune_lora", "pretrain")]
        found = {key for one in starts for key in inspect.signature(one).parameters}
        return sorted(found | {f"train.{row.name}" for row in dataclasses.fields(TrainArgs)})
    if name == "openrlhf":
        found = set()
        for program in ("sft", "dpo", "rm", "ppo_ray"):
            path = Path(folder_of("openrlhf"), "cli", f"train_{program}.py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                    text = ast.unparse(node.args[0]).lstrip("f").strip("'\"").removeprefix("--")
                    found |= {text.replace("{prefix}", one) for one in ("actor", "critic")}
        return sorted(found)
    without_init("verl")
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(folder_of("verl.trainer.config")), version_base=None):
        made = [
            OmegaConf.to_container(compose(one))
            for one in ("ppo_trainer", "ppo_megatron_trainer", "sft_trainer_engine")
        ]
    return sorted({key for one in made for key in dotted(one)})


def dotted(values: Any, at: str = "") -> Iterator[str]:
    """Names of nested settings, with dots."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from dotted(value, f"{at}{key}.")
        else:
            yield f"{at}{key}"


PARSERS: dict[str, Callable[[Path], Found]] = {
    "axolotl": axolotl,
    "llamafactory": llamafactory,
    "torchtitan": torchtitan,
    "litgpt": litgpt,
    "verl": verl,
    "openrlhf": openrlhf,
}


def main() -> None:
    """One line a folder; without folders, the names of all keys."""
    if len(sys.argv) == 2:
        print("FOUND", json.dumps(names_of(sys.argv[1])))
        return
    parse = PARSERS[sys.argv[1]]
    for folder in sys.argv[2:]:
        said = io.StringIO()
        try:
            with redirect_stdout(said):
                found = parse(Path(folder).resolve())
        except (Exception, SystemExit) as error:  # whatever the package raises is the answer
            found = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
