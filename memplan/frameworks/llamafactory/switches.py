"""What LLaMA-Factory trains of a model that sees images: its language model alone, where nobody says otherwise; the
optimizers of its own switches; and which version it is."""

from dataclasses import replace
from functools import partial
from typing import Any

from memplan.frameworks.base import DEFAULT, FILE, Draft, Keys, Origin
from memplan.frameworks.common.checkpoints import spec_of
from memplan.frameworks.common.image_bounds import fill_with_images
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.hugging_face.towers import reads_text_alone
from memplan.frameworks.hugging_face.version import told
from memplan.frameworks.llamafactory.keys import DEFAULTS
from memplan.frameworks.own_words.names import lora_targets, may_see_images
from memplan.frameworks.project.pinned import pinned
from memplan.spec.freezing import LANGUAGE_MODEL
from memplan.tables.trainer import version_key
from memplan.units import pairs_of

RESTING = {
    "freeze_vision_tower": ("vision_tower", True),
    "freeze_multi_modal_projector": ("multi_modal_projector", True),
    "freeze_language_model": (LANGUAGE_MODEL, False),
}
"""What of a model with a vision tower rests in full fine-tuning, and whether it does where nobody says otherwise (the
trainer's row); adapter.py: _setup_full_tuning."""

BESIDE = pairs_of("0.8=4.45 0.9.1=4.46 0.9.2=4.49 0.9.3=4.52 0.9.4=4.57 0.9.5=5.6")
"""The newest transformers that each version lets in (requirements.txt, from 0.9.4 on pyproject.toml)."""


def resting(keys: Keys) -> list[str]:
    """Parts that are not trained."""
    return [part for key, (part, rests) in RESTING.items() if (keys.flag(key) if keys.has(key) else rests)]


def rest(keys: Keys) -> None:
    """Parts of a model that sees images, once its precision is known: ``freeze`` where they are no default's."""
    model = str(keys.draft.options.get("model") or keys.get("model_name_or_path") or "")
    other = next((key for key, (_, rests) in RESTING.items() if keys.has(key) and keys.flag(key) != rests), "")
    on = resting(keys)
    if reads_text_alone(model) or "freeze" in keys.draft.given or not (other or may_see_images(model)):
        return
    if "vision_tower" not in on or LANGUAGE_MODEL in on:
        fill_with_images(keys.draft, keys.settings.where(other), other)
    key = other or next(iter(RESTING))

    def finish(draft: Draft) -> None:
        said = draft.said
        sharded = said.get("zero_stage") or str(said.get("sharding") or "").startswith("zero")
        mixed = not sharded and said.get("precision") not in ("bf16", "fp16")
        if mixed and on:
            why = f"{' and '.join(on)} rests in the checkpoint's dtype, and is counted in fp32, which takes more"
            draft.bound(key, keys.settings.where(key), why, "freezing")
        if mixed and "precision" not in said:
            amp, origin = draft.facts.get("amp", ("no", Origin(DEFAULT, "no mixed precision is asked for")))
            draft.put("precision", "fp32" if amp == "no" else f"{amp}-amp", origin)
        if mixed or other:
            keys.put("freeze", on, *([other] if other else []))
        if LANGUAGE_MODEL in on and said.get("gradient_checkpointing") == "full":
            _keep_layers(draft, key, keys.settings.where(key), "vision_tower" not in on)

    keys.draft.finishers["resting"] = finish


def _keep_layers(draft: Draft, key: str, where: str, tower: bool) -> None:
    """Layers that rest are not recomputed, and what gradients pass through keeps all that it made
    (model_utils/checkpointing.py: get_custom_gradient_checkpointing_func). ``tower``: its layers are trained."""
    draft.values["gradient_checkpointing"] = "none"
    why = f"{where}: LLaMA-Factory recomputes no layer that rests, and gradients pass through the language model"
    draft.origins["gradient_checkpointing"] = Origin(FILE, why)
    if tower:
        draft.bound(key, where, "the tower, which is recomputed, is counted as kept too", "checkpointing")


NO_LESS = {
    **dict.fromkeys(
        ("galore_layerwise", "apollo_layerwise"), ("gradients are counted as held until the step", "optimizer")
    ),
    "use_badam": ("all weights are counted as trained at once", "optimizer"),
    "use_llama_pro": ("all weights are counted as trained, though only expanded blocks are", "freezing"),
}
"""Switches that take no more than what is counted without them, and what they decide."""


