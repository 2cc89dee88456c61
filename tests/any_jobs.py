"""Jobs drawn from the tables themselves, on tiny models: what the proofs of every ledger run over."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from memplan.engine.build import build_ledger
from memplan.engine.ledger import Ledger
from memplan.errors import InvalidJob
from memplan.report import PerGpu
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.choices import CHOICES

TINY = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1024}
MODELS: dict[str, dict[str, Any]] = {
    "tied": {**TINY, "tie_word_embeddings": True},
    "untied": {**TINY, "tie_word_embeddings": False},
    "gemma3": {**TINY, "model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 2},
    "mixtral": {**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
}

Keys = dict[str, Any]


def ledger_of(**keys: Any) -> Ledger:
    return build_ledger(resolve(read_job({"model": MODELS["untied"], "batch_size": 2, "sequence_length": 64, **keys})))


def step_peak(per_gpu: PerGpu) -> int:
    """The most in the steady step and the evaluation after it."""
    return max(size for phase, size in per_gpu.phases.items() if phase in ("forward", "backward", "step", "evaluate"))


def choice(key: str) -> st.SearchStrategy[str]:
    return st.sampled_from(CHOICES[key])


LORA = st.fixed_dictionaries(
    {"r": st.sampled_from([8, 16]), "dtype": st.sampled_from(["fp32", "bf16"]), "dropout": st.sampled_from([0.0, 0.1])},
    optional={"targets": st.just(["q_proj", "v_proj"])},
)
ONE_GPU: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(list(MODELS.values())),
    "method": choice("method"),
    "batch_size": st.integers(1, 3),
    "sequence_length": st.sampled_from([32, 64, 100]),
    "gradient_checkpointing": choice("gradient_checkpointing"),
    "gradient_accumulation_steps": st.sampled_from([1, 2]),
}
MORE: dict[str, st.SearchStrategy[Any]] = {
    "trainer": choice("trainer"),
    "precision": choice("precision"),
    "optimizer": choice("optimizer"),
    "optimizer_impl": choice("optimizer_impl"),
    "attention": choice("attention"),
    "padded": st.booleans(),
    "loss_head": choice("loss_head"),
    "logits_dtype": choice("logits_dtype"),
    "pair_pass": choice("pair_pass"),
    "reference": choice("reference"),
    "lora": LORA,
    "gradient_checkpointing_reentrant": st.booleans(),
    "completion_length": st.sampled_from([8, 32]),
    "sft_term": st.booleans(),
    "gpu": st.sampled_from(["h100-80gb", "24GB"]),
}
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "sharding": choice("sharding"),
    "num_gpus": st.sampled_from([1, 2, 4, 7]),
    "reshard_after_forward": st.booleans(),
    "reduce_dtype": choice("reduce_dtype"),
    "grad_dtype": choice("grad_dtype"),
    "gradient_as_bucket_view": st.booleans(),
}
ASKED: dict[str, st.SearchStrategy[Any]] = {
    "trainer_version": st.sampled_from(["0.5", "0.20", "1.16", "4.50"]),
    "dtype": choice("dtype"),
    "autocast": st.booleans(),
    "global_batch_size": st.sampled_from([2, 4, 12]),
    "kernels": choice("kernels"),
    "compile": st.booleans(),
    "entropy": choice("entropy"),
    "recompute_loss": st.booleans(),
    "router_aux_loss": st.booleans(),
    "quantization": choice("quantization"),
    "kbit_upcast": st.booleans(),
    "tensor_parallel": st.sampled_from([1, 2]),
    "sequence_parallel": st.booleans(),
    "sync_each_batch": st.booleans(),
    "eval_batch_size": st.sampled_from([1, 8]),
    "deepspeed": st.sampled_from([{"communication_data_type": "fp16"}, {"grad_accum_dtype": "fp32"}, {"stage": 2}]),
    "fsdp": st.sampled_from([{"cpu_offload": True}, {"replicate": 2}, {"use_orig_params": True}]),
    "megatron": st.sampled_from([{"use_precision_aware_optimizer": True}, {"overlap_grad_reduce": True}]),
    "rollout": st.just({"group_size": 2}),
    "offload": st.sampled_from([["activations"], ["optimizer"]]),
}
"""Keys that ask for something, or that trainers answer when nobody asks."""
ANY_KEYS = ONE_GPU | MORE | SHARED | ASKED


@st.composite
def sparse_jobs(draw: st.DrawFn) -> Keys:
    """A few of all keys: with many of them hardly a job is possible."""
    names = draw(st.lists(st.sampled_from(sorted(set(ANY_KEYS) - {"model"})), max_size=6, unique=True))
    size = {"total_params": "1B"} if draw(st.integers(0, 7)) == 0 else {"model": draw(ONE_GPU["model"])}
    return {"sequence_length": 64, **size, **{name: draw(ANY_KEYS[name]) for name in names}}


ANY_JOB = st.fixed_dictionaries(ONE_GPU, optional=MORE | SHARED)
ANY_JOB_OF_ONE_GPU = st.fixed_dictionaries(ONE_GPU, optional=MORE)


def possible(keys: Keys) -> Ledger:
    """The job's ledger; another job is drawn when this one is refused."""
    try:
        return ledger_of(**keys)
    except InvalidJob:
        assume(False)
        raise
