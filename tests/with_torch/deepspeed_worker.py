"""The real DeepSpeed on CPU (gloo, several processes), with every living storage counted: prints what it held.

``python deepspeed_worker.py JOB...`` where each JOB is JSON: ranks, groups, accumulation, dtype, trained (parts of
names), checkpointing, model ([hidden, layers, vocabulary]), tokens, plays, evaluate (rows) and config (DeepSpeed's). A
line of JSON comes back for each job: for each rank the bytes that stay, those at the end of the last forward and
backward, and the peaks of backward and step; where the job says ``plays``, what CUDA's caching allocator would hold of
it all.
"""

import gc
import json
import os
import socket
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS, TOKENS = 4, 8
"""The last of several steps is looked at: ZeRO-3 fetches ahead only after it has recorded an order."""


class Living(TorchDispatchMode):
    """Bytes of the storages that operations made and nobody has let go of."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.now = self.peak = 0
        self.events: list[tuple[int, int]] = []
        """Numbers of storages and their bytes, negative where they go."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        is_view = any(each.alias_info for each in func._schema.returns)
        for leaf in tree_leaves(out):
            if not is_view and isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return out

    def see(self, tensor: torch.Tensor) -> None:
        """Count a storage that is new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if tensor.device.type != "cpu" or not size or key in self.alive:
            return

        number = len(self.events)

        def end(_: Any) -> None:
            self.alive.pop(key, None)
            self.now -= size
            self.events.append((number, -size))

        self.alive[key] = weakref.ref(storage, end)
        self.now += size
        self.peak = max(self.peak, self.now)
        self.events.append((number, size))


def llama(hidden: int, layers: int, vocabulary: int) -> Any:
    """A small model, the same in every process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def of_config(config: dict[str, Any]) -> Any:
    """A model of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))


def engine_of(job: dict[str, Any], living: Living) -> Any:
    """DeepSpeed's engine around the model, no operation compiled."""
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo")
    model = (of_config(job["hf"]) if "hf" in job else llama(*job["model"])).to(
        getattr(torch, job.get("dtype", "bfloat16"))
    )
    if job.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": bool(job.get("reentrant"))})
    if job.get("lora"):
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**job["lora"])).to(getattr(torch, job.get("dtype", "bfloat16")))
        if job.get("checkpointing"):
            model.enable_input_require_grads()
    for name, parameter in model.named_parameters() if not job.get("lora") else ():
        parameter.requires_grad_(any(part in name for part in job.get("trained", [""])))
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [[p for n, p in named if "norm" not in n], [p for n, p in named if "norm" in n]]
    groups = groups if job["groups"] == 2 else [[p for _, p in named]]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups], lr=1e-4, fused=True)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": job["accumulation"],
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": job.get("dtype") is None},
        **job["config"],
    }
    with living:
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for parameter in model.parameters():
        living.see(parameter.data)
    return engine


def run(rank: int, port: int, job: dict[str, Any], folder: str) -> None:
    """One process: a few steps, the last of them counted."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job["ranks"]),
        "LOCAL_SIZE": str(job["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    living = Living()
    engine = engine_of(job, living)
    gc.collect()
    ids = torch.randint(0, job["model"][2], (1, job.get("tokens", TOKENS)))
    start = 0
    found: dict[str, Any] = {"optimizer": type(engine.optimizer).__name__}
    with living:
        for i in range(STEPS * job["accumulation"]):
            start = start if i % job["accumulation"] else len(living.events)
            gc.collect()
            living.peak = living.now
            loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
            found["forward_peak"], found["after_forward"], living.peak = living.peak, living.now, living.now
            engine.backward(loss)
            del loss
            found["backward_peak"], found["after_backward"], living.peak = living.peak, living.now, living.now
            gc.collect()  # else what is cyclic garbage goes now or later, as Python likes
            living.peak = living.now
            engine.step()
            found["step_peak"] = living.peak
            if "evaluate" in job and not (i + 1) % job["accumulation"]:
                found["evaluate_peak"] = evaluated(engine, ids.expand(job["evaluate"], -1), living)
    if job.get("plays"):
        found |= reserved(living.events, start)
    gc.collect()
    Path(folder, str(rank)).write_text(json.dumps(found | {"resident": living.now}))
    torch.distributed.barrier()
    os._exit(0)


def evaluated(engine: Any, ids: Any, living: Living) -> int:
    """The peak of two batches of an evaluation."""
    engine.eval()
    living.peak = living.now
    for _ in range(2):
        with torch.no_grad():
            engine(input_ids=ids, labels=ids, use_cache=False)
    engine.train()
    return living.peak


def reserved(events: list[tuple[int, int]], start: int) -> dict[str, int]:
    """What the caching allocator holds of these storages, and their peak, in the last step."""
    from memplan.engine.allocator.caching import CachingAllocator
    from memplan.engine.allocator.replay import StepEvents, play

    allocator = CachingAllocator()
    play(StepEvents(tuple(events), start), allocator)
    return {"reserved": allocator.peak_reserved, "allocated": allocator.peak_allocated}


def main() -> None:
    """Start the processes of each job and print what they found. They are forked, with the libraries loaded once."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    for job in map(json.loads, sys.argv[1:]):
        print(json.dumps(found_by(job)), flush=True)


def found_by(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank of a job found."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        mp.start_processes(run, args=(port, job, folder), nprocs=job["ranks"], start_method="fork")
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(job["ranks"])]


if __name__ == "__main__":
    main()
