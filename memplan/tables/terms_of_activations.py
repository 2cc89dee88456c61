"""Terms: activations, logits and what the loss makes."""

from memplan.tables.term import REPLAY, ROWS_ONLY, ROWS_ONLY_ZH, Chinese, Term

ROWS = (
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
)
