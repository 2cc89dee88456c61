"""prime-rl's TOML: a trainer under FSDP2 beside vLLM on GPUs of its own, or supervised training.

Weights are in fp32 and gathered in bf16; a micro-batch is one packed row of ``seq_len`` tokens. From 0.7 on layers are
checkpointed, compiled and their inputs offloaded, and AdamW's states wait on the host, all by default; before it none
is. Which it is, words tell that only one of them has; without one it is the older, which takes more.
Source: PrimeIntellect-ai/prime-rl 0.2 to @559b447 prime_rl/configs/trainer.py, rl.py, sft.py, trainer/model.py."""

from collections.abc import Mapping
from typing import Any

from memplan.frameworks.base import FILE, Draft, Framework, Keys, Origin
from memplan.frameworks.common.generating import FELT, VLLM, put, put_engine, read_fields, warn_felt
from memplan.frameworks.files.documents import Document, words
from memplan.frameworks.hugging_face.arguments import put_attention
from memplan.frameworks.own_words.names import bound_images, with_values
from memplan.frameworks.prime_rl.adapters import MODEL, TRAINER, read_adapters
from memplan.frameworks.prime_rl.head import read_head
from memplan.frameworks.prime_rl.source import form_of, of_document, trainings
from memplan.tables.texts import parts_of, settings_in
from memplan.units import ceil_div, pairs_of

_PARTS = parts_of(__file__)

NEWER = (
    "orchestrator.algo", "orchestrator.train.source", "orchestrator.concurrency", "monitors", "trainer.monitors",
    "orchestrator.monitors", "inference.vllm", "run", "trainer.run", "resume", "trainer.resume", "env_vars",
    f"{MODEL}full_offload", "trainer.eval.source",
)  # fmt: skip
"""Sections that 0.7 brought, or a later one."""
OLDER = (
    "orchestrator.rollouts_per_example", "orchestrator.env", "orchestrator.sampling", "orchestrator.student",
    "max_async_level", "orchestrator.max_async_level", "inference.model", "inference.parallel", "trainer_gpu_ids",
)  # fmt: skip
BEFORE: Mapping[str, Any] = settings_in(
    """model.seq_len=2048 model.optimization_dtype=float32 model.fused_lm_head_token_chunk_size=disabled
    model.optim_cpu_offload=false data.batch_size=128 data.micro_batch_size=1 optim.type=adamw""",
    TRAINER,
) | settings_in("num_train_gpus=1 num_infer_gpus=1 gpus_per_node=8", "deployment.")
SINCE = {**BEFORE, f"{MODEL}fused_lm_head_token_chunk_size": 8192, f"{MODEL}optim_cpu_offload": True}
VAL = f"{TRAINER}val.data."
INFLIGHT, STASHED = f"{MODEL}ac_offloading.max_inflight_activations", 5
"""Copies to the host that the GPU waits for, by default; as many are counted (utils/act_offloading.py)."""
ON = (f"{MODEL}ac", f"{MODEL}compile", f"{MODEL}ac_offloading")
"""Sections that are settings by being there, on by default from 0.7 on."""
ENGINE = {
    "inference.vllm.": VLLM,
    "inference.": pairs_of(
        """parallel.tp=tensor_parallel parallel.dp=data_parallel model.max_model_len=max_model_len
        model.enforce_eager=enforce_eager gpu_memory_utilization=gpu_memory_utilization"""
    ),
}
LESS = ("sign_sgd", "lion", "adamw8bit", "adamw_8bit")
"""Optimizers that keep less than AdamW, of prime-rl (SignSGD, no state) and of its forks."""
NOT_COUNTED = settings_in("vlm=lengths quantization=precision debug.num_layers=model fp8=precision", MODEL)
HARMLESS = words(_PARTS["harmless"])
"""Of ``trainer``: names of sections that memory does not feel beyond what is read of them above."""
OF_MODEL = words(_PARTS["of-model"])


