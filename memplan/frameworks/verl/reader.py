"""verl and what builds on it: overrides of ``main_ppo``, recipes and SFT trainers, in a command, a script, or as YAML.

Dotted names throughout; defaults of the version that the settings tell (``verl_versions``)."""

import re
from difflib import get_close_matches
from functools import partial
from typing import Any

from memplan.errors import NoTraining
from memplan.frameworks.asking import WRITE
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.critics import read_critic
from memplan.frameworks.deciding import no_less, subject_of
from memplan.frameworks.files.documents import Document
from memplan.frameworks.own_words.names import OTHERS
from memplan.frameworks.verl.asking import VerlKeys, gpus, settled
from memplan.frameworks.verl.batch import KL, lengths_of, reference_key, update_batch
from memplan.frameworks.verl.easyr1 import as_verl
from memplan.frameworks.verl.forks import critic_in_code
from memplan.frameworks.verl.fsdp import read_switches, ulysses
from memplan.frameworks.verl.keys import ACTOR, DEFAULTS, LIKE_GRPO, METHODS, MODEL, OLD_SFT, REF, ROLLOUT
from memplan.frameworks.verl.keys import SFT as NEW_SFT
from memplan.frameworks.verl.megatron import degrees
from memplan.frameworks.verl.names import sense
from memplan.frameworks.verl.own import own_entropy_of, read_own_code
from memplan.frameworks.verl.parts import copies_shared, read_engine, read_model, read_optimizer, strategy_of
from memplan.frameworks.verl.reward import read_reward
from memplan.frameworks.verl.rollout import read_rollout
from memplan.frameworks.verl.sft import read_old_sft, read_sft
from memplan.frameworks.verl.skyrl import as_verl as sky_as_verl
from memplan.frameworks.verl.source import EASY, ENGINE, RL, SFT, SKY, Given, given, marks
from memplan.frameworks.verl.versions import changed, code_beside, version_of
from memplan.frameworks.verl.write import write
from memplan.spec.reading import MOST_NAMED, Unread
from memplan.tables.trainer import version_key

TURNS = re.compile(rf"{re.escape(ROLLOUT)}(?:num|max|n)_(?:turns?|(?:gen(?:eration)?_)?rounds?)")
"""Of ``rollout`` itself: what verl and DeepEyes have in sections ends at the response's length."""
TRAINED_REWARD = re.compile(r"reward_model\.(?:prime_model|model\.(?:update|optim))\b")
"""PRIME's, which is updated at every step."""
OTHER_MODEL = re.compile(r"\w+\.(?:model\.)?(?:model_)?path")
"""What a group of a fork's own runs beside the policy: told once, for all that its settings say."""


SCORER = re.compile(r"reward_model\.(?:\w+\.)+\w+_model_(?:name_or_)?path(?:_list)?")
"""A model that a fork scores with, deeper in its group than verl's own."""
BESIDE = re.compile(
    r"actor_rollout_ref\.(?:model|ref)\.(?!\w*(?:save|load|ckpt|config|template|token|data|log|output))\w+_path"
)
"""One that it has beside the policy, of its own name: ``proposer_path``."""


def recognise(document: Document) -> tuple[str, ...]:
    """Its settings by name, whatever the module that they are given to is called."""
    return marks(document)


def read(document: Document, draft: Draft) -> None:
    """One training, of a script or of YAML."""
    found = given(document, draft)
    if found.kind == EASY:
        found = found._replace(settings=as_verl(found.settings), kind=RL)
        version, title = "0.7", "EasyR1"
    elif found.kind == SKY:
        found = found._replace(settings=sky_as_verl(found.settings, draft), kind=RL)
        version, title = "0.6", "SkyRL"
    else:
        draft.facts["verl beside"] = code_beside(found.settings.path)
        version, title = version_of(found, draft.facts["verl beside"]), "verl"
    found = found._replace(settings=settled(draft, found.settings))
    usual = {RL: DEFAULTS, SFT: OLD_SFT, ENGINE: NEW_SFT}[found.kind]
    draft.facts["verl"] = version
    framework = FRAMEWORK._replace(title=title, version={"EasyR1": "0.3", "SkyRL": "0.4"}.get(title, version))
    draft.read[-1:] = [f"{framework.label} ({document.path})"]
    keys = VerlKeys(draft, found.settings, framework, changed(usual, version))
    if version != FRAMEWORK.version and title != "SkyRL":
        draft.put("trainer_version", version, Origin("trainer", f"the settings are {title} {framework.version}'s"))
    {RL: read_rl, SFT: read_old_sft, ENGINE: read_sft}[found.kind](keys, found)
    name = draft.facts.get("verl trainer", "verl")
    draft.put("trainer", name, Origin(FILE, f"{keys.settings.path}: {title}'s settings"))
    _close(keys)


