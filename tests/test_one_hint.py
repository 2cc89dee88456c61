"""Proves that all that a file leaves open is asked for at once: what its one hint says, typed as it stands, is
answered; and that what lies beside a program is read before anybody is asked.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands import Run, runner_of

from memplan.frameworks.asking import SUCH, option_of
from memplan.frameworks.checks.checking import Checked, check_all, check_file


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner_of(capsys, "check")


def checked(text: str, name: str, **given: Any) -> Checked:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return check_file(name, {"gpu": "80GB", "num_gpus": 1, **given})


def typed(found: Checked, run: Run) -> dict[str, Any]:
    """What the hint's options, typed as they stand, come to."""
    words = shlex.split(found.hint.removeprefix("add ").partition(", with")[0])
    code, out, error = run(found.file, "--gpu", "80GB", "--num-gpus", "1", "--json", *words)
    answer: dict[str, Any] = json.loads(out)[0]
    assert answer["fits"] in ("yes", "tight", "no"), (code, answer["text"], error)
    return answer


CONFIG = """\
import argparse, json
from pathlib import Path
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--config", type=Path, required=True)
cfg = json.loads(parser.parse_args().config.read_text())
def tokenize(row, max_len):
    return (row["a"] + row["b"])[:max_len]
rows = [tokenize(row, cfg["max_len"]) for row in load()]
model = AutoModelForCausalLM.from_pretrained(cfg["model"], dtype="bfloat16")
arguments = TrainingArguments(per_device_train_batch_size=cfg["batch"], bf16=True)
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""


def test_all_that_is_missing_is_asked_for_at_once_and_the_hint_is_answered(run: Run) -> None:
    found = checked(CONFIG, "train.py")
    assert found.fits == "unclear"
    assert found.hint == "add --model Qwen/Qwen2.5-7B --batch-size 1 --sequence-length 2048, with your own values"
    job = typed(found, run)["job"]
    assert (job["model"], job["batch_size"], job["sequence_length"]) == ("Qwen/Qwen2.5-7B", 1, 2048)


def test_a_model_that_the_text_does_not_hold_is_asked_for_with_what_would_be_done_to_it(run: Run) -> None:
    text = CONFIG.replace('AutoModelForCausalLM.from_pretrained(cfg["model"], dtype="bfloat16")', "make_model(cfg)")
    found = checked(text, "train.py")
    assert "--lora-r 16" in found.hint
    assert "--precision bf16" in found.hint
    job = typed(found, run)["job"]
    assert (job["lora"]["r"], job["precision"], job["quantization"]) == (16, "bf16", "none")


def test_a_path_of_the_command_is_opened_and_what_a_list_of_data_calls_is_read() -> None:
    Path("a.json").write_text('{"model": "Qwen/Qwen2.5-0.5B", "batch": 4, "max_len": 777}')
    Path("train.py").write_text(CONFIG)
    (found,) = check_all("python train.py --config a.json", {"gpu": "80GB", "num_gpus": 1})
    assert found.fits == "yes", found.text
    assert (found.job["batch_size"], found.job["sequence_length"]) == (4, 777)


HYDRA = """\
import hydra
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    model = AutoModelForCausalLM.from_pretrained(cfg.model.name, dtype="bfloat16")
    args = SFTConfig(per_device_train_batch_size=cfg.batch, max_length=cfg.model.longest, bf16=True)
    SFTTrainer(model=model, args=args, train_dataset=rows()).train()
if __name__ == "__main__":
    main()
