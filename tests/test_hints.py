"""What a hint says to type is typed: it is not refused for the same thing, and hints never lead back."""

import re
import shlex
from pathlib import Path

import pytest

from memplan.cli.app import main
from memplan.cli.elsewhere import ELSEWHERE, LEFT_OUT

SMALL = "smollm2-135m"
ROWS: list[tuple[str, str, str]] = [
    # arguments behind `estimate smollm2-135m`, in the error, the hint
    ("--gpu 80", "no such card: '80'", "did you mean 80GB? `memplan show gpus` lists all"),
    ("--gpu 9999", "no such card: '9999'", "give its memory instead, such as --gpu 12GB; `memplan show gpus` lists"),
    ("--gpu rtx-9999-24gb", "no such card", "give its memory instead, such as --gpu 24GB; `memplan show gpus` lists"),
    ("--gpu 8xh100-80gb", "'8xh100-80gb'", "write --gpu h100-80gb --num-gpus 8"),
    ("--gpu a100x4", "'a100x4'", "write --gpu a100-40gb or a100-80gb, and --num-gpus 4"),
    ("--gpu 2x24gb", "'2x24gb'", "write --gpu 24gb --num-gpus 2"),
    ("--sequence-length 4k", "sequence_length: '4k' is no whole number", "write --sequence-length 4096"),
    ("--sequence-length 8,192", "'8,192' is no whole number", "write --sequence-length 8192"),
    ("--sequence-length '8192 tokens'", "'8192 tokens' is no whole number", "write --sequence-length 8192"),
    ("--sequence-length 2e3", "'2e3' is no whole number", "write --sequence-length 2000"),
    ("--sequence-length 2048.5", "'2048.5' is no whole number", "write --sequence-length 2048"),
    ("--sequence-length nan", "'nan' is no whole number", "write --sequence-length 8, say"),
    ("--max_length 4k", "'4k' is no whole number", "write --sequence-length 4096"),
    ("--batch-size 0", "batch_size: '0' is less than 1", "write --batch-size 1 or more"),
    ("--batch-size -4", "batch_size: '-4' is less than 1", "write --batch-size 1 or more"),
    ("--num-gpus x8", "num_gpus: 'x8' is no whole number", "write --num-gpus 8"),
    ("--num-gpus 1000000", "'1000000' is more than 100000", "write --num-gpus 100000 or less"),
    ("--margin 5", "margin: '5' is not below 1", "write --margin 0.05"),
    ("--margin 5%", "margin: '5%' is no number", "write --margin 0.05"),
    ("--margin nan", "margin: 'nan' is no number", "write --margin 0.5, say"),
    ("--zero-stage 4", "zero_stage: '4' is more than 3", "write --zero-stage 3 or less"),
    ("--lora-r 0", "lora.r: '0' is less than 1", "write --lora-r 1 or more"),
    ("--lora-dropout 10%", "lora.dropout: '10%' is no number", "write --lora-dropout 0.1"),
    ("--lora-bias lora-only", "lora.bias: 'lora-only' is unknown", "did you mean lora_only?"),
    ("--lora-dtype bf61", "lora.dtype: 'bf61' is unknown", "did you mean bf16?"),
    ("--lora 16", "--lora takes no value: '16'", "write --lora-r 16"),
    ("--lora=16", "--lora: neither true nor false: '16'", "write --lora-r 16"),
    ("--set lora=16", "lora: '16' is no set of keys", "write lora: {r: 16}, say; keys: r, alpha,"),
    ("--set rollout=4", "rollout: '4' is no set of keys", "write rollout: {group_size: 4}, say; keys: group_size,"),
    ("--set extra_models=4", "extra_models: '4' is no list", "write extra_models: [one, another]"),
    ("--set learning_rate=1e-5", "unknown key 'learning_rate'", "leave it out: memory does not feel it"),
    ("--recompute 2", "gradient_checkpointing: 2 is no way to checkpoint", "write every:2, or full"),
    ("--method qlora", "method: unknown value 'qlora'", "it says how weights are trained, not what for: use"),
    ("--method rlhf", "method: unknown value 'rlhf'", "use ppo, grpo, rloo or online-dpo"),
    ("--rank 16", "no such option: --rank", "use --lora-r 16"),
    ("--rollout-sleep 2", "no such option: --rollout-sleep", "use --set rollout.sleep=2"),
    ("--rollout-tp 2", "no such option: --rollout-tp", "use --rollout-tensor-parallel 2"),
    ("--alpha 32", "no such option: --alpha", "use --lora-alpha 32"),
    ("--bs=4", "no such option: --bs", "use --batch-size 4"),
    ("--seq-len 4096", "no such option: --seq-len", "use --sequence-length 4096"),
    ("--grad-ckpt", "no such option: --grad-ckpt", "use --gradient-checkpointing"),
    ("--adapter qlora", "no such option: --adapter", "use --lora --load-in-4bit"),
    ("--bits 8", "no such option: --bits", "use --load-in-8bit"),
    ("--nnodes 4", "no such option: --nnodes", "use --num-gpus 32"),
    ("--vram 24", "no such option: --vram", "use --gpu 24GB"),
    ("--vram 24GiB", "no such option: --vram", "use --gpu 24GiB"),
    ("--stage 2", "no such option: --stage", "use --zero-stage 2"),
    ("--stage dpo", "no such option: --stage", "use --method dpo"),
    ("--deepspeed zero3.json", "no such option: --deepspeed", "use --with zero3.json"),
    ("--group-size 8", "no such option: --group-size", "use --set rollout.group_size=8"),
    ("--overlap-comm", "no such option: --overlap-comm", "use --set deepspeed.overlap_comm=VALUE"),
    ("--rollout 8", "no such option: --rollout", "use --set rollout.KEY=VALUE, with KEY one of group_size"),
    ("--lr 1e-5", "no such option: --lr", "leave --lr out: memory does not feel it"),
    ("--optimizer adam8bit", "optimizer: unknown value 'adam8bit'", "did you mean adamw-8bit or paged-adamw-8bit?"),
    ("--optimizer lamb", "optimizer: unknown value 'lamb'", "memplan show optimizers lists them"),
    ("--trainer levanter", "trainer: unknown value 'levanter'", "memplan show trainers lists them"),
    ("--trainer lightning", "trainer: unknown value 'lightning'", "Lightning starts another's model: use pytorch"),
    ("--trainer axolotl", "trainer: unknown value 'axolotl'", "Axolotl trains by the Hugging Face Trainer"),
    ("--quantization int4", "quantization: unknown value 'int4'", "known: none, nf4,"),
    ("--dtype fp8", "dtype: unknown value 'fp8'", "products in fp8 are keys of their own: --set float8=tensorwise"),
    ("--dtype fp64", "dtype: unknown value 'fp64'", "known: bf16, fp16, fp32"),
]
"""Errors of numbers, cards, LoRA and other tools' options, each with the one thing to type."""
MODELS = [
    ("lama-3.1-8b", "did you mean llama-3.1-8b?"),
    ("llama3-8b", "did you mean llama-3-8b"),
    ("Llama-3.1-8B-Instrct", "did you mean llama-3.1-8b?"),
    ("Qwen3-8B.gguf", "did you mean qwen3-8b"),
    ("llama-65b", "give its Hub id, such as OWNER/llama-65b, or its size alone: --total-params 65b"),
    ("starchat2-15b", "give its Hub id, such as OWNER/starchat2-15b, or its size alone: --total-params 15b"),
    ("Phi-3-vision", "memplan show models lists them; a Hub id has a slash"),
    ("llama-3-8b-vision", "give its Hub id, such as OWNER/llama-3-8b-vision, or its size alone: --total-params 8b"),
    ("GRPO", "a method is --method grpo"),
    ("7B", "a size alone is --total-params 7B"),
    ("ckpt", "memplan show models lists them; a Hub id has a slash"),
]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Error and hint of a command line; two empty texts where it runs."""
    capsys.readouterr()
    code = main(arguments)
    said = dict(line.split(": ", 1) for line in capsys.readouterr().err.splitlines() if line[:5] in ("error", "hint:"))
    assert (code in (2, 3)) == ("error" in said)
    return said.get("error", ""), said.get("hint", "")


@pytest.mark.parametrize(("typed", "error", "hint"), ROWS, ids=[row[0] for row in ROWS])
def test_what_to_type(typed: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["estimate", SMALL, *shlex.split(typed)], capsys)
    assert error in said[0]
    assert said[1].startswith(hint)


@pytest.mark.parametrize(("name", "hint"), MODELS)
def test_models_that_are_near(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Another size is another model, and so is another tower: neither is suggested."""
    error, said = refused(["estimate", name], capsys)
    assert repr(name) in error
    assert said.startswith(hint)


