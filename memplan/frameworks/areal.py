"""AReaL's YAML: an actor under FSDP2 (pure bf16) or Megatron beside rollouts on GPUs of their own.

Where each runs, ``actor.backend: fsdp:d4t2`` says, or the older ``allocation_mode: sglang:d4+fsdp:d4``. A micro-batch
is a number of tokens. Source: inclusionAI/AReaL 1.0.4 areal/api/cli_args.py, engine/fsdp_engine.py, trainer/."""

import re
from collections.abc import Mapping
from typing import Any

from memplan.errors import NoTraining
from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.critics import as_the_policy, read_name
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.generating import SGLANG, VLLM, put, put_engine, read_fields, warn_engine
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.megatron.keys import FUSED_LINEARS
from memplan.frameworks.nemo_rl.source import referred
from memplan.frameworks.own_words.names import OTHERS, bound_images
from memplan.frameworks.verl.source import flat
from memplan.tables.texts import settings_in, words_by_part
from memplan.units import ceil_div

ACTOR, TOKENS = "actor.", "actor.mb_spec.max_tokens_per_mb"
METHODS = {"rl": "grpo", "sft": "sft", "rw": "reward", "dpo": "dpo"}
"""``train_dataset.type`` -> method."""
DEFAULTS: dict[str, Any] = settings_in(
    """actor.dtype=bfloat16 actor.gradient_checkpointing=false actor.attn_impl=flash_attention_2 actor.kl_ctl=0.1
    actor.ppo_n_minibatches=4 actor.optimizer.type=adam actor.lora_rank=32 gconfig.n_samples=1
    gconfig.max_new_tokens=16384 cluster.n_gpus_per_node=8"""
)
_BACKEND = re.compile(r"(?:(?P<engine>[a-z]+)[:.])?(?P<degrees>(?:[dtpce]\d+)+)")
_EXPERTS = re.compile(r"\(attn:([^|()]*)\|ffn:([^|()]*)\)")
DEGREES = {"t": "tensor_parallel", "p": "pipeline_parallel", "c": "context_parallel", "e": "expert_parallel"}
DEFAULT_OF: dict[str, dict[str, Any]] = {
    "vllm": {"gpu_memory_utilization": 0.9, "max_model_len": 32768, "max_num_seqs": 256, "dtype": "bf16"},
    "sglang": {"mem_fraction_static": 0.9, "max_model_len": 32768, "dtype": "bf16"},
}
"""Of vLLMConfig and SGLangConfig."""
BEARING: dict[str, str] = settings_in(
    """actor.fsdp.per_layer_optim_step=optimizer actor.enable_tree_training=batch actor.use_kernels=attention
    actor.megatron.fp8_config=precision"""
)
"""What bears where it is on, and what it decides."""
HARMLESS, GROUPS = (words_by_part(__file__)[name] for name in ("harmless", "groups"))
"""Of ``actor``: names, and beginnings of nested ones; what a config has at its top."""
CHUNKS = "virtual_pipeline_parallel_size"
RECOMPUTED = ("recompute_modules", "recompute_method", "recompute_num_layers")
ROLLS = re.compile(r"rollout\.|allocation_mode$|actor\.(?:eps_clip|group_size|ppo_n_minibatches)$")
"""What only training by rollouts has."""
SEVERAL = re.compile(r"(?:n|num)_(?:agents|policies|actors)")
"""How many policies a project of its own trains."""


def recognise(document: Document) -> tuple[str, ...]:
    """An actor with a backend or micro-batches of tokens, beside an experiment's name."""
    if document.form != "yaml" or "experiment_name" not in document.keys:
        return ()
    for name in ("actor", "model"):
        actor = document.settings.values.get(name)
        if isinstance(actor, Mapping) and "path" in actor and {"backend", "mb_spec"} & set(actor):
            return (name,)
    return ()


