"""The bare loop, the Hugging Face Trainer and TRL, by version.

Sources: trl wheels 0.9 to 1.16, transformers 4.44 to 5.24."""

from memplan.tables.styles import EntropyUse, RouterTerm, Upcast
from memplan.tables.trainer import (
    NO_KL,
    Adapters,
    Checkpointing,
    Entropy,
    Logits,
    Loss,
    Methods,
    ModelClasses,
    Numerics,
    Parallelism,
    Reference,
    Rollouts,
    Trainer,
)
from memplan.tables.trainer_switches import HUGGING_FACE, TRL

_GROUPED = ("grpo", "rloo")
_PYTORCH = Trainer(
    "pytorch",
    "a bare training loop",
    loss=Loss(
        heads={"sft": "cross-entropy", "distill": "kl-divergence", "*": "selective"}, liger_heads={"sft": "liger"}
    ),
    logits=Logits(of_completions=("ppo", *_GROUPED)),
    reference=Reference(offloads=True, first=True),
    rollouts=Rollouts(counts_prompts=True),
    source="model(**batch), loss, backward, step, with outputs dropped after the loss",
)

_REPEATING = ("mistral", "mixtral", "phi3", "phimoe", "qwen2", "qwen2_moe", "starcoder2", "jamba")
"""Whose ``FlashAttention2`` calls ``repeat_kv`` (transformers 4.45 and 4.47, models/*/modeling_*.py)."""
_AMP = Numerics(weights="fp32", loads_dtype=True, autocast=True, fp32_outputs=True)
_TRANSFORMERS_4_0 = Trainer(
    "transformers",
    "Hugging Face Trainer",
    since="4.0",
    runs_on="accelerate",
    methods=Methods(("sft",)),
    models=ModelClasses(transformers_4=True, repeats_sdpa=True, repeats_flash=_REPEATING, keeps_4bit_inputs=True),
    numerics=_AMP,
    checkpointing=Checkpointing(on_if_quantised=True, reentrant=True),
    parallelism=Parallelism(syncs_each_batch=False, sequence="accelerate"),
    adapters=Adapters(kbit_upcast={"*": "all"}),
    loss=Loss(heads={"*": "shifted-cross-entropy"}, liger_heads={"sft": "liger"}),
    logits=Logits(fp32=("*",), freed=True),
    switches=HUGGING_FACE,
    source="transformers 4.45 trainer.py: adamw_torch, from_pretrained loads fp32; "
    "models/llama/modeling_llama.py: logits.float() in place of the logits",
)
_TRANSFORMERS_4_43 = _TRANSFORMERS_4_0._replace(
    since="4.43",
    models=_TRANSFORMERS_4_0.models._replace(keeps_4bit_inputs=False),
)
_TRANSFORMERS_4_46 = _TRANSFORMERS_4_43._replace(
    since="4.46",
    logits=Logits(),
    source="transformers 4.47 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py",
)
_TRANSFORMERS_4_48 = _TRANSFORMERS_4_46._replace(
    since="4.48",
    models=ModelClasses(transformers_4=True, repeats_sdpa=True),
    source="transformers 4.48 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py",
)
_TRANSFORMERS_4_49 = _TRANSFORMERS_4_48._replace(
    since="4.49",
    loss=Loss(heads={"*": "cross-entropy"}, liger_heads={"sft": "liger"}),
    source="transformers 4.53 trainer.py: adamw_torch, from_pretrained loads fp32; loss/loss_utils.py: labels",
)
_TRANSFORMERS_4_54 = _TRANSFORMERS_4_49._replace(
    since="4.54",
    models=ModelClasses(transformers_4=True),
    source="transformers 4.54 integrations/sdpa_attention.py: use_gqa_in_sdpa; trainer.py as before",
)
_TRANSFORMERS_5_0 = _TRANSFORMERS_4_54._replace(
    since="5.0",
    models=ModelClasses(before_5_24=True),
    numerics=_AMP._replace(weights="checkpoint"),
    optimizer_impl="fused",
    checkpointing=Checkpointing(on_if_quantised=True, from_first=True),
    source="transformers 5.23 trainer.py: adamw_torch_fused, from_pretrained dtype='auto'; modeling_utils.py: "
    "_set_gradient_checkpointing, every_n_layers",
)
_TRANSFORMERS_5_24 = _TRANSFORMERS_5_0._replace(
    since="5.24",
    models=ModelClasses(),
    source="transformers 5.24 trainer.py, training_args.py: as 5.23; models/*/modeling_*.py: _supports_flash_attn",
)

TRANSFORMERS = (
    _TRANSFORMERS_4_0,
    _TRANSFORMERS_4_43,
    _TRANSFORMERS_4_46,
    _TRANSFORMERS_4_48,
    _TRANSFORMERS_4_49,
    _TRANSFORMERS_4_54,
    _TRANSFORMERS_5_0,
    _TRANSFORMERS_5_24,
)

