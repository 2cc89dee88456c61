"""Trainers of torchtune, LLM Foundry, XTuner, AReaL, prime-rl, NeMo and ms-swift: those of NVIDIA that run on Megatron
stand behind Megatron-LM and slime, since plans take the first that has a method; NeMo-Aligner is archived. ms-swift has
transformers' and TRL's trainers, and Megatron, with losses of its own.

Sources: ms-swift 2.6 swift/trainers/, 3.4 to 3.12 swift/trainers/, 4.5 swift/trainers/mixin.py, seq2seq_trainer.py,
rlhf_trainers/, megatron/trainers/; torchtune 0.7, mosaicml/llm-foundry 0.22, InternLM/xtuner 0.1.23,
inclusionAI/AReaL 1.0.4, NVIDIA-NeMo/RL@7ea279a, NVIDIA/NeMo-Aligner@af2b3bd."""

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
from memplan.tables.trainer_switches import (
    AREAL,
    HUGGING_FACE,
    LLM_FOUNDRY,
    LLM_FOUNDRY_OVER_SEVERAL,
    MEGATRON,
    NEMO_RL,
    TORCHTUNE,
    VERL,
    XTUNER,
)

_TORCHTUNE = Trainer(
    "torchtune",
    "torchtune",
    since="0.1",
    methods=Methods(("sft", "dpo", "ipo", "simpo"), later=("ppo", "grpo", "distill")),
    models=ModelClasses(repeats=True),
    parallelism=Parallelism("fsdp"),
    loss=Loss(heads={"sft": "shifted-cross-entropy", "*": "log-softmax"}, router_term={"*": "none"}),
    logits=Logits(fp32=("dpo", "ipo", "simpo"), freed=True),
    switches=TORCHTUNE,
    source="torchtune 0.2 recipes/full_finetune_single_device.py, lora_finetune_distributed.py: shifted logits",
)
_AREAL = Trainer(
    "areal",
    "AReaL",
    methods=Methods(("sft", "reward", "dpo", "ppo", "grpo"), later=("distill",)),
    optimizer_impl="fused",
    parallelism=Parallelism("fsdp2", "fp32", reshards_root=True, sequence="ulysses"),
    loss=Loss(heads={"*": "sliced-log-softmax"}, router_term={"*": "unread"}),
    logits=Logits(held=("*",)),
    reference=Reference(first=True),
    rollouts=Rollouts(scored=True, critic="own-step"),
    switches=AREAL,
    source="inclusionAI/AReaL 1.0.4 areal/engine/fsdp_engine.py, fsdp_utils/parallel.py, utils/functional/, "
    "trainer/rl_trainer.py: ppo_update of the actor, then of the critic",
)
_NEMO_RL = Trainer(
    "nemo-rl",
    "NeMo RL",
    methods=Methods(("sft", "reward", "dpo", "ppo", "grpo"), later=("distill",)),
    checkpointing=Checkpointing(modules=("norms", "attention", "mlp", "moe")),
    parallelism=Parallelism("fsdp2", "fp32"),
    loss=Loss(heads={"*": "log-softmax"}, sft_term_of={"*": "free"}, router_term={"*": "unread"}),
    logits=Logits(fp32=("*",), freed=True, held=("*",)),
    reference=Reference("offloaded", "offloaded", places=("offloaded",), offloads=True, first=True),
    rollouts=Rollouts(scored=True, critic="own-process"),
    switches=NEMO_RL,
    source="NVIDIA-NeMo/RL@7ea279a models/automodel/setup.py, train.py, models/dtensor/parallelize.py: "
    "checkpoint_wrapper, MixedPrecisionPolicy; distributed/model_utils.py: get_next_token_logprobs_from_logits",
)
_PRIME_RL = Trainer(
    "prime-rl",
    "prime-rl",
    methods=Methods(("sft", "grpo")),
    numerics=Numerics("fp32"),
    checkpointing=Checkpointing(on=True, from_first=True),
    parallelism=Parallelism("fsdp2", "fp32", reshards_root=True, sequence="gathered"),
    loss=Loss(heads={"sft": "cross-entropy", "*": "fused"}, router_term={"*": "unread"}, compiles_layers=True),
    logits=Logits(fp32=("sft", "grpo"), outputs_held=True, rescaled=("grpo",)),
    reference=Reference("none", by_method={"grpo": "none"}),
    switches={**VERL, "offload": ("activations",)},
    source="PrimeIntellect-ai/prime-rl@559b447 trainer/model.py: setup_fsdp, trainer/models/layers/lm_head.py: "
    "_SequenceChunkedLogProbEntropyFn, cast_float_and_contiguous; trainer/rl/train.py (from 0.3) names logits before "
    "and after they are divided; the log-softmax's own result, which compiled it does not keep, stands for one",
)
_PREFERENCES = ("dpo", "ipo", "kto", "cpo", "simpo", "orpo")
_SWIFT_2 = Trainer(
    "swift",
    "ms-swift",
    since="2.0",
    runs_on="accelerate",
    methods=Methods(("sft", *_PREFERENCES)),
    models=ModelClasses(transformers_4=True),
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
_SWIFT_ON_MEGATRON = Trainer(
    "megatron-swift",
    "Megatron-SWIFT",
    runs_on="megatron",
    methods=Methods(("sft", "reward", "dpo", "ipo", "kto", "grpo"), later=("distill",)),
    models=ModelClasses(freezes_tower=True),
    optimizer_impl="fused",
    adapters=Adapters(on_megatron="swift"),
    parallelism=Parallelism("distributed-optimizer"),
    loss=Loss(heads={"*": "megatron-cross-entropy"}, sft_term_of={"*": "free"}),
    reference=Reference(places=("resident", "adapter"), first=True),
    rollouts=Rollouts(scored=True),
    switches=MEGATRON,
    source="ms-swift 4.5 megatron/trainers/trainer.py, rlhf_mixin.py: get_logps of the model's own losses",
)
ROWS = (
    _TORCHTUNE,
    _TORCHTUNE._replace(
        since="0.3",
        parallelism=Parallelism("fsdp2"),
        loss=_TORCHTUNE.loss._replace(heads={"sft": "output-chunks", "*": "log-softmax"}),
        source="torchtune 0.6 modules/loss/ce_chunked_output_loss.py, modules/transformer.py: chunked_output",
    ),
    _TORCHTUNE._replace(
        since="0.7",
        parallelism=Parallelism("fsdp2"),
        loss=_TORCHTUNE.loss._replace(heads={"sft": "linear-chunks", "*": "log-softmax"}),
        source="torchtune 0.7 modules/loss/cross_entropy_loss.py, modules/attention.py, training/_distributed.py",
    ),
    Trainer(
        "llm-foundry",
        "LLM Foundry",
        methods=Methods(("sft",)),
        models=ModelClasses(transformers_4=True),
        numerics=Numerics("fp32", autocast=True),
        checkpointing=Checkpointing(reentrant=True),
        optimizer_impl="loop",
        parallelism=Parallelism("fsdp", "fp32"),
        loss=Loss(heads={"*": "cross-entropy"}),
        logits=Logits(step_outputs=("sft",)),
        switches=LLM_FOUNDRY,
        switches_over_several=LLM_FOUNDRY_OVER_SEVERAL,
        source="llm-foundry 0.22 models/hf/hf_base.py; composer 0.32 trainer/trainer.py: state.outputs",
    ),
    Trainer(
        "xtuner",
        "XTuner",
        methods=Methods(("sft", "dpo", "ipo", "orpo", "reward")),
        models=ModelClasses(transformers_4=True),
        numerics=Numerics("checkpoint", autocast=True),
        checkpointing=Checkpointing(on=True, reentrant=True),
        adapters=Adapters(kbit_upcast={"*": "all"}),
        loss=Loss(heads={"sft": "shifted-cross-entropy", "*": "log-softmax"}, sft_term=("orpo",)),
        logits=Logits(fp32=("*",), freed=True, held=("dpo", "ipo", "orpo")),
        switches=XTUNER,
        source="InternLM/xtuner 0.1.23 model/sft.py, dpo.py, orpo.py; transformers 4.42: logits.float() in the model",
    ),
    _AREAL,
    _PRIME_RL,
    _NEMO_RL,
    _NEMO_RL._replace(
        name="nemo-rl-megatron",
        title="NeMo RL on Megatron",
        runs_on="megatron",
        methods=Methods(
            ("sft", "dpo", "ppo", "grpo"),
            later=("distill",),
            lacks=dict.fromkeys(("sft", "dpo", "ppo", "grpo"), ("virtual_pipeline",)),
        ),
        optimizer_impl="fused",
        checkpointing=Checkpointing(),
        parallelism=Parallelism("distributed-optimizer"),
        adapters=Adapters(on_megatron="bridge"),
        loss=Loss(heads={"*": "exponentiated"}, sft_term_of={"*": "free"}),
        logits=Logits(fp32=("*",), freed=True),
        switches=MEGATRON,
        source="NVIDIA-NeMo/RL@7ea279a models/megatron/setup.py, train.py; distributed/model_utils.py: "
        "DistributedLogprob",
    ),
    Trainer(
        "nemo-aligner",
        "NeMo-Aligner",
        runs_on="megatron",
        methods=Methods(
            ("sft", "reward", "dpo", "ipo", "kto"),
            later=("ppo", "rloo"),
            lacks=dict.fromkeys(("dpo", "ipo", "kto"), ("context_parallel", "virtual_pipeline")),
        ),
        # NeMo's megatron_amp_O2: false (models/language_modeling/megatron_base_model.py)
        numerics=Numerics(autocasts_megatron=True),
        optimizer_impl="fused",
        loss=Loss(heads={"sft": "megatron-cross-entropy", "*": "one-hot"}, sft_term_of={"*": "free"}),
        logits=Logits(fp32=("*",), freed=True),
        reference=Reference("offloaded", places=("offloaded", "adapter"), offloads=True, first=True),
        switches=MEGATRON,
        source="NVIDIA/NeMo-Aligner@af2b3bd models/nlp/gpt/megatron_gpt_dpo_model.py, utils/distributed.py",
    ),
    _SWIFT_2,
    _SWIFT_3,
    _SWIFT_3_5,
    _SWIFT_4,
    _SWIFT_ON_MEGATRON,
)
