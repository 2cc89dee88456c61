"""What libraries decide by model type: which mixtures of experts PEFT adapts as stacked parameters."""

from memplan.units import words_of

EXPERT_FAMILIES = frozenset(
    [
        "mixtral", "minimax", "minimax_m2", "afmoe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1",
        "ernie4_5_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm4v_moe", "longcat_flash", "solar_open",
        "mellum", "qwen3_moe", "beam", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "qwen3_next",
        "hunyuan_v1_moe", "flex_olmo", "olmoe", "exaone_moe", "cohere2_moe",
    ]
)  # fmt: skip
"""Types for which PEFT rewrites targets to the stacked experts and the router: the keys of transformers 5.23's
``conversion_mapping._MODEL_TO_CONVERSION_PATTERN`` that map to mixtral or qwen2_moe, and mixtral
(peft 0.21 utils/transformers_weight_conversion.py). qwen2_moe itself is not among them."""
STACKS = {
    True: {"w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    False: {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"},
}
"""Targets that PEFT rewrites to the parameter that stacks the experts: of Mixtral and its kin, and of the others, whose
dense layers and shared experts lose their adapters by it."""
PLANNED = frozenset(
    words_of(
        """apertus arcee cohere cohere2 cwm deepseek_v2 dots1 ernie4_5 ernie4_5_moe exaone4 gemma gemma2 gemma3_text
        glm4_moe granite helium internlm3 llama minicpm3 ministral ministral3 mistral mixtral nemotron olmo qwen2 qwen3
        qwen3_moe seed_oss smollm3"""
    )
)
"""Types whose plan of tensor parallelism cuts every product of their layers (transformers 5.24 models/*/
configuration_*.py: base_model_tp_plan). Others' leave attention or shared experts whole, or join what is cut, on every
rank; or there is none, and ``from_pretrained`` stops."""
LOOPING = frozenset(["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
"""Whose classes of transformers 4 loop over experts."""
MIXTRAL_NAMES = frozenset(["mixtral", "minimax", "minimax_m2"])
ROUTER = "gate"
"""The target that PEFT rewrites to the router's weight."""
MAMBA_FAMILIES = frozenset(["falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"])
"""Types whose out_proj and conv1d PEFT refuses to adapt (peft 0.21 tuners_utils.py)."""
MODULE_NAMES = frozenset(
    [
        "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj",
        "c_attn", "c_proj", "c_fc", "query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h", "Wqkv", "Wi", "Wo",
        "W_pack", "out_proj", "in_proj", "x_proj", "dt_proj", "fc1", "fc2", "fc_in", "fc_out", "w1", "w2", "w3",
        "wqkv", "wo", "wi", "wi_0", "wi_1", "query_proj", "key_proj", "value_proj",
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "query", "key", "value",
    ]
)  # fmt: skip
"""Names of linears that target lists of several families carry: PEFT passes over those that a model does not have."""
LORA_TARGETS = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), "c_attn"),
    **dict.fromkeys(("bloom", "falcon", "gpt_neox", "chatglm"), "query_key_value"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), "query value"),
    **dict.fromkeys(("t5", "mt5"), "q v"),
    "codegen": "qkv_proj",
    "deberta-v2": "query_proj value_proj",
    "mpt": "Wqkv",
    "nemotron_h": "q_proj k_proj v_proj o_proj",
    "phi": "q_proj v_proj fc1 fc2",
}
"""What PEFT adapts of a type where no module is named; of others q_proj and v_proj (peft 0.21 utils/constants.py)."""
ENDS_ON_EACH_STAGE = frozenset(
    words_of(
        """bloom falcon gemma gemma4 gpt2 gpt_oss granitemoe granitemoehybrid internlm2 jamba mamba minicpm mixtral
        nemotron_h olmoe opt phimoe qwen2_moe qwen3_moe qwen3_next stablelm"""
    )
)
"""Types whose classes make embedding and head on every pipeline stage, others on the first and the last (vllm 0.10.1
to 0.33 model_executor/models/: get_pp_group)."""
ENDS_ELSEWHERE = {
    "wte": "gpt2 gpt_neo gptj codegen gpt_bigcode mpt qwen",
    "embed_in": "gpt_neox gpt_neox_japanese",
    "embed_out": "gpt_neox gpt_neox_japanese",
    "word_embeddings": "bloom falcon chatglm bailing_moe",
    "tok_embeddings": "internlm2 modernbert modernbert-decoder",
    "embeddings": "rwkv mamba mamba2 falcon_mamba nemotron_h",
    "output_layer": "chatglm",
}
"""The embedding and the head under another name, and the types that have it: PEFT passes over it elsewhere."""


def elsewhere(family: str = "") -> set[str]:
    """Names of ENDS_ELSEWHERE that a type does not have; all of them where none is named."""
    return {name for name, families in ENDS_ELSEWHERE.items() if family not in families.split()}


