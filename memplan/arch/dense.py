"""Dense decoders: Llama, Mistral, Qwen2, Qwen3, Phi-3 and the Gemmas as transformers 5.23 builds them.

One row a family. Defaults are those of its config class (``models/<type>/configuration_<type>.py``), the rest is what
``modeling_<type>.py`` builds: which modules have biases, which norms stand where, which layers have a window."""

from memplan.arch import attention
from memplan.arch.config import Config
from memplan.arch.decoder import (
    ACTIVATIONS,
    SANDWICH_NORMS,
    Family,
    gated_everywhere,
    rotary_dim,
    tables_by_kind,
    turned,
)
from memplan.spec.parts import FeedForward


def fused_everywhere(family: Family, config: Config) -> list[FeedForward]:
    """So, gate and up in one module, though q, k and v are three."""
    return gated_everywhere(family._replace(fused=True), config)


NOT_COUNTED_GEMMA = (("use_bidirectional_attention", "attention is taken to be causal"),)

ROWS = (
    Family(model_type="llama", heads_divide_hidden=True),
    Family(model_type="mistral", windows=attention.one_window),
    Family(model_type="qwen2", windows=attention.late_windows, null_kv_heads=True, qkv_bias="always"),
    Family(model_type="qwen3", windows=attention.late_windows, null_kv_heads=True, qk_norm=True),
    Family(model_type="phi3", windows=attention.one_window, fused=True, rotary="concatenated",
        mixer=turned(rotary_dim=rotary_dim), dropout_key="resid_pdrop"),
    Family(model_type="gemma", norm_kind="rms-plus-one", activations=ACTIVATIONS | {"gelu": "gelu_pytorch_tanh"},
        scaled_embedding=True, not_counted=NOT_COUNTED_GEMMA),
    Family(model_type="gemma2", windows=attention.alternating_windows, norms=SANDWICH_NORMS, form="sandwich",
        norm_kind="rms-plus-one", activation_key="hidden_activation", scaled_embedding=True, score_softcap=True,
        logits_softcap=True, heads_divide_hidden=True, not_counted=NOT_COUNTED_GEMMA),
    Family(model_type="gemma3_text", windows=attention.patterned_windows, finish=tables_by_kind, qk_norm=True,
        norms=SANDWICH_NORMS, form="sandwich", norm_kind="rms-plus-one", activation_key="hidden_activation",
        scaled_embedding=True, logits_softcap=True, heads_divide_hidden=True, not_counted=NOT_COUNTED_GEMMA),
)  # fmt: skip
