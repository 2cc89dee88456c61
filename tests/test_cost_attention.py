"""Proves what attention costs beyond its pairs: kernels that take masks, fp32, caps; and hooks around saved tensors."""

from typing import Any

import pytest

from memplan.cost import card, seconds
from memplan.cost.attention import MASKED_BACKWARD, MASKED_BROAD, MASKED_WIDE, OTHER_MASKED
from memplan.cost.passes import FLASH_BACKWARD, Pass, layers_pass
from memplan.cost.rates import EXPECTED
from memplan.cost.shape import shape_of
from memplan.cost.step import step
from memplan.cost.tower import tower_pass
from memplan.cost.work import model_work
from memplan.gpus import find_gpu, load_gpus
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.spec.recipe import Recipe

A100 = card(find_gpu("a100-80gb"))
PRO = card(find_gpu("rtx-pro-6000-96gb"))


def recipe(**keys: Any) -> Recipe:
    job = {"model": "llama-3.1-8b", "method": "sft", "gpu": "a100-80gb", "batch_size": 2, "sequence_length": 8192}
    return resolve(read_job({**job, "precision": "bf16", **keys}))


def passed(of: Recipe) -> Pass:
    work = model_work(of.model)
    return layers_pass(work, shape_of(of, work), A100, EXPECTED)


def test_a_mask_has_pytorch_run_a_slower_kernel_over_every_pair() -> None:
    """178 TFLOP/s forward where FlashAttention-2 has 230, and a backward that is slower yet."""
    masked, plain = (passed(recipe(attention="sdpa", padded=it)) for it in (True, False))
    assert masked.attention == pytest.approx(2 * plain.attention / OTHER_MASKED, rel=0.05)
    assert masked.attended / masked.attention == pytest.approx(MASKED_BACKWARD)
    assert plain.attended / plain.attention == pytest.approx(FLASH_BACKWARD)
    unpadded = passed(recipe(attention="flash", padded=True))
    assert unpadded.attended < 0.3 * masked.attended


def test_heads_of_256_leave_that_kernels_registers() -> None:
    """3,090 µs of a forward at 128, 7,032 at 256 (facebookresearch/xformers#587)."""
    work = model_work(recipe(model="gemma-7b").model)
    broad, padded = (shape_of(recipe(model="gemma-7b", attention="sdpa", padded=it), work) for it in (False, True))
    masked, plain = (layers_pass(work, of._replace(native=False), A100, EXPECTED) for of in (padded, broad))
    assert masked.attention == pytest.approx(2 * plain.attention * MASKED_BROAD / OTHER_MASKED, rel=0.05)


def test_patches_take_no_mask_of_the_text() -> None:
    images = {"per_example": 1, "width": 896, "height": 896}
    keys: dict[str, Any] = {"model": "qwen2.5-vl-7b", "attention": "sdpa", "images": images}
    masked, plain = (recipe(**keys, padded=it) for it in (True, False))
    seen = [tower_pass(it, shape_of(it, model_work(it.model)), A100, EXPECTED) for it in (masked, plain)]
    assert seen[0] == seen[1]


def test_fp32_has_that_kernel_alone() -> None:
    wide, half = (passed(recipe(attention="sdpa", padded=True, precision=it)) for it in ("fp32", "bf16"))
    assert wide.attention == pytest.approx(MASKED_WIDE * half.attention)
    assert half.attended < wide.attended < MASKED_WIDE * half.attended


def test_a_cap_of_scores_is_three_more_passes_over_them() -> None:
    of = recipe(model="gemma-2-9b", attention="eager")
    work = model_work(of.model)
    assert all(each.capped for _, each in work.layers)
    free = work._replace(layers=tuple((count, each._replace(capped=False)) for count, each in work.layers))
    capped, plain = (layers_pass(each, shape_of(of, work), A100, EXPECTED).moves for each in (work, free))
    scores = 2 * 16 * 8192**2 * 42
    assert capped - plain == pytest.approx(12 * scores / (A100.memory * EXPECTED.memory))


def test_adapters_in_fp32_without_autocast_move_twice_as_much() -> None:
    """Llama 3.1 8B on an A100, 2 x 8,192: 9.7 s a micro-step whole, 11.5 with LoRA (ljm565/universal-llm-trainer)."""
    keys: dict[str, Any] = {"gradient_checkpointing": "full", "attention": "sdpa", "padded": True, "autocast": False}
    keys |= {"trainer": "transformers", "trainer_version": "4.49"}
    lora = {"r": 8, "dropout": 0.05, "targets": "all-linear"}
    wide, half = (seconds(recipe(**keys, lora={**lora, "dtype": it}), A100) for it in ("fp32", "bf16"))
    assert half + 0.8 < wide < half + 2.0
    assert wide > seconds(recipe(**keys), A100)


