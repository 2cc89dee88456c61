"""What Axolotl trains of a model and by which code: adapters over a quantised base, attention, fused kernels."""

from collections.abc import Mapping
from typing import Any

from memplan.errors import InvalidJob, MemplanError
from memplan.frameworks.axolotl.keys import ATTENTION_FLAGS, LIGER
from memplan.frameworks.base import DEFAULT, Draft, Keys, Origin
from memplan.frameworks.common.local_models import STORED
from memplan.frameworks.hugging_face.arguments import read_attention
from memplan.frameworks.hugging_face.switches import mapping
from memplan.frameworks.own_words.names import lora_targets, module_names
from memplan.models import load_model
from memplan.resolve.adapted_parts import linears_of
from memplan.spec.lora import ALL_LINEAR
from memplan.units import words_of


def read_adapter(keys: Keys) -> None:
    """``adapter``: lora or qlora, over a base in 4 or 8 bits (nf4, quantised twice). Four bits beside lora are
    none: the base is loaded as it is (loaders/model.py: _set_quantization_config), and prepared as one of them."""
    kind = (keys.text("adapter") or "").lower()
    names = words_of(
        """lora_r lora_alpha lora_dropout lora_target_linear lora_target_modules lora_modules_to_save peft_use_dora
        peft_use_rslora peft bnb_config_kwargs peft_autocast_adapter_dtype peft_layers_to_transform lora_rank_pattern
        peft_trainable_token_indices"""
    )
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    if four and eight:
        raise keys.settings.error("load_in_8bit", "true beside load_in_4bit: true", "keep one of them")
    if not kind:
        keys.skip(*names)
        return
    if kind not in ("lora", "qlora"):
        keys.warn("adapter", f"{kind[:20]} is not modelled: it is counted as LoRA")
    lora: dict[str, Any] = {"dropout": keys.number("lora_dropout"), "targets": _targets(keys), **_parts(keys)}
    if keys.has("lora_r"):
        lora["r"] = keys.whole("lora_r")
    if keys.has("lora_alpha"):
        lora["alpha"] = keys.number("lora_alpha")
    if keys.names("lora_modules_to_save"):
        lora["modules_to_save"] = list(keys.names("lora_modules_to_save") or ())
    for job_key, key in (("dora", "peft_use_dora"), ("rslora", "peft_use_rslora")):
        if keys.flag(key):
            lora[job_key] = True
    if keys.flag("peft_autocast_adapter_dtype") is False:
        lora["dtype"] = keys.draft.facts["load"][0]
    keys.put("lora", lora, "adapter")
    if keys.flag("lora_target_linear"):
        keys.draft.finishers["targets"] = _listed
    keys.skip(*names, "quantize_moe_experts")
    stored = STORED.search(keys.text("base_model") or "") or keys.flag("gptq")
    if keys.flag("gptq"):
        keys.skip("gptq_groupsize", "gptq_model_v1")
        what = "of how many bits a GPTQ checkpoint is, its own config says"
        keys.draft.ask("quantization", keys.settings.where("gptq"), what, "add --quantization gptq-4bit")
    if four and kind == "lora" and not stored:
        keys.warn("load_in_4bit", "Axolotl quantises for adapter: qlora alone, and casts this base to fp32", "")
        keys.draft.facts["cast"] = True
        four = None
    if four:
        inner = mapping(keys, "bnb_config_kwargs") if keys.has("bnb_config_kwargs") else None
        quant = (inner.text("bnb_4bit_quant_type") if inner else None) or "nf4"
        twice = inner.flag("bnb_4bit_use_double_quant") if inner else None
        keys.put("quantization", "nf4-double" if quant == "nf4" and twice is not False else quant, "load_in_4bit")
        keys.put_on("quantize_moe_experts", "quantize_experts", True)
    elif eight:
        keys.put("quantization", "int8", "load_in_8bit")
        if keys.flag("quantize_moe_experts"):
            keys.warn("quantize_moe_experts", "experts in 8 bits are not modelled")
    if four or eight:
        keys.draft.put(
            "kbit_upcast", False, Origin(DEFAULT, f"{keys.framework.label}: norms are cast back to torch_dtype")
        )
        if not keys.flag("quantize_moe_experts"):
            why = f"{keys.framework.label}: prepare_model_for_kbit_training casts stacked experts, and they stay so"
            keys.draft.put("kbit_upcast_experts", True, Origin(DEFAULT, why))


def _listed(draft: Draft) -> None:
    """``lora_target_linear`` lists the names of nn.Linear modules (find_all_linear_names), of which stacked experts of
    transformers 5 are none: PEFT's all-linear, which adapts them too, is not what it gives."""
    lora, model = draft.values.get("lora"), draft.now("model")
    if not isinstance(lora, dict) or "lora" in draft.given or model is None or draft.values["trainer_version"] < "5":
        return
    try:
        spec = load_model(model)
    except MemplanError:
        return
    names, stacked, _ = linears_of(spec)
    if stacked and spec.tower is None:
        own = () if lora["targets"] == ALL_LINEAR else lora["targets"]
        lora["targets"] = sorted({*names, *own} - {ALL_LINEAR})


