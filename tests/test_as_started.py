"""Programs under what starts them: their configs, their modules, their project, and one process on several GPUs."""

from pathlib import Path

import pytest

from memplan import estimate
from memplan.errors import InvalidJob
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.checks.many import check_many
from memplan.frameworks.emit.writing import emit
from memplan.frameworks.files.sourced import forget, project_of
from memplan.frameworks.project.starters import texts_of
from memplan.frameworks.reading import read_target
from memplan.frameworks.registry import find_framework

CARD = {"gpu": "80GB", "num_gpus": 1}
PARSED = """\
import argparse
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import SFTTrainer
from lengths import SFTConfig, Model
parser = argparse.ArgumentParser()
parser.add_argument("--config")
args = parser.parse_args()
model_args, training_args = HfArgumentParser((Model, SFTConfig)).parse_yaml_file(args.config)
model = AutoModelForCausalLM.from_pretrained(model_args.name, dtype="bfloat16")
SFTTrainer(model=model, args=training_args).train()
"""
CLASSES = """\
from dataclasses import dataclass
import trl
@dataclass
class Model:
    name: str = None
@dataclass
class SFTConfig(trl.SFTConfig):
    mine: int = 1
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_parsers_yaml_file_lies_beside_the_script_and_the_module_in_src() -> None:
    for folder in ("runs", "scripts", "src"):
        Path(folder).mkdir()
    Path("src/lengths.py").write_text(CLASSES)
    Path("scripts/train.py").write_text(PARSED)
    Path("runs/a.yaml").write_text("name: Qwen/Qwen2.5-0.5B\nper_device_train_batch_size: 3\nmax_length: 300\n")
    Path("runs/a.sh").write_text(
        'cd "$(dirname "$0")"\ntorchrun --nproc_per_node 1 ../scripts/train.py --config a.yaml\n'
    )
    found = check_file("runs/a.sh", CARD)
    assert found.fits == "yes", found.text
    assert (found.job["batch_size"], found.job["sequence_length"]) == (3, 300)
    Path("runs/a.yaml").unlink()
    assert check_file("runs/a.sh", {**CARD, "model": "qwen2.5-0.5b"}).fits == "unclear"  # nothing of it is a default


def test_pydantics_models_are_made_of_a_config() -> None:
    Path("c.yaml").write_text("model: {name: Qwen/Qwen2.5-0.5B}\nrows: 3\n")
    Path("train.py").write_text(
        "import yaml\nfrom pydantic import BaseModel\nfrom transformers import AutoModelForCausalLM\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "class Model(BaseModel):\n    name: str\n    longest: int = 256\n"
        "class Config(BaseModel):\n    model: Model\n    rows: int = 1\n"
        "c = Config.model_validate(yaml.safe_load(open('c.yaml')))\n"
        "model = AutoModelForCausalLM.from_pretrained(c.model.name)\n"
        "args = SFTConfig(per_device_train_batch_size=c.rows, max_length=c.model.longest)\n"
        "SFTTrainer(model=model, args=args).train()\n"
    )
    found = check_file("train.py", CARD)
    assert (found.fits, found.job["batch_size"], found.job["sequence_length"]) == ("yes", 3, 256), found.text


RUN = "python train.py --model_name_or_path Qwen/Qwen2.5-0.5B --model_max_length 512 --bf16 True \
--per_device_train_batch_size 2"


@pytest.mark.parametrize(
    ("adapters", "gpus", "fits", "rows"),
    [
        (" --use_lora True --lora_r 8 --lora_target_modules q_proj", 4, "yes", 8),
        (" --use_lora True --lora_r 8 --lora_target_modules q_proj", 1, "yes", 2),
        ("", 4, "unclear", 2),
    ],
)
def test_adapters_under_data_parallel_are_counted_from_above(adapters: str, gpus: int, fits: str, rows: int) -> None:
    Path("run.sh").write_text(f"{RUN}{adapters}\n")
    found = check_file("run.sh", {"gpu": "80GB", "num_gpus": gpus})
    assert (found.fits, found.job["batch_size"]) == (fits, rows), found.text
    assert ("at most" in found.text) == (fits == "yes" and gpus > 1)


def test_a_project_is_told_by_what_lies_at_its_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clones/one/runs").mkdir(parents=True)
    (tmp_path / "clones/one/README.md").write_text("")
    (tmp_path / "clones/two/runs").mkdir(parents=True)
    inside, bare = (tmp_path / "clones" / name / "runs" for name in ("one", "two"))
    assert project_of(inside) == tmp_path / "clones/one"  # from a folder that merely holds it
    assert project_of(bare) == tmp_path
    monkeypatch.chdir("/")
    assert project_of(inside) == tmp_path / "clones/one"
    assert project_of(bare) == bare
    (tmp_path / "clones/two/.git").mkdir()
    assert project_of(bare) == bare  # as it was found
    forget()
    assert project_of(bare) == tmp_path / "clones/two"
    monkeypatch.chdir(tmp_path / "clones/one")
    assert project_of(inside) == tmp_path / "clones/one"


def test_a_divergence_from_a_reference_that_is_not_read_is_unclear() -> None:
    Path("run.sh").write_text(f"{RUN} --lm_kl_coeff 0.1\n")
    found = check_file("run.sh", CARD)
    assert (found.fits, [each["key"] for each in found.unread if each["decides"]]) == (
        "unclear",
        ["lm_kl_coeff"],
    ), found.text


BY_TRL = """from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
parser = TrlParser((ScriptArguments, DPOConfig, ModelConfig))
script, args, model_args = parser.parse_args_and_config()
model = AutoModelForCausalLM.from_pretrained(
    model_args.model_name_or_path, attn_implementation=model_args.attn_implementation, torch_dtype="bfloat16"
)
DPOTrainer(model=model, args=args, train_dataset=data, peft_config=get_peft_config(model_args)).train()
"""
OF_TRL = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 768\nper_device_train_batch_size: 4\nbf16: true\nenv: {A: b}\n"
)


def test_the_config_of_a_command_stands_under_its_options(tmp_path: Path) -> None:
    (tmp_path / "dpo.py").write_text(BY_TRL)
    (tmp_path / "dpo.yaml").write_text(OF_TRL)
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch dpo.py --config dpo.yaml --per_device_train_batch_size 2\n")
    found = check_file(str(script), {"gpu": "h100-80gb", "num_gpus": 2})
    job = {key: found.job.get(key) for key in ("model", "method", "sequence_length", "batch_size", "attention")}
    said = {"model": "Qwen/Qwen2.5-0.5B", "method": "dpo", "sequence_length": 768, "batch_size": 2, "attention": "sdpa"}
    assert (found.fits, job) == ("yes", said), found.text
    (tmp_path / "dpo.yaml").unlink()  # what it says nobody knows: not even TRL's defaults stand
    lost = check_file(str(script), {"gpu": "h100-80gb", "num_gpus": 2})
    assert (lost.fits, "model is not known" in lost.text) == ("unclear", True)
    assert all(each in lost.hint for each in ("--sequence-length", "--gradient-checkpointing", "--optimizer"))


OWN = """\
import argparse, yaml
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="a.yaml")
c = yaml.safe_load(open(parser.parse_args().config))
model = AutoModelForCausalLM.from_pretrained(c["base"], dtype="bfloat16")
SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=c["rows"], max_length=256)).train()
"""


def test_a_config_is_read_as_the_programs_that_take_it() -> None:
    Path("train.py").write_text(OWN)
    Path("a.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 3\n")
    Path("b.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 5\n")
    found = check_file("a.yaml", CARD)
    assert (found.fits, found.job["batch_size"]) == ("yes", 3), found.text
    assert any("as train.py reads it" in each for each in check_file("b.yaml", CARD).assumed)
    Path("README.md").write_text("```\npython train.py --config b.yaml\n```\n")
    Path("c.sh").write_text("python train.py --config sub/b.yaml\n")
    texts_of.cache_clear()
    assert check_file("b.yaml", CARD).job["batch_size"] == 5


def test_a_config_whose_name_speaks_of_a_preference_may_be_another_programs() -> None:
    Path("train.py").write_text(OWN)
    Path("a-dpo.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 3\n")
    found = check_file("a-dpo.yaml", CARD)
    assert found.fits == "unclear"
    assert "the file's name speaks of dpo" in found.text
    assert check_file("a-dpo.yaml", {**CARD, "method": "sft"}).fits == "yes"


def test_a_config_of_tuning_whose_name_speaks_of_a_preference_is_asked_about() -> None:
    Path("qwen_dpo.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_seq_length: 256\ndataset_name: d\n")
    found = check_file("qwen_dpo.yaml", CARD)
    assert (found.fits, found.hint) == ("unclear", "add --method dpo, if it is"), found.text
    assert check_file("qwen_dpo.yaml", {**CARD, "method": "sft"}).fits == "yes"


def test_a_config_of_which_a_program_reads_nothing_is_not_its() -> None:
    """Its own model would answer for it: another program's, one of verl's, a list of tools."""
    own = OWN.replace('c["base"]', 'c.get("base", "Qwen/Qwen2.5-0.5B")').replace('c["rows"]', 'c.get("rows", 1)')
    Path("train.py").write_text(own)
    Path("other.py").write_text(own.replace("base", "name").replace("rows", "size"))
    Path("b.yaml").write_text("name: Qwen/Qwen2.5-1.5B\nsize: 7\n")
    assert check_file("b.yaml", CARD).job["batch_size"] == 7
    Path("tools.yaml").write_text("tools:\n  - {class_name: a.b, config: {type: native}}\n")
    assert "no training config" in check_file("tools.yaml", CARD).text
    part = "actor: {ppo_mini_batch_size: 8, ppo_micro_batch_size_per_gpu: 1}, rollout: {n: 2}"
    Path("rl.yaml").write_text(f"# base Qwen2.5-0.5B\nactor_rollout_ref: {{model: {{path: out/mine}}, {part}}}\n")
    assert check_file("rl.yaml", CARD).text.startswith("unclear: actor_rollout_ref.model.path")


def test_how_gpus_share_the_work_is_the_launchers_to_say() -> None:
    Path("a.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nper_device_train_batch_size: 1\nuse_peft: false\n"
        "bf16: true\ndataset_name: x\n"
    )
    Path("z3.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 4\n")
    four = {"gpu": "80GB", "num_gpus": 4}
    alone = check_file("a.yaml", {**four, "method": "sft"})
    assert alone.job.get("sharding") in (None, "ddp"), alone.text
    Path("run.sh").write_text("accelerate launch --config_file z3.yaml trl/scripts/sft.py --config a.yaml\n")
    texts_of.cache_clear()
    found = check_file("a.yaml", four)
    assert (found.fits, found.job["sharding"]) == ("yes", "zero3"), found.text
    assert any("zero3" in each and "as run.sh starts it" in each for each in found.assumed)
    Path("a.yaml").write_text("per_device_train_batch_size: 3\nmax_length: 256\nuse_peft: false\nbf16: true\n")
    run = "python trl/scripts/sft.py --config a.yaml --model_name_or_path Qwen/Qwen2.5-0.5B\n"
    Path("run.sh").write_text(run)
    texts_of.cache_clear()
    found = check_file("a.yaml", {**CARD, "method": "sft"})  # it names no model: on one GPU too its command does
    assert (found.fits, found.job["model"], found.job["batch_size"]) == ("yes", "Qwen/Qwen2.5-0.5B", 3), found.text
    Path("run.sh").write_text("accelerate launch --config_file z3.yaml trl/scripts/sft.py --config a.yaml\n")
    Path("a.yaml").write_text("base_model: Qwen/Qwen2.5-0.5B\nlr: 0.1\nbf16: true\nmax_steps: 9\noutput_dir: x\n")
    Path("z3.yaml").write_text("zero_optimization: {stage: 3}\n")  # DeepSpeed's, which accelerate refuses
    texts_of.cache_clear()
    assert "run.sh, line 1: config_file: z3.yaml" in check_file("a.yaml", {**four, "sequence_length": 64}).text


def test_a_script_whose_program_is_not_read_is_no_launchers_own_file() -> None:
    Path("run.sh").write_text("hostname\naccelerate launch --num_processes 2 loop.py\n")
    found = check_file("run.sh", CARD)
    assert (found.fits, found.text) == ("unclear", "unclear: loop.py is not here"), found.text
    Path("loop.py").write_text("import torch\nloss.backward()\n")
    assert check_file("run.sh", CARD).hint == "memplan check loop.py, which it starts"


def test_a_path_of_another_machine_is_looked_for_by_its_end() -> None:
    Path("src").mkdir()
    Path("src/train.py").write_text(OWN)
    Path("a.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 3\n")
    Path("run.sh").write_text('ROOT="${ROOT:-/home/me/work}"\npython $ROOT/src/train.py --config a.yaml\n')
    assert check_file("run.sh", CARD).job["batch_size"] == 3


def test_a_variable_that_nobody_sets_is_no_answer_to_whether_one_did() -> None:
    Path("a.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 3\n")
    changed = OWN.replace("model =", "if os.environ.get('MINE'):\n    c['rows'] = 9\nmodel =")
    Path("train.py").write_text(f"import os\n{changed}")
    assert check_file("train.py", CARD).job["batch_size"] == 3
    Path("run.sh").write_text("export MINE=1\npython train.py\n")
    assert check_file("run.sh", CARD).job["batch_size"] == 9


PAGE = "```\nbash run.sh \\\n2 1024 \\\ntrue\n```\n"
PLACES = """\
# sh run.sh <size> <length>
# sh run.sh 2 {length} \\
#   true
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 256 --num-attention-heads 4 --bf16 \\
  --micro-batch-size $1 --global-batch-size 16 --seq-length $2 --vocab-size 1000 --max-position-embeddings 4096 \\
  --extra-vocab-size 0 --attention-dropout 0.0 --hidden-dropout 0.0 ${{lower_options}}
