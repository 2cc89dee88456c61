"""Axolotl's switches that bear on memory by themselves or with others: fused adapters, plugins, evaluation, packing.

Source: axolotl 0.19 utils/schemas/config.py (check_auto_enable_lora_kernels, attn_needs_dtype_cast), loaders/model.py
(_configure_embedding_dtypes), loaders/patch_manager.py (_apply_sdpa_varlen_patch), core/builders/causal.py."""

from collections.abc import Mapping
from functools import partial

from memplan.frameworks.asking import GENERATES
from memplan.frameworks.axolotl.keys import GONE, NO_LESS
from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.common.checkpoints import spec_of
from memplan.frameworks.common.image_bounds import IMAGES, fill_packed
from memplan.frameworks.common.local_models import check_vocabulary
from memplan.frameworks.common.row_making import read_rows
from memplan.frameworks.files.documents import Settings
from memplan.frameworks.hugging_face.towers import reads_text_alone
from memplan.units import format_bytes

KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
PLUGINS = (
    "cut_cross_entropy", "liger", "lm_eval", "spectrum", "swanlab", "nemo_gym", "hatchery", "kd", "diffusion",
    "kernels", "mora", "expert_parallel", "llm_compressor", "ebft",
)  # fmt: skip
"""Those that only do what keys of their own say, which are read or warned about."""
GENERATING = ("do_causal_lm_eval", "do_bench_eval", "eval_table_size", "generate_samples", "dpo_generate_during_eval")

SQUARE_MASKS, MASK_BYTES = ("0.4", "0.4.1"), 3 * 8


def release_of(settings: Settings) -> tuple[str, str]:
    """The oldest release that a key of the file, or of one of its datasets, was last taken by, and what says so; empty
    where none went."""
    sets = settings.values.get("datasets")
    inner = [each for each in sets if isinstance(each, Mapping)] if isinstance(sets, list) else []
    found = ("", "")
    for word, release in GONE.items():
        key, _, value = word.partition("=")
        where = key if key in settings.values else "datasets"
        if any(each.get(key) is not None and str(each[key]).startswith(value) for each in (settings.values, *inner)):
            found = release, f"{settings.where(where)}: {word.replace('=', ': ')} was there until {release}, and "
    return found


def read_switches(keys: Keys, method: str) -> None:
    """After adapters, attention, losses and sharding are read."""
    _fused_adapters(keys, method)
    _plugins(keys)
    for key in (key for key in NO_LESS if keys.is_on(key)):
        keys.bound(key, NO_LESS[key])
    keys.skip(*NO_LESS)
    evaluates = "eval_batch_size" in keys.draft.values
    for key in GENERATING:
        if keys.get(key) and evaluates:
            keys.warn(key, GENERATES)
    length = keys.whole("eval_sequence_len") or 0
    if evaluates and length > int(keys.draft.values.get("sequence_length") or length):
        keys.warn("eval_sequence_len", "evaluation is counted with sequences of sequence_len")
    keys.skip(*GENERATING, "eval_sequence_len")
    _config_changes(keys)
    if keys.has("base_model_config") and keys.text("base_model_config") != keys.text("base_model"):
        keys.warn("base_model_config", "the model is counted by the config of base_model")
    keys.skip("base_model_config")
    if "model" not in keys.draft.given:
        check_vocabulary(keys, keys.text("base_model") or "", ("tokenizer_config",))
    attention = keys.draft.values.get("attention", "sdpa")
    if keys.flag("sample_packing") and keys.flag("sdpa_varlen") is False and attention == "sdpa":
        keys.put("padded", True, "sdpa_varlen")  # documents of a row are told apart by a 4-D mask
    keys.skip("sample_packing", "sdpa_varlen")
    read_rows(keys)
    _images(keys, method)
    if keys.flag("use_ray") and (keys.whole("ray_num_workers") or 1) > 1:
        keys.put("num_gpus", keys.whole("ray_num_workers"), "ray_num_workers")
    keys.skip("use_ray", "ray_num_workers")
    for key in ("ring_attn_func", "heads_k_stride"):
        if keys.has(key) and int(keys.draft.values.get("context_parallel") or 1) > 1:
            keys.bound(key, "keys and values of all heads are counted as gathered at once", "parallelism")
        keys.skip(key)
    keys.draft.finishers["embeddings"] = _wide_ends
    if keys.flag("sample_packing") and keys.framework.version in SQUARE_MASKS:
        keys.draft.finishers["mask"] = partial(_square_mask, keys)


