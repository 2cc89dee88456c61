"""What ms-swift trains: adapters, all weights or a part of them, over which base, and by which optimizer.

Source: ms-swift 4.5 swift/pipelines/train/tuner.py, arguments/tuner_args.py, arguments/base_args/quant_args.py,
optimizers/; 2.6 swift/llm/tuner.py."""

import re
from typing import Any

from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.common.image_bounds import fill_with_images
from memplan.frameworks.hugging_face.towers import reads_text_alone
from memplan.frameworks.megatron.keys import FUSED_LINEARS
from memplan.frameworks.own_words.names import lora_targets, module_names
from memplan.frameworks.swift.keys import NOT_MODELLED, TUNERS
from memplan.spec.freezing import LANGUAGE_MODEL

EVERY = ("all-linear", "ALL", "all")
USUAL = ("q_proj", "k_proj", "v_proj")
"""Of most models: the query, key and value that DEFAULT stands for."""
PARTS = {"freeze_vit": "vision_tower", "freeze_aligner": "multi_modal_projector", "freeze_llm": LANGUAGE_MODEL}
LIKE_LORA = ("lora", "longlora", "adalora", "lora_llm")
OF_TOWERS = re.compile(
    r"(?i)vis(ion|ual)|audio|(^|[._])(vit|vpm|apm|aligner|merger|mlp1|resampler|connector)|projector"
)
"""Modules of a model that sees or hears, outside of its language model."""
BESIDE = "lora_llm"
"""Adapters on the language model, and tower and projector whole (tuner_plugin/lora_llm.py)."""
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def read_tower(keys: Keys) -> None:
    """``vit_gradient_checkpointing false`` beside a language model with checkpoints, where the tower trains."""
    off = keys.flag("vit_gradient_checkpointing") is False and keys.flag("freeze_vit") is False
    if off and keys.draft.values.get("gradient_checkpointing") != "none":
        why = "a tower that trains is counted with the language model's checkpoints"
        keys.warn("vit_gradient_checkpointing", why, "checkpointing")
    keys.skip("vit_gradient_checkpointing")


def read_tuning(keys: Keys, newest: bool) -> bool:
    """``tuner_type`` with its settings; whether adapters train. ``newest``: ms-swift 4 keeps ``lora_dtype``."""
    kind = (keys.text("tuner_type") or "lora").lower()
    keys.skip("lora_rank", "lora_alpha", "lora_dropout", "target_modules", "target_regex", "modules_to_save",
              "lora_dtype", "lora_bias", "use_dora", *PARTS, "adalora_init_r",
              "lora_modules")  # fmt: skip
    others = {key for key in keys.settings.values if _of_another(key, kind, keys)}
    keys.skip(*others)
    for key, (decides, why) in NOT_MODELLED.items():
        if key not in others and keys.is_on(key):
            keys.warn(key, why, decides)
    if kind == "full":
        keys.put("lora", None, "tuner_type")
        _freeze(keys)
        return False
    if kind not in LIKE_LORA:
        keys.warn("tuner_type", f"{kind[:20]} is not modelled: it is counted as LoRA", "adapters")
    elif kind == "longlora":
        where, why = keys.settings.where("tuner_type"), "attention of shifted groups is counted over whole sequences"
        keys.draft.bound("tuner_type", where, why, "attention")
    if (keys.text("tuner_backend") or "").lower() == "unsloth":
        keys.warn("tuner_backend", "Unsloth's kernels and its checkpoints on the host are not counted", "attention")
    trained = "tuner_type" if kind == BESIDE else "freeze_vit"
    if kind == BESIDE or (keys.has("freeze_vit") and not keys.flag("freeze_vit")):
        fill_with_images(keys.draft, keys.settings.where(trained), trained)
    if keys.flag("freeze_llm"):
        keys.warn("freeze_llm", "the language model is counted as adapted", "freezing")
    _lora(keys, kind, newest)
    return True


