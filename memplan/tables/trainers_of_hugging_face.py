"""The bare loop, the Hugging Face Trainer and TRL, by version.

Sources: trl wheels 0.9 to 1.16, transformers 4.44 to 5.23.
"""

from types import MappingProxyType
from typing import Any

from memplan.tables.trainer import NO_KL, Trainer
from memplan.tables.trainer_switches import HUGGING_FACE, TRL

_BALANCE = dict.fromkeys(("grpo", "rloo", "ppo", "online-dpo", "distill"), "unread")
"""trl 0.9 to 1.6, trainer/*.py: aux_loss_enabled is the model's config's output_router_logits; what is not named reads
outputs.aux_loss, or lets the class add it to its own loss."""
_BALANCED = _BALANCE | dict.fromkeys(("sft", "dpo", "ipo", "kto", "grpo", "rloo"), "always")
"""trl 1.7 (DPO and KTO: 1.8), trainer/*_config.py: router_aux_loss_coef is 0.001, from 1.14 on the config's."""

_TRL: dict[str, Any] = {
    "router_loss": MappingProxyType(_BALANCE),
    "accelerate": True,
    "switches": TRL,
    "first_versions": MappingProxyType({"grpo": "0.16", "rloo": "0.22", "distill": "0.16", "ppo": "0.16"}),
    "ended_methods": MappingProxyType({"ppo": "1.13"}),
    "slices_logits": ("ppo", "online-dpo"),
    "critic_together": True,
    "step_outputs": ("ppo",),
    "reward_like_policy": ("ppo",),
    "optimizer_impl": "fused",
    "autocast": True,
    "loads_fp32": True,
    "fp32_outputs": True,
    "reference_is_frozen": False,
    "reference_follows_policy": True,
    "syncs_each_batch": False,
    "frees_logits": True,
    "sft_term": ("cpo", "orpo"),
    "disables_dropout": ("dpo", "ipo", "kto", "cpo", "simpo", "orpo", "reward", "online-dpo", "distill", "ppo"),
}
_LIGER_LOSSES = MappingProxyType(
    {"sft": "liger", "dpo": "liger-preference", "kto": "liger-preference", "ipo": "selective", "grpo": "", "rloo": ""}
)
"""``use_liger_loss``, later ``use_liger_kernel`` (trl 0.19 to 1.14); its DPO loss has no ipo. Empty: not modelled."""
_ALL_BUT_SFT = ("dpo", "ipo", "kto", "cpo", "simpo", "orpo")
_GROUPED = ("grpo", "rloo")
_GROUP_ENTROPY = MappingProxyType({"grpo": "metric", "rloo": "metric"})
_FUSED = dict.fromkeys(("sft", "dpo", "ipo", "kto", *_GROUPED), "fused")
_ONLINE_HEADS = {"online-dpo": "log-softmax", "distill": "jensen-shannon"}
"""Whatever the other losses do (trl 0.17 to 1.16, online_dpo_trainer.py, gkd_trainer.py)."""
_TRL_NEW: dict[str, Any] = _TRL | {
    "router_loss": MappingProxyType(_BALANCE | {"dpo": "unread", "ipo": "unread"}),
    "late_sft_term": dict.fromkeys(("dpo", "ipo"), "scored"),
    "gradient_checkpointing": True,
    "kbit_upcast": MappingProxyType({"cpo": "norms", "orpo": "norms", "simpo": "norms"}),
    "quantised_adapters": "bf16",
}
_TRL_BALANCED: dict[str, Any] = _TRL_NEW | {"router_loss": MappingProxyType(_BALANCED)}
_TRL["kbit_upcast"] = MappingProxyType({"*": "norms"})
"""Before 0.29 (models/utils.py: prepare_peft_model, peft_module_casting_to_bf16); since then CPO alone (TRL 1.16)."""
_TRANSFORMERS_4: dict[str, Any] = {
    "accelerate": True,
    "switches": HUGGING_FACE,
    "transformers_4": True,
    "reentrant": True,
    "syncs_each_batch": False,
    "autocast": True,
    "loads_fp32": True,
    "fp32_outputs": True,
    "methods": ("sft",),
    "liger_heads": MappingProxyType({"sft": "liger"}),
    "kbit_upcast": MappingProxyType({"*": "all"}),
    "prepares_checkpointing": True,
}
_REPEATING = ("mistral", "mixtral", "phi3", "phimoe", "qwen2", "qwen2_moe", "starcoder2", "jamba")
"""Whose ``FlashAttention2`` calls ``repeat_kv`` (transformers 4.45 and 4.47, models/*/modeling_*.py)."""

_TRL_0_16 = Trainer(
    "trl",
    "TRL",
    since="0.16",
    late_sft_term=dict.fromkeys(("dpo", "ipo"), "copied"),
    reentrant=True,
    transformers_4=True,
    heads={"sft": "cross-entropy", "*": "selective"} | _ONLINE_HEADS,
    liger_heads={"sft": "liger"},
    fused_heads=_LIGER_LOSSES,
    metrics={"sft": "shifted", "dpo": "halves", "ipo": "halves", "kto": "picked"},
    metrics_everywhere=True,
    holds_logits=("kto", "cpo", "simpo", "orpo"),
    projects_completions=_GROUPED,
    rescales=_GROUPED,
    source="trl 0.17 trainer/dpo_trainer.py, trainer/utils.py: selective_log_softmax",
    **_TRL,
)
_TRL_0_19 = _TRL_0_16._replace(
    since="0.19",
    hidden_states=True,
    entropies=_GROUP_ENTROPY,
    references=NO_KL,
    source="trl 0.24 trainer/dpo_trainer.py: output_hidden_states, trainer/utils.py: selective_log_softmax",
)