"""


@pytest.mark.parametrize("page", [False, True])
def test_a_scripts_arguments_are_those_of_its_comment_or_of_a_page(page: bool) -> None:
    Path("run.sh").write_text(PLACES.format(length="…" if page else 512))
    Path("README.md").write_text(PAGE if page else "")
    found = check_file("run.sh", {"gpu": "80GB", "num_gpus": 8})
    assert (found.fits, found.job["batch_size"]) == ("yes", 2), found.text
    assert found.job["sequence_length"] == (1024 if page else 512)


def test_a_config_alone_does_not_say_what_its_program_leaves_open() -> None:
    """``train.py``'s own loss stands in no config: that it is not read is said of the config too."""
    own = "class Mine(SFTTrainer):\n    def compute_loss(self, model, x):\n        return f(model(**x).logits)\n"
    Path("train.py").write_text(OWN.replace("parser =", f"{own}parser =").replace("SFTTrainer(model", "Mine(model"))
    Path("a.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 3\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\n"
                              "dataset_name: x\nper_device_train_batch_size: 3\nmax_length: 256\n")  # fmt: skip
    found = check_file("a.yaml", {**CARD, "method": "sft", "num_gpus": 2, "sharding": "ddp"})
    assert (found.fits, "compute_loss" in found.text) == ("unclear", True), found.text


