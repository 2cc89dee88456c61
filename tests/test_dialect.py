"""Proves that scripts on transformers' Trainer are read in their own words, and that what is not read is said."""

from pathlib import Path
from typing import Any

import pytest
from drawing import over

from memplan.errors import InvalidJob
from memplan.frameworks.absent import ROWS
from memplan.frameworks.asking import MODEL, SEEING, SUCH
from memplan.frameworks.checks.checking import Checked, check_file
from memplan.frameworks.deciding import SUBJECTS, subject_of
from memplan.frameworks.hugging_face.dialect_names import HARMLESS, MEANINGS, NAMES
from memplan.frameworks.hugging_face.dialect_names import ROWS as WORDS
from memplan.frameworks.hugging_face.dialect_scripts import SCRIPTS

CARD = {"gpu": "h100-80gb", "num_gpus": 1}
PLAIN = "--model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 2 --output_dir x --bf16"
LLAVA_OF_4_37 = (
    "--model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower openai/clip-vit-large-patch14-336 --bf16 True "
    "--mm_projector_type mlp2x_gelu --per_device_train_batch_size 1 --model_max_length 2048 --output_dir x"
)
SEES = "--model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --per_device_train_batch_size 1 --output_dir x --bf16"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(options: str, program: str = "train.py", **more: Any) -> Checked:
    """A script that starts ``program`` with PLAIN and more options."""
    Path("run.sh").write_text(f"torchrun --nproc_per_node 1 {program} {options}\n")
    return check_file("run.sh", {**CARD, **more})


def job(options: str, program: str = "train.py", **more: Any) -> dict[str, Any]:
    """The job of a script that is understood."""
    found = check(options, program, **more)
    assert found.fits in ("yes", "tight", "no"), found.text
    return dict(found.job)


def test_the_table_has_each_name_once_and_no_harmless_one() -> None:
    names = [name for name, _, _ in WORDS]
    assert len(names) == len(set(names))
    assert not HARMLESS & set(names)
    assert {meaning for _, meaning, _ in WORDS} == {meaning for meaning in MEANINGS if NAMES[meaning]}
    assert {subject for subject, _ in MEANINGS.values()} <= set(SUBJECTS)
    assert all(seen for _, _, seen in WORDS)
    assert all(row.seen and row.defaults for row in SCRIPTS)


LENGTHS = (
    ("--model_max_length 512", 512),
    ("--cutoff_len 384", 384),
    ("--max_seq_length 640", 640),
    ("--block_size 256", 256),
    ("--max_source_length 64 --max_target_length 128", 192),
)


@pytest.mark.slow
@over(LENGTHS)
def test_a_length_by_its_many_names(row: tuple[str, int]) -> None:
    assert job(f"{PLAIN} {row[0]}")["sequence_length"] == row[1]


def test_no_length_is_asked_for_and_a_second_one_is_told() -> None:
    found = check(PLAIN)
    assert (found.fits, found.hint) == ("unclear", "add --sequence-length, such as --sequence-length 2048")
    assert "sequence_length is not known: no file says how long a sequence is" in found.text
    assert job(PLAIN, sequence_length=128)["sequence_length"] == 128
    two = check(f"{PLAIN} --model_max_length 512 --max_seq_length 256")
    assert (two.job["sequence_length"], "at most" in two.text) == (512, True)


ADAPTERS = (
    "--lora_enable True --lora_r 4 --lora_alpha 8 --lora_target_modules q_proj,v_proj",
    "--use_lora --lora_rank 4 --target_modules q_proj v_proj",
    "--use_peft 1 --lora_dim 4 --lora_target q_proj,v_proj",
    "--train_mode lora --lora_rank 4 --lora_targets q_proj,v_proj",
    "--finetuning_type lora --lora_rank 4 --lora_target q_proj,v_proj",
    "--use_lora --lora_r 4 --lora_target_modules '.*\\.(q|v)_proj'",
)


@pytest.mark.slow
@over(ADAPTERS)
def test_an_adapter_by_its_many_names(options: str) -> None:
    lora = job(f"{PLAIN} --model_max_length 256 {options}")["lora"]
    assert (lora["r"], tuple(lora["targets"])) == (4, ("q_proj", "v_proj"))


@pytest.mark.slow
def test_what_of_an_adapter_is_the_scripts_own_is_asked_for() -> None:
    base = f"{PLAIN} --model_max_length 256 "
    both = "add --lora-r and --lora-targets, such as --lora-r 16 --lora-targets all-linear"
    for options, hint in (
        ("--use_lora", both),
        ("--use_lora --lora_r 8", "add --lora-targets, such as --lora-targets all-linear"),
    ):
        found = check(base + options)
        assert (found.fits, found.hint) == ("unclear", hint)
    found = check(f"{base} --lora_rank 8")
    assert found.fits == "unclear"
    assert "whether adapters are on" in found.text
    assert check(f"{base} --peft_type IA3").fits == "unclear"
    assert check(f"{base} --use_lora --lora_r 8 --lora_target_modules $X").fits == "unclear"
    assert job(f"{base} --use_lora False --lora_r 8").get("lora") is None
    for options, program in (("--load_in_4bit True", "train.py"), ("", "finetune_lora.py"), ("", "train_qlora.py")):
        found = check(base + options, program)
        assert (found.fits, found.hint) == ("unclear", both), (options, program)
    assert job(base + "--use_lora", lora={"r": 2, "targets": ["q_proj"]})["lora"]["r"] == 2


