"""A folder of another machine is taken for a model where its name holds that of one, and of one alone."""

import pytest

from memplan.api import estimate
from memplan.frameworks.hf_internvl import internvl_of
from memplan.frameworks.local_models import within

NAMES = [
    ("/x/qzoom-qwen2_5vl-7b-stage1", "qwen2.5-vl-7b"),
    ("./output/qwen3-8b/checkpoint-300", "qwen3-8b"),
    ("/a/gemma-2-2b-it-mine", "gemma-2-2b"),
    ("/ckpt/vicuna-7b-v1.5-mine", "llama-2-7b"),
    ("/m/Qwen3-30B-A3B-sft", "qwen3-30b-a3b"),
]
NOBODYS = [
    "/x/Qwen2.5-7B-from-32B",
    "/m/Qwen2.5-7B-Instruct-AWQ",
    "/m/llava-llama-3-8b",
    "/m/llama-3-8b-reward",
    "/a/Qwen-34B",
    "/data/checkpoint-300",
    "/m/qwen2.5-7b-and-llama-3-8b",
]


@pytest.mark.parametrize(("path", "name"), NAMES)
def test_a_name_within_a_path(path: str, name: str) -> None:
    found = within(path)
    assert found is not None
    assert found["name"] == name


@pytest.mark.parametrize("path", NOBODYS)
def test_a_path_that_is_nobodys(path: str) -> None:
    assert within(path) is None


COUNTS = [
    # the Hub's counts of the repositories, in millions
    ("OpenGVLab/InternVL2-1B", 938),
    ("./pretrained/InternVL2-8B", 8075),
    ("OpenGVLab/InternVL2-26B", 25515),
    ("OpenGVLab/InternVL2_5-4B", 3713),
    ("OpenGVLab/InternVL2_5-38B-MPO", 38388),
    ("OpenGVLab/InternVL3-2B", 2089),
    ("OpenGVLab/InternVL3_5-4B", 4732),
]


@pytest.mark.parametrize(("name", "millions"), COUNTS)
def test_internvl_by_its_name(name: str, millions: int) -> None:
    made = internvl_of(name)
    assert made is not None
    job = {"model": made, "method": "sft", "trainer": "transformers"}
    total = estimate(job).to_dict()["model"]["params"]["total"]
    assert total / 1e6 == pytest.approx(millions, rel=1e-3)


def test_internvl_of_nobodys() -> None:
    assert not any(map(internvl_of, ("InternVL2-8B-AWQ", "InternVL9-1B", "InternVL2-7B", "Qwen2.5-7B")))
