"""The most that vLLM's profile run holds beside the weights, which it keeps free for good; SGLang's, which its share
leaves free; and what CUDA graphs take.

A forward of ``max_num_batched_tokens`` tokens, then the sampler on ``max_num_seqs`` rows (vllm 0.11
v1/worker/gpu_model_runner.py:3183-3400). Its layers are compiled, so that little beside each product's input and output
is there; the sampler's bytes for each logit are in the row of the engine's era: 38.5 sorted with PyTorch (bf16 and fp32
logits, sorted values and their int64 indices, the sort's own, the softmax; seen on 256 rows and on 1,024),
14 from 0.17, whose Triton kernel masks in place: bf16 and fp32 logits, probabilities and the noise that divides them
(vllm 0.21 v1/sample/ops/topk_topp_sampler.py: forward_native, random_sample); 8 in the second runner, which has no
copy of them (3.78 GiB at most of a Qwen3.5 27B in the first one under 0.27, 1.78 in the second under 0.30).

CUDA graphs: how many batches are captured, and what their pool takes, measured as the fall of free memory: 0.67 GiB for
32 layers and 67 batches, 0.68 for 36 layers, 0.49 for 28 layers and 51 batches with 35 of the whole forward, 3.45 for
94 layers of experts over 8 ranks, 0.09 with four small batches."""

from typing import TYPE_CHECKING

from memplan.engine.allocator.reserved import Band
from memplan.engine.generation.cells import cells_of
from memplan.engine.generation.formats import GROUP, served
from memplan.spec.generation import Generator
from memplan.spec.layer import Layer
from memplan.spec.parts import FeedForward
from memplan.tables.engines import ALL, DENSE, Era, era_of, version_of
from memplan.units import DTYPE_BYTES, MiB, ceil_div

if TYPE_CHECKING:
    from memplan.spec.vision import ImageRule

FP32 = DTYPE_BYTES["fp32"]
SORTED = 28.7
"""Bytes for each logit where log-probabilities after top-k and top-p are asked for: no kernel without a sort gives
them (vllm 0.33 v1/sample/ops/topk_topp_sampler.py:242-251)."""
UNSORTED = 8.0
"""Where FlashInfer samples, and in the second runner: bf16 and fp32 logits, and a copy (vllm 0.10
v1/sample/ops/topk_topp_sampler.py; 0.26 v1/worker/gpu/sample/sampler.py: sample)."""
CHECKED, IN_CHUNKS = 2 + 2 * FP32, (0, 27, 0)
"""Bytes for each logit that checks a drafted token (as it is made, in fp32, as a probability), and the first version
whose second runner checks few at once (vllm-project/vllm/pull/48630)."""
OF_TRITON = ("none", "fp8", "int8-channels")
"""Formats whose experts Triton's kernels multiply: Marlin's of four bits have buffers of their own, and FP4's."""
PATCHES, OF_VIDEOS, FRAMES = 65536, ("qwen2_vl", "qwen2_5_vl"), 14
"""Of the largest image of a processor without a limit (Qwen2-VL), and of each two frames of a video where these are as
large, of which the profile run takes as many as a prompt holds (vllm 0.13 v1/worker/gpu_model_runner.py:
_get_mm_dummy_batch; model_executor/models/qwen2_vl.py: get_num_frames_with_most_features): 0.23 said of a 7B at 128,000
tokens and a share of 0.22 of 80 GB "-14.28 GiB"."""
ITEMS = 32_768
"""Tokens of such an image and of a video of one frame, which V0's profile run takes whole since 0.8.3 (vllm 0.8.4
multimodal/profiling.py: get_decoder_dummy_data; up to 0.8.2 it leaves them out where a forward is shorter)."""
VIDEO, AS_LONG_AS_ASKED = 153_600, (0, 11, 1)
"""Tokens of Qwen3-VL's longest video, which vLLM 0.11.0 makes room for whatever max_model_len is (vllm issues/27992),
and the version since which a video is as long as that, before as a forward."""