BASES = (
    ("--bits 4 --double_quant True --quant_type nf4", "nf4-double"),
    ("--bits 4 --quant_type fp4", "fp4"),
    ("--load_in_kbits 8", "int8"),
    ("--load_in_4bit True", "nf4"),
    ("--use_4bit True --bnb_4bit_use_double_quant True", "nf4-double"),
    ("--q_lora True", "nf4"),
    ("--load_in_8bit", "int8"),
    ("--bits 16", "none"),
)


@pytest.mark.slow
@over(BASES)
def test_a_quantised_base_by_its_many_names(row: tuple[str, str]) -> None:
    lora = "--use_lora --lora_r 4 --lora_target_modules q_proj --model_max_length 256"
    assert job(f"{PLAIN} {lora} {row[0]}")["quantization"] == row[1]


def test_two_quantisations_and_odd_bits() -> None:
    lora = f"{PLAIN} --use_lora --lora_r 4 --lora_target_modules q_proj --model_max_length 256"
    assert check(f"{lora} --load_in_4bit --load_in_8bit").fits == "error"
    assert "3 bits are not read" in check(f"{lora} --bits 3").text


@pytest.mark.slow
def test_known_scripts_fill_in_what_is_theirs() -> None:
    found = check(f"{PLAIN}", "fastchat/train/train_lora.py")
    assert found.job["lora"]["r"] == 8
    assert tuple(found.job["lora"]["targets"]) == ("q_proj", "v_proj")
    assert any("model_max_length 512" in each for each in found.assumed)
    firefly = job(f"{PLAIN} --template_name qwen --train_mode qlora --max_seq_length 128")
    assert (firefly["quantization"], firefly["lora"]["r"]) == ("nf4-double", 64)
    qlora = job("--output_dir x --num_train_epochs 1 --model_name_or_path Qwen/Qwen2.5-0.5B --bf16", "qlora.py")
    assert (qlora["sequence_length"], qlora["quantization"], qlora["batch_size"]) == (1280, "nf4-double", 1)
    assert qlora["gradient_checkpointing"] == "full"
    assert job(f"{PLAIN}", "fastchat/train/train_mem.py")["attention"] == "flash"
    Path("fastchat/train").mkdir(parents=True)
    Path("fastchat/train/train_mem.py").write_text("# replace_llama_attn_with_flash_attn()\ntrain()\n")
    llama = PLAIN.replace("Qwen/Qwen2.5-0.5B", "lmsys/vicuna-7b-v1.5")
    assert job(llama, "fastchat/train/train_mem.py").get("attention") != "flash"
    Path("llava/train").mkdir(parents=True)
    Path("llava/train/train_mem.py").write_text("replace_llama_attn_with_flash_attn()\n")
    for name in ("llava-v1.5-7b", "llava-v1.6-mistral-7b"):
        of = LLAVA_OF_4_37.replace("lmsys/vicuna-7b-v1.5", f"./{name}")
        assert (job(of, "llava/train/train_mem.py")["attention"] == "flash") == ("mistral" not in name)
    Path("train_mem.py").write_text("replace_llama_attn_with_flash_attn()\n")
    found = check(f"{PLAIN} --max_seq_length 128", "train_mem.py")  # not FastChat's: whose it is nobody knows
    assert (found.fits, "not followed to its trainer" in found.text) == ("unclear", True)


@pytest.mark.slow
def test_arguments_of_a_file_that_a_key_names() -> None:
    Path("args").mkdir()
    Path("args/a.json").write_text(
        '{"model_name_or_path": "Qwen/Qwen2.5-0.5B", "output_dir": "x", "per_device_train_batch_size": 4,'
        '"max_seq_length": 256, "bf16": true, "template_name": "qwen", "train_mode": "full"}'
    )
    found = job("--train_args_file args/a.json")
    assert (found["batch_size"], found["sequence_length"], found.get("lora")) == (4, 256, None)
    Path("lora.json").write_text('{"lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q_proj"]}')
    found = job(f"{PLAIN} --use_lora --lora_config lora.json --model_max_length 256")
    assert (found["lora"]["r"], tuple(found["lora"]["targets"])) == (4, ("q_proj",))
    assert "lora_config" in check(f"{PLAIN} --use_lora --lora_config none.json --model_max_length 256").text


