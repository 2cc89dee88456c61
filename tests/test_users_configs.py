"""Proves what configs and launch scripts of users showed: classes, flavors and places of a project's own."""

import json
from pathlib import Path

import pytest
from framework_cases import TORCHTITAN

from memplan.frameworks.checks.checking import Checked, check_file
from memplan.frameworks.files.documents import open_document
from memplan.frameworks.parts import parts

CARD = {"gpu": "80GB", "num_gpus": 8}
PROGRAM = """\
from dataclasses import dataclass
import transformers
from own import Mine
@dataclass
class Arguments:
    model_name_or_path: str = None
parser = transformers.HfArgumentParser((Arguments, transformers.TrainingArguments))
given, args = parser.parse_args_into_dataclasses()
model = Mine.from_pretrained(given.model_name_or_path, torch_dtype="bfloat16")
rows = [tokenizer(text, max_length=512, truncation=True) for text in data]
transformers.Trainer(model=model, args=args, train_dataset=rows).train()
"""
OWN = """\
from transformers import Qwen2ForCausalLM
class Mixed: ...
class Mine(Mixed, Qwen2ForCausalLM): ...
"""
RUN = """\
torchrun --nproc_per_node 8 ../train.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 \\
    --per_device_train_batch_size 2 --output_dir x --deepspeed ../conf/here.json
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("README.md").write_text("")


def checked(name: str, text: str, **given: object) -> Checked:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return check_file(name, {**CARD, **given})


def test_a_model_of_a_class_of_its_own_is_its_checkpoints_and_has_no_adapters() -> None:
    for name, text in (("train.py", PROGRAM), ("own.py", OWN), (".git/HEAD", "")):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("conf").mkdir()
    Path("conf/here.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    found = checked("scripts/run.sh", RUN)
    assert "Mine (model) is not counted" in found.text
    assert found.hint == "add --without Mine, if that takes no memory"
    answer = check_file("scripts/run.sh", {**CARD, "without": ["Mine"]})
    assert (answer.fits, answer.job["model"], "lora" in answer.job) == ("yes", "Qwen/Qwen2.5-0.5B", False)
    assert answer.job["sharding"] == "zero3"  # ../conf is the script's, not the program's


LLAVA = """\
deepspeed llava/train/train_mem.py --deepspeed zero2.json --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 True \
    --model_max_length 512 --per_device_train_batch_size 2 --output_dir x --version plain --"""
SQUARE = {"per_example": 1, "width": 224, "height": 224}


def test_a_projector_without_a_tower_that_is_known_is_a_bound() -> None:
    found = checked("a.sh", f"{LLAVA}tune_mm_mlp_adapter True", images=SQUARE)
    assert (found.fits, "at most" in found.text) == ("yes", True), found.text


def test_torchtitan_is_started_by_its_file_and_has_a_forks_flavors() -> None:
    flavors = 'llama3_configs = {"3B": ModelArgs(dim=3072, n_layers=28, n_heads=24, n_kv_heads=8, multiple_of=1024,\n'
    flavors += "    ffn_dim_multiplier=1.3, rope_theta=500000)}\n"
    own = Path("torchtitan/models/llama/__init__.py")
    own.parent.mkdir(parents=True)
    own.write_text(flavors)
    config = TORCHTITAN.replace("global_batch_size = 64\n", "").replace("8B", "3B")
    config = config.replace("[parallelism]\ntensor_parallel_degree = 2\n", "").replace(
        "[training]", "[training]\ntensor_parallel_degree = 4\ndata_parallel_degree = 2\ncompile = true\n"
        "gradient_accumulation_steps = 9")  # fmt: skip
    Path("3b.toml").write_text(config)
    found = checked(
        "run.sh", "srun torchrun --nproc_per_node 8 ./train.py --job.config_file 3b.toml --training.seq_len 1024"
    )
    job = found.job
    assert (job["model"]["intermediate_size"], job["model"]["vocab_size"]) == (11264, 128256)
    assert job["gradient_accumulation_steps"] == 9
    assert (job["sequence_length"], job["tensor_parallel"], job["sharding"], job["compile"]) == (1024, 4, "fsdp2", True)
    assert found.fits in ("yes", "tight")
    own.rename(own.with_name("configs.py")).write_text(flavors.replace("dim=", "share_embeddings=True, dim="))
    assert checked("b.sh", "torchrun --nproc_per_node 8 ./train.py --job.config_file 3b.toml").job["model"][
        "tie_word_embeddings"
    ]


@pytest.mark.parametrize(("said", "asks"), [("--eval_strategy steps", True), ("--eval_strategy no", False)])
def test_metrics_that_a_script_switches_on_keep_logits_where_it_evaluates(said: str, asks: bool) -> None:
    found = checked("a.sh", f"{LLAVA}compute_metrics True {said}", images=SQUARE)
    assert ("--set evaluation.keeps_logits=true" in found.hint) is asks, found


def test_a_config_of_deepspeeds_is_none_of_accelerates() -> None:
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "fp16": {"enabled": "auto"}}))
    found = checked("a.sh", "accelerate launch --config_file ds.json train.py --model_name_or_path Qwen/Qwen2.5-0.5B "
                    "--per_device_train_batch_size 1 --output_dir x --bf16")  # fmt: skip
    assert (found.fits, found.hint) == ("error", "give it as --deepspeed_config_file, with --use_deepspeed")


def test_a_variable_of_an_argument_is_given_as_the_argument() -> None:
    script = f"R=$1\n{LLAVA}lora_enable True --lora_r $R --lora_alpha $(($R * 2))"
    found = checked("a.sh", script, images=SQUARE)
    assert found.hint == 'set it: memplan check "bash a.sh …", or add --lora-r 16'
    assert checked("a.sh", script, images=SQUARE, lora={"r": 16}).fits in ("yes", "tight")


def test_sections_of_somebodys_own_are_not_torchtitans() -> None:
    own = "[model]\nhidden = 512\n\n[training]\nbatch_size = 8\n"
    assert checked("own.toml", own).fits == "error"
    assert checked("a.sh", "torchrun --nproc_per_node 8 train.py --config own.toml").fits == "error"


SHAPE = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --vocab-size 512"


def test_a_program_of_any_name_is_megatrons_by_its_arguments() -> None:
    found = checked("a.sh", f"torchrun --nproc_per_node 8 own_pretrain.py {SHAPE} --hidden-dropout 0 --bf16")
    assert (found.fits, found.job["trainer"], found.job["model"]["n_layer"]) == ("yes", "megatron", 2), found.text
    assert checked("b.sh", f"python own.py {SHAPE.replace('--seq-length 64', '')}").fits == "error"


def test_images_beside_a_model_of_text_are_no_training_of_that_model() -> None:
    plain = LLAVA.replace("Qwen/Qwen2.5-0.5B", "/x/other-qwen2.5-0.5b").replace("--version plain --", "")
    found = checked("a.sh", f"{plain} --image_folder data", images=SQUARE)
    assert (found.fits, "image_folder (model)" in found.text) == ("unclear", True), found.text
    assert "image_folder (model)" not in checked("b.sh", plain, images=SQUARE).text


def test_a_program_that_only_writes_a_config_trains_nothing() -> None:
    Path("c.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nbf16: true\nper_device_train_batch_size: 1\n")
    Path("set.py").write_text("import argparse, re\nimport yaml\n")
    script = "python set.py --config_path c.yaml\naccelerate launch --num_processes 8 dpo.py --config c.yaml"
    Path("a.sh").write_text(script)
    assert len(parts(open_document("a.sh"))) == 1
    Path("set.py").write_text("import subprocess\n")
    assert len(parts(open_document("a.sh"))) == 2


def test_layers_that_attend_to_a_tower_at_rest_are_checkpointed_reentrant() -> None:
    own = "model_name_or_path: meta-llama/Llama-3.2-11B-Vision-Instruct\nstage: sft\ntemplate: mllama\nbf16: true\n"
    config = f"{own}cutoff_len: 512\nper_device_train_batch_size: 1\nfinetuning_type: lora\nlora_target: all\n"
    images = {"per_example": 1, "width": 448, "height": 448}
    assert checked("rests.yaml", config, images=images).fits == "yes"
    found = checked("trained.yaml", f"{config}freeze_vision_tower: false\n", images=images)
    assert "torch refuses" in found.text


LOOP = """\
sizes=(64 128)
for i in ${!sizes[@]}; do
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size ${sizes[$i]} --num-attention-heads 4 \\
    --seq-length 64 --micro-batch-size 1 --global-batch-size $(($N * 2)) --bf16 --recompute-activations \\
    --recompute-granularity full --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt
