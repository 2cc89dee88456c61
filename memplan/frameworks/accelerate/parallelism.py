"""``parallelism_config`` of accelerate's file. Source: accelerate 1.15 parallelism_config.py, accelerator.py."""

from functools import partial

from memplan.errors import InvalidJob
from memplan.frameworks.base import Draft, Framework, Keys
from memplan.frameworks.common.fsdp_keys import put_inner

SIZE = "parallelism_config_"


def read_parallelism(keys: Keys, framework: Framework, kind: str) -> None:
    """accelerate's own parallelism: what a job can say of it, else warned about. ``kind``: of what it runs under."""
    found = keys.settings.section("parallelism_config")
    keys.skip("parallelism_config")
    inner = Keys(keys.draft, found, framework)
    for key in (f"{SIZE}cp_size", f"{SIZE}sp_size")[: 2 if kind == "DEEPSPEED" else 1]:
        if (inner.whole(key) or 1) > 1:
            inner.put("context_parallel", inner.whole(key), key)
    if (inner.whole(f"{SIZE}tp_size") or 1) > 1:
        keys.draft.finishers["tp_size"] = partial(_repeated, inner)
    replicate = f"{SIZE}dp_replicate_size"
    if (inner.whole(replicate) or 1) > 1:
        put_inner(inner, "fsdp", "replicate", inner.whole(replicate), replicate)
    inner.skip(f"{SIZE}dp_shard_size")
    for key, value in found.values.items():
        if key.endswith("sp_size") and not inner.took(key) and value not in (None, 1):
            inner.warn(key, "accelerate has it with DeepSpeed alone")
        elif not key.endswith(("_size", "sp_seq_length")):
            inner.skip(key)
    inner.close(key for key in found.values if "sp_" in key or "comm_strategy" in key)


def _repeated(inner: Keys, draft: Draft) -> None:
    """``tp_size`` of a model that nobody divided: FSDP2 divides states over the other ranks, and these repeat one
    another's steps; without FSDP2, or with nothing else to divide by, accelerate refuses it (accelerator.py:
    _prepare_tp, prepare_model; parallelism_config.py: _validate_accelerator). Raises InvalidJob."""
    if int(draft.values.get("tensor_parallel") or 1) > 1:
        return
    key, where = f"{SIZE}tp_size", inner.settings.where(f"{SIZE}tp_size")
    others = (inner.whole(f"{SIZE}dp_shard_size") or 1) * (inner.whole(f"{SIZE}cp_size") or 1)
    shares, copies = inner.whole(key) or 1, inner.whole(f"{SIZE}dp_replicate_size") or 1
    if draft.now("sharding") != "fsdp2" or others == 1:
        raise InvalidJob(f"{where}: accelerate takes tp_size {shares} of a model that is divided alone",
                         "load it with a DistributedConfig, or set dp_shard_size beside fsdp_version 2")  # fmt: skip
    put_inner(inner, "fsdp", "replicate", shares * copies, key)
    draft.remarks.append(f"{where}: tp_size shares no product, as nothing loads the model with tp_plan: {shares} ranks "
                         "each repeat the same step, with states divided over the rest")  # fmt: skip
