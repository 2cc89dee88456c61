"""Holds the reading of out-of-memory errors: their forms, the moment, the tensor, and what follows."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.api import estimate
from memplan.cli.app import main
from memplan.diagnose.causes import is_fragmented, others
from memplan.diagnose.diagnosis import diagnose, diagnose_job, differs
from memplan.diagnose.messages import messages, printed, tensor_of
from memplan.diagnose.phases import PHASES, RULES, Frame, frames_of, place_of
from memplan.diagnose.readings import readings
from memplan.errors import UsageError
from memplan.jobs import read_target
from memplan.units import GiB, MiB, parse_size, round_up

TORCH_2 = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 3 has a total capacity of 79.15 GiB of "
    "which 4.02 GiB is free. Including non-PyTorch memory, this process has 75.12 GiB memory in use. Of the allocated "
    "memory 71.30 GiB is allocated by PyTorch, and 2.85 GiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
TORCH_1 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 3.14 GiB (GPU 0; 31.75 GiB total capacity; 28.28 GiB already "
    "allocated; 1.95 GiB free; 28.28 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try"
)
JOB = {"model": "llama-3.1-8b", "method": "dpo", "trainer": "trl", "gpu": "a100-80gb", "lora": {"r": 16},
       "sequence_length": 2048, "reference": "adapter"}  # fmt: skip


def sizes(text: str) -> dict[str, str]:
    """What is read of the first message, as it was printed."""
    read = messages(text)[0]._asdict()
    return {name: value.text for name, value in read.items() if hasattr(value, "text")}


@pytest.mark.parametrize(
    ("text", "form", "read"),
    [
        (TORCH_2.format(asked="11.74 GiB"), "torch-2", {"requested": "11.74 GiB", "capacity": "79.15 GiB",
         "free": "4.02 GiB", "allocated": "71.30 GiB", "unallocated": "2.85 GiB"}),
        (TORCH_2.format(asked="20.00 MiB").replace("capacity of", "capacty of"), "torch-2", {"requested": "20.00 MiB",
         "capacity": "79.15 GiB", "free": "4.02 GiB", "allocated": "71.30 GiB", "unallocated": "2.85 GiB"}),
        (TORCH_1, "torch-1", {"requested": "3.14 GiB", "capacity": "31.75 GiB", "free": "1.95 GiB",
         "allocated": "28.28 GiB", "reserved": "28.28 GiB"}),
        ("CUDA out of memory. Tried to allocate 8.52 GiB (GPU 0; 31.72 GiB total capacity; 25.59 GiB already "
         "allocated; 5.39 GiB free; 14.59 MiB cached)", "torch-1.0", {"requested": "8.52 GiB", "capacity": "31.72 GiB",
         "free": "5.39 GiB", "allocated": "25.59 GiB", "unallocated": "14.59 MiB"}),
        ("NPU out of memory. Tried to allocate 52.00 MiB (NPU 2; 60.96 GiB total capacity; 59.36 GiB already "
         "allocated; 59.36 GiB current active; 31.00 MiB free; 59.80 GiB reserved in total by PyTorch)", "npu",
         {"requested": "52.00 MiB", "capacity": "60.96 GiB", "free": "31.00 MiB", "allocated": "59.36 GiB",
          "reserved": "59.80 GiB"}),
        ("MPS backend out of memory (MPS allocated: 12.50 GiB, other allocations: 3.00 GiB, max allowed: 18.13 "
         "GiB). Tried to allocate 3.00 GiB on private pool.", "mps", {"requested": "3.00 GiB", "capacity": "18.13 GiB",
         "allocated": "12.50 GiB"}),
        ("memory allocation failed with OOM on device 1 while trying to allocate 10168041472 bytes (free: 4316528640, "
         "total: 84989575168)", "torch-2.14", {"requested": "9.47 GiB", "free": "4.02 GiB",
         "capacity": "79.15 GiB"}),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 25769803776 bytes. Error code 12",
         "host-allocator", {"requested": "24.00 GiB"}),
        ("ValueError: Free memory on device cuda:0 (19.77/22.05 GiB) on startup is less than desired GPU memory "
         "utilization (0.9, 19.84 GiB).", "vllm-free-less-than-share", {"requested": "19.84 GiB", "free": "19.77 GiB",
         "capacity": "22.05 GiB"}),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
         "vllm-no-cache-blocks", {}),
        ("subprocess exits with return code = -9", "host-kill", {}),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be", "driver", {}),
        ("ncclUnhandledCudaError: Call to CUDA function failed.\nCuda failure 2 'out of memory'", "nccl", {}),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cublas", {}),
        ("Memory_Allocation_Failure(EL0004): Failed to allocate memory requested by GE module.", "driver", {}),
        ("training dies with OOM after three hours", "named", {}),
    ],
)  # fmt: skip
def test_each_form_gives_its_numbers(text: str, form: str, read: dict[str, str]) -> None:
    assert messages(text)[0].form == form
    assert sizes(text) == read


@pytest.mark.parametrize(
    ("around", "phase"),
    [
        ("FAILED test_vlm[tiny-Gemma4ForConditionalGeneration] - {}", "unknown"),
        ("(EngineCore pid=2651) ERROR 05-08 11:47:02 [core.py:1136] {}", "rollout"),
        ("(NPURayWorkerWrapper pid=45464) ERROR 06-09 06:57:48 worker_base.py:581] {}", "rollout"),
        ("hidden_states = F.scaled_dot_product_attention(\n{}", "forward"),
        ("in cross_entropy\n    return torch._C._nn.cross_entropy_loss(\n\n{}", "loss"),
    ],
)
def test_a_line_says_the_moment_where_frames_are_cut(around: str, phase: str) -> None:
    assert diagnose(around.format(TORCH_1)).place.phase == phase


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        (TORCH_2, "PYTORCH_CUDA_ALLOC_CONF"),
        (TORCH_1.replace("CUDA", "NPU"), "PYTORCH_NPU_ALLOC_CONF"),
        (TORCH_2.replace("CUDA out", "HIP out").replace("PYTORCH_CUDA_", "PYTORCH_"), "PYTORCH_ALLOC_CONF"),
        ("MPS backend out of memory (MPS allocated: 9.00 GiB, max allowed: 9.07 GiB). Tried to allocate 1 GiB", ""),
    ],
)
def test_the_variable_is_the_backends(text: str, variable: str) -> None:
    text = text.replace("{asked}", "2.00 GiB")
    assert messages(text)[0].variable == variable
    written = [each.write for each in diagnose(text).advice if "expandable_segments" in each.write]
    assert written == ([f"export {variable}=expandable_segments:True"] if variable else [])


def test_sizes_are_read_as_what_the_moment_makes() -> None:
    """The step asks for DeepSpeed's sub-group of 1e9 elements, and loading for weights: neither for logits."""
    step = 'File "/x/deepspeed/runtime/zero/stage3.py", line 7, in step\n    self._optimizer_step(sub_group_id)\n'
    found = diagnose(step + TORCH_1.replace("3.14 GiB", "3.73 GiB")).matches
    assert [(each.name, each.bytes) for each in found] == [("a ZeRO-3 sub-group in fp32", 4 * 10**9)]
    load = 'File "/x/modeling_utils.py", line 7, in _load_pretrained_model\n    value.to(device)\n'
    assert not any("logits" in each.name for each in diagnose(load + TORCH_1.replace("3.14", "1.17")).matches)