def put_cast(keys: Keys) -> None:
    """A base that is prepared as if it were quantised is fp32; not under FSDP and ZeRO-3, where nothing is prepared."""
    if "cast" in keys.draft.facts and not str(keys.draft.values.get("sharding")).startswith(("fsdp", "zero3")):
        why = f"{keys.framework.label}: PEFT's prepare_model_for_kbit_training casts what is not quantised"
        keys.draft.facts["load"] = ("fp32", Origin(DEFAULT, why))


def _parts(keys: Keys) -> dict[str, Any]:
    """Layers, ranks of their own, rows of the embedding that are trained. A rank by an expression is not followed."""
    parts: dict[str, Any] = {}
    layers = keys.get("peft_layers_to_transform")
    if layers:
        parts["layers_to_transform"] = layers
    ranks = keys.get("lora_rank_pattern")
    ranks = dict(ranks) if isinstance(ranks, Mapping) else {}
    if all(_is_name(str(name)) for name in ranks):
        parts |= {"rank_pattern": ranks} if ranks else {}
    else:
        keys.warn("lora_rank_pattern", "ranks by path or expression are not read: every adapter has lora_r")
    rows = keys.get("peft_trainable_token_indices")
    if rows:
        parts["trainable_token_indices"] = rows
    return parts


def _is_name(text: str) -> bool:
    return text.replace("_", "").isalnum()


def _targets(keys: Keys) -> str | list[str]:
    """Names, a regular expression whose last part is names, or every linear."""
    if keys.flag("lora_target_linear"):
        more = [name for name in keys.names("lora_target_modules") or () if _is_name(name)]
        return ["all-linear", *more] if more or keys.get("peft_layers_to_transform") else "all-linear"
    value = keys.get("lora_target_modules")
    if isinstance(value, str) and not value.replace("_", "").replace("-", "").isalnum():
        found = module_names(value)
        if not found:
            keys.warn("lora_target_modules", "the regular expression is not read: every linear is counted as adapted")
            return "all-linear"
        return list(found)
    names = keys.names("lora_target_modules")
    if not names:
        keys.remark(
            "neither lora_target_linear nor lora_target_modules is set: "
            "q_proj and v_proj are counted, as PEFT takes for Llama and Qwen"
        )
    return lora_targets(names or ("q_proj", "v_proj"))


def read_attention_flags(keys: Keys) -> None:
    """``attn_implementation``, or a flag of earlier versions. Raises InvalidJob for both, as Axolotl does
    (utils/schemas/config.py: normalize_attn_implementation)."""
    keys.skip(*ATTENTION_FLAGS)
    given = [flag for flag in ATTENTION_FLAGS if keys.flag(flag)]
    flag = given[0] if given else ""
    if keys.has("attn_implementation"):
        if flag:
            raise InvalidJob(
                f"{keys.settings.where(flag)}: {flag} beside attn_implementation, which Axolotl refuses",
                f"take {flag} out",
            )
        read_attention(keys, "attn_implementation")
    elif flag:
        name = ATTENTION_FLAGS[flag]
        found = {"flash_attention_2": "flash", "sdpa": "sdpa", "eager": "eager"}.get(name)
        if found:
            keys.put("attention", found, flag)
        else:
            keys.warn(flag, f"attention {name} is not modelled: sdpa is counted in its place")


LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"


def read_kernels(keys: Keys, method: str) -> None:
    """Liger's kernels and Apple's cut cross-entropy, where their plugins are loaded."""
    plugins = " ".join(str(item) for item in keys.get("plugins") or ())
    wanted = keys.flag("cut_cross_entropy")
    cut = wanted or (wanted is None and "cut_cross_entropy" in plugins)
    loaded = "liger" in plugins
    parts = [key for key in LIGER if keys.flag(key)]
    fused = bool(keys.flag("liger_fused_linear_cross_entropy"))
    if (parts or fused) and not loaded:
        where = keys.settings.where(parts[0] if parts else "liger_fused_linear_cross_entropy")
        keys.draft.remarks.append(f"{where}: Liger's keys do nothing without plugins: [{LIGER_PLUGIN}]")
        parts, fused = [], False
    keys.skip(*LIGER, "liger_fused_linear_cross_entropy")
    if parts or fused:
        keys.put("kernels", "liger", *(parts or ["liger_fused_linear_cross_entropy"]))
        if method == "sft" and not fused and not cut:
            keys.put("loss_head", "cross-entropy", parts[0])
        if not {"liger_rms_norm"} & set(parts) or not {"liger_glu_activation", "liger_swiglu"} & set(parts):
            keys.remark(f"all of Liger's layer kernels are counted, though only {', '.join(parts) or 'its loss'} is on")
    if cut and method == "sft":
        keys.put("loss_head", "cut-cross-entropy", "cut_cross_entropy" if wanted else "plugins")
    if method != "sft" and keys.flag("dpo_use_liger_kernel"):
        keys.put("kernels", "liger", "dpo_use_liger_kernel")
