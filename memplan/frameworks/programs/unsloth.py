"""Unsloth's own: its length, its checkpointing, and its kernels where they are modelled."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from memplan.frameworks.base import ASSUMED, FILE, Draft, Origin
from memplan.frameworks.common.checkpoints import family_of
from memplan.frameworks.common.fsdp_keys import refusal
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.programs.gathered import Gathered
from memplan.frameworks.programs.models import TRAINERS
from memplan.frameworks.programs.values import Thing, Unknown, truth
from memplan.tables.kernels import UNSLOTH as FAMILIES
from memplan.tables.methods import METHODS
from memplan.tables.trainer import version_key

ENGINE = {
    "gpu_memory_utilization": ("gpu_memory_utilization", 0.5),
    "max_seq_length": ("max_model_len", 2048),
    "max_num_seqs": ("max_num_seqs", 256),
}
"""Of ``from_pretrained`` -> keys of ``rollout``, and Unsloth's defaults."""


CONFIG: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "per_device_eval_batch_size": 4,
    "optim": "adamw_8bit",
}
"""Defaults of the configs that Unsloth puts in the place of TRL's (unsloth/models/rl.py, 2026.8)."""


def put_defaults(trainer: Thing, imported: Sequence[str], gathered: Gathered) -> None:
    """Where the config, or the trainer that makes one, is Unsloth's: of a name that is taken from TRL after it."""
    arguments = trainer.values.get("args")
    made = arguments if isinstance(arguments, Thing) else trainer
    ours = next((place for place, name in enumerate(imported) if name.partition(".")[0] == "unsloth"), len(imported))
    if (arguments is not None and made is trainer) or not made.name.startswith("trl.") or made.name in imported[:ours]:
        return
    for key, value in (CONFIG | ({"beta": 0.001} if TRAINERS[trainer.last] == "grpo" else {})).items():
        gathered.add(key, value, made.place, over=False)


def put_unsloth(
    thing: Thing, trainer: Thing, config: Any, gathered: Gathered, draft: Draft, standby: bool = False
) -> None:
    """Unsloth's own: its length, its kernels, its checkpointing where it makes the adapters or loads saved ones, its
    engine; mixed precision by the dtype of the weights where the arguments turn on neither, but for full training that
    turns it off (models/rl.py); all of float16 is trained as fp32 (unsloth_zoo 2025.3 to 2026.8 training_utils.py:
    prepare_model_for_training). ``standby``: UNSLOTH_VLLM_STANDBY."""
    full = truth(thing.values.get("full_finetuning", False)) is not False
    half = str(gathered.values.get("dtype")).rpartition(".")[2] == "float16"
    if not any(key in gathered.places and truth(gathered.values.get(key)) is not False for key in ("bf16", "fp16")):
        gathered.add("bf16", not half, thing.place, not full)
        gathered.add("fp16", half, thing.place, not full)
    if full and half:
        gathered.add("dtype", "float32", thing.places.get("full_finetuning", thing.place))
    length = thing.values.get("max_seq_length", 2048)
    place = thing.places.get("max_seq_length", thing.place)
    method = TRAINERS[trainer.last]
    if not any(key in gathered.places for key in ("max_length", "max_seq_length")):
        gathered.add("max_length", length, place)
    if method == "transformers":
        gathered.add("max_seq_length", length, place, over=False)
    said = thing.values.get("use_gradient_checkpointing", "unsloth")
    if isinstance(config, Thing):
        said = config.values.get("use_gradient_checkpointing", "unsloth")
        place = config.places.get("use_gradient_checkpointing", config.place)
    on = truth(said)
    if not isinstance(config, Thing) or config.last != "LoraConfig" or "peft_type" in config.values:
        gathered.add("gradient_checkpointing", Unknown("not known", place) if on is None else on, place)
    if truth(thing.values.get("fast_inference", False)) is not False:
        draft.finishers["engine"] = partial(_engine, thing, standby)
    draft.facts["unsloth"] = (str(thing.place), said)
    draft.finishers["unsloth batch"] = _raised
    draft.finishers["unsloth"] = kernels