def test_a_warning_alone_is_read_and_beside_an_error_it_is_not() -> None:
    warning = "memory allocation failed with OOM on device 0 while trying to allocate 2097152 bytes"
    assert messages(warning)[0].warning
    assert [message.form for message in messages(f"{warning}\n{TORCH_1}")] == ["torch-1"]


def test_an_absurd_figure_is_dropped() -> None:
    text = TORCH_2.format(asked="2.00 GiB").replace("this process has 75.12 GiB", "this process has 17179869184.00 GiB")
    assert messages(text)[0].processes == ()


def test_ranks_and_boxes_are_read() -> None:
    text = "[rank3]: Traceback (most recent call last):\n" + "".join(
        f'[rank3]:   File "/x/{file}", line 7, in {name}\n[rank3]:     {code}\n'
        for file, name, code in (("trainer.py", "_save_checkpoint", "x"), ("fsdp.py", "state_dict", "hook(self)"))
    ) + "[rank3]: " + TORCH_2.format(asked="3.00 GiB")  # fmt: skip
    found = diagnose(text)
    assert (found.place.phase, found.message.rank) == ("save", 3)
    boxed = "│ /x/deepspeed/engine.py:330  │\n│ in _configure_optimizer    │\n│ ❱ 1474 │   optimizer = Stage3(  │"
    assert frames_of(boxed) == [Frame("/x/deepspeed/engine.py", "_configure_optimizer", "optimizer = Stage3(")]


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (["train", "from_pretrained", "_load_state_dict_into_meta_model"], "load"),
        (
            ["deepspeed.initialize", "_configure_zero_optimizer", "initialize_optimizer_states", "zeros_like exp_avg"],
            "start",
        ),
        (["training_step", "LlamaMLP.forward", "act_fn(gate_proj(x)) * up_proj(x)"], "forward"),
        (["compute_loss", "concatenated_forward", "LlamaDecoderLayer.forward"], "forward"),
        (["compute_loss", "lm_head"], "loss"),
        (["backward", "run_backward", "unpack_hook", "LlamaMLP.forward"], "backward"),
        (["optimizer.step", "_multi_tensor_adamw", "_foreach_sqrt"], "optimizer"),
        (["evaluation_loop", "prediction_step", "compute_loss", "LlamaMLP.forward"], "evaluate"),
        (["_save_checkpoint", "get_state_dict", "_full_state_dict"], "save"),
        (["_load_optimizer_and_scheduler", "torch.load"], "resume"),
        (["merge_and_unload", "get_delta_weight"], "merge"),
        (["LLM", "determine_num_available_blocks", "profile_run", "LlamaMLP.forward"], "rollout"),
        (["generate", "_sample", "LlamaAttention.forward", "DynamicCache.update"], "rollout"),
        (["unwrap_model_for_generation", "GatheredParameters.__enter__"], "sync"),
        (["main", "something_else"], "unknown"),
    ],
)
def test_frames_say_the_moment(frames: list[str], phase: str) -> None:
    assert place_of([Frame("", name) for name in frames]).phase == phase


