"""Proves ``memplan check``: a line a file, exit codes, annotations, and that it is light."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Run, runner_of

from memplan.api import estimate as estimate_job
from memplan.cli.app import main
from memplan.cli.options import read_given
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.deciding import subject_of

ROOT = Path(__file__).resolve().parent.parent
TRL = """# trl sft
model_name_or_path: HuggingFaceTB/SmolLM2-135M
dataset_name: x
per_device_train_batch_size: {batch}
max_length: 1024
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(TRL.format(batch=1))
    (tmp_path / "large.yaml").write_text(TRL.format(batch=512) + "odd_key: 1\n")
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")
    (tmp_path / "wrong.yaml").write_text(TRL.format(batch="many"))

    return runner_of(capsys, "check")


@pytest.mark.slow
def test_a_line_a_file_and_the_exit_code(run: Run) -> None:
    code, out, told = run("small.yaml", "--gpu", "24GB")
    assert (code, told) == (0, "")
    assert out.startswith("small.yaml: fits 24GB: ")
    code, out, told = run("small.yaml", "large.yaml", "acc.yaml", "--gpu", "24GB")
    assert code == 1
    answers = [line for line in out.splitlines() if not line.startswith("  ")]
    assert [line.partition(": ")[2].partition(":")[0] for line in answers] == [
        "fits 24GB",
        "does not fit 24GB",
        "skipped",
    ]
    assert "large.yaml, line 6: odd_key is not counted" in told