def test_a_pages_command_finds_the_one_program_of_its_name() -> None:
    Path("archive").mkdir()
    Path("archive/tune.py").write_text(OWN.replace('default="a.yaml"', "required=True"))
    Path("b.yaml").write_text("base: Qwen/Qwen2.5-0.5B\nrows: 7\n")
    Path("README.md").write_text(
        "```\naccelerate launch \\\n  --num_processes 1 \\\n  tune.py \\\n  --config b.yaml\n```\n"
    )
    texts_of.cache_clear()
    assert check_file("b.yaml", CARD).job["batch_size"] == 7


def test_a_config_that_says_nothing_of_gpus_is_read_as_the_script_beside_it_starts_it() -> None:
    Path("train.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nloss_type: sigmoid\nmax_length: 512\nbf16: true\n"
        "dataset_name: a/b\nper_device_train_batch_size: 2\n"
    )
    Path("run.sh").write_text("trl dpo --config train.yaml --num_processes 4\n")
    started = check_file("train.yaml", {"gpu": "80GB"})
    assert started.job["num_gpus"] == 4, started.assumed
    assert check_file("train.yaml", {"gpu": "80GB", "num_gpus": 1}).job["num_gpus"] == 1


def test_a_default_that_trl_changed_is_told_where_nothing_pins_the_version() -> None:
    text = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=GRPOConfig("
    said = "beta=0.1, gradient_checkpointing=False, max_completion_length=256"
    told = {
        "": ["gradient_checkpointing full", "loss_head fused", "optimizer_impl fused", "reference none"],
        said: ["loss_head fused", "optimizer_impl fused"],
        f"{said}, optim='adamw_torch'": ["loss_head fused"],
    }
    for more, keys in told.items():
        Path("train.py").write_text(f"{text}{more})).train()\n")
        forget()
        found = check_file("train.py", {**CARD, "sequence_length": 512})
        assert sorted(each.partition(" (")[0] for each in found.assumed if "; until " in each) == keys
    Path("pinned").mkdir()
    Path("pinned/train.py").write_text(f"{text}max_completion_length=256)).train()\n")
    Path("pinned/requirements.txt").write_text("trl==0.24.0\ntorch==2.9.0\n")
    assert not [each for each in check_file("pinned/train.py", CARD).assumed if "; until " in each]
    for tag, version in (("", "newest"), ("@69ad852e", "newest"), ("@v0.15.2", "0.15.2")):
        Path("pinned/requirements.txt").write_text(f"trl @ git+https://github.com/huggingface/trl.git{tag}\n")
        forget()
        found = check_file("pinned/train.py", CARD)
        of_git = [each for each in found.assumed if "requirements.txt has trl of git; until --trainer-version" in each]
        assert bool(of_git) == (version == "newest")
        assert [each for each in found.assumed if "reference none" in each] or version == "0.15.2"  # beta was 0.04


@pytest.mark.parametrize(
    ("pin", "said", "way"),
    [
        ("2.6.0", "", "foreach"),
        ("2.8.0", "", "fused"),
        ("2.6.0", "optim: adamw_torch_fused", "fused"),
        ("2.9.1", "optim: adamw_torch", "foreach"),
    ],
)
def test_the_trainer_s_adamw_is_fused_from_torch_2_8_on(pin: str, said: str, way: str) -> None:
    keys = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset: d\ntemplate: qwen\ncutoff_len: 512\npure_bf16: true\n"
    Path("train.yaml").write_text(f"{keys}stage: sft\ndo_train: true\nfinetuning_type: full\n{said}\n")
    Path("requirements.txt").write_text(f"torch=={pin}\n")
    forget()
    assert check_file("train.yaml", {**CARD, "num_gpus": 1}).job["optimizer_impl"] == way


@pytest.mark.parametrize(("optimizer", "way"), [("", "foreach"), ('"optimizer": {"type": "AdamW"}, ', "fused")])
def test_deepspeed_s_optimizer_stands_in_place_of_the_trainer_s(optimizer: str, way: str) -> None:
    keys = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset: d\ntemplate: qwen\ncutoff_len: 512\nbf16: true\n"
    keys += "stage: sft\ndo_train: true\nfinetuning_type: full\noptim: adamw_torch\ndeepspeed: ds.json\n"
    Path("train.yaml").write_text(keys)
    Path("ds.json").write_text(f'{{{optimizer}"zero_optimization": {{"stage": 2}}, "bf16": {{"enabled": true}}}}')
    assert check_file("train.yaml", {**CARD, "num_gpus": 2}).job["optimizer_impl"] == way


def test_a_number_of_a_variable_that_a_script_leaves_empty_is_asked_for() -> None:
    Path("run.sh").write_text(
        'LENGTH="${LENGTH:-auto}"\nif [[ "$LENGTH" == auto ]]; then LENGTH=""; fi\n'
        'trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name a/b --max_length "$LENGTH"\n'
    )
    found = check_file("run.sh", CARD)
    assert (found.fits, "--sequence-length" in found.hint) == ("unclear", True), found.text


def test_a_call_reads_anew_what_its_script_starts() -> None:
    """A process that stays, such as ``memplan mcp``, is asked again after the user changed a file."""
    inner = "llamafactory-cli train --stage sft --do_train --model_name_or_path Qwen/Qwen2.5-0.5B --finetuning_type {}"
    Path("run.sh").write_text("bash inner.sh\n")
    kinds = []
    for kind in ("full", "lora"):
        Path("inner.sh").write_text(inner.format(kind))
        (found,) = check_many(["run.sh"], CARD)
        kinds.append("lora" in found.job)
    assert kinds == [False, True]


def test_a_config_with_variables_in_its_name_is_the_one_file_that_it_can_be() -> None:
    Path("c").mkdir()
    Path("run.sh").write_text('name="c/$1_${2}.yaml"\nllamafactory-cli train $name\n')
    Path("c/a_b.yaml").write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 256\n"
        "per_device_train_batch_size: 1\nbf16: true\ntemplate: qwen\n"
    )
    found = check_file("run.sh", CARD)
    assert found.fits == "yes", found.text
    assert any("is taken for c/a_b.yaml" in each for each in found.warnings)
    Path("c/a_c.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-1.5B\n")
    several = check_file("run.sh", CARD)
    assert (several.fits, several.hint) == ("error", "check the one that it is: memplan check c/a_b.yaml")


