"""The model that Megatron's arguments describe, as a like one's config.json: Llama, Qwen, Mixtral, DeepSeek, GPT-2.

Source: Megatron-LM megatron/training/arguments.py (core 0.16): defaults of _add_network_size_args and validate_args."""

import re
from typing import Any

from memplan.frameworks.base import DEFAULT, FILE, Draft, Keys, Origin
from memplan.frameworks.common.fsdp_keys import put_inner
from memplan.frameworks.common.local_models import vocabulary_by_name
from memplan.frameworks.files.documents import is_template
from memplan.frameworks.megatron.keys import GONE
from memplan.tables.texts import parts_of
from memplan.units import ceil_div, words_of

_PARTS = parts_of(__file__)

VOCABULARIES = {"gpt2bpetokenizer": 50257, "nulltokenizer": 32000}
PATCHED = {"qwen2": 151643, "qwen2vl": 151643, "llama3": 128000, "llama": 32000, "deepseekv2": 100000}
"""Pai-Megatron-Patch's patch_tokenizer_type, which extra_vocab_size adds to (megatron_patch/tokenizer/__init__.py)."""
ASSUMED_VOCABULARY = 128256
_SIZED = re.compile(r"(?i)(?:tok[a-z]*|vocab|bpe|spm)[_-](\d{5,6})(?!\d)")
_GROWN = re.compile(r"(?i)merged|exten[ds]|expan[ds]|chinese|korean|japan|jalm|\d+k(?![a-z])")
"""In the path of a tokenizer that has more tokens than the one it was made of."""
_LLAMA_2 = re.compile(r"(?i)llama-?_?2|llama(?!-?_?[34])|mi[sx]tral")
"""In the path of a tokenizer of 32,000 tokens."""
SHAPE = words_of(_PARTS["shape"])