FREEZING: tuple[tuple[str, list[str]], ...] = (
    ("--tune_mm_llm True --tune_mm_mlp True --tune_mm_vision False", ["vision_tower"]),
    ("--tune_mm_llm True --tune_mm_mlp True --tune_mm_vision True", []),
    ("--freeze_llm True --freeze_vision_tower True --freeze_merger False", ["language_model", "vision_tower"]),
    ("--freeze_llm True --freeze_mlp False --freeze_backbone False --vision_select_layer -1 --down_sample_ratio 0.5",
     ["language_model"]),
)  # fmt: skip


@over(FREEZING)
def test_what_is_trained_of_a_model_that_sees(row: tuple[str, list[str]]) -> None:
    found = job(f"{SEES} --model_max_length 1024 --max_pixels 50176 {row[0]}".replace("--model_max", "--max_seq"))
    assert list(found["freeze"]) == row[1]


def test_a_tile_without_a_token_is_an_error() -> None:
    marks = "--vision_select_layer -1 --down_sample_ratio 0.5 --max_dynamic_patch 6 --max_seq_length 1024"
    many = check(f"{SEES} {marks} --force_image_size 448 --dynamic_image_size True").job["images"]
    alone = check(f"{SEES} {marks} --force_image_size 448").job["images"]
    assert (many["tokens"], alone["tokens"]) == (768, 256)  # as many as the sequence has room for, or one
    found = check(f"{SEES} {marks} --force_image_size -3")
    assert found.fits == "error"
    assert "force_image_size" in found.text


def test_images_are_as_large_as_the_processor_lets_them_be_or_asked_for() -> None:
    found = check(f"{SEES} --model_max_length 1024 --max_pixels 50176 --tune_mm_llm True")
    assert (found.job["images"]["width"], found.job["images"]["per_example"]) == (224, 1)
    assert any(each.startswith("images") for each in found.assumed)
    for options in ("--freeze_vision_tower True", "--max_pixels 50176 --video_max_pixels 50176"):
        found = check(f"{SEES} --max_length 1024 {options}", "finetune_vlm.py")
        assert found.job["images"]["tokens"] == 1024 - 8  # as many as the sequence holds
        assert found.fits == "yes"
        assert "at most" in found.text


@pytest.mark.slow
def test_what_is_counted_from_above_is_unclear_where_it_does_not_fit() -> None:
    found = check(f"{SEES} --max_length 1024 --freeze_vision_tower True", "finetune_vlm.py", gpu="8GB")
    assert (found.fits, found.exit_code) == ("unclear", 2)
    assert "images is not known" in found.text
    asked = check(f"{SEES} --max_length 1024 --freeze_vision_tower True", "finetune_vlm.py", gpu="8GB",
                  images={"per_example": 1, "tokens": 64})  # fmt: skip
    assert asked.fits == "no"


@pytest.mark.slow
def test_a_scripts_own_longest_length_is_a_bound() -> None:
    own = f"{SEES} --freeze_merger False --image_max_pixels 50176"
    assert "sequence_length is not known" in check(own, gpu="40GB").text
    assert check(f"{own} --max_seq_length 32768", gpu="40GB").fits == "no"


@pytest.mark.slow
def test_a_model_of_text_given_for_a_script_of_images_is_unclear() -> None:
    found = check(f"{SEES} --max_seq_length 1024 --max_pixels 50176 --freeze_vision_tower True", model="qwen2.5-0.5b")
    assert found.fits == "unclear"
    assert "sees no images" in found.text


def test_a_model_is_asked_for_that_has_what_the_file_has() -> None:
    own = "--model_name_or_path ./mine --per_device_train_batch_size 1 --output_dir x --mm_projector_type"
    clip = "mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336"
    assert check(f"{own} {clip}").hint == MODEL
    for tower in (clip.replace("mlp2x_gelu", "mine"), "mlp2x_gelu --vision_tower ./mine.pt"):
        hint = f"{SEEING.partition(',')[0]} {SUCH['images']}, with your own values"
        hint = hint if ".pt" in tower else hint.replace(f" {SUCH['images']}", "")
        assert check(f"{own} {tower}").hint == hint, tower
    known = check(f"{own} mlp2x_gelu --vision_tower ./mine.pt".replace("./mine ", "Qwen/Qwen2.5-0.5B "))
    assert known.hint.startswith(SEEING[:36]), known.hint
    seen = check(f"{own[:27]} --per_device_train_batch_size 1 --output_dir x --freeze_connector True --bf16").hint
    assert seen.startswith(SEEING[:36]), seen
    assert "--set images.per_example=1" in seen, seen
    fused = "--model_name_or_path ./mine --use_lora --lora_r 8 --lora_target_modules c_attn attn.c_proj w1 w2"
    hint = check(f"{fused} --per_device_train_batch_size 1 --max_seq_length 64 --output_dir x").hint
    assert hint == "add --model Qwen/Qwen2.5-7B --lora-targets all-linear, with your own values"


