"""Proves that memplan refuses flash attention for the families whose class in transformers refuses it, and no others,
and that those without sdpa are described with eager attention alone."""

from typing import Any

import pytest
import transformers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from memplan.arch import FAMILIES, parse_config
from memplan.errors import InvalidJob
from memplan.resolve import resolve
from memplan.spec.reading import read_job
from memplan.tables.trainers import find_trainer

MAKERS: tuple[Any, ...] = (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)
CLASSES = find_trainer("transformers", transformers.__version__).models
BUILT = sorted(family for family in FAMILIES if family in CONFIG_MAPPING)


def class_of(family: str) -> Any:
    config = CONFIG_MAPPING[family]
    found = next(maker._model_mapping[config] for maker in MAKERS if config in maker._model_mapping)
    return found[0] if isinstance(found, (tuple, list)) else found


@pytest.mark.parametrize("family", BUILT)
def test_flash_is_refused_where_the_class_refuses_it(family: str) -> None:
    assert (family in CLASSES.without_flash) == (not class_of(family)._supports_flash_attn)


@pytest.mark.parametrize("family", [family for family in BUILT if not class_of(family)._supports_sdpa])
def test_classes_without_sdpa_run_eager_attention_or_none(family: str) -> None:
    if not CLASSES.newest and family in ("gptj", "codegen"):
        pytest.skip("described as transformers 5.24 builds them, with sdpa")
    spec = parse_config(CONFIG_MAPPING[family]().to_dict(), family)
    assert spec.eager_only or not any(mixer.kind in ("attention", "latent") for mixer in spec.mixers)


def test_the_refusal_names_the_class() -> None:
    job = {"model": CONFIG_MAPPING["mpt"]().to_dict(), "method": "sft", "attention": "flash"}
    with pytest.raises(InvalidJob, match="the mpt class of transformers does not support flash attention"):
        resolve(read_job(job))