def activation_bytes(of: Generator, era: Era) -> int:
    """Of one rank."""
    whole, spec = _whole_items(of, era), of.model
    if whole:
        of = of._replace(max_num_batched_tokens=max(of.max_num_batched_tokens, ITEMS))
    tokens = of.max_num_batched_tokens
    stream = tokens * spec.hidden_size * of.itemsize
    layers = max((layer_bytes(run.layer, of, tokens) for run in spec.runs), default=0) + (stream if whole else 0)
    features, tapped = feature_bytes(of)
    after = max(layers + stream, sampler_bytes(of, era)) + features
    pixels = pixel_bytes(of) * (2 * FP32 // of.itemsize if whole else 1)
    return stream + max(after, vision_bytes(of) + tapped) + pixels


def compiling_bytes(of: Generator, era: Era) -> int:
    """A table of words, as a first start has it again while it compiles: Inductor times kernels on random inputs of the
    same sizes (vllm 0.27 config/compilation.py: benchmark_combo_kernel), which counts as the profile run's. Later
    starts have none (vllm issues/54122, 54383), nor models that read images, whose words are looked up before."""
    spec, compiles = of.model, era.compiles and not of.eager and of.model.tower is None
    return compiles * spec.vocab_size * (spec.embedding_width or spec.hidden_size) * of.itemsize // of.tensor_parallel


def _whole_items(of: Generator, era: Era) -> bool:
    """Whether the profile run is V0's with an image and a video: both, and what joins each to a batch, stay to its end
    in fp32, as does what a layer's last product reads, which is not compiled (vllm 0.8.4
    model_executor/models/qwen2_5_vl.py: forward, _validate_and_reshape_mm_tensor)."""
    tower, short = of.model.tower, of.max_num_batched_tokens < ITEMS and version_of(of.version) < (0, 8, 3)
    return era.whole_prompts and not short and tower is not None and bool(_largest(of, tower.rule))


def layer_bytes(layer: Layer, of: Generator, tokens: int) -> int:
    """The most of one layer's transients for so many tokens."""
    mixer = sum(linear.outputs for linear in layer.mixer.linears) // of.tensor_parallel if layer.mixer else 0
    forward = feed_forward_elements(layer.feed_forward, of) if layer.feed_forward else 0
    return tokens * max(mixer, forward) * of.itemsize


def feed_forward_elements(part: FeedForward, of: Generator) -> int:
    """Elements for each token: gate and up with their product; of experts so for each that a token visits, and the
    outputs before they are summed (vllm layers/fused_moe/fused_moe.py: intermediate_cache1 to 3). Triton's of later
    versions have two buffers as wide as the output, and beside them what is multiplied in fp8, with its scales
    (TritonExperts: workspace_shapes, apply)."""
    wide = (3 if part.gated else 2) * part.intermediate // of.tensor_parallel
    if part.experts is None:
        return wide
    inner = part.experts.intermediate // (1 if of.expert_parallel > 1 else of.tensor_parallel)
    hidden, form = of.model.hidden_size, served(of).format
    second = max(inner, hidden) if era_of(of.engine, of.version).workspaces and form in OF_TRITON else inner
    packed = part.experts.active * inner + hidden if second > inner and form == "fp8" else 0
    packed = packed * (GROUP + FP32) // GROUP // of.itemsize
    return part.experts.active * (max(2 * inner, hidden) + second) + hidden + packed


def sampler_bytes(of: Generator, era: Era) -> int:
    """On every rank: logits are gathered."""
    told = {"flashinfer": min(era.sampler, UNSORTED), "torch": max(era.sampler, SORTED)}
    usual = told.get(of.sampler, min(era.sampler, UNSORTED) if in_second_runner(of, era) else era.sampler)
    each = usual if of.logprobs_mode.startswith("raw") else max(era.sampler, SORTED) + FP32
    return int(min(of.max_num_seqs, of.max_num_batched_tokens) * of.model.vocab_size * each)


def unprofiled_bytes(of: Generator, era: Era) -> int:
    """At most, of the logits that check drafted tokens: a full batch has one more a sequence than it drafts, the
    profile run two (vllm-project/vllm/pull/38220, 37521), so that its cache leaves no place for the others."""
    chunked = in_second_runner(of, era) and version_of(of.version) >= IN_CHUNKS
    if of.draft is None or era.share == "free" or chunked:
        return 0
    rows = min(of.max_num_seqs * (of.draft.tokens + 1), of.max_num_batched_tokens)
    return max(0, rows - 2 * of.max_num_seqs) * of.model.vocab_size * CHECKED


def in_second_runner(of: Generator, era: Era) -> bool:
    """Whether a model runs in the second runner (V2) by default."""
    spec = of.model
    mixed = spec.routed or spec.tower or any(cell.state for run in spec.runs for cell in cells_of(run.layer, of))
    return ALL in era.second or spec.family in era.second or (DENSE in era.second and not mixed)


def counted_bytes(of: Generator, era: Era) -> int:
    """What the second runner counts of each sequence for its penalties, a number for each word and a bit for those of
    its prompt, and the bits of a grammar (vllm 0.27 to 0.33 v1/worker/gpu/sample/penalties.py: output_bin_counts,
    prompt_bin_mask; structured_outputs.py: grammar_bitmask)."""
    counted = era.counts_all and in_second_runner(of, era)
    return counted * of.max_num_seqs * (of.model.vocab_size + 2 * ceil_div(of.model.vocab_size, 32)) * 4


def vision_bytes(of: Generator) -> int:
    """The widest transient of the tower on as many images, or frames of videos, as make a forward's tokens, together in
    one pass (vllm v1/worker/gpu_model_runner.py: profile_run); nothing without a tower."""
    tower = of.model.tower
    if tower is None or not tower.runs:
        return 0
    block = tower.runs[0].block
    wide = (3 if block.feed_forward.gated else 2) * block.feed_forward.intermediate // of.tensor_parallel
    return _patches(of, tower.rule) * (wide + 2 * tower.width) * of.itemsize


def _patches(of: Generator, rule: "ImageRule") -> int:
    """Of a profile run's images."""
    each = (rule.side // rule.patch) ** 2 + rule.extra_patches if rule.tokens else rule.merge**2
    return max(of.max_num_batched_tokens * each // max(rule.tokens, 1), _largest(of, rule))


def _largest(of: Generator, rule: "ImageRule") -> int:
    """Patches of the largest image or video."""
    longest = of.max_num_batched_tokens if version_of(of.version) < AS_LONG_AS_ASKED else of.max_model_len
    images = min(longest * rule.merge**2 // PATCHES, FRAMES // 2) if of.model.family in OF_VIDEOS else 1
    return PATCHES * max(images, 1) if rule.kind == "smart-resize" else 0


def pixel_bytes(of: Generator) -> int:
    """The images themselves, in the weights' dtype: ``profile_run`` holds them to its end."""
    if of.model.tower is None:
        return 0
    rule = of.model.tower.rule
    return _patches(of, rule) * rule.patch**2 * rule.channels * rule.frames * of.itemsize


def feature_bytes(of: Generator) -> tuple[int, int]:
    """What the tower gives for each token of its images, which waits for the forward (the encoder's cache); and of it
    what its taps gave before its last block (vllm model_executor/models/qwen3_vl.py: deepstack_feature_lists)."""
    tower = of.model.tower
    if tower is None:
        return 0, 0
    tokens = max(of.max_num_batched_tokens, _largest(of, tower.rule) // tower.rule.merge**2)
    each = of.model.hidden_size * of.itemsize
    taps = 0 if tower.crossed else len(tower.taps)
    room = max(tokens, VIDEO) if taps and version_of(of.version) < AS_LONG_AS_ASKED else tokens
    return room * each * (1 + taps), tokens * each * taps


PER_LAYER = 0.29 * MiB
"""Of one captured batch and layer: nodes, and what the private pool cannot share."""
OF_EXPERTS = 0.55 * MiB
FULL = 2 * MiB
"""Of one captured batch of decoding, the whole forward in one graph."""


def batches(of: Generator, era: Era) -> int:
    """Captured batches: 1, 2, 4, then every 8 to 256, then every 8 or 16 up to twice max_num_seqs."""
    most, step = era.widest_graphs
    largest = min(2 * of.max_num_seqs, most)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + min(largest, 256) // 8 + max(0, largest - 256) // step


def graph_bytes(of: Generator, era: Era) -> Band:
    """Low, expected, high; none where it runs eagerly. Where the engine is of CUDA 12 (vLLM before 0.20) and the
    driver older than 12.4, three to four times as much: 2.2 and 2.4 GiB of a Qwen3 8B on an A100, 6.0 of GLM 4.5V."""
    if of.eager:
        return Band(0, 0, 0)
    each = OF_EXPERTS if of.model.routed else PER_LAYER
    whole = FULL * (3 + min(of.max_num_seqs, 256) // 8) if era.full_graphs else 0
    pieces = of.model.num_layers * batches(of, era) * each * (2 if of.adapter_rank else 1)
    size = int((pieces + whole) * era.graph_share)
    old = of.engine == "vllm" and not era.estimate
    return Band(size // 3, size, size * (4 if old else 2) + 256 * MiB)
