"""ms-swift, by version: transformers' and TRL's trainers, and Megatron, with losses of its own.

Sources: ms-swift 2.6 swift/trainers/, 3.4 to 3.12 swift/trainers/, 4.5 swift/trainers/mixin.py, seq2seq_trainer.py,
rlhf_trainers/, megatron/trainers/.
"""

from memplan.tables.trainer import (
    Adapters,
    Checkpointing,
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
from memplan.tables.trainer_switches import HUGGING_FACE, MEGATRON

_PREFERENCES = ("dpo", "ipo", "kto", "cpo", "simpo", "orpo")
_SWIFT_2 = Trainer(
    "swift",
    "ms-swift",
    since="2.0",
    runs_on="accelerate",
    methods=Methods(("sft", *_PREFERENCES)),
    models=ModelClasses(transformers_4=True, freezes_tower=False),
    numerics=Numerics(autocast=True, fp32_outputs=True),
    checkpointing=Checkpointing(on=True, reentrant=True),
    parallelism=Parallelism(syncs_each_batch=False),
    adapters=Adapters(lists_linears=True),
    disables_dropout=("kto", "ppo"),
    loss=Loss(
        heads={"sft": "shifted-cross-entropy", "distill": "jensen-shannon", "*": "log-softmax"},
        liger_heads={"sft": "liger"},
        sft_term=("cpo", "simpo", "orpo"),
        sft_term_of={"dpo": "free", "ipo": "free"},
        router_term={"sft": "model", "*": "unread"},
    ),
    logits=Logits(held=("kto", "cpo", "simpo", "orpo"), tempered_in_place=True),
    reference=Reference(frozen=False, follows_policy=True),
    rollouts=Rollouts(critic="together", reward_like_policy=("ppo",)),
    switches=HUGGING_FACE,
    source="ms-swift 2.6 trainers/mixin.py, trainers/dpo_trainer.py over trl 0.11; torch_dtype of the checkpoint",
)
_SWIFT_3 = _SWIFT_2._replace(
    since="3.0",
    methods=Methods(("sft", "reward", *_PREFERENCES, "ppo", "grpo")),
    models=ModelClasses(transformers_4=True, freezes_tower=True),
    source="ms-swift 3.0 trainers/mixin.py, trainers/rlhf_trainer/; argument/tuner_args.py: freeze_vit, freeze_aligner",
)
_KEPT = ("sft", "dpo", "ipo", "kto", "grpo")
_SWIFT_3_5 = _SWIFT_3._replace(
    since="3.5",
    methods=Methods((*_SWIFT_3.methods.names, "distill")),
    loss=_SWIFT_3.loss._replace(
        heads={"sft": "cross-entropy", "distill": "jensen-shannon", "*": "selective"},
        liger_heads={"sft": "liger", "grpo": "liger-policy"},
    ),
    logits=_SWIFT_3.logits._replace(of_completions=_KEPT, rescaled=("grpo",)),
    source="ms-swift 3.8 trainers/mixin.py: get_use_logits_to_keep, prepare_logits_to_keep; "
    "trainers/rlhf_trainer/rlhf_mixin.py: get_per_token_logps",
)
_SWIFT_4 = _SWIFT_3_5._replace(
    since="4.0",
    models=ModelClasses(freezes_tower=True),
    optimizer_impl="fused",
    source="ms-swift 4.5 trainers/mixin.py: get_use_logits_to_keep, prepare_logits_to_keep; trainers/utils.py; "
    "rlhf_trainers/rlhf_mixin.py: get_per_token_logps",
)
_MEGATRON = Trainer(
    "megatron-swift",
    "Megatron-SWIFT",
    runs_on="megatron",
    methods=Methods(("sft", "reward", "dpo", "ipo", "kto", "grpo"), later=("distill",)),
    models=ModelClasses(freezes_tower=True),
    optimizer_impl="fused",
    adapters=Adapters(on_megatron="swift"),
    parallelism=Parallelism("distributed-optimizer"),
    loss=Loss(heads={"*": "megatron-cross-entropy"}, sft_term_of={"*": "free"}),
    reference=Reference(first=True),
    rollouts=Rollouts(scored=True),
    switches=MEGATRON,
    source="ms-swift 4.5 megatron/trainers/trainer.py, rlhf_mixin.py: get_logps of the model's own losses",
)
ROWS = (_SWIFT_2, _SWIFT_3, _SWIFT_3_5, _SWIFT_4, _MEGATRON)