def test_every_rule_names_a_known_moment() -> None:
    assert {phase for phase, _, _ in RULES} <= set(PHASES)


@given(st.integers(10 * MiB, 200 * GiB))
def test_the_bucket_of_a_printed_block_holds_the_tensor(size: int) -> None:
    block = round_up(size, 2 * MiB)
    text = f"{block / GiB:.2f} GiB" if block >= GiB else f"{block / MiB:.2f} MiB"
    read = printed(text)
    assert read is not None
    low, high = tensor_of(read)
    assert low <= size <= high
    widest = 20 * MiB if block == 20 * MiB else 2 * MiB + GiB // 100  # which smaller tensors print, too
    assert high - low <= widest


@pytest.mark.parametrize(("text", "bounds"), [("2.00 MiB", (1, MiB)), ("20.00 MiB", (MiB + 1, 20 * MiB + 5243))])
def test_small_tensors_have_large_blocks(text: str, bounds: tuple[int, int]) -> None:
    read = printed(text)
    assert read is not None
    low, high = tensor_of(read)
    assert (low, round(high / MiB)) == (bounds[0], round(bounds[1] / MiB))


def test_the_tensor_is_named_from_the_job() -> None:
    logits = 2 * 2048 * 128_256 * 4
    read = printed(f"{round_up(logits, 2 * MiB) / GiB:.2f} GiB")
    assert read is not None
    found = readings(read, estimate(JOB), "loss")
    assert "logits" in found[0].name
    assert found[0].bytes == logits


