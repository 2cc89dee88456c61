"""torchtune's models: by the function that builds them, with what is adapted and quantised."""

from typing import Any

from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import Keys
from memplan.frameworks.torchtune.keys import BUILDER, COMPONENT, MODELS, SHAPED, SIZES, TARGETS, WITH_IMAGES


def put_model(keys: Keys, dtype: str) -> None:
    """By the function that builds it; adapters and a quantised base by its name and arguments."""
    at = f"policy_model{COMPONENT}" if keys.has(f"policy_model{COMPONENT}") else f"model{COMPONENT}"
    path = keys.text(at) or ""
    match = BUILDER.fullmatch(path.rsplit(".", 1)[-1])
    kind, name = (match["kind"] or "", match["name"]) if match else ("", "")
    own = path.startswith("torchtune.models.")
    model = MODELS.get(name) if own else None
    if own and name in SHAPED and keys.has(at.replace(COMPONENT, ".embed_dim")):
        model = _shaped(keys, name, at.removesuffix("_component_"))
    if "model" in keys.draft.given:
        keys.skip(*(f"model.{size}" for size in SIZES))
    elif model is not None:
        keys.put("model", model, at)
    else:
        what = f"{path[:80] or 'nothing'} is no model of torchtune's that is known"
        keys.draft.ask("model", keys.settings.where(at), what, MODEL)
    if name in WITH_IMAGES:
        keys.warn(at, "its images, and what of its tower trains, are not counted", "model")
    if kind or keys.has("model.lora_rank"):
        _adapter(keys, kind == "qlora_", dtype)
    keys.skip("model.max_seq_len", "model.attn_dropout", "model.norm_eps", "model.rope_base", "model.scale_factor")


def _shaped(keys: Keys, name: str, at: str) -> dict[str, Any]:
    """A model by its sizes."""
    sizes = {theirs: keys.whole(f"{at}{own}") for own, theirs in SIZES.items()}
    heads = sizes["num_attention_heads"]
    given = {"num_key_value_heads": heads, **{key: value for key, value in sizes.items() if value is not None}}
    tied = bool(keys.flag(f"{at}tie_word_embeddings"))
    return {"model_type": "qwen2" if name == "qwen2" else "llama", "tie_word_embeddings": tied, **given}


def _adapter(keys: Keys, quantised: bool, dtype: str) -> None:
    """LoRA or DoRA in the dtype of all the rest; NF4 of torchao under it."""
    names = keys.names("model.lora_attn_modules") or ()
    targets = [TARGETS[name] for name in (part.strip("[]'\" ") for part in names) if name in TARGETS]
    targets += ["gate_proj", "up_proj", "down_proj"] if keys.flag("model.apply_lora_to_mlp") else []
    targets += ["lm_head"] if keys.flag("model.apply_lora_to_output") else []
    rank = keys.whole("model.lora_rank") if keys.has("model.lora_rank") else 8
    dropout = keys.number("model.lora_dropout") or 0.0
    lora = {"r": rank, "alpha": keys.number("model.lora_alpha"), "dropout": dropout, "targets": targets, "dtype": dtype}
    if keys.flag("model.use_dora"):
        lora["dora"] = True
    if not targets:
        raise keys.settings.error("model.lora_attn_modules", "names no module", "write such as ['q_proj', 'v_proj']")
    keys.put("lora", lora, "model.lora_rank", f"model{COMPONENT}")
    if quantised or keys.flag("model.quantize_base"):
        keys.put("quantization", "nf4-torchao", "model.quantize_base" if not quantised else f"model{COMPONENT}")