@pytest.mark.slow
def test_a_tower_in_a_key_of_its_own() -> None:
    llava = "--model_name_or_path lmsys/vicuna-7b-v1.5 --per_device_train_batch_size 1 --output_dir x --bf16"
    llava += " --mm_projector_type mlp2x_gelu --model_max_length 1024 --vision_tower "
    found = job(f"{llava} openai/clip-vit-large-patch14-336")
    assert found["model"]["_name_or_path"] == "vicuna-7b-v1.5 with clip-vit-large-patch14-336"
    assert found["model"]["text_config"]["hidden_size"] == 4096
    assert list(found["freeze"]) == ["vision_tower"]
    found = job(f"{llava} openai/clip-vit-large-patch14-336 --tune_mm_mlp_adapter True")
    assert list(found["freeze"]) == ["language_model", "vision_tower"]
    clip = "openai/clip-vit-large-patch14-336"
    for options in ("other/tower-384", f"{clip} --mm_resampler_type x",
                    f"{clip} --image_aspect_ratio anyres", f"{clip} --vision_tower_aux y"):  # fmt: skip
        assert check(f"{llava} {options}").fits == "unclear"


BESIDE: tuple[tuple[str, list[str], list[str]], ...] = (
    ("--lora_enable True", ["vision_tower"], ["multi_modal_projector"]),
    ("--lora_enable True --freeze_mm_mlp_adapter True", ["vision_tower", "multi_modal_projector"], []),
    ("--lora_enable True --unfreeze_mm_vision_tower True", [], ["vision_tower", "multi_modal_projector"]),
)


@over(BESIDE)
def test_adapters_of_llava_stand_on_the_language_model_alone(row: tuple[str, list[str], list[str]]) -> None:
    llava = "--model_name_or_path lmsys/vicuna-7b-v1.5 --per_device_train_batch_size 1 --output_dir x --bf16"
    llava += " --model_max_length 1024 --mm_projector_type mlp2x_gelu --vision_tower openai/clip-vit-large-patch14-336"
    lora = job(f"{llava} {row[0]}")["lora"]
    assert ([*lora["exclude_modules"]], [*lora["modules_to_train"]]) == row[1:]


ENDS = (
    ("--lora_namespan_exclude \"['lm_head', 'embed_tokens']\"", False),
    ("--lora_namespan_exclude \"['embed_tokens']\"", True),
)


@over(ENDS)
def test_2u1_adapts_the_head_unless_it_is_left_out(row: tuple[str, bool]) -> None:
    own = f"{SEES} --freeze_merger True --freeze_vision_tower True --freeze_llm True --lora_enable True"
    own += " --use_liger False --max_seq_length 1024 --image_max_pixels 50176"
    lora = job(f"{own} {row[0]}")["lora"]
    assert ("lm_head" in lora["targets"]) == row[1]
    assert list(lora["exclude_modules"]) == ["vision_tower", "multi_modal_projector"]
    assert job(f"{own} {row[0]} --vision_lora True")["lora"]["exclude_modules"] == ["multi_modal_projector"]


def test_pairs_of_a_llava_s_own_trainer_have_its_adapters_and_a_whole_log_softmax() -> None:
    found = job(f"{LLAVA_OF_4_37} --lora_enable True --lora_r 8 --dpo_beta 0.1", "llava/train/train_dpo.py")
    assert (found["method"], found["lora"]["targets"], found["loss_head"]) == ("dpo", "all-linear", "log-softmax")


TOWERS = (
    ("--use_llm_lora 8", 8, ["vision_tower", "multi_modal_projector"]),
    ("--use_llm_lora 8 --use_backbone_lora 0", 8, ["vision_tower", "multi_modal_projector"]),
    ("--use_llm_lora 8 --use_backbone_lora 16", 16, ["multi_modal_projector"]),
    ("--use_llm_lora 16 --use_backbone_lora 8", 16, ["multi_modal_projector"]),
)


@over(TOWERS)
def test_internvl_has_adapters_on_the_tower_beside_those_of_the_language_model(row: tuple[str, int, list[str]]) -> None:
    own = "--model_name_or_path OpenGVLab/InternVL2_5-1B --conv_style a --force_image_size 448 --max_seq_length 1024"
    own += " --freeze_llm True --freeze_mlp True --freeze_backbone True --output_dir x --bf16 True"
    own += " --per_device_train_batch_size 1"
    lora = job(f"{own} {row[0]}", "internvl/train/x.py")["lora"]
    assert (lora["r"], [*lora["exclude_modules"]]) == row[1:]


def test_adapters_on_the_tower_alone_are_not_read() -> None:
    found = check(f"{SEES} --max_seq_length 1024 --max_pixels 50176 --use_backbone_lora 8")
    assert found.fits == "unclear"
    assert "use_backbone_lora" in found.text


def test_a_word_that_is_no_strategy_is_an_error() -> None:
    assert "'sometimes' is no strategy" in check(f"{PLAIN} --model_max_length 512 --eval_strategy sometimes").text


def test_a_rewards_keys_are_of_no_supervised_fine_tuning() -> None:
    found = check(f"{PLAIN} --model_max_length 512 --skip_reward_step 16")
    assert found.fits == "unclear"
    assert "skip_reward_step" in found.text


