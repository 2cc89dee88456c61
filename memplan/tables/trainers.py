"""One row per trainer and era: what it fills in where the job is silent, and how it computes log-probabilities.

Sources: trl wheels 0.9 to 1.16, transformers 4.44 to 5.23, llamafactory 0.9.5, princeton-nlp/SimPO@1b3e8f3,
OpenRLHF 0.11, verl 0.9, litgpt 0.5, MindSpeed-LLM, NVIDIA/NeMo-Aligner@af2b3bd, THUDM/slime@624b824,
megatron-core 0.16.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Trainer(NamedTuple):
    """The defaults of one trainer for a range of its versions, ``since`` included."""

    name: str
    title: str
    since: str = ""
    """First version of the era; empty for the first era, and for trainers with one."""
    methods: tuple[str, ...] = ()
    """Methods that it trains; empty for all."""
    sharding: str = ""
    """How it runs when the job names no sharding."""
    megatron: bool = False
    """Megatron's states: bf16 weights, an fp32 buffer of gradients that stays, fp32 main weights and moments."""
    reduce_dtype: str = ""
    """Dtype of FSDP's reductions; empty for the compute dtype."""
    loads_fp32: bool = False
    """Weights are loaded in fp32 and trained under autocast when the job names no precision."""
    upcasts_trained: bool = False
    """Trained weights are cast to fp32, frozen ones stay in the checkpoint's dtype."""
    autocast: bool = False
    """Forward and loss run under autocast (bf16=True), whatever dtype the weights have."""
    optimizer_impl: str = "auto"
    gradient_checkpointing: bool = False
    keeps_outputs: bool = False
    """The caller holds the model's outputs, so the logits, until backward is done (``Trainer.compute_loss``)."""
    fp32_outputs: bool = False
    """accelerate's ``convert_outputs_to_fp32`` wraps the forward under native AMP: logits come out in fp32."""
    fp32_logits: tuple[str, ...] = ()
    """Methods for which the trainer itself calls ``logits.float()``; ``*`` for all."""
    frees_logits: bool = False
    """Once logits are cast, nobody holds those of the model."""
    holds_logits: tuple[str, ...] = ()
    """Methods in which logits are held until the loss is whole, so over the reference's forward; ``*`` for all."""
    heads: Mapping[str, str] = MappingProxyType({})
    """Loss head by method; ``*`` stands for every method that is not named."""
    adapter_heads: Mapping[str, str] = MappingProxyType({})
    """Loss head by method where LoRA trains, when it is another."""
    liger_heads: Mapping[str, str] = MappingProxyType({})
    """Loss head by method under Liger's kernels, when it is another."""
    fused_heads: Mapping[str, str] = MappingProxyType({})
    """What a fused loss head is, by method, when it is not TRL's tiles."""
    metrics: Mapping[str, str] = MappingProxyType({})
    """What is copied of the logits for the log, by method (a key of the engine's ``METRICS``)."""
    metrics_everywhere: bool = False
    """The reference's forward makes the same copies as the policy's; otherwise they are made once, at the end."""
    entropy: str = "rows"
    """How an entropy is made of logits (a key of the engine's ``ENTROPIES``)."""
    entropy_keeps_graph: bool = False
    """The entropy's graph is built even where its gradient is not used."""
    tempers_in_place: bool = False
    """Logits are divided by the temperature in place."""
    hidden_states: bool = False
    """Preference losses ask the model for all hidden states, which its outputs hold until scores are there."""
    sft_term: tuple[str, ...] = ()
    """Methods whose default loss adds a cross-entropy over the chosen half in a pass of its own over the logits."""
    free_sft_term: bool = False
    """The SFT term is made of the log-probabilities that are there already."""
    kl_after_policy: bool = False
    """KTO's mismatched completions are scored after the policy's forward, not before it."""
    reference: str = "resident"
    """Where reference log-probabilities come from when all weights train."""
    offloads_reference: bool = False
    """The reference can live on the host and be swapped in for its forward."""
    reference_with_lora: str = "adapter"
    """Where reference log-probabilities come from when LoRA trains: the base with adapters off, or a second model."""
    reference_is_frozen: bool = True
    """False where the reference's weights keep requires_grad, so that autocast caches casts of them."""
    syncs_each_batch: bool = True
    """Gradients are reduced at every micro-step; False where all but the last run under ``no_sync``."""
    reference_first: bool = False
    """The reference scores the batch before the policy's forward, so that nothing of the policy is alive then."""
    reference_follows_policy: bool = False
    """The reference is loaded in the dtype that the policy is stored in; elsewhere in the compute dtype."""
    kbit_upcast: Mapping[str, str] = MappingProxyType({})
    """What is left in fp32 beside a quantised base, by method: all, norms (4 bits) or none; ``*`` for the rest."""
    quantised_adapters: str = ""
    """Dtype that adapters over a quantised base are cast to, where the preparation above is not made."""
    prepares_checkpointing: bool = False
    """Preparing a quantised model turns checkpointing on."""
    first_versions: Mapping[str, str] = MappingProxyType({})
    """Version from which on a method's loss is the one that is modelled."""
    ended_methods: Mapping[str, str] = MappingProxyType({})
    """Version in which a method was removed."""
    later_methods: tuple[str, ...] = ()
    """Methods that it has and memplan does not model yet."""
    references: Mapping[str, str] = MappingProxyType({})
    """Where reference log-probabilities come from, by method, when the KL term is off by default."""
    entropies: Mapping[str, str] = MappingProxyType({})
    """What is done with the policy's entropy by default, by method: metric or loss."""
    scores_rollouts: bool = False
    """The policy scores its own completions before the update (old log-probabilities); elsewhere those of the rollout
    serve, or the update's own."""
    scoring_entropy: bool = False
    """That scoring makes the entropy too."""
    projects_completions: tuple[str, ...] = ()
    """Methods whose head projects the completions alone (``logits_to_keep``)."""
    slices_logits: tuple[str, ...] = ()
    """Methods whose loss reads the completions' part of all logits."""
    rescales: tuple[str, ...] = ()
    """Methods that divide the logits by the temperature whatever it is, and let go of those before."""
    counts_prompts: bool = False
    """An example of the batch is a prompt with its group of completions; elsewhere each completion is one."""
    critic_together: bool = False
    """Critic and policy share one loss and one backward."""
    critic_apart: bool = False
    """The critic has an engine and a step of its own, before the policy's update."""
    critic_adapters: bool = False
    """Where LoRA trains the policy it trains the critic; elsewhere all of the critic trains."""
    step_outputs: tuple[str, ...] = ()
    """Methods whose loop holds the model's outputs over the step, until the next micro-step has its own."""
    reward_like_policy: tuple[str, ...] = ()
    """Methods that need a reward model on the card: one of the policy's shape, where the job names none."""
    source: str = ""


