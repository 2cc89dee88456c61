"""Terms: buffers of the machinery."""

from memplan.tables.term import FSDP2, NOTHING, NOTHING_ZH, WHOLE_STEP, WHOLE_STEP_ZH, ZERO_1_2, ZERO_3, Chinese, Term

ROWS = (
    Term(
        key="buffers",
        title="buffers",
        what=(
            "Communication buckets of DDP, ZeRO and FSDP2, and the rotary tables. DDP's buckets are a second copy of "
            "every gradient unless gradient_as_bucket_view is set."
        ),
        formula=("DDP e·Pt; ZeRO e·reduce_bucket_size, and its copy; FSDP2 e_reduce·(unit); rotary 2·s·head_dim·e"),
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
            "DDP e·Pt；ZeRO e·reduce_bucket_size 及其副本；FSDP2 e_reduce·（单元）；旋转表 2·s·head_dim·e",
        ),
    ),
    Term(
        key="gathered-parameters",
        title="gathered parameters",
        what=(
            "Whole weights that ZeRO-3 and FSDP2 put together from their shards for use: a layer or two at a time, "
            "and the root (embedding, final norm, head). More GPUs do not make them smaller."
        ),
        formula=(
            "FSDP2 e·(root + 2 layers), e·P without reshard; ZeRO-3 e·(module + prefetch + what is soon used again)"
        ),
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
            "FSDP2 e·（root + 2 层），不 reshard 时 e·P；ZeRO-3 e·（模块 + 预取 + 即将再用的）",
        ),
    ),
    Term(
        key="workspaces",
        title="workspaces",
        what=(
            "Scratch memory that cuBLAS or hipBLAS takes from torch's allocator at the first matmul. Its size "
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
        formula="by card: T4 110 to 260 MiB, RTX 3090 250 to 580, A100 490 to 845, H100 520 to 945; else 110 to 1450",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="36 out-of-memory messages that tell process, allocated and reserved; pytorch#86509",
        section="overhead",
        categories=("context",),
        see=("communication", "meters", "verdict"),
        aliases=("cuda context", "driver", "overhead", "kernels"),
        zh=Chinese(
            "CUDA 上下文",
            WHOLE_STEP_ZH,
            NOTHING_ZH,
            "按显卡：T4 110 到 260 MiB，RTX 3090 250 到 580，A100 490 到 845，H100 520 到 945；其余 110 到 1450",
        ),
    ),
    Term(
        key="stream-segments",
        title="segments of other streams",
        what=(
            "The caching allocator gives a freed block only to the stream that it came from. What FSDP2's all-gathers "
            "and reductions took on their own streams stays reserved beside the compute stream's peak; seen by the "
            "reserved and device meters."
        ),
        formula="largest all-gather output + gradient shards, less what is allocated of them at the peak",
        lifetime=WHOLE_STEP,
        shards="gradient shards: by the ranks that share",
        source="torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py; c10/cuda/CUDACachingAllocator.cpp",
        section="overhead",
        categories=("stream_segments",),
        see=("communication", "meters", "buffers"),
        aliases=("pools", "streams", "stream segments"),
        zh=Chinese(
            "其他流的内存段",
            WHOLE_STEP_ZH,
            "梯度分片按共享的卡数切分",
            "最大的 all-gather 输出 + 梯度分片 − 峰值时已计入的部分",
        ),
    ),
    Term(
        key="communication",
        title="communication buffers",
        what=(
            "Channels and protocol buffers of NCCL, RCCL or HCCL, outside torch's allocator: one communicator for each "
            "group of ranks that exchanges something. A band, seen by the device meter alone."
        ),
        formula="per communicator: channels × peers × 12 MiB (NCCL); 1 GiB, 0.65 GiB for others (RCCL); 400 MB (HCCL)",
        lifetime=WHOLE_STEP,
        shards=NOTHING,
        source="nccl 2.27 src/init.cc, src/graph/connect.cc; nccl#964, nccl#864, nccl#1685; LUMI-AI-Guide#111",
        section="overhead",
        categories=("communication",),
        see=("context", "buffers", "meters"),
        aliases=("nccl", "hccl", "rccl", "communicator"),
        zh=Chinese(
            "通信缓冲",
            WHOLE_STEP_ZH,
            NOTHING_ZH,
            "每个通信域：通道 × 对端 × 12 MiB（NCCL）；首个 1 GiB、其余 0.65 GiB（RCCL）；400 MB（HCCL）",
        ),
    ),
)