FACTORY = (
    "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset: d\ntemplate: qwen\nstage: sft\ndo_train: true\n"
    "finetuning_type: full\ncutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\n"
)


def test_a_config_is_the_one_that_its_page_s_command_names_and_no_launchers() -> None:
    Path("t").mkdir()
    Path("t/train.py").write_text("from llamafactory.train.tuner import run_exp\nrun_exp()\n")
    for name, length in (("a", 256), ("b", 384)):
        Path(f"t/{name}.yaml").write_text(FACTORY.replace("512", str(length)))
    Path("t/launch.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\n")
    command = "accelerate launch --config_file t/launch.yaml t/train.py t/"
    Path("README.md").write_text(f"```\n{command}a.yaml\n```\n```\n{command}b.yaml\n```\n")
    forget()
    for name, length in (("a", 256), ("b", 384)):
        found = check_file(f"t/{name}.yaml", {**CARD, "num_gpus": 8})
        assert found.fits == "yes", found.text
        assert (found.job["sequence_length"], found.job["sharding"]) == (length, "zero3")


def test_a_config_beside_one_that_a_page_starts_has_the_launch_file_of_its_own_name() -> None:
    for name, stage in (("a40", 3), ("a80", 2)):
        Path(f"launch/{name}").mkdir(parents=True)
        Path(f"launch/{name}/ds.yaml").write_text(
            f"distributed_type: DEEPSPEED\ndeepspeed_config: {{zero_stage: {stage}}}\n"
        )
    Path("sft").mkdir()
    for name in ("a40", "a80"):
        Path(f"sft/{name}.yaml").write_text(
            "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nper_device_train_batch_size: 1\nbf16: true\n"
        )
    command = "accelerate launch --config_file launch/a40/ds.yaml trl/scripts/sft.py --config sft/a40.yaml\n"
    Path("README.md").write_text(command)
    forget()
    found = {name: check_file(f"sft/{name}.yaml", {**CARD, "num_gpus": 8}) for name in ("a40", "a80")}
    assert [each.job["sharding"] for each in found.values()] == ["zero3", "zero2"]