def recognise(document: Document) -> tuple[str, ...]:
    """The parts of ``rl``, or a part's own sections; in a script its commands with ``@``."""
    if document.form == "shell":
        return tuple(launch.program for launch in trainings(document))[:1]
    if document.form != "toml" or not form_of(document.settings.values):
        return ()
    return tuple(key for key in ("orchestrator", "model") if key in document.keys)[:1]


def read(document: Document, draft: Draft) -> None:
    """One training."""
    settings, form = of_document(document, draft)
    settings = with_values(settings, draft.tried)
    parts = [key.split(".") for key in settings.values]
    said = {".".join(each[:place]) for each in parts for place in range(1, len(each) + 1)}  # of a.b.c a, a.b and a.b.c
    newer = bool(said & set(NEWER)) and not said & set(OLDER)
    keys = Keys(draft, settings, FRAMEWORK, SINCE if newer else BEFORE)
    draft.put("trainer", "prime-rl", Origin(FILE, f"{settings.path}: prime-rl's settings"))
    method = "sft" if form == "sft" else "grpo"
    draft.put("method", method, Origin(FILE, f"{settings.path}: prime-rl's {form}"))
    keys.copy("model", f"{MODEL}name")
    bound_images(keys, f"{MODEL}name")
    gpus = _gpus(keys, form, newer)
    keys.put("sharding", "fsdp2")
    if form == "trainer" and not newer and not keys.has(f"{MODEL}seq_len"):
        why = "the orchestrator says how long the rows are that it packs, and its file is not here"
        draft.ask("sequence_length", settings.where(f"{MODEL}name"), why)
    keys.put("sequence_length", keys.whole(f"{MODEL}seq_len"), f"{MODEL}seq_len")
    _batch(keys, method, gpus)
    _model(keys, said, newer)
    read_head(keys, method, newer)
    _optimizer(keys)
    read_adapters(keys, said)
    if form == "rl":
        _engine(keys, said)
    if not said & {*NEWER, *OLDER, f"{MODEL}ac"} and "gradient_checkpointing" not in draft.given:
        why = "nothing tells the version: without checkpointing, as until 0.6, which takes more"
        keys.bound(f"{MODEL}ac", why, "activations", "gradient_checkpointing")
    _close(keys)


def _gpus(keys: Keys, form: str, newer: bool) -> int:
    """GPUs of the trainer alone."""
    at = "deployment."
    nodes, each = keys.whole(f"{at}num_train_nodes"), keys.whole(f"{at}gpus_per_node", 8)
    listed = keys.get("trainer_gpu_ids")
    keys.skip(*(f"{at}{name}" for name in ("type", "num_infer_nodes", "num_infer_replicas", "nodes_per_fsdp_group")))
    keys.skip(f"{at}orchestrator_on_inference", "inference_gpu_ids", f"{at}num_infer_gpus")
    said = nodes * each if nodes else len(listed) if isinstance(listed, list) else 0
    said = said or (keys.whole(f"{at}num_train_gpus") or 0 if keys.has(f"{at}num_train_gpus") else 0)
    if form == "rl" and said:
        keys.draft.trains_on(said, keys.settings.path)
    elif form == "rl" and int(keys.draft.options.get("num_gpus") or 1) > 1:
        why = "nothing says how many GPUs train: all that the option names are counted, and one trains by default"
        keys.remark(why)
    elif form == "sft" and keys.has(f"{at}num_gpus"):  # configs/sft.py: SingleNodeDeploymentConfig
        keys.put("num_gpus", keys.whole(f"{at}num_gpus"), f"{at}num_gpus")
    elif form == "sft" and keys.has(f"{at}num_nodes"):  # MultiNodeDeploymentConfig
        keys.put("num_gpus", keys.whole(f"{at}num_nodes", 1) * each, f"{at}num_nodes")
    given = keys.draft.options.get("num_gpus")
    if given is not None or "num_gpus" in keys.draft.values:  # a launcher says it
        return max(1, int(given or keys.draft.values.get("num_gpus") or 1))
    if nodes:
        keys.put("num_gpus", nodes * each, f"{at}num_train_nodes")
        keys.put("gpus_per_node", each, f"{at}gpus_per_node")
        return nodes * each
    if isinstance(listed, list) and listed:
        keys.put("num_gpus", len(listed), "trainer_gpu_ids")
        return len(listed)
    if form == "trainer" or (form == "sft" and not newer and not keys.has(f"{at}num_train_gpus")):
        keys.draft.ask("num_gpus", keys.settings.where(MODEL), "torchrun says on how many GPUs its trainer runs")
        return 1
    keys.put("num_gpus", keys.whole(f"{at}num_train_gpus"), f"{at}num_train_gpus")
    return keys.whole(f"{at}num_train_gpus", 1)