def read(document: Document, draft: Draft) -> None:
    """One training."""
    values, lines = dict(flat(document.settings.values)), dict(document.settings.lines)
    if "actor" not in document.keys:  # what supervised training had until 1.0
        values |= {f"{ACTOR}{key.removeprefix('model.')}": values[key] for key in values if key.startswith("model.")}
        lines |= {f"{ACTOR}{key.removeprefix('model.')}": lines[key] for key in lines if key.startswith("model.")}
    values = referred(values)
    keys = Keys(draft, Settings(document.path, values, lines), FRAMEWORK, DEFAULTS)
    kind, key = (keys.text("train_dataset.type") or "rl").lower(), "train_dataset.type"
    generates = next((key for key in values if key.startswith("gconfig.")), "")
    if kind not in METHODS and generates:  # a data set of the project's own; SFT has what an evaluation generates by
        kind, key = "rl" if any(map(ROLLS.match, values)) else "sft", generates
    method = "ppo" if any(key.startswith("critic.") for key in values) else METHODS.get(kind, "")
    if not method:
        raise keys.settings.error("train_dataset.type", f"{kind[:20]!r} is not known", f"known: {', '.join(METHODS)}")
    keys.put("method", method, key)
    keys.copy("model", f"{ACTOR}path")
    _where(keys)
    _batch(keys, method)
    _engine(keys)
    _reference(keys, method)
    if method == "ppo":
        _critic(keys)
    _close(keys)


def _where(keys: Keys) -> None:
    """Engine, degrees and GPUs of the actor."""
    draft, key = keys.draft, f"{ACTOR}backend"
    said = keys.text(key) or ""
    if not re.search(r"\d", said) and keys.has("allocation_mode"):  # ``backend: fsdp`` until 1.0
        engine, key = said, "allocation_mode"
        *others, last = re.split(r"([+|])", keys.text(key) or "")
        said = "".join([*others, f"{engine}:{last}" if engine and not re.match(r"[a-z]+[:.]", last) else last])
    keys.skip("allocation_mode", f"{ACTOR}backend")
    inner = _EXPERTS.search(said)
    said = _EXPERTS.sub(r"\1", said)
    match = _BACKEND.match(re.split(r"[+|]", said)[-1].strip())
    if match is None:
        draft.ask("num_gpus", keys.settings.where(key), f"{said[:40] or 'no backend'} names no engine and GPUs")
    sizes = {letter: int(size) for letter, size in re.findall(r"([dtpce])(\d+)", match["degrees"] if match else "d1")}
    experts = {letter: int(size) for letter, size in re.findall(r"([te])(\d+)", inner[2] if inner else "")}
    sizes["e"] = experts.get("e", sizes.get("e", 1))
    if sizes["e"] > 1:
        keys.put("expert_tensor_parallel", experts.get("t", 1), key)
    for letter, job_key in DEGREES.items():
        if sizes.get(letter, 1) > 1:
            keys.put(job_key, sizes[letter], key)
    gpus = sizes.get("d", 1) * sizes.get("t", 1) * sizes.get("p", 1) * sizes.get("c", 1)
    each = keys.whole("cluster.n_gpus_per_node", 8)
    if match:
        keys.put("num_gpus", gpus, key)
        if gpus > each:
            keys.put("gpus_per_node", each, "cluster.n_gpus_per_node")
    draft.facts["ranks"], engine = sizes.get("d", 1), (match["engine"] if match else "") or "fsdp"
    if engine in DEFAULT_OF and "+" not in said:
        raise NoTraining(f"{keys.settings.where(key)}: {said[:40]} generates, and trains nothing", "name a training's")
    known = {"megatron": "areal-megatron", "fsdp": "areal"}
    draft.put("trainer", known.get(engine, "areal"), Origin(FILE, f"{keys.settings.path}: AReaL's"))
    if engine not in known:
        draft.warn(key, keys.settings.where(key), f"AReaL's {engine} engine is counted as another's", "loss")
    bound_images(keys, f"{ACTOR}path", engine == "megatron")
    keys.put("sharding", "distributed-optimizer" if engine == "megatron" else "fsdp2" if gpus > 1 else "none")
    if str(draft.values.get("method")) in ("grpo", "ppo"):
        _rollouts(keys, key, "|" in said)