def test_a_job_without_a_card_had_the_one_that_the_message_tells_of() -> None:
    job, text = read_target("llama-3.2-1b", {"method": "sft", "batch_size": 2}), TORCH_2.format(asked="20.00 MiB")
    report = diagnose_job(text, job).report
    assert report is not None
    assert report.verdict is not None
    assert report.verdict.usable_bytes == parse_size("79.15GiB")
    no_card = diagnose_job(text.replace("79.15 GiB", "8.00 MiB"), job).report
    assert no_card is not None
    assert no_card.verdict is None


@pytest.mark.slow
def test_a_longer_batch_is_solved_for_and_estimated_again() -> None:
    logits = 2 * 5000 * 128_256 * 4
    text = (
        TORCH_2.format(asked=f"{round_up(logits, 2 * MiB) / GiB:.2f} GiB")
        + "\nin log_softmax, cross_entropy of the logits"
    )
    found = diagnose_job(
        text, read_target("llama-3.1-8b", {key: value for key, value in JOB.items() if key != "model"})
    )
    assert found.tokens is not None
    assert abs(found.tokens - 10_000) < 10
    assert "sequence_length 5,0" in found.solved or "sequence_length 4,99" in found.solved
    assert "tokens" in differs(found)


@pytest.mark.slow
def test_fragments_other_processes_and_limits_are_told_apart() -> None:
    fragmented = messages(TORCH_2.format(asked="2.00 GiB"))[0]
    assert is_fragmented(fragmented)
    assert diagnose(TORCH_2.format(asked="2.00 GiB")).advice[0].title == "expandable segments"
    crowded = (
        "CUDA out of memory. Tried to allocate 2.11 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.65 GiB is "
        "free. Process 11 has 6.29 GiB memory in use. Process 12 has 6.79 GiB memory in use. Of the allocated memory "
        "4.50 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated."
    )
    other = others(messages(crowded)[0])
    assert other is not None
    assert round(other / GiB, 2) == 6.79
    assert "other processes" in " ".join(diagnose(crowded).causes)
    limited = (
        TORCH_2.format(asked="128.00 MiB")
        .replace("4.02 GiB is free", "37.32 GiB is free")
        .replace("2.85 GiB", "1.00 MiB")
    )
    assert "not the card's" in diagnose(limited).causes[0]


@pytest.mark.parametrize(
    ("text", "place", "phase"),
    [
        ("fine-tuning died at `self._setup_for_real_optimizer()`\nCUDA OOM", "card", "start"),
        ("train.py fails: exits with return code = -9\nLoading checkpoint shards:   0%| | 0/7", "host", "load"),
        (" variance = hidden_states.to(torch.float32).pow(2).mean(-1)\n" + TORCH_1, "card", "forward"),
        ("微调时128步报错oom\n", "card", "unknown"),
        ("node_manager.cc:3064: 12 Workers (tasks / actors) killed due to memory pressure (OOM), 0", "host", "unknown"),
        ("ray.exceptions.RayTaskError(OutOfMemoryError)\n actor_rollout_wg.update_actor(batch)", "card", "unknown"),
        ("deepspeed: exits with return code = -7", "host", "unknown"),
        ("Adam's `_init_group` calls `torch.zeros_like(p.data)`:\nOutOfMemoryError: Tried to allocate 6.20 GiB", "card",
         "optimizer"),
        ("it could be invalid after returning from state_dict() call. Error: " + TORCH_1, "card", "save"),
        ("CUDA out of memory\n     _, result = self._loss_scaler.run_optimizer_step(step_nr)\n", "card", "optimizer"),
        ("`flash_attn: fa2` in the YAML, and OOM all the same", "card", "unknown"),
        ("[malloc_or_wait] Unable to allocate 12 bytes.", "card", "unknown"),
    ],
)  # fmt: skip
def test_reports_in_prose_are_read(text: str, place: str, phase: str) -> None:
    found = diagnose(text)
    assert (found.message.place, found.place.phase) == (place, phase)