def _batch(keys: Keys, method: str, gpus: int) -> None:
    """A packed row a micro-batch; how many make a step depends on the completions' lengths."""
    if method == "sft":
        at = f"{TRAINER}data."
        micro = keys.whole(f"{at}micro_batch_size", 1)
        keys.put("batch_size", micro, f"{at}micro_batch_size")
        held = (keys.whole(f"{VAL}seq_len") or 0) * keys.whole(f"{VAL}micro_batch_size", 1)
        if held > micro * int(keys.draft.values["sequence_length"]):
            keys.warn(f"{VAL}seq_len", "validation is counted with rows no longer than the training's", "lengths")
        total = keys.whole(f"{at}batch_size") or micro
        keys.put("gradient_accumulation_steps", max(1, ceil_div(total, micro * gpus)), f"{at}batch_size")
        return
    keys.put("batch_size", 1)
    why = "prime-rl packs a step's completions into rows; memory depends on whether there is more than one"
    keys.assume("gradient_accumulation_steps", 2, f"{keys.settings.path}: {why}")


def _model(keys: Keys, said: set[str], newer: bool) -> None:
    """Dtypes, checkpointing, what waits on the host, degrees."""
    dtypes = {"float32": "bf16-amp", "bfloat16": "bf16"}
    at = f"{MODEL}optimization_dtype"
    word = keys.text(at) or "float32"
    if word not in dtypes:
        raise keys.settings.error(at, f"{word[:20]!r} is not known", "float32 or bfloat16")
    keys.put("precision", dtypes[word], at)
    if keys.text(f"{MODEL}reduce_dtype") == "bfloat16":
        keys.put("reduce_dtype", "bf16", f"{MODEL}reduce_dtype")
    keys.put("attention", "flash")
    if named := keys.text(f"{MODEL}attn"):
        put_attention(keys, "flash", named, f"{MODEL}attn")
    if keys.flag(f"{MODEL}liger_kernel"):  # until 0.2: AutoLigerKernelForCausalLM, whose logits it asks for
        keys.put("kernels", "liger", f"{MODEL}liger_kernel")
    keys.put("allocator", {"expandable_segments": True})  # utils/process.py: DEFAULT_TRAINER_ENV_VARS
    on = {name: (name in said or newer) and not _none(keys, name) for name in ON}
    every = keys.whole(f"{MODEL}ac.freq", 1)
    if selective := keys.text(f"{MODEL}ac.mode") == "selective":
        keys.bound(f"{MODEL}ac.mode", "counted as without checkpointing", "activations")
    full = (on[f"{MODEL}ac"] or on[f"{MODEL}ac_offloading"]) and not selective
    keys.put("gradient_checkpointing", ("full" if every == 1 else f"every:{every}") if full else "none", f"{MODEL}ac")
    keys.put("compile", on[f"{MODEL}compile"], f"{MODEL}compile")
    if on[f"{MODEL}ac_offloading"] and "images" in keys.draft.values:
        keys.bound(f"{MODEL}ac_offloading", "activations that wait on the host are counted on the GPU", "activations")
    elif on[f"{MODEL}ac_offloading"]:
        keys.put("offload", ["activations"], f"{MODEL}ac_offloading")
        if (keys.whole(INFLIGHT) or 0) > STASHED:
            keys.warn(INFLIGHT, "of activations on their way to the host five are counted", "activations")
    keys.skip(*ON, INFLIGHT, f"{MODEL}ac_offloading.pin_memory")
    if keys.flag(f"{MODEL}fsdp_cpu_offload"):
        keys.put("fsdp", {"cpu_offload": True}, f"{MODEL}fsdp_cpu_offload")
    elif keys.flag(f"{MODEL}optim_cpu_offload") or keys.get(f"{MODEL}full_offload"):
        keys.bound(f"{MODEL}optim_cpu_offload", "states that wait on the host are counted on the GPU", "optimizer")
    if keys.flag(f"{MODEL}reshard_after_forward") is False:
        keys.put("reshard_after_forward", False, f"{MODEL}reshard_after_forward")
    if (keys.get(f"{MODEL}ep") or 1) not in (1, "auto"):
        keys.bound(f"{MODEL}ep", "experts are gathered on each GPU, which takes more", "parallelism")
    ring = keys.get(f"{MODEL}cp") or 1
    if isinstance(ring, int) and ring > 1 and keys.text(f"{MODEL}cp_style") in (None, "ring"):
        keys.put("context_parallel", ring, f"{MODEL}cp")  # trainer/models/layers/attn.py: substitute_ring_attn
    elif ring not in (1, "auto"):
        keys.bound(f"{MODEL}cp", "a row is counted as whole on each GPU, which takes more", "parallelism")
    for name in (each for each in ("dp_replicate", "tp") if (keys.whole(f"{MODEL}{each}") or 1) > 1):
        keys.warn(f"{MODEL}{name}", "is not modelled", "parallelism")