ROWS = (
    Trainer(
        "pytorch",
        "a bare training loop",
        heads={"sft": "cross-entropy", "distill": "kl-divergence", "*": "selective"},
        liger_heads={"sft": "liger"},
        projects_completions=("ppo", *_GROUPED),
        counts_prompts=True,
        offloads_reference=True,
        reference_first=True,
        source="model(**batch), loss, backward, step, with outputs dropped after the loss",
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="4.0",
        heads={"*": "shifted-cross-entropy"},
        fp32_logits=("*",),
        frees_logits=True,
        repeats_flash=_REPEATING,
        source="transformers 4.45 trainer.py: adamw_torch, from_pretrained loads fp32; "
        "models/llama/modeling_llama.py: logits.float() in place of the logits",
        **_TRANSFORMERS_4,
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="4.46",
        heads={"*": "shifted-cross-entropy"},
        repeats_flash=_REPEATING,
        source="transformers 4.47 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py",
        **_TRANSFORMERS_4,
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="4.48",
        heads={"*": "shifted-cross-entropy"},
        source="transformers 4.48 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py",
        **_TRANSFORMERS_4,
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="4.49",
        heads={"*": "cross-entropy"},
        source="transformers 4.53 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py: labels",
        **_TRANSFORMERS_4,
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="5.0",
        accelerate=True,
        switches=HUGGING_FACE,
        syncs_each_batch=False,
        autocast=True,
        optimizer_impl="fused",
        fp32_outputs=True,
        methods=("sft",),
        heads={"*": "cross-entropy"},
        liger_heads={"sft": "liger"},
        kbit_upcast=MappingProxyType({"*": "all"}),
        prepares_checkpointing=True,
        source="transformers 5.23 trainer.py: adamw_torch_fused, from_pretrained dtype='auto'",
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.7",
        late_sft_term=dict.fromkeys(("dpo", "ipo"), "viewed"),
        reentrant=True,
        transformers_4=True,
        heads={"sft": "shifted-cross-entropy", "*": "log-softmax"},
        metrics={"dpo": "halves", "ipo": "halves", "kto": "picked"},
        metrics_everywhere=True,
        holds_logits=("kto", "cpo", "simpo", "orpo"),
        source="trl 0.14 trainer/dpo_trainer.py: logits.log_softmax(-1) and gather; transformers 4.48 beside it",
        **_TRL,
    ),
    _TRL_0_16,
    _TRL_0_19,
    _TRL_0_19._replace(
        since="0.27",
        reentrant=False,
        source="trl 0.27 trainer/dpo_config.py, experimental/cpo/cpo_config.py: use_reentrant is False where not given",
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.29",
        heads={"sft": "cross-entropy", "*": "selective"} | _ONLINE_HEADS,
        liger_heads=_LIGER_LOSSES,
        fused_heads=_LIGER_LOSSES,
        metrics={"sft": "shifted", "dpo": "pairs", "ipo": "pairs", "kto": "chosen-and-rejected"},
        holds_logits=_ALL_BUT_SFT,
        projects_completions=_GROUPED,
        rescales=_GROUPED,
        entropies=_GROUP_ENTROPY,
        references=NO_KL,
        source="trl 1.0 trainer/dpo_trainer.py, trainer/sft_trainer.py",
        **_TRL_NEW,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.7",
        heads={"sft": "chunked-nll", "*": "selective"} | _ONLINE_HEADS,
        liger_heads=_LIGER_LOSSES,
        fused_heads=_LIGER_LOSSES,
        metrics={"dpo": "pairs", "ipo": "pairs", "kto": "chosen-and-rejected"},
        holds_logits=(*_ALL_BUT_SFT, *_GROUPED),
        projects_completions=_GROUPED,
        rescales=_GROUPED,
        entropies=_GROUP_ENTROPY,
        references=NO_KL,
        source="trl 1.9 trainer/sft_trainer.py: chunked_nll is the default loss, trainer/dpo_trainer.py",
        **_TRL_BALANCED,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.14",
        heads={"sft": "chunked-nll", "*": "selective-kernel"} | _ONLINE_HEADS,
        liger_heads=_LIGER_LOSSES,
        fused_heads=_LIGER_LOSSES,
        metrics={"dpo": "halves", "ipo": "halves", "kto": "picked-halves"},
        entropy="kernel",
        holds_logits=(*_ALL_BUT_SFT, *_GROUPED),
        projects_completions=_GROUPED,
        entropies=_GROUP_ENTROPY,
        references=NO_KL,
        tempers_in_place=True,
        source="trl 1.14 kernels/logprob_entropy.py, trainer/dpo_trainer.py, trainer/kto_trainer.py",
        **_TRL_BALANCED,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.15",
        projects_completions=_GROUPED,
        heads=_FUSED | {"*": "selective-kernel"} | _ONLINE_HEADS,
        entropy="kernel",
        holds_logits=_ALL_BUT_SFT,
        entropies=_GROUP_ENTROPY,
        references=NO_KL,
        tempers_in_place=True,
        source="trl 1.16 trainer/utils.py, kernels/chunked_logprob.py",
        **_TRL_BALANCED,
    ),
)