def _raised(draft: Draft) -> None:
    """A batch that holds no whole groups becomes one group (unsloth/models/rl.py, check_num_generations: of the batch
    alone until 2025.11, later of what all GPUs accumulate)."""
    values = draft.said
    batch, group = int(values.get("batch_size") or 8), int((values.get("rollout") or {}).get("group_size") or 8)
    if values.get("method") != "grpo" or "batch_size" in draft.given or batch % group == 0:
        return
    where = draft.origins["batch_size"].text if "batch_size" in draft.origins else draft.facts["unsloth"][0]
    step = batch * int(values.get("gradient_accumulation_steps") or 1) * int(values.get("num_gpus") or 1)
    draft.values["batch_size"] = group
    why = f"Unsloth raises a batch of {batch} to the {group} of num_generations"
    draft.origins["batch_size"] = Origin(ASSUMED, f"{where}: {why}")
    if step % group == 0:
        draft.bound("per_device_train_batch_size", where, f"{why} in versions up to 2025.11", "batch", "batch_size")


def _engine(thing: Thing, standby: bool, draft: Draft) -> None:
    """vLLM in the trainer's process, whose weights are the trainer's modules (unsloth_zoo 2026.10 vllm_utils.py)."""
    method, place = draft.now("method"), thing.places["fast_inference"]
    if not METHODS[str(method)].online or truth(thing.values["fast_inference"]) is None:
        why, hint = "the generation engine beside the trainer is not counted", "if what is free holds it"
        draft.warn("fast_inference", str(place), why, "engine", f"add --without fast_inference, {hint}")
        return
    before = draft.values.get("rollout") or {}
    found = {key: before[key] for key in ("group_size",) if key in before}
    found |= {"engine": "vllm", "placement": "colocate", "process": "same", "shared_weights": True}
    for name, (key, usual) in ENGINE.items():
        at = thing.places.get(name, thing.place)
        draft.asked.setdefault(name, Settings(at.path, thing.values, {name: at.line}))
        value = draft.tried.get(name, thing.values.get(name))
        value = usual if value is None else value
        if isinstance(value, (int, float)) and not refusal("rollout", key, value):
            found[key] = value
        else:
            draft.warn(name, str(thing.places[name]), "no number that the engine takes", "engine")
    if truth(thing.values.get("float8_kv_cache", False)):
        found["kv_dtype"] = "fp8"
    standby = standby or bool(truth(thing.values.get("unsloth_vllm_standby", False)))
    draft.values["rollout"] = found | {"sleep": "1" if standby else "none"}
    draft.origins["rollout"] = Origin(FILE, f"{place}: fast_inference")
    draft.unread[:] = [each for each in draft.unread if each.key != "use_vllm"]  # which is no server's
    _bounded(int(found.get("max_model_len") or 0), draft)


def _bounded(longest: int, draft: Draft) -> None:
    """Lengths that the program works out of its data: prompt and completion are no more than the engine takes."""
    asked = [each for each in draft.unread if each.asks in ("sequence_length", "completion_length")]
    if not asked or not longest or {"sequence_length", "completion_length"} & draft.given:
        return
    draft.unread[:] = [each for each in draft.unread if each not in asked]
    together = any(re.search(r"-\s*\w*prompt", each.why) for each in asked)  # max_seq_length - max_prompt_length
    why = f"{asked[0].why}: prompt and completion are {'together' if together else 'each'} at most max_seq_length"
    bounds = {"sequence_length": longest * (1 if together else 2), "completion_length": longest}
    for key in dict.fromkeys(("sequence_length", *(each.asks for each in asked))):
        draft.bound(asked[0].key, asked[0].where, why, "lengths", key)
        draft.values[key], draft.origins[key] = bounds[key], Origin(ASSUMED, f"{asked[0].where}: {why}")