"""


def test_hydra_hands_a_program_its_config_under_the_commands_overrides() -> None:
    Path("conf/model").mkdir(parents=True)
    Path("conf/train.yaml").write_text("defaults:\n  - model: small\n  - _self_\nbatch: 4\n")
    Path("conf/model/small.yaml").write_text("name: Qwen/Qwen2.5-0.5B\nlongest: 512\n")
    Path("conf/model/large.yaml").write_text("name: Qwen/Qwen2.5-7B\nlongest: ${oc.env:LEN}\n")
    found = checked(HYDRA, "train.py")
    assert (found.fits, found.job["model"]) == ("yes", "Qwen/Qwen2.5-0.5B"), found.text
    assert (found.job["batch_size"], found.job["sequence_length"]) == (4, 512)
    (found,) = check_all("python train.py batch=2", {"gpu": "80GB", "num_gpus": 1})
    assert found.job["batch_size"] == 2
    Path("conf/train.yaml").write_text("defaults:\n  - model: large\n  - _self_\nbatch: 4\n")
    found = checked(HYDRA, "other.py")
    assert (found.fits, found.hint) == ("unclear", "add --sequence-length, such as --sequence-length 2048"), found.text


SCRIPT = "torchrun --nproc_per_node 1 train.py --bf16 True --model_name_or_path $1 --model_max_length $LONGEST \
--per_device_train_batch_size 2\n"


def test_a_scripts_variables_and_arguments_are_asked_for_together(run: Run) -> None:
    found = checked(SCRIPT, "run.sh")
    command = 'set it: memplan check "LONGEST=… bash run.sh …"'
    assert found.hint == f"{command}, or add --model Qwen/Qwen2.5-7B --sequence-length 2048", found.text
    (answer,) = check_all("LONGEST=512 bash run.sh Qwen/Qwen2.5-0.5B", {"gpu": "80GB"})
    assert (answer.fits, answer.job["sequence_length"]) == ("yes", 512)
    given = check_file("run.sh", {"gpu": "80GB", "model": "qwen2.5-0.5b", "sequence_length": 1024})
    assert (given.fits, given.job["sequence_length"]) == ("yes", 1024), given.text


def test_adapters_that_axolotl_loads_are_asked_for() -> None:
    text = "base_model: Qwen/Qwen2.5-7B\nadapter: lora\nlora_r: 8\nlora_model_dir: ./out\nsequence_len: 512\n"
    text += "micro_batch_size: 1\nbf16: true\nlora_target_linear: true\n"
    found = checked(text, "a.yaml")
    assert (found.fits, found.hint) == ("unclear", f"add --lora-r and --lora-targets, such as {SUCH['lora']}")
    assert checked(text, "a.yaml", lora={"r": 32, "targets": "all-linear"}).fits == "yes"


OWN = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False):
        {body}
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
Mine(model=model, args=TrainingArguments(per_device_train_batch_size=2), train_dataset=rows()).train()
"""


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ("return model(input_ids=inputs['input_ids'], labels=inputs['labels']).loss", "yes"),
        ("outputs = model(**inputs); print(outputs.loss.item()); return outputs['loss']", "yes"),
        ("outputs = model(**inputs); return self.weigh(outputs.logits, inputs['labels'])", "unclear"),
        ("return model(**inputs).loss + self.teacher(**inputs).loss", "unclear"),
        ("return model(**inputs).loss + model(**inputs).loss", "yes"),
        ("outputs = model(**inputs); return my_nn.functional(outputs[1])", "unclear"),
    ],
)
def test_a_loss_that_is_the_models_own_is_the_trainers(body: str, fits: str) -> None:
    assert checked(OWN.format(body=body), "train.py", sequence_length=512).fits == fits


def test_unsloth_has_no_trainer_but_its_own() -> None:
    text = "import unsloth\nmodel, tok = unsloth.FastLanguageModel.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    text += "unsloth.Trainer(model=model, args={'per_device_train_batch_size': 2}).train()\n"
    assert checked(text, "train.py", sequence_length=512).fits == "unclear"


def test_a_program_is_taken_as_the_script_starts_it_that_leaves_nothing_open(run: Run) -> None:
    Path("runs").mkdir()
    Path("a.json").write_text('{"model": "Qwen/Qwen2.5-0.5B", "batch": 4, "max_len": 777}')
    Path("runs/eval.sh").write_text("python train.py --config missing.json\n")
    Path("runs/full.sh").write_text("torchrun --nproc_per_node=2 train.py --config a.json\n")
    found = checked(CONFIG, "train.py")
    assert (found.fits, found.job["batch_size"], found.job["num_gpus"]) == ("yes", 4, 1), found.text
    assert any("model Qwen/Qwen2.5-0.5B" in each and "as runs/full.sh starts it" in each for each in found.assumed)
    given = check_file("train.py", {"gpu": "80GB", "model": "qwen2.5-1.5b", "batch_size": 1, "sequence_length": 64})
    assert (given.job["model"], given.job["sequence_length"]) == ("qwen2.5-1.5b", 64)
    Path("a.json").unlink()
    found = checked(CONFIG, "train.py")
    assert found.hint.startswith("memplan check runs/full.sh, which starts it, or add --model"), found.hint
    Path("a.json").write_text('{"model": "Qwen/Qwen2.5-0.5B", "batch": 4, "max_len": 777}')
    answer = json.loads(run("runs/full.sh", "--gpu", "80GB", "--json")[1])[0]
    assert (answer["fits"], answer["job"]["batch_size"], answer["job"]["num_gpus"]) == ("yes", 4, 2)


