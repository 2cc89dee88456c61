"""Proves that memplan speaks Chinese: what is written is still said in the code, fields agree, recorded commands leave
no English sentence, lines keep their width, and names, keys, numbers and JSON stay as they are.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from stale_entries import is_said, stale, without

from memplan.cli.app import main
from memplan.lang import ENGLISH, Name, said, use
from memplan.lang.catalogue import LABELS, Catalogue, catalogue, entries_of, fields, files, filled, kind
from memplan.lang.choice import of_environment, without_option
from memplan.lang.width import cells
from memplan.tables.terms import TERMS

ROOT = Path(__file__).resolve().parent.parent
SENTENCE = re.compile(r"(?<![\w./=`'-])[a-z]{2,}(?: [a-z']{2,}){2,}(?![\w=./-])")
"""Three English words in a row."""
TO_TYPE = re.compile(r"memplan(?: [\w./=-]+)+")
LOG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 23.52 GiB "
    "of which 1.02 GiB is free. Including non-PyTorch memory, this process has 22.49 GiB memory in use. Of the "
    "allocated memory 20.11 GiB is allocated by PyTorch, and 1.92 GiB is reserved by PyTorch but unallocated."
)
RECORDED = (
    "estimate llama-3.1-8b --method simpo --num-gpus 8 --zero-stage 3 --gradient-checkpointing --gpu h100-80gb",
    "estimate llama-3.1-8b --method dpo --lora-r 16 --batch-size 4 --sequence-length 4096 --gpu rtx-4090-24gb",
    "estimate qwen2.5-7b --method simpo",
    "estimate qwen2.5-7b --gpu 24GB",
    "estimate qwen3-0.6b --gpu 24GB --timeline",
    "estimate qwen2.5-7b --method generate --rollout-engine vllm --gpu h100-80gb --tp 2",
    "compare llama-3.1-8b --method simpo --num-gpus 4 --gpu a100-80gb",
    "plan llama-3.1-8b --method simpo --gpu rtx-4090-24gb --num-gpus 2",
    "check FILE --gpu h100-80gb --num-gpus 1",
    f"diagnose {shlex.quote(LOG)}",
    "estimate nosuch",
    "estimate qwen3-8b --methd dpo",
    "estimate qwen3-8b --method dop",
    "estimate qwen3-8b --batch-size x",
    "estimate qwen3-8b --num-gpus 8 --tp 3 --trainer megatron --method sft",
    "estimate",
    "estimate llama-3.1-8b --method dpo --gpu h100-80gb --num-gpus 8 --zero-stage 3 --explain",
    "estimate llama-3.1-8b --method dpo --lora-r 16 --gpu rtx-4090-24gb --explain",
    "estimate qwen2.5-7b --method grpo --trainer trl --rollout-engine vllm --gpu h100-80gb --num-gpus 4 --zero-stage 3 "
    "--explain",
    "estimate llama-3.1-8b --method sft --trainer megatron --tp 2 --pp 2 --num-gpus 8 --gpu h100-80gb --explain",
    "estimate llama-3.1-8b --method simpo --sharding fsdp2 --gradient-checkpointing --num-gpus 8 --explain",
    "estimate qwen2.5-0.5b --method sft --gpu v100-32gb --precision bf16",
    "estimate llama-3.1-8b --method dpo --num-gpus 8 --zero-stage 3 --gpu a100-80gb --how-sure",
    "estimate qwen3-8b --method sft --reference adapter",
    "estimate qwen3-8b --set foo",
    "estimate glm-4.5-air --method ppo",
    "estimate qwen3-8b --method simpo --trainer openrlhf",
    "estimate qwen3-8b --batch-size -1",
    "calibrate",
    "web --port 99999999",
    "estimate --help",
    "estimate --help-all",
    "plan --help",
    "web --help-all",
    "--help",
)
CONFIG = "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 4\nmax_length: 4096\nbeta: 0.1\n"


@pytest.fixture(autouse=True)
def _back_to_english() -> Iterator[None]:
    yield
    use(ENGLISH)


@cache
def entries() -> dict[str, tuple[str, str]]:
    """English -> (file, Chinese), of every file."""
    found = {}
    for file in files("zh"):
        for english, chinese in entries_of(file.read_text(encoding="utf-8"), file.name).items():
            found[english] = (file.name, chinese)
    return found


@pytest.mark.slow
def test_every_entry_is_still_said_in_the_code() -> None:
    """``python tests/stale_entries.py --write`` takes out what is not."""
    assert [english for file in files("zh") for english in stale(file)] == []
    assert not is_said("a sentence that nobody ever wrote")
    assert without("# a\none\n    一\ntwo\n    二\n", ["one"]) == "# a\ntwo\n    二\n"


def test_both_languages_have_the_same_fields() -> None:
    for english, (file, chinese) in entries().items():
        theirs = {name for name in fields(english) if kind(name) != "s"}
        assert set(fields(chinese)) == theirs, (file, english)
        assert len(fields(english)) == len(set(fields(english))), (file, english)


def test_no_entry_is_written_twice() -> None:
    seen: dict[str, str] = {}
    for file in files("zh"):
        for english in entries_of(file.read_text(encoding="utf-8")):
            assert seen.setdefault(english, file.name) == file.name, english


def test_words_of_the_field() -> None:
    """Terms as practitioners write them, full stops and commas of their own."""
    for english, (_, chinese) in entries().items():
        assert "评论家" not in chinese
        assert "critic" not in english.lower() or "Critic" in chinese, english
        assert not re.search("[\u4e00-\u9fff][,;:?!](?!\\d)", chinese), chinese


@pytest.mark.slow
@pytest.mark.parametrize("command", RECORDED)
def test_no_english_sentence_is_left(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "dpo.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    main([*(str(file) if word == "FILE" else word for word in shlex.split(command)), "--lang", "zh"])
    out, err = capsys.readouterr()
    left = [line for line in f"{out}\n{err}".splitlines() if SENTENCE.search(TO_TYPE.sub("", line))]
    assert left == []
    assert re.search("[\u4e00-\u9fff]", out + err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "estimate qwen3-0.6b --method dpo --trainer trl --gpu 4090 --num-gpus 4 --zero-stage 3",
        "compare qwen3-8b --method dpo --gpu h100 --num-gpus 8",
        "plan qwen3-0.6b --method dpo --trainer trl --gpu rtx-4090-24gb",
    ],
)
def test_no_english_sentence_is_left_in_a_picture(command: str, tmp_path: Path) -> None:
    file = tmp_path / "drawn.svg"
    main([*command.split(), "--lang", "zh", "-o", str(file)])
    words = re.findall(r"<(?:text|title)[^>]*>([^<]*)<", file.read_text(encoding="utf-8"))
    assert [each for each in words if re.search("[a-z]{3,} [a-z]{3,}", each)] == []
    assert re.search("[\u4e00-\u9fff]", "".join(words))


def test_names_of_rows_are_known_wherever_they_stand() -> None:
    """A name, the place behind it, the kind in brackets and the pass before it are translated each by itself."""
    use("zh")
    assert said("norm inputs in fp32, layers 1-30 (activations)") == "归一化的 fp32 输入，第 1-30 层（激活值）"
    assert said("norm inputs in fp32, layer 0 (recomputation)") == "归一化的 fp32 输入，第 0 层（重计算）"
    assert said("why: policy pass: norm inputs in fp32") == "原因：策略模型这一遍：归一化的 fp32 输入"
    assert said("up, layers 1-30 (activations)") == "up，第 1-30 层（激活值）"
    assert said("logits in fp32, head backward (logits)") == "fp32 的 logits，输出头的反向（logits）"
    assert said("Optimizer. [one of adamw, up; default adamw] Also --o.") == (
        "优化器。[可选值：adamw, up；默认 adamw] 也可写作 --o。"
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_keep_their_width_and_columns_stand(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for command in RECORDED[1:3]:
        assert main([*command.split(), "--lang", "zh"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert main([*command.split(), "--lang", "en"]) == 0
        english = max(map(cells, capsys.readouterr().out.splitlines()))
        assert max(map(cells, lines)) <= max(width, english + 2)
        if width == 40:
            continue  # each row is a paragraph there
        begin = next(number for number, line in enumerate(lines) if line.split()[:1] == ["类别"])
        end = next(number for number, line in enumerate(lines) if line.split()[:1] == ["合计"])
        # The share's sign ends in one column, whatever stands before it.
        assert len({cells(line[: line.index("%") + 1]) for line in lines[begin + 1 : end + 1]}) == 1


@pytest.mark.slow
def test_json_is_not_translated(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["estimate", "qwen2.5-7b", "--gpu", "a100-80gb", "--json"]
    assert main(command) == 0
    english = json.loads(capsys.readouterr().out)
    monkeypatch.setenv("MEMPLAN_LANG", "zh")
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == english


def test_a_hostile_name_stays_text() -> None:
    """Braces, patterns and other entries in a name are shown as they are; a long text is not looked at."""
    use("zh")
    for name in ("{gpu}", "a.*b", "{0}", "%s", "(x)", "\\1"):
        assert said(f"Fits {name} with 3.00 GiB to spare") == f"{name} 放得下，还剩 3.00 GiB"
    assert said(Name("total")) == "total"
    assert said("total") == "合计"
    assert said(long := "short by, " * 5000) == long
    assert said("no such file: '" + "a, b; c: (" * 90) is not None


def test_what_is_not_known_stays_english() -> None:
    use("zh")
    text = "a sentence that nobody has written; another one, too"
    assert said(text) == text
    assert said("q_proj, v_proj") == "q_proj, v_proj"
    use(ENGLISH)
    assert said("total") == "total"


def test_parts_are_put_together() -> None:
    words = Catalogue({"a cat": "猫", "{n} dog{s}": "{n} 条狗", "the {part}": "这{part}", "it, and more": "等等"})
    assert words.said("a cat; 2 dogs") == "猫；2 条狗"
    assert words.said("The a cat.") == "这猫。"
    assert words.said("the unknown animal") == "the unknown animal"
    assert words.said("a cat, it, and more") == "猫，等等"
    assert words.said("a cat, an unknown animal") == "a cat, an unknown animal"
    assert words.said("a cat (1 dog)") == "猫（1 条狗）"
    greedy = Catalogue(
        {"{name} has none for {word}": "{name} 没有 {word}", "no {any}": "没有 {any}", "fat cats": "胖猫"}
    )
    assert greedy.said("trl or Unsloth has none for dpo") == "trl 或 Unsloth 没有 dpo"
    assert greedy.said("no 'such sad thing'") == "没有 'such sad thing'"
    assert greedy.said("no fat cats") == "没有胖猫"
    for clause in ("a critic needs a class, and trl has none for dpo", "no word was said of it"):
        assert greedy.said(clause) == clause
    assert filled("用{x}吧", {"x": "--lora"}) == "用 --lora 吧"


def test_a_file_without_pairs_is_refused() -> None:
    for text in ("    alone", "one\ntwo\n    二", "one\n    一\none\n    一"):
        with pytest.raises(ValueError, match=r"zh\.txt:\d"):
            entries_of(text, "zh.txt")


@pytest.mark.parametrize(
    ("environment", "encoding", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "utf-8", "zh"),
        ({"LANG": "zh_TW"}, "utf-8", "zh"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "utf-8", "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "utf-8", "en"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en"}, "utf-8", "en"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:zh"}, "utf-8", "zh"),
        ({"LANGUAGE": "zh"}, "utf-8", "en"),
        ({"LANG": "zh_CN"}, "ascii", "en"),
        ({"LANG": "zh_CN.GB18030"}, "gb18030", "zh"),
        ({"MEMPLAN_LANG": "zh", "LC_ALL": "C"}, "ascii", "zh"),
        ({"MEMPLAN_LANG": "en", "LANG": "zh_CN.UTF-8"}, "utf-8", "en"),
        ({}, "utf-8", "en"),
    ],
)
def test_language_of_the_environment(environment: dict[str, str], encoding: str, language: str) -> None:
    assert of_environment(environment, encoding) == language


def test_option_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert without_option(["a", "--lang", "zh-Hans", "b", "--", "--lang"]) == (["a", "b", "--", "--lang"], "zh")
    assert without_option(["--lang=en"]) == ([], "en")
    assert main(["show", "gpus", "--lang", "fr"]) == 2
    assert capsys.readouterr().err == "error: --lang: unknown language 'fr'\nhint: known: en, zh\n"


def test_labels_are_known_alone_only() -> None:
    assert (ROOT / "memplan" / "lang" / "zh" / LABELS).exists()
    assert catalogue("zh").said("plan") == "方案"
    assert catalogue("zh").said("known: estimate, plan") == "可用值：estimate, plan"


def test_every_term_is_explained() -> None:
    use("zh")
    for term in TERMS.values():
        assert re.match("[\u4e00-\u9fffA-Za-z]", said(term.what)), term.key
        assert said(term.what) != term.what, term.key
