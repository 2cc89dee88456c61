"""A folder of another machine is taken for a model where its name holds that of one, and of one alone."""

import pytest

from memplan.api import estimate
from memplan.arch import parse_config
from memplan.errors import ModelNotFound
from memplan.frameworks.common import local_models
from memplan.frameworks.common.local_models import settle_model, within
from memplan.frameworks.draft import Draft, NotKnown
from memplan.frameworks.files.documents import is_template
from memplan.frameworks.hugging_face.towers import internvl_of

NAMES = [
    ("/x/qzoom-qwen2_5vl-7b-stage1", "qwen2.5-vl-7b"),
    ("./output/qwen3-8b/checkpoint-300", "qwen3-8b"),
    ("/a/gemma-2-2b-it-mine", "gemma-2-2b"),
    ("/ckpt/vicuna-7b-v1.5-mine", "llama-2-7b"),
    ("/m/Qwen3-30B-A3B-sft", "qwen3-30b-a3b"),
    ("./checkpoints/vicuna-v1-3-7b", "llama-2-7b"),
    ("checkpoints/llama-2-7b-chat", "llama-2-7b"),
]
NOBODYS = [
    "/x/Qwen2.5-7B-from-32B",
    "/x/Qwen-3-2.5B",
    "/x/Llama-1-3B",
    "/m/Qwen2.5-7B-Instruct-AWQ",
    "/m/llava-llama-3-8b",
    "multimodal_qwen2.5_3b_model",
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


def test_a_folder_under_a_variable_has_its_name_where_it_tells_a_size() -> None:
    for name in ("$1/Qwen2.5-7B-Instruct", "${MODELS}/Qwen/Qwen2.5-7B-Instruct"):
        draft = Draft(values={"model": name})
        settle_model(draft, {})
        assert (is_template(name), draft.values["model"]) == (False, "Qwen/Qwen2.5-7B-Instruct")
    assert all(map(is_template, ("$1", "$OUT/checkpoint-100", "$A/$B-7B", "$DIR/zero3.json", "$MODELS/7beta")))


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


EXACT = {
    "1B": 938193024, "2B": 2205754368, "4B": 3712637952, "8B": 8075365376, "26B": 25514186112, "38B": 38388164992,
    "78B": 78408318336,
}  # fmt: skip
"""InternVL2.5's checkpoints as the Hub counts them (floschne/gimmick: get_model_sizes)."""


@pytest.mark.parametrize("size", EXACT)
def test_every_weight_of_internvl(size: str) -> None:
    made = internvl_of(f"OpenGVLab/InternVL2_5-{size}")
    assert made is not None
    assert parse_config(made, size).params.total == EXACT[size]


def test_internvl_of_nobodys() -> None:
    assert not any(map(internvl_of, ("InternVL2-8B-AWQ", "InternVL9-1B", "InternVL2-7B", "Qwen2.5-7B")))


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Hub that gives nothing."""

    def refuse(name: str, revision: str | None = None) -> None:
        raise ModelNotFound("cannot reach the Hub", "check the network")

    local_models._asked.cache_clear()
    monkeypatch.setattr(local_models, "load_model", refuse)


def _settled(name: str, **values: str) -> Draft:
    draft = Draft(values={"model": name, **values})
    settle_model(draft, {})
    return draft


COPIES = [
    ("unsloth/Llama-3.2-3B-Instruct", {}, "meta-llama/Llama-3.2-3B-Instruct"),
    ("somebody/Qwen2.5-1.5B-sft-mine", {}, "Qwen/Qwen2.5-1.5B"),
    ("somebody/Llama-3-Base-8B-SFT", {}, "meta-llama/Meta-Llama-3-8B"),
    ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", {"quantization": "nf4-double"}, "Qwen/Qwen2.5-7B-Instruct"),
    ("Qwen/Qwen-7B", {}, "Qwen/Qwen-7B"),
    ("unsloth/Qwen2.5-7B-Instruct-bnb-4bit", {}, "unsloth/Qwen2.5-7B-Instruct-bnb-4bit"),
]


@pytest.mark.parametrize(("name", "values", "model"), COPIES)
@pytest.mark.usefixtures("unreachable")
def test_a_repository_that_the_hub_does_not_give(name: str, values: dict[str, str], model: str) -> None:
    draft = _settled(name, **values)
    assert draft.values["model"] == model
    said = draft.origins["model"].text if name != model else "cannot reach the Hub"
    assert said.endswith("cannot reach the Hub")


@pytest.mark.parametrize("word", ["MODEL_PATH", "True", "Your stage2 checkpoint", ".cache/None"])
def test_a_word_that_names_no_model_is_asked_for(word: str) -> None:
    with pytest.raises(NotKnown) as caught:
        _settled(word)
    assert "--model" in caught.value.hint


@pytest.mark.usefixtures("unreachable")
def test_models_beside_the_trained_one_have_names_too() -> None:
    """A reward model's word for that tells no other shape; a folder that is nobody's is asked for."""
    beside = {"role": "reward", "model": "somebody/Skywork-Reward-Llama-3.1-8B-v0.2"}
    draft = Draft(values={"model": "Qwen/Qwen2.5-7B", "extra_models": [beside]})
    settle_model(draft, {})
    assert beside["model"] == "meta-llama/Llama-3.1-8B"
    assert "Skywork" in draft.remarks[0]
    draft = Draft(values={"model": "smollm2-135m", "extra_models": [{"role": "teacher", "model": "/x/TowerVision-9B"}]})
    settle_model(draft, {})
    assert draft.values["extra_models"][0]["model"] == "smollm2-135m"
    (asked,) = draft.unread
    assert (asked.asks, asked.decides) == ("extra_models", "model")
    assert """--set 'extra_models=[{"role": "teacher", "model": """ in asked.hint


def test_the_example_of_a_name_that_nobody_knows_is_what_it_begins_with_or_of_its_size() -> None:
    begins = {"/models/Qwen3-30B-A3B-merged-mind": "qwen3-30b-a3b", "/models/Qwen3.6-27B": "qwen3.5-27b"}
    for name, typed in (begins | {"/models/mine-27b": "Qwen/Qwen2.5-7B"}).items():
        draft = Draft(values={"model": name})
        with pytest.raises(NotKnown) as error:
            settle_model(draft, {})
        assert error.value.hint.endswith(f"--model {typed}")