def test_a_task_that_is_dpo_is_no_supervised_fine_tuning() -> None:
    found = check(f"{PLAIN} --model_max_length 512 --task DPO")
    assert found.fits == "unclear"
    assert "task" in found.text
    assert job(f"{PLAIN} --model_max_length 512 --task vqa")["method"] == "sft"
    told = check(f"{PLAIN} --model_max_length 512 --task DPO", own_loss={"logits": 16, "forwards": 2})
    assert (told.fits, told.job["method"]) == ("yes", "sft"), told.text  # whatever holds the loss


METHODS = (
    ("train_dpo.py", "", "dpo"),
    ("my_orpo_trainer.py", "", "orpo"),
    ("train.py", "--task_type dpo", "dpo"),
    ("train.py", "--stage rm", "reward"),
    ("train.py", "--loss_type sigmoid", "dpo"),
    ("train_mydpo.py", "", "dpo"),
    ("finetune_sft.py", "", "sft"),
)


@pytest.mark.slow
@over(METHODS)
def test_the_method_by_a_word_of_the_script_or_of_a_key(row: tuple[str, str, str]) -> None:
    program, options, method = row
    assert job(f"{PLAIN} --max_length 256 {options}", program)["method"] == method


def test_preference_training_is_never_read_as_supervised_without_a_word() -> None:
    for options, program in (("--beta 0.1", "train.py"), ("--ref_model a/b", "main.py"), ("", "train_ppo.py")):
        found = check(f"{PLAIN} --model_max_length 256 {options}", program)
        assert found.fits in ("unclear", "error"), (options, program, found.text)


def test_a_script_that_trains_no_language_model_is_said_to_be_none() -> None:
    for program in ("run_image_classification.py", "run_speech_recognition_ctc.py", "train_text_to_image.py"):
        found = check(PLAIN, program)
        assert found.fits == "error"
        assert "trains no language model" in found.text


ABSENT = (
    ("neox.yaml", "pipe_parallel_size: 1\nmodel_parallel_size: 1\ntrain_micro_batch_size_per_gpu: 4\n", "GPT-NeoX"),
    ("merge.yaml", "merge_method: slerp\nbase_model: a/b\n", "mergekit"),
    ("auto.yml", "task: llm-sft\nbase_model: a/b\nproject_name: x\n", "AutoTrain"),
    ("sft.yaml", "stage: SFT\nfine_tuning: lora\nlora_rank: 8\nmodel_name_or_path: a/b\n", "PaddleFormers"),
    ("run.sh", "deepspeed train.py --deepspeed --deepspeed_config ds.json --num_train_epochs 1\n", "DeepSpeed's own"),
)


@over(ABSENT)
def test_a_framework_that_is_not_read_is_named(row: tuple[str, str, str]) -> None:
    name, text, title = row
    Path(name).write_text(text)
    found = check_file(name, CARD)
    assert found.fits == "error"
    assert f"of {title}" in found.text
    assert "which memplan does not read" in found.text
    assert "own keys" in found.hint


def test_each_absent_framework_has_marks_that_can_be_found() -> None:
    assert len({row.title for row in ROWS}) == len(ROWS)
    assert all(row.alternatives and all(row.alternatives) for row in ROWS)


def test_the_language_model_of_a_model_that_sees_is_a_pattern_of_freeze() -> None:
    from memplan import estimate

    base = {"model": "qwen2.5-vl-3b", "trainer": "transformers", "method": "sft", "gradient_checkpointing": True}
    seen = {"images": {"per_example": 1, "width": 224, "height": 224}}
    every = estimate({**base, **seen}).model.params.trainable
    text = estimate({**base, **seen, "freeze": ["vision_tower", "multi_modal_projector"]}).model.params.trainable
    rest = estimate({**base, **seen, "freeze": ["language_model"]}).model.params.trainable
    assert every == text + rest
    with pytest.raises(InvalidJob, match="batch without images"):
        estimate({**base, "freeze": ["language_model"]})


def test_pairs_are_scored_by_whole_logits() -> None:
    """Scripts of DPO with trainers of their own compute log-probabilities themselves, without TRL's later heads."""
    options = f"{SEES} --max_length 1024 --beta 0.1 --max_pixels 50176 --freeze_merger False"
    found = check(options, "train_dpo.py", gpu="h200-141gb")
    assert (found.job["trainer_version"], found.job["method"], found.fits) == ("0.17", "dpo", "yes")


def test_a_video_is_no_single_image() -> None:
    """``fps`` says that an example is one: as many frames as its sequence holds."""
    options = f"{SEES} --max_length 1024 --max_pixels 50176 --freeze_merger False --max_seq_length 1024"
    plain, video = (check(f"{options}{more}", "train_sft.py", gpu="h200-141gb") for more in ("", " --fps 1.0"))
    assert "at most" in video.text
    assert video.device_bytes > plain.device_bytes