def _send_inputs(keys: Keys, draft: Draft) -> None:
    """Layers' inputs wait on the host, by a function that is as a reentrant checkpoint, whatever ``use_reentrant_gc``
    says (model_utils/checkpointing.py: get_unsloth_gradient_checkpointing_func)."""
    key, spec = "use_unsloth_gc", spec_of(draft.said)
    if draft.said.get("gradient_checkpointing") != "full":
        return
    if spec is None or spec.tower is not None or "offload" in draft.values or draft.now("sharding") == "fsdp2":
        keys.bound(key, "checkpoints on the host are counted on the GPU", "checkpointing")
        return
    keys.put("offload", ["checkpoints"], key)
    draft.values["gradient_checkpointing_reentrant"] = True
    draft.origins["gradient_checkpointing_reentrant"] = Origin(FILE, f"{keys.settings.where(key)}: {key} true")


def read_optimizer(keys: Keys) -> None:
    """``use_galore`` and its like, in place of ``optim``."""
    for flag, name in (
        ("use_galore", "galore"),
        ("use_apollo", "apollo"),
        ("use_adam_mini", "adam-mini"),
        ("use_muon", "muon"),
    ):
        if not keys.flag(flag):
            continue
        keys.draft.forget("optimizer", "optimizer_impl", "optimizer_args")
        keys.put("optimizer", name, flag)
        if name in ("galore", "apollo"):
            settings: dict[str, Any] = {
                "rank": keys.whole(f"{name}_rank", 16),
                "update_proj_gap": keys.whole(f"{name}_update_interval", 200),
                "targets": lora_targets(_linears(keys.names(f"{name}_target") or ("all",))),
            }
            keys.put("optimizer_args", settings, f"{name}_rank", flag)
    if keys.flag("use_unsloth_gc"):
        keys.draft.finishers["checkpoints"] = partial(_send_inputs, keys)
    for name, (why, decides) in NO_LESS.items():
        if keys.flag(name):
            keys.bound(name, why, decides)
    keys.skip(*NO_LESS)
    keys.skip(*(f"{name}_{key}" for name in ("galore", "apollo") for key in ("rank", "target", "update_interval")))


BLOCKS = {"mlp": ("gate_proj", "up_proj", "down_proj"), "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj")}
"""Parts of names that stand for the linears under them (trainer_utils.py: _create_galore_optimizer)."""


def _linears(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(linear for name in names for linear in BLOCKS.get(name, (name,)))


OLD, GONE = "train_bash", "evaluation_strategy"
"""A script (src/train_bash.py until 0.7.0, src/train.py from then on), and an argument of transformers'."""
SWITCH = {"true": "fa2", "1": "fa2", "false": "auto", "0": "auto"}
"""``flash_attn`` before 0.7, and what it is called since."""


NAMED = {"dpo_beta": "pref_beta", "dpo_loss": "pref_loss", "dpo_ftx": "pref_ftx"}
"""Names before 0.8, and what they are called since."""


def with_names(settings: Settings) -> Settings:
    """These settings under the names of today."""
    values = {NAMED.get(key, key): value for key, value in settings.values.items()}
    lines = {NAMED.get(key, key): line for key, line in settings.lines.items()}
    return replace(settings, values=values, lines=lines)


def defaults_of(settings: Settings, draft: Draft) -> dict[str, Any]:
    """Of its arguments, by the version (hparams/data_args.py: 1,024 tokens up to 0.9.0)."""
    put_version(settings, draft)
    return {**DEFAULTS, **({"cutoff_len": 1024} if draft.version < (0, 9, 1) else {})}


def put_version(settings: Settings, draft: Draft) -> None:
    """What the project pins, or what goes with the transformers that it, or its copy of LLaMA-Factory, lets in; else
    with the last that took an argument which went (``evaluation_strategy``), or the script that ended with 0.7."""
    if draft.now("trainer_version"):
        return
    version, whose = pinned(settings.path, "llamafactory")
    why = f"{whose} pins llamafactory {version}"
    beneath, whose = ("", "") if version else pinned(settings.path, "transformers")
    switch = str(settings.values.get("flash_attn")).lower() in SWITCH
    gone = next((key for key in (GONE, *NAMED) if key in settings.values), "flash_attn" if switch else "")
    old = draft.facts.get(OLD) or (settings.where(gone) if gone else "")
    if old and not version and not beneath:
        beneath, whose = told("transformers", "args", (GONE,))[0], str(old)
    if beneath:
        taking = (own for own, last in BESIDE.items() if version_key(beneath)[:2] <= version_key(last))
        version = next(taking, list(BESIDE)[-1])
        why = f"{whose} takes transformers {beneath}, which LLaMA-Factory {version} came out beside"
    if version:
        draft.of_version(version, why)
