"""Proves that every model preset is whole, counts to the published total, and is found by the names people type."""

import importlib
import json
import pkgutil
import shutil
from pathlib import Path

import pytest
from drawing import over

import memplan.presets
from memplan import arch
from memplan.arch import FAMILIES, parse_config
from memplan.errors import EXIT_MODEL, InternalError, ModelNotFound
from memplan.models import load_model
from memplan.presets import (
    Preset,
    every_model,
    find_by_hub_id,
    has_model,
    hub_ids,
    model_names,
    model_preset,
    presets_dir,
)

NAMES = model_names()
WITHOUT = {
    "arcee",
    "cohere2_moe",
    "deepseek_v4",
    "exaone_moe",
    "gemma3n",
    "flex_olmo",
    "gemma4_text",
    "gemma4_unified_text",
    "granitemoehybrid",
    "hunyuan_v1_dense",
    "llama4_text",
    "ministral3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
}
"""Families of which no config was at hand that could be published here, or that are only parts of others."""
DEFAULTS = {
    row.model_type: {*row.defaults, *row.names.values()}
    for module in pkgutil.iter_modules(arch.__path__, "memplan.arch.")
    for row in getattr(importlib.import_module(module.name), "ROWS", ())
    if hasattr(row, "defaults")
}
"""The keys that each family reads, under its class's own names too."""
REQUIRED = {"name", "hub_id", "title", "source", "parameters", "config"}


@over(NAMES)
def test_parameters_are_what_the_config_describes(name: str) -> None:
    preset = model_preset(name)
    spec = parse_config(preset["config"], name, preset["source"])
    assert spec.params.total == preset["parameters"]
    known = ("code of its own", "PyTorch code", "separate head", "convolution", "audio tower")
    remarks = [note for note in spec.notes if not any(words in note for words in known)]
    assert remarks == [], "a preset leaves nothing to a default worth a remark"


@over(NAMES)
def test_a_preset_is_whole(name: str) -> None:
    preset = model_preset(name)
    assert set(preset) - {"also", "differs", "license", "published"} == REQUIRED
    assert set(preset.get("differs", ())) <= set(preset.get("also", ()))
    assert preset["name"] == name
    assert preset["title"]
    assert preset["source"]
    assert all(hub_id.count("/") == 1 for hub_id in hub_ids(preset))


def test_every_repository_finds_its_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    presets = list(every_model())
    monkeypatch.setattr(memplan.presets, "every_model", lambda: presets)
    assert [
        hub_id for preset in presets for hub_id in hub_ids(preset) if find_by_hub_id(hub_id) != preset["name"]
    ] == []


@over(NAMES)
def test_a_preset_holds_only_keys_that_are_read(name: str) -> None:
    config = model_preset(name)["config"]
    if config["model_type"] in DEFAULTS:
        known = {*DEFAULTS[config["model_type"]], "model_type", "head_dim", "torch_dtype", "layer_types"}
        assert set(config) <= known


def test_models_in_use_from_small_to_huge() -> None:
    presets = list(every_model())
    assert len(presets) >= 45
    assert {preset["config"]["model_type"] for preset in presets} | WITHOUT == set(FAMILIES)
    sizes = sorted(int(preset["parameters"]) for preset in presets)
    assert sizes[0] < 500e6
    assert sizes[-1] > 400e9


def test_no_hub_id_belongs_to_two_presets() -> None:
    ids = [hub_id.casefold() for preset in every_model() for hub_id in hub_ids(preset)]
    assert len(ids) == len(set(ids))
    last = [hub_id.rpartition("/")[2] for hub_id in ids]
    assert len(last) == len(set(last))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama-3.1-8B", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama-3-8b", "llama-3-8b"),
        ("zephyr-7b-beta", "zephyr-7b-beta"),
    ],
)
def test_names_that_people_type(typed: str, found: str) -> None:
    assert has_model(typed)
    assert model_preset(typed)["name"] == found


def test_a_repository_keeps_what_is_its_own() -> None:
    """Engines are as long as the config's positions where nobody says: instruct and base models differ in them."""
    longest = {
        "qwen2.5-7b": 131072,
        "Qwen/Qwen2.5-7B-Instruct": 32768,
        "Qwen3-4B-Instruct-2507": 262144,
        "Qwen/Qwen3-4B": 40960,
    }
    assert {name: load_model(name).max_positions for name in longest} == longest
    assert model_preset("qwen2.5-7b-instruct")["hub_id"] == "Qwen/Qwen2.5-7B-Instruct"


def test_hub_ids_in_any_case() -> None:
    assert find_by_hub_id("QWEN/qwen2.5-7b-instruct") == "qwen2.5-7b"
    assert find_by_hub_id("nobody/nothing") is None


@pytest.mark.parametrize("typed", ["lama-3.1-8b", "qwen2.5_7b", "gemma3-1b"])
def test_a_typo_names_the_nearest(typed: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        model_preset(typed)
    assert typed in caught.value.message
    assert caught.value.hint.startswith("did you mean")
    assert caught.value.exit_code == EXIT_MODEL


@pytest.mark.parametrize("typed", ["", "../jobs/a", "/etc/passwd", "*", "x" * 9999, "llama-3.1-8b.json", "a\x00b"])
def test_what_is_no_name_is_not_looked_up_as_a_file(typed: str) -> None:
    assert not has_model(typed)
    with pytest.raises(ModelNotFound) as caught:
        model_preset(typed)
    assert caught.value.hint
    assert len(caught.value.message) < 400


def test_one_preset_reads_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []

    def spy(path: Path) -> Preset:
        opened.append(path)
        preset: Preset = json.loads(path.read_bytes())
        return preset

    monkeypatch.setattr(memplan.presets, "read", spy)
    model_preset("qwen3-8b")
    assert [path.name for path in opened] == ["qwen3-8b.json"]


def test_presets_are_found_in_a_wheel_and_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = presets_dir()
    package = tmp_path / "memplan"
    package.mkdir()
    monkeypatch.setattr(memplan.presets, "__file__", str(package / "presets.py"))
    with pytest.raises(InternalError, match="no presets"):
        presets_dir()
    shutil.copytree(here / "models", tmp_path / "presets" / "models")
    assert presets_dir() == tmp_path / "presets"
    shutil.copytree(here / "models", package / "_presets" / "models")
    assert presets_dir() == package / "_presets"
    assert model_names() == NAMES