@pytest.mark.parametrize(
    ("options", "version"),
    [
        ("--evaluation_strategy no", "4.45"),
        ("--overwrite_output_dir", "4.57"),
        ("--overwrite_output_dir --evaluation_strategy no", "4.45"),
        ("--eval_strategy no", None),
        (LLAVA_OF_4_37, "4.37.2"),
        (f"{LLAVA_OF_4_37} --use_liger_kernel True", None),
    ],
)
def test_the_version_by_arguments_that_went_and_by_what_a_script_pins(options: str, version: str | None) -> None:
    found = job(options if options.startswith(LLAVA_OF_4_37) else f"{PLAIN} {options} --model_max_length 512")
    assert found.get("trainer_version") == version


def test_an_older_transformers_loads_in_fp32() -> None:
    newest, older = (job(f"{PLAIN} --model_max_length 512 {more}") for more in ("", "--evaluation_strategy no"))
    assert (newest["precision"], older["precision"]) == ("bf16", "bf16-amp")


def test_a_version_that_an_option_says_is_stronger() -> None:
    assert (
        job(f"{PLAIN} --model_max_length 512 --evaluation_strategy no", trainer_version="5.0")["trainer_version"]
        == "5.0"
    )


def test_a_kind_of_adapters_turns_them_on() -> None:
    found = check(f"{PLAIN} --model_max_length 512 --peft_method lora")
    assert found.fits == "unclear"
    assert "rank and modules are the script's own" in found.text
    assert job(f"{PLAIN} --model_max_length 512 --peft_method none").get("lora") is None


def test_an_adapter_that_is_loaded_by_its_path_decides() -> None:
    assert "sft_adapter_path (adapters)" in check(f"{PLAIN} --model_max_length 512 --sft_adapter_path x").text


PROGRAM = """
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=1)
given = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
args = TrainingArguments(output_dir="x", per_device_train_batch_size=given.bs, bf16=True)
Trainer(model=model, args=args, train_dataset=data).train()
"""


@pytest.mark.parametrize("folder", ["mine", "src/mine"])
def test_a_program_that_is_started_as_a_module_is_gone_through(folder: str) -> None:
    Path(folder).mkdir(parents=True)
    Path(folder, "train.py").write_text(PROGRAM)
    Path("run.sh").write_text("accelerate launch --num_processes 1 -m mine.train --bs 3\n")
    found = check_file("run.sh", {**CARD, "sequence_length": 128})
    assert (found.fits, found.job["batch_size"], found.job["model"]) == ("yes", 3, "Qwen/Qwen2.5-0.5B")


@pytest.mark.parametrize(
    ("key", "subject"),
    [("top_quantile", ""), ("quantize", "quantisation"), ("halfpool", ""), ("use_half", "precision"),
     ("vq_weights_path", "model"), ("class_weights_path", ""), ("loss_weight_file", "")],
)  # fmt: skip
def test_a_word_within_a_word_is_no_subject(key: str, subject: str) -> None:
    assert subject_of(key) == subject


def test_parts_that_are_tuned_by_a_word() -> None:
    words = f"{SEES} --model_max_length 2048 --max_pixels 200704 --tune_type_llm frozen --tune_type_vision_tower frozen"
    assert job(f"{words} --tune_type_connector full")["freeze"] == ["language_model", "vision_tower"]
    assert "tune_type_llm (freezing)" in check(words.replace("llm frozen", "llm lora")).text


CHILD = "torchrun --nproc_per_node $1 train.py --model_name_or_path Qwen/Qwen2.5-0.5B \\\n"
CHILD += "  --model_max_length ${LENGTH:-512} --per_device_train_batch_size ${BATCH:-1} --output_dir x --bf16\n"


def test_a_script_that_another_starts_under_its_arguments() -> None:
    Path("scripts").mkdir()
    Path("scripts/child.sh").write_text(CHILD)
    Path("run.sh").write_text("export LENGTH=1024\nBATCH=4\nbash scripts/child.sh 2\n./scripts/child.sh 1\n")
    first = check_file("run.sh:3", {"gpu": "h100-80gb"})
    assert [first.job[key] for key in ("num_gpus", "sequence_length", "batch_size")] == [2, 1024, 1]
    Path("run.sh").write_text("BATCH=4 bash -x scripts/child.sh 2\n")
    assert check_file("run.sh", {"gpu": "h100-80gb"}).job["batch_size"] == 4


def test_scripts_that_start_each_other_come_to_an_end() -> None:
    Path("one.sh").write_text("bash two.sh\n")
    Path("two.sh").write_text(f"bash one.sh\n{CHILD.replace('$1', '1')}")
    assert check_file("one.sh", {"gpu": "h100-80gb"}).fits == "yes"


OWN = "model_name_or_path: Qwen/Qwen2.5-0.5B\noutput_dir: x\nseed: 1\ngeneration: {max_new_tokens: 64}\n"


