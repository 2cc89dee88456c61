"""ms-swift's commands and files: what each word means by version, and what is said where a word is not understood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import Checked, check_file
from memplan.frameworks.draft import Draft
from memplan.frameworks.files.documents import open_document
from memplan.frameworks.reading import draft_of, framework_of, read_target
from memplan.frameworks.registry import find_framework
from memplan.frameworks.swift.keys import deepspeed_of, hub_id

LORA = "CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 1024 --torch_dtype bfloat16"
FOUR = "NPROC_PER_NODE=4 CUDA_VISIBLE_DEVICES=0,1,2,3"


def drawn(folder: Path, text: str, **options: Any) -> Draft:
    """The draft that a script, or with a line ``name: value`` a YAML file, makes."""
    file = folder / ("run.sh" if "swift" in text or "megatron" in text else "sft.yaml")
    file.write_text(text)
    return draft_of([(open_document(str(file)), find_framework("swift"))], options)


def checked(folder: Path, text: str, **options: Any) -> Checked:
    """What ``check`` says of a script."""
    (folder / "run.sh").write_text(text)
    return check_file(str(folder / "run.sh"), {"gpu": "a100-80gb", "model": "qwen2.5-7b", **options})


def subjects(draft: Draft) -> set[str]:
    """What of memory is not understood."""
    return {each.decides for each in draft.unread if each.decides}


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("", "lora", {"r": 8, "alpha": 32.0, "dropout": 0.05, "targets": "all-linear"}),
        ("--tuner_type full", "lora", None),
        ("--tuner_type lora --lora_rank 64 --use_dora true", "lora",
         {"r": 64, "alpha": 32.0, "dropout": 0.05, "targets": "all-linear", "dora": True}),
        ("--tuner_type lora --lora_dtype bfloat16 --target_modules q_proj v_proj", "lora",
         {"r": 8, "alpha": 32.0, "dropout": 0.05, "targets": ["q_proj", "v_proj"], "dtype": "bf16"}),
        ("--train_type lora --lora_dtype bfloat16", "lora",
         {"r": 8, "alpha": 32.0, "dropout": 0.05, "targets": "all-linear"}),
        ("--quant_method bnb --quant_bits 4", "quantization", "nf4-double"),
        ("--quant_method bnb --quant_bits 4 --bnb_4bit_use_double_quant false", "quantization", "nf4"),
        ("--quant_method hqq --quant_bits 4", "quantization", "hqq-4bit"),
        ("--use_galore true --galore_rank 64", "optimizer", "galore"),
        ("--optimizer muon", "optimizer", "muon"),
        ("--attn_impl flash_attn", "attention", "flash"),
        ("--torch_dtype float32", "precision", "fp16-amp"),
        ("--torch_dtype float16", "precision", "fp16"),
        ("--deepspeed zero3_offload", "sharding", "zero3"),
        ("--fsdp fsdp2", "sharding", "fsdp2"),
        ("--gradient_checkpointing false", "gradient_checkpointing", "none"),
        ("--packing true --packing_length 4096", "sequence_length", 4096),
        ("--packing true --packing_length 512", "sequence_length", 1024),
        ("--sequence_parallel_size 4", "sequence_length", 256),
        ("--use_liger_kernel true", "kernels", "liger"),
        ("--use_liger_kernel true --loss_scale hermes", "loss_head", "cross-entropy"),
        ("--per_device_train_batch_size 3", "gradient_accumulation_steps", 6),
        ("--split_dataset_ratio 0.01", "eval_batch_size", 1),
        ("--cached_val_dataset made/val", "eval_batch_size", 1),
        ("--tuner_type full --freeze_vit true --freeze_aligner false", "freeze", ["vision_tower"]),
    ],
)  # fmt: skip
def test_what_a_word_means(tmp_path: Path, words: str, key: str, value: object) -> None:
    draft = drawn(tmp_path, f"{LORA} {words}\n")
    assert draft.values.get(key) == value
    assert not subjects(draft)


def test_without_a_word_the_framework_s_defaults_stand(tmp_path: Path) -> None:
    values = drawn(tmp_path, f"{LORA}\n").values
    said = {"method": "sft", "trainer": "swift", "batch_size": 1, "gradient_accumulation_steps": 16, "num_gpus": 1,
            "gradient_checkpointing": "full", "gradient_checkpointing_reentrant": True, "precision": "bf16",
            "autocast": True, "sequence_length": 1024}  # fmt: skip
    assert {key: values.get(key) for key in said} == said
    assert not {"loss_head", "kernels", "quantization", "freeze", "sharding", "eval_batch_size"} & set(values)


def test_words_of_each_version_bring_its_defaults(tmp_path: Path) -> None:
    words = "--sft_type lora --dtype AUTO --deepspeed default-zero2 --batch_size 2"
    second = drawn(tmp_path, f"CUDA_VISIBLE_DEVICES=0 swift sft --model_id_or_path Qwen/Qwen2-7B-Instruct {words}\n")
    assert second.values["lora"]["targets"] == ["q_proj", "k_proj", "v_proj"]
    assert (second.values["sequence_length"], second.values["batch_size"]) == (2048, 2)
    assert second.values["deepspeed"]["overlap_comm"] is True
    assert second.values["deepspeed"]["ds_optimizer"] is True
    assert second.values["gradient_checkpointing_reentrant"] is False
    third = drawn(tmp_path, f"{LORA} --train_type full --deepspeed zero2\n")
    assert third.values["deepspeed"]["overlap_comm"] is False
    found = [str(draft.values["trainer_version"]) for draft in (second, third, drawn(tmp_path, LORA))]
    assert [text[0] for text in found] == ["2", "3", "4"]


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ("--tuner_type llamapro", "adapters"),
        ("--tuner_type full --freeze_parameters_ratio 0.5", "freezing"),
        ("--tuner_type lora --freeze_llm true", "freezing"),
        ("--lisa_activated_layers 2 --tuner_type full", "freezing"),
        ("--quant_method eetq --quant_bits 8", "quantisation"),
        ("--use_galore true --galore_quantization true", "optimizer"),
        ("--task_type seq_cls", "method"),
        ("--device_map auto", "parallelism"),
        ("--adapters out/checkpoint-1", "adapters"),
        ("--attn_impl flex_attention", "attention"),
        ("--loss_type mine", "loss"),
        ("--some_parallel_size 2", "parallelism"),
    ],
)
def test_what_is_not_modelled_is_unclear(tmp_path: Path, words: str, subject: str) -> None:
    assert subjects(drawn(tmp_path, f"{LORA} {words}\n")) == {subject}


def test_a_trained_vision_tower_asks_for_its_images(tmp_path: Path) -> None:
    words = f"{LORA} --tuner_type full --freeze_llm true --freeze_vit false"
    draft = drawn(tmp_path, words)
    assert [each.asks for each in draft.unread] == ["images"]
    assert draft.values["freeze"] == ["multi_modal_projector", "language_model"]
    assert not drawn(tmp_path, words, images={"tokens": 256}).unread
    assert [each.asks for each in drawn(tmp_path, f"{LORA} --freeze_vit false").unread] == ["images"]
    assert not drawn(tmp_path, f"{LORA} --freeze_vit true --freeze_aligner false").unread


@pytest.mark.slow
def test_a_length_that_nothing_bounds_is_asked_for(tmp_path: Path) -> None:
    text = f"{FOUR} swift sft --model Qwen/Qwen2.5-7B-Instruct\n"
    found = checked(tmp_path, text)
    assert found.fits == "unclear"
    assert "sequence_length is not known" in found.text
    assert checked(tmp_path, text, sequence_length=512).fits == "yes"


def test_processes_are_those_of_the_variables(tmp_path: Path) -> None:
    several = drawn(tmp_path, "NNODES=2 NPROC_PER_NODE=8 " + LORA.replace("CUDA_VISIBLE_DEVICES=0 ", ""))
    assert (several.values["num_gpus"], several.values["gpus_per_node"]) == (16, 8)
    divided = drawn(tmp_path, LORA.replace("DEVICES=0", "DEVICES=0,1"))
    assert subjects(divided) == {"parallelism"}
    assert subjects(drawn(tmp_path, LORA.replace("CUDA_", "NPROC_PER_NODE=2 CUDA_").replace("=0 ", "=0,1,2,3 ")))
    by_script = drawn(
        tmp_path, f"torchrun --nproc_per_node 4 {LORA.split(' ', 1)[1].replace('swift sft', 'swift/cli/sft.py')}"
    )
    assert by_script.values["num_gpus"] == 4


def test_preferences_know_their_reference_and_their_packs(tmp_path: Path) -> None:
    dpo = drawn(tmp_path, f"{FOUR} swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-7B-Instruct --max_length 8192 "
                          "--packing true --tuner_type full --attn_impl flash_attn\n")  # fmt: skip
    assert (dpo.values["method"], dpo.values["sequence_length"]) == ("dpo", 8192)  # two of that length are a pack
    simpo = drawn(tmp_path, f"{LORA.replace('sft', 'rlhf --rlhf_type cpo --loss_type simpo')}\n")
    assert subjects(drawn(tmp_path, f"{LORA.replace('sft', 'rlhf --rlhf_type dpo --loss_type mine')}\n")) == {"loss"}
    assert (simpo.values["method"], simpo.values["sft_term"]) == ("simpo", True)
    assert drawn(tmp_path, f"{LORA.replace('sft', 'dpo')} --sft_type lora\n").values["method"] == "dpo"


@pytest.mark.parametrize(
    ("words", "reference", "engine"),
    [
        ("--beta 0", "none", {"engine": "hf"}),
        ("--beta 0.001", "adapter", {"engine": "hf"}),
        ("--tuner_type full", "resident", {"engine": "hf"}),
        (
            "--use_vllm true --vllm_mode colocate --sleep_level 2 --vllm_gpu_memory_utilization 0.6",
            "adapter",
            {"engine": "vllm", "placement": "colocate", "process": "same", "sleep": "2", "gpu_memory_utilization": 0.6},
        ),
        (
            "--use_vllm true --vllm_mode server --vllm_server_host 127.0.0.1",
            "adapter",
            {"engine": "vllm", "placement": "separate"},
        ),
    ],
)
def test_grpo_counts_the_trainer_and_names_the_engine(
    tmp_path: Path, words: str, reference: str, engine: dict[str, Any]
) -> None:
    draft = drawn(tmp_path, f"{LORA.replace('sft', 'rlhf --rlhf_type grpo')} --max_completion_length 2048 {words}\n")
    assert (draft.values["reference"], draft.values["sequence_length"]) == (reference, 3072)
    assert not [each for each in draft.unread if each.decides and not each.above]
    assert draft.values["rollout"] == engine


def test_an_engine_on_a_card_of_its_own_is_not_the_trainer_s(tmp_path: Path) -> None:
    words = "--rlhf_type grpo --max_length 512 --use_vllm true --num_infer_workers 1 --model Qwen/Qwen2.5-7B-Instruct"
    cards = "CUDA_VISIBLE_DEVICES=0,1,2,3"
    for processes, place in ((3, "separate"), (4, "colocate")):
        draft = drawn(tmp_path, f"NPROC_PER_NODE={processes} {cards} swift rlhf {words}")
        assert draft.values["rollout"]["placement"] == place


def test_megatron_has_its_own_degrees_and_the_hub_s_model(tmp_path: Path) -> None:
    words = "--tensor_model_parallel_size 4 --packing true --sequence_parallel true --max_length 8192"
    text = f"NPROC_PER_NODE=8 megatron sft --load Qwen2.5-14B-mcore {words}"
    values = drawn(tmp_path, text).values
    said = {"trainer": "megatron-swift", "model": "Qwen2.5-14B", "tensor_parallel": 4, "num_gpus": 8, "dtype": "bf16",
            "sequence_length": 8192, "sharding": "distributed-optimizer", "gradient_accumulation_steps": 8,
            "gradient_checkpointing": "selective", "attention": "flash"}  # fmt: skip
    assert {key: values.get(key) for key in said} == said
    assert values["megatron"]["cross_entropy_fusion_impl"] == "native"
    assert checked(tmp_path, f"{text} --train_type lora --lora_rank 8\n").fits == "yes"


def test_a_file_of_arguments_is_told_and_a_command_reads_one(tmp_path: Path) -> None:
    file = "model: Qwen/Qwen3-8B\ndataset: x\ntrain_type: full\nmax_length: 2048\nENV: {NPROC_PER_NODE: 8}\n"
    (tmp_path / "sft.yaml").write_text(file)
    assert framework_of(str(tmp_path / "sft.yaml")).name == "swift"
    values = drawn(tmp_path, f"{FOUR} swift sft {tmp_path}/sft.yaml --max_length 512\n").values
    assert (values["sequence_length"], values["num_gpus"], values["lora"]) == (512, 4, None)


def test_models_have_their_names_of_the_hub() -> None:
    assert hub_id("LLM-Research/Meta-Llama-3.1-8B-Instruct") == "meta-llama/Meta-Llama-3.1-8B-Instruct"
    assert hub_id("AI-ModelScope/gemma-2b") == "google/gemma-2b"
    assert hub_id("modelscope/Llama-2-7b-ms") == "meta-llama/Llama-2-7b-hf"
    assert hub_id("ZhipuAI/GLM-4-9B-0414") == "zai-org/GLM-4-9B-0414"
    assert hub_id("AI-ModelScope/something") == "AI-ModelScope/something"
    assert hub_id("/data/models/Qwen3-8B") == "/data/models/Qwen3-8B"


def test_what_cannot_be_read_is_refused_with_a_hint(tmp_path: Path) -> None:
    found = drawn(tmp_path, "CUDA_VISIBLE_DEVICES=0 swift sft --model_type qwen-7b-chat --sft_type lora\n")
    asked = next(each for each in found.unread if each.asks == "model")
    assert "qwen-7b-chat is ms-swift's own name" in asked.why
    assert asked.hint.startswith("add --model")
    with pytest.raises(InvalidJob, match="'nash' is not modelled"):
        drawn(tmp_path, LORA.replace("sft", "rlhf --rlhf_type nash"))


def test_bundled_settings_by_name() -> None:
    assert deepspeed_of("ds.json", "4.5") is None
    assert deepspeed_of("zero4", "4.5") is None
    stage = deepspeed_of("zero3-offload", "2.6")
    assert stage is not None
    assert stage["zero_optimization"]["offload_param"]["device"] == "cpu"


def test_a_checkpoint_in_four_bits_stays_one_under_another_model(tmp_path: Path) -> None:
    text = LORA.replace("7B-Instruct", "7B-Instruct-GPTQ-Int4")
    assert drawn(tmp_path, text, model="qwen2.5-7b").values["quantization"] == "gptq-4bit"
    assert subjects(drawn(tmp_path, text.replace("Int4", "Int8"), model="qwen2.5-7b")) == {"quantisation"}


SEES = "NPROC_PER_NODE=1 swift sft --model Qwen/Qwen2.5-VL-3B-Instruct --max_length 1024 --attn_impl flash_attn"


@pytest.mark.parametrize(
    ("words", "resting"),
    [
        ("", ["vision_tower", "multi_modal_projector"]),
        ("--freeze_aligner false", ["vision_tower"]),
        ("--freeze_vit false --freeze_aligner false", []),
    ],
)
def test_adapters_leave_what_rests_alone(tmp_path: Path, words: str, resting: list[str]) -> None:
    lora = drawn(tmp_path, f"{SEES} {words}").values["lora"]
    assert lora.get("exclude_modules", []) == resting
    assert "exclude_modules" not in drawn(tmp_path, LORA).values["lora"]


def test_images_are_bounded_or_fill_the_sequence(tmp_path: Path) -> None:
    assert drawn(tmp_path, f"MAX_PIXELS=50176 {SEES}").values["images"] == {
        "per_example": 1, "width": 224, "height": 224
    }  # fmt: skip
    other = SEES.replace("Qwen/Qwen2.5-VL-3B-Instruct", "OpenGVLab/InternVL3-8B")  # tiles of its own
    for text in (SEES, f"MAX_PIXELS=50176 {SEES} --packing true", f"MAX_PIXELS=50176 {other}"):
        found = drawn(tmp_path, text)
        assert found.values["images"]["tokens"] == 1024 - 8
        assert [each.above for each in found.unread if each.asks == "images"] == [True]
    assert "images" not in drawn(tmp_path, LORA).values


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (LORA.replace("=0 ", "=0,1 "), "yes"),  # divided over two cards: no card holds more than one alone would
        (f"{LORA} --task_type seq_cls --num_labels 3", "yes"),
        (LORA.replace("--max_length 1024", "--tuner_type full"), "unclear"),  # samples of 131,072 tokens at most
        (f"{LORA} --lisa_activated_layers 2", "yes"),
        (
            "NPROC_PER_NODE=4 megatron sft --model x --max_length 1024 --tuner_type lora --tensor_model_parallel_size 4"
            " --recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
            "yes",
        ),
    ],
)
def test_what_is_counted_from_above(tmp_path: Path, text: str, fits: str) -> None:
    assert checked(tmp_path, text).fits == fits


def test_a_folder_of_no_name_is_the_model_of_its_type(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"swift sft --model_type qwen2-7b-instruct --model_id_or_path {tmp_path}/rotate_712 --dataset x\n")
    assert read_target(str(file), {"num_gpus": 1, "sequence_length": 512}).job.model == "Qwen/Qwen2-7B"


def test_a_head_for_classes_is_a_rewards_of_half_as_many_pairs(tmp_path: Path) -> None:
    text = f"{LORA} --per_device_train_batch_size 7 --use_liger_kernel true"
    found = drawn(tmp_path, f"{text} --task_type seq_cls --num_labels 3").values
    assert (found["method"], found["batch_size"], "loss_head" in found) == ("reward", 4, False)
    assert drawn(tmp_path, f"MAX_PIXELS=50176 {SEES} --task_type seq_cls --num_labels 3").values["method"] == "sft"


def test_recomputes_nothing_where_it_says_none(tmp_path: Path) -> None:
    text = "NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen2.5-0.5B --max_length 1024 --recompute_granularity "
    said = [drawn(tmp_path, f"{text}{word}").values["gradient_checkpointing"] for word in ("none", "selective", "full")]
    assert said == ["none", "selective", "full"]


def test_a_program_of_ones_own_with_ms_swifts_arguments(tmp_path: Path) -> None:
    text = LORA.replace("swift sft", "torchrun --nproc_per_node 2 my.py --dataset x --train_type lora")
    (tmp_path / "run.sh").write_text(text)
    assert framework_of(str(tmp_path / "run.sh")).name == "swift"
    for program, open_still in (("class Mine(SwiftSft): ...\nMine()", True), ("sft_main()", False)):
        (tmp_path / "my.py").write_text(program)
        left = read_target(str(tmp_path / "run.sh"), {}).unread
        assert ("program" in {each.key for each in left}) is open_still


def test_code_of_ones_own_is_said_to_be_unread(tmp_path: Path) -> None:
    draft = drawn(tmp_path, f"{LORA} --external_plugins plugins/judge.py\n")
    assert ("external_plugins: code of your own is not read" in " ".join(draft.remarks), draft.unread) == (True, [])


def test_a_model_by_ms_swifts_own_name(tmp_path: Path) -> None:
    text = "CUDA_VISIBLE_DEVICES=0 swift sft --model_type qwen2_5-7b-instruct --max_length 512"
    assert drawn(tmp_path, text).values["model"] == "Qwen/Qwen2.5-7B"
    assert "model" in {
        each.asks for each in drawn(tmp_path, text.replace("qwen2_5-7b-instruct", "minicpm-v-v2_6-chat")).unread
    }


def test_ms_swift_up_to_3_5_evaluates_a_hundredth(tmp_path: Path) -> None:
    old = f"{LORA} --train_type lora --eval_steps 100"
    assert drawn(tmp_path, old).values["eval_batch_size"] == 1
    assert "eval_batch_size" not in drawn(tmp_path, f"{old} --split_dataset_ratio 0").values
    assert "eval_batch_size" not in drawn(tmp_path, f"{LORA} --tuner_type lora --eval_steps 100").values
    second = "swift sft --sft_type lora --model_id_or_path Qwen/Qwen2-0.5B --batch_size 4"
    assert drawn(tmp_path, second).values["eval_batch_size"] == 4
    generates = drawn(tmp_path, f"{second} --predict_with_generate true")
    assert generates.values["eval_batch_size"] == 1
    assert [each.decides for each in generates.unread if each.key == "predict_with_generate"] == ["lengths"]
    none = drawn(tmp_path, f"{LORA} --split_dataset_ratio 0 --eval_strategy steps --predict_with_generate true")
    assert not [each for each in none.unread if each.key == "predict_with_generate"]
    assert drawn(tmp_path, f"{second} --eval_batch_size 2").values["eval_batch_size"] == 2


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node 2 $(which swift)",
        "python -m swift.cli.main",
        "/opt/bin/python -m swift.cli.main",
        "python swift/cli/main.py",
    ],
)
def test_its_command_by_the_module_that_it_is(tmp_path: Path, start: str) -> None:
    path = tmp_path / "run.sh"
    text = "rlhf --rlhf_type dpo --model Qwen/Qwen2.5-0.5B --tuner_type lora --lora_rank 4 --max_length 512"
    path.write_text(f"NPROC_PER_NODE=2 {start} {text}\n")
    assert framework_of(str(path)).name == "swift"
    job = read_target(str(path), {}).job
    assert (job.method, job.num_gpus, job.lora and job.lora.r) == ("dpo", 2, 4)


def test_a_loss_in_chunks_of_a_divided_sequence_is_counted_as_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    text = "swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --max_length 4096 --sequence_parallel_size 2\n"
    path.write_text(f"NPROC_PER_NODE=2 CELOSS_PARALLEL_SIZE=512 {text}")
    found = read_target(str(path), {})
    assert [(each.key, each.decides) for each in found.unread if each.above] == [("CELOSS_PARALLEL_SIZE", "loss")]


def test_a_policy_that_teaches_itself_is_counted_with_a_teacher_of_its_shape(tmp_path: Path) -> None:
    text = f"{LORA.replace('sft', 'rlhf --rlhf_type gkd').replace('Qwen/Qwen2.5-7B-Instruct', './ckpt')}\n"
    draft = drawn(tmp_path, text, model="qwen2.5-7b")
    assert draft.values["extra_models"] == [{"role": "teacher", "model": "qwen2.5-7b"}]
    assert [each.key for each in draft.unread if each.above] == ["rlhf_type"]
    assert not [each for each in draft.unread if each.asks == "extra_models"]
    file = tmp_path / "run.sh"
    with pytest.raises(InvalidJob) as asked:
        read_target(str(file), {})
    assert "extra_models" not in asked.value.hint
    beside = drawn(tmp_path, f"{text.strip()} --teacher_model Qwen/Qwen2.5-14B --sft_alpha 0.1\n", model="qwen2.5-7b")
    assert [(each.key, each.decides) for each in beside.unread] == [("sft_alpha", "loss")]


def test_megatron_sees_images_too_and_is_handed_arguments_of_its_own(tmp_path: Path) -> None:
    own = "--max_length 1024 --micro_batch_size 2 --recompute_granularity full --recompute_method uniform"
    text = f"MAX_PIXELS=50176 NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen2.5-VL-3B-Instruct {own}"
    found = drawn(
        tmp_path, f"""{text} --megatron_extra_kwargs '{{"recompute_num_layers": 3, "lr_warmup_init": 1e-6}}'"""
    )
    assert found.values["images"]["per_example"] >= 1
    assert found.values["megatron"]["recompute_num_layers"] == 3
    assert not [each.key for each in found.unread if each.decides]
    assert "images" not in drawn(tmp_path, text.replace("VL-3B", "3B").replace("MAX_PIXELS=50176 ", "")).values


def test_delta_nets_of_transformers_are_not_divided(tmp_path: Path) -> None:
    text = (
        "{} NPROC_PER_NODE=4 megatron sft --model Qwen/Qwen2.5-0.5B --max_length 1024 --tensor_model_parallel_size {}"
    )
    for value, degree, told in (("0", 2, True), ("1", 2, False), ("0", 1, False)):
        found = drawn(tmp_path, text.format(f"USE_MCORE_GDN={value}", degree))
        assert ("USE_MCORE_GDN" in {each.key for each in found.unread}) is told


@pytest.mark.parametrize("verb", ["swift", "megatron"])
def test_a_tower_that_trains_without_checkpoints_is_told(tmp_path: Path, verb: str) -> None:
    recompute = "" if verb == "swift" else "--recompute_granularity full --recompute_method uniform"
    model = "--model Qwen/Qwen2.5-VL-3B-Instruct --max_length 1024 --tuner_type full"
    text = f"NPROC_PER_NODE=4 {verb} sft {model} {recompute} "
    for words, told in (
        ("--freeze_vit false --vit_gradient_checkpointing false", True),
        ("--freeze_vit false --vit_gradient_checkpointing true", False),
        ("--freeze_vit true --vit_gradient_checkpointing false", False),
    ):
        found = drawn(tmp_path, text + words)
        assert ("vit_gradient_checkpointing" in {each.key for each in found.unread if each.decides}) is told