def config_of(keys: Keys) -> dict[str, Any]:
    """A config.json of the shape that the arguments say; what it leaves open is said in a remark."""
    keys.skip(*SHAPE)
    width, heads = keys.whole("hidden_size") or 0, keys.whole("num_attention_heads", 1)
    gated = bool(keys.flag("swiglu"))
    fewer = keys.flag("group_query_attention") or keys.text("attention_head_type") == "multiquery"  # bigcode's fork
    feed_forward = keys.whole("ffn_hidden_size") or (int(4 * width * 2 / 3 / 64) * 64 if gated else 4 * width)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": keys.whole("num_layers") or 0,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("num_query_groups", 1) if fewer else heads,
        "intermediate_size": feed_forward,
        "vocab_size": _vocabulary(keys),
        "max_position_embeddings": keys.whole("max_position_embeddings") or keys.whole("seq_length", 2048),
        "tie_word_embeddings": not keys.flag("untie_embeddings_and_output_weights"),
    }
    if keys.has("kv_channels"):
        config["head_dim"] = keys.whole("kv_channels")
    if keys.flag("multi_latent_attention") or keys.flag("multi_head_latent_attention"):
        return config | _latent(keys, feed_forward)
    if keys.whole("num_experts"):
        return config | _experts(keys, feed_forward)
    if gated:
        if keys.flag("qk_layernorm"):
            return config | {"model_type": "qwen3", "head_dim": config.get("head_dim", width // heads)}
        return config | ({"model_type": "qwen2"} if keys.flag("add_qkv_bias") else {})
    if config["num_key_value_heads"] != heads:
        key = "num_query_groups" if keys.has("num_query_groups") else "attention_head_type"
        keys.bound(key, "of a feed-forward without a gate, as many key heads as query heads are counted", "attention")
    return {
        "model_type": "gpt2",
        "n_embd": width,
        "n_layer": config["num_hidden_layers"],
        "n_head": heads,
        "n_inner": feed_forward,
        "n_positions": config["max_position_embeddings"],
        "vocab_size": config["vocab_size"],
        "tie_word_embeddings": config["tie_word_embeddings"],
    }


def _vocabulary(keys: Keys) -> int:
    """Padded, or the tokenizer's; else assumed."""
    found = keys.whole("padded_vocab_size") or keys.whole("vocab_size")
    extra = keys.whole("extra_vocab_size")
    patched = PATCHED.get(str(keys.get("patch_tokenizer_type") or "").lower().removesuffix("tokenizer"))
    if found or (patched and extra is not None):
        return found or (patched or 0) + (extra or 0)
    kind, file = str(keys.get("tokenizer_type") or "").lower(), keys.get("vocab_file")
    if not kind and file and keys.get("merge_file"):  # pretrain_gpt.py: args_defaults
        kind = "gpt2bpetokenizer"
    named = _SIZED.search(f"{file or ''} {keys.get('tokenizer_model') or ''}")
    if named:
        keys.remark(f"a vocabulary of {named.group(1)}, as the tokenizer's path says")
        return int(named.group(1))
    if kind == "gpt2bpetokenizer" and file and not is_template(file) and not re.search(r"(?i)gpt-?2", str(file)):
        why = f"the vocabulary of {str(file)[-60:]} is counted as GPT-2's"
        keys.draft.warn("vocab_file", keys.settings.where("vocab_file"), why, "model", "write --vocab-size beside it")
    file = str(keys.get("tokenizer_model") or "")
    size = VOCABULARIES.get(kind) or vocabulary_by_name(file)
    if not size and kind in ("llama2tokenizer", "llamatokenizer") and _LLAMA_2.search(file) and not _GROWN.search(file):
        size = 32000
    size = size or ASSUMED_VOCABULARY
    if kind != "gpt2bpetokenizer":  # the others' is that of a file
        keys.remark(
            f"nothing says how large the vocabulary is: {size} tokens are assumed; add --vocab-size to the file"
        )
    return size


def _expert_width(keys: Keys, feed_forward: int) -> int:
    return keys.whole("moe_ffn_hidden_size") or keys.whole("moe_intermediate_size") or feed_forward


def _dense_layers(keys: Keys) -> int:
    """Dense layers before the experts: ``([0]*3+[1]*58)`` begins with three."""
    first = keys.whole("first_k_dense_replace")
    if first is not None:
        return first
    text = str(keys.get("moe_layer_freq") or "").replace(" ", "")
    if text.startswith(("([0]*", "[0]*")):
        digits = text.split("[0]*", 1)[1].split("+", 1)[0]
        return int(digits) if digits.isdigit() else 0
    if text not in ("", "1"):
        keys.warn("moe_layer_freq", "every layer is counted with experts")
    return 0


def _experts(keys: Keys, feed_forward: int) -> dict[str, Any]:
    """A mixture: GLM-4.5's layer where there are shared experts, dense layers first or biases of q, k and v; Qwen2's
    where the shared expert has a gate; else Mixtral's, or Qwen3's with norms of heads."""
    width, shared = _expert_width(keys, feed_forward), _shared(keys, feed_forward)
    count, top, dense = keys.whole("num_experts") or 1, keys.whole("moe_router_topk", 2), _dense_layers(keys)
    norms, biases = bool(keys.flag("qk_layernorm")), bool(keys.flag("add_qkv_bias"))
    of_each = (keys.whole("hidden_size") or 0) // keys.whole("num_attention_heads", 1)
    heads = {"head_dim": keys.whole("kv_channels") or of_each}
    usual = {"moe_intermediate_size": width, "num_experts_per_tok": top}
    if shared and (keys.flag("moe_shared_expert_gate") or shared % width):
        return {
            **usual,
            "model_type": "qwen2_moe",
            "num_experts": count,
            "shared_expert_intermediate_size": shared,
            "qkv_bias": biases,
        } | (heads if norms else {})
    if shared or dense or biases:
        return {
            **usual,
            **heads,
            "model_type": "glm4_moe",
            "n_routed_experts": count,
            "n_shared_experts": shared // width,
            "first_k_dense_replace": dense,
            "use_qk_norm": norms,
            "attention_bias": biases,
            "partial_rotary_factor": keys.number("rotary_percent") or 1.0,
        }
    if norms:
        return {**usual, **heads, "model_type": "qwen3_moe", "num_experts": count}
    return {"model_type": "mixtral", "intermediate_size": width, "num_local_experts": count, "num_experts_per_tok": top}


def _shared(keys: Keys, feed_forward: int) -> int:
    """Width of the shared experts together."""
    given = keys.whole("moe_shared_expert_intermediate_size")
    return given or (keys.whole("n_shared_experts") or 0) * _expert_width(keys, feed_forward)


def _latent(keys: Keys, feed_forward: int) -> dict[str, Any]:
    """DeepSeek's latent attention, with or without experts."""
    layers = keys.whole("num_layers") or 0
    config: dict[str, Any] = {
        "model_type": "deepseek_v3",
        "q_lora_rank": keys.whole("q_lora_rank"),
        "kv_lora_rank": keys.whole("kv_lora_rank", 32),
        "qk_nope_head_dim": keys.whole("qk_head_dim") or keys.whole("qk_nope_head_dim", 128),
        "qk_rope_head_dim": keys.whole("qk_pos_emb_head_dim") or keys.whole("qk_rope_head_dim", 64),
        "v_head_dim": keys.whole("v_head_dim", 128),
        "num_key_value_heads": keys.whole("num_attention_heads"),
    }
    count = keys.whole("num_experts")
    if not count:
        return config | {"first_k_dense_replace": layers}
    width = _expert_width(keys, feed_forward)
    return config | {
        "moe_intermediate_size": width,
        "n_routed_experts": count,
        "n_shared_experts": ceil_div(_shared(keys, feed_forward), width),
        "num_experts_per_tok": keys.whole("moe_router_topk", 2),
        "first_k_dense_replace": _dense_layers(keys),
    }


SWITCHES = ("NVTE_FUSED_ATTN", "NVTE_FLASH_ATTN")


def left_by(draft: Draft) -> tuple[str, str]:
    """What Transformer Engine's switches in the command's environment leave of its kernels, and where; nothing where
    they leave all (2.11 pytorch/attention/dot_product_attention/utils.py: get_attention_backend)."""
    variables, where = draft.environment
    off = [name for name in SWITCHES if variables.get(name) == "0"]
    left = {SWITCHES[:1]: "flash", SWITCHES[1:]: "fused", SWITCHES: "unfused"}.get(tuple(off), "")
    return left, f"{where}: {', '.join(f'{name}=0' for name in off)}"


def put_attention(keys: Keys, kind: str, dropout: float, *found: str) -> None:
    """The kind of attention; where it makes its scores their dropout too, which is ``dropout`` unless somebody says.
    What is automatic falls back where the card has no kernel, and is nobody's word. Which kernel counts where rows are
    apart: those of packed sequences are joined to one."""
    left, where = ("", "") if keys.has(found[0]) else left_by(keys.draft)
    backend = left or str(keys.get(found[0]) or "").rpartition(".")[2].lower()
    kind = "eager" if backend == "unfused" else kind
    apart = not any(map(keys.flag, ("use_packed_seq_params", "use_packed_sequence", "packing", "padding_free")))
    if left:
        keys.draft.put("attention", kind, Origin(FILE, where))
        keys.skip(*found)
    elif backend in ("", "auto") and not any(map(keys.has, found[1:])):
        keys.draft.put("attention", kind, Origin(DEFAULT, f"{keys.framework.label}: {found[0]} auto"))
        keys.skip(*found)
    else:
        keys.put("attention", kind, *found)
    given = keys.number("attention_dropout")
    if kind == "flash" and backend in ("flash", "fused"):
        put_inner(keys, "megatron", "attention_backend", backend if apart else "fused", found[0])
    if kind == "eager":
        put_inner(keys, "megatron", "attention_dropout", dropout if given is None else given, "attention_dropout")


def own_layers(keys: Keys, mindspeed: bool) -> bool:
    """Layers that are not Transformer Engine's, and whether their attention is flash by its own switch: Megatron's
    local ones, whose RMS norms are torch's, as Apex has none; its legacy ones (megatron/legacy/model)."""
    local, legacy = keys.text("transformer_impl") == "local" and not mindspeed, keys.flag("use_legacy_models")
    gone = min((key for key in GONE if keys.has(key)), default="")
    old = bool(gone) and not mindspeed and not keys.has("transformer_impl")
    if old:
        keys.remark(f"Megatron-LM until 2023 had {gone}: its attention was flash by use_flash_attn alone", gone)
    if local:
        plain = (keys.text("normalization") or "").lower() == "rmsnorm"
        said = "layers are counted as Transformer Engine's, but for their attention"
        keys.warn("transformer_impl", said, "model" if plain and not legacy else "")
    if legacy:
        keys.warn(
            "use_legacy_models", "layers are counted as Transformer Engine's, but for attention, norms and SwiGLU"
        )
        if keys.flag("swiglu"):
            put_inner(keys, "megatron", "bias_swiglu_fusion", False, "use_legacy_models")
    if mindspeed or legacy:
        put_norms(keys)
    if (local or legacy or old) and not mindspeed and keys.flag("use_flash_attn"):
        # FlashSelfAttention turns rows, and back
        put_inner(keys, "megatron", "attention_backend", "flash", "use_flash_attn")
    return local or old or bool(legacy)


def put_norms(keys: Keys) -> None:
    """RMS norms that no kernel fuses (MindSpeed core/fusions/rms_norm.py: rms_norm_forward; Megatron-LM
    legacy/model/rms_norm.py)."""
    if (keys.text("normalization") or "").lower() != "rmsnorm" or keys.flag("use_fused_rmsnorm"):
        return
    inner = ("multi_latent_attention", "multi_head_latent_attention", "mtp_num_layers", "fp8_format", "fp4_format")
    if any(keys.get(name) for name in inner):
        keys.warn("normalization", "without use_fused_rmsnorm norms keep more than is counted", "model")
    else:
        put_inner(keys, "megatron", "norm_fusion", False, "normalization")