def typed_as_told(arguments: list[str], error: str, hint: str) -> list[list[str]]:
    """The command lines that a hint says to type; none where it leaves the choice."""
    option = re.search(r"no such option: (--[\w-]+)", error)
    meant = re.match(r"did you mean (.*?)\?", hint)
    written = re.match(r"(?:use|write) (--.*?)(?:, say| or more| or less|,.*|$)", hint)
    such = re.search(r"such as (--gpu \S+?);", hint)
    if option and (written or meant or hint.startswith("leave")):
        at = next(i for i, word in enumerate(arguments) if word.partition("=")[0].replace("_", "-") == option[1])
        has_value = len(arguments) > at + 1 and not arguments[at + 1].startswith("-") and "=" not in arguments[at]
        rest = arguments[:at], arguments[at + 1 + has_value :]
        ways = [written[1]] if written else meant[1].split(" or ") if meant else [""]
        return [[*rest[0], *shlex.split(way), *rest[1]] for way in ways]
    if written or such:
        name, *value = shlex.split((written or such)[1])  # type: ignore[index]
        kept = [word for word in arguments if word not in (f"{name}={word.partition('=')[2]}", "--lora", "--lora=16")]
        if name in kept:
            at = kept.index(name)
            kept = kept[:at] + kept[at + 2 :]
        kept = [word for word in kept if not (name == "--lora-r" and word == "16")]
        return [[*kept, name, *value]]
    if meant:
        fault = next(word for word in reversed(arguments) if repr(word) in error)
        return [[way if word == fault else word for word in arguments] for way in meant[1].split(" or ")]
    return []


