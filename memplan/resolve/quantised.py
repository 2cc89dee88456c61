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
    stack_itemsize: int = 0
    upcast: str = "none"
    """What ``prepare_model_for_kbit_training`` leaves in fp32: none, norms, all."""

    @property
    def numerics(self) -> Numerics:
        """What modules compute in."""
        stored = self.stored
        fp16 = stored.precision.dtype == "fp16"
        return Numerics(stored.compute_itemsize, stored.autocast, fp16, self.norm_itemsize, self.stack_itemsize)

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
        for key in ("quantize_experts", "kbit_upcast_experts", "unquantized_share"):
            if value := getattr(job, key):
                said = str(value).lower()
                raise InvalidJob(f"{key}: {said} without quantization", "add quantization: nf4, or leave it out")
        check_gradients(job, trainer, stored, split)
        return Base(None, stored)
    scheme = QUANTIZATIONS[job.quantization]
    _check(job, scheme, split, notes)
    compute = DTYPE_BYTES[stored.precision.dtype]
    four = scheme.product == "bnb-4bit"
    experts, keeps = trainer.models.transformers_4, scheme.product in trainer.models.keeps_inputs
    stacks = _packs_stacks(job, trainer, spec, four, notes)
    fp16 = stored.precision.dtype == "fp16"
    whole, left = stored.precision.weights, job.unquantized_share
    base = Quantised(scheme, compute, whole, fp16, experts or stacks, stacks, keeps, left)
    if keeps:
        newer = next(era.since for era in TRAINERS[trainer.name] if scheme.product not in era.models.keeps_inputs)
        what, release = ("4-bit products keep their inputs", "0.43.2") if four else ("8-bit products keep more", "0.45")
        notes.remark(
            f"quantization: {what} till backward is done, as bitsandbytes before {release} has it, which came out "
            f"beside this {trainer.title}: trainer_version {newer} is with a newer one"
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
    stays = base.experts or split.is_deepspeed or (split.is_fsdp and split.ranks > 1)
    cast = bool(norms) if job.kbit_upcast_experts is None else job.kbit_upcast_experts
    stacks_itemsize = FP32 if cast and not stays and stored.precision.weights != FP32 else 0
    return Base(base, stored, norms, stacks_itemsize, upcast)


def _packs_stacks(job: Job, trainer: Trainer, spec: ModelSpec, four: bool, notes: Notes) -> bool:
    """Whether stacked experts are packed. Raises InvalidJob where none are there, or another format is asked for."""
    if not job.quantize_experts:
        return False
    parts = [run.layer.feed_forward for run in spec.runs if run.layer.feed_forward is not None]
    grouped = [part.experts for part in parts if part.experts is not None]
    for wrong, what, hint in (
        (not grouped, f"{spec.name} has no experts", "leave it out"),
        (trainer.models.transformers_4, "experts are linears in transformers 4, and quantised as such", "leave it out"),
        (not four, f"experts in {job.quantization} are not modelled", "use quantization: nf4"),
        (any(each.routing.program == "scatter" for each in grouped), f"not modelled for {spec.family}", "leave it out"),
    ):
        if wrong:
            raise InvalidJob(f"quantize_experts: {what}", hint)
    notes.assume("quantize_experts: their parameters are unpacked whole, a layer at a time, which is not measured")
    return True


def _check(job: Job, scheme: Quantization, split: Split, notes: Notes) -> None:
    """What transformers, PEFT or the libraries refuse."""
    if job.lora is None:
        raise InvalidJob(
            f"quantization: {scheme.name} weights cannot be trained", "add lora (QLoRA), such as --lora-r 16"
        )
    if split.name in ("zero3", "fsdp", "fsdp2") and split.ranks > 1:
        where = "with parameters on the host" if _on_host(job) and not split.is_fsdp else "split over ranks"
        why = f"a quantised base {where} is not modelled"
        if job.unquantized_share:
            raise InvalidJob(
                f"sharding: {split.name} with unquantized_share {job.unquantized_share:g} is not modelled",
                "use sharding ddp or zero2",
            )
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


def as_base(scheme: Quantization | None, trainer: Trainer, shared: bool, four_bits: bool) -> str:
    """The quantisation of a generation engine's weights where nobody says: the base's, where it has them from it or, of
    bitsandbytes' (``four_bits``), is told so. Raises InvalidJob for 8 bits, which TRL refuses."""
    if scheme is None or not (shared or (four_bits and scheme.product.startswith("bnb"))):
        return "none"
    if scheme.bits == 8 and not shared:
        raise InvalidJob(
            f"quantization: {scheme.name}: {trainer.title} refuses vLLM beside a base in 8 bits",
            "use quantization nf4, or rollout.engine hf",
        )
    return scheme.name.partition("-")[0].replace("fp4", "nf4")
