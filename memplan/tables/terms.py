"""One row per word of a report: what the term is, its formula, its life, what divides it, and where that is known from.

``memplan explain`` prints these rows, and the tables of MEMORY_ESTIMATION.md are made of them. A row with categories is
a kind of memory, and its categories are those of the ledger's rows; a row without is a concept.

Letters: P parameters, Pt those that are trained, e bytes per element, N ranks that share, R sequences in the pass, s
their length, T = R·s tokens, h hidden, q = heads × head_dim, kv = key/value heads × head_dim, F feed-forward width,
H heads, V vocabulary, L layers, A bytes that a layer saves per token, r LoRA rank.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chinese:
    """The words of a row in Chinese; a formula only where the English one has words in it."""

    title: str
    lifetime: str = ""
    shards: str = ""
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One term."""

    key: str
    title: str
    what: str
    """Two sentences."""
    formula: str
    source: str
    section: str
    """Anchor in MEMORY_ESTIMATION.md."""
    zh: Chinese
    lifetime: str = ""
    """From birth to death, in instants of the schedule; empty for a concept."""
    shards: str = ""
    """What divides it over GPUs; empty for a concept."""
    categories: tuple[str, ...] = ()
    """Categories of the ledger's rows that it covers; empty for a concept."""
    see: tuple[str, ...] = ()
    """Keys of related terms."""
    aliases: tuple[str, ...] = ()
    """Other words for it."""


WHOLE_STEP, NOTHING = "the whole step", "nothing"
WHOLE_STEP_ZH, NOTHING_ZH = "整个训练步", "不切分"
ROWS_ONLY, ROWS_ONLY_ZH = "nothing: each rank has its own rows", "不切分：每张卡处理自己的序列"
REPLAY = "torch 2.13 tools/autograd/derivatives.yaml; transformers 5.23 modeling_llama.py"
ZERO_1_2, ZERO_3 = "deepspeed 0.19 runtime/zero/stage_1_and_2.py", "stage3.py"
FSDP2 = "torch 2.13 distributed/fsdp/_fully_shard"

