"""Proves that a wrong file gives one clear error with file and line, quickly, and that nothing else is opened."""

import json
from pathlib import Path

import pytest
from commands import Run, runner_of
from drawing import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import memplan
from memplan.errors import MemplanError
from memplan.frameworks.checks.checking import check_file
from memplan.frameworks.files.documents import document_of, open_document
from memplan.frameworks.reading import read_target
from memplan.presets import presets_dir

TRL = "model_name_or_path: smollm2-135m\nuse_peft: false\npacking: false\n"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)
MERGES = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)
DEEP = "d0: &d0 [x]\n" + "".join(f"d{n}: &d{n} [*d{n - 1}]\n" for n in range(1, 25))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)

    return runner_of(capsys)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param("a.yaml", TRL + "max_length: *x\n", "line 4: not YAML: found undefined alias 'x'", id="alias"),
        pytest.param("a.yaml", TRL + LAUGHS, "line 8: aliases stand for more than", id="aliases that explode"),
        pytest.param("a.yaml", TRL + MERGES, "aliases stand for more than", id="merges that explode"),
        pytest.param("a.yaml", TRL + "x: &x {y: *x}\n", "line 4: an alias within what it names", id="alias to itself"),
        pytest.param("a.yaml", TRL + "x: &x {<<: *x}\n", "line 4: an alias within what it names", id="merge of itself"),
        pytest.param("a.yaml", TRL + "<<: 3\n", "line 4: << merges no mapping", id="merge of a number"),
        pytest.param("a.yaml", TRL + DEEP, "aliases nest deeper than", id="aliases that nest"),
        pytest.param("a.yaml", TRL + "x: &x {max_length: ab}\n<<: *x\n", "line 4: max_length: 'ab' is no", id="merged"),
        pytest.param("a.yaml", TRL + "x: !!python/object:os.system a\n", "line 4", id="language object"),
        pytest.param(
            "a.yaml", TRL + "max_length: ${LENGTH}\n", "sequence_length is not known: max_length: '${LE", id="env"
        ),
        pytest.param("a.yaml", TRL + "max_length: '{{ length }}'\n", "sequence_length is not known", id="jinja"),
        pytest.param("a.yaml", TRL + "max_length: ${oc.env:X}\n", "sequence_length is not known", id="omegaconf"),
        pytest.param("a.yaml", TRL + "max_length: {{ length }}\n", "line 4", id="bare jinja"),
        pytest.param("a.yaml", TRL + "max_length: long\n", "line 4: max_length: 'long' is no number", id="word"),
        pytest.param("a.yaml", TRL + "max_length: 1.5\n", "'1.5' is no whole number", id="fraction"),
        pytest.param("a.yaml", TRL + "max_length: [1]\n", "'[1]' is no number", id="list"),
        pytest.param("a.yaml", TRL + "max_length: .nan\n", "is no whole number", id="nan"),
        pytest.param("a.yaml", TRL + "gradient_checkpointing: maybe\n", "neither true nor false", id="maybe"),
        pytest.param("a.yaml", TRL + "max_length: -1\n", "sequence_length: '-1' is less than 1", id="negative"),
        pytest.param("a.yaml", TRL + "distributed_type: FSDP\n", "line 2: use_peft is TRL's", id="two frameworks"),
        pytest.param("a.yaml", TRL + "batch_size: 1\n", "line 2: use_peft is TRL's", id="a job's key and TRL's"),
        pytest.param("a.yaml", TRL + "\tx: 1\n", "line 4: not YAML", id="tab"),
        pytest.param("a.yaml", "use_peft: true\nmodel_name_or_path: smollm2-135m\n", "add --method", id="no method"),
        pytest.param("a.yaml", "x: " + "[" * 60 + "]" * 60, "nested deeper than", id="deep yaml"),
        pytest.param(
            "a.json", '{"zero_optimization": ' + "[" * 5000 + "]" * 5000 + "}", "nested deeper", id="deep json"
        ),
        pytest.param(
            "a.json",
            '{"zero_optimization": {},\n}',
            "line 1: not JSON: a comma with nothing after it",
            id="trailing comma",
        ),
        pytest.param("a.json", '{"zero_optimization":\n[1,\n ]}', "line 2: not JSON: a comma", id="in a list"),
        pytest.param("a.json", '{"zero_optimization": {}\n "bf16": 1}', "line 2: not JSON: Expecting", id="no comma"),
        pytest.param("a.json", '{"zero_optimization": {}', "line 1: not JSON: Expecting", id="not closed"),
        pytest.param("a.json", '{"zero_optimization": {"stage": 4}}', "line 1: zero_optimization.stage: 4", id="stage"),
        pytest.param("a.toml", "[x]\na = 1\na = 2\n", "line 3: not TOML", id="toml"),
        pytest.param("a.sh", "trl dpo --model_name_or_path 'x\n", "line 1: no closing quotation", id="quote"),
        pytest.param(
            "a.sh",
            "trl dpo --use_peft\ntrl sft --use_peft\n",
            "2 trainings\nhint: name one of them: a.sh:1, a",
            id="two",
        ),
        pytest.param(
            "a.sh",
            "trl dpo --model_name_or_path $1\n",
            "line 1: model is not known: model_name_or_path: '$1'",
            id="parameter",
        ),
        pytest.param("a.sh", "python examples/scripts/xpo.py --use_peft\n", "xpo is not modelled", id="not modelled"),
        pytest.param("a.yaml", "a: " + "x" * 300_000, "larger than 256 KiB", id="huge"),
        pytest.param("a.yaml", "a: \0", "a binary file, not text", id="binary"),
        pytest.param("a.yaml", "", "is empty", id="empty"),
    ],
)
def test_one_clear_error(run: Run, tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    code, out, told = run("estimate", name, "--gpu", "24GB")
    assert code in (2, 3)
    assert out == ""
    assert said in told
    assert told.startswith(f"error: {name}") or "error: " in told
    assert "Traceback" not in told


ANCHORED = """x-lengths: &lengths
  max_length: &long 1024
  per_device_train_batch_size: 2
_adapter: &adapter {use_peft: true, lora_r: 16, lora_target_modules: all-linear}
<<: [*adapter, *lengths]
model_name_or_path: smollm2-135m
lora_r: 8
packing: false
eval_strategy: "no"
dataset_num_proc: *long
"""


def test_anchors_aliases_and_merges_are_read(tmp_path: Path) -> None:
    """Own keys are stronger than merged ones, of a list of merges the first; keys that only hold anchors are none."""
    (tmp_path / "a.yaml").write_text(ANCHORED)
    found = read_target(str(tmp_path / "a.yaml"), {"method": "sft"})
    job = found.job
    assert (job.sequence_length, job.batch_size, job.lora and job.lora.r) == (1024, 2, 8)
    assert found.origins["sequence_length"].endswith("a.yaml, line 2: max_length")
    assert found.origins["lora"].endswith("a.yaml, line 7: lora_r") or "line 4: use_peft" in found.origins["lora"]
    assert not found.warnings


def test_a_job_of_memplan_s_has_anchors_too(tmp_path: Path) -> None:
    text = "x-base: &base {model: smollm2-135m, batch_size: 3}\n<<: *base\nmethod: sft\nbatch_size: 2\n"
    (tmp_path / "job.yaml").write_text(text)
    found = read_target(str(tmp_path / "job.yaml"), {})
    assert (found.job.batch_size, found.job.model) == (2, "smollm2-135m")


def test_a_link_out_of_the_folder_is_not_followed(run: Run, tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    (inside / "ds.json").symlink_to(outside / "ds.json")
    (inside / "a.yaml").write_text(TRL + "deepspeed: ds.json\n")
    import os

    os.chdir(inside)
    code, _, told = run("estimate", "a.yaml")
    assert code == 2
    assert "is outside of" in told


def test_nothing_is_opened_but_what_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins
    import pathlib
    import socket

    for folder in (tmp_path / "first", tmp_path):  # what is loaded and installed is looked up with the first
        folder.mkdir(exist_ok=True)
        (folder / "a.yaml").write_text(
            TRL + "dataset_name: /etc/hosts\noutput_dir: /root\nchat_template_path: /etc/fstab\n"
        )
    read_target(str(tmp_path / "first" / "a.yaml"), {})
    opened: list[str] = []
    real, real_path = builtins.open, pathlib.Path.open

    def noted(file: object, *more: object, **keys: object) -> object:
        opened.append(str(file))
        return real(file, *more, **keys)  # type: ignore[call-overload]

    def noted_path(self: pathlib.Path, *more: object, **keys: object) -> object:
        opened.append(str(self))
        return real_path(self, *more, **keys)  # type: ignore[call-overload]

    monkeypatch.setattr(builtins, "open", noted)
    monkeypatch.setattr(pathlib.Path, "open", noted_path)
    monkeypatch.setattr(socket, "socket", lambda *a, **k: pytest.fail("the network was used"))
    read_target(str(tmp_path / "a.yaml"), {})
    own = (str(Path(memplan.__file__).parent), str(presets_dir()))  # modules, and their tables
    others = [name for name in opened if not name.startswith(own) and not name.endswith((".py", ".pyc"))]
    assert others == [str(tmp_path / "a.yaml")]


@pytest.mark.parametrize(
    "arguments",
    [
        ("a.yaml", "--with", "no.yaml"),
        ("no.yaml",),
        ("a.yaml", "--framework", "xx"),
        ("qwen3-8b", "--framework", "trl"),
    ],
)
def test_what_is_named_wrongly(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "a.yaml").write_text(TRL)
    code, out, told = run("estimate", *arguments)
    assert code in (2, 3)
    assert (out, told.count("error: ")) == ("", 1)


def test_two_trainings_are_not_one_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TRL)
    (tmp_path / "b.yaml").write_text("output_dir: x\nper_device_train_batch_size: 1\n")
    code, _, told = run("estimate", "a.yaml", "--with", "b.yaml")
    assert code == 2
    assert "two trainings: a.yaml is a file of TRL, b.yaml of transformers" in told


@examples(150, suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=300) | st.lists(st.sampled_from(
    ["use_peft", ":", " ", "\n", "true", "{", "}", "[", "]", "- ", "max_length", "1e9", "'", '"', "#", "&a", "*a", "|",
     "trl", "--", "\\", "$", "=", "deepspeed", "%", "!", ">", ",", "zero_optimization", "stage", "NO", "~"]
), max_size=40).map("".join), form=st.sampled_from(["yaml", "json", "toml", "shell"]))  # fmt: skip
def test_any_text_is_read_or_refused(text: str, form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nothing but memplan's own errors, whatever a file holds."""
    try:
        document_of(text, "file", form)
        path = tmp_path_factory.mktemp("any") / f"a.{ {'shell': 'sh'}.get(form, form) }"
        path.write_text(text, encoding="utf-8", errors="replace")
        open_document(str(path))
        read_target(str(path), {"method": "sft"})
    except MemplanError:
        return


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("ds.json", "there is no file 'ds.json' here", id="missing"),
        pytest.param("../../etc/passwd", "is outside of", id="outside"),
        pytest.param("/etc/passwd", "is outside of", id="absolute"),
        pytest.param("https://x.org/ds.json", "is not followed", id="network"),
    ],
)
def test_a_config_that_is_not_here_is_asked_for(run: Run, tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.yaml").write_text(f"{TRL}deepspeed: {name}\n", encoding="utf-8")
    code, out, _ = run("check", "a.yaml", "--gpu", "24GB", "--num-gpus", "8")
    assert code == 2
    assert "unclear: sharding is not known" in out
    assert said in out
    assert "--sharding zero2" in out
    assert run("check", "a.yaml", "--gpu", "24GB", "--num-gpus", "8", "--sharding", "zero3")[0] == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("finetuning_type: lora\nstage: sft\nlora_rank: 0\n", "'0' is less than 1"),
        ("adapter: lora\nsequence_len: 512\nbf16: many\n", "'many' is neither true nor false"),
        ("adapter: lora\nsequence_len: 512\nlora_r: 8\ndp_shard_size: 0\n", "'0' is too small"),
        ("stage: sft\nfinetuning_type: full\nuse_galore: true\ngalore_rank: 0\n", "'0' is too small"),
    ],
)
def test_what_no_trainer_takes_is_no_default(text: str, why: str, tmp_path: Path) -> None:
    """Both had been counted without a word: as the rank's default, and as training in fp32."""
    name = "base_model" if "adapter" in text else "model_name_or_path"
    (tmp_path / "train.yaml").write_text(f"{name}: Qwen/Qwen2.5-0.5B\n{text}")
    found = check_file(str(tmp_path / "train.yaml"), {"gpu": "80GB"})
    assert found.fits == "error"
    assert why in found.text


@pytest.mark.parametrize("program", ["tools/run_text_generation_server.py", "generate_samples_gpt.py"])
def test_a_program_that_serves_is_no_training(program: str, tmp_path: Path) -> None:
    """Two of Megatron's arguments were counted as pretraining."""
    words = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --micro-batch-size 1 --seq-length 2048 --bf16"
    text = f"torchrun --nproc_per_node 8 {{}} {words} --max-position-embeddings 2048 --vocab-size 50304\n"
    found = []
    for each in (program, "pretrain_gpt.py"):
        (tmp_path / "run.sh").write_text(text.format(each))
        found.append(check_file(str(tmp_path / "run.sh"), {"gpu": "80GB"}).fits)
    assert found == ["skipped", "yes"]
    branches = 'if [ "$1" = a ]; then A="deepspeed tools/convert.py"; else A="deepspeed finetune_llama.py"; fi'
    (tmp_path / "run.sh").write_text(f'{branches}\neval "$A {words}"\n')
    assert check_file(str(tmp_path / "run.sh"), {"gpu": "80GB"}).fits != "skipped"