@pytest.mark.parametrize(
    ("text", "form", "read"),
    [
        ("torch.OutOfMemoryError: Tried to allocate 6.20 GiB. GPU 2 has total 47.40 GiB of which 1.96 GiB is free.",
         "torch-cut", {"requested": "6.20 GiB", "capacity": "47.40 GiB", "free": "1.96 GiB"}),
        ("OOMed during backward: PyTorch had 10.41 GiB reserved but unused and attempted an 11.66 GiB allocation",
         "told", {"requested": "11.66 GiB", "unallocated": "10.41 GiB"}),
        ("OOM when allocating tensor with shape[246534,1280] and type float on GPU:0", "tensorflow",
         {"requested": "1.18 GiB"}),
        ("[metal::malloc] Attempting to allocate 30 bytes which is greater than the maximum allowed buffer size of 20",
         "mlx", {"requested": "30 B", "capacity": "20 B"}),
        ("the job needs 12 GiB and 3 GiB are free, yet it says OOM", "named", {}),
    ],
)  # fmt: skip
def test_numbers_told_in_other_words_are_read(text: str, form: str, read: dict[str, str]) -> None:
    assert (messages(text)[0].form, sizes(text)) == (form, read)


def test_a_shape_that_the_line_says_is_the_tensor() -> None:
    line = "    buf22 = empty_strided_cuda((54080, 4096), (4096, 1), torch.bfloat16)\n"
    first = diagnose(line + TORCH_2.format(asked="424.00 MiB")).matches[0]
    assert (first.shape, first.bytes) == ("54,080 × 4,096 × 2 B", 54080 * 4096 * 2)
    assert diagnose(line + TORCH_2.format(asked="600.00 MiB")).matches[:1] != (first,)


def test_where_logits_are_made_they_come_before_weights_of_their_size() -> None:
    text = "    logits = logits.float()\n" + TORCH_2.format(asked="3.91 GiB")
    assert [match.name.split()[0] for match in diagnose(text).matches[:2]] == ["logits", "logits"]


def test_a_request_is_for_one_tensor_not_for_a_row_of_several() -> None:
    """A feed-forward's activation of GPT-2, alone, and its scores: a row of four activations is as large as these."""
    job = {"model": "gpt2", "method": "sft", "trainer": "transformers", "precision": "fp32", "attention": "eager"}
    report = estimate({**job, "batch_size": 8, "sequence_length": 1024})
    size = printed("384.00 MiB")
    assert size is not None
    names = [match.name.partition(",")[0] for match in readings(size, report, "forward")]
    assert "attention probabilities" in names
    assert "activation" not in names
    one, pooled = printed("12.00 MiB"), printed("20.00 MiB")
    assert one is not None
    assert pooled is not None
    report = estimate({**job, "batch_size": 1, "sequence_length": 1024})
    found = {match.name.partition(",")[0]: match.bytes for match in readings(one, report, "forward")}
    assert found["activation"] == 1024 * 3072 * 4
    assert readings(pooled, report, "forward") == []


def test_a_weight_of_a_quantised_base_is_named_as_it_is_packed() -> None:
    """starcoder's feed-forward in LLM.int8: 24,576 × 6,144 bytes."""
    job = {"model": "starcoder", "method": "sft", "trainer": "transformers", "lora": {"r": 16}, "quantization": "int8"}
    report = estimate({**job, "gpu": "rtx-3090-24gb", "sequence_length": 256})
    found = diagnose("CUDA out of memory. Tried to allocate 144.00 MiB", report)
    assert [match.name for match in found.matches[:2]] == ["c_fc, packed", "c_proj, packed"]


def test_a_card_that_others_fill_is_not_called_full_of_this_processs_tensors() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 260.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 60.31 MiB "
        "is free. Process 19 has 71.97 GiB memory in use. Including non-PyTorch memory, this process has 7.05 GiB "
        "memory in use. Of the allocated memory 1.51 GiB is allocated by PyTorch, and 205.02 MiB is reserved by "
        "PyTorch but unallocated."
    )
    found = diagnose(text)
    assert found.causes[0].startswith("this process's tensors held 1.51 GiB")
    assert "other processes hold 71.99 GiB" in found.causes[1]
    assert found.advice[0].title.startswith("end the other processes")


