"""Proves the phases beside the steady step against the libraries' own code: what is alive at once on real tensors.

A first step on fake CUDA tensors; PEFT's merge, transformers' splitting of experts, torch's full state dicts and
safetensors' files on small models on the CPU, every new storage counted.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from traced_jobs import SMALL, job, traces

from memplan.api import estimate
from memplan.report import Moment
from memplan.trace.result import Trace

pytestmark = pytest.mark.filterwarnings("default")  # of the libraries, not of memplan
CLOSE = 0.005
TABLE = {"vocab_size": 2048, "num_hidden_layers": 3}


class Live(TorchDispatchMode):  # type: ignore[misc]  # torch's modes are untyped
    """The most bytes of storages that were made and were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(each.untyped_storage()._cdata) for each in tree_leaves((args, kwargs)) if _is_tensor(each)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if _is_tensor(each) and each.untyped_storage()._cdata not in self._seen and id(each) not in given:
                self._count(each, args, kwargs)
        return made

    def _count(self, tensor: Any, args: Any, kwargs: Any) -> None:
        key, size = tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()
        if any(each.untyped_storage()._cdata == key for each in tree_leaves((args, kwargs)) if _is_tensor(each)):
            return  # a view, or in place
        self._seen.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(tensor.untyped_storage(), self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def _is_tensor(value: Any) -> bool:
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def moment(name: str, **keys: Any) -> Moment:
    """A phase of a job's report."""
    report = estimate(
        {"method": "sft", "trainer": "transformers", "trainer_version": "5.23", "precision": "bf16"} | keys
    )
    return next(each for each in report.per_gpu.moments if each.name == name)


def row(found: Moment, name: str) -> int:
    """Bytes of one of its rows."""
    return next(each.bytes for each in found.ledger if each.name == name)


FIRST = [
    job(SMALL, TABLE, optimizer="adamw", optimizer_impl="foreach"),
    job(SMALL, TABLE, optimizer="adamw", optimizer_impl="fused", gradient_checkpointing="full"),
    job(SMALL, TABLE, optimizer="sgd-momentum", precision="fp32"),
    job(SMALL, TABLE, optimizer="adamw", lora={"r": 8}),
]


def test_the_first_step_is_the_steady_one_without_states() -> None:
    for described, traced in zip(FIRST, traces(FIRST), strict=True):
        assert isinstance(traced, Trace)
        most: dict[str, int] = {}
        for point in traced.timeline:
            if point.phase.endswith("-1"):
                most[point.phase] = max(most.get(point.phase, 0), point.allocated_bytes)
        report = estimate(described)
        found = next(each for each in report.per_gpu.moments if each.name == "first-step")
        assert found.allocated_bytes == report.per_gpu.phases["first-step"]
        measured = max(most["forward-1"], most["backward-1"], most["step-1"])
        assert found.allocated_bytes == pytest.approx(measured, rel=CLOSE), described


@pytest.fixture
def model() -> Any:
    transformers = pytest.importorskip("transformers")
    config = {key: value for key, value in (SMALL | TABLE).items() if key != "model_type"}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))


def test_merging_holds_the_largest_update_twice(model: Any) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
    with Live() as live:
        adapted.merge_and_unload()
    keys = {"model": SMALL | TABLE, "lora": {"r": 8}, "phases": ["merge"], "precision": "fp32"}
    assert live.most == row(moment("merge", **keys), "the update of the largest matrix")


EXPERTS = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
    "intermediate_size": 96, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
OF_KIND: dict[str, dict[str, int]] = {
    "mixtral": {"num_local_experts": 8},
    "qwen3_moe": {"moe_intermediate_size": 96, "num_experts": 8, "head_dim": 16, "decoder_sparse_step": 1},
}


@pytest.mark.parametrize("kind", OF_KIND)
def test_saving_experts_copies_gate_and_up(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.core_model_loading import revert_weight_conversion

    shape = EXPERTS | OF_KIND[kind]
    experts = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **shape))
    with Live() as live:
        split = revert_weight_conversion(experts, experts.state_dict())
        held = live.now
    found = moment("save", model=shape | {"model_type": kind}, precision="fp32")
    assert held == row(found, "gate and up of the experts, apart")
    assert len(split) > len(experts.state_dict())


@contextmanager
def ranks(world: int) -> Iterator[None]:
    """A process group of which this process is the first, and whose collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_a_full_state_dict_gathers_a_tensor_at_a_time(model: Any) -> None:
    """FSDP2's parts are gathered and kept by the first rank: all of the model, and the largest tensor beside it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    with ranks(4):
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    found = moment("save", model=SMALL | TABLE, num_gpus=4, sharding="fsdp2", precision="fp32")
    assert sum(each.nbytes for each in state.values()) == row(found, "the whole state dict")
    assert max(each.nbytes for each in state.values()) == row(found, "the largest tensor, gathered")


def test_deepspeed_clones_all_of_a_state_dict(model: Any) -> None:
    utils = pytest.importorskip("deepspeed.checkpoint.utils", reason="DeepSpeed is not installed")
    clones = utils.clone_tensors_for_torch_save(model.to(torch.bfloat16).state_dict())
    found = moment("save", model=SMALL | TABLE, num_gpus=2, zero_stage=2, precision="bf16-master")
    assert sum(each.nbytes for each in clones.values()) == row(found, "clones of all weights")


def _of_files(tensors: list[Any]) -> int:
    """Bytes of tensors that lie in the mapped pages of a safetensors file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".safetensors" in line]
    spans = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    return sum(each.nbytes for each in tensors if any(start <= each.data_ptr() < end for start, end in spans))


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="Linux alone tells where memory is mapped from")
@pytest.mark.parametrize(("dtype", "copied"), [("bfloat16", False), ("float32", True)])
def test_host_memory_is_the_files_pages_unless_weights_are_cast(
    model: Any, dtype: str, copied: bool, tmp_path: Path
) -> None:
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = list(type(model).from_pretrained(tmp_path, dtype=getattr(torch, dtype)).parameters())
    whole, mapped = sum(each.nbytes for each in loaded), _of_files(loaded)
    precision = "bf16-amp" if copied else "bf16"
    said = moment("load", model=SMALL | TABLE | {"dtype": "bfloat16"}, precision=precision).host_bytes_per_node
    assert said == whole - mapped
    assert mapped == (0 if copied else whole)
