"""One process that sees several GPUs: nn.DataParallel, under transformers' Trainer and those that build on it."""

from memplan.frameworks.asking import ALONE
from memplan.frameworks.draft import Draft
from memplan.tables.trainers import TRAINERS


def replicated(where: str, several: int, draft: Draft) -> None:
    """nn.DataParallel, of trainers that leave their processes to accelerate: verl and NeMo RL start their own.

    Each GPU has a copy of the weights and the examples of one process; the first has the states and the gradients, and
    gathers what the model gives of all examples, logits among them (torch 2.13 nn/parallel/data_parallel.py). With
    adapters it takes no more than one process with all the examples, whose gradients are in DDP's buckets too."""
    trainer = str(draft.now("trainer") or "transformers")
    if "divided" in draft.finishers or not any(era.runs_on == "accelerate" for era in TRAINERS.get(trainer, ())):
        return  # layers that are spread over the cards are left as they are
    what = f"one process on {several} GPUs is nn.DataParallel under transformers' Trainer"
    hint = f"start it with torchrun or accelerate launch, or {ALONE}"
    batch, sharding = draft.values.get("batch_size"), draft.values.get("sharding", draft.options.get("sharding"))
    adapters = bool(draft.values.get("lora") or draft.options.get("lora")) and sharding in (None, "none", "ddp")
    plain = not (draft.values.get("rollout") or "batch_size" in draft.given or isinstance(batch, str))
    if adapters and plain and batch:
        for key in {"batch_size", "eval_batch_size"} & draft.values.keys():
            draft.values[key] = int(draft.values[key] or 1) * several
        why = f"{what}: the first of them is counted with the examples of all, {several} × {batch}"
        draft.bound("python", where, why, "parallelism", hint=hint)
    else:
        draft.warn("python", where, f"{what}, which is not modelled", "parallelism", hint)