def _rollouts(keys: Keys, key: str, beside: bool) -> None:
    """``rollout.backend: sglang:d4t2``, or what stands before the actor's part of ``allocation_mode``."""
    place = "rollout.backend" if keys.has("rollout.backend") else "allocation_mode"
    said = re.split(r"[+|]", keys.text(place) or "")[0].strip()
    keys.skip("rollout.backend")
    found = re.match(r"(sglang|vllm)\b", said)
    if found is None and beside:
        warn_engine(keys, key, "the generation engine beside the trainer is not counted")
    if found is None:
        remark = f"{keys.settings.path}: what generates is not told: the answer is the trainer's alone"
        keys.draft.remarks.append(remark)
        return
    name = found[1]
    if not beside and "num_gpus" in keys.draft.values:
        keys.draft.trains_on(int(keys.draft.values["num_gpus"]), keys.settings.path)
    put_engine(keys, name, key if beside else place, separate=not beside, own=True)
    degrees = {letter: int(size) for letter, size in re.findall(r"([dtp])(\d+)", said.partition(":")[2] or said)}
    for letter, inner in (("t", "tensor_parallel"), ("p", "pipeline_parallel")):
        if degrees.get(letter, 1) > 1:
            put(keys, inner, degrees[letter], place)
    if not beside and degrees:
        put(keys, "num_gpus", degrees.get("d", 1) * degrees.get("t", 1) * degrees.get("p", 1), place)
    for inner, value in DEFAULT_OF[name].items():
        put(keys, inner, value, f"{name}.{inner}")
    read_fields(keys, VLLM if name == "vllm" else SGLANG, f"{name}.")


def _batch(keys: Keys, method: str) -> None:
    """Micro-batches of tokens; without a budget, whole sequences."""
    prompt = keys.whole("train_dataset.max_length") or 0
    tokens, where = keys.whole(TOKENS), keys.settings.where(TOKENS)
    online, ranks = method in ("grpo", "ppo"), int(keys.draft.facts["ranks"])
    samples = keys.whole("gconfig.n_samples", 1) if online else 1
    rows = ceil_div(keys.whole("train_dataset.batch_size", 1) * samples, ranks)
    rows = ceil_div(rows, keys.whole(f"{ACTOR}ppo_n_minibatches", 1)) if online else rows
    longest = prompt + (keys.whole("gconfig.max_new_tokens") or 0 if online else 0)
    longest = max(longest, keys.whole("max_tokens_per_trajectory") or 0 if online else 0)
    halves = 2 if method in ("dpo", "reward") else 1
    keys.skip("actor.mb_spec.n_mbs", "actor.mb_spec.granularity", "actor.mb_spec.packing_algorithm")
    if online and not (prompt or keys.whole("max_tokens_per_trajectory")) and "sequence_length" not in keys.draft.given:
        taken = (
            f"no longer than the {tokens}" if (tokens or 0) > longest else f"as long as their completions, {longest}"
        )
        why = f"nothing bounds prompts: samples are taken to be {taken} tokens"
        keys.remark(f"{why}; add train_dataset.max_length or --sequence-length")
    if tokens:
        length = longest or tokens // halves
        budget = max(tokens, longest * halves)
        keys.put("token_budget", budget, TOKENS)
        keys.put("sequence_length", length, *(["train_dataset.max_length"] if longest else [TOKENS]))
        keys.put("gradient_accumulation_steps", max(1, ceil_div(rows * max(longest, 1) * halves, budget)), TOKENS)
    elif longest:
        parts = max(1, keys.whole("actor.mb_spec.n_mbs", 1))
        keys.put("batch_size", ceil_div(rows, parts), "actor.mb_spec.n_mbs", "train_dataset.batch_size")
        keys.put("sequence_length", longest, "train_dataset.max_length")
        keys.put("gradient_accumulation_steps", parts, "actor.mb_spec.n_mbs")
    else:
        keys.draft.ask("sequence_length", where, "neither max_tokens_per_mb nor max_length is there")