def follow(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Type what each hint says, until nothing is refused: never the same again, never the same error twice."""
    error, hint = refused(arguments, capsys)
    assert error
    waiting: list[tuple[list[str], tuple[str, ...]]] = [
        (way, (error,)) for way in typed_as_told(arguments, error, hint)
    ]
    seen = {tuple(arguments)}
    while waiting:
        way, errors = waiting.pop()
        assert tuple(way) not in seen, (way, errors)
        error, hint = refused(way, capsys)
        assert error not in errors, (way, errors)
        assert len(errors) < 5, errors
        if error:
            waiting += [(each, (*errors, error)) for each in typed_as_told(way, error, hint)]


@pytest.mark.parametrize("typed", [row[0] for row in ROWS])
def test_hints_lead_on(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    follow(["estimate", SMALL, *shlex.split(typed)], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("option", [*ELSEWHERE, *LEFT_OUT])
@pytest.mark.parametrize("value", ["", "4", "lora", "bf16", "dpo", "24GB", "ds.json"])
def test_options_of_other_tools_lead_on(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is told with what stands for it here, which is an option, whatever value it was given."""
    arguments = ["estimate", SMALL, f"--{option}", *filter(None, [value])]
    error, hint = refused(arguments, capsys)
    assert error == f"no such option: --{option}"
    if option in LEFT_OUT:
        assert hint.startswith(f"leave --{option} out: ")
        return
    (way,) = typed_as_told(arguments, error, hint)
    assert not refused(way, capsys)[0].startswith("no such option")


def test_files_that_are_near(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path where nothing is brings what lies beside it, whichever command it was given to."""
    monkeypatch.chdir(tmp_path)
    Path("train_dpo.yaml").write_text(f"model: {SMALL}\n")
    Path("checkpoint").mkdir()
    rows = [
        ("estimate trian_dpo.yaml", "did you mean train_dpo.yaml?"),
        ("estimate ./train_dpo.yml", "did you mean ./train_dpo.yaml?"),
        ("estimate ./chekpoint", "did you mean ./checkpoint?"),
        ("estimate conf/train.yaml", "there is no folder conf"),
        ("estimate other.yaml", "name a file or folder that is there, or a Hub id; here is train_dpo.yaml"),
        ("estimate dpo-lora-24g.yaml", "did you mean dpo-lora-24gb?"),
        (f"compare {SMALL} --grid trian_dpo.yaml", "did you mean train_dpo.yaml?"),
        (f"emit trl {SMALL} --onto trian_dpo.yaml", "did you mean train_dpo.yaml?"),
        ("diagnose trian_dpo.yaml", "did you mean train_dpo.yaml?"),
        ("accuracy trian_dpo.yaml", "did you mean train_dpo.yaml?"),
        ("lengths trian_dpo.yaml", "did you mean train_dpo.yaml?"),
    ]
    for typed, hint in rows:
        assert refused(typed.split(), capsys)[1].startswith(hint), typed
    assert main(["check", "trian_dpo.yaml"]) == 2
    assert "did you mean train_dpo.yaml?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ("--tp 2", "add --method, such as --method dpo: simpo is assumed"),
        ("--tp 2 --method simpo", "use --trainer mindspeed"),
        ("--tp 2 --method dpo --trainer trl", "use --trainer megatron-swift"),
        ("--tp 2 --method dpo --trainer trl --zero-stage 3", "use --trainer megatron-swift, with --sharding "
         "distributed-optimizer"),
        ("--tp 2 --method dpo --trainer megatron-swift --zero-stage 3", "use --sharding distributed-optimizer"),
    ],
)  # fmt: skip
def test_one_right_thing_is_asked_and_typing_it_is_enough(
    arguments: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["estimate", "qwen3-8b", "--num-gpus", "8", *arguments.split()]
    assert main(line) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"hint: {hint}"
