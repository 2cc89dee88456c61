"""Terms: model states: parameters, gradients, optimizer states."""

from memplan.tables.term import FSDP2, WHOLE_STEP, WHOLE_STEP_ZH, ZERO_1_2, ZERO_3, Chinese, Term

ROWS = (
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
)
