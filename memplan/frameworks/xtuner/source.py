"""Where XTuner's settings stand: a config of Python, gone through without being run, under a command's options.

XTuner's own configs by name: ``internlm2_chat_7b_qlora_alpaca_e3`` says model, method, data and epochs, and all
of them have the same rest. Those that differ (DPO, 70B, mixtures, long context) are not here.

Source: InternLM/xtuner 0.1.23 xtuner/configs: the rule holds for 431 of its configs, and no other name is taken."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from memplan.frameworks.base import Draft
from memplan.frameworks.commands.launch import Launch, launches
from memplan.frameworks.draft import NotKnown
from memplan.frameworks.files.documents import Document, Settings
from memplan.frameworks.programs.follow import followed
from memplan.frameworks.programs.run import Known
from memplan.frameworks.programs.text import program_of
from memplan.frameworks.programs.values import Method, Ref, Thing, Unknown, known, plain
from memplan.frameworks.shell.reader import options_of, scalar
from memplan.frameworks.transformers import only_launch
from memplan.tables.texts import lines_of, settings_in
from memplan.units import words_of

_PROGRAM = re.compile(r"(?:.*/)?tools/train\.py|xtuner\.tools\.train")
_OWN = re.compile(r"\bxtuner\b")
TOP = words_of("model train_dataloader optim_wrapper strategy max_length sequence_parallel_size runner_type framework")
"""Names of a config that a training is built of."""
MOST = 3000


def starts(document: Document) -> Iterator[Launch]:
    """Commands that train: ``xtuner train CONFIG``, its ``tools/train.py`` with a config of Python."""
    for launch in launches(document):
        first = launch.words[0].text if launch.words else ""
        train = launch.program.rsplit("/", 1)[-1] == "xtuner" and first == "train" and len(launch.words) > 1
        if train or (_PROGRAM.fullmatch(launch.program) and first.endswith(".py")):
            yield launch


def told(document: Document) -> bool:
    """Whether a file of Python is a config of XTuner's, or a program of its newer trainer."""
    text = document.text
    if document.form != "python" or not _OWN.search(text):
        return False
    config = re.search(r"^model\s*=|read_base\(\)", text, re.MULTILINE) and re.search(
        r"^(train_dataloader|optim_wrapper|train_cfg)\s*=|read_base\(\)", text, re.MULTILINE
    )
    return bool(config) or ("xtuner.v1" in text and "TrainerConfig(" in text)


def of_document(document: Document, draft: Draft) -> Settings:
    """By dotted name; a command's options under their own names. Raises NotKnown for XTuner 1."""
    if document.form != "shell":
        return _of_config(document)
    launch = only_launch(list(starts(document)))
    draft.facts["launch"] = launch
    words = launch.words[1:] if not launch.program.endswith(".py") else launch.words
    values, lines, loose = options_of(words)
    given = values.pop("cfg_options", None)
    here = Settings(launch.path, {}, {"config": launch.command.line})
    reference = loose[0].text if loose else ""
    inner = _named(here, reference, draft)
    said = {key: value for key, value in values.items() if key in ("deepspeed", "launcher")}
    for text in [given] if isinstance(given, str) else given if isinstance(given, list) else ():
        key, equals, value = str(text).partition("=")
        said |= {key: scalar(value)} if equals else {}
    places = {key: lines.get(key, lines.get("cfg_options", launch.command.line)) for key in said}
    return inner.under(Settings(launch.path, said, places))


def _named(here: Settings, reference: str, draft: Draft) -> Settings:
    """The config that a command names: a file, or one of XTuner's own."""
    if reference.endswith(".py"):
        return _of_config(draft.follow(here, "config", reference))
    known_as = own(reference)
    if known_as is None:
        what = f"{reference[:60] or 'no config'} is no config of XTuner's that is known here"
        raise NotKnown(f"{here.where('config')}: {what}", f"xtuner copy-cfg {reference[:60]} ., and name that file")
    draft.remarks.append(f"{here.where('config')}: {reference} is taken as XTuner 0.1.23 has it")
    return Settings(f"XTuner's {reference}", known_as)