_TRL: dict[str, Any] = {
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
    "keeps_outputs": True,
}
_LIGER_LOSSES = MappingProxyType(
    {"sft": "liger", "dpo": "liger-preference", "kto": "liger-preference", "ipo": "selective", "grpo": "", "rloo": ""}
)
"""``use_liger_loss``, later ``use_liger_kernel`` (trl 0.19 to 1.14); its DPO loss has no ipo. Empty: not modelled."""
_ALL_BUT_SFT = ("dpo", "ipo", "kto", "cpo", "simpo", "orpo")
_GROUPED = ("grpo", "rloo")
_GROUP_ENTROPY = MappingProxyType({"grpo": "metric", "rloo": "metric"})
_NO_KL = MappingProxyType({"grpo": "none"})
"""``beta`` of GRPO is 0.0 from 0.19 on, 0.04 before; RLOO's is 0.05 (trl grpo_config.py, rloo_config.py)."""
_FUSED = dict.fromkeys(("sft", "dpo", "ipo", "kto", *_GROUPED), "fused")
_ONLINE_HEADS = {"online-dpo": "log-softmax", "distill": "jensen-shannon"}
"""Whatever the other losses do (trl 0.17 to 1.16, online_dpo_trainer.py, gkd_trainer.py)."""
_TRL_NEW = _TRL | {
    "gradient_checkpointing": True,
    "kbit_upcast": MappingProxyType({"cpo": "norms", "orpo": "norms", "simpo": "norms"}),
    "quantised_adapters": "bf16",
}
_TRL["kbit_upcast"] = MappingProxyType({"*": "norms"})
"""Before 0.29 (models/utils.py: prepare_peft_model, peft_module_casting_to_bf16); since then CPO alone (TRL 1.16)."""
_ROWS = (
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
        syncs_each_batch=False,
        autocast=True,
        loads_fp32=True,
        keeps_outputs=True,
        fp32_outputs=True,
        methods=("sft",),
        heads={"*": "cross-entropy"},
        liger_heads={"sft": "liger"},
        kbit_upcast=MappingProxyType({"*": "all"}),
        prepares_checkpointing=True,
        source="transformers 4.48 trainer.py: adamw_torch, from_pretrained loads fp32",
    ),
    Trainer(
        "transformers",
        "Hugging Face Trainer",
        since="5.0",
        syncs_each_batch=False,
        autocast=True,
        optimizer_impl="fused",
        keeps_outputs=True,
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
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        metrics={"dpo": "halves", "ipo": "halves", "kto": "picked"},
        metrics_everywhere=True,
        holds_logits=("kto", "cpo", "simpo", "orpo"),
        source="trl 0.14 trainer/dpo_trainer.py: logits.log_softmax(-1) and gather",
        **_TRL,
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.16",
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
    ),
    Trainer(
        "trl",
        "TRL",
        since="0.19",
        heads={"sft": "cross-entropy", "*": "selective"} | _ONLINE_HEADS,
        liger_heads={"sft": "liger"},
        fused_heads=_LIGER_LOSSES,
        metrics={"sft": "shifted", "dpo": "halves", "ipo": "halves", "kto": "picked"},
        metrics_everywhere=True,
        holds_logits=("kto", "cpo", "simpo", "orpo"),
        hidden_states=True,
        projects_completions=_GROUPED,
        rescales=_GROUPED,
        entropies=_GROUP_ENTROPY,
        references=_NO_KL,
        source="trl 0.24 trainer/dpo_trainer.py: output_hidden_states, trainer/utils.py: selective_log_softmax",
        **_TRL,
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
        references=_NO_KL,
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
        references=_NO_KL,
        source="trl 1.9 trainer/sft_trainer.py: chunked_nll is the default loss, trainer/dpo_trainer.py",
        **_TRL_NEW,
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
        references=_NO_KL,
        tempers_in_place=True,
        source="trl 1.14 kernels/logprob_entropy.py, trainer/dpo_trainer.py, trainer/kto_trainer.py",
        **_TRL_NEW,
    ),
    Trainer(
        "trl",
        "TRL",
        since="1.15",
        heads=_FUSED | {"*": "selective-kernel"} | _ONLINE_HEADS,
        entropy="kernel",
        holds_logits=_ALL_BUT_SFT,
        entropies=_GROUP_ENTROPY,
        references=_NO_KL,
        tempers_in_place=True,
        source="trl 1.16 trainer/utils.py, kernels/chunked_logprob.py",
        **_TRL_NEW,
    ),
    Trainer(
        "llamafactory",
        "LLaMA-Factory",
        syncs_each_batch=False,
        autocast=True,
        upcasts_trained=True,
        optimizer_impl="fused",
        gradient_checkpointing=True,
        keeps_outputs=True,
        fp32_outputs=True,
        methods=("sft", "reward", "dpo", "ipo", "kto", "orpo", "simpo"),
        later_methods=("ppo",),
        fp32_logits=("dpo", "ipo", "kto", "orpo", "simpo"),
        frees_logits=True,
        holds_logits=("*",),
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        liger_heads={"sft": "liger"},
        metrics={"kto": "scored-again"},
        free_sft_term=True,
        kl_after_policy=True,
        source="llamafactory 0.9.5 train/dpo/trainer.py: all_logits.to(torch.float32), get_batch_logps",
    ),
    Trainer(
        "simpo-repo",
        "princeton-nlp/SimPO",
        syncs_each_batch=False,
        autocast=True,
        loads_fp32=True,
        gradient_checkpointing=True,
        keeps_outputs=True,
        methods=("simpo",),
        fp32_logits=("simpo",),
        frees_logits=True,
        holds_logits=("simpo",),
        heads={"*": "log-softmax"},
        kbit_upcast=MappingProxyType({"*": "norms"}),
        source="princeton-nlp/SimPO scripts/simpo_trainer.py with transformers 4.44 (logits.float() in the model)",
    ),
    Trainer(
        "openrlhf",
        "OpenRLHF",
        methods=("sft", "reward", "dpo", "ipo", "ppo", "grpo", "rloo"),
        scores_rollouts=True,
        critic_apart=True,
        critic_adapters=True,
        sharding="zero2",
        gradient_checkpointing=False,
        fp32_logits=("*",),
        frees_logits=True,
        holds_logits=("*",),
        heads={"*": "flash-cross-entropy"},
        liger_heads={"sft": "flash-cross-entropy"},
        entropy="softmax",
        tempers_in_place=True,
        free_sft_term=True,
        offloads_reference=True,
        reference_with_lora="resident",
        source="openrlhf 0.11 models/actor.py: logits in fp32, models/utils.py: log_probs_from_logits, "
        "cli/train_dpo.py, trainer/ray/ppo_actor.py, ppo_critic.py",
    ),
    Trainer(
        "verl",
        "verl",
        methods=("sft", "ppo", "grpo", "rloo"),
        later_methods=("distill",),
        references={"ppo": "none", "grpo": "none", "rloo": "none"},
        scores_rollouts=True,
        scoring_entropy=True,
        critic_apart=True,
        sharding="fsdp2",
        reduce_dtype="fp32",
        gradient_checkpointing=True,
        syncs_each_batch=False,
        heads={"*": "flash-cross-entropy-in-place"},
        fused_heads={"*": "chunked-log-probs"},
        entropy="softmax",
        reference="offloaded",
        offloads_reference=True,
        source="verl 0.9 workers/engine/fsdp/transformer_impl.py, utils/torch_functional.py: logprobs_from_logits",
    ),
    Trainer(
        "litgpt",
        "LitGPT",
        methods=("sft",),
        autocast=True,
        loads_fp32=True,
        fp32_outputs=True,
        frees_logits=True,
        heads={"*": "chunked-cross-entropy"},
        adapter_heads={"*": "chunked-lm-head"},
        keeps_outputs=True,
        syncs_each_batch=False,
        source="litgpt 0.5 finetune/full.py, finetune/lora.py, utils.py: chunked_cross_entropy",
    ),
    Trainer(
        "mindspeed",
        "MindSpeed-LLM",
        methods=("sft", "reward", "dpo", "ipo", "simpo"),
        later_methods=("ppo", "grpo"),
        megatron=True,
        optimizer_impl="fused",
        fp32_logits=("*",),
        frees_logits=True,
        heads={"sft": "megatron-cross-entropy", "simpo": "log-softmax", "*": "stacked-log-softmax"},
        free_sft_term=True,
        reference_first=True,
        reference_with_lora="resident",
        source="MindSpeed-LLM tasks/posttrain/dpo/dpo_model.py, dpo_trainer.py, simpo_trainer.py, utils.py",
    ),
    Trainer(
        "nemo-aligner",
        "NeMo-Aligner",
        methods=("sft", "reward", "dpo", "ipo", "kto"),
        later_methods=("ppo", "rloo"),
        megatron=True,
        optimizer_impl="fused",
        fp32_logits=("*",),
        frees_logits=True,
        heads={"sft": "megatron-cross-entropy", "*": "one-hot"},
        free_sft_term=True,
        reference="offloaded",
        offloads_reference=True,
        reference_first=True,
        source="NVIDIA/NeMo-Aligner@af2b3bd models/nlp/gpt/megatron_gpt_dpo_model.py, utils/distributed.py",
    ),
    Trainer(
        "slime",
        "slime",
        since="0.1",
        methods=("sft", "grpo"),
        later_methods=("ppo",),
        entropies={"grpo": "metric"},
        references=_NO_KL,
        scores_rollouts=True,
        megatron=True,
        optimizer_impl="fused",
        fp32_logits=("*",),
        frees_logits=True,
        heads={"*": "megatron-fused"},
        entropy="clone",
        entropy_keeps_graph=True,
        reference="offloaded",
        offloads_reference=True,
        source="THUDM/slime before #1788: backends/megatron_utils/loss.py, utils/ppo_utils.py",
    ),
    Trainer(
        "slime",
        "slime",
        since="0.3",
        methods=("sft", "grpo"),
        later_methods=("ppo",),
        entropies={"grpo": "metric"},
        references=_NO_KL,
        scores_rollouts=True,
        megatron=True,
        optimizer_impl="fused",
        fp32_logits=("*",),
        frees_logits=True,
        heads={"*": "megatron-fused"},
        entropy="clone",
        reference="offloaded",
        offloads_reference=True,
        source="THUDM/slime#1788: no graph and no clone for an entropy that is a metric",
    ),
    Trainer(
        "slime",
        "slime",
        since="0.3.1",
        methods=("sft", "grpo"),
        later_methods=("ppo",),
        entropies={"grpo": "metric"},
        references=_NO_KL,
        scores_rollouts=True,
        megatron=True,
        optimizer_impl="fused",
        fp32_logits=("*",),
        frees_logits=True,
        heads={"*": "shared-softmax"},
        entropy="shared",
        reference="offloaded",
        offloads_reference=True,
        source="THUDM/slime@624b824 utils/ppo_utils.py: _VocabParallelLogProbEntropy",
    ),
)
TRAINERS: dict[str, tuple[Trainer, ...]] = {}
for _row in _ROWS:
    TRAINERS[_row.name] = (*TRAINERS.get(_row.name, ()), _row)