def test_a_checkpoint_that_is_not_reentrant_calls_python_for_every_saved_tensor() -> None:
    """A short step, which its host paces; a long one does not feel it."""
    keys: dict[str, Any] = {"gradient_checkpointing": "full", "lora": {"r": 8}, "batch_size": 1}
    for length, least, most in ((256, 1.3, 1.7), (16_384, 1.0, 1.0)):
        hooked, plain = (
            seconds(recipe(**keys, sequence_length=length, gradient_checkpointing_reentrant=it), A100)
            for it in (False, True)
        )
        assert least <= hooked / plain <= most


def test_workstation_cards_have_products_and_fp32_of_their_own() -> None:
    """417 and 79 TFLOP/s (zzc0721/torch-performance-test-data#162); an unmeasured laptop is ranked as its kin."""
    assert not PRO.assumed
    assert PRO.products == pytest.approx(417e12, rel=0.01)
    assert PRO.wide_products == pytest.approx(79e12, rel=0.01)
    laptop = card(find_gpu("rtx-4060-laptop-8gb"))
    kin = {name for name, gpu in load_gpus().items() if gpu.architecture == "8.9"}
    assert any(name in laptop.assumed for name in kin)


def test_eager_attention_is_more_kernels_for_the_host() -> None:
    """Five beside the 38 of a layer, which pace a forward of 64 tokens."""
    short: dict[str, Any] = {"batch_size": 1, "sequence_length": 64}
    eager, fused = (passed(recipe(**short, attention=it)).forward for it in ("eager", "sdpa"))
    assert eager / fused == pytest.approx(43 / 38)


def test_a_layers_kernels_are_those_of_a_trace() -> None:
    """transformers 5.24's forwards; GPT-NeoX joins the part of its heads that turns with the rest, too."""
    of = ("llama-3.1-8b", "qwen3-8b", "pythia-1b")
    llama, qwen3, neox = (model_work(recipe(model=it).model).layers[0][1].kernels for it in of)
    assert (llama, qwen3[0], neox[0]) == ((38, 14), 54, 23 - 2)


def test_a_backward_moves_what_a_trace_of_it_shows() -> None:
    """Of each element of a Llama's hidden state 214 bytes where the forward moves 84; 198 where norms are frozen; of
    gate and up 9 for 5; of what turns, as before (transformers 5.24, an unfused layer)."""
    whole, adapted = recipe(attention="flash"), recipe(attention="flash", lora={"r": 1, "targets": ["v_proj"]})
    behind, before = [], []
    for of in (whole, adapted):
        work = model_work(of.model)
        shape = shape_of(of, work)._replace(adapted_moves=0.0, adapter=0.0)
        bare = work._replace(layers=tuple((1, each._replace(products=(), per_pair=0.0)) for _, each in work.layers))
        free = EXPECTED._replace(launch=0.0)
        made = layers_pass(bare, shape, A100, free)
        behind.append(made.backward * A100.memory * EXPECTED.memory / (2 * 8192))
        before.append(made.forward * A100.memory * EXPECTED.memory / (2 * 8192))
    assert before[0] == pytest.approx(84 * 4096 + 5 * 2 * 14336 + 18 * 5120)
    for found, each in zip(behind, (214, 198), strict=True):
        assert found == pytest.approx(each * 4096 + 9 * 2 * 14336 + 1.6 * 18 * 5120)


def test_short_steps_take_as_long_as_their_machine() -> None:
    """One program that waits for its host: 18 ms a token beside an A100's EPYC, 11 beside an H100's, 8 on a desktop."""
    taken = []
    for name, ms in (("a100-80gb", 18.15), ("h100-80gb", 10.82), ("rtx-5090-32gb", 8.0)):
        short, on = (
            recipe(batch_size=1, sequence_length=16, model="qwen3-0.6b", gpu=name, lora={"r": 8}),
            card(find_gpu(name)),
        )
        assert on.host == pytest.approx(ms / 18.15)
        taken.append(step(short, on, EXPECTED).seconds / ms)
    assert taken[1] == pytest.approx(taken[0], rel=0.1)
    assert taken[2] == pytest.approx(taken[0], rel=0.1)


def test_dropout_and_a_vocabulary_that_no_tile_fits_are_felt() -> None:
    """GPT-2 from scratch on an A100: 112,046 tokens/s with 50,257 tokens, 127,345 with 50,304, compiled
    (rasbt/LLMs-from-scratch ch05/10_llm-training-speed)."""
    model = {"model_type": "gpt2", "tie_word_embeddings": False, "vocab_size": 50_304}
    keys: dict[str, Any] = {"batch_size": 8, "sequence_length": 1024, "compile": True, "optimizer_impl": "fused"}
    even = seconds(recipe(**keys, model=model), A100)
    odd = seconds(recipe(**keys, model={**model, "vocab_size": 50_257}), A100)
    assert odd / even == pytest.approx(127_345 / 112_046, abs=0.03)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    slow, fast = (passed(recipe(**keys, model=each)).moves for each in (model, {**model, **still}))
    assert slow - fast == pytest.approx(12 * 2 * 8192 * 768 / (A100.memory * EXPECTED.memory))
