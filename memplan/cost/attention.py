"""How fast attention's kernels really are: shares of the published peaks that they reach, each with its source."""

ATTENTION: dict[str, float] = {"8.0": 0.74, "9.0": 0.35, "10.0": 0.17, "10.3": 0.19}
"""Share of the peak that FlashAttention-2, which PyTorch's SDPA runs, reaches at its best: 230 of 312 TFLOP/s on an
A100 (arXiv:2307.08691, abstract), 35 % of an H100's (arXiv:2407.08608, abstract). These are the same 1,430 to 1,510
FLOP a clock and multiprocessor, the rate of the A100's instructions, for which it is written and which later cards
still take; Blackwell has that rate too, and twice the peak (148 multiprocessors: 390 of 2,250 TFLOP/s; a B300's two
rows of 8,192 positions, causal, 32 heads, in 2.71 ms: whitecircle/halo docs, flash-attention.md)."""
OTHER_ATTENTION = 0.35
AMPERES = frozenset({"8.6", "8.9", "12.0"})
"""Architectures whose products themselves run by these instructions: as large a share of their rate as on an A100."""
SLOW = frozenset({"h20-96gb", "h20-141gb"})
"""Cards of other architectures whose products are slower than these instructions: a quarter of an H100's a clock."""
IDLE = 1 / 3
"""Share of a card's products below which a kernel draws too little power for its clock to give way: FlashAttention-2's
A100 instructions on a B300 (a fifth): 406 TFLOP/s alone at 8,192 causal positions, 418, forward and backward, by what
a step of Qwen3 4B takes longer at 32,768 than at 16,384 (whitecircle/halo docs, flash-attention.md)."""
CUDNN = "NVIDIA/cudnn-frontend@3929da2 benchmark/sdpa_benchmark_training: cuDNN 9.19 on H200, 9.22 on GB200, GB300"
NATIVE_ATTENTION: dict[str, float] = {"9.0": 0.72, "10.0": 0.665, "10.3": 0.75}
"""The same of kernels made for the architecture, which TransformerEngine runs (cuDNN's), forward and backward together
of Llama's heads at 2,048 to 32,768 positions, causal or not, which these shares and ``NATIVE_PROLOGUE`` meet within 3
to 5 % (``CUDNN``); elsewhere as above."""
NATIVE_LIMIT: dict[str, float] = {"9.0": 0.75, "10.0": 0.72, "10.3": 0.84}
"""What these reach at heads of 256, whatever is saved on exponentials: FlashAttention-3's 740 of 989 TFLOP/s
(arXiv:2407.08608, abstract), 1,804 and 2,096 of 2,500 (``CUDNN``, qwen35)."""
NATIVE_PROLOGUE = 500 / 150
"""What a query costs these beside its pairs, against ``Rates.prologue``: faster products leave as long a start."""


MASKED: dict[str, float] = {"8.0": 178 / 230, "8.6": 31.1 / 50.0, "8.9": 31.1 / 50.0, "12.0": 36.4 / 84.4}
"""Share of FlashAttention-2's forward that PyTorch's memory-efficient kernel reaches, which SDPA runs where it is given
a mask: A100 549.8 GFLOP in 3.09 ms (facebookresearch/xformers#587, heads of 128), 8.6 (Dao-AILab/flash-attention#416),
12.x (NVIDIA/TileGym#49, 8,192 positions); its code is the A100's on later ones."""
OTHER_MASKED = MASKED["8.0"]
MASKED_BACKWARD = 2.5 * 31.14 / 12.39
"""Its backward against its forward: five products against two, at 12.4 of 31.1 TFLOP/s (Dao-AILab/flash-attention#416;
pytorch/pytorch#101847: 268 GFLOP in 4.085 ms, 66 TFLOP/s beside those 178)."""
MASKED_BROAD = 7031.8 / (2 * 3090.0)
"""How much longer a FLOP of its forward takes at heads of 256 than of 128, whose output no longer stays in registers
(the same table; nobody published such a backward)."""
MASKED_WIDE, MASKED_WIDE_BACKWARD = 13157.7 / 3090.0, 1282.3 / 423.7
"""How much longer either takes in fp32, which no other fused kernel has (facebookresearch/xformers#587, A100)."""


WIDTH = 128
"""Width of the heads at which kernels were measured. The rest follows from products and exponentials: 520 TFLOP/s at 64
on an H100, where figure 5 of arXiv:2407.08608 has about 500."""
EXPONENTIAL: dict[str, float] = {"8.0": 128.0, "9.0": 256.0, "10.0": 512.0, "10.3": 256.0}
"""FLOP of the bf16 peak in the time of one exponential: 16 a clock and multiprocessor (CUDA C++ programming guide,
throughput of native arithmetic instructions), twice that on a B300, beside 2,048, 4,096 and 8,192 FLOP of products."""
OTHER_EXPONENTIAL = 64.0


def products_of(best: float, exponentials: float) -> float:
    """FLOP/s of attention's products alone, out of the best of all of it: 4 x width FLOP and an exponential for each
    score, one after the other."""
    flop = 4.0 * WIDTH
    return flop / (flop / best - 1 / exponentials)


SCAN, SCAN_BACKWARD = 19.0, 45.0
"""Instructions in fp32 for each state of a selective scan, forward and backward, an exponential as the eight whose time
it takes: by the loops of state-spaces/mamba 2.2 csrc/selective_scan (selective_scan_fwd_kernel.cuh: the decay's product
and exponential, the input's, two products and a sum of the scan up and down, the output's, loads widened;
selective_scan_bwd_kernel.cuh: all that again, the scan turned round, gradients of the state, of step, input, decay, B
and C). Ignored: its atomic sums of B's and C's gradients, whose rate nobody published."""