@pytest.mark.parametrize(
    ("program", "more", "version"),
    [
        ("src/train.py", "", None),
        ("src/train_bash.py", "", "0.8"),
        ("src/train.py", "evaluation_strategy: steps", "0.8"),
    ],
)
def test_what_llamafactory_gave_up_tells_its_version_whose_adamw_was_not_fused(
    program: str, more: str, version: str | None
) -> None:
    Path("a.yaml").write_text(f"{FACTORY}{more}\n")
    Path("run.sh").write_text(f"python {program} a.yaml\n")
    found = check_file("run.sh", CARD)
    ways = (found.job.get("trainer_version"), found.job["optimizer_impl"])
    assert ways == (version, "foreach" if version else "fused"), found.text
    Path("a.yaml").write_text(
        f"{FACTORY}{more}\n".replace("cutoff_len: 512\n", "").replace("stage: sft", "stage: orpo")
    )
    found = check_file("run.sh", CARD)
    assert (found.job["method"], found.job["sequence_length"]) == ("orpo", 1024 if version else 2048), found.text


@pytest.mark.parametrize(("more", "asks"), [("", False), ("quantization_bit: 4\n", True)])
def test_adapters_beside_new_ones_are_merged_into_a_base_that_can_be(more: str, asks: bool) -> None:
    lora = FACTORY.replace("finetuning_type: full", "finetuning_type: lora\nlora_rank: 4")
    Path("a.yaml").write_text(f"{lora}adapter_name_or_path: saves/sft\ncreate_new_adapter: true\n{more}")
    found = check_file("a.yaml", CARD)
    assert (found.fits == "unclear", found.job["lora"]["r"]) == (asks, 4), found.text