def _none(keys: Keys, name: str) -> bool:
    """A section that the file turns off: ``ac = "None"``, ``--no-model.ac``."""
    return name in keys.settings.values and str(keys.settings.values[name]).lower() in ("none", "null", "false")


def _optimizer(keys: Keys) -> None:
    at = f"{TRAINER}optim.type"
    name = (keys.text(at) or "adamw").lower()
    known = {"adamw": "adamw", "sgd": "sgd-momentum", "muon": "muon"}
    if name in known:
        keys.put("optimizer", known[name], at)
    elif name in LESS:
        keys.bound(at, f"{name} is counted as AdamW, which takes more", "optimizer")
    else:
        keys.warn(at, f"{name[:20]} is no optimizer that is known: AdamW is counted in its place", "optimizer")


def _engine(keys: Keys, said: set[str]) -> None:
    """vLLM on GPUs of its own."""
    if "inference" not in said:
        return
    put_engine(keys, "vllm", "inference", separate=True)
    gpus = keys.whole("deployment.num_infer_gpus")
    nodes = keys.whole("deployment.num_infer_nodes")
    listed = keys.get("inference_gpu_ids")
    count = nodes * keys.whole("deployment.gpus_per_node", 8) if nodes else gpus
    put(keys, "num_gpus", len(listed) if isinstance(listed, list) and listed else count, "deployment.num_infer_gpus")
    for at, fields in ENGINE.items():
        read_fields(keys, fields, at)
    longest, row = keys.draft.values["rollout"].get("max_model_len"), keys.draft.values.get("sequence_length")
    if longest and row and longest < row:  # a sample is no longer; several make a row
        del keys.draft.values["batch_size"]
        keys.put("token_budget", row, f"{MODEL}seq_len")
    warn_felt(keys, "inference.vllm.", [name for name in FELT if name != "model"])


def _close(keys: Keys) -> None:
    """What is on and not counted; of the trainer, names that it does not have."""
    for key, decides in NOT_COUNTED.items():
        found = [each for each in keys.settings.values if each == key or each.startswith(f"{key}.")]
        if found and not _none(keys, key):
            keys.warn(found[0], "is not counted", decides)
            keys.skip(*found)
    for key in keys.settings.values:
        section, _, rest = key.removeprefix(TRAINER).partition(".")
        inner = rest.partition(".")[0]
        if not key.startswith(TRAINER) or section in HARMLESS or (section == "model" and inner in OF_MODEL):
            keys.skip(key)
    keys.close()


FRAMEWORK = Framework("prime-rl", "prime-rl", "0.8", recognise, read, trainer="prime-rl", generates=True,
                      extends=("memplan", "torchtitan"))  # fmt: skip