def test_the_command_of_a_page_is_named() -> None:
    Path("README.md").write_text("Run\n\n```bash\n$ python train.py --config a.json\n```\n")
    found = checked(CONFIG, "train.py")
    assert found.hint.startswith("memplan check 'python train.py --config a.json', as README.md has it"), found.hint


def test_a_script_that_another_one_starts_names_that() -> None:
    Path("all.sh").write_text("bash run.sh Qwen/Qwen2.5-0.5B 512\n")
    found = checked(SCRIPT.replace("$LONGEST", "$2"), "run.sh")
    assert (found.fits, found.job["sequence_length"]) == ("yes", 512), found.text
    assert any("as all.sh starts it" in each for each in found.assumed), found.assumed
    assert check_file("all.sh", {"gpu": "80GB"}).fits == "yes"
    Path("all.sh").write_text("bash run.sh $MODEL 512\n")
    found = checked(SCRIPT.replace("$LONGEST", "$2"), "run.sh")
    assert found.hint == "memplan check all.sh, which starts it, or add --model Qwen/Qwen2.5-7B --sequence-length 2048"


DOOR = "from train import main\nmain()\n"
OPTIONS = """\
while [[ $# -gt 0 ]]; do
  case "$1" in
    --model) model="$2"; shift 2;;
    --rows) rows="$2"; shift 2;;
    *) echo "no option: $1"; exit 1;;
  esac
done
torchrun --nproc_per_node 1 lib/train_fast.py --bf16 True --model_name_or_path ${model} --model_max_length 512 \\
  --per_device_train_batch_size ${rows:-1}
"""


def test_a_loop_over_arguments_takes_all_of_them() -> None:
    Path("run.sh").write_text(OPTIONS)
    Path("all.sh").write_text("bash run.sh --model Qwen/Qwen2.5-0.5B --rows 4\n")
    found = check_file("all.sh", {"gpu": "80GB"})
    assert (found.fits, found.job["model"], found.job["batch_size"]) == ("yes", "Qwen/Qwen2.5-0.5B", 4), found.text
    Path("all.sh").write_text("until ping -c 1 host; do bash run.sh --rows 8 --model Qwen/Qwen2.5-0.5B; done\n")
    found = check_file("all.sh", {"gpu": "80GB"})
    assert (found.job["model"], found.job["batch_size"]) == ("Qwen/Qwen2.5-0.5B", 8), found.text


def test_a_trainer_of_ones_own_behind_a_small_program_may_be_left_out() -> None:
    Path("lib").mkdir()
    Path("lib/train.py").write_text(
        "from lib.trainer import OwnTrainer\ndef main():\n    OwnTrainer(model=m).train()\n"
    )
    Path("lib/train_fast.py").write_text(DOOR)
    Path("run.sh").write_text(OPTIONS.replace("${model}", "Qwen/Qwen2.5-0.5B"))
    found = check_file("run.sh", {"gpu": "80GB"})
    assert (found.fits, found.job["model"]) == ("unclear", "Qwen/Qwen2.5-0.5B"), found.text
    assert found.hint == "add --without program, if its own settings are those of its command"


def test_a_script_that_is_submitted_is_gone_through_under_its_arguments_and_cards() -> None:
    Path("a.json").write_text('{"model": "Qwen/Qwen2.5-0.5B", "batch": 4, "max_len": 777}')
    Path("train.py").write_text(CONFIG)
    Path("job.slurm").write_text("#SBATCH --nodes=1\n#SBATCH --gres=gpu:8\nsrun torchrun --nproc_per_node "
                                 '$SLURM_GPUS_ON_NODE train.py "$@"\n')  # fmt: skip
    Path("all.sh").write_text("sbatch -p long --gres=gpu:2 job.slurm --config a.json\n")
    found = check_file("all.sh", {"gpu": "80GB"})
    assert (found.fits, found.job["batch_size"], found.job["num_gpus"]) == ("yes", 4, 2), found.text