LATER_TRAINERS = ("megatron",)
"""Trainers of the contract that are not modelled yet: refused by name."""


SHOWN_HEADS = {
    "selective-kernel": "selective",
    "flash-cross-entropy": "selective",
    "flash-cross-entropy-in-place": "selective",
    "stacked-log-softmax": "log-softmax",
    "one-hot": "log-softmax",
    "megatron-fused": "log-softmax",
    "shared-softmax": "log-softmax",
    "jensen-shannon": "log-softmax",
    "kl-divergence": "log-softmax",
    "compiled-cross-entropy": "cross-entropy",
    "megatron-cross-entropy": "cross-entropy",
    "chunked-cross-entropy": "cross-entropy",
    "chunked-lm-head": "chunked",
    "chunked-nll": "chunked",
    "chunked-log-probs": "chunked",
    "liger": "fused",
    "liger-preference": "fused",
}
"""The job's word for a head's program, where it is another: trainers do the same thing by different code."""


def by_method(table: Mapping[str, str], method: str, default: str = "") -> str:
    """What a table says of a method, or of all that it does not name."""
    return table.get(method, table.get("*", default))


def names_method(names: tuple[str, ...], method: str) -> bool:
    """Whether a list of methods holds one, or all."""
    return method in names or "*" in names


def version_key(text: str) -> tuple[int, ...]:
    """'1.16.0' -> (1, 16, 0), for comparing eras; what is not a number ends the key."""
    parts = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def find_trainer(name: str, version: str = "") -> Trainer:
    """The era of a trainer that a version falls in; the newest without a version, the first for older ones."""
    eras = TRAINERS[name]
    if not version:
        return eras[-1]
    fitting = [era for era in eras if version_key(era.since) <= version_key(version)]
    return fitting[-1] if fitting else eras[0]