def test_more_tensors_than_the_card_holds_are_in_the_computers_memory() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 30.00 MiB. GPU 0 has a total capacity of 11.00 GiB of which 0 bytes is "
        "free. Of the allocated memory 16.98 GiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but "
        "unallocated."
    )
    assert any("Windows" in cause for cause in diagnose(text).causes)
    asleep = text.replace("PyTorch, and", "PyTorch, with 86.34 MiB allocated in private pools (e.g., CUDA Graphs), and")
    assert any("asleep" in cause for cause in diagnose(asleep).causes)


def test_a_request_of_all_weights_is_a_copy_of_the_model() -> None:
    found = diagnose(TORCH_1.replace("3.14 GiB (", "28.20 GiB ("))
    assert any("a copy of the whole model" in cause for cause in found.causes)
    assert found.advice[0].title.startswith("split the optimizer's states")


def test_no_job_but_a_model_in_the_log_names_the_tensor() -> None:
    log = "Loading Qwen/Qwen2.5-7B from the cache\n" + TORCH_2.format(asked="130.00 MiB")
    assert any("16 bit" in match.name for match in diagnose(log).matches)
    assert diagnose(TORCH_2.format(asked="11.74 GiB")).matches[0].tokens == 24_576


@pytest.mark.slow
def test_the_command_reads_files_pipes_and_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "train.log"
    file.write_text(TORCH_2.format(asked="11.74 GiB"))
    assert main(["diagnose", str(file)]) == 0
    assert capsys.readouterr().out.startswith("Out of GPU memory")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TORCH_1.encode())))
    assert main(["diagnose", "-", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["form"], found["phase"], found["fragmented"]) == ("torch-1", "unknown", False)
    assert found["requested_bytes"] == pytest.approx(3.14 * GiB, rel=1e-3)
    assert main(["diagnose", TORCH_1, "llama-2-7b", "--method", "sft", "--gpu", "v100-32gb", "--dtype", "fp16"]) == 0
    assert "The job's estimate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["diagnose", "nosuch.log"], "cannot read nosuch.log"),
        (["diagnose", "/dev/null"], "/dev/null is no file"),
        (["diagnose", "all went well\n"], "no out-of-memory error in this text"),
    ],
)
def test_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@given(st.text(max_size=400))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        diagnose(text + " CUDA out of memory. Tried to allocate " + text)
    except UsageError:
        pytest.fail("a text that says so is read")


RESUMED, LAYER = "Resuming training from out\n", '  File "m.py", line 1, in MLP.forward\n'


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ('  File "qwen2_vl.py", line 1, in Qwen2VLVisionBlock.forward\n', "fewer pixels of a picture"),
        ('  File "bnb.py", line 1, in dequantize_4bit\n', "products in 16 bit"),
        (RESUMED + LAYER, "let go of the checkpoint once it is loaded"),
        (f"{RESUMED}***** Running training *****\n{LAYER}", "recompute activations"),
        ('  File "torchvision/ops.py", line 1, in MLP.forward\n', "recompute activations"),
        ('  File "qwen2.py", line 1, in forward\n    shift_logits = logits[..., :-1, :].contiguous()\n',
         "a fused or chunked loss (no full logits)"),
        ("Train:   3%|#    | 600/22156 [3:14:25<82]\nVal:  21%|##   | 90/428 [01:53<04:33,  1.24it/s]\n",
         "a smaller batch in evaluation"),
        ('  File "transformer_engine/grouped_linear.py", line 1, in __init__\n', "fewer layers on each GPU"),
        ('  File "torch/distributed/fsdp/_runtime_utils.py", line 1, in _pre_backward_hook\n  File "torch/distributed/'
         'fsdp/_flat_param.py", line 1, in _alloc_padded_unsharded_flat_param\n', "one unit of weights at a time"),
    ],
)  # fmt: skip
def test_what_died_comes_before_the_advice_of_its_moment(log: str, first: str) -> None:
    found = diagnose(f"{log}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 34.83 GiB.")
    assert found.advice[0].title == first