MORE = """\
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
args = SFTConfig(output_dir="out", per_device_train_batch_size=4, **load())
SFTTrainer(model=AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B"), args=args, train_dataset=rows()).train()
"""


def test_arguments_that_nobody_knows_are_asked_for_by_what_they_may_say(run: Run) -> None:
    found = checked(MORE, "train.py")
    assert "--batch-size" not in found.hint
    for option in ("--gradient-checkpointing", "--optimizer", "--precision", "--sequence-length 2048"):
        assert option in found.hint
    assert typed(found, run)["job"]["batch_size"] == 4


def test_adapters_that_llamafactory_loads_are_asked_for() -> None:
    text = "stage: dpo\nmodel_name_or_path: Qwen/Qwen2.5-7B\nfinetuning_type: lora\nadapter_name_or_path: out/sft\n"
    text += "do_train: true\ncutoff_len: 512\nper_device_train_batch_size: 1\nbf16: true\ntemplate: qwen\ndataset: x\n"
    found = checked(text, "a.yaml")
    assert (found.fits, found.hint) == ("unclear", f"add --lora-r and --lora-targets, such as {SUCH['lora']}")
    Path("out/sft").mkdir(parents=True)
    Path("out/sft/adapter_config.json").write_text('{"peft_type": "LORA", "r": 32, "target_modules": ["q_proj"]}')
    read = checked(text, "a.yaml")
    assert (read.fits, read.job["lora"]["r"], list(read.job["lora"]["targets"])) == ("yes", 32, ["q_proj"])


def test_unsloth_loads_the_whole_model_where_four_bits_are_refused() -> None:
    text = "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
    text += "model, tok = FastLanguageModel.from_pretrained('unsloth/Qwen2.5-7B-bnb-4bit', max_seq_length=512{})\n"
    text += "model = FastLanguageModel.get_peft_model(model, r=16)\n"
    text += "SFTTrainer(model=model, args=SFTConfig(per_device_train_batch_size=2, max_length=512)).train()\n"
    whole = checked(text.format(", load_in_4bit=False"), "whole.py").job
    assert (whole["quantization"], whole["model"]) == ("none", "Qwen/Qwen2.5-7B")
    assert checked(text.format(""), "four.py").job["quantization"] == "nf4-double"


def test_a_smoothed_loss_is_no_small_thing() -> None:
    text = OWN.format(body="return model(**inputs).loss").replace("size=2", "size=2, label_smoothing_factor=0.1")
    found = checked(text, "train.py", sequence_length=512)
    assert (found.fits, found.job["own_loss"]["logits"], found.unread[0]["decides"]) == ("yes", 20, "loss")
    unsaid = text.replace("label_smoothing_factor=0.1", "label_smoothing_factor=settings()")
    assert checked(unsaid, "other.py", sequence_length=512).job["own_loss"]["logits"] == 20
    alone = checked(text.replace(".train()", ".evaluate()"), "evaluates.py")
    assert (alone.fits, alone.text) == ("skipped", "no training of its own: it evaluates alone")


@pytest.mark.parametrize(("accumulated", "bounded"), [(1, False), (4, True)])
def test_unsloth_raises_a_batch_to_a_whole_group(accumulated: int, bounded: bool) -> None:
    text = "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig, GRPOTrainer\n"
    text += "model, tok = FastLanguageModel.from_pretrained('Qwen/Qwen2.5-0.5B', max_seq_length=512)\n"
    text += "model = FastLanguageModel.get_peft_model(model, r=16)\n"
    text += "args = GRPOConfig(per_device_train_batch_size=1, num_generations=4, max_completion_length=128,\n"
    text += f"    max_prompt_length=128, gradient_accumulation_steps={accumulated})\n"
    text += "GRPOTrainer(model=model, args=args, reward_funcs=[]).train()\n"
    found = checked(text, f"train{accumulated}.py")
    assert (found.fits, found.job["batch_size"], found.job["rollout"]["group_size"]) == ("yes", 4, 4), found.text
    assert any("raises a batch of 1 to the 4" in each for each in found.assumed)
    bounds = [each["key"] for each in found.unread if each["decides"]]
    assert ("per_device_train_batch_size" in bounds) == bounded, found.unread


