"""Terms: DeepSpeed's buckets, what it offloads, and ZeRO++."""

from memplan.tables.term import ZERO_1_2, ZERO_3, Chinese, Term

ROWS = (
    Term(
        key="reduction-bucket",
        title="reduction bucket",
        what=(
            "DeepSpeed copies gradients into a bucket of reduce_bucket_size elements and reduces them together; it is "
            "allocated whole, however little is in it. A bucket with parts of several ranks is flattened into a copy "
            "first, and overlap_comm fills a second one meanwhile."
        ),
        formula="e·reduce_bucket_size, twice with overlap_comm in stages 1 and 2; 5·10⁸ elements, or auto: h²",
        source=f"{ZERO_1_2}: setup_buckets, average_tensor; {ZERO_3}",
        section="zero",
        see=("zero", "buffers", "gradients"),
        aliases=("ipg", "ipg bucket", "reduce_bucket_size", "overlap_comm"),
        zh=Chinese(
            "归约桶", formula="e·reduce_bucket_size，阶段 1、2 加 overlap_comm 时两倍；5·10⁸ 个元素，或 auto：h²"
        ),
    ),
    Term(
        key="zero-offload",
        title="offload of states and parameters",
        what=(
            "DeepSpeed keeps master weights, gradients and optimizer states on the host or on NVMe and steps there; "
            "stage 3 can leave its partitions of weights there too. Page-locked blocks are rounded up to a power of "
            "two, so that the host may need twice the bytes."
        ),
        formula="host, per rank with Adam: 18·Pt / N, with parameters 20·Pt / N, before blocks are rounded up",
        source=f"{ZERO_1_2}, {ZERO_3}: initialize_optimizer_states; torch 2.13 ATen/core/CachingHostAllocator.h",
        section="offload",
        see=("zero", "offloading", "master-weights", "optimizer-states"),
        aliases=("zero infinity", "offload_optimizer", "offload_param", "nvme", "pinned memory", "host memory"),
        zh=Chinese("状态与参数的卸载", formula="主机上每个 rank，Adam：18·Pt / N，连参数 20·Pt / N，未计各块的取整"),
    ),
    Term(
        key="zero-plus-plus",
        title="ZeRO++ and MiCS",
        what=(
            "hpZ keeps a second partition of the weights within a node for backward; qwZ and qgZ send weights and "
            "gradients as small integers. MiCS divides all states within groups of ranks, and each group holds a copy."
        ),
        formula="hpZ + e·P / zero_hpz_partition_size; MiCS: mics_shard_size in place of N",
        source="deepspeed 0.19 runtime/zero/partition_parameters.py: _partition_param_sec, CUDAQuantizer; mics.py",
        section="zero-plus-plus",
        see=("zero", "gathered-parameters"),
        aliases=("zero++", "hpz", "qwz", "qgz", "mics"),
        zh=Chinese("ZeRO++ 与 MiCS", formula="hpZ 另加 e·P / zero_hpz_partition_size；MiCS：以 mics_shard_size 代替 N"),
    ),
)