def test_a_fork_s_loss_of_trl_s_is_dpo_s_and_checkpoints_on_the_host_are_counted_from_above() -> None:
    pairs = FACTORY.replace("stage: sft", "stage: dpo") + "use_unsloth_gc: true\n"
    Path("a.yaml").write_text(f"{pairs}pref_loss: exo_pair\n")
    Path("b.yaml").write_text(f"{pairs}pref_loss: mine\n")
    found = check_file("a.yaml", CARD)
    assert (found.fits, found.job["method"]) == ("yes", "dpo"), found.text
    assert "'mine' is no loss" in check_file("b.yaml", CARD).text
    Path("c.yaml").write_text(f"{pairs}dpo_loss: ipo\ndpo_ftx: 1.0\n")
    named = check_file("c.yaml", CARD)
    assert (named.job["method"], [each for each in named.warnings if "dpo_" in each]) == ("ipo", [])
    Path("d.yaml").write_text(f"{pairs}base_model: Qwen/Qwen2.5-1.5B\n")
    assert "base_model" in check_file("d.yaml", CARD).text


def test_what_is_counted_from_above_and_does_not_fit_is_answered_as_if_it_were_not_there() -> None:
    Path("a.yaml").write_text(f"{FACTORY}use_badam: true\n")
    small = {**CARD, "gpu": "4090", "sequence_length": 32768}
    found = check_file("a.yaml", small)
    assert (found.fits, found.hint) == (
        "unclear",
        "add --without use_badam, to be answered as if it were not there",
    ), found.text
    assert check_file("a.yaml", {**small, "without": ["use_badam"]}).fits == "no"


