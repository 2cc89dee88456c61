"""SkyRL: settings of its own over workers made as verl's are, read as those of verl that they are.

Source: NovaSky-AI/SkyRL skyrl_train 0.1 to 0.4 and skyrl 0.1 to 0.3: config/ppo_base_config.yaml, config/config.py,
model_wrapper.py, workers/worker.py, fsdp/fsdp_worker.py, worker_dispatch.py, distributed/fsdp_strategy.py,
inference_engines/ray_wrapped_inference_engine.py, generators/skyrl_gym_generator.py."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.frameworks.base import Draft
from memplan.frameworks.files.documents import Settings, words
from memplan.frameworks.project.copies import in_copy
from memplan.frameworks.verl.keys import ACTOR, MODEL, REF, ROLLOUT, moved, places_of
from memplan.tables.texts import parts_of, settings_in

_PARTS = parts_of(__file__)

PLACES = places_of(_PARTS["places"])
"""What its sections are called in verl."""
DEFAULTS: dict[str, Any] = settings_in(_PARTS["defaults"])
QUIET = words(_PARTS["quiet"])
"""Its own settings, by their last names, that memory does not feel beyond what is read of them."""
GROUPS = re.compile(
    r"(?:trainer\.algorithm|environment|data|hydra|trainer\.(?:policy|ref|critic)\.megatron_config\.\w+"
    r"|generator\.(?:eval_sampling_params|chat_template\w*|router_\w+|delta_\w+))\..*"
)
"""Groups that memory does not feel, but for what is read of them."""
ENGINE, GENERATOR = "generator.inference_engine.", "generator."
CONFIG = "skyrl_train/config/ppo_base_config.yaml"


def as_verl(settings: Settings, draft: Draft) -> Settings:
    """The settings under verl's names, each with its line; SkyRL's own defaults are in them."""
    newer = any(key.startswith(ENGINE) for key in settings.values)
    eager = re.search(r"^ +enforce_eager: (true|false)", in_copy(settings.path, CONFIG), re.MULTILINE)
    usual = DEFAULTS | ({f"{GENERATOR}enforce_eager": True} if eager and eager[1] == "true" else {})
    said = {_older(key): (key, value) for key, value in settings.values.items()}
    given = {**usual, **{name: value for name, (_, value) in said.items()}}
    values, moves = dict(_made(given, newer)), dict[str, str]()
    for name, value in given.items():
        other = _name(name)
        if other:
            values.setdefault(other, value)
        elif name in said and name.rpartition(".")[2] not in QUIET and not GROUPS.fullmatch(name):
            values[name] = value
        if (before := said.get(name, (name, None))[0]) in settings.lines:
            moves[other or name] = before
    if given["trainer.placement.colocate_all"] is False and values["algorithm.adv_estimator"] == "gae":
        values = _without_critic(values, given, draft, settings)
    started = next(iter(draft.script.commands), None) if draft.script is not None else None
    if started is not None and any("flashrl" in word.casefold() for word in started.texts):
        where = f"{settings.path}, line {started.line}"
        draft.bound("flashrl", where, "the engine's weights, which FlashRL quantises, are counted whole", "engine")
    if given.get(f"{GENERATOR}step_wise_trajectories") is True:
        draft.facts["a row a turn"] = GENERATOR
    draft.facts.setdefault("verl trainer", "skyrl")
    return moved(settings, values, moves)


def _without_critic(
    values: Mapping[str, Any], said: Mapping[str, Any], draft: Draft, settings: Settings
) -> dict[str, Any]:
    """The settings without the critic, which has GPUs of its own where not all is colocated (trainer.py: build_models):
    no more than the policy's update, on as many GPUs."""
    critic, policy = ([said.get(f"trainer.placement.{who}_num_{of}", 1) for of in ("gpus_per_node", "nodes")]
                      for who in ("critic", "policy"))  # fmt: skip
    key = "trainer.placement.colocate_all"
    draft.remarks.append(
        f"{settings.where(key)}: {key}: the critic has GPUs of its own: the policy's update is counted"
    )
    if critic != policy:
        why = f"the critic has {' × '.join(map(str, critic))} GPUs of its own, which are not counted"
        draft.warn("trainer.placement.critic_num_gpus_per_node", settings.where(key), why, "parallelism")
    return {each: value for each, value in values.items() if not each.startswith("critic.")} | {"critic.enable": False}