def test_a_file_of_another_machine_is_the_one_of_its_last_names() -> None:
    Path("configs").mkdir()
    Path("configs/sft.yaml").write_text(
        "stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\nfinetuning_type: full\ncutoff_len: 512\ntemplate: qwen\n"
        "dataset: x\ndo_train: true\nper_device_train_batch_size: 2\nbf16: true\nflash_attn: true\n"
    )
    found = checked("llamafactory-cli train /workspace/configs/sft.yaml\n", "run.sh")
    assert (found.fits, found.job["batch_size"], found.job["attention"]) == ("yes", 2, "flash"), found.text
    assert any("configs/sft.yaml is taken for it" in each for each in found.warnings)
    assert checked("llamafactory-cli train $HOME/mine/configs/sft.yaml\n", "run.sh").fits == "yes"
    assert checked("llamafactory-cli train /workspace/other/sft.yaml\n", "run.sh").fits == "error"
    Path("deep").mkdir()
    Path("configs").rename("deep/configs")
    assert checked("llamafactory-cli train /home/me/mine/deep/configs/sft.yaml\n", "run.sh").fits == "yes"


def test_a_key_that_looks_like_another_is_left_out_in_the_first_hint() -> None:
    text = "deepspeed --num_gpus 8 train.py --model_name_or_path ./mine --num_train_epochs 1 --model_max_length 512"
    found = checked(f"{text} --per_device_train_batch_size 1 --num_experts 4 --train_modules wg\n", "run.sh")
    assert "--without num_experts,train_modules" in found.hint


LLAMAFACTORY = "stage: sft\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\ncutoff_len: 512\ntemplate: qwen\nbf16: true\n"


def test_a_config_of_another_machine_is_the_one_beside_the_script() -> None:
    Path("conf").mkdir()
    Path("conf/sft.yaml").write_text(f"{LLAMAFACTORY}finetuning_type: full\nper_device_train_batch_size: 3\n")
    command = "llamafactory-cli train /home/me/recipes/sft.yaml\n"
    found = checked(command, "conf/run.sh")
    assert found.fits == "yes", found.text
    assert found.job["batch_size"] == 3, found.text
    assert any("conf/sft.yaml is taken for it" in each for each in found.warnings)
    assert checked(command, "run.sh").fits == "error"  # of a folder that the command does not name


def test_a_rank_that_is_a_variable_is_asked_for_alone(run: Run) -> None:
    options = " ".join(f"--{line.replace(': ', ' ')}" for line in LLAMAFACTORY.splitlines())
    found = checked(f"llamafactory-cli train {options} --lora_rank $1 --lora_target q_proj --lora_alpha 5\n", "run.sh")
    assert found.fits == "unclear", found.text
    assert found.hint.endswith('"bash run.sh …", or add --lora-r 16'), found.hint
    lora = checked(Path("run.sh").read_text(), "run.sh", lora={"r": 16}).job["lora"]
    assert (lora["r"], lora["alpha"], lora["targets"]) == (16, 5.0, ["q_proj"])


def test_a_batch_that_is_halved_until_it_fits_is_an_options() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-7B\nmax_length: 4096\nuse_peft: true\nauto_find_batch_size: true\n"
    text += "bf16: true\nper_device_train_batch_size: 64\nlora_target_modules: all-linear\n"
    found = checked(text, "a.yaml", method="sft")
    assert found.fits == "unclear", found.text
    assert "--batch-size 1" in found.hint, found.text
    assert checked(text, "a.yaml", method="sft", batch_size=1).fits == "yes"
    assert checked(text, "a.yaml", method="sft", batch_size=64).fits == "no"


def test_a_loop_in_a_module_that_a_program_imports_is_its_own() -> None:
    Path("mine/training").mkdir(parents=True)
    Path("mine/train_sft.py").write_text("def main():\n    from mine.training.loop import run\n    run()\n")
    Path("mine/training/loop.py").write_text("def run():\n    loss.backward()\n")
    Path("sft.yaml").write_text("model:\n  name_or_path: Qwen/Qwen2.5-7B\ntrain:\n  batch_size: 2\n")
    found = checked("python -m mine.train_sft --config sft.yaml\n", "run.sh")
    assert (found.fits, found.hint) == ("unclear", "write its job in memplan's keys"), found.text
    Path("mine/training/loop.py").write_text("def run():\n    SFTTrainer(model).train()\n    loss.backward()\n")
    assert "--without" in checked("python -m mine.train_sft --config sft.yaml\n", "run.sh").hint