def test_checkpoints_that_wait_on_the_host_are_counted_there() -> None:
    Path("a.yaml").write_text(FACTORY)
    Path("b.yaml").write_text(f"{FACTORY}use_unsloth_gc: true\nuse_reentrant_gc: false\n")
    long = {**CARD, "sequence_length": 8192}
    kept, sent = (check_file(each, long) for each in ("a.yaml", "b.yaml"))
    assert (sent.fits, sent.job["offload"], sent.job["gradient_checkpointing_reentrant"]) == (
        "yes",
        ["checkpoints"],
        True,
    )
    assert "use_unsloth_gc: true" in str(emit(read_target("b.yaml", long), find_framework("llamafactory")))
    assert kept.device_bytes - sent.device_bytes > 0
    wrong = {"trainer": "trl", "offload": ["checkpoints"], "model": "qwen2.5-0.5b", "gradient_checkpointing": "full"}
    with pytest.raises(InvalidJob, match="offload: checkpoints by TRL is not modelled"):
        estimate(wrong)


def test_inputs_of_all_layers_are_what_the_card_no_longer_holds() -> None:
    job = {"model": "qwen2.5-7b", "trainer": "llamafactory", "batch_size": 2, "sequence_length": 8192, "num_gpus": 8}
    job |= {"method": "sft", "gradient_checkpointing": "full", "precision": "bf16", "zero_stage": 3}
    kept, sent = (estimate({**job, "offload": each}).per_gpu.allocated_bytes for each in ([], ["checkpoints"]))
    assert kept - sent == 28 * 2 * 8192 * 3584 * 2


def test_a_text_is_no_file_s_name() -> None:
    Path("a.yaml").write_text(FACTORY)
    Path("README.md").write_text(f"```\npython train.py {'x' * 300}.yaml a.yaml\n```\n")
    forget()
    assert check_file("a.yaml", CARD).fits == "yes"