_ROWS = (
    # -- model states -----------------------------------------------------------------------------------------------
    Term(
        key="parameters",
        title="parameters",
        what=(
            "The policy's own weights, trained or frozen, as they are stored between uses. Copies that autocast makes "
            "of them, or that ZeRO-3 and FSDP2 gather, are terms of their own."
        ),
        formula="Σ over tensors ⌈n / N⌉ · e",
        lifetime=WHOLE_STEP,
        shards="ZeRO-3, FSDP2",
        source=f"deepspeed 0.19 runtime/zero/partition_parameters.py; {FSDP2}/_fsdp_param.py",
        section="parameters",
        categories=("parameters",),
        see=("precision", "master-weights", "gathered-parameters", "autocast-weights", "adapters"),
        aliases=("params", "weights", "model", "model weights"),
        zh=Chinese("模型参数", WHOLE_STEP_ZH, "ZeRO-3、FSDP2", "对每个张量求和：⌈n / N⌉ · e"),
    ),
    Term(
        key="adapters",
        title="adapters",
        what=(
            "LoRA's two matrices for every adapted linear module: the only trained weights of a LoRA run. They are "
            "fp32 by PEFT's default even over a bf16 base, and DeepSpeed casts them to the base's dtype."
        ),
        formula="Σ over targets r·(in + out) · e",
        lifetime=WHOLE_STEP,
        shards="ZeRO-3, FSDP2",
        source="peft 0.21 tuners/lora/layer.py; tuners_utils.py: cast_adapter_dtype",
        section="lora",
        categories=("adapters",),
        see=("lora", "parameters", "optimizer-states"),
        aliases=("adapter", "lora weights", "peft"),
        zh=Chinese("适配器（LoRA 权重）", WHOLE_STEP_ZH, "ZeRO-3、FSDP2", "对每个目标模块求和：r·(in + out) · e"),
    ),
    Term(
        key="master-weights",
        title="master weights",
        what=(
            "An fp32 copy of every trained half-precision weight, on which the optimizer steps. DeepSpeed's bf16 and "
            "fp16 modes keep one; a bare loop, autocast and FSDP2 do not."
        ),
        formula="4 · Pt / N",
        lifetime=WHOLE_STEP,
        shards="ZeRO-1, ZeRO-2, ZeRO-3",
        source=f"{ZERO_1_2}: single_partition_of_fp32_groups; {ZERO_3}; arXiv:1710.03740",
        section="master-weights",
        categories=("master_weights",),
        see=("precision", "optimizer-states", "zero"),
        aliases=("master", "fp32 copy", "main params"),
        zh=Chinese("主权重（fp32 副本）", WHOLE_STEP_ZH, "ZeRO-1、ZeRO-2、ZeRO-3"),
    ),
    Term(
        key="gradients",
        title="gradients",
        what=(
            "One gradient for each trained weight (none for what freeze names), in the weight's dtype, kept until the "
            "optimizer's step has used it. With gradient accumulation all of them are there during every forward from "
            "the second micro-step on."
        ),
        formula="Pt · e / N, layer by layer",
        lifetime="from its layer's backward to step.optimizer; with accumulation the whole step",
        shards="ZeRO-2, ZeRO-3, FSDP2",
        source=f"torch 2.13 autograd (AccumulateGrad); {ZERO_1_2}; {ZERO_3}; {FSDP2}",
        section="gradients",
        categories=("gradients",),
        see=("accumulation", "tied-embeddings", "zero", "buffers"),
        aliases=("gradient", "grads", "grad", "freeze", "frozen"),
        zh=Chinese(
            "梯度",
            "从所在层的反向到 step.optimizer；有梯度累积时为整个训练步",
            "ZeRO-2、ZeRO-3、FSDP2",
            "Pt · e / N，逐层产生",
        ),
    ),
    Term(
        key="optimizer-states",
        title="optimizer states",
        what=(
            "What the optimizer remembers of each trained weight from one step to the next: two moments for AdamW, one "
            "for Muon and Lion, none for LOMO, which keeps no gradients either. Their dtype is that of the tensor "
            "stepped on, so bf16 weights without a master copy have bf16 moments; 8- and 4-bit states keep small "
            "tensors whole, and paged ones count on the host."
        ),
        formula=(
            "AdamW and schedule-free 2·e·Pt / N; SGD 0, momentum, Lion, Adam-mini e·Pt / N; 8-bit AdamW "
            "2.03125·Pt / N, 4-bit 1.0625·Pt / N; Adafactor rows + columns; GaLore r·(2·longer + shorter side)·e for "
            "each matrix; SOAP 2·e·Pt + 2·e·(m² + n²) for each"
        ),
        lifetime=WHOLE_STEP + " (from the second step on)",
        shards="ZeRO-1, ZeRO-2, ZeRO-3, FSDP2",
        source=(
            "torch 2.13 torch/optim; bitsandbytes 0.50, torchao 0.18, galore-torch 1.0 and others: tables/optimizers.py"
        ),
        section="optimizer-states",
        categories=("optimizer_states",),
        see=("optimizer-temporaries", "master-weights", "precision"),
        aliases=(
            "optimizer",
            "optimizer state",
            "adam",
            "adamw",
            "moments",
            "momentum",
            "8-bit",
            "adafactor",
            "lion",
            "sgd",
            "muon",
            "galore",
            "apollo",
            "soap",
            "adam-mini",
            "lomo",
            "schedule-free",
            "4-bit states",
            "paged",
        ),
        zh=Chinese(
            "优化器状态",
            WHOLE_STEP_ZH + "（从第二步起）",
            "ZeRO-1、ZeRO-2、ZeRO-3、FSDP2",
            "AdamW 与 schedule-free 2·e·Pt / N；SGD 0，带动量、Lion、Adam-mini e·Pt / N；8 位 AdamW 2.03125·Pt / N，"
            "4 位 1.0625·Pt / N；Adafactor 为行 + 列；GaLore 每个矩阵 r·(2·长边 + 短边)·e；SOAP 2·e·Pt，每个矩阵另加 "
            "2·e·(m² + n²)",
        ),
    ),
    Term(
        key="optimizer-temporaries",
        title="optimizer temporaries",
        what=(
            "What the optimizer's step holds for a moment and no figure of model states contains. foreach AdamW, "
            "torch's default on CUDA, takes one more buffer as large as everything it steps on; the fused kernel "
            "takes none, and a loop what its variables hold of one tensor and of the one before."
        ),
        formula=(
            "foreach e·Pt / N; fused 0; loop: AdamW 2·e·(largest tensor) + e·(the one before), others 1 to 6 copies of "
            "the largest; ZeRO adds fp32 gradients 4·Pt / N"
        ),
        lifetime="step.optimizer",
        shards="what divides the optimizer states",
        source=f"torch 2.13 torch/optim/adam.py: _foreach_sqrt(exp_avg_sq); {ZERO_1_2}: step",
        section="optimizer-temporaries",
        categories=("optimizer_temporaries",),
        see=("optimizer-states", "instants", "zero"),
        aliases=("step temporaries", "foreach", "fused optimizer"),
        zh=Chinese(
            "优化器步骤的临时量",
            "step.optimizer",
            "随优化器状态一起切分",
            "foreach e·Pt / N；fused 0；loop：AdamW 2·e·（最大张量）+ e·（前一个张量），其他优化器为最大张量的 "
            "1 至 6 份；ZeRO 另加 fp32 梯度 4·Pt / N",
        ),
    ),
    # -- activations -------------------------------------------------------------------------------------------------
    Term(
        key="activations",
        title="activations",
        what=(
            "Tensors that the forward saves for the backward: for each layer, or with checkpointing each layer's "
            "input alone. They grow with the tokens of the pass, so pairs double them; flash attention saves nothing "
            "of s × s."
        ),
        formula="L·A·T; A = 16h + 4q + 4kv + 8F + 4H + 8 (bf16, flash); checkpointed A = 2h",
        lifetime="from its layer's forward to its layer's backward",
        shards=ROWS_ONLY,
        source=f"{REPLAY}; saved tensors traced by size",
        section="activations",
        categories=("activations",),
        see=("checkpointing", "recomputation", "attention", "pair-pass", "lora", "tape"),
        aliases=("activation", "saved tensors", "saved", "hidden states"),
        zh=Chinese(
            "激活值",
            "从所在层的前向到所在层的反向",
            ROWS_ONLY_ZH,
            "L·A·T；A = 16h + 4q + 4kv + 8F + 4H + 8（bf16、flash）；检查点 A = 2h",
        ),
    ),
    Term(
        key="recomputation",
        title="recomputation",
        what=(
            "Under checkpointing, all activations of the one layer whose forward is being repeated in backward. It is "
            "why checkpointing never reaches the size of the checkpoints alone."
        ),
        formula="1·A·T, and the layer's own temporaries",
        lifetime="within one layer's backward: last-layer-backward to first-layer-backward",
        shards=ROWS_ONLY,
        source="torch 2.13 torch/utils/checkpoint.py; arXiv:1604.06174",
        section="checkpointing",
        categories=("recomputation",),
        see=("checkpointing", "activations"),
        aliases=("recompute",),
        zh=Chinese(
            "重计算",
            "一层的反向之内：last-layer-backward 到 first-layer-backward",
            ROWS_ONLY_ZH,
            "1·A·T，加该层自身的临时量",
        ),
    ),
    Term(
        key="temporaries",
        title="temporaries",
        what=(
            "Tensors that no node saves: transients inside a layer's forward, and gradients on their way back. At "
            "most instants they are small; within a feed-forward or an eager softmax they decide the peak."
        ),
        formula="feed-forward backward (4F + 2h)·T; final norm 24h·T; eager softmax 12·H·s·T",
        lifetime="one instant",
        shards=ROWS_ONLY,
        source=f"{REPLAY}; replayed by size",
        section="temporaries",
        categories=("temporaries",),
        see=("activations", "instants", "tape"),
        aliases=("transients", "gradients in flight", "temporary"),
        zh=Chinese(
            "临时张量", "一个时刻", ROWS_ONLY_ZH, "前馈反向 (4F + 2h)·T；最终归一化 24h·T；eager softmax 12·H·s·T"
        ),
    ),
    Term(
        key="logits",
        title="logits",
        what=(
            "Scores over the vocabulary, their fp32 copies, log-softmax and gradients: everything of tokens × "
            "vocabulary. Often the peak of a fine-tuning step, and doubled by pairs; fused heads do without."
        ),
        formula="c·V·T; c by loss head: forward 2 to 12, backward 4 to 16 bytes",
        lifetime="forward to head-backward",
        shards=ROWS_ONLY,
        source="transformers 5.23 loss/loss_utils.py; trl 0.14 to 1.16 trainer/dpo_trainer.py, trainer/utils.py",
        section="loss-head",
        categories=("logits",),
        see=("loss-head", "pair-pass", "temporaries"),
        aliases=("logit", "vocabulary", "log-softmax", "cross-entropy"),
        zh=Chinese(
            "logits", "forward 到 head-backward", ROWS_ONLY_ZH, "c·V·T；c 由损失头决定：前向 2 到 12、反向 4 到 16 字节"
        ),
    ),
    Term(
        key="autocast-weights",
        title="autocast copies of weights",
        what=(
            "The half-precision copy that autocast makes of each trained fp32 weight, cached until autocast is left "
            "and saved by the layers that need it in backward. Checkpointing frees them at the end of forward, bf16 "
            "weights have none."
        ),
        formula="2 · elements of linear weights and head",
        lifetime="their forward to the end of autocast (loss); without checkpointing to their layer's backward",
        shards="nothing; DeepSpeed and FSDP2 cast weights themselves, without autocast",
        source="torch 2.13 aten/src/ATen/autocast_mode.cpp: cached_cast",
        section="precision",
        categories=("autocast_weights",),
        see=("precision", "parameters", "reference"),
        aliases=("autocast", "amp", "autocast cache", "weight cache"),
        zh=Chinese(
            "autocast 的权重副本",
            "从前向到退出 autocast（loss）；无检查点时到所在层的反向",
            "不切分；DeepSpeed 与 FSDP2 自己转换权重，不用 autocast",
            "2 · 线性层与输出头的权重元素数",
        ),
    ),
    # -- data, other models -------------------------------------------------------------------------------------------
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
        zh=Chinese("评论家模型", formula="(e + e_grad + 状态) · 评论家的 P + 它的激活值"),
    ),
    Term(
        key="rollout",
        title="rollout",
        what=(
            "What the policy generated for PPO, GRPO, RLOO and online DPO. memplan models the update that follows: "
            "scoring by the reference (and by the policy, where a trainer does), then forward, loss and backward; "
            "generation, its KV cache and its engine are not modelled yet."
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
    # -- buffers of the machinery -------------------------------------------------------------------------------------
    Term(
        key="buffers",
        title="buffers",
        what=(
            "Communication buckets of DDP, ZeRO and FSDP2, and the rotary tables. DDP's buckets are a second copy of "
            "every gradient unless gradient_as_bucket_view is set."
        ),
        formula=(
            "DDP e·Pt; ZeRO bucket and its copy 2·e·reduce_bucket_size; FSDP2 e_reduce·(unit); rotary 2·s·head_dim·e"
        ),
        lifetime="DDP and ZeRO-3 the whole step; ZeRO-1 and 2 backward; FSDP2 one unit's reduction",
        shards=NOTHING,
        source=f"torch 2.13 nn/parallel/distributed.py; {ZERO_1_2}: setup_buckets; {ZERO_3}; {FSDP2}",
        section="buffers",
        categories=("buffers",),
        see=("ddp", "zero", "fsdp2", "communication"),
        aliases=("bucket", "buckets", "communication buckets", "rotary"),
        zh=Chinese(
            "缓冲区",
            "DDP 与 ZeRO-3 为整个训练步；ZeRO-1/2 为反向；FSDP2 为一个单元的归约",
            NOTHING_ZH,
            "DDP e·Pt；ZeRO 桶及其副本 2·e·reduce_bucket_size；FSDP2 e_reduce·（单元）；旋转表 2·s·head_dim·e",
        ),
    ),
    Term(
        key="gathered-parameters",
        title="gathered parameters",
        what=(
            "Whole weights that ZeRO-3 and FSDP2 put together from their shards for use: a layer or two at a time, "
            "and the root (embedding, final norm, head). More GPUs do not make them smaller."
        ),
        formula="FSDP2 e·(root + 2 layers), e·P without reshard; ZeRO-3 e·(layer + prefetch) + e·(head)",
        lifetime="from first use to the end of its unit's backward (root: embedding-backward)",
        shards=NOTHING,
        source=f"{FSDP2}; deepspeed 0.19 runtime/zero/partitioned_param_coordinator.py",
        section="fsdp2",
        categories=("gathered_parameters",),
        see=("fsdp2", "zero", "parameters"),
        aliases=("gathered", "all-gather", "unsharded", "prefetch"),
        zh=Chinese(
            "聚合的参数",
            "从首次使用到所在单元反向结束（root：embedding-backward）",
            NOTHING_ZH,
            "FSDP2 e·（root + 2 层），不 reshard 时 e·P；ZeRO-3 e·（层 + 预取）+ e·（输出头）",
        ),
    ),
    Term(
        key="workspaces",
        title="workspaces",
        what=(
            "Scratch memory that cuBLAS or hipBLAS takes from torch's allocator at the first matrix product. Its size "
            "depends on the card, so it is counted once the job names one."
        ),
        formula="32 MiB on compute capability 9, 10, 12; 8.125 MiB below; 128 MiB on gfx942 and gfx950",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="torch aten/src/ATen/cuda/CublasHandlePool.cpp",
        section="overhead",
        categories=("workspaces",),
        see=("context", "meters"),
        aliases=("workspace", "cublas"),
        zh=Chinese(
            "工作区",
            WHOLE_STEP_ZH,
            NOTHING_ZH,
            "计算能力 9、10、12 为 32 MiB；更低为 8.125 MiB；gfx942 与 gfx950 为 128 MiB",
        ),
    ),
    Term(
        key="context",
        title="CUDA context",
        what=(
            "What the driver and loaded kernels occupy before and beside torch's allocator. A band, seen by the "
            "device meter alone: it grows as kernels load."
        ),
        formula="430, 750, 1450 MiB (low, expected, high)",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="pytorch#86509; unsloth-zoo#1053; stas00/ml-engineering debug/pytorch.md",
        section="overhead",
        categories=("context",),
        see=("communication", "meters", "verdict"),
        aliases=("cuda context", "driver", "overhead", "kernels"),
        zh=Chinese("CUDA 上下文", WHOLE_STEP_ZH, NOTHING_ZH, "430、750、1450 MiB（低、期望、高）"),
    ),
    Term(
        key="communication",
        title="communication buffers",
        what=(
            "NCCL's channels and protocol buffers, which lie outside torch's allocator. A band, seen by the device "
            "meter alone, as soon as several GPUs take part."
        ),
        formula="200, 1024, 1700 MiB (low, expected, high) per communicator",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="nccl#964; nccl#864; nccl 2.27 src/init.cc",
        section="overhead",
        categories=("communication",),
        see=("context", "buffers", "meters"),
        aliases=("nccl", "hccl", "rccl", "communicator"),
        zh=Chinese("通信缓冲", WHOLE_STEP_ZH, NOTHING_ZH, "每个通信域 200、1024、1700 MiB（低、期望、高）"),
    ),
    # -- concepts ------------------------------------------------------------------------------------------------------
    Term(
        key="instants",
        title="instants",
        what=(
            "The moments of a step at which memory can peak, named pass.point: policy.loss-backward, step.optimizer. "
            "The estimate is the largest total over them, never the sum of all terms."
        ),
        formula="peak = max over instants of Σ rows alive",
        source="schedule of the ledger; peaks of traced steps",
        section="instants",
        see=("tape", "pair-pass", "meters"),
        aliases=("instant", "peak", "schedule", "timeline", "phases"),
        zh=Chinese("时刻", formula="峰值 = 各时刻存活行之和的最大值"),
    ),
    Term(
        key="tape",
        title="tape",
        what=(
            "How activations, temporaries and logits are found: the framework's own code is replayed on tensors that "
            "have a size and no contents. What a node saves, and when a tensor dies, follow autograd's rules and "
            "Python's reference counts."
        ),
        formula="bytes rounded up to 512, alive while a variable, a node or a gradient buffer holds them",
        source="torch 2.13 derivatives.yaml; c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize",
        section="tape",
        see=("activations", "temporaries", "instants"),
        aliases=("liveness", "autograd", "replay", "trace"),
        zh=Chinese("磁带", formula="向上取整到 512 字节；变量、节点或梯度缓冲持有期间存活"),
    ),
    Term(
        key="dora",
        title="DoRA",
        what=(
            "LoRA with a trained magnitude for each output. Each forward takes the norm of every row of the merged "
            "weight, which makes whole matrices for a moment, and the base's and the adapters' results are kept for "
            "backward."
        ),
        formula="per token and adapted linear: fp32 adapters 6·out, bf16 4·out; for a moment in·in + 4·in·out elements",
        source="arXiv:2402.09353; peft 0.21 tuners/lora/dora.py",
        section="lora",
        see=("lora", "adapters", "quantisation"),
        aliases=("magnitude", "magnitude vector", "use_dora"),
        zh=Chinese(
            "DoRA", formula="每 token 每个被适配线性层：fp32 适配器 6·out，bf16 4·out；瞬时 in·in + 4·in·out 个元素"
        ),
    ),
    Term(
        key="quantisation",
        title="quantised base",
        what=(
            "The frozen linears of the layers are held in 4 or 8 bits, with scales for groups of them. Every product "
            "dequantises its whole matrix again, forward and backward, and activations hardly change."
        ),
        formula="bytes per weight: nf4 and fp4 0.5625, nf4-double 0.5159, int8 1, gptq and awq 0.5195, hqq 0.5625",
        source="arXiv:2305.14314; bitsandbytes 0.50 functional.py, autograd/_functions.py",
        section="quantisation",
        see=("kbit-upcast", "lora", "parameters"),
        aliases=("quantization", "qlora", "nf4", "fp4", "int8", "4-bit", "4bit", "8bit", "gptq", "awq", "hqq"),
        zh=Chinese(
            "量化基座",
            formula="每个权重的字节数：nf4 与 fp4 0.5625，nf4-double 0.5159，int8 1，gptq 与 awq 0.5195，hqq 0.5625",
        ),
    ),
    Term(
        key="kbit-upcast",
        title="upcast beside a quantised base",
        what=(
            "prepare_model_for_kbit_training casts embeddings, head and norms to fp32. The residual stream becomes "
            "fp32 with them, so checkpoints and saved inputs of norms double too."
        ),
        formula="2·(V·h, twice when untied, + norms); checkpoints 4·h in place of 2·h per token and layer",
        source="peft 0.21 utils/other.py: prepare_model_for_kbit_training",
        section="quantisation",
        see=("quantisation", "precision", "activations"),
        aliases=("kbit_upcast", "prepare_model_for_kbit_training", "kbit"),
        zh=Chinese(
            "量化基座旁的 fp32 转换",
            formula="2·(V·h，不共享时两份，+ 归一化)；检查点每 token 每层 4·h 代替 2·h",
        ),
    ),
    Term(
        key="modules-to-save",
        title="modules to save",
        what=(
            "PEFT puts a trained copy of a module beside the frozen original: the embedding or the head. The copy has "
            "gradients and optimizer states, and a tied head is no longer tied."
        ),
        formula="V·h·e for each copy, and as much again for its gradient and each state",
        source="peft 0.21 utils/other.py: ModulesToSaveWrapper",
        section="lora",
        see=("lora", "parameters", "optimizer-states"),
        aliases=("modules_to_save",),
        zh=Chinese("保存模块（modules_to_save）", formula="每份拷贝 V·h·e，梯度和每个状态各再一份"),
    ),
    Term(
        key="precision",
        title="precision scheme",
        what=(
            "In which dtype weights, gradients, master weights and optimizer states are stored; the dtype of the "
            "products alone says nothing of that. It decides between 8 and 16 bytes per trained parameter, and more "
            "with an fp32 reference."
        ),
        formula="AdamW bytes per trained parameter: bf16 8; bf16-master, bf16-amp and fp32 16",
        source="arXiv:1710.03740; torch 2.13 torch/optim/adam.py; deepspeed 0.19; accelerate 1.15 accelerator.py",
        section="precision",
        see=("autocast-weights", "master-weights", "optimizer-states"),
        aliases=("dtype", "mixed precision", "bf16", "fp16", "fp32", "half precision"),
        zh=Chinese("精度方案", formula="AdamW 每个训练参数的字节数：bf16 8；bf16-master、bf16-amp、fp32 16"),
    ),
    Term(
        key="attention",
        title="attention",
        what=(
            "Which kernel runs decides what is saved: flash keeps q, k, v, the output and one number per head, eager "
            "keeps s × s probabilities. A padding mask takes SDPA from flash to the memory-efficient kernel, with "
            "repeated keys and values."
        ),
        formula="flash 4q + 4kv + 4H; padded 8q + 4H + 2s; eager 8q + 6·H·s (bytes per token and layer, bf16)",
        source=(
            "transformers 5.23 integrations/sdpa_attention.py; torch 2.13 aten/native/transformers/cuda/sdp_utils.cpp"
        ),
        section="attention",
        see=("activations", "batch"),
        aliases=("kv", "kv heads", "flash", "sdpa", "eager", "flash attention", "gqa"),
        zh=Chinese(
            "注意力", formula="flash 4q + 4kv + 4H；带填充 8q + 4H + 2s；eager 8q + 6·H·s（每 token 每层字节数，bf16）"
        ),
    ),
    Term(
        key="checkpointing",
        title="checkpointing",
        what=(
            "Keep each layer's input instead of its activations, and repeat its forward in backward. What is left is "
            "one input for every layer and all activations of one layer: never a fixed share of the whole."
        ),
        formula="L·2h·T + A·T in place of L·A·T (4h with an fp32 residual stream); reentrant + 2h·T",
        source="arXiv:1604.06174; torch 2.13 torch/utils/checkpoint.py",
        section="checkpointing",
        see=("recomputation", "activations"),
        aliases=("gradient checkpointing", "activation checkpointing", "checkpoint", "reentrant"),
        zh=Chinese("梯度检查点", formula="用 L·2h·T + A·T 代替 L·A·T（fp32 残差流时为 4h）；reentrant 另加 2h·T"),
    ),
    Term(
        key="selective-checkpointing",
        title="selective checkpointing",
        what=(
            "Keep some results of a layer beside its input, so that backward repeats less: by torch's policies the "
            "attention output, and every second matrix product; in Megatron the modules that are named. every:N "
            "checkpoints every n-th layer whole, and keeps all activations of the others."
        ),
        formula="torchtitan L·(4h + 4q + 2kv + 2F + 4H)·T; TRL L·(2h + 2q + 4H)·T; bf16, flash",
        source=(
            "torch 2.13 torch/utils/checkpoint.py: create_selective_checkpoint_contexts; torchtitan 0.3 "
            "distributed/activation_checkpoint.py; trl 1.16 models/selective_activation_checkpointing.py; "
            "megatron-core 0.16 transformer/transformer_config.py: recompute_modules"
        ),
        section="checkpointing",
        see=("checkpointing", "recomputation", "attention"),
        aliases=("selective recompute", "sac", "recompute modules", "every"),
        zh=Chinese("选择性检查点"),
    ),
    Term(
        key="offloading",
        title="activation offloading",
        what=(
            "Saved tensors go to the host's memory in forward, and come back one node at a time in backward. TRL "
            "leaves weights, small tensors and the head on the card, and waits for the last five copies; torch's "
            "save_on_cpu sends all that a node saves."
        ),
        formula="card: one node's saved tensors; host: Σ of saved bytes, or L·2h·T with checkpointing",
        source="trl 1.16 models/activation_offloading.py; torch 2.13 autograd/graph.py: save_on_cpu",
        section="checkpointing",
        see=("checkpointing", "activations"),
        aliases=("offload", "cpu offload", "save on cpu"),
        zh=Chinese("激活值卸载"),
    ),
    Term(
        key="fused-kernels",
        title="fused kernels",
        what=(
            "A norm keeps its input and one number per row in place of fp32 copies, a gated product keeps gate and up "
            "alone, and a rotary embedding turns in place. torch.compile arrives at the same saved tensors by making "
            "pointwise operations again, and may keep more where its graphs break."
        ),
        formula="(8h + 4q + 4kv + 6F + 4H + 8)·T per layer, in place of (16h + 4q + 4kv + 8F + 4H + 8)·T; flash, bf16",
        source="liger-kernel 0.8.5 ops/; torch 2.13 _functorch/partitioners.py: min_cut_rematerialization_partition",
        section="activations",
        see=("activations", "loss-head"),
        aliases=("fused layers", "compile", "torch compile", "foak", "fused norms"),
        zh=Chinese("融合算子"),
    ),
    Term(
        key="loss-head",
        title="loss head",
        what=(
            "How hidden states become a loss: cross-entropy, log-softmax with gather, selective, a kernel, chunked, or "
            "fused with the projection. Trainer, version and method decide, and with them between 2 and 20 bytes per "
            "logit; --explain says at each row of logits how many, and why."
        ),
        formula="bytes per logit, forward / backward / kept: cross-entropy 10/12/4; log-softmax bf16 4/6/2; fused 0",
        source="transformers 5.23 loss/loss_utils.py; trl 0.14 to 1.16; each trainer's own code, as its row names it",
        section="loss-head",
        see=("logits", "pair-pass", "tied-embeddings"),
        aliases=("head", "loss", "lm head", "fused head", "selective", "selective log softmax", "liger"),
        zh=Chinese(
            "损失头", formula="每个 logit 的字节数，前向 / 反向 / 保留：交叉熵 10/12/4；log-softmax bf16 4/6/2；fused 0"
        ),
    ),
    Term(
        key="pair-pass",
        title="pair pass",
        what=(
            "How the two halves of a pair go through the model: in one forward, in two forwards with one backward, or "
            "each with a backward of its own. Only the last, split and gradcache, halve activations and logits."
        ),
        formula=(
            "alive at backward: concatenated, two-forward L·A·T; split, gradcache L·A·T / 2 + first half's gradients"
        ),
        source=(
            "trl 1.16 experimental/cpo/cpo_trainer.py: concatenated_inputs; luyug/GradCache grad_cache.py: "
            "forward_backward"
        ),
        section="pair-pass",
        see=("activations", "logits", "gradients", "instants"),
        aliases=(
            "pairs",
            "pair",
            "split",
            "gradcache",
            "two-forward",
            "concatenated",
            "simpo split",
            "chosen",
            "rejected",
        ),
        zh=Chinese(
            "成对样本的走法",
            formula="反向开始时存活：concatenated、two-forward L·A·T；split、gradcache L·A·T / 2 + 前一半的梯度",
        ),
    ),
    Term(
        key="lora",
        title="LoRA",
        what=(
            "Two low-rank matrices are trained for each adapted linear, and the base is frozen: gradients and states "
            "all but vanish, activations do not. fp32 adapters, PEFT's default, even save an fp32 copy of every "
            "adapted input."
        ),
        formula="bytes per token and layer, all-linear, bf16 base: fp32 adapters 28h + 8q + 4kv + 10F + 4H + 28r + 8",
        source="arXiv:2106.09685; peft 0.21 tuners/lora/layer.py",
        section="lora",
        see=("adapters", "activations", "reference"),
        aliases=("low rank", "low-rank adapters", "rank"),
        zh=Chinese(
            "LoRA",
            formula="每 token 每层字节数，全部线性层、bf16 基座：fp32 适配器 28h + 8q + 4kv + 10F + 4H + 28r + 8",
        ),
    ),
    Term(
        key="tied-embeddings",
        title="tied embeddings",
        what=(
            "Head and embedding are one tensor that receives two gradients, which the engine adds at the end of "
            "backward. For a moment there are three tensors of vocabulary × hidden where an untied model has two "
            "gradients that stay."
        ),
        formula="+ 2·V·h·e at embedding-backward; + 3·V·h·e when .grad exists already",
        source="torch 2.13 torch/csrc/autograd/input_buffer.cpp",
        section="tied-embeddings",
        see=("gradients", "accumulation", "loss-head"),
        aliases=("tied", "tie", "embedding", "tie word embeddings"),
        zh=Chinese("共享词嵌入", formula="embedding-backward 时 + 2·V·h·e；已有 .grad 时 + 3·V·h·e"),
    ),
    Term(
        key="accumulation",
        title="gradient accumulation",
        what=(
            "Several micro-steps before one optimizer step: a smaller batch at a time for the same batch in all. From "
            "the second micro-step on, every gradient is there during forward, so the first micro-step is not the "
            "measure."
        ),
        formula="gradients alive throughout: + Pt·e / N at the forward's instants",
        source="torch 2.13 torch/optim/optimizer.py: zero_grad(set_to_none=True)",
        section="gradients",
        see=("gradients", "batch", "tied-embeddings"),
        aliases=("gradient accumulation", "gradient accumulation steps", "micro-batch", "micro batch"),
        zh=Chinese("梯度累积", formula="梯度始终存活：前向各时刻 + Pt·e / N"),
    ),
    Term(
        key="ddp",
        title="DDP",
        what=(
            "Every GPU holds the whole model and its states, and gradients are averaged in buckets. Nothing gets "
            "smaller with more GPUs, and the buckets are a second copy of the gradients."
        ),
        formula="all states / 1, + e·Pt of buckets (0 with gradient_as_bucket_view)",
        source="torch 2.13 nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp",
        section="ddp",
        see=("buffers", "zero", "fsdp2"),
        aliases=("data parallel", "distributed data parallel"),
        zh=Chinese("DDP", formula="所有状态 / 1，另加桶 e·Pt（gradient_as_bucket_view 时为 0）"),
    ),
    Term(
        key="zero",
        title="ZeRO",
        what=(
            "DeepSpeed divides optimizer states (stage 1), gradients too (2), and weights too (3) over the GPUs. "
            "Activations, logits, buckets and gathered weights stay whole."
        ),
        formula="bf16 + AdamW, bytes per trained parameter: 16; 4 + 12/N; 2 + 14/N; 16/N (stages 0, 1, 2, 3)",
        source=f"arXiv:1910.02054; {ZERO_1_2}, {ZERO_3}",
        section="zero",
        see=("master-weights", "buffers", "gathered-parameters", "fsdp2"),
        aliases=("deepspeed", "zero1", "zero2", "zero3", "zero-1", "zero-2", "zero-3", "zero stage", "sharding"),
        zh=Chinese(
            "ZeRO", formula="bf16 + AdamW 每个训练参数的字节数：16；4 + 12/N；2 + 14/N；16/N（阶段 0、1、2、3）"
        ),
    ),
    Term(
        key="fsdp2",
        title="FSDP2",
        what=(
            "torch's fully_shard: weights, gradients and states are divided, a layer at a time is gathered for use. "
            "The root, embedding and head, stays gathered from forward to the end of backward, and its reduction is "
            "often the peak."
        ),
        formula="fp32 shards 16·Pt / N + 2·(root) + 2·2·(layer) + reduce-scatter e_reduce·(unit)",
        source=f"{FSDP2}",
        section="fsdp2",
        see=("gathered-parameters", "zero", "ddp"),
        aliases=("fsdp", "fully shard", "fully sharded", "reshard"),
        zh=Chinese("FSDP2", formula="fp32 分片 16·Pt / N + 2·(root) + 2·2·(层) + reduce-scatter e_reduce·（单元）"),
    ),
    Term(
        key="meters",
        title="meters",
        what=(
            "Three readings of one GPU that are never mixed: allocated (tensors), reserved (the allocator's "
            "segments), device (what nvidia-smi shows). On one run they differ by 5 to 60 %, so every figure says "
            "which it is."
        ),
        formula="allocated ≤ reserved ≤ device = reserved + context + communication",
        source="torch 2.13 torch/cuda/memory.py: max_memory_allocated, max_memory_reserved",
        section="meters",
        see=("reserved", "context", "communication", "verdict"),
        aliases=("meter", "allocated", "device", "nvidia-smi", "max_memory_allocated"),
        zh=Chinese("三种读数", formula="allocated ≤ reserved ≤ device = reserved + 上下文 + 通信"),
    ),
    Term(
        key="reserved",
        title="reserved",
        what=(
            "Segments that the caching allocator holds: the tensors, and what it cannot give out again. A band, "
            "narrower with expandable segments and for what stays in its blocks, such as frozen weights."
        ),
        formula="allocated + share × (allocated − what lasts from step to step); share 0.01, 0.07, 0.17; with "
        "checkpointing 0.01, 0.22, 0.47; with expandable segments 0, 0.01, 0.04 and 0, 0.02, 0.13",
        source="c10/cuda/CUDACachingAllocator.cpp, simulated over 120 jobs: benchmarks/reserved.py",
        section="meters",
        see=("meters", "verdict"),
        aliases=("allocator", "fragmentation", "segments", "expandable segments", "max_memory_reserved"),
        zh=Chinese(
            "保留显存",
            formula="allocated + 比例 × (allocated − 跨步常驻的量)；比例 0.01、0.07、0.17（低、期望、高）；"
            "有检查点时 0.01、0.22、0.47；expandable segments 时 0、0.01、0.04 与 0、0.02、0.13",
        ),
    ),
    Term(
        key="verdict",
        title="verdict",
        what=(
            "Whether the job fits a card: yes if even the high device figure leaves the margin free, tight if only "
            "the expected one fits, else no. Usable memory is what torch can give out, less than the size on the box."
        ),
        formula="yes: high ≤ usable × (1 − margin); tight: expected ≤ usable; else no",
        source="usable memory: mem_get_info totals, see memplan show gpus; margin: key of the job, 0.05",
        section="verdict",
        see=("meters", "reserved", "context"),
        aliases=("fits", "fit", "tight", "margin", "headroom", "usable", "oom", "out of memory"),
        zh=Chinese("结论", formula="yes：高值 ≤ 可用 × (1 − margin)；tight：期望值 ≤ 可用；否则 no"),
    ),
    Term(
        key="rule-of-thumb",
        title="rule of thumb",
        what=(
            "The closed formulas that people work out by hand: weights, 8 + 4 bytes per trained parameter, attention "
            "scores and four times hidden, a quarter with checkpointing, a fifth on top. --rule-of-thumb shows them "
            "beside the estimate."
        ),
        formula="(e·P + 8·Pt + 4·Pt + L·(b·H·s² + 5·b·s·h)·e [× 0.25] + batch) × 1.2",
        source="arXiv:1910.02054; arXiv:1604.06174; memplan/rule_of_thumb.py",
        section="rule-of-thumb",
        see=("parameters", "optimizer-states", "activations", "checkpointing"),
        aliases=("rule", "back of the envelope", "closed formula"),
        zh=Chinese("经验公式", formula="(e·P + 8·Pt + 4·Pt + L·(b·H·s² + 5·b·s·h)·e [× 0.25] + 批次) × 1.2"),
    ),
)
TERMS: dict[str, Term] = {row.key: row for row in _ROWS}
"""Every term by its key."""


def term_names() -> dict[str, str]:
    """Every word that finds a term, folded, with the term's key: keys, titles, categories, aliases."""
    names: dict[str, str] = {}
    for term in _ROWS:
        for name in (*term.aliases, *term.categories, term.title, term.zh.title, term.key):
            names[_fold(name)] = term.key
    return names


def find_term(text: str) -> Term:
    """The term of that name, category or alias. Raises UsageError for a word that is none, naming the nearest."""
    names = term_names()
    folded = _fold(text)
    if folded in names:
        return TERMS[names[folded]]
    from memplan.errors import UsageError, nearest

    close = dict.fromkeys(names[name] for name in nearest(folded, names))
    hint = "did you mean " + " or ".join(close) + "?" if close else "known: " + ", ".join(TERMS)
    raise UsageError(f"no term {text[:80]!r} to explain", hint)


def _fold(text: str) -> str:
    return "-".join(text.strip().lower().replace("_", " ").replace("-", " ").split())