def _images(keys: Keys, method: str) -> None:
    """A processor's rows are made when they are trained on, and cut nowhere (utils/collators/mm_chat.py)."""
    draft, where = keys.draft, keys.settings.where("processor_type")
    if not keys.has("processor_type") or method != "sft" or reads_text_alone(draft.now("model")):
        return
    draft.ask("sequence_length", where, "of a processor's rows nothing is cut: they are as long as the data")
    draft.finishers[IMAGES] = partial(fill_packed, where, "processor_type", False)


def _config_changes(keys: Keys) -> None:
    """Settings of the model's config: the routers' load-balancing loss."""
    for key in ("overrides_of_model_config", "model_config"):
        changes = keys.get(key)
        others = dict(changes) if isinstance(changes, Mapping) else {"": changes} if changes else {}
        balance = others.pop("output_router_logits", None)
        if isinstance(balance, bool):
            keys.put("router_aux_loss", balance, key)
        others.pop("router_aux_loss_coef", None)
        if others:
            keys.warn(key, "settings that change the model's config are not read")


def _fused_adapters(keys: Keys, method: str) -> None:
    """Functions of their own for LoRA's projections: where a file says nothing, Axolotl takes them in supervised
    fine-tuning, but under FSDP1, over 8 bits, and with code of the checkpoint's own."""
    if not keys.has("adapter"):
        keys.skip(*KERNELS)
        return
    for key in KERNELS:
        if keys.flag(key):
            keys.warn(key, "adapters are counted as PEFT runs them, which keeps more")
    said = any(keys.has(key) for key in KERNELS) or keys.flag("trust_remote_code") or keys.flag("load_in_8bit")
    if said or method != "sft" or keys.draft.values.get("sharding") == "fsdp":
        return
    keys.remark(
        "Axolotl runs LoRA by kernels of its own unless lora_mlp_kernel and its like are false: "
        "PEFT's code is counted, which keeps more"
    )


def _plugins(keys: Keys) -> None:
    """Plugins that are known to bear, or not known."""
    for item in keys.get("plugins") or ():
        parts = str(item).split(".")
        name = parts[2] if parts[:2] == ["axolotl", "integrations"] and len(parts) > 2 else str(item)
        if name == "grokfast":
            keys.warn("plugins", "the average of the gradients that grokfast keeps is not counted")
        elif name not in PLUGINS:
            keys.warn("plugins", f"what {name[:60]} does is not known")


def _square_mask(keys: Keys, draft: Draft) -> None:
    """Mistral's packed micro-batch is one row, whose sliding window is made as a whole mask: three times in int64, and
    kept by checkpoints in half precision (0.4 monkeypatch/mistral_attn_hijack_flash.py)."""
    spec, values = spec_of(draft.said), draft.said
    if (4, 43) <= draft.version < (99,):  # as is said of transformers, whose 4.43 Axolotl takes since the mask went
        return
    if spec is None or spec.family != "mistral" or not any(spec.windows) or values.get("attention") != "flash":
        return
    tokens = int(values.get("batch_size") or 1) * int(values.get("sequence_length") or 0)
    mask = f"a mask of {tokens} × {tokens}, {format_bytes(MASK_BYTES * tokens**2)} as it is made"
    why = f"{keys.framework.label} gives Mistral's packed rows {mask}"
    little = MASK_BYTES * tokens <= 4 * spec.vocab_size  # than fp32 logits, which stand when it has gone
    keys.warn("sample_packing", why, "" if little else "attention", "add --trainer-version 4.43, if Axolotl is newer")


def _wide_ends(draft: Draft) -> None:
    """Without FSDP, embeddings, head and norms are cast to fp32, and cast back for adapters, flash attention and cut
    cross-entropy alone; DeepSpeed casts them with the rest."""
    values = draft.said
    sharding = str(values.get("sharding") or "none")
    narrow = values.get("lora") or values.get("attention") == "flash" or values.get("loss_head") == "cut-cross-entropy"
    if narrow or sharding not in ("none", "ddp") or draft.facts.get("load", ("fp32",))[0] == "fp32":
        return
    draft.remarks.append(
        "Axolotl keeps embeddings, head and norms in fp32 where it trains all weights without flash attention, FSDP or "
        "DeepSpeed: they are counted in half precision"
    )