def _of_config(document: Document) -> Settings:
    """What the names of a config come to."""
    if "xtuner.v1" in document.text:
        raise NotKnown(f"{document.path}: a training of XTuner 1, which is not read", "write the job in memplan's keys")
    names = followed(document, Known()).globals.names
    if not isinstance(names.get("model"), Mapping):
        what = (
            "its model is made elsewhere, in a config that is not here" if "read_base" in document.text else "no model"
        )
        raise NotKnown(
            f"{document.path}: model is not known: {what}", "name the config that XTuner writes to its work_dir"
        )
    if str(names.get("framework", "")) == "huggingface":
        raise NotKnown(
            f"{document.path}: framework huggingface of XTuner is not read", "write the job in memplan's keys"
        )
    values: dict[str, Any] = {}
    for key in TOP:
        if key in names:
            _flat(key, names[key], values)
    return Settings(document.path, values, _lines(document))


def _flat(name: str, value: Any, values: dict[str, Any]) -> None:
    """Nested mappings and lists under dotted names."""
    if len(values) > MOST or name.count(".") > 12:
        return
    if isinstance(value, Thing) and value.name != "lambda":
        value = {"type": value.name, **value.values}
    if isinstance(value, Mapping):
        for key, each in value.items():
            _flat(f"{name}.{key}", each, values)
    elif (
        isinstance(value, (list, tuple))
        and not isinstance(value, (Ref, Method))
        and any(isinstance(each, (Mapping, Thing)) for each in value)
    ):
        for place, each in enumerate(value[:50]):
            _flat(f"{name}.{place}", each, values)
    else:
        values[name] = _shown(value)


def _shown(value: Any) -> Any:
    if isinstance(value, Ref):
        return value.name
    if isinstance(value, Method):
        owner = _shown(value.owner)
        return f"{owner}.{value.name}"
    if isinstance(value, Unknown):
        return f"${{{value.text[:60]}}}"
    return plain(value) if known(value) else str(value)[:60]


def _lines(document: Document) -> dict[str, int]:
    """Where the names at a config's top are given their values."""
    found: dict[str, int] = {}
    for part in program_of(document.text, document.path).parts:
        for node in part.tree.body:
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name):
                    found[target.id] = node.lineno
    return found


def last(value: Any) -> str:
    """The last part of a class's name: of ``xtuner.model.SupervisedFinetune``, ``torch.float16``."""
    return str(value or "").strip("'\"").rpartition(".")[2]


TABLE = tuple(lines_of(__file__))
_NAME = re.compile(
    r"(?P<stem>\w+?)_(?P<how>qlora|full)_(?:alpaca|alpaca_zh|alpaca_enzh|alpaca_enzh_oasst1|oasst1|oasst1_mmlu|code_alpaca"
    r"|custom_sft|custom_pretrain|lawyer|open_platypus|arxiv_gentitle|colorist|sql|medical|openorca|tiny_codes)"
    r"_(?P<short>512_)?e\d+"
)
_OTHERWISE = ("internlm2_5_chat_7b_qlora_alpaca_e3",)
_QLORA: dict[str, Any] = settings_in(
    """model.llm.torch_dtype=torch.float16 model.llm.quantization_config.type=BitsAndBytesConfig
    model.llm.quantization_config.load_in_4bit=true model.llm.quantization_config.bnb_4bit_use_double_quant=true
    model.llm.quantization_config.bnb_4bit_quant_type=nf4 model.lora.type=LoraConfig model.lora.r=64
    model.lora.lora_alpha=16 model.lora.lora_dropout=0.1"""
)


def own(name: str) -> dict[str, Any] | None:
    """The settings of a config of XTuner's by its name; None for any other."""
    match = _NAME.fullmatch(name)
    models = dict(line.split() for line in TABLE)
    if match is None or match["stem"] not in models or name in _OTHERWISE:
        return None
    return {
        "model.type": "SupervisedFinetune",
        "model.llm.pretrained_model_name_or_path": models[match["stem"]],
        "train_dataloader.batch_size": 1,
        "train_dataloader.dataset.max_length": 512 if match["short"] else 2048,
        "optim_wrapper.type": "AmpOptimWrapper",
        "optim_wrapper.dtype": "float16",
        "optim_wrapper.accumulative_counts": 16,
        "optim_wrapper.optimizer.type": "AdamW",
        **(_QLORA if match["how"] == "qlora" else {}),
    }