def test_modules_that_are_trained_whole_and_not_modelled_can_be_left_out() -> None:
    text = f"{LLAMAFACTORY}finetuning_type: lora\nadditional_target: embed_tokens,fuse_head\n"
    found = checked(text, "a.yaml")
    assert found.fits == "error"
    assert "--set lora.modules_to_save=embed_tokens" in found.hint
    left = checked(text, "a.yaml", lora={"modules_to_save": ["embed_tokens"]})
    assert left.fits == "yes"
    assert left.job["lora"]["modules_to_save"] == ["embed_tokens"]


PREFERS = "stage: dpo\ndo_train: true\nfinetuning_type: full\ncutoff_len: 512\nbf16: true\ntemplate: {}\n{}"


@pytest.mark.parametrize(("template", "model"), [("qwen", "Qwen2.5-7B"), ("qwen2_vl", "Qwen2.5-VL-7B-Instruct")])
def test_a_file_without_a_model_is_asked_for_one_that_its_template_is_of(template: str, model: str) -> None:
    assert f"--model Qwen/{model}" in checked(PREFERS.format(template, ""), "dpo.yaml").hint.split(" --set")[0]


REFERENCES = [("Qwen/Qwen2.5-7B", True), ("Qwen/Qwen2.5-0.5B-Instruct", False), ("out/sft", False)]
REFERENCES += [("you/0.5B-sft", False), ("you/72B", True)]


@pytest.mark.parametrize(("reference", "other"), REFERENCES)
@pytest.mark.parametrize("framework", ["llamafactory", "swift"])
def test_a_reference_of_another_shape_is_unclear(framework: str, reference: str, other: bool) -> None:
    said = f"model_name_or_path: Qwen/Qwen2.5-0.5B\nref_model: {reference}\n"
    script = f"swift rlhf --rlhf_type dpo --model Qwen/Qwen2.5-0.5B --ref_model {reference} --tuner_type full"
    name, text = ("a.yaml", PREFERS.format("qwen", said)) if framework == "llamafactory" else ("a.sh", script)
    deciding = {each["key"] for each in checked(text, name).unread if each["decides"]}
    assert ("ref_model" in deciding) is other


SWIFT = "CUDA_VISIBLE_DEVICES=0 swift sft --model_type llama3-llava-next-8b --max_length 64 --train_type lora"
STARTED = """deepspeed --num_gpus 1 src/train.py --stage sft --finetuning_type full --template qwen --do_train true \\
    --cutoff_len 64 --per_device_train_batch_size 1 --model_name_or_path Qwen/Qwen2.5-0.5B"""


@pytest.mark.parametrize(("text", "hint"), [(SWIFT, "Qwen2.5-VL-7B-Instruct --set"), (STARTED, "--sharding zero2")])
def test_a_hint_has_a_value_that_the_file_may_have(text: str, hint: str) -> None:
    assert hint in checked(text, "a.sh").hint


def test_what_has_no_option_of_its_own_is_asked_for_as_it_is_typed() -> None:
    for key in (each for each in SUCH if each.startswith("rollout.")):
        assert option_of(key) == f"add {SUCH[key]}"


def test_a_name_that_runs_are_called_by_is_no_model() -> None:
    script = "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --bf16 --zero_stage 3 \\\n"
    script += "  --micro_train_batch_size 1 --prompt_max_len 64 --generate_max_len 64 --flash_attn --model_name "
    assert "model_name" not in checked(f"{script}Qwen2.5-0.5B\n", "a.sh").text
    assert "model_name (model)" in checked(f"{script}Qwen2.5-7B\n", "b.sh").text


