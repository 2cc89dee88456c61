"""NeMo RL's YAML (SFT, DPO, reward models, GRPO), and ``run_dpo.py --config … key=value``.

Its policy trains under FSDP2 (DTensor: weights in fp32, gathered in bf16) or on Megatron; the reference waits on the
host. What generates sleeps on the same GPUs, or has its own. Source: NVIDIA-NeMo/RL@7ea279a nemo_rl/models/automodel/
setup.py, models/megatron/setup.py, algorithms/dpo.py, algorithms/grpo.py."""

import math
from collections.abc import Mapping

from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.config_changes import change
from memplan.frameworks.common.critics import as_the_policy, read_name
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.generating import count_larger, put
from memplan.frameworks.files.documents import Document, words
from memplan.frameworks.nemo_rl.batch import read_batch
from memplan.frameworks.nemo_rl.engine import GENERATION, read_engine
from memplan.frameworks.nemo_rl.keys import DEFAULTS, HARMLESS, LESS, METHODS, ON, ONLINE, PARENT, POLICY, SIZES, STAGES
from memplan.frameworks.nemo_rl.source import of_document, trainings
from memplan.frameworks.own_words.names import OTHERS, bound_images

DTENSOR, MEGATRON = "policy.dtensor_cfg.", "policy.megatron_cfg."
LIKE_RINGS = ("sequence_parallel", "activation_checkpointing")
"""With these on tensor parallelism holds no more than if its GPUs shared the tokens: inputs that a layer made again
gathers, but a part of each layer and of the vocabulary in place of the whole, which is more to this many tokens."""
MOST_ALIKE = 1 << 15
RINGS = "its GPUs are counted as sharing the tokens, each with whole layers, which takes more"
OWN = words("train_micro_batch_size train_global_batch_size dtensor_cfg megatron_cfg max_total_sequence_length")
"""Keys of a policy that are NeMo RL's alone."""


def recognise(document: Document) -> tuple[str, ...]:
    """A policy with its batch or its backend; its entry points in a command."""
    if document.form == "shell":
        return tuple(launch.program for launch in trainings(document))[:1]
    if document.form != "yaml":
        return ()
    policy, over = document.settings.values.get("policy"), document.settings.values.get("defaults")
    if isinstance(policy, Mapping) and OWN & set(policy) and {"defaults", "cluster", *METHODS} & document.keys:
        return ("policy",)
    parents = [str(each) for each in (over if isinstance(over, list) else [over])]
    if isinstance(policy, Mapping) and all(each.endswith((".yaml", ".yml")) for each in parents):
        return ("defaults",)
    beside = {"policy", "cluster", "checkpointing", "loss_fn", "data_plane", "logger", *METHODS} & document.keys
    return ("defaults",) if beside and any(PARENT.fullmatch(each) for each in parents) else ()