done
"""


def test_what_megatron_makes_of_its_arguments() -> None:
    job = checked("a.sh", LOOP).job
    assert (job["model"]["n_embd"], job["model"]["vocab_size"]) == (64, 50257)
    assert (job["gradient_checkpointing"], job["gradient_accumulation_steps"]) == ("selective", 2)
    assert job["megatron"]["hidden_dropout"] == 0.1


def test_experts_with_biases_and_none_that_all_share() -> None:
    experts = "--num-experts 4 --moe-ffn-hidden-size 64 --swiglu --add-qkv-bias --hidden-dropout 0 --bf16"
    found = checked("a.sh", f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} {experts}")
    assert (found.fits, found.job["model"]["n_shared_experts"]) == ("yes", 0), found.text
    own = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SHAPE} --swiglu --hidden-dim-multiplier 1.3 --bf16"
    assert "hidden_dim_multiplier (model)" in checked("b.sh", own).text


def test_a_model_and_its_images_are_asked_for_at_once() -> None:
    own = LLAVA.replace("Qwen/Qwen2.5-0.5B", "$SAVED/mine").replace("--version plain --", "")
    own += (
        " --vision_tower openai/clip-vit-large-patch14-336 --mm_projector_type mlp2x_gelu --image_aspect_ratio anyres"
    )
    found = checked("a.sh", own)
    assert "--model llava-hf/llava-1.5-7b-hf --set images.per_example=1" in found.hint, found.hint
    assert "qwen2.5-7b" not in checked("b.sh", LLAVA.replace("Qwen/Qwen2.5-0.5B", "/x/Qwen2.5-Omni-7B") + "bf16").hint


def test_what_a_script_sources_from_another_machines_project_is_this_ones() -> None:
    Path("own/settings/models").mkdir(parents=True)
    Path("own/settings/models/small.sh").write_text(f'SIZES="{SHAPE}"\n')
    script = "ROOT=/scratch/$USER/project\nsource $ROOT/own/settings/models/small.sh\n"
    script += "torchrun --nproc_per_node 8 pretrain_gpt.py $SIZES --bf16"
    assert checked("own/jobs/old/a.sh", script).job["model"]["n_embd"] == 64


def test_a_model_that_gpus_share_experts_of_is_asked_for_by_one_that_has_them() -> None:
    script = "NPROC_PER_NODE=8 megatron sft --max_length 512 --{}_model_parallel_size 8 --model "
    for shared, model in (("expert", "Qwen/Qwen3-30B-A3B"), ("tensor", "Qwen/Qwen3-8B")):
        for path in ("/x/mine", "own/mine"):
            assert f"--model {model}" in checked("a.sh", script.format(shared) + path).hint


def test_a_tokenizer_of_somebodys_own_may_have_more_tokens() -> None:
    own = LLAVA.replace("--version plain --", "").replace("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-2-7b-hf")
    for name, asks in (
        ("own/Llama-2-7b-hf_hi_merged.model", True),
        ("lmsys/vicuna-7b-v1.5", False),
        ("Qwen/Qwen3-8B", True),
    ):
        found = checked("a.sh", f"{own} --tokenizer_name_or_path {name}", images=SQUARE)
        assert ("tokenizer_name_or_path (model)" in found.text) is asks, name
    config = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n"
    assert "tokenizer_config (model)" in checked("c.yaml", f"{config}tokenizer_config: own/tok\n").text
    assert "resize_embed_strategy (model)" in checked("b.sh", f"{own} --resize_embed_strategy mean", images=SQUARE).text


def test_a_model_that_is_asked_for_sees_what_its_file_does() -> None:
    script = "IMAGE_MAX_TOKEN_NUM=256 NPROC_PER_NODE=8 swift sft --max_length 512 --tuner_type lora --model"
    found = checked("a.sh", f"{script} /x/mine")
    assert "--model Qwen/Qwen2.5-VL-7B-Instruct" in found.hint
    assert "sees no images" in checked("a.sh", f"{script} /x/mine", model="Qwen/Qwen2.5-0.5B").text


def test_a_config_stands_over_those_of_its_list() -> None:
    """Hydra's, of a program that hands them to TRL; one that is not here leaves it unclear."""
    Path("base.yaml").write_text("torch_dtype: bfloat16\ngradient_checkpointing: true\nnum_generations: 4\nbeta: 0.1\n")
    text = "defaults:\n  - base\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\nmax_completion_length: 256\nbeta: 0.0\n"
    text += "per_device_train_batch_size: 4\nlearning_rate: 1e-6\n"
    found = checked("grpo.yaml", text)
    job = found.job
    told = (job["dtype"], job["gradient_checkpointing"], job["rollout"]["group_size"], job["reference"])
    assert (found.fits, told) == ("yes", ("bf16", "full", 4, "none")), found.text
    assert "gone.yaml is not here" in checked("own_grpo.yaml", text.replace("- base", "- gone")).text


