"""The quantised base, resolved: what its linears compute in, what is cast to fp32 beside them, what cannot be."""

from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.storage import Split, Stored, check_gradients
from memplan.spec.groups import Numerics, Quantised, Storage
from memplan.spec.job import Job
from memplan.spec.model import ModelSpec
from memplan.tables.quantizations import QUANTIZATIONS, Quantization
from memplan.tables.trainer import Trainer, by_method
from memplan.tables.trainers import TRAINERS
from memplan.units import DTYPE_BYTES

FP32 = DTYPE_BYTES["fp32"]


class Base(NamedTuple):
    """The quantised linears, and how what stands beside them is stored."""

    quantised: Quantised | None
    stored: Stored
    norm_itemsize: int = 0
    upcast: str = "none"
    """What ``prepare_model_for_kbit_training`` leaves in fp32: none, norms, all."""

    @property
    def numerics(self) -> Numerics:
        """What modules compute in."""
        stored = self.stored
        return Numerics(stored.compute_itemsize, stored.autocast, stored.precision.dtype == "fp16", self.norm_itemsize)

    def storage(self, reduce_itemsize: int) -> Storage:
        """How weights and gradients are stored and reduced."""
        return Storage(self.stored.precision, self.stored.gradient_itemsize, reduce_itemsize)

    @property
    def as_job(self) -> dict[str, bool]:
        """The job's key, where it says all of it."""
        return {"kbit_upcast": self.upcast == "all"} if self.quantised and self.upcast != "norms" else {}


def quantised_base(job: Job, trainer: Trainer, spec: ModelSpec, stored: Stored, split: Split, notes: Notes) -> Base:
    """The base of the job. Raises InvalidJob for a combination that the libraries refuse."""
    if job.quantization == "none":
        if job.kbit_upcast:
            raise InvalidJob(
                "kbit_upcast: true without quantization", "add quantization: nf4, or leave kbit_upcast out"
            )
        check_gradients(job, trainer, stored, split)
        return Base(None, stored)
    scheme = QUANTIZATIONS[job.quantization]
    _check(job, scheme, split, notes)
    compute = DTYPE_BYTES[stored.precision.dtype]
    experts, keeps = trainer.models.transformers_4, scheme.product == "bnb-4bit" and trainer.models.keeps_4bit_inputs
    base = Quantised(scheme, compute, stored.precision.weights, stored.precision.dtype == "fp16", experts, keeps)
    if keeps:
        newer = next(era.since for era in TRAINERS[trainer.name] if not era.models.keeps_4bit_inputs)
        notes.remark(
            "quantization: 4-bit products keep their inputs till backward is done, as bitsandbytes before 0.43.2 has "
            f"it, which came out beside this {trainer.title}: trainer_version {newer} is with a newer one"
        )
    if scheme.product.startswith("bnb") and spec.family == "falcon" and not trainer.models.transformers_4:
        notes.remark(
            "quantization: counted as transformers 4 has it; transformers 5 leaves Falcon's linears in "
            f"{stored.precision.dtype} (integrations/bitsandbytes.py: type(module) is nn.Linear)"
        )
    if scheme.product == "bnb-4bit":
        notes.assume(f"bnb_4bit_compute_dtype: {stored.precision.dtype}")
    if scheme.assumed:
        notes.assume(f"quantization {scheme.name}: transients are those of {scheme.source}, taken from its code")
    upcast = _upcast(job, trainer, scheme, stored, notes)
    if upcast != "none" and split.is_fsdp and split.ranks > 1:
        notes.remark("kbit_upcast: none under FSDP, whose units hold one dtype (TRL skips it on sharded QLoRA)")
        upcast = "none"
    if upcast != "none" and split.is_deepspeed and stored.precision.weights != FP32:
        notes.remark("kbit_upcast: undone by DeepSpeed, whose engine casts every parameter to its half precision")
        upcast = "none"
    if upcast == "all" and stored.precision.weights != FP32:
        wide = stored.precision._replace(weights=FP32, gradients=FP32)
        stored = stored._replace(precision=wide, compute_itemsize=FP32, gradient_itemsize=FP32, reduce_itemsize=FP32)
    check_gradients(job, trainer, stored, split)
    norms = FP32 if upcast == "norms" and stored.precision.weights != FP32 else 0
    return Base(base, stored, norms, upcast)


def _check(job: Job, scheme: Quantization, split: Split, notes: Notes) -> None:
    """What transformers, PEFT or the libraries refuse."""
    if job.lora is None:
        raise InvalidJob(
            f"quantization: {scheme.name} weights cannot be trained", "add lora (QLoRA), such as --lora-r 16"
        )
    if split.name in ("zero3", "fsdp", "fsdp2") and split.ranks > 1:
        where = "with parameters on the host" if _on_host(job) and not split.is_fsdp else "split over ranks"
        why = f"a quantised base {where} is not modelled"
        if scheme.product == "bnb-int8":
            why = "int8 weights cannot be split over ranks (bitsandbytes' Int8Params)"
        elif scheme.product == "bnb-4bit" and (split.is_fsdp or not _on_host(job)):
            why_so = "as PEFT's guide to ZeRO-3 has it"
            if split.is_fsdp:
                why_so = "FSDP splits packed weights in the dtype of the others; left at uint8, they stay whole"
            notes.assume(f"bnb_4bit_quant_storage: {job.dtype or 'bf16'} ({why_so})")
            why = ""
        if why:
            raise InvalidJob(
                f"sharding: {split.name} with quantization {scheme.name}: {why}", "use sharding ddp or zero2"
            )
    if job.lora.dora and scheme.product == "awq":
        raise InvalidJob("lora.dora: PEFT has no DoRA over AWQ", "leave dora out, or use another quantization")


def _on_host(job: Job) -> bool:
    """Whether DeepSpeed holds the parameters on the host."""
    given = job.deepspeed.offload_param if job.deepspeed else None
    return "parameters" in job.offload or (given is not None and given.device != "none")


def _upcast(job: Job, trainer: Trainer, scheme: Quantization, stored: Stored, notes: Notes) -> str:
    """none, norms (4 bits: TRL casts embeddings and head back to bf16), or all."""
    if job.kbit_upcast is not None:
        if job.kbit_upcast and not scheme.upcast:
            raise InvalidJob(
                f"kbit_upcast: prepare_model_for_kbit_training casts nothing beside {scheme.title}",
                "leave kbit_upcast out",
            )
        return "all" if job.kbit_upcast else "none"
    prepares = scheme.upcast and job.kernels != "unsloth"  # FastLanguageModel prepares its base itself
    own = by_method(trainer.adapters.kbit_upcast, job.method, "none") if prepares else "none"
    own = "all" if own == "norms" and scheme.bits == 8 else own
    texts = {
        "none": "",
        "norms": f"{trainer.title} leaves norms in fp32 beside a 4-bit base",
        "all": "prepare_model_for_kbit_training casts embeddings, head and norms to fp32",
    }
    notes.fill("kbit_upcast", own != "none", "trainer", texts[own] if stored.precision.weights != FP32 else "")
    return own