def _older(key: str) -> str:
    """A name of ``skyrl`` as ``skyrl_train`` had it."""
    name = key.removeprefix(ENGINE)
    if name != key:
        inner = re.sub(r"^(\w+)_parallel_size$", r"inference_engine_\1_parallel_size", name)
        return GENERATOR + ("num_inference_engines" if inner == "num_engines" else inner)
    of = re.sub(r"^megatron_config\.(policy|ref)\.", r"trainer.\1.megatron_config.", key)  # until 0.2
    return of.replace("trainer.remove_microbatch_padding", "trainer.use_sample_packing")


def _name(key: str) -> str:
    """The name in verl; empty for what is read otherwise, or not at all."""
    for own, of in PLACES.items():
        if key == own or (own.endswith(".") and key.startswith(own)):
            return of + key[len(own) :]
    return ""


def _made(said: Mapping[str, Any], newer: bool) -> Iterator[tuple[str, Any]]:
    """What verl has other words for, of several settings at once."""
    together = said["trainer.placement.colocate_all"] is not False
    megatron = said["trainer.strategy"] == "megatron"
    word = str(said["trainer.strategy"])
    yield f"{ACTOR}strategy", "fsdp2" if word == "fsdp" and newer else word
    lengths = [said.get(each, 512) for each in ("trainer.max_prompt_length", "generator.max_input_length")]
    yield "data.max_prompt_length", max((each for each in lengths if isinstance(each, int)), default=lengths[0])
    if "generator.sampling_params.max_generate_length" not in said:  # a script that has it from elsewhere
        yield "data.max_response_length", "${max_generate_length}"
    estimator = str(said["trainer.algorithm.advantage_estimator"]).lower()
    yield "algorithm.adv_estimator", {"reinforce++": "reinforce_plus_plus"}.get(estimator, estimator)
    for own, part in (("policy", f"{ACTOR}megatron." if megatron else f"{ACTOR}fsdp_config."),
                      ("critic", "critic.model.fsdp_config.")):  # fmt: skip
        hosted = said.get(f"trainer.{own}.fsdp_config.cpu_offload") is True and not megatron
        yield f"{part}offload_policy", hosted
        yield f"{part}param_offload", together and not hosted
        after = said.get(f"trainer.{own}.optimizer_config.offload_after_step") is not False
        yield f"{part}optimizer_offload", together and not hosted and after
    for each in (MODEL, "critic.model."):
        yield f"{each}enable_gradient_checkpointing", said["trainer.gradient_checkpointing"]
        yield f"{each}use_remove_padding", said["trainer.use_sample_packing"]
    for each in (f"{ACTOR}ppo", "critic.ppo"):
        yield f"{each}_micro_batch_size_per_gpu", said["trainer.micro_train_batch_size_per_gpu"]
    for each in (f"{ROLLOUT}log_prob", f"{REF}log_prob", "critic.forward"):
        yield f"{each}_micro_batch_size_per_gpu", said["trainer.micro_forward_batch_size_per_gpu"]
    budget = said.get("trainer.max_tokens_per_microbatch")
    if isinstance(budget, int) and budget > 0:
        yield f"{ACTOR}use_dynamic_bsz", True
        for each in (f"{ACTOR}ppo", f"{ROLLOUT}log_prob", f"{REF}log_prob", "critic.ppo", "critic.forward"):
            yield f"{each}_max_token_len_per_gpu", budget
    if said.get("trainer.flash_attn") is False:
        yield f"{MODEL}override_config.attn_implementation", "eager"
    yield f"{ACTOR}entropy_coeff", 0.01 if said.get("trainer.algorithm.use_entropy_loss") is True else 0
    yield f"{ACTOR}calculate_entropy", True
    shared = together or said.get("trainer.placement.colocate_policy_ref") is not False
    yield f"{REF}megatron.param_offload", shared
    if said.get("trainer.policy.model.lora.rank") and not megatron:  # graphs beside adapters, whatever is said
        yield f"{ROLLOUT}enforce_eager", False
    if not together:
        yield "actor_rollout_ref.hybrid_engine", False
        sizes = [said.get(f"generator.{each}", 1) for each in ("num_inference_engines", *(
            f"inference_engine_{kind}_parallel_size" for kind in ("tensor", "pipeline", "data")))]  # fmt: skip
        if said.get("generator.run_engines_locally") is not False and all(isinstance(each, int) for each in sizes):
            yield "rollout.n_gpus_per_node", sizes[0] * sizes[1] * sizes[2] * sizes[3]