def test_what_is_saved_with_every_argument_is_told_from_what_was_said() -> None:
    """ms-swift's args.json has those of tuners that do not run, and what freeze_vit names itself."""
    own = {"swift_version": "4.2.0", "model": "Qwen/Qwen3-VL-4B-Instruct", "tuner_type": "full", "max_length": 512}
    own |= {"freeze_vit": True, "freeze_aligner": True, "freeze_parameters": ["model.visual", "model.visual.merger"]}
    own |= {"use_galore": False, "galore_proj_bits": 4, "boft_block_size": 4, "adapter_length": 128, "max_memory": {}}
    own |= {"init_weights": True, "lora_ga_batch_size": 2, "adapters": []}
    found = checked("args.json", json.dumps(own), images=SQUARE)
    assert (found.fits, [each for each in found.unread if each["decides"]]) == ("yes", [])
    own |= {"tuner_type": "adapter", "freeze_parameters": ["model.layers.0"]}
    decides = {each["decides"] for each in checked("b.json", json.dumps(own), images=SQUARE).unread}
    assert {"adapters", "freezing"} <= decides


def test_a_program_beside_openrlhfs_own_is_asked_for_under_its_name() -> None:
    script = "deepspeed cli/noise/{}.py --pretrain Qwen/Qwen2.5-0.5B --max_len 512 --zero_stage 2 "
    script += "--micro_train_batch_size 1 --train_batch_size 8 --bf16"
    for name, like in (("language_modeling", "sft"), ("train_sft", "sft"), ("train_dpo_own", "dpo")):
        found = checked("a.sh", script.format(name))
        assert f"noise/{name} is counted as OpenRLHF's train_{like}" in found.text
        assert found.hint.startswith("add --without program")
    renamed = script.format("x").replace("cli/noise/x.py", "--num_gpus 8 --module src.cli.train_sft")
    assert checked("b.sh", renamed).job["trainer"] == "openrlhf"