_ROUTERS: dict[str, RouterTerm] = dict.fromkeys(("grpo", "rloo", "ppo", "online-dpo", "distill"), "unread")
"""trl 0.9 to 1.6, trainer/*.py: aux_loss_enabled is the model's config's output_router_logits; what is not named reads
outputs.aux_loss, or lets the class add it to its own loss."""
_UNREAD_PAIRS: dict[str, RouterTerm] = {"dpo": "unread", "ipo": "unread"}
_BALANCED: dict[str, RouterTerm] = dict.fromkeys(("sft", "dpo", "ipo", "kto", "grpo", "rloo"), "always")
"""trl 1.7 (DPO and KTO: 1.8), trainer/*_config.py: router_aux_loss_coef is 0.001, from 1.14 on the config's."""
_LIGER_LOSSES = {
    "sft": "liger",
    "dpo": "liger-preference",
    "kto": "liger-preference",
    "ipo": "selective",
    "grpo": "liger-policy",
    "rloo": "",
}
"""``use_liger_loss``, later ``use_liger_kernel`` (trl 0.17 to 1.14); its DPO loss has no ipo. Empty: not modelled."""
_LIGER_0_8 = _LIGER_LOSSES | {"grpo": "liger-policy-blocks"}
"""trl 1.7 import_utils.py: LIGER_KERNEL_MIN_VERSION is 0.8.0."""
_ONLINE_HEADS = {"online-dpo": "log-softmax", "distill": "jensen-shannon"}
"""Whatever the other losses do (trl 0.17 to 1.16, online_dpo_trainer.py, gkd_trainer.py)."""
_FUSED = dict.fromkeys(("sft", "dpo", "ipo", "kto", *_GROUPED), "fused")
_ALL_BUT_SFT = ("dpo", "ipo", "kto", "cpo", "simpo", "orpo")
_GROUP_ENTROPY: dict[str, EntropyUse] = {"grpo": "metric", "rloo": "metric"}
_CPO_NORMS: dict[str, Upcast] = {"cpo": "norms", "orpo": "norms", "simpo": "norms"}

# huggingface/trl#4951 and #6356, as released; of distill trl 1.16 trainer/distillation_trainer.py
_REENTRANT = {"sft": "0.28", "distill": "1.16"} | dict.fromkeys(("reward", "dpo", "ipo", "kto", *_GROUPED), "1.9")

