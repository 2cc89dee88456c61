"""Trainers beside Hugging Face's own.

Sources: llamafactory 0.9.5, princeton-nlp/SimPO@1b3e8f3, OpenRLHF 0.11, verl 0.9, litgpt 0.5,
MindSpeed-LLM, THUDM/slime@624b824, megatron-core 0.16."""

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
    version_key,
)
from memplan.tables.trainer_switches import (
    HUGGING_FACE,
    LITGPT,
    LITGPT_OVER_SEVERAL,
    LLAMAFACTORY_V1,
    MEGATRON,
    MEGATRON_LM,
    OLD_REPOSITORY,
    OPENRLHF,
    VERL,
)
from memplan.tables.trainers_of_hugging_face import TRANSFORMERS

_PREFERENCES = ("dpo", "ipo", "kto", "orpo", "simpo")
_FP32_LOGITS = Logits(fp32=("*",), freed=True)
_SLIME = Trainer(
    "slime",
    "slime",
    since="0.3",
    runs_on="megatron",
    methods=Methods(("sft", "ppo", "grpo")),
    optimizer_impl="fused",
    loss=Loss(heads={"*": "megatron-fused"}),
    logits=_FP32_LOGITS,
    entropy=Entropy("clone", {"ppo": "metric", "grpo": "metric"}),
    reference=Reference("offloaded", by_method=NO_KL, offloads=True),
    rollouts=Rollouts(scored=True, critic="own-process"),
    switches=MEGATRON,
    source="THUDM/slime#1788: no graph and no clone for an entropy that is a metric",
)
_VERL = Trainer(
    "verl",
    "verl",
    methods=Methods(("sft", "ppo", "grpo", "rloo"), later=("distill",)),
    checkpointing=Checkpointing(on=True),
    # gradients of all micro-steps but the last wait whole from 0.9 on (defer_fsdp_grad_sync)
    parallelism=Parallelism("fsdp2", "fp32", syncs_each_batch=False, reshards_root=True, sequence="ulysses"),
    loss=Loss(
        heads={"*": "flash-cross-entropy-in-place"}, fused_heads={"*": "chunked-log-probs"}, router_term={"*": "unread"}
    ),
    entropy=Entropy("softmax", scoring=True, compiled=True),
    reference=Reference("offloaded", by_method={"ppo": "none", "grpo": "none", "rloo": "none"}, offloads=True),
    rollouts=Rollouts(scored=True, critic="own-step"),
    switches=VERL,
    source="verl 0.9 workers/engine/fsdp/transformer_impl.py, utils/torch_functional.py: logprobs_from_logits",
)
_VERL_BEFORE = _VERL._replace(
    parallelism=_VERL.parallelism._replace(syncs_each_batch=True),
    logits=Logits(tempered_in_place=True),
    switches={**VERL, "optimizer_impl": ("auto",)},
    source="verl 0.2 to 0.8 workers/actor/dp_actor.py: logits_rmpad.div_(temperature)",
)
_LLAMAFACTORY = Trainer(
    "llamafactory",
    "LLaMA-Factory",
    since="0.9.5",
    runs_on="accelerate",
    methods=Methods(("sft", "reward", *_PREFERENCES), later=("ppo",)),
    models=ModelClasses(before_5_24=True, freezes_tower=True),
    numerics=Numerics("trained-fp32", autocast=True, fp32_outputs=True),
    optimizer_impl="fused",
    checkpointing=Checkpointing(on=True),
    parallelism=Parallelism(syncs_each_batch=False),
    disables_dropout=_PREFERENCES,
    loss=Loss(
        heads={"sft": "cross-entropy", "*": "log-softmax"},
        liger_heads={"sft": "liger"},
        sft_term_of={"*": "free"},
        router_term={"sft": "model", "*": "unread"},
        balanced=("ernie4_5_moe", "granitemoe", "jamba", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe"),
        kl_after_policy=True,
    ),
    logits=Logits(fp32=_PREFERENCES, freed=True, held=("*",), metrics={"kto": "scored-again"}),
    switches=HUGGING_FACE,
    source="llamafactory 0.9.5 train/dpo/trainer.py: all_logits.to(torch.float32), get_batch_logps",
)
LLAMAFACTORY_BESIDE = {
    "0.8": "4.45",
    "0.9.1": "4.46",
    "0.9.2": "4.49",
    "0.9.3": "4.52",
    "0.9.4": "4.57",
    "0.9.5": "5.6",
}
"""The newest transformers that each version lets in (requirements.txt, from 0.9.4 on pyproject.toml)."""


def _llamafactory_beside(since: str) -> Trainer:
    """LLaMA-Factory before transformers 5, whose classes and losses its supervised fine-tuning runs."""
    newest = version_key(LLAMAFACTORY_BESIDE[since])
    era = [each for each in TRANSFORMERS if version_key(each.since) <= newest][-1]
    return _LLAMAFACTORY._replace(
        since=since,
        optimizer_impl=era.optimizer_impl,
        models=era.models._replace(freezes_tower=True),
        numerics=_LLAMAFACTORY.numerics._replace(fsdp_in_fp32=version_key(since) < (0, 9, 3)),
        loss=_LLAMAFACTORY.loss._replace(heads={"sft": era.loss.heads["*"], "*": "log-softmax"}),
        logits=_LLAMAFACTORY.logits._replace(fp32=era.logits.fp32 or _PREFERENCES),
        source=f"llamafactory {since} model/patcher.py: torch_dtype, is_fsdp_enabled; transformers {era.since}",
    )


ROWS = (
    *(_llamafactory_beside(since) for since in list(LLAMAFACTORY_BESIDE)[:-1]),
    _LLAMAFACTORY,
    Trainer(
        "llamafactory-v1",
        "LLaMA-Factory v1",
        methods=Methods(("sft",), later=("reward", "dpo", "simpo", "orpo")),
        numerics=Numerics("trained-fp32"),
        checkpointing=Checkpointing(on=True),
        parallelism=Parallelism(reduce_dtype="fp32", reshards_root=True),
        loss=Loss(
            heads={"sft": "repeated-cross-entropy"},
            liger_heads={"sft": "repeated-cross-entropy"},
            router_term={"*": "unread"},
        ),
        switches=LLAMAFACTORY_V1,
        source="LLaMA-Factory, August 2026 src/llamafactory/v1/core/base_trainer.py: compute_log_probs; "
        "core/model_engine.py: model.to(torch.float32); plugins/trainer_plugins/distributed/fsdp2.py",
    ),
    Trainer(
        "simpo-repo",
        "princeton-nlp/SimPO",
        runs_on="accelerate",
        methods=Methods(("simpo",)),
        numerics=Numerics("fp32", autocast=True, fp32_outputs=True),
        checkpointing=Checkpointing(on=True),
        parallelism=Parallelism(syncs_each_batch=False),
        adapters=Adapters(kbit_upcast={"*": "norms"}),
        disables_dropout=("simpo",),
        loss=Loss(heads={"*": "log-softmax"}, router_term={"*": "unread"}),
        logits=Logits(fp32=("simpo",), freed=True, held=("simpo",)),
        switches=OLD_REPOSITORY,
        source="princeton-nlp/SimPO scripts/simpo_trainer.py with transformers 4.44 (logits.float() in the model)",
    ),
    Trainer(
        "openrlhf",
        "OpenRLHF",
        methods=Methods(("sft", "reward", "dpo", "ipo", "ppo", "grpo", "rloo")),
        numerics=Numerics(leaves_autocast=True),
        parallelism=Parallelism("zero2", sequence="gathered"),
        loss=Loss(
            heads={"*": "flash-cross-entropy"},
            liger_heads={"sft": "flash-cross-entropy"},
            sft_term_of={"*": "free"},
            router_term={"*": "recorded"},
        ),
        logits=_FP32_LOGITS._replace(held=("sft", "ppo", "grpo", "rloo"), tempered_in_place=True),
        entropy=Entropy("softmax"),
        reference=Reference(with_lora="resident", offloads=True),
        rollouts=Rollouts(scored=True, critic="own-step", critic_adapters=True),
        switches=OPENRLHF,
        source="openrlhf 0.11 models/actor.py: logits in fp32, models/utils.py: log_probs_from_logits, "
        "cli/train_dpo.py, trainer/ray/ppo_actor.py, ppo_critic.py",
    ),
    _VERL_BEFORE._replace(
        since="0.1",
        switches={
            **_VERL_BEFORE.switches,
            "loss_head": ("auto",),
            "sharding": ("fsdp",),
            "reshard_after_forward": (None,),
        },
    ),
    _VERL_BEFORE._replace(since="0.4"),  # use_fused_kernels, fsdp2
    _VERL_BEFORE._replace(since="0.7", switches=VERL),  # build_optimizer: override_optimizer_config
    _VERL._replace(since="0.9"),
    Trainer(
        "litgpt",
        "LitGPT",
        methods=Methods(("sft",)),
        models=ModelClasses(unties=True),
        numerics=Numerics("fp32", autocast=True, fp32_outputs=True),
        parallelism=Parallelism(syncs_each_batch=False),
        loss=Loss(
            heads={"*": "chunked-cross-entropy"}, adapter_heads={"*": "chunked-lm-head"}, router_term={"*": "none"}
        ),
        logits=Logits(freed=True, outputs_held=True),
        switches=LITGPT,
        switches_over_several=LITGPT_OVER_SEVERAL,
        source="litgpt 0.5 finetune/full.py, finetune/lora.py, utils.py: chunked_cross_entropy, model.py: lm_head",
    ),
    Trainer(
        "megatron",
        "Megatron-LM",
        runs_on="megatron",
        methods=Methods(("sft",)),
        optimizer_impl="fused",
        parallelism=Parallelism("distributed-optimizer"),
        adapters=Adapters(on_megatron="bridge"),
        loss=Loss(heads={"*": "megatron-cross-entropy"}),
        switches=MEGATRON_LM,
        source="megatron-core 0.14 to 0.16 and Megatron-LM's pretrain_gpt.py; Megatron-Bridge's recipes",
    ),
    Trainer(
        "mindspeed",
        "MindSpeed-LLM",
        runs_on="megatron",
        methods=Methods(("sft", "reward", "dpo", "ipo", "simpo"), later=("ppo", "grpo")),
        optimizer_impl="fused",
        loss=Loss(
            heads={"sft": "megatron-cross-entropy", "simpo": "log-softmax", "*": "stacked-log-softmax"},
            sft_term_of={"*": "free"},
        ),
        logits=_FP32_LOGITS,
        reference=Reference(with_lora="resident", places=("resident",), first=True),
        switches=MEGATRON,
        source="MindSpeed-LLM tasks/posttrain/dpo/dpo_model.py, dpo_trainer.py, simpo_trainer.py, utils.py",
    ),
    _SLIME._replace(
        since="0.1",
        entropy=_SLIME.entropy._replace(keeps_graph=True),
        source="THUDM/slime before #1788: backends/megatron_utils/loss.py, utils/ppo_utils.py",
    ),
    _SLIME,
    _SLIME._replace(
        since="0.3.1",
        loss=Loss(heads={"*": "shared-softmax"}),
        entropy=_SLIME.entropy._replace(by="shared"),
        source="THUDM/slime@624b824 utils/ppo_utils.py: _VocabParallelLogProbEntropy",
    ),
    _VERL._replace(
        name="verl-megatron",
        title="verl on Megatron",
        runs_on="megatron",
        optimizer_impl="fused",
        checkpointing=Checkpointing(),
        parallelism=Parallelism("distributed-optimizer"),
        adapters=Adapters(on_megatron="bridge"),
        loss=Loss(heads={"*": "megatron-log-probs"}),
        logits=_FP32_LOGITS,
        entropy=Entropy("copied", scoring=True),
        reference=_VERL.reference._replace(beside=True),
        switches=MEGATRON,
        source="verl 0.6 workers/megatron_workers.py, actor/megatron_actor.py, utils/megatron/tensor_parallel.py",
    ),
)