def _engine(keys: Keys) -> None:
    """Weights, gradients and states in one dtype; checkpointing of transformers; PEFT's adapters."""
    word = keys.text(f"{ACTOR}dtype") or "bfloat16"
    precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(word)
    if precision is None:
        raise keys.settings.error(f"{ACTOR}dtype", f"{word[:20]!r} is not known", "bfloat16, float16 or float32")
    on = bool(keys.flag(f"{ACTOR}gradient_checkpointing"))
    if keys.draft.values["trainer"] == "areal":
        keys.put("precision", precision, f"{ACTOR}dtype")
        keys.put("gradient_checkpointing", "full" if on else "none", f"{ACTOR}gradient_checkpointing")
    else:
        keys.put("precision", precision if precision == "fp32" else f"{precision}-master", f"{ACTOR}dtype")
        _megatron(keys, on)
    form = (keys.text(f"{ACTOR}attn_impl") or "").lower()
    keys.put("attention", "flash" if "flash" in form else "eager" if form == "eager" else "sdpa", f"{ACTOR}attn_impl")
    if keys.draft.values["sharding"] == "fsdp2":
        if (keys.text(f"{ACTOR}grad_reduce_dtype") or "float32") != "float32":
            keys.put("reduce_dtype", "bf16", f"{ACTOR}grad_reduce_dtype")
        if keys.flag(f"{ACTOR}fsdp.offload_params"):
            put_inner(keys, "fsdp", "cpu_offload", True, f"{ACTOR}fsdp.offload_params")
    name = keys.text(f"{ACTOR}optimizer.type") or "adam"
    found = {"adam": "adamw", "adam_bf16": "adamw", "sgd": "sgd"}.get(name)
    if found:
        keys.put("optimizer", found, f"{ACTOR}optimizer.type")
        keys.put("optimizer_impl", "fused" if name == "adam" else "loop", f"{ACTOR}optimizer.type")
    else:
        keys.warn(f"{ACTOR}optimizer.type", f"optimizer {name[:20]} is counted as adamw", "optimizer")
    names = keys.names(f"{ACTOR}target_modules") or ()
    if keys.flag(f"{ACTOR}use_lora"):
        every = not names or any("all-linear" in part for part in names)
        own = [part.strip("[]'\"") for part in names]
        targets = "all-linear" if every else [name for part in own for name in FUSED_LINEARS.get(part, (part,))]
        lora = {"r": keys.whole(f"{ACTOR}lora_rank"), "targets": targets, "dtype": precision}
        keys.put("lora", lora, f"{ACTOR}use_lora")


def _megatron(keys: Keys, on: bool) -> None:
    """What Megatron makes again, which megatron-bridge's models do whatever ``gradient_checkpointing`` says
    (models/mcore/registry.py: make_mcore_model), its optimizer and its gradients."""
    at = f"{ACTOR}megatron."
    on = on or keys.text(f"{at}bridge_type") == "megatron-bridge"
    how = str(keys.settings.values.get(f"{at}recompute_granularity", "full") or "none")
    keys.put("gradient_checkpointing", how if on else "none", f"{ACTOR}gradient_checkpointing")
    for name in RECOMPUTED if on else ():
        if keys.has(f"{at}{name}"):
            put_inner(keys, "megatron", name, keys.get(f"{at}{name}"), f"{at}{name}")
    low = keys.text(f"{ACTOR}optimizer.type") == "adam_bf16"
    if low or keys.flag(f"{at}use_precision_aware_optimizer"):
        put_inner(keys, "megatron", "use_precision_aware_optimizer", True, f"{at}use_precision_aware_optimizer")
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype"):
            put_inner(keys, "megatron", name, "bf16" if low else keys.text(f"{at}{name}") or "fp32", f"{at}{name}")
    if keys.flag(f"{at}ddp.grad_reduce_in_fp32") is False:
        keys.put("grad_dtype", "bf16", f"{at}ddp.grad_reduce_in_fp32")
    if keys.flag(f"{at}ddp.use_distributed_optimizer") is False:
        keys.draft.values["sharding"] = "ddp"
    if (keys.whole(f"{at}{CHUNKS}") or 1) > 1:
        keys.put("virtual_pipeline", keys.whole(f"{at}{CHUNKS}"), f"{at}{CHUNKS}")
    keys.skip(f"{ACTOR}grad_reduce_dtype")  # FSDP2's


