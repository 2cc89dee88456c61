"""Traces of jobs drawn at random: truth that nobody looked at while the engine was written.

A seed makes jobs over families, methods, trainers, precisions, attention, checkpointing, LoRA, optimizers and lengths;
each is run by ``memplan trace`` (models cut to a few layers, since layers repeat), and the rows are written as a truth
file. ``memplan accuracy FILE`` then says how far estimates are off. Rounds are honest only in this order: freeze the
engine, draw with a new seed, report that figure, then look at single rows and mend.

    python benchmarks/unseen.py --seed 7 -n 200 --output unseen-7.json        needs memplan[trace]
    memplan accuracy unseen-7.json
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from memplan.errors import MemplanError
from memplan.resolve import resolve
from memplan.spec.reading import read_job

PARAMS = Path(__file__).parent.parent / "tests" / "data" / "params"
LAYER_KEYS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_decoder_layers",
    "depth",
    "encoder_layers",
    "decoder_layers",
)
KINDS = ("layer_types", "layers_block_type")
"""Keys that hold what each layer is: what is cut keeps one of each kind."""
INNER = ("text_config", "vision_config", "llm_config")
SOURCE = (
    "Jobs drawn at random by benchmarks/unseen.py and run by memplan trace: real transformers models cut to a few "
    "layers, autograd and optimizers of torch, on fake tensors of device cuda; the second of two training steps."
)
PAIRS = ("dpo", "ipo", "orpo", "cpo", "simpo")
VERSIONS: dict[str, tuple[str, ...]] = {
    "trl": ("0.9", "0.17", "0.19", "0.24", "0.27", "1.0", "1.9", "1.14", "1.16"),
    "transformers": ("4.45", "4.47", "4.48", "4.53", "5.0"),
    "verl": ("0.2", "0.4"),
}
"""Eras of trainers; one job in two of these trainers names one."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "method": ("sft", "sft", "sft", "reward", "kto", *PAIRS, "grpo", "rloo", "ppo", "online-dpo", "distill"),
    "trainer": (
        *("pytorch", "pytorch", "pytorch", "transformers", "trl", "trl", "trl", "llamafactory", "llamafactory"),
        *("openrlhf", "simpo-repo", "verl", "litgpt", "mindspeed", "nemo-aligner", "slime"),
    ),
    "precision": ("bf16", "bf16", "bf16", "bf16", "bf16-amp", "bf16-amp", "fp32", "fp16", "fp16-amp"),
    "attention": ("sdpa", "sdpa", "sdpa", "eager", "flash"),
    "gradient_checkpointing": ("none", "none", "full", "full", "full", "selective", "every:2"),
    "gradient_checkpointing_reentrant": (False, False, True),
    "optimizer": ("adamw", "adamw", "adamw", "adamw", "sgd", "sgd-momentum", "adafactor", "muon"),
    "optimizer_impl": ("auto", "fused", "foreach", "loop"),
    "gradient_accumulation_steps": (1, 1, 1, 2, 4),
    "padded": (False, False, False, True),
    "batch_size": (1, 1, 2, 3, 4),
    "sequence_length": (128, 300, 512, 1000, 1024, 2048, 3072, 4096, 6000),
    "lora": (None, None, {"r": 8}, {"r": 16, "dtype": "bf16"}, {"r": 64}),
    "pair_pass": ("concatenated", "concatenated", "concatenated", "two-forward", "split", "gradcache"),
}
RARELY: dict[str, tuple[Any, ...]] = {
    "kernels": ("liger",),
    "loss_head": ("chunked", "fused", "log-softmax", "selective"),
    "logits_dtype": ("fp32", "bf16"),
    "reference": ("resident", "adapter", "precomputed", "none"),
    "sft_term": (True, False),
    "temperature": (0.7,),
    "entropy": ("metric", "loss"),
    "recompute_loss": (True,),
    "freeze": (["embed_tokens"], ["lm_head"], ["layers.0"], ["mlp"], ["embed_tokens", "layers.0"], ["norm"]),
    "offload": (["activations"],),
    "eval_batch_size": (1, 2, 8),
    "autocast": (True, False),
    "dtype": ("bf16", "fp16"),
    "rollout": ({"prompt_length": 100, "completion_length": 412}, {"prompt_length": 64, "completion_length": 64}),
}
"""Keys that one job in twelve has each."""
ADAPTERS: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"dropout": 0.05}, {"dora": True}, {"bias": "all"}, {"bias": "lora_only"}, {"rslora": True}),
    *({"modules_to_save": ["lm_head"]}, {"modules_to_save": ["embed_tokens", "lm_head"]}),
    *({"targets": ["q_proj", "v_proj"]}, {"targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    *({"targets": ["gate_proj", "up_proj", "down_proj"]}, {"dora": True, "dropout": 0.1}),
)
IMAGES: tuple[dict[str, Any], ...] = (
    *({"width": 336, "height": 336}, {"width": 640, "height": 480}, {"per_example": 2, "width": 224, "height": 224}),
    *({"width": 500, "height": 1000}, {"width": 1024, "height": 768}, {"per_example": 3, "width": 448, "height": 336}),
)
TOWERS = (["visual"], ["vision_tower"], ["vision_model"], ["model.visual", "lm_head"])
"""What users freeze of a model that sees."""
SHARDED = ("openrlhf", "verl")
"""Trainers that shard where nothing is said."""
SMALLEST = 2**20
"""Bytes below which a phase is left out: under CPU offload the optimizer's step holds a norm on the GPU."""
LARGEST_TOKENS = 16384
LOOPS = ("mamba", "falcon_mamba", "jamba", "rwkv", "recurrent_gemma", "minimax")
"""Types whose torch code takes one position after another: short sequences, or a trace takes minutes."""
LATELY = (
    *("gemma4", "gemma4_text", "gemma3n", "gemma3n_text", "bart", "rwkv", "minimax", "deepseek_v4", "granitemoehybrid"),
    *("qwen3_5", "qwen3_next", "gpt_oss", "t5", "llava_onevision", "idefics3", "internvl", "mllama", "qwen3_vl"),
)
"""One job in four is of these: families that earlier rounds could not draw or seldom drew, and towers."""


def models() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """(name, config) of published models, by model_type."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in sorted(PARAMS.glob("*.json")):
        for row in json.loads(path.read_text())["models"]:
            found.setdefault(row["config"]["model_type"], []).append((row["name"], row["config"]))
    return found


def cut(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The config with its first layers only: counts of layers, and lists that have an entry for each."""
    small = dict(config)
    counts = {small[key] for key in LAYER_KEYS if isinstance(small.get(key), int)}
    for key, value in config.items():
        if key in LAYER_KEYS and isinstance(value, int):
            small[key] = min(layers, value)
        elif isinstance(value, (list, str)) and len(value) in counts and len(value) > layers:
            small[key] = of_every_kind(value, layers) if key in KINDS else value[:layers]
        elif key in INNER and isinstance(value, dict):
            small[key] = cut(value, layers)
    if "attention_types" in config:  # GPT-Neo's: [[kinds, how often]]
        (kinds, _), *_ = config["attention_types"]
        small["num_layers"] = max(small["num_layers"] // len(kinds), 1) * len(kinds)
        small["attention_types"] = [[kinds, small["num_layers"] // len(kinds)]]
    if config.get("num_kv_shared_layers"):  # Gemma 3n's and 4's: the last layers read an earlier one's keys and values
        small["layer_types"] = [("sliding_attention", "full_attention")[number % 2] for number in range(layers)]
        small["layer_types"][-1] = "full_attention"
        small["num_kv_shared_layers"] = max(layers - 2, 0)
    if "deepstack_visual_indexes" in config:  # Qwen3-VL's: layers of the tower, each with a merger
        small["deepstack_visual_indexes"] = list(range(len(config["deepstack_visual_indexes"])))[: small["depth"]]
    if not counts and not any(key in config for key in INNER):
        small["num_hidden_layers"] = layers
    return small


def of_every_kind(kinds: list[str] | str, layers: int) -> list[str] | str:
    """The first entries, the last of which is of a kind that would be lost."""
    lost = [kind for kind in kinds if kind not in kinds[:layers]]
    return [*kinds[: layers - 1], lost[0]] if lost and isinstance(kinds, list) else kinds[:layers]


def draw(rng: random.Random, catalogue: dict[str, list[tuple[str, dict[str, Any]]]]) -> tuple[str, dict[str, Any]]:
    """A model's name, and a job with every choice left to chance."""
    name, config = rng.choice(catalogue[rng.choice(LATELY if rng.random() < 1 / 4 else sorted(catalogue))])
    job: dict[str, Any] = {key: rng.choice(values) for key, values in CHOICES.items()}
    job |= {key: rng.choice(values) for key, values in RARELY.items() if rng.random() < 1 / 12}
    job["model"] = cut(config, rng.choice((2, 3, 4, 6)))
    if config["model_type"] in LOOPS:
        job["sequence_length"] = 64
    if job["lora"]:
        job["lora"] = job["lora"] | rng.choice(ADAPTERS)
        if "dtype" in job["lora"] and job["precision"].startswith("fp16"):
            job["lora"]["dtype"] = "fp16"
    if job["method"] not in PAIRS:
        del job["pair_pass"]
    if job["gradient_checkpointing"] in ("none", "selective"):
        del job["gradient_checkpointing_reentrant"]
    if rng.random() < 0.3 and job["method"] != "reward":
        job["completion_length"] = job["sequence_length"] // 2
    if job["trainer"] in VERSIONS and rng.random() < 0.5:
        job["trainer_version"] = rng.choice(VERSIONS[job["trainer"]])
    if job["method"] == "distill":
        job["extra_models"] = [{"role": "teacher", "model": cut(config, 2)}]
    if "vision_config" in config and rng.random() < 0.5:
        job["images"] = rng.choice(IMAGES)
        if rng.random() < 0.3:
            job["freeze"] = rng.choice(TOWERS)
    if job["method"] not in ("grpo", "rloo", "ppo", "online-dpo"):
        job.pop("rollout", None)
    if "rollout" in job:
        job.pop("completion_length", None)
        job["sequence_length"] = job["rollout"]["prompt_length"] + job["rollout"]["completion_length"]
    if job["method"] == "ppo":  # a trace generates nothing, so that no logits of a rollout are kept
        job["rollout"] = job.get("rollout", {}) | {"engine": "none"}
    if job["trainer"] in SHARDED:
        job["sharding"] = "none"
    return name, {key: value for key, value in job.items() if value is not None}


def traceable(job: dict[str, Any]) -> str:
    """Why estimate or trace refuse the job; empty where neither does. So is a larger batch than needed."""
    from transformers import CONFIG_MAPPING

    from memplan.trace.support import check

    if job["model"]["model_type"] not in CONFIG_MAPPING:
        return "the model's code comes with its weights"
    if job["batch_size"] * job["sequence_length"] > LARGEST_TOKENS:
        return "too many tokens"
    if job["model"]["model_type"] == "gemma3n" and find_spec("timm") is None:
        return "its tower is of timm, which is not installed"
    try:
        check(resolve(read_job(job)))
    except MemplanError as error:
        return " ".join(error.message.split())
    return ""


def jobs(seed: int, count: int, refused: Counter[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(id, model's name, job), none of which is refused."""
    rng, catalogue, made = random.Random(seed), models(), 0
    while made < count:
        name, job = draw(rng, catalogue)
        reason = traceable(job)
        refused[reason] += 1
        if not reason:
            made += 1
            yield f"unseen-{seed}-{made:03}", name, job


def traced(item: tuple[str, str, dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """The row of a job; or what went wrong."""
    from memplan.trace import trace

    name, model, job = item
    row = {"id": name, "name": model, "job": job}
    try:
        found = trace(job)
    except MemplanError as error:
        return row, " ".join(error.message.split())
    except Exception as error:  # a defect of the tracer or a model that does not run: said, not hidden
        return row, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    phases = {phase.name: phase.allocated_bytes for phase in found.phases if phase.allocated_bytes >= SMALLEST}
    row["measured"] = {"allocated_bytes": found.allocated_bytes, "phases": phases}
    return row, ""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """The truth file as far as it is."""
    lines = ",\n".join(json.dumps(row) for row in rows)
    path.write_text(f'{{"kind": "traced", "source": {json.dumps(SOURCE)}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main(doc: str | None, jobs: Callable[[int, int, Counter[str]], Iterable[Any]]) -> None:
    """Draw, trace, write; also for jobs that another harness draws."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200, help="jobs")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    refused: Counter[str] = Counter()
    drawn = list(jobs(arguments.seed, arguments.n, refused))
    rows: dict[str, dict[str, Any]] = {}
    with get_context("spawn").Pool(arguments.processes, maxtasksperchild=25) as pool:
        for done, (row, wrong) in enumerate(pool.imap_unordered(traced, drawn), 1):
            if wrong:
                print(f"{row['id']} {row['name']}: {wrong}", file=sys.stderr, flush=True)
            else:
                rows[row["id"]] = row
                write(arguments.output, [rows[name] for name, *_ in drawn if name in rows])
            print(f"\r{done} of {len(drawn)}", end="", file=sys.stderr, flush=True)
    print(f"\n{len(rows)} traced of {len(drawn)}; drawn in vain:", file=sys.stderr)
    for reason, count in refused.most_common(12):
        if reason:
            print(f"  {count:5} {reason}", file=sys.stderr)


if __name__ == "__main__":
    main(__doc__, jobs)
