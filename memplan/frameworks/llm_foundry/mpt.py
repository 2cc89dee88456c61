"""MPT, whose layers are LLM Foundry's own, by the sizes that a config gives.

Source: mosaicml/llm-foundry 0.22 (8c8dd48) models/layers/{blocks,ffn,norm,attention}.py, models/mpt/modeling_mpt.py."""

import re

from memplan.frameworks.asking import MODEL
from memplan.frameworks.base import Keys
from memplan.frameworks.draft import NotKnown
from memplan.units import pairs_of

DROPS = tuple(pairs_of("resid_pdrop=resid_pdrop embd_pdrop=emb_pdrop attn_pdrop=attn_config.attn_pdrop").items())
"""GPT-2's dropouts by MPT's, which are 0 by default."""
LAYER_NORMS = ("low_precision_layernorm", "layernorm")
AS_GPT2 = re.compile(
    r"model\.(name|d_model|n_heads|n_layers|expansion_ratio|max_seq_len|vocab_size|no_bias|norm_type|resid_pdrop|emb_pdrop"
    r"|learned_pos_emb|loss_fn|logit_scale|embedding_fraction|verbose|use_cache|tokenizer_name|init_\w+(\.\w+)?"
    r"|pretrained|load_path|tie_word_embeddings"
    r"|attn_config\.(attn_impl|attn_type|attn_pdrop|kv_n_heads|alibi|alibi_bias_max|softmax_scale|sliding_window_size))"
)
"""Of MPT what GPT-2's layers of the same sizes have too, or never take less for."""


def read_mpt(keys: Keys) -> None:
    """MPT's layers by their sizes, as GPT-2's, which keep more where nothing odd is said: GELU's tanh form in parts
    where MPTMLP has ``nn.GELU()``, norms in fp32 where they are cast down. Measured under autocast: 60 bytes to 34 of
    a layer's tokens × hidden. Scores are kept for ``attn_impl: torch`` alone."""
    width, heads, layers = (keys.whole(f"model.{key}") for key in ("d_model", "n_heads", "n_layers"))
    inner = keys.number("model.expansion_ratio") or 4
    vocabulary = keys.whole("model.vocab_size", 50368)
    how = (keys.text("model.attn_config.attn_impl") or "flash").lower()
    keys.put("attention", "eager" if how == "torch" else "flash", "model.attn_config.attn_impl")
    tied = keys.flag("model.tie_word_embeddings") is not False
    drops = {name: keys.number(f"model.{at}") or 0 for name, at in DROPS}
    said = [key for key in keys.settings.values if key.startswith("model.")]
    odd = [
        key for key in said if not AS_GPT2.fullmatch(key) and keys.raw(key) not in (None, False, "none", "mptmlp", {})
    ]
    odd += ["model.norm_type"] * ((keys.text("model.norm_type") or LAYER_NORMS[0]) not in LAYER_NORMS)
    keys.skip(*said)
    if "model" not in keys.draft.given and width and heads and layers:
        sizes = {"n_embd": width, "n_head": heads, "n_layer": layers, "n_inner": int(inner * width)}
        length = keys.whole("model.max_seq_len") or keys.whole("max_seq_len", 2048)
        own = {"model_type": "gpt2", "vocab_size": vocabulary, "n_positions": length, "tie_word_embeddings": tied}
        keys.put("model", {**own, **sizes, **drops}, "model.d_model")
    elif "model" not in keys.draft.given:
        raise NotKnown(f"{keys.settings.where('model')}: model is not known: its sizes are not all there", MODEL)
    why = "LLM Foundry's own layers are counted as GPT-2's of the same sizes"
    if odd:
        keys.draft.warn(odd[0], keys.settings.where(odd[0]), why, "model")
    else:
        keys.bound("model.name", f"{why}, which keep more", "model")
