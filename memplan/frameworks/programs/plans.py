"""``from_pretrained`` that divides what it loads: transformers' plans of tensor parallelism."""

from functools import partial

from memplan.frameworks.base import FILE, Draft, Origin
from memplan.frameworks.programs.values import Thing
from memplan.resolve.plans import LAST_TAKING

KEYS = ("tp_plan", "tp_size")
OTHERS = ("fsdp_size", "dp_replicate_size", "pp_size", "ep_size", "fsdp_plan", "ep_plan", "enable_expert_parallel")


def read_plan(thing: Thing, draft: Draft) -> None:
    """``tp_plan`` auto over ``tp_size`` ranks, or over all, as arguments or in a ``DistributedConfig``."""
    config = thing.values.get("distributed_config")
    holder = config if isinstance(config, Thing) else thing
    plan, size = (holder.values.get(key) for key in KEYS)
    where = str(holder.places.get("tp_plan", holder.places.get("tp_size", holder.place)))
    if config is not None and (holder is thing or set(OTHERS) & set(holder.values)):
        draft.warn("distributed_config", str(thing.places["distributed_config"]), "is not read", "parallelism")
    elif plan not in (None, "auto") or type(size) not in (int, type(None)):
        draft.warn("tp_plan", where, "a plan of the program's own is not modelled", "parallelism")
    elif plan is not None or size is not None:
        draft.finishers["tp_plan"] = partial(put_plan, size, where, holder is thing)


def put_plan(size: int | None, where: str, older: bool, draft: Draft) -> None:
    """The ranks that share products; the Trainer wraps such a model in no DDP (accelerate 1.15 prepare_model).
    ``older``: by an argument of its own, which transformers takes no more from 5.15 on."""
    version = LAST_TAKING.get(str(draft.now("trainer"))) if older and not draft.now("trainer_version") else None
    if version:
        draft.of_version(version, f"{where}: an argument tp_plan, until transformers 5.14")
    total = int(draft.now("num_gpus") or 1)
    ranks = size or total
    if ranks > 1:
        origin = Origin(FILE, f"{where}: tp_plan auto")
        draft.put("tensor_parallel", ranks, origin)
        if ranks == total and draft.now("sharding") in (None, "ddp"):
            draft.put("sharding", "none", origin)