def read(document: Document, draft: Draft) -> None:
    """One training."""
    keys = Keys(draft, of_document(document, draft), FRAMEWORK, DEFAULTS)
    method = _method(keys)
    megatron = bool(keys.flag(f"{MEGATRON}enabled"))
    keys.skip(f"{DTENSOR}enabled", f"{DTENSOR}_v2")
    name = "nemo-rl-megatron" if megatron else "nemo-rl"
    draft.put("trainer", name, Origin(FILE, f"{keys.settings.path}: NeMo RL's settings"))
    keys.put("method", method)
    keys.copy("model", f"{POLICY}model_name")
    change(keys, f"{POLICY}hf_config_overrides.")
    bound_images(keys, f"{POLICY}model_name", megatron)
    gpus = _gpus(keys, method)
    copies = _sizes(keys, "megatron_cfg" if megatron else "dtensor_cfg", gpus)
    read_batch(keys, method, gpus // copies)
    if megatron:
        _megatron(keys)
    else:
        _dtensor(keys)
    _method_settings(keys, method)
    if method == "ppo":
        _value(keys, MEGATRON if megatron else DTENSOR)
    if method in ONLINE:
        read_engine(keys)
    _close(keys, megatron)


def _method(keys: Keys) -> str:
    """Of the section at the top, or the entry point."""
    tops = {key.partition(".")[0] for key in keys.settings.values}
    program = str(keys.draft.facts.get("program") or "")
    said = next((METHODS[word] for word in METHODS if word in program.split("_")), "")
    said = said or next((METHODS[word] for word in METHODS if f"run_{word}" in program), "")
    found = said or next((METHODS[word] for word in METHODS if word in tops), "")
    if not found:
        raise keys.settings.error("", "neither grpo, dpo, sft nor rm is a section of it", "add --method")
    return found


def _gpus(keys: Keys, method: str) -> int:
    """GPUs of the cluster, without those that generate alone, score or teach."""
    each, nodes = keys.whole("cluster.gpus_per_node", 1), keys.whole("cluster.num_nodes", 1)
    keys.skip("cluster.segment_size", "cluster.name")
    others = _others(keys, each, nodes)
    total = each * nodes - others
    apart = method in ONLINE and keys.flag(f"{GENERATION}colocated.enabled") is False
    if apart:
        those = keys.whole(f"{GENERATION}colocated.resources.num_nodes")
        of_node = keys.whole(f"{GENERATION}colocated.resources.gpus_per_node")
        theirs = (those or 1) * (of_node or each) if nodes == 1 or those is None else those * each
        total -= theirs
        keys.draft.facts["apart"] = theirs
    if (apart or others) and total > 0 and (keys.has("cluster.gpus_per_node") or keys.has("cluster.num_nodes")):
        keys.draft.trains_on(total, keys.settings.path)
    given = keys.draft.options.get("num_gpus")
    total = max(1, total)
    if given is None or not (apart or others):
        keys.put("num_gpus", total, "cluster.gpus_per_node", "cluster.num_nodes")
    if given is None and total > each:
        keys.put("gpus_per_node", each, "cluster.gpus_per_node")
    return total if given is None else max(1, int(given))


def _others(keys: Keys, each: int, nodes: int) -> int:
    """GPUs of a reward model's environment, and of teachers that have nodes of their own (algorithms/grpo.py: setup,
    opd.py); unclear where teachers have none."""
    count, reward, teachers = 0, "env.reward_model.resources.", "on_policy_distillation."
    if "reward_model" in (keys.get(f"data.{part}env_name") for part in ("default.", "train.", "")):
        count = keys.whole(f"{reward}num_nodes", 1) * each if nodes > 1 else keys.whole(f"{reward}gpus_per_node", 1)
    if keys.flag(f"{teachers}enabled"):
        own = f"{teachers}non_colocated_teachers."
        named = {value for key, value in keys.settings.values.items() if key.startswith(f"{teachers}teacher_model_by")}
        if keys.flag(f"{own}enabled"):
            count += keys.whole(f"{own}default_teacher_cfg.num_nodes", 1) * each * max(1, len(named))
        else:
            keys.warn(f"{teachers}enabled", "the teacher beside the policy is not counted", "model")
    return count


def _sizes(keys: Keys, backend: str, gpus: int) -> int:
    """Degrees of parallelism; how many GPUs one copy of a batch takes."""
    tokens = (keys.whole(f"{POLICY}max_total_sequence_length") or 0) * (
        keys.whole(f"{POLICY}train_micro_batch_size", 1)
    )
    on = all(keys.flag(f"{DTENSOR}{each}") for each in LIKE_RINGS) and tokens <= MOST_ALIKE
    inner, as_rings = 1, on and backend == "dtensor_cfg"
    for name, divided in SIZES[backend]:
        job_key = "context_parallel" if as_rings and divided == "tensor_parallel" else divided
        size = keys.whole(f"{POLICY}{backend}.{name}", 1)
        if size > 1 and job_key != divided:
            keys.bound(f"{POLICY}{backend}.{name}", RINGS, "parallelism")
        elif backend == "dtensor_cfg" and size > 1 and job_key != "context_parallel":
            why = "what its GPUs divide is counted as whole on each, which takes more"
            keys.bound(f"{POLICY}{backend}.{name}", why, "parallelism")
            continue
        divides = job_key == "expert_tensor_parallel" and "expert_parallel" in keys.draft.values
        if size > 1 or divides:
            keys.put(job_key, size, f"{POLICY}{backend}.{name}")
        inner *= size if not job_key.startswith("expert") else 1
    other = "dtensor_cfg" if backend == "megatron_cfg" else "megatron_cfg"
    keys.skip(*(f"{POLICY}{other}.{name}" for name, _ in SIZES[other]))
    return max(1, min(inner, gpus))


def _dtensor(keys: Keys) -> None:
    """FSDP2: weights and states in fp32, products in ``precision``."""
    word = keys.text(f"{POLICY}precision") or "bfloat16"
    precision = {"bfloat16": "bf16-amp", "float16": "fp16-amp", "float32": "fp32"}.get(word)
    if precision is None:
        raise keys.settings.error(f"{POLICY}precision", f"{word[:20]!r} is not known", "bfloat16, float16 or float32")
    keys.put("precision", precision, f"{POLICY}precision")
    keys.put("sharding", "fsdp2")  # over one GPU too (models/dtensor/parallelize.py)
    on = keys.flag(f"{DTENSOR}activation_checkpointing") or keys.flag(f"{POLICY}activation_checkpointing_enabled")
    keys.put("gradient_checkpointing", "full" if on else "none", f"{DTENSOR}activation_checkpointing")
    keys.put_on(f"{POLICY}sequence_packing.enabled", "attention", "flash")
    if "context_parallel" in keys.draft.values:  # SDPA's flash kernel
        keys.put("attention", "flash", f"{DTENSOR}context_parallel_size")
    if keys.flag(f"{DTENSOR}cpu_offload"):
        put_inner(keys, "fsdp", "cpu_offload", True, f"{DTENSOR}cpu_offload")
    every = keys.flag(f"{DTENSOR}lora_cfg.match_all_linear") is not False
    _adapter(keys, f"{DTENSOR}lora_cfg.", "all-linear" if every else "")
    at = f"{POLICY}optimizer.name"
    name = (keys.text(at) or "torch.optim.AdamW").rsplit(".", 1)[-1].lower()
    fused, each = keys.flag(f"{POLICY}optimizer.kwargs.fused"), keys.flag(f"{POLICY}optimizer.kwargs.foreach")
    if name in ("adamw", "adam"):
        keys.put("optimizer", "adamw", at)
        impl = "fused" if fused else "loop" if each is False else "foreach"
        keys.put("optimizer_impl", impl, f"{POLICY}optimizer.kwargs.foreach")
    elif "adam" in name and "8bit" in name.replace("_", ""):
        keys.bound(at, f"optimizer {name[:30]} is counted as adamw, which takes more", "optimizer")
    else:
        keys.warn(at, f"optimizer {name[:30]} is not modelled: adamw is counted in its place", "optimizer")


def _adapter(keys: Keys, at: str, every: str) -> None:
    """LoRA of either backend; ``every``: what is adapted whatever is named."""
    if not keys.flag(f"{at}enabled"):
        return
    found = [name.strip("[]'\" ").rsplit(".", 1)[-1] for name in keys.names(f"{at}target_modules") or ()]
    names = [name for name in found if name]
    dropout, targets = keys.number(f"{at}dropout") or 0.0, every or names or "all-linear"
    passed = [name.strip("[]'\" *") for name in keys.names(f"{at}exclude_modules") or ()] if not every else []
    adapter = {"r": keys.whole(f"{at}dim", 8), "dropout": dropout, "targets": targets, "exclude_modules": passed}
    if [name for name in passed if not name.isidentifier()]:
        keys.warn(f"{at}exclude_modules", "modules that this pattern leaves out are counted as adapted", "adapters")
        adapter["exclude_modules"] = []
    keys.put("lora", adapter, f"{at}enabled")
    if not every and not names and at.startswith(MEGATRON):  # Megatron-Bridge peft/module_matcher.py: match
        why = "without target_modules the head has an adapter too, which is not counted"
        keys.warn(f"{at}enabled", why, "adapters")


def _megatron(keys: Keys) -> None:
    """Megatron's policy: bf16 weights, states in fp32, divided by its distributed optimizer."""
    if (keys.text(f"{POLICY}precision") or "bfloat16") != "bfloat16":
        keys.warn(f"{POLICY}precision", "Megatron's weights are counted in bf16", "precision")
    if str(keys.get(f"{MEGATRON}attention_backend") or "flash").rpartition(".")[2] not in ("flash", "fused", "auto"):
        keys.warn(f"{MEGATRON}attention_backend", "attention is counted as flash's", "attention")
    sharded = keys.flag(f"{MEGATRON}optimizer.use_distributed_optimizer") is not False
    keys.put(
        "sharding", "distributed-optimizer" if sharded else "ddp", f"{MEGATRON}optimizer.use_distributed_optimizer"
    )
    low = f"{MEGATRON}distributed_data_parallel_config.grad_reduce_in_fp32"
    if keys.flag(low) is False:
        keys.put("grad_dtype", "bf16", low)
    exact = f"{MEGATRON}optimizer.use_precision_aware_optimizer"
    if keys.flag(exact) and sharded:
        put_inner(keys, "megatron", "use_precision_aware_optimizer", True, exact)
    on, how = keys.flag(f"{MEGATRON}activation_checkpointing"), keys.text(f"{MEGATRON}recompute_granularity") or "full"
    keys.put("gradient_checkpointing", how if on else "none", f"{MEGATRON}activation_checkpointing")
    modules = keys.names(f"{MEGATRON}recompute_modules")
    if on and how == "selective" and modules:
        put_inner(keys, "megatron", "recompute_modules", list(modules), f"{MEGATRON}recompute_modules")
    if keys.flag(f"{MEGATRON}sequence_parallel") and keys.draft.values.get("tensor_parallel"):
        keys.put("sequence_parallel", True, f"{MEGATRON}sequence_parallel")
    for name in STAGES:
        if keys.whole(f"{MEGATRON}{name}"):
            put_inner(keys, "megatron", name, keys.whole(f"{MEGATRON}{name}"), f"{MEGATRON}{name}")
    dispatcher = f"{MEGATRON}moe_token_dispatcher_type"
    if keys.text(dispatcher):
        put_inner(keys, "megatron", "moe_token_dispatcher_type", keys.text(dispatcher), dispatcher)
    keys.put_on(f"{MEGATRON}optimizer.optimizer_cpu_offload", "offload", ["optimizer"])
    name = (keys.text(f"{MEGATRON}optimizer.optimizer") or "adam").lower()
    if name not in ("adam", "adamw"):
        keys.warn(f"{MEGATRON}optimizer.optimizer", f"{name[:20]} is counted as adam", "optimizer")
    _adapter(keys, f"{MEGATRON}peft.", "")
    overrides = [key for key in keys.settings.values if key.startswith(f"{MEGATRON}model_overrides.")]
    for key in overrides:
        keys.warn(key, "an override of Megatron's own settings is not followed", "model")


def _method_settings(keys: Keys, method: str) -> None:
    """Reference, SFT term, groups."""
    if method == "dpo" and keys.number("dpo.sft_loss_weight"):
        keys.put("sft_term", True, "dpo.sft_loss_weight")
    if method in ("grpo", "ppo"):
        key = "loss_fn.reference_policy_kl_penalty"
        keys.put("reference", "offloaded" if keys.number(key) else "none", key)
        group = keys.whole(f"{method}.num_generations_per_prompt", 1)
        values = keys.draft.said
        factors = (values.get("batch_size", 1), values["gradient_accumulation_steps"], values.get("num_gpus") or 1)
        if group > 1 and math.prod(int(factor) for factor in factors) % group == 0:
            put(keys, "group_size", group, f"{method}.num_generations_per_prompt")


def _value(keys: Keys, backend: str) -> None:
    """PPO's value model: an engine of its own, on the same cards in turn with the policy's."""
    own = backend.replace("policy.", "value.")
    same = ("activation_checkpointing", "recompute_granularity", *(name for name, _ in SIZES[backend.split(".")[1]]))
    pairs = {f"{own}{name}": f"{backend}{name}" for name in (*same, "enabled")}
    as_the_policy(keys, pairs | {"value.precision": "policy.precision"})
    read_name(keys, "value.model_name", f"{POLICY}model_name")
    if "apart" in keys.draft.facts:
        keys.bound("value.model_name", "what the value model holds is counted while the policy trains", "method")
    length = int(keys.draft.values.get("sequence_length") or 0)
    tokens = int(keys.draft.values.get("token_budget") or int(keys.draft.values.get("batch_size") or 1) * length)
    size = (keys.whole("value.train_micro_batch_size") or 0) * length
    if size > tokens:
        count_larger(keys, "value.train_micro_batch_size", size, tokens, "the value model's")


def _close(keys: Keys, megatron: bool) -> None:
    """What is on and not modelled, and names that NeMo RL does not have; of the backend in use, and beside both."""
    off = DTENSOR if megatron else MEGATRON
    for key, (decides, why) in ON.items():
        value = keys.get(key)
        if key.startswith(off) or not (value is True or value not in (None, False, 0, 1, "none")):
            continue
        if key in LESS:
            keys.bound(key, f"{why}, which takes more", decides)
        else:
            keys.warn(key, why, decides)
    for key in keys.settings.values:
        if not key.startswith(POLICY) or key.startswith((off, *(f"{name}." for name in HARMLESS))) or key in HARMLESS:
            keys.skip(key)
    keys.close()


FRAMEWORK = Framework("nemo-rl", "NeMo RL", "0.6", recognise, read, trainer="nemo-rl", extends=OTHERS)