_TRL_0_7 = Trainer(
    "trl",
    "TRL",
    since="0.7",
    runs_on="accelerate",
    methods=Methods(
        first_versions={"grpo": "0.15", "rloo": "0.22", "distill": "0.16", "ppo": "0.16"}, ended={"ppo": "1.13"}
    ),
    # TRL before 0.19 came out beside transformers 4.52
    models=ModelClasses(transformers_4=True, repeats_sdpa=True, keeps_4bit_inputs=True),
    numerics=_AMP,
    optimizer_impl="fused",
    checkpointing=Checkpointing(reentrant=True),
    parallelism=Parallelism(syncs_each_batch=False, sequence="accelerate"),
    adapters=Adapters(kbit_upcast={"*": "norms"}),
    disables_dropout=("dpo", "ipo", "kto", "cpo", "simpo", "orpo", "reward", "online-dpo", "distill", "ppo"),
    loss=Loss(
        heads={"sft": "shifted-cross-entropy", "*": "log-softmax"},
        sft_term=("cpo", "orpo"),
        sft_term_of={"dpo": "viewed", "ipo": "viewed"},
        router_term=_ROUTERS,
    ),
    logits=Logits(
        freed=True,
        held=("kto", "cpo", "simpo", "orpo"),
        step_outputs=("ppo",),
        sliced=("ppo", "online-dpo"),
        metrics={"dpo": "halves", "ipo": "halves", "kto": "picked"},
        metrics_everywhere=True,
    ),
    reference=Reference(frozen=False, follows_policy=True),
    rollouts=Rollouts(critic="together", reward_like_policy=("ppo",)),
    switches=TRL,
    source="trl 0.14 trainer/dpo_trainer.py: logits.log_softmax(-1) and gather; transformers 4.48 beside it",
)
_TRL_0_10 = _TRL_0_7._replace(since="0.10", models=_TRL_0_7.models._replace(keeps_4bit_inputs=False))
_TRL_0_15 = _TRL_0_10._replace(
    since="0.15",
    loss=_TRL_0_7.loss._replace(heads={**_TRL_0_7.loss.heads, "grpo": "selective"}),
    logits=_TRL_0_7.logits._replace(of_completions=("grpo",)),
    source="trl 0.15 trainer/grpo_trainer.py: _get_per_token_logps, trainer/utils.py: selective_log_softmax",
)
_TRL_0_16 = _TRL_0_10._replace(
    since="0.16",
    loss=_TRL_0_7.loss._replace(
        heads={"sft": "cross-entropy", "*": "selective"} | _ONLINE_HEADS,
        liger_heads={"sft": "liger"},
        fused_heads=_LIGER_LOSSES,
        sft_term_of={"dpo": "copied", "ipo": "copied"},
    ),
    logits=_TRL_0_7.logits._replace(
        of_completions=_GROUPED, rescaled=_GROUPED, metrics={**_TRL_0_7.logits.metrics, "sft": "shifted"}
    ),
    source="trl 0.17 trainer/dpo_trainer.py, trainer/utils.py: selective_log_softmax",
)
_TRL_0_19 = _TRL_0_16._replace(
    since="0.19",
    models=ModelClasses(transformers_4=True),
    logits=_TRL_0_16.logits._replace(hidden_states=True),
    entropy=Entropy(used_as=_GROUP_ENTROPY),
    reference=_TRL_0_16.reference._replace(by_method=NO_KL),
    source="trl 0.24 trainer/dpo_trainer.py: output_hidden_states, trainer/utils.py: selective_log_softmax",
)
_TRL_0_27 = _TRL_0_19._replace(
    since="0.27",
    checkpointing=Checkpointing(forced_from=_REENTRANT),
    # before it use_liger_loss alone asks for it (trl 0.24 trainer/grpo_trainer.py), and use_liger_kernel for layers
    loss=_TRL_0_19.loss._replace(liger_heads={"sft": "liger", "grpo": "liger-policy"}),
    source="trl 0.27 trainer/dpo_config.py, experimental/cpo/cpo_config.py: use_reentrant is False where not given",
)
_TRL_0_29 = _TRL_0_27._replace(
    since="0.29",
    models=ModelClasses(),
    # trl 1.0 to 1.16 experimental/cpo/cpo_trainer.py, experimental/orpo/orpo_trainer.py: from_pretrained without dtype
    numerics=_AMP._replace(checkpoints_dtype=("cpo", "simpo", "orpo")),
    checkpointing=Checkpointing(on=True, from_first=True, forced_from=_REENTRANT),
    # prepare_peft_model and peft_module_casting_to_bf16 (models/utils.py) are CPO's alone from here on (TRL 1.16)
    adapters=_TRL_0_27.adapters._replace(kbit_upcast=_CPO_NORMS, quantised_dtype="bf16"),
    loss=_TRL_0_27.loss._replace(
        liger_heads=_LIGER_LOSSES, sft_term_of={"dpo": "scored", "ipo": "scored"}, router_term=_ROUTERS | _UNREAD_PAIRS
    ),
    logits=_TRL_0_27.logits._replace(
        held=_ALL_BUT_SFT,
        hidden_states=False,
        metrics={"sft": "shifted", "dpo": "pairs", "ipo": "pairs", "kto": "chosen-and-rejected"},
        metrics_everywhere=False,
    ),
    source="trl 1.0 trainer/dpo_trainer.py, trainer/sft_trainer.py",
)
_TRL_1_7 = _TRL_0_29._replace(
    since="1.7",
    loss=_TRL_0_29.loss._replace(
        heads={**_TRL_0_29.loss.heads, "sft": "chunked-nll"},
        liger_heads=_LIGER_0_8,
        fused_heads=_LIGER_0_8,
        router_term=_ROUTERS | _BALANCED,
    ),
    logits=_TRL_0_29.logits._replace(
        held=(*_ALL_BUT_SFT, *_GROUPED), metrics={"dpo": "pairs", "ipo": "pairs", "kto": "chosen-and-rejected"}
    ),
    source="trl 1.9 trainer/sft_trainer.py: chunked_nll is the default loss, trainer/dpo_trainer.py",
)
_TRL_1_14 = _TRL_1_7._replace(
    since="1.14",
    loss=_TRL_1_7.loss._replace(heads={**_TRL_1_7.loss.heads, "*": "selective-kernel"}),
    logits=_TRL_1_7.logits._replace(
        rescaled=(), tempered_in_place=True, metrics={"dpo": "halves", "ipo": "halves", "kto": "picked-halves"}
    ),
    entropy=Entropy("kernel", _GROUP_ENTROPY),
    source="trl 1.14 kernels/logprob_entropy.py, trainer/dpo_trainer.py, trainer/kto_trainer.py",
)
_TRL_1_15 = _TRL_1_14._replace(
    since="1.15",
    loss=_TRL_1_14.loss._replace(
        heads=_FUSED | {"*": "selective-kernel"} | _ONLINE_HEADS, liger_heads={}, fused_heads={}
    ),
    logits=_TRL_1_14.logits._replace(held=_ALL_BUT_SFT, metrics={}),
    source="trl 1.16 trainer/utils.py, kernels/chunked_logprob.py",
)

ROWS = (
    _PYTORCH,
    *TRANSFORMERS,
    _TRL_0_7,
    _TRL_0_10,
    _TRL_0_15,
    _TRL_0_16,
    _TRL_0_19,
    _TRL_0_27,
    _TRL_0_29,
    _TRL_1_7,
    _TRL_1_14,
    _TRL_1_15,
)