def read_rl(keys: Keys, found: Given) -> None:
    """PPO, GRPO, RLOO: the actor's update."""
    if keys.flag("trainer.val_only"):
        where = keys.settings.where("trainer.val_only")
        raise NoTraining(f"{where}: trainer.val_only: verl validates and trains nothing", "take it out to train")
    key = "algorithm.adv_estimator"
    own = key in keys.settings.values and keys.settings.values[key] is None  # as in verl's recipe of SPPO
    estimator = "none" if own else (keys.text(key) or "gae").lower().rpartition(".")[2]
    method = METHODS.get(estimator, "grpo")
    if estimator not in METHODS and estimator not in LIKE_GRPO:
        method = _of_a_fork(keys, estimator)
    if keys.flag("critic.enable") is False:
        method = "grpo" if method == "ppo" else method
    keys.put("method", method, key)
    if keys.has(named := "model.partial_pretrain"):
        what = f"{named} is of verl's SFT, beside the settings of its PPO: which of them it trains is the program's own"
        keys.draft.warn(named, keys.settings.where(named), what, "method", WRITE)
    prompt, response = lengths_of(keys)
    strategy, said = strategy_of(keys, found)
    megatron = strategy == "megatron"
    at = f"{ACTOR}megatron." if megatron else f"{ACTOR}fsdp_config."
    shared = copies_shared(keys, at) if megatron else ulysses(keys, ACTOR, at)
    world = gpus(keys, 8, shared)
    tokens_shared = degrees(keys, at).get("context_parallel", 1) if megatron else shared
    tokens = update_batch(keys, (prompt + response, response), world, shared, tokens_shared, megatron)
    _reference(keys, read_model(keys, MODEL, megatron), megatron)
    _entropy(keys)
    temperature = keys.number(f"{ROLLOUT}temperature")
    if temperature and temperature != 1:
        keys.put("temperature", temperature, f"{ROLLOUT}temperature")
    read_engine(keys, strategy, said, at, ACTOR, world)
    read_switches(keys, MODEL, at)
    if method == "ppo":
        read_critic(keys, megatron, max(1, world // shared), tokens_shared)
    read_optimizer(keys, f"{ACTOR}optim.")
    _beside(keys, tokens)
    read_rollout(keys, found.config, at)


def _reference(keys: Keys, rank: int, megatron: bool) -> None:
    """verl's FSDP hosts it whatever is said, EasyR1's where it says so (fsdp_workers.py: cpu_offload)."""
    key, own = reference_key(keys), f"{REF}{'megatron' if megatron else 'fsdp_config'}."
    hosts = not megatron and keys.framework.title != "EasyR1"
    host = hosts or bool(keys.flag(f"{own}param_offload"))
    adapter = rank and keys.framework.title != "SkyRL"  # whose reference is a model of its own (RefWorker)
    keys.put("reference", ("adapter" if adapter else "offloaded" if host else "resident") if key else "none", key or KL)
    if key and not rank and keys.flag(f"{own}reshard_after_forward") is False:
        why = "the reference, which is left gathered when it has scored, is counted as divided"
        keys.warn(f"{own}reshard_after_forward", why, "parallelism")


def _of_a_fork(keys: Keys, estimator: str) -> str:
    """An estimator that verl does not have: with a critic where the file itself says one's batch or model, of one that
    is named as verl's own with a critic a config of the project's too; from 0.6 on the others only with
    ``critic.enable`` (trainer/ppo/utils.py: need_critic). The project's own trainer says it first."""
    settings, key, alike = keys.settings, "algorithm.adv_estimator", "gae" in estimator
    own = [each for each in settings.values if alike or settings.paths.get(each, settings.path) == settings.path]
    critic = any(re.match(r"critic\.(?:model\.path|ppo_micro|ppo_max_token)", each) for each in own)
    if not alike and version_key(keys.draft.facts["verl"]) >= version_key("0.6"):
        critic = bool(keys.flag("critic.enable"))
    told = critic_in_code(settings.path, estimator)
    if told is not None:
        return "ppo" if told else "grpo"
    if critic:
        keys.bound(key, f"{estimator[:30]} is counted with the critic that the file describes", "method")
    else:
        where = keys.settings.where(key)
        keys.draft.remarks.append(f"{where}: {estimator[:30]} is counted as grpo: the file describes no critic")
    return "ppo" if critic else "grpo"


def _beside(keys: Keys, tokens: int) -> None:
    """Models on the trainer's cards beside it."""
    read_reward(keys, tokens)
    if keys.flag("distillation.enabled"):
        keys.warn("distillation.enabled", "the model that scores or teaches is not counted", "model")
    trained = next((key for key in keys.settings.values if TRAINED_REWARD.match(key)), "")
    if trained:
        keys.warn(trained, "the reward model that is trained beside the policy is not counted", "model")


def _entropy(keys: Keys) -> None:
    """An entropy in the loss, or as a metric; before 0.4 it is always in the loss (dp_actor.py: update_policy)."""
    scored, trained = own_entropy_of(keys)
    if keys.number(f"{ACTOR}entropy_coeff") or keys.draft.facts["verl"] in ("0.1", "0.2", "0.3"):
        keys.put("entropy", "loss", f"{ACTOR}entropy_coeff")
    elif keys.flag(f"{ACTOR}calculate_entropy"):
        keys.put("entropy", "metric", f"{ACTOR}calculate_entropy")
    elif trained:
        keys.put("entropy", trained)
    elif keys.framework.title == "EasyR1" and not scored:  # nor of its scores (dp_actor.py: compute_log_prob)
        keys.put("entropy", "unscored")
    for at in (ACTOR, f"{ACTOR}fsdp_config."):
        again = f"{at}entropy_checkpointing"
        if keys.flag(again) and keys.draft.values.get("entropy") == "loss":  # else it does nothing
            keys.bound(again, "what the entropy holds for its gradient is counted as held", "loss")
        if keys.flag(f"{at}{CHUNKED}"):
            keys.draft.finishers[CHUNKED] = partial(_chunked, keys, f"{at}{CHUNKED}")


CHUNKED = "entropy_from_logits_with_chunking"


def _chunked(keys: Keys, key: str, draft: Draft) -> None:
    """An entropy for some rows at a time. Without a gradient through it that of all rows, 4 bytes a logit, takes no
    less than a part's copy in fp32, its softmax and their product, 12 bytes (utils/torch_functional.py)."""
    said = draft.said
    rows = int(said.get("token_budget") or int(said.get("batch_size") or 1) * int(said.get("sequence_length") or 0))
    part = keys.whole(f"{key.removesuffix(CHUNKED)}entropy_from_logits_chunk_size", 2048)
    if said.get("entropy") != "loss" and rows // int(said.get("context_parallel") or 1) >= 3 * part:
        keys.bound(key, "the entropy is counted for all rows at once", "loss")
    else:
        keys.warn(key, "is not counted")


def _close(keys: Keys) -> None:
    """Of what nobody took: what bears on memory and is on, and every name that verl does not have."""
    budget = keys.draft.values.get("token_budget")  # no micro-batch is longer
    strange, groups = [], {name.partition(".")[0] for name in keys.defaults}
    models = {key.partition(".")[0]: key for key in keys.settings.values if OTHER_MODEL.fullmatch(key)}
    for key, value in keys.settings.values.items():
        if keys.took(key) or value is None:
            continue
        off = value in ("", "null", -1) or value is False or (value is not True and value in (0, 1))
        kind = sense(key)
        if not off and (SCORER.fullmatch(key) or (kind == "unknown" and BESIDE.fullmatch(key))):
            keys.warn(key, f"no setting of {keys.framework.label} that is known", "model")
            continue
        other = models.get(key.partition(".")[0]) if kind == "unknown" and key.partition(".")[0] not in groups else None
        if other:
            if key == other:
                keys.warn(key, f"no setting of {keys.framework.label} that is known", "model")
        elif kind == "unknown":
            generates = key.startswith(ROLLOUT)  # told as a whole
            if TURNS.fullmatch(key) and isinstance(value, int) and value > 1 and not budget:
                _ask_instead(keys, key, "turns of a fork's own may make sequences longer than the file says", "lengths")
                continue
            decides = "" if off else subject_of(key.removeprefix("actor_rollout_ref."), value)
            decides = "" if generates and not (decides == "lengths" and _longer(keys, value)) else decides
            decides = _felt(keys, key, value, decides)
            why = no_less(decides, key, value, keys.draft.values)
            if why:
                keys.bound(key, why, decides, "precision" if decides == "precision" else "")
            elif why is None and decides in ASKED:
                what = f"{key[:60]} {str(value)[:20]} is no setting of {keys.framework.label} that is known"
                _ask_instead(keys, key, what, decides)
            elif (why is None and decides) or (not off and get_close_matches(key, keys.defaults, 1, A_SLIP)):
                keys.warn(key, f"no setting of {keys.framework.label} that is known", decides)
            elif not off:
                strange.append(key)
        elif kind == "bearing" and not off:
            keys.warn(key)
    read_own_code(keys, strange)
    if strange:
        more = f" and {len(strange) - MOST_NAMED} more" if len(strange) > MOST_NAMED else ""
        names = ", ".join(key[:60] for key in strange[:MOST_NAMED])
        keys.remark(
            f"no settings of {keys.framework.label} that are known, and none that "
            f"memory feels by their names: {names}{more}",
            strange[0],
        )


OF_A_GROUP = {
    "data": ("lengths", "batch"),
    "algorithm": ("model", "adapters", "lengths"),
    "trainer": ("model", "adapters"),
}
"""What of memory a fork's own setting of these groups may decide: the others' are of rewards, steps and logs."""
OF_LOG_PROBS = re.compile(r"loss_(?:impl|fn|func|function|mode|type|agg\w*)$|(?:reward|norm|filter|penalt)\w*\.method$")
"""Which loss is made of the log-probabilities, and how rewards are scaled: of numbers of rows, whatever it is."""
OF_OPTIM = re.compile(r"\.optim\.\w*(?:optim|name|cls|class)\w*$")
"""Which optimizer it is, of a fork's own words: SAM's steps are two."""
A_SLIP = 0.93
"""How alike a setting is to one that it is a slip of."""
ASKED = {"lengths": "sequence_length", "batch": "batch_size"}
"""What of memory a fork's own setting decides -> the job's key that says it in its place."""


def _felt(keys: Keys, key: str, value: Any, decides: str) -> str:
    """What of memory a fork's own setting decides; nothing where its group does not, or where it is no more than what
    is counted: verl-tool's lengths of parts (verl_tool/agent_loop/verltool_agent_loop.py: response_length)."""
    groups = {} if keys.framework.title == "SkyRL" else OF_A_GROUP  # whose ``trainer`` has batches and lengths
    decides = decides if decides in groups.get(key.partition(".")[0], (decides,)) else ""
    decides = "" if decides in ("loss", "method") and OF_LOG_PROBS.search(key) else decides
    decides = "optimizer" if OF_OPTIM.search(key) and isinstance(value, str) else decides
    said = keys.draft.said
    part = key.startswith("actor_rollout_ref.agent.") and isinstance(value, int)
    return "" if part and decides == "lengths" and value <= int(said.get("sequence_length") or 0) else decides


def _longer(keys: Keys, value: Any) -> bool:
    """Whether a length of a fork's engine is over the sequences': MMSearch-R1's ``response_length_total``."""
    return isinstance(value, int) and value > int(keys.draft.said.get("sequence_length") or 0)


def _ask_instead(keys: Keys, key: str, what: str, decides: str) -> None:
    """A fork's own setting of lengths or batches, which only the user knows the meaning of; without it, the file's."""
    asks = ASKED[decides]
    keys.skip(key)
    if any(each.asks == asks for each in keys.draft.unread):
        return
    asks = "token_budget" if decides == "batch" and "token_budget" in keys.draft.values else asks
    option = f"add --{asks.replace('_', '-')}" if asks != "token_budget" else "add --set token_budget=…"
    said = keys.draft.values.get(asks, "") if asks != "token_budget" else ""
    hint = f"{option} {said}".rstrip()
    keys.draft.unread.append(Unread(key, keys.settings.where(key), what, decides, hint, asks))


FRAMEWORK = Framework("verl", "verl", "0.9", recognise, read, write, generates=True, extends=OTHERS, trainer="verl")
