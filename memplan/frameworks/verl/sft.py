"""verl's supervised fine-tuning: the engine's trainer, and the older one with its own defaults.

Source: verl 0.6 to 0.9 trainer/sft_trainer.py, config/sft_trainer_engine.yaml; verl 0.1 to 0.7
trainer/fsdp_sft_trainer.py, config/sft_trainer.yaml."""

from memplan.frameworks.base import Keys
from memplan.frameworks.verl.asking import gpus, known
from memplan.frameworks.verl.batch import of_tokens
from memplan.frameworks.verl.fsdp import read_fsdp, read_switches, ulysses
from memplan.frameworks.verl.megatron import degrees
from memplan.frameworks.verl.parts import copies_shared, read_engine, read_model, read_optimizer, strategy_of
from memplan.frameworks.verl.source import Given
from memplan.units import ceil_div


def read_sft(keys: Keys, found: Given) -> None:
    """Supervised fine-tuning by the engine (sft_trainer)."""
    keys.put("method", "sft")
    length = known(keys, "data.max_length", "sequence_length", 1024)
    strategy, said = strategy_of(keys, found)
    megatron = strategy == "megatron"
    shared = copies_shared(keys, "engine.") if megatron else ulysses(keys, "engine.", "engine.")
    world = _started(keys, shared)
    if keys.flag("data.use_dynamic_bsz"):
        key = "data.max_token_len_per_gpu"
        divided = degrees(keys, "engine.").get("context_parallel", 1) if megatron else shared
        tokens = known(keys, key, "batch_size", length) * divided
        micro = of_tokens(keys, tokens, length, 0, key)
        keys.skip("data.micro_batch_size_per_gpu")
    else:
        micro = _sequences(keys, length)
    _steps(keys, micro, world // shared)
    read_model(keys, "model.", megatron)
    read_engine(keys, strategy, said, "engine.", "engine.", world)
    read_switches(keys, "model.", "engine.")
    read_optimizer(keys, "optim.")


def read_old_sft(keys: Keys, found: Given) -> None:
    """The trainer that was there to 0.7 (fsdp_sft_trainer): transformers' cross-entropy over whole logits, in fp32."""
    keys.put("method", "sft")
    length = known(keys, "data.max_length", "sequence_length", 1024)
    shared = known(keys, "ulysses_sequence_parallel_size", "context_parallel")
    world = _started(keys, shared)
    whole, each = "data.micro_batch_size", "data.micro_batch_size_per_gpu"
    if keys.has(whole) and not keys.has(each) and keys.draft.facts["verl"] in ("0.1", "0.7"):
        usual, own = int(keys.defaults[each] or 1), known(keys, whole, "batch_size")
        if own != usual:  # of both readings the larger
            keys.defaults = {**keys.defaults, each: max(usual, ceil_div(own, max(1, world // shared)))}
            why = f"verl 0.1 divides it among the GPUs, later ones read micro_batch_size_per_gpu alone ({usual})"
            keys.bound(whole, why, "batch")
    elif keys.has(whole) and not keys.has(each):
        keys.remark(f"{whole} is not read by {keys.framework.label}: "
                                  f"{each} is {keys.defaults[each]}", whole)  # fmt: skip
    keys.skip(whole, "use_remove_padding")
    micro = _sequences(keys, length)
    _steps(keys, micro, world // shared)
    read_model(keys, "model.", False)
    keys.put("loss_head", "cross-entropy")
    if not keys.has("model.enable_gradient_checkpointing"):
        keys.remark(
            f"model.enable_gradient_checkpointing is not said: off by default up to 0.4.0, on "
            f"from 0.4.1 on; {keys.framework.label} is the oldest that has every setting of the file"
        )
    strategy = keys.text("model.strategy") or "fsdp"
    if shared > 1:
        keys.put("context_parallel", shared, "ulysses_sequence_parallel_size")
    elif not keys.flag("use_remove_padding") and "padded" not in keys.draft.given:
        keys.put("padded", True, "use_remove_padding")
    read_fsdp(keys, strategy, "model.strategy", "model.fsdp_config.", world)
    read_switches(keys, "model.", "model.fsdp_config.")


def _started(keys: Keys, shared: int) -> int:
    """GPUs of a training that a launcher starts: its processes."""
    if "num_gpus" not in keys.draft.given and not keys.has("trainer.n_gpus_per_node"):
        keys.draft.ask("num_gpus", keys.settings.where(), "the launcher's processes are not in the file")
    return gpus(keys, 8, shared)


def _sequences(keys: Keys, length: int) -> int:
    keys.put("sequence_length", length, "data.max_length")
    micro = known(keys, "data.micro_batch_size_per_gpu", "batch_size", 4)
    keys.put("batch_size", micro, "data.micro_batch_size_per_gpu")
    return micro


def _steps(keys: Keys, micro: int, ranks: int) -> None:
    total = known(keys, "data.train_batch_size", usual=micro)
    steps = max(1, ceil_div(total, micro * max(1, ranks)))
    keys.put("gradient_accumulation_steps", steps, "data.train_batch_size")
