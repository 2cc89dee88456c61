"""Terms: the batch, and models beside the policy."""

from memplan.tables.term import NOTHING, NOTHING_ZH, ROWS_ONLY, ROWS_ONLY_ZH, WHOLE_STEP, WHOLE_STEP_ZH, Chinese, Term

ROWS = (
    Term(
        key="batch",
        title="batch",
        what=(
            "Token ids, labels and mask at 8 bytes each, attention masks, and pixels. A pair is two rows of all of "
            "it; only images and 4-D masks make it large."
        ),
        formula="8·T for each of ids, labels, mask; 4·pixels·R; padding mask R·s²; eager mask R·s²·e",
        lifetime=WHOLE_STEP + "; attention masks from layer-forward to their last use",
        shards=ROWS_ONLY,
        source="trl 1.16 trainer/dpo_trainer.py: DataCollatorForPreference; transformers 5.23 masking_utils.py",
        section="batch",
        categories=("batch",),
        see=("pair-pass", "attention"),
        aliases=("batch data", "input ids", "images", "mask", "padding"),
        zh=Chinese(
            "批次数据",
            WHOLE_STEP_ZH + "；注意力掩码从 layer-forward 到最后一次使用",
            ROWS_ONLY_ZH,
            "ids、labels、mask 各 8·T；像素 4·像素数·R；填充掩码 R·s²；eager 掩码 R·s²·e",
        ),
    ),
    Term(
        key="reference",
        title="reference model",
        what=(
            "The frozen second copy of the policy that DPO, IPO and KTO compare with, when it is resident. With LoRA "
            "it is the base with its adapters off, and precomputed log-probabilities need none: both cost no weights."
        ),
        formula="resident e·P, / N under ZeRO-3 and FSDP2; adapter 0; precomputed 0",
        lifetime=WHOLE_STEP,
        shards="ZeRO-3, FSDP2; a full replica under DDP, ZeRO-1 and ZeRO-2",
        source=(
            "trl 1.16 trainer/dpo_trainer.py, models/utils.py: prepare_deepspeed; llamafactory 0.9.5 "
            "train/trainer_utils.py"
        ),
        section="reference",
        categories=("reference",),
        see=("extra-models", "lora", "autocast-weights"),
        aliases=("ref", "ref model", "reference model", "kl reference"),
        zh=Chinese(
            "参考模型",
            WHOLE_STEP_ZH,
            "ZeRO-3、FSDP2；DDP、ZeRO-1、ZeRO-2 下每卡一份完整副本",
            "常驻 e·P，ZeRO-3 与 FSDP2 下 / N；关适配器 0；预计算 0",
        ),
    ),
    Term(
        key="extra-models",
        title="other models",
        what=(
            "Frozen models that stand beside policy and reference: reward models, teachers. Each is a full replica on "
            "every GPU, in the dtype that the job gives it."
        ),
        formula="Σ over models e·P",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="key extra_models of the job",
        section="reference",
        categories=("extra_models",),
        see=("reference",),
        aliases=("reward model", "reward models", "extra models"),
        zh=Chinese("其他模型", WHOLE_STEP_ZH, NOTHING_ZH, "对每个模型求和：e·P"),
    ),
    Term(
        key="critic",
        title="critic",
        what=(
            "PPO's value model, trained beside the policy: weights, gradients, optimizer states and a pass of its own, "
            "with a score for each token. Trainers give it an engine and a step of its own, or one loss for both."
        ),
        formula="(e + e_grad + states) · P of the critic + its activations",
        source="trl 1.12 experimental/ppo/ppo_trainer.py; OpenRLHF 0.11 trainer/ray/ppo_critic.py",
        section="reference",
        see=("extra-models", "rollout", "optimizer-states"),
        aliases=("value model", "value head", "ppo"),
        zh=Chinese("Critic 价值模型", formula="(e + e_grad + 状态) · Critic 的 P + 它的激活值"),
    ),
    Term(
        key="rollout",
        title="rollout",
        what=(
            "What the policy generated for PPO, GRPO, RLOO and online DPO: the update that follows scores it by the "
            "reference (and by the policy, where a trainer does), then runs forward, loss and backward. The engine "
            "that generates stands beside the update where rollout.engine says so, and alone under method generate."
        ),
        formula="log-probabilities, advantages and their kin: completions · length · 4 B each",
        source="trl 1.16 trainer/grpo_trainer.py: _generate_and_score_completions, _compute_loss",
        section="reference",
        see=("critic", "reference", "logits"),
        aliases=("group", "completions", "grpo", "rloo", "online dpo", "old log-probabilities"),
        zh=Chinese("采样数据", formula="对数概率、优势等：每项 补全数 · 长度 · 4 B"),
    ),
    Term(
        key="teacher",
        title="teacher",
        what=(
            "The frozen model that a distillation learns from. Its logits stand in full beside the student's, and "
            "TRL's divergence makes many more tensors of their size."
        ),
        formula="e·P of the teacher + its logits e·T·V + what the divergence makes",
        source="trl 1.16 experimental/gkd/gkd_trainer.py: generalized_jsd_loss",
        section="reference",
        see=("extra-models", "logits"),
        aliases=("distillation", "distill", "gkd", "student"),
        zh=Chinese("教师模型", formula="教师的 e·P + 它的 logits e·T·V + 散度产生的张量"),
    ),
)