def _of_another(key: str, kind: str, keys: Keys) -> bool:
    """Whether it is of a tuner that does not run, or names what ``freeze_vit`` and its like rest: ``args.json`` holds
    all that there is."""
    if key == "freeze_parameters" and keys.has("swift_version"):
        return all(map(OF_TOWERS.search, keys.names(key) or ())) and any(map(keys.flag, PARTS))
    switch = next((switch for start, switch in TUNERS.items() if key.startswith(start)), kind)
    return switch not in (kind, str(keys.raw("init_weights"))) and not keys.is_on(switch)


def leave_tower(draft: Draft) -> None:
    """Adapters of every linear stand on the parts that are not frozen (tuner.py: get_multimodal_target_regex)."""
    lora, resting = draft.values.get("lora"), draft.facts.get("resting", ())
    model = draft.now("model")
    if isinstance(lora, dict) and resting and not reads_text_alone(model):
        lora["modules_to_train" if draft.facts.get("beside") else "exclude_modules"] = list(resting)


def _lora(keys: Keys, kind: str, newest: bool) -> None:
    rank = "adalora_init_r" if kind == "adalora" else "lora_rank"
    lora: dict[str, Any] = {
        "r": keys.whole(rank) or (12 if kind == "adalora" else 8),
        "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
        "targets": _targets(keys),
    }
    if kind == BESIDE:
        lora["targets"], keys.draft.facts["beside"] = "all-linear", True
    if "all-linear" in lora["targets"]:
        keys.draft.facts["resting"] = tuple(
            PARTS[key] for key in ("freeze_vit", "freeze_aligner") if kind == BESIDE or keys.flag(key)
        )
        keys.draft.finishers["tower"] = leave_tower
    saved = [name for name in keys.names("modules_to_save") or () if name.upper() not in ("EMBEDDING", "LN")]
    ends = {"all-embedding": "embed_tokens", "wte": "embed_tokens", "word_embeddings": "embed_tokens",
            "output_layer": "lm_head"}  # fmt: skip
    if saved:
        lora["modules_to_save"] = [ends.get(name, name) for name in saved]
    if keys.flag("use_dora"):
        lora["dora"] = True
    if (keys.text("lora_bias") or "none").lower() == "all":
        lora["bias"] = "all"
    dtype = DTYPES.get((keys.text("lora_dtype") or "").lower(), "")
    if dtype and newest:
        lora["dtype"] = dtype
    keys.put(
        "lora", lora, *(key for key in ("lora_rank", "target_modules", "tuner_type") if keys.has(key)), "tuner_type"
    )
    if keys.has("adapters") and not keys.has("lora_rank"):
        keys.warn("adapters", "adapters go on from a checkpoint, whose rank it says: add --lora-r", "adapters")
    keys.skip("adapters")


def _targets(keys: Keys) -> str | list[str]:
    """Names; ALL and all-linear are every linear of the language model; DEFAULT its query, key and value."""
    pattern = keys.text("target_regex")
    if pattern:
        found = module_names(pattern)
        if not found:
            keys.warn(
                "target_regex", "its modules are not read from it: q_proj, k_proj, v_proj are counted", "adapters"
            )
        return list(found or USUAL)
    names = keys.names("target_modules") or ("all-linear",)
    rest = [name for name in names if name.upper() not in ("DEFAULT", "AUTO", "EMBEDDING", "ALL-EMBEDDING")]
    if any(name.upper() in ("DEFAULT", "AUTO") for name in names) and not set(rest) & set(EVERY):
        where = keys.settings.where("target_modules")
        keys.draft.remarks.append(f"{where}: DEFAULT is counted as q_proj, k_proj and v_proj")
        rest += USUAL
    ends = ["embed_tokens"] if any("EMBEDDING" in name.upper() for name in names) else []
    made = lora_targets(tuple(part for name in rest for part in FUSED_LINEARS.get(name, (name,))), EVERY)
    return [*([made] if isinstance(made, str) else made), *ends] if ends else made


