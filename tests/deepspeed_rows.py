"""What the real DeepSpeed held on CPU (tests/with_torch/deepspeed_worker.py), and its jobs in memplan's words."""

import json
from pathlib import Path
from typing import Any

from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 512,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
SEVERAL: dict[str, Any] = {"model": LLAMA, "method": "sft", "num_gpus": 2, "sequence_length": 8}
FOUND = json.loads((Path(__file__).parent / "data/deepspeed/measured.json").read_text(encoding="utf-8"))
MEASURED, EVALUATIONS = FOUND["rows"], FOUND["evaluations"]


def recipe_of(**keys: Any) -> Recipe:
    return resolve(read_job(SEVERAL | keys))


def job_of(row: dict[str, Any]) -> Recipe:
    """The measured job, in memplan's words."""
    job = row["job"]
    named = ["embed_tokens", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    frozen = [*named, "norm", "input_layernorm", "post_attention_layernorm", "lm_head"] if "trained" in job else []
    hidden, layers, vocabulary = job["model"]
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers}
    keys = {
        "model": job.get("hf") or LLAMA | shape | {"vocab_size": vocabulary},
        "sequence_length": job.get("tokens", SEVERAL["sequence_length"]),
        "num_gpus": job["ranks"],
        "optimizer_impl": "fused",
        "gradient_accumulation_steps": job["accumulation"],
        "gradient_checkpointing_reentrant": job.get("reentrant", False),
        "gradient_checkpointing": "full" if job.get("checkpointing") else "none",
        "precision": "fp32" if "dtype" in job else "auto",
        "deepspeed": {**job["config"], "zero_force_ds_cpu_optimizer": False},
        "freeze": frozen,
        **({"eval_batch_size": job["evaluate"]} if "evaluate" in job else {}),
        **({"lora": {**job["lora"], "targets": job["lora"]["target_modules"]}} if "lora" in job else {}),
    }
    found = recipe_of(**keys)
    return found.varied({"sharding.deepspeed": found.sharding.deepspeed._replace(groups=job["groups"])})