def test_a_projects_own_sections_are_no_arguments_of_the_trainer() -> None:
    Path("own.yaml").write_text(f"{OWN}training: {{per_device_train_batch_size: 2}}\n")
    assert "no training config" in check_file("own.yaml", CARD).text
    Path("own.yaml").write_text(f"{OWN}num_train_epochs: 1\nmodel_max_length: 64\n")
    assert check_file("own.yaml", CARD).fits == "yes"


@pytest.mark.slow
def test_a_section_that_nobody_reads_decides_what_its_keys_do() -> None:
    Path("own.yaml").write_text(f"{OWN}num_train_epochs: 1\nmodel_max_length: 64\ntraining: {{lora: {{r: 8}}}}\n")
    assert "training (adapters)" in check_file("own.yaml", CARD).text


def test_a_deepspeed_config_without_a_dtype_takes_the_trainers() -> None:
    """accelerate 1.15 DeepSpeedPlugin.set_mixed_precision: a section that is not there is made of the arguments."""
    zero = '{"zero_optimization": {"stage": 2}'
    for text, precision in ((f"{zero}}}", "bf16-master"), (f'{zero}, "bf16": {{"enabled": false}}}}', "fp32")):
        Path("ds.json").write_text(text)
        assert job(f"{PLAIN} --max_length 64 --deepspeed ds.json")["precision"] == precision


def test_a_command_of_a_projects_own_and_a_rank_without_a_switch_are_unclear() -> None:
    Path("run.sh").write_text(f"mytool dpo {PLAIN} --num_train_epochs 1 --max_length 64\n")
    found = check_file("run.sh", CARD)
    assert (found.fits, found.job["method"]) == ("unclear", "dpo")
    assert "mytool is not followed" in found.text
    lines = "model_name_or_path: gpt2\nmax_seq_length: 64\nper_device_train_batch_size: 1\nnum_train_epochs: 1\n"
    Path("sft.yaml").write_text(f"{lines}lora_r: 8\nmy_own_key: 1\n")
    assert "whether adapters are on" in check_file("sft.yaml", CARD).text


R1_V = (
    "--model_name_or_path Qwen/Qwen2-VL-2B-Instruct --max_pixels 401408 --max_prompt_length 1024 --bf16 --beta 0.04 "
    "--gradient_checkpointing true --attn_implementation flash_attention_2 --per_device_train_batch_size "
)


def test_grpo_over_images_of_a_programs_own_counts_a_group_and_every_logit() -> None:
    found = check(f"{R1_V} 1 --num_generations 4 --max_completion_length 256", "src/open_r1/grpo.py")
    job = {key: found.job[key] for key in ("batch_size", "completion_length", "sequence_length", "reference")}
    assert job == {"batch_size": 4, "completion_length": 1280, "sequence_length": 1280, "reference": "resident"}
    assert "at most" in found.text
    rows = check(f"{R1_V} 2 --image_root x", "src/open_r1/grpo_rec.py").job
    assert (rows["batch_size"], rows["trainer_version"]) == (2, "0.17")
    assert check(f"{R1_V} 2 --num_generations 4", "src/open_r1/grpo.py").job["batch_size"] == 8  # of two prompts


def test_a_deepspeed_file_that_is_not_here_offloads_nothing_at_most() -> None:
    assert "at most" in check(f"{PLAIN} --model_max_length 64 --deepspeed conf/zero3_offload.json").text


def test_a_config_with_trls_keys_for_a_trainer_of_nobodys_is_unclear() -> None:
    text = "beta: 0.1\ntrainer: {}\ndataloader: Own\ndesirable_weight: 1.0\nundesirable_weight: 1.0\n"
    for trainer, fits in (("HAPOTrainer", "unclear"), ("KTOTrainer", "no")):
        Path("loss.yaml").write_text(text.format(trainer))
        found = check_file("loss.yaml", {**CARD, "model": "Qwen/Qwen2.5-7B"})
        assert found.fits == fits, found.text
        assert ("none of TRL's" in found.text) == (fits == "unclear")


def test_adapters_of_an_option_leave_what_the_script_trains_beside_them() -> None:
    line = f"{LLAVA_OF_4_37} --lora_enable True --lora_alpha 5 --lora_r "
    open_ = check(f"{line}$1", "llava/train/train_mem.py")
    assert "--lora-r" in open_.hint
    assert open_.fits == "unclear"
    asked = job(f"{line}$1", "llava/train/train_mem.py", lora={"r": 8})["lora"]
    assert asked == job(f"{line}8", "llava/train/train_mem.py")["lora"]
    assert (asked["modules_to_train"], asked["exclude_modules"]) == (["multi_modal_projector"], ["vision_tower"])


def test_a_program_that_patches_attention_runs_flash_whatever_it_is_called() -> None:
    Path("llava/train").mkdir(parents=True)
    for text, attention in (
        ("from x import replace_llama_attn_with_flash_attn\n\nreplace_llama_attn_with_flash_attn()\n", "flash"),
        ("if args.flash:\n    replace_llama_attn_with_flash_attn()\n", "sdpa"),
    ):
        Path("llava/train/train_mem_moe.py").write_text(text)
        assert job(LLAVA_OF_4_37, "llava/train/train_mem_moe.py")["attention"] == attention