def _freeze(keys: Keys) -> None:
    """Of a model with a vision tower: by default its tower and its projector rest."""
    on = {key: bool(keys.flag(key)) for key in PARTS}
    said = next((key for key in PARTS if keys.has(key)), "")
    if not said or on == {"freeze_vit": True, "freeze_aligner": True, "freeze_llm": False}:
        return  # the trainer's row says so, and models without a tower have nothing to freeze
    if not on["freeze_vit"] or on["freeze_llm"]:
        fill_with_images(keys.draft, keys.settings.where(said), said)
    keys.put("freeze", [PARTS[key] for key in PARTS if on[key]], said)


def read_quantisation(keys: Keys) -> None:
    """``quant_method`` and ``quant_bits``; models that come quantised say so themselves."""
    bits, method = keys.text("quant_bits"), (keys.text("quant_method") or "").lower()
    kind, twice = (keys.text("bnb_4bit_quant_type") or "nf4").lower(), keys.flag("bnb_4bit_use_double_quant")
    if method in ("", "bnb") and bits in ("4", "8"):
        found = "int8" if bits == "8" else "nf4-double" if twice and kind == "nf4" else kind
        keys.put("quantization", found, "quant_bits")
    elif method == "hqq" and bits == "4":
        keys.put("quantization", "hqq-4bit", "quant_bits")
    elif method in ("awq", "gptq", "gptq_v2") and bits in (None, "0", "4"):
        keys.put("quantization", "awq-4bit" if method == "awq" else "gptq-4bit", "quant_method")
    elif method or bits not in (None, "0"):
        key = "quant_bits" if keys.has("quant_bits") else "quant_method"
        keys.warn(key, f"{bits or ''} bits of {method[:20] or 'no method'} are not modelled", "quantisation")


def put_quantised(keys: Keys, name: str) -> None:
    """What a model's name says of its checkpoint, where an option names another one in its place."""
    found = re.search(r"-(awq|gptq-int4|int4|gptq-int8|int8|aqlm|bnb-4bit)\b", name.lower())
    if not found or "quantization" in keys.draft.given:
        return
    kinds = {"awq": "awq-4bit", "int4": "gptq-4bit", "gptq-int4": "gptq-4bit", "bnb-4bit": "nf4-double"}
    if found.group(1) in kinds:
        keys.put("quantization", kinds[found.group(1)], "model" if keys.has("model") else "model_type")
    else:
        keys.draft.warn("model", keys.settings.where("model"), f"a checkpoint in {found.group(1)}", "quantisation")


def read_optimizer(keys: Keys) -> None:
    """``use_galore`` and ``optimizer`` in place of transformers' ``optim``."""
    plugin = (keys.text("optimizer") or "").lower()
    name = "galore" if keys.flag("use_galore") or plugin == "galore" else "muon" if plugin == "muon" else ""
    keys.skip("optimizer", "galore_target_modules", "galore_rank", "galore_update_proj_gap")
    if not name:
        if plugin not in ("", "lorap", "multimodal"):
            keys.warn(
                "optimizer", f"optimizer {plugin[:20]} is not modelled: adamw is counted in its place", "optimizer"
            )
        return
    keys.draft.forget("optimizer", "optimizer_impl", "optimizer_args")
    keys.put("optimizer", name, "use_galore" if keys.has("use_galore") else "optimizer")
    if name == "galore":
        given = keys.names("galore_target_modules")
        settings: dict[str, Any] = {
            "rank": keys.whole("galore_rank"),
            "update_proj_gap": keys.whole("galore_update_proj_gap"),
            "targets": lora_targets(given, EVERY) if given else "all-linear",
        }
        keys.put("optimizer_args", settings, "galore_rank", "use_galore")