@pytest.mark.parametrize(
    ("config", "program", "says"),
    [
        (
            "a.yaml",
            "from gone import Arguments, Parser\nfrom trl import DPOTrainer\n\n\nclass Mine(DPOTrainer):\n"
            "    def concatenated_forward(self, model, batch):\n        return model(batch).logits.softmax(-1)\n\n\n"
            "args = Parser(Arguments).parse()\nMine(model=args.model, args=args).train()\n",
            "Mine has a concatenated_forward of its own, which is not read",
        ),
        (
            "dpo.yaml",
            "from gone import Parser\nargs = Parser().parse()\nfor batch in args.data:\n"
            "    args.model(**batch).loss.backward()\n",
            "a training loop of the program's own, which is not read",
        ),
    ],
)
def test_what_a_program_does_of_its_own_is_said_where_its_config_alone_is_read(
    config: str, program: str, says: str
) -> None:
    Path("run_mine.py").write_text(program)
    Path(config).write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nper_device_train_batch_size: 1\nbf16: true\n"
        "beta: 0.1\nmax_prompt_length: 128\n"
    )
    Path("run.sh").write_text(f"accelerate launch --num_processes 4 run_mine.py {config}\n")
    forget()
    for name in ("run.sh", config):
        found = check_file(name, {**CARD, "num_gpus": 4})
        assert (found.fits, found.job["method"]) == ("unclear", "dpo"), found.text
        assert says in found.text


def test_a_command_that_names_a_config_is_taken_before_one_that_names_another_of_its_folder() -> None:
    Path("sft").mkdir()
    for name in ("full", "qlora"):
        keys = "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nper_device_train_batch_size: 1\n"
        Path(f"sft/{name}.yaml").write_text(keys)
    Path("zero3.yaml").write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 8\n")
    Path("run_sft.py").write_text(
        "from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser\n"
        "args, model = TrlParser((SFTConfig, ModelConfig)).parse_args_and_config()\n"
        "SFTTrainer(model=model.model_name_or_path, args=args, train_dataset=rows).train()\n"
    )
    started = "accelerate launch {} run_sft.py --config sft/{}.yaml\n"
    zero3 = started.format("--config_file zero3.yaml", "full")
    page = zero3 + started.format("--num_processes 8", "qlora")
    Path("README.md").write_text(f"```shell\n{page}```\n")
    forget()
    found = {name: check_file(f"sft/{name}.yaml", {**CARD, "num_gpus": 8}) for name in ("full", "qlora")}
    assert [found[name].job["sharding"] for name in found] == ["zero3", "ddp"], [each.text for each in found.values()]


def test_a_config_with_keys_of_a_program_that_is_not_found_says_so() -> None:
    keys = "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 256\nper_device_train_batch_size: 1\nbeta: 0.1\n"
    for more, said in (("gamma: 1.0\nepochs: 2\n", True), ("", False)):
        Path("dpo.yaml").write_text(keys + more)
        found = check_file("dpo.yaml", CARD)
        assert found.fits == "yes"
        assert any("without settings of its own" in each for each in found.warnings) is said


@pytest.mark.parametrize(
    ("pins", "said"), [("", True), ("transformers==5.1.0\n", False), ("transformers==4.50\n", False)]
)
def test_a_dtype_that_nobody_says_is_told_where_the_version_of_transformers_is_not_known(pins: str, said: bool) -> None:
    Path("requirements.txt").write_text(pins)
    Path("train.py").write_text(
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
        "Trainer(model=model, args=TrainingArguments(per_device_train_batch_size=1), train_dataset=rows).train()\n"
    )
    forget()
    found = check_file("train.py", {**CARD, "sequence_length": 256})
    assert any("no dtype" in each for each in found.warnings) is said, found.warnings
    assert found.job["dtype"] == ("fp32" if "4.50" in pins else "bf16")


def test_options_that_a_script_gives_to_a_click_command_are_its_parameters() -> None:
    Path("train.py").write_text(
        "import click\nfrom transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        '@click.command()\n@click.option("--base-model")\n@click.option("--micro", "rows", type=int, default=1)\n'
        '@click.option("--cutoff_len", "cutoff_len", type=int, default=512)\n'
        "def main(base_model, rows, cutoff_len):\n"
        '    model = AutoModelForCausalLM.from_pretrained(base_model, dtype="bfloat16")\n'
        "    tok = lambda x: tokenizer(x, truncation=True, max_length=cutoff_len)\n"
        "    args = TrainingArguments(output_dir='o', per_device_train_batch_size=rows, bf16=True)\n"
        "    Trainer(model=model, args=args).train()\nmain()\n"
    )
    Path("a.sh").write_text("torchrun --nproc_per_node 1 train.py --base-model Qwen/Qwen2.5-0.5B --micro 4\n")
    job = check_file("a.sh", CARD).job
    assert (job["model"], job["batch_size"], job["sequence_length"]) == ("Qwen/Qwen2.5-0.5B", 4, 512)