def test_what_shapes_a_tower_is_asked_about_with_the_model() -> None:
    line = LLAVA_OF_4_37.replace("lmsys/vicuna-7b-v1.5", "$MODEL")
    found = check(f"{line} --mm_spatial_pool_mode max", "llava/train/train_mem.py")
    assert found.fits == "unclear"
    assert "--model" in found.hint, found.text
    assert "--without mm_spatial_pool_mode" in found.hint, found.hint


def test_a_head_is_trained_where_a_script_freezes_the_model_beneath_it() -> None:
    backbone = ["layers", "embed_tokens", "norm"]
    qwen = f"{SEES.replace('3B', '7B')} --tune_mm_llm False --tune_mm_mlp True --max_pixels 50176"
    assert job(qwen, "qwenvl/train/train_qwen.py")["freeze"] == [*backbone, "vision_tower"]
    assert job(f"{LLAVA_OF_4_37} --freeze_backbone True", "llava/train/train.py")["freeze"][:3] == backbone
    only = job(f"{LLAVA_OF_4_37} --tune_mm_mlp_adapter True", "llava/train/train.py")["freeze"]
    assert only == ["language_model", "vision_tower"]  # model.requires_grad_(False)
    tiny = job(f"{LLAVA_OF_4_37} --tune_type_llm frozen", "tinyllava/train/train.py")["freeze"]
    assert tiny == ["language_model", "vision_tower"]  # its base.py: language_model.requires_grad_(False)


def test_a_model_that_nobody_gives_is_asked_for_with_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    line = f"{PLAIN} --model_max_length 512 --image_folder x".replace("Qwen/Qwen2.5-0.5B", "someone/else-align")
    found = check(line)
    assert found.fits == "error"
    assert "llava-hf/llava-1.5-7b-hf" in found.hint or "Qwen/Qwen2.5-VL" in found.hint, found.hint
    assert "--model Qwen/Qwen2.5-7B " not in found.hint


def test_tinyllavas_recipe_adapts_the_language_model_and_trains_the_connector() -> None:
    line = f"{LLAVA_OF_4_37} --tune_type_vision_tower frozen --tune_type_connector full --lora_r 9 --tune_type_llm lora"
    lora = job(f"{line} --training_recipe lora", "tinyllava/train/train.py")["lora"]
    assert (lora["r"], lora["targets"], lora["modules_to_train"]) == (9, "all-linear", ["multi_modal_projector"])
    assert lora["exclude_modules"] == ["vision_tower"]
    assert check(f"{line} --training_recipe qlora_int4", "tinyllava/train/train.py").fits == "unclear"


def test_two_lengths_alone_are_no_qlora() -> None:
    line = f"{PLAIN} --source_max_len 256 --target_max_len 256"
    assert job(line, "finetune.py").get("lora") is None
    assert job(f"{line} --bits 4", "finetune.py")["quantization"] == "nf4-double"


def test_a_loop_of_its_own_under_a_known_scripts_words_is_unclear() -> None:
    Path("train_dpo.py").write_text("def main():\n    loss.backward()\n")
    found = check(
        f"{PLAIN} --beta 0.1 --max_length 512 --max_prompt_length 64 --lora_r 8 --mm_projector_type x", "train_dpo.py"
    )
    assert found.fits == "unclear"
    assert "training loop of the program's own" in found.text, found.text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--evaluation_strategy no", True),
        ("--evaluation_strategy no --flash_attn True", False),
        ("--eval_strategy no", False),
    ],
)
def test_a_script_of_any_older_transformers_says_that_its_attention_may_be_eager(more: str, said: bool) -> None:
    line = f"{PLAIN} --lora_r 8 --model_max_length 512 {more}".replace("Qwen/Qwen2.5-0.5B", "lmsys/vicuna-7b-v1.5")
    found = check(line, "fastchat/train/train_lora.py")
    assert any("until then eager" in each for each in found.assumed) == said, found.assumed


@pytest.mark.parametrize(("more", "fits"), [("--do_predict", "skipped"), ("--do_predict --do_train", "yes")])
def test_a_command_that_predicts_alone_trains_nothing(more: str, fits: str) -> None:
    found = check(f"{PLAIN} --model_max_length 256 {more}", "run_clm.py")
    assert (found.fits, "trains nothing" in found.text) == (fits, fits == "skipped"), found.text


def test_adapters_of_which_a_file_says_a_part_are_asked_for() -> None:
    for more, typed in (("--r 32", "--lora-r 32"), ("--target_modules q_proj,v_proj", "--lora-r 16")):
        found = check(f"{PLAIN} --model_max_length 256 {more} --lora_alpha 64", "sft_of_ours.py")
        assert (found.fits, typed in found.hint) == ("unclear", True), (found.text, found.hint)