@pytest.mark.slow
def test_short_by_is_the_same_figure_in_every_command(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("large.yaml", "--gpu", "24GB")
    short = out.partition("short by ")[2].split("\n")[0]
    assert short.endswith(" GiB")
    main(["estimate", "large.yaml", "--gpu", "24GB"])
    assert f"short by {short}" in capsys.readouterr().out
    row = json.loads(run("large.yaml", "--gpu", "24GB", "--json")[1])[0]
    report = estimate_job(read_given({"target": "large.yaml", "gpu": "24GB"}))
    assert report.verdict is not None
    assert (row["missing_bytes"], row["headroom_bytes"]) == (
        report.verdict.missing_bytes,
        report.verdict.headroom_bytes,
    )


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_checked(run: Run) -> None:
    code, out, _ = run("wrong.yaml", "small.yaml", "none.yaml", "--gpu", "24GB")
    assert code == 2
    lines = [line for line in out.splitlines() if not line.startswith("  assumed: ")]
    assert lines[0].startswith("wrong.yaml:4: error: per_device_train_batch_size: 'many' is no number")
    assert lines[1].startswith("small.yaml: fits")
    assert lines[2].startswith("none.yaml: error: does not exist")


def test_a_key_that_decides_memory_and_is_not_understood_makes_the_answer_unclear(run: Run) -> None:
    Path("odd.yaml").write_text(TRL.format(batch=1) + "tune_last_layers: false\nuse_q_lora: true\nvague: 1\n")
    code, out, told = run("odd.yaml", "small.yaml", "--gpu", "24GB")
    assert code == 2
    assert out.startswith(
        "odd.yaml:6: unclear: tune_last_layers (freezing), use_q_lora (adapters) are not counted; without"
    )
    assert " fits" not in out.splitlines()[0]
    assert "small.yaml: fits" in out
    assert "vague is not counted" in told
    row = json.loads(run("odd.yaml", "--gpu", "24GB", "--json")[1])[0]
    assert (row["fits"], row["framework"].split()[0], row["job"]["sequence_length"]) == ("unclear", "TRL", 1024)
    assert [(each["key"], each["decides"]) for each in row["unread"]] == [
        ("tune_last_layers", "freezing"),
        ("use_q_lora", "adapters"),
        ("vague", ""),
    ]


FOLDERS = ["~/models/Qwen2.5-7B", "/data/qwen/qwen2.5-7b/", "./../ckpt/Qwen2.5-7B", "a/b/Qwen2.5-7B"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_another_machine_is_the_model_of_its_name_said_aloud(run: Run, folder: str) -> None:
    Path("far.yaml").write_text(TRL.format(batch=1).replace("HuggingFaceTB/SmolLM2-135M", folder))
    _, out, _ = run("far.yaml", "--gpu", "h200-141gb")
    assert f"model Qwen/Qwen2.5-7B (far.yaml, line 2: model_name_or_path: {folder} is not here" in out


def test_a_folder_of_the_hubs_cache_is_its_repository(run: Run) -> None:
    folder = "/x/hub/models--Qwen--Qwen2.5-7B/snapshots/0a1b"
    Path("far.yaml").write_text(TRL.format(batch=1).replace("HuggingFaceTB/SmolLM2-135M", folder))
    (row,) = json.loads(run("far.yaml", "--gpu", "h200-141gb", "--json")[1])
    assert (row["job"]["model"], [each for each in row["assumed"] if "model" in each]) == ("Qwen/Qwen2.5-7B", [])


def test_a_folder_of_no_known_name_is_asked_for(run: Run) -> None:
    Path("far.yaml").write_text(TRL.format(batch=1).replace("HuggingFaceTB/SmolLM2-135M", "~/out/final"))
    code, out, _ = run("far.yaml", "--gpu", "24GB")
    assert (code, out.partition(";")[2][:14]) == (2, " add --model, ")
    assert run("far.yaml", "--gpu", "24GB", "--model", "smollm2-135m")[0] == 0


def test_what_the_file_does_not_say_is_told_with_whose_default_it_is(run: Run) -> None:
    Path("bare.yaml").write_text(
        "# trl sft\nmodel_name_or_path: HuggingFaceTB/SmolLM2-135M\npacking: false\ndataset_text_field: text\n"
    )
    answer, assumed = run("bare.yaml", "--gpu", "24GB")[1].splitlines()
    assert answer.startswith("bare.yaml: fits")
    assert assumed.startswith("  assumed: ")
    assert "num_gpus 1 (no file says" in assumed
    assert "sequence_length 1024 (TRL 1.16: max_length 1024)" in assumed
    assert "batch_size 8 (TRL 1.16: per_device_train_batch_size 8)" in assumed


@pytest.mark.parametrize(
    ("key", "value", "subject"),
    [
        ("use_lora", True, "adapters"),
        ("use_lora", False, ""),
        ("nolora", False, "adapters"),
        ("freeze_vision_tower", False, "freezing"),
        ("load_in_4bit", True, "quantisation"),
        ("model_max_length", 2048, "lengths"),
        ("actor.ppo_micro_batch_size", 4, "batch"),
        ("tp_size", 2, "parallelism"),
        ("gradient_checkpointing_impl", "x", "checkpointing"),
        ("lora_alpha", 16, ""),
        ("save_safetensors", True, ""),
        ("logging_steps", 10, ""),
        ("learning_rate", 1e-5, ""),
        ("moe_expert_count", 3, "model"),
        ("experiment", "x", ""),
        ("actor.aent.entropy_coeff", 0.0002, "loss"),
        ("entropy_coeff", 0, ""),
    ],
)
def test_what_a_name_decides(key: str, value: object, subject: str) -> None:
    assert subject_of(key, value) == subject


def test_files_beside_count_for_every_file(run: Run) -> None:
    code, out, _ = run("small.yaml", "--with", "acc.yaml", "--gpu", "24GB")
    assert code == 0
    assert "fits 2 × 24GB" in out


@pytest.mark.slow
def test_an_option_is_stronger_than_the_file(run: Run) -> None:
    code, out, _ = run("small.yaml", "--gpu", "24GB", "--model", "llama-3.1-8b")
    assert code == 1
    assert "does not fit 24GB" in out


@pytest.mark.slow
def test_the_margin_decides(run: Run) -> None:
    assert "fits 24GB" in run("small.yaml", "--gpu", "24GB", "--margin", "0.1")[1]
    tight = run("small.yaml", "--gpu", "24GB", "--margin", "0.9")[1]
    assert "fits tightly 24GB" in tight
    assert " free, up to " in tight.partition(" at the worst")[0]


@pytest.mark.slow
def test_annotations_of_github(run: Run) -> None:
    code, out, told = run("small.yaml", "large.yaml", "wrong.yaml", "--gpu", "24GB", "--format", "github")
    assert (code, told) == (2, "")
    lines = out.splitlines()
    assert lines[0].startswith("::notice file=small.yaml,line=4,title=memplan::fits 24GB")
    assert lines[1].startswith("::error file=large.yaml,line=4,title=memplan::does not fit 24GB")
    assert lines[2] == "::warning file=large.yaml,line=6,title=memplan::odd_key is not counted: not understood"
    assert lines[3].startswith("::warning file=large.yaml,line=1,title=memplan::the program that reads it is not known")
    assert lines[4].startswith("::error file=wrong.yaml,line=4,title=memplan::")


@pytest.mark.slow
def test_json(run: Run) -> None:
    code, out, _ = run("small.yaml", "large.yaml", "--gpu", "24GB", "--json")
    rows = json.loads(out)
    assert code == 1
    assert [(row["file"], row["fits"]) for row in rows] == [("small.yaml", "yes"), ("large.yaml", "no")]
    assert rows[0]["usable_bytes"] - rows[0]["device_bytes"] == rows[0]["headroom_bytes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "check which files?"),
        (("small.yaml",), "check needs a card to fit"),
        (("small.yaml", "--gpu", "24GB", "--format", "gihub"), "did you mean github"),
    ],
)
def test_what_is_asked_wrongly(run: Run, arguments: tuple[str, ...], said: str) -> None:
    code, out, told = run(*arguments)
    assert (code, out) == (2, "")
    assert said in told


@pytest.mark.slow
def test_it_is_light_enough_for_a_hook(tmp_path: Path) -> None:
    """A cold process loads nothing that takes long: no tables and colours, no Hub, no framework."""
    (tmp_path / "a.yaml").write_text(TRL.format(batch=1))
    arguments = ["check", str(tmp_path / "a.yaml"), "--gpu", "24GB"]
    program = (
        "import sys, typer; before = set(sys.modules)\n"  # early versions of typer import rich themselves
        f"from memplan.cli.app import main; assert main({arguments!r}) == 0\n"
        "sys.stderr.write(' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not set(done.stderr.split()) & {"rich", "huggingface_hub", "httpx", "requests", "numpy", "torch"}


@pytest.mark.slow
def test_an_unclear_job_fits_nowhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whoever asks, in whichever form: no yes, no tight, no remedy, no plan, and never exit code 0."""
    from memplan.cli.options import read_given

    path = str(tmp_path / "odd.yaml")
    (tmp_path / "odd.yaml").write_text(TRL.format(batch=1) + "use_q_lora: true\n")
    estimate, compare, plan, emit = (runner_of(capsys, name) for name in ("estimate", "compare", "plan", "emit"))
    code, out, _ = estimate(path, "--gpu", "24GB")
    assert (code, "Unclear: use_q_lora (adapters) is not counted" in out, "Fits" in out) == (2, True, False)
    code, out, _ = estimate(path)
    assert (code, "Unclear: " in out, "hold" in out) == (2, True, False)
    told = json.loads(estimate(path, "--gpu", "24GB", "--json")[1])
    assert (told["verdict"]["fits"], bool(told["unclear"]), told["remedies"]) == ("unclear", True, [])
    for options in ([], ["--vary", "batch_size=1,2"]):
        code, out, _ = compare(path, "--gpu", "24GB", "--json", *options)
        found = json.loads(out)
        assert (code, {row["fits"] for row in found["rows"]}) == (2, {"unclear"})
        assert found["recommendation"].startswith("Unclear: use_q_lora (adapters)")
        assert "astest" not in found["recommendation"]
    code, out, err = plan(path, "--gpu", "24GB", "--num-gpus", "8")
    assert (code, out, "unclear: use_q_lora (adapters) is not counted" in err) == (2, "", True)
    (tmp_path / "grid.yaml").write_text("vary: {batch_size: [1, 2]}\n")
    assert compare(path, "--gpu", "24GB", "--grid", str(tmp_path / "grid.yaml"))[0] == 2
    code, out, _ = emit("trl", path, "--gpu", "24GB")
    assert (code, "UNCLEAR" in out, "It fits" in out) == (2, True, False)
    report = estimate_job(read_given({"target": path, "gpu": "24GB"}))
    assert report.verdict is not None
    assert (report.verdict.fits, list(report.remedies)) == ("unclear", [])


def test_what_was_asked_for_and_varies_is_clear(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A key of the job that the file leaves open is answered by the grid."""
    text = "accelerate launch --num_processes $(python n.py) sft.py --max_length 1024 --model_name_or_path gpt2"
    (tmp_path / "run.sh").write_text(text + " --bf16 true --per_device_train_batch_size 1\n")
    compare = runner_of(capsys, "compare")
    code, out, _ = compare(str(tmp_path / "run.sh"), "--gpu", "24GB", "--vary", "num_gpus=1,2", "--json")
    assert (code, [row["fits"] for row in json.loads(out)["rows"]]) == (0, ["yes", "yes"])


@pytest.mark.slow
def test_a_model_of_images_says_what_of_them_is_not_counted(tmp_path: Path) -> None:
    """Of LLaMA-Factory the tower rests by default, said or not: in another dtype beside fp32 weights, which is counted
    from above, and alike under DeepSpeed. What is trained of it sees as many images as a sequence holds.
    """
    text = "stage: sft\ndo_train: true\nfinetuning_type: full\ncutoff_len: 512\nbf16: true\ntemplate: qwen2_vl\n"
    path = tmp_path / "train.yaml"
    vision, sharded = "Qwen/Qwen2.5-VL-3B-Instruct", "deepspeed: examples/deepspeed/ds_z3_config.json\n"
    for model, more, fits, words in (
        (vision, "", "yes", ("counted in fp32", "images are counted as many")),
        (vision, "freeze_vision_tower: true", "yes", ("counted in fp32",)),
        (vision, f"{sharded}freeze_vision_tower: false", "yes", ("images are counted as many",)),
        (vision, f"{sharded}freeze_vision_tower: true", "yes", ("images are counted as many",)),
        ("Qwen/Qwen2.5-0.5B-Instruct", "freeze_vision_tower: true", "yes", ()),
    ):
        path.write_text(f"model_name_or_path: {model}\n{text}{more}\n")
        found = check_file(str(path), {"gpu": "h200-141gb", "num_gpus": 1})
        assert ("at most" in found.text) == any("counted" in word for word in words)
        assert (found.fits, bool(found.warnings)) == (fits, bool(words)), (model, more, found.text, found.warnings)
        assert all(word in " ".join(found.warnings) for word in words), found.warnings


def test_a_program_with_a_loop_of_its_own_is_not_its_arguments(tmp_path: Path) -> None:
    """Arguments named like the Trainer's say nothing of a loop that the program writes itself."""
    command = "accelerate launch --num_processes 1 train.py --model_name_or_path gpt2 --bf16 True --max_length 512 "
    (tmp_path / "run.sh").write_text(f"{command}--per_device_train_batch_size 1 --num_train_epochs 1\n")
    for program, why in (
        ("loss.backward()\noptimizer.step()\n", "a training loop of the program's own"),
        ("Trainer(model=model).train()\n", "train.py is not followed to its trainer"),
        ("import subprocess\nsubprocess.run(words)\n", "train.py starts a command that trains"),
    ):
        (tmp_path / "train.py").write_text(f"model = load()\n{program}")
        found = check_file(str(tmp_path / "run.sh"), {"gpu": "h200-141gb"})
        assert (found.fits, why in found.text) == ("unclear", True)


@pytest.mark.slow
def test_a_program_of_the_project_is_followed_and_one_that_is_absent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program sets itself is stronger than TRL's defaults, wherever in the project its script lies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "run.sh"
    script.write_text("accelerate launch --num_processes 1 train_sft.py --model_name_or_path gpt2 --dataset_name x\n")
    absent = check_file(str(script), {"gpu": "h200-141gb"})
    assert any("train_sft.py is not here" in each for each in absent.warnings)
    (tmp_path / "train_sft.py").write_text(
        "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(max_length=256, per_device_train_batch_size=3)\n"
        "SFTTrainer(model='gpt2', args=args).train()\n"
    )
    found = check_file(str(script), {"gpu": "h200-141gb"})
    assert (found.job["batch_size"], found.job["sequence_length"], found.warnings) == (3, 256, ())


@pytest.mark.slow
def test_older_versions_have_their_own_defaults(tmp_path: Path) -> None:
    """TRL before 0.27 stands on transformers 4, whose FSDP is the first; LLaMA-Factory's ref_model is a model."""
    fsdp = TRL.format(batch=1) + "fsdp: full_shard auto_wrap\nbf16: true\n"
    reference = "model_name_or_path: Qwen/Qwen2.5-0.5B\nstage: dpo\npref_loss: sigmoid\nfinetuning_type: lora\n"
    reference += "cutoff_len: 512\nbf16: true\nlora_target: all\n"
    for text, options, key, value in (
        (fsdp, {"trainer_version": "0.12"}, "sharding", "fsdp"),
        (fsdp, {}, "sharding", "fsdp2"),
        ("model_name_or_path: gpt2\nnum_generations: 8\nmax_length: 512\n", {}, "reference", "none"),
        ("model_name_or_path: gpt2\nnum_generations: 8\nimage_root: x\n", {}, "reference", "resident"),
        (reference, {}, "reference", "adapter"),
        (f"{reference}ref_model: Qwen/Qwen2.5-0.5B\n", {}, "reference", "resident"),
    ):
        (tmp_path / "train.yaml").write_text(text)
        found = check_file(str(tmp_path / "train.yaml"), {"gpu": "h200-141gb", "num_gpus": 4, **options})
        assert found.job[key] == value, (text, found.text)


def test_a_projects_own_file_is_not_taken_for_a_job_with_a_slip(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model: {model_id: x}\nmethod: sft\ndata: {a: 1}\ntraining: {b: 2}\nlogging: {c: 3}\n")
    assert "no training config" in check_file(str(path), {"gpu": "24GB"}).text
    path.write_text("model: qwen2.5-0.5b\nmethod: sft\nsequence_lenght: 512\n")
    assert "unknown key 'sequence_lenght'" in check_file(str(path), {"gpu": "24GB"}).text