_WITHOUT_FLASH = (
    *("bloom", "deberta-v2", "deepseek_v32", "deepseek_v4", "falcon_mamba", "glm_moe_dsa", "llama4", "llama4_text"),
    *("mamba", "mamba2", "mllama", "mpt", "mt5", "rwkv", "t5"),
)
FLASH_UNTIL = ("gemma3", "gemma4", "gemma4_unified", "paligemma")
"""Those that have it up to transformers 5.23: it drops the mask that lets image tokens see each other."""
WITHOUT_FLASH = frozenset((*_WITHOUT_FLASH, *FLASH_UNTIL))
"""Model types whose class says ``_supports_flash_attn = False``, or does not say it: from_pretrained raises ValueError
(transformers 5.24 modeling_utils.py: _flash_attn_can_dispatch)."""
WITHOUT_FLASH_BEFORE = frozenset((*_WITHOUT_FLASH, "codegen"))
"""The same up to transformers 5.23."""
SINCE_5 = frozenset(
    words_of(
        """cwm deepseek_v32 deepseek_v4 gemma4 gemma4_text gemma4_unified gemma4_unified_text
        glm4_moe_lite glm_moe_dsa lfm2_moe qwen3_5 qwen3_5_text
        qwen3_5_moe qwen3_5_moe_text"""
    )
)
"""Types that transformers 5.24 has, 4.57.6 has not, and no code of their own beside a checkpoint runs in its place."""
FP32_ROUTERS = frozenset(
    (
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite"),
        *("glm4v_moe", "glm_moe_dsa", "kimi_k25", "nemotron_h"),
    )
)
"""Types that keep their routers' weights in fp32 from transformers 5.24 on (``_keep_in_fp32_modules_strict``)."""
FAILING = {
    "llama4": "Llama4ForConditionalGeneration of transformers 5.24 fails in its forward, with images and without: it "
    "reads image_outputs, which the output of its language model does not have"
}
"""Model types whose class fails in the newest transformers that was read."""

FP32_CHECKPOINTS = frozenset(
    words_of(
        """albert bart bert distilbert electra gpt2 gpt_bigcode gpt_neo gptj modernbert mt5 roberta starcoder2 t5
        xlm-roberta"""
    )
)
"""Types whose published configs name no dtype, or float32, over weights of four bytes: 440 MB of bert-base-uncased's
110 M parameters, 548 MB of gpt2's 124 M, 242 MB of t5-small's 60.5 M, 24.2 GB of gpt-j-6b's 6.05 B, 12.1 GB of
starcoder2-3b's 3.03 B (model.safetensors or pytorch_model.bin of each on the Hub)."""

SDPA_SINCE = {
    **dict.fromkeys(("llama", "falcon", "gpt_bigcode", "bart"), "4.36"),
    **dict.fromkeys(("mistral", "mixtral"), "4.37"),
    **dict.fromkeys(("phi", "stablelm"), "4.39"),
    **dict.fromkeys(("bert",), "4.41"),
    **dict.fromkeys(("gpt2", "gpt_neox"), "4.42"),
    **dict.fromkeys(("phi3", "roberta", "xlm-roberta", "albert", "mbart"), "4.45"),
    **dict.fromkeys(("opt", "distilbert"), "4.46"),
}
"""Model types whose class came before its SDPA, and the first version that has it, and takes it where nobody asks for
another: before that attention is eager (``_supports_sdpa`` in models/*/modeling_*.py of transformers 4.36 to 4.48)."""

PROBABILITIES_ALONE = frozenset(("probabilities",))
_NOTHING: frozenset[str] = frozenset()
_EVERYTHING = frozenset(("probabilities", "branches", "inner", "front"))
FUNCTIONAL_DROPOUT = {
    **dict.fromkeys(("gpt2", "gptj", "codegen", "gpt_neo", "deberta", "deberta-v2", "electra", "distilbert"), _NOTHING),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "albert"), _NOTHING),
    **dict.fromkeys(("opt", "starcoder2", "seed_oss", "bart", "mbart"), _EVERYTHING),
    **dict.fromkeys(("bloom", "falcon"), frozenset(("branches",))),
    "mpt": frozenset(("probabilities", "branches")),
}
"""Where a class calls ``nn.functional.dropout`` with a number of its config, which stays when its modules are set to 0:
attention probabilities, outputs of branches, what goes into a feed-forward's last linear, what stands before the layers
(transformers 5.23 models/*/modeling_*.py; Bloom's and Falcon's ``dropout_add``). Types that are not named call it for
their probabilities alone; GPT-2's and BERT's attention reads ``self.dropout.p`` of a module."""

MASK_AS_GIVEN = frozenset(("mamba", "falcon_mamba"))
"""Types whose mixers multiply by the batch's mask though it be all ones, which others ask about first
(transformers 5.23 models/mamba/modeling_mamba.py; masking_utils.py: create_recurrent_attention_mask)."""

WITHOUT_NUM_EXPERTS = frozenset(("granitemoe", "granitemoehybrid", "granitemoeshared", "phimoe"))
"""Types whose config says num_local_experts alone (transformers 5.23 models/*/configuration_*.py: no attribute_map)."""

_WHOLE = ("q_proj", "k_proj", "v_proj")
OWN_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "internlm2": {"wqkv": _WHOLE, "wo": ("o_proj",), "w1": ("gate_proj",), "w3": ("up_proj",), "w2": ("down_proj",)},
    "baichuan": {"W_pack": _WHOLE},
    "glm": {"query_key_value": _WHOLE, "dense": ("o_proj",), "dense_h_to_4h": ("gate_up_proj",),
            "dense_4h_to_h": ("down_proj",)},
}  # fmt: skip
"""By family: linears as the checkpoint's code names them, and those of transformers' class: adapters hold no less."""
FP32_GATES = {"minimax_m2": 4}
"""Bytes of a router's weight in an engine's class, where its checkpoint has less (vllm, sglang minimax_m2.py: gate)."""
UNSCALED = dict.fromkeys(("gemma3", "gemma3_text"), (0, 5, 10))
"""Families whose tables SGLang has for the config's positions alone, however they are scaled, and before this version
makes as it goes (sglang 0.4.6 to 0.5.23 models/gemma3_causal.py: Gemma3Attention, Gemma3RotaryEmbedding)."""