def kernels(draft: Draft) -> None:
    """Unsloth's kernels where they are modelled for the job; elsewhere transformers' own layers, which hold more."""
    where, checkpointing = draft.facts["unsloth"]
    asked = "processes" in draft.facts or any(each.asks == "num_gpus" for each in draft.unread)
    if not asked and "num_gpus" not in {*draft.given, *draft.values}:
        draft.put("num_gpus", 1, Origin(FILE, f"{where}: Unsloth runs on one GPU where nothing starts more"))
    given = draft.said
    alone = int(given.get("num_gpus") or 1) == 1 and given.get("zero_stage") is None
    modelled = given.get("method") in ("sft", "grpo") and given.get("lora") and alone and not given.get("sharding")
    if modelled and family_of(given) in (*FAMILIES, ""):
        draft.put("kernels", "unsloth", Origin(FILE, f"{where}: Unsloth"))
        _loss_of_its_version(given, where, draft)
        if checkpointing is True:
            why = 'true is counted as "unsloth": layer inputs wait on the host'
            draft.warn("use_gradient_checkpointing", where, why, "")
        return
    if given.get("method") == "grpo":
        of = "log-probabilities are made of hidden states in chunks, whose logits torch.compile keeps; counted as all"
        draft.put("loss_head", "selective", Origin(ASSUMED, f"{where}: {of}"))
    family = family_of(given) or "this model"
    what = f"{given.get('method')} of {family}{'' if given.get('lora') else ' without adapters'}"
    why = f"Unsloth's kernels are not modelled for {what}: transformers' own layers are counted, which hold no less"
    draft.bound("FastLanguageModel", where, why, "attention")
    if family == "phi3":
        _apart(draft)
    if family == "gemma3n_text":
        hint = "add --without FastModel, if what is free holds them"
        draft.warn("FastModel", where, "towers of images and of sound are loaded too, and not counted", "model", hint)
    if family == "mllama":  # its own checkpoints are no torch's, which cannot run the tower's backward twice
        draft.values["gradient_checkpointing_reentrant"] = False
        draft.origins["gradient_checkpointing_reentrant"] = Origin(FILE, f"{where}: Unsloth's own checkpoints")


LOSSES = (("2024.11.8", "cross-entropy"), ("2025.8.5", "cut-cross-entropy"))
"""Until when the loss was another than chunks of logits: of all logits, then without any (models/llama.py:
CausalLM_fast_forward, HAS_CUT_CROSS_ENTROPY); from 2024.12 to 2025.10.9 of all where they are of few tokens."""
FEW_TOKENS, OF_FEW = 1024, "2025.10.10"


def _loss_of_its_version(given: Mapping[str, Any], where: str, draft: Draft) -> None:
    """The loss of the Unsloth that the program or its requirements pin."""
    version = draft.facts["unsloth's version"]
    if not version or given.get("method") != "sft" or "loss_head" in draft.given:
        return
    pinned = version_key(version)
    head = next((head for until, head in LOSSES if pinned < version_key(until)), "")
    tokens = int(given.get("batch_size") or 8) * int(given.get("sequence_length") or 0)
    if pinned < version_key(OF_FEW) and 0 < tokens <= FEW_TOKENS:
        head = "cross-entropy"
    if head:
        draft.put("loss_head", head, Origin(FILE, f"{where}: unsloth {version} is pinned"))


APART = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj") | dict.fromkeys(
    ("gate_proj", "up_proj"), "gate_up_proj"
)


def _apart(draft: Draft) -> None:
    """Unsloth loads copies of Phi-3 and Phi-4 whose q, k and v are apart, and gate and up (models/mapper.py; Mistral's
    and Llama's architecture): their adapters take no more than one of the fused product with the ranks of all."""
    lora = draft.values.get("lora")
    targets = lora.get("targets") if isinstance(lora, dict) else None
    fused = Counter(APART[name] for name in targets if name in APART) if isinstance(targets, (list, tuple)) else {}
    if fused and isinstance(lora, dict) and isinstance(lora.get("r"), int):
        lora["targets"] = [*(name for name in targets or () if name not in APART), *fused]
        lora["rank_pattern"] = {name: lora["r"] * times for name, times in fused.items()}