def test_a_recipe_and_a_model_of_ones_own_are_asked_for_at_once() -> None:
    text = "model:\n  _component_: own.small\ntokenizer:\n  max_seq_len: 512\nbatch_size: 1\ndtype: bf16\n"
    text += "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\nenable_own_sharding: true\n"
    text += "optimizer:\n  _component_: torch.optim.AdamW\n"
    Path("own.yaml").write_text(text)
    found = checked("a.sh", "tune run own_recipe --config own.yaml")
    assert found.hint.startswith("add --model Qwen")
    assert "--without own_recipe,enable_own_sharding" in found.hint


def test_a_tower_that_rests_beside_fp32_weights_is_counted_as_resting() -> None:
    text = "model_name_or_path: Qwen/Qwen2-VL-2B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: full\n"
    text += "template: qwen2_vl\ncutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\n"
    found = checked("a.yaml", f"{text}freeze_vision_tower: true\n", images=SQUARE)
    assert found.job["freeze"] == ["vision_tower", "multi_modal_projector"]
    assert (found.fits, found.at_most) == ("yes", True)


def test_a_gptq_checkpoints_bits_are_asked_for() -> None:
    text = "base_model: meta-llama/Llama-2-7b-hf\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\nadapter: lora\n"
    text += "lora_r: 8\nlora_target_linear: true\ngptq: true\ngptq_groupsize: 128\n"
    assert checked("a.yaml", text).hint == "add --quantization gptq-4bit"
    assert checked("b.yaml", text, quantization="gptq-4bit").fits == "yes"


def test_a_file_without_a_command_is_of_the_method_whose_arguments_it_has() -> None:
    text = "model: Qwen/Qwen2.5-0.5B\ntrain_type: lora\nmax_length: 512\nmax_completion_length: 256\n"
    for more, method in (("num_generations: 8\nreward_funcs: [mine]", "grpo"), ("rpo_alpha: 0.1", "dpo"), ("", "sft")):
        found = checked("a.yaml", f"{text}{more}\n")
        assert (found.job["method"], "method" in " ".join(found.assumed)) == (method, method != "sft")
