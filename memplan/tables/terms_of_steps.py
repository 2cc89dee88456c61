"""Terms: how steps run, and what is read of them: schedules, several GPUs, meters, the verdict."""

from memplan.tables.term import FSDP2, ZERO_1_2, ZERO_3, Chinese, Term

ROWS = (
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
        key="fsdp1",
        title="FSDP1",
        what=(
            "torch's FullyShardedDataParallel: each layer is one flat parameter, divided and gathered as a whole. Its "
            "flat gradient is put together when all parts are there, and stands beside them for a moment."
        ),
        formula="fp32 shards 16·Pt / N + 2·(root) + 2·(layer) + flat gradient 2·2·(layer) + e_reduce·(layer)",
        source="torch 2.13 distributed/fsdp/_flat_param.py, _runtime_utils.py",
        section="fsdp1",
        see=("fsdp2", "gathered-parameters", "ddp"),
        aliases=("flat parameter", "shard grad op", "full shard", "fully sharded data parallel"),
        zh=Chinese("FSDP1", formula="fp32 分片 16·Pt / N + 2·(root) + 2·(层) + 扁平梯度 2·2·(层) + e_reduce·(层)"),
    ),
    Term(
        key="hybrid-sharding",
        title="hybrid sharding",
        what=(
            "States are divided within a group of GPUs, and groups hold copies of each other. Gradients are reduced "
            "within a group and then between groups."
        ),
        formula="N = num_gpus / replicate",
        source="torch 2.13 distributed/fsdp/_fully_shard; distributed/fsdp/_runtime_utils.py: _reduce_grad",
        section="fsdp2",
        see=("fsdp2", "fsdp1", "ddp"),
        aliases=("hsdp", "hybrid shard", "replicate"),
        zh=Chinese("混合切分", formula="N = num_gpus / replicate"),
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
            "Segments that the caching allocator holds: the tensors, and what it cannot give out again. Two steps are "
            "played, request by request, through the allocator's rules; a job whose step cannot be played yet has a "
            "band, narrower with expandable segments and for what stays in its blocks, such as frozen weights."
        ),
        formula="played; else allocated + share × (allocated − what lasts from step to step); share 0.01, 0.07, 0.17; "
        "with checkpointing 0.01, 0.22, 0.47; with expandable segments 0, 0.01, 0.04 and 0, 0.02, 0.13",
        source="c10/cuda/CUDACachingAllocator.cpp, held against 25 recordings: tests/test_allocator_traces.py",
        section="meters",
        see=("meters", "verdict"),
        aliases=("allocator", "fragmentation", "segments", "expandable segments", "max_memory_reserved"),
        zh=Chinese(
            "保留显存",
            formula="模拟；否则 allocated + 比例 × (allocated − 跨步常驻的量)；比例 0.01、0.07、0.17（低、期望、高）；"
            "有检查点时 0.01、0.22、0.47；expandable segments 时 0、0.01、0.04 与 0、0.02、0.13",
        ),
    ),
    Term(
        key="verdict",
        title="verdict",
        what=(
            "Whether the job fits a card: yes if even the high figure of what it needs leaves the margin free, tight "
            "if only the expected one fits, else no. Usable memory is what torch can give out, less than the size on "
            "the box."
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