def test_deepspeeds_settings_that_lie_nowhere_say_the_precision_too() -> None:
    """A loop whose model is loaded in half precision, and whose engine has settings that the program makes."""
    text = """import deepspeed, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', torch_dtype=torch.bfloat16)
tokenizer = AutoTokenizer.from_pretrained('Qwen/Qwen2.5-0.5B', model_max_length=512)
engine, optimizer, _, _ = deepspeed.initialize(model=model, config=made_elsewhere())
for batch in torch.utils.data.DataLoader(rows, batch_size=2):
    loss = engine(**batch).loss
    engine.backward(loss)
    engine.step()
"""
    Path("train.py").write_text(text)
    found = checked("deepspeed --num_gpus 8 train.py\n", "run.sh", num_gpus=8)
    assert "--precision bf16" in found.hint
    assert "--sharding zero2" in found.hint


ONLINE = """\
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser
arguments, model = TrlParser((GRPOConfig, ModelConfig)).parse_args_and_config()
policy = AutoModelForCausalLM.from_pretrained(model.model_name_or_path, torch_dtype="bfloat16")
GRPOTrainer(model=policy, reward_funcs=len, args=arguments, train_dataset=rows).train()
"""


def test_what_generates_is_asked_for_where_arguments_are_a_command_s(run: Run) -> None:
    found = checked(ONLINE, "train.py")
    assert SUCH["rollout.engine"] in found.hint
    rollout = typed(found, run)["job"]["rollout"]
    assert (rollout["engine"], rollout["placement"]) == ("vllm", "colocate")


def test_an_answer_of_which_nothing_is_known_is_no_longer_than_the_sequence(run: Run) -> None:
    text = """\
from trl import GRPOConfig, GRPOTrainer
arguments = GRPOConfig(max_prompt_length=len(rows), max_completion_length=2048 - len(rows), use_vllm=False)
GRPOTrainer(model="Qwen/Qwen2.5-0.5B", reward_funcs=len, args=arguments, train_dataset=rows).train()
"""
    found = checked(text, "train.py", sequence_length=2048)
    assert (found.fits, found.job["completion_length"]) == ("yes", 2048)


def test_a_model_s_linears_are_asked_for_beside_a_hint_s_model() -> None:
    text = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
adapters = LoraConfig(r=8, target_modules=["q_proj", "in_proj_a"])
SFTTrainer(model="./mine", args=SFTConfig(max_length=512), peft_config=adapters, train_dataset=rows).train()
"""
    assert "--lora-targets" in checked(text, "train.py").hint
    assert "--lora-targets" not in checked(text.replace("in_proj_a", "v_proj"), "train.py").hint


def test_a_model_type_of_ms_swift_s_that_sees_is_asked_for_by_one_that_sees() -> None:
    text = "swift sft --model $(find . -type d) --model_type qwen3_vl --max_length 512 --torch_dtype bfloat16"
    assert "--model Qwen/Qwen2.5-VL-7B-Instruct" in checked(text, "run.sh").hint


@pytest.mark.parametrize(
    ("place", "model"),
    [
        ('os.path.join(ROOT, "Qwen2.5-0.5B")', "Qwen/Qwen2.5-0.5B"),
        ('pathlib.Path(ROOT) / "Qwen/Qwen2.5-0.5B"', "Qwen/Qwen2.5-0.5B"),
        ('os.path.join(ROOT, "final")', None),  # a name of nobody's
    ],
)
def test_a_model_in_a_folder_that_nobody_knows_has_its_name(place: str, model: str | None) -> None:
    text = f"""\
import os, pathlib
from trl import SFTConfig, SFTTrainer
ROOT = os.environ["ROOT"]
SFTTrainer(model={place}, args=SFTConfig(max_length=512), train_dataset=rows).train()
"""
    found = checked(text, "train.py")
    assert (found.job or {}).get("model") == model
    assert (found.fits == "unclear") is (model is None)


def test_a_copy_of_the_hub_s_in_a_folder_that_nobody_knows_is_the_hub_s() -> None:
    text = """\
from pathlib import Path
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
def load(name):
    here = Path.home() / "models" / name
    return AutoModelForCausalLM.from_pretrained(here if (here / "config.json").exists() else name, dtype="bfloat16")
SFTTrainer(model=load("Qwen/Qwen2.5-0.5B"), args=SFTConfig(max_length=512), train_dataset=rows).train()
"""
    found = checked(text, "train.py")
    assert (found.fits, found.job["model"]) == ("yes", "Qwen/Qwen2.5-0.5B")
    assert any("the folder is not here" in each for each in found.assumed)
