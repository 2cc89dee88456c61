"""One of two processes of test_pair_parallel.py: the same pair steps under DDP or FSDP2, over gloo on CPU.

Arguments: rank, a file where the processes meet, a file for the results of rank 0, ddp or fsdp2.
"""

import os
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from tiny_pairs import pairs, tiny_llama

from memplan.torch import SCHEDULES, SimPO, pair_step

WORLD, MICRO_STEPS = 2, 2


def parallel_model(kind: str, reductions: list[str]) -> Any:
    """The tiny model over the two processes; each bucket or group that is reduced leaves a note."""
    model = tiny_llama()
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        count_reduce_scatters(reductions)
        return fully_shard(model)
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    wrapped = torch.nn.parallel.DistributedDataParallel(model)

    def hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append("allreduce")
        return allreduce_hook(group, bucket)

    wrapped.register_comm_hook(None, hook)
    return wrapped


def count_reduce_scatters(reductions: list[str]) -> None:
    """Leave a note at each collective that FSDP2 reduces gradients with; its name changed between torch versions."""
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    original = getattr(dist, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        reductions.append(name)
        return original(*args, **kwargs)

    setattr(dist, name, noted)


def whole(gradient: Any) -> torch.Tensor:
    """A gradient on every rank, gathered where it is a shard."""
    full: torch.Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return full.flatten().clone()


def main(rank: int, meeting: str, results: str, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORLD)
    reductions: list[str] = []
    model = parallel_model(kind, reductions)
    found = {}
    for schedule in SCHEDULES:
        for mode in ("once", "every backward"):
            reductions.clear()
            no_sync = None if mode == "once" else nullcontext
            for step in range(MICRO_STEPS):
                batch = pairs(seed=WORLD * step + rank, count=1)
                last = step == MICRO_STEPS - 1
                pair_step(model, batch, SimPO(), schedule, scale=1 / MICRO_STEPS, sync=last, no_sync=no_sync)
            found[schedule, mode] = len(reductions), torch.cat([whole(weight.grad) for weight in model.parameters()])
            model.zero_grad()
    if rank == 0:
        torch.save(found, results)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
    os._exit(0)  # threads of gloo that are still there would end the process with an abort