def _reference(keys: Keys, method: str) -> None:
    """A second model on the same GPUs where the KL term has a weight: of the actor's shape, dtype and ranks; what it
    scores at once is its own (trainer/rl_trainer.py: ``_create_train_engine(config.ref, ...)``)."""
    if method in ("grpo", "ppo"):
        weight = keys.number(f"{ACTOR}kl_ctl") if any(key.startswith("ref.") for key in keys.settings.values) else 0
        keys.put("reference", "resident" if weight else "none", f"{ACTOR}kl_ctl")
    if keys.draft.values.get("reference") == "resident" or method == "dpo":
        same = ("path", "dtype", "backend", "fsdp.offload_params")
        as_the_policy(keys, {f"ref.{name}": f"{ACTOR}{name}" for name in same}, who="reference")
        tokens, budget = keys.whole("ref.mb_spec.max_tokens_per_mb") or 0, keys.draft.values.get("token_budget")
        if method != "dpo" and budget and tokens > budget:
            keys.put("logprob_token_budget", tokens, "ref.mb_spec.max_tokens_per_mb")
    keys.skip(f"{ACTOR}kl_ctl")
    if any(key.startswith("teacher.") for key in keys.settings.values):
        keys.draft.warn("teacher", keys.settings.where("teacher"), "the model that teaches is not counted", "model")


def _critic(keys: Keys) -> None:
    """A value model on the actor's GPUs, with micro-batches and checkpoints of its own; both stay there."""
    own: dict[str, Any] = {}
    tokens, on = keys.whole("critic.mb_spec.max_tokens_per_mb"), bool(keys.flag("critic.gradient_checkpointing"))
    if tokens and tokens != keys.whole(TOKENS):
        own["token_budget"] = max(tokens, int(keys.draft.values.get("sequence_length") or 0))
    if on != bool(keys.flag(f"{ACTOR}gradient_checkpointing")):
        own["gradient_checkpointing"] = "full" if on else "none"
    as_the_policy(keys, {"critic.dtype": f"{ACTOR}dtype", "critic.backend": f"{ACTOR}backend"})
    said = next((key for key in ("critic.gradient_checkpointing", "critic.mb_spec") if keys.has(key)), "critic.path")
    read_name(keys, "critic.path", f"{ACTOR}path", own, said)


def _close(keys: Keys) -> None:
    """What is on and not modelled; of the actor, names that AReaL does not have."""
    for key, decides in BEARING.items():
        if keys.get(key):
            keys.warn(key, "is not modelled", decides)
    strange = [key for key in keys.settings.values if key.partition(".")[0] not in GROUPS]
    for key in [each for each in strange if SEVERAL.fullmatch(each) and keys.get(each) not in (1, None)]:
        keys.warn(key, "several policies are counted as one: no setting of AReaL that is known", "model")
    if strange:
        names = ", ".join(sorted({key.partition(".")[0][:40] for key in strange})[:6])
        remark = f"{keys.settings.where(strange[0])}: no settings of AReaL that are known, and not counted: {names}"
        keys.draft.remarks.append(remark)
    for key in keys.settings.values:
        if not key.startswith(ACTOR) or key.removeprefix(ACTOR).partition(".")[0] in HARMLESS:
            keys.skip(key)
    keys.close()


FRAMEWORK = Framework("areal", "AReaL", "1.0", recognise, read, trainer="areal", extends=(*OTHERS, "llamafactory"))
