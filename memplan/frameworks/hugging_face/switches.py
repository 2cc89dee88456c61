"""Switches of transformers' TrainingArguments whose parts or values bear on memory, and those that are warned about.

Source: transformers 5.23 training_args.py, trainer.py (compute_loss: LabelSmoother), integrations/liger.py."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from memplan.frameworks.asking import LORA
from memplan.frameworks.base import FILE, Keys, Origin
from memplan.frameworks.files.documents import Settings, document_of, open_document, words
from memplan.frameworks.files.following import found_at
from memplan.tables import peft_fields
from memplan.units import pairs_of

NOT_MODELLED = {
    "label_smoothing_factor": "a smoothed loss keeps the log-softmax of all logits beside them, which is not counted",
    "full_determinism": "deterministic kernels need more scratch memory, which is not counted",
    "include_for_metrics": "what evaluation collects for metrics is not counted",
    "include_inputs_for_metrics": "what evaluation collects for metrics is not counted",
}
"""TrainingArguments that bear on memory, where they are on."""
LIGER = words("rope rms_norm swiglu geglu layer_norm")


def mapping(keys: Keys, key: str) -> Keys:
    """A section that a command line writes as JSON. Raises InvalidJob for other text."""
    value = keys.raw(key)
    if isinstance(value, str):
        inner = document_of(value, keys.settings.path, "json").settings.values if value.strip()[:1] == "{" else None
        if inner is None:
            raise keys.settings.error(key, f"{value[:60]!r} is no mapping", 'write {"key": value}')
        keys.skip(key)
        settings = Settings(keys.settings.path, inner, keys.settings.lines, f"{keys.settings.prefix}{key}.")
        return Keys(keys.draft, settings, keys.framework)
    return keys.section(key)


def _saved(base: str, folder: str) -> tuple[dict[str, Any], str] | None:
    """(fields, path) of the config that PEFT saved in a folder, where it lies here."""
    path = found_at(base, f"{folder.rstrip('/')}/{peft_fields.ADAPTER}") if folder else None
    if path is None:
        return None
    shown = os.path.relpath(path)
    return dict(open_document(shown).settings.values), shown


def ask_loaded(keys: Keys, key: str) -> None:
    """Adapters that are loaded and trained on have the rank and the modules that their folder says."""
    saved = _saved(keys.settings.path, str(keys.get(key) or ""))
    if saved and saved[0].get("peft_type") == "LORA":
        fields = {name: value for name, value in saved[0].items() if value not in (None, [], {})}
        keys.draft.values["lora"] = {
            peft_fields.FIELDS[name]: fields[name] for name in peft_fields.FIELDS if name in fields
        }
        keys.draft.origins["lora"] = Origin(FILE, f"{keys.settings.where(key)}: {key}: {saved[1]}")
        keys.draft.followed.append(str(Path(saved[1]).resolve()))
        for name in sorted(name for name in peft_fields.NOT_MODELLED if saved[0].get(name)):
            keys.draft.warn(name, saved[1], "not modelled", "adapters")
    elif keys.get(key):
        why = f"adapters are loaded from {str(keys.get(key))[:60]}, which says their rank"
        keys.draft.ask("lora", keys.settings.where(key), why, LORA)
    keys.skip(key)


def read_compile(keys: Keys) -> None:
    """``torch_compile``; a backend or a mode turns it on too (TrainingArguments.__post_init__)."""
    backend, mode = keys.text("torch_compile_backend"), keys.text("torch_compile_mode")
    if not (keys.flag("torch_compile") or (keys.framework.name != "axolotl" and (backend or mode))):
        return
    keys.put("compile", True, "torch_compile", "torch_compile_backend", "torch_compile_mode")
    if backend and backend.lower() != "inductor":
        keys.warn("torch_compile_backend", f"{backend[:20]} is counted as inductor")
    if mode in ("reduce-overhead", "max-autotune"):
        keys.warn("torch_compile_mode", "CUDA graphs are not counted")


def read_liger_parts(keys: Keys) -> None:
    """``liger_kernel_config``: which of Liger's kernels run."""
    if not keys.has("liger_kernel_config"):
        return
    inner = mapping(keys, "liger_kernel_config")
    usual = {"fused_linear_cross_entropy": True, "cross_entropy": False}
    if inner.flag("fused_linear_cross_entropy") is False and keys.draft.values.get("method") in (None, "sft"):
        inner.put("loss_head", "cross-entropy", "fused_linear_cross_entropy")
        usual.pop("fused_linear_cross_entropy")
    for key in inner.settings.values:
        if inner.flag(key) is not None and inner.flag(key) is not usual.get(key, True) and key in (*usual, *LIGER):
            inner.warn(key, "the kernels that Liger takes by itself are counted", "loss" if key in usual else None)
    inner.close()


PARTS_OF_LORA = pairs_of(
    """r=lora_r rank=lora_r lora_r lora_rank=lora_r alpha=lora_alpha lora_alpha dropout=lora_dropout lora_dropout
    target_modules=lora_target_modules targets=lora_target_modules lora_target_modules
    modules_to_save=lora_modules_to_save bias=lora_bias use_dora use_rslora enabled=use_lora enable=use_lora use_lora"""
)
"""Of a section, PEFT's own names and what users write for them -> the flat names of scripts."""
SAYS_NOTHING = words("task_type inference_mode fan_in_fan_out")


def with_lora_section(settings: Settings) -> Settings:
    """``lora: {r: 16, target_modules: […]}`` of a project's own file as the flat keys that scripts have; a section with
    anything else in it stays, and is told."""
    name = next((name for name in ("lora", "peft", "lora_config", "peft_config") if _is_lora(settings, name)), "")
    if not name:
        return settings
    section = {key: value for key, value in settings.values[name].items() if key not in SAYS_NOTHING}
    flat = {PARTS_OF_LORA[key]: value for key, value in section.items()}
    lines = {PARTS_OF_LORA[key]: settings.lines.get(f"{name}.{key}", settings.lines.get(name, 1)) for key in section}
    own = {key: value for key, value in settings.values.items() if key != name}
    return replace(settings, values={"use_lora": True, **flat, **own}, lines={**lines, **settings.lines})


def _is_lora(settings: Settings, name: str) -> bool:
    """Whether a section says how large adapters are, and nothing that is not known."""
    section = settings.values.get(name)
    parts = [PARTS_OF_LORA.get(key, key) for key in section] if isinstance(section, Mapping) else []
    known = all(part in SAYS_NOTHING or part in PARTS_OF_LORA.values() for part in parts)
    return "lora_r" in parts and known and len(parts) == len(set(parts)) and not set(parts) & set(settings.values)
