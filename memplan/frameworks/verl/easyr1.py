"""EasyR1: a fork of verl with settings of its own, read as those of verl that they are.

Source: hiyouga/EasyR1 0.3.2 verl/workers/actor/config.py, critic/config.py, trainer/config.py, workers/fsdp_workers.py,
workers/actor/dp_actor.py (dynamic_batching: a micro-batch holds as many tokens as its sequences would at full length).
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.project.copies import in_copy
from memplan.frameworks.verl.keys import ACTOR, REF, moved, places_of
from memplan.tables.texts import parts_of, settings_in
from memplan.units import pairs_of

_PARTS = parts_of(__file__)

NAMES = places_of(_PARTS["places"])
"""EasyR1's settings and verl's that they are."""
DEFAULTS: dict[str, Any] = settings_in(_PARTS["defaults"])
BEFORE = re.compile(
    r"worker\.(?:actor\.(?:use_kl_loss|kl_loss_\w+|entropy_coeff)|\w+\.offload\.(?:param|optimizer)_offload)"
)
"""Settings that only EasyR1 0.1 has, whose rows are padded, and whose loss has the entropy in it (Seg-Zero
verl/workers/actor/config.py, dp_actor.py)."""
OLDER: dict[str, Any] = {
    "worker.actor.padding_free": False,
    "worker.actor.use_kl_loss": True,
    "worker.actor.entropy_coeff": 0.001,
}
QUIET = re.compile(
    r"""(?:data|algorithm|trainer|worker\.(?:rollout|reward|ref))\..*
    |worker\.\w+\.(?:optim\.(?!strategy).*|clip_ratio\w*|kl_loss_\w+|loss_\w+|tau_\w+|ppo_epochs|max_grad_norm|dynamic_batching
    |fsdp\.(?:enable_rank0_init|mp_buffer_dtype)|use_torch_compile)|config""",
    re.VERBOSE,
)
"""Groups that the update's memory does not feel, but for what is read of them."""
KEPT = words(
    """data.max_prompt_length data.max_response_length data.max_start_length data.max_obs_length trainer.n_gpus_per_node
    trainer.nnodes trainer.val_only algorithm.adv_estimator worker.rollout.limit_images"""
)
OF_CLASS = pairs_of(_PARTS["of-class"])
"""Where the fields of its classes of settings stand."""
IN = words(
    "verl/workers/actor/config.py verl/workers/rollout/config.py verl/trainer/config.py verl/trainer/data_loader.py"
)
UNUSED = words("worker.actor.model.model_path worker.rollout.max_num_seqs")
"""Of no model, and none that its engine is given."""
OPTIMIZERS = {"adamw": "AdamW", "adamw_bf16": "verl.utils.torch_functional.AnyPrecisionAdamW"}


class Field(NamedTuple):
    """A field of a class of settings, with a plain default."""

    of: str
    name: str
    value: Any


def fields_of(text: str) -> Iterator[Field]:
    """Of a module's classes; none where it is no Python."""
    try:
        classes = [each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError):
        return
    for each in classes:
        for line in each.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                with suppress(ValueError, TypeError, SyntaxError):
                    yield Field(each.name, line.target.id, ast.literal_eval(line.value) if line.value else None)


def own_defaults(path: str) -> dict[str, Any]:
    """What the classes of settings say of the EasyR1 that lies in the project: its rows were padded until 0.2, and a
    fork's engine has a share of its own."""
    found: dict[str, Any] = {}
    for name in IN:
        for each in fields_of(in_copy(path, name)):
            key = f"{OF_CLASS.get(each.of, '-')}{each.name}"
            if key in (*DEFAULTS, *OLDER, *NAMES, *KEPT) and each.value is not None and key not in UNUSED:
                found.setdefault(key, each.value)
    return found


def as_verl(settings: Settings) -> Settings:
    """The settings under verl's names, each with its line; EasyR1's own defaults are in them."""
    values: dict[str, Any] = {}
    said: dict[str, str] = {}
    older = OLDER if any(map(BEFORE.fullmatch, settings.values)) else {}
    for key, value in {**DEFAULTS, **older, **own_defaults(settings.path), **settings.values}.items():
        name = NAMES.get(key, key)
        if name == key and key not in KEPT and QUIET.fullmatch(key):
            continue
        values[name] = OPTIMIZERS.get(str(value), value) if name.endswith("optim.optimizer") else value
        if key in settings.lines:
            said[name] = key
    hosted = {settings.values.get(f"worker.ref.{key}") for key in ("fsdp.enable_cpu_offload", "offload.offload_params")}
    values[f"{REF}fsdp_config.param_offload"] = True in hosted or False not in hosted
    without = settings.values.get("algorithm.disable_kl") is True
    values["algorithm.use_kl_in_reward"] = not without  # in the loss or in the reward: a reference scores
    values[f"{ACTOR}use_kl_loss"] = not without and values.get(f"{ACTOR}use_kl_loss") is True
    return moved(settings, values, said)
