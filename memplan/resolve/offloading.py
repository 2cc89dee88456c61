"""What of a pass waits on the host: activations, or the inputs of checkpointed layers alone."""

from memplan.errors import InvalidJob
from memplan.resolve.notes import Notes
from memplan.resolve.recompute import REFERENCE_OFFLOADS
from memplan.resolve.storage import Split
from memplan.spec.job import Job
from memplan.tables.styles import OffloadStyle
from memplan.tables.trainer import Trainer


def _offloads_inputs(job: Job, trainer: Trainer, notes: Notes) -> OffloadStyle:
    """Layers' inputs alone, all of them, back for the layer that is made again (LLaMA-Factory
    model_utils/checkpointing.py: get_unsloth_gradient_checkpointing_func)."""
    for bad, what in (
        (trainer.name != "llamafactory", f"by {trainer.title}"),
        (job.gradient_checkpointing != "full", "without gradient_checkpointing: full"),
        ("activations" in job.offload, "beside activations"),
        (job.images is not None, "with images"),
    ):
        if bad:
            raise InvalidJob(f"offload: checkpoints {what} is not modelled", "leave offload out")
    notes.assume(
        "offload: every checkpointed layer's input waits on the host, and comes back as the layer is made again"
    )
    return "inputs"


def offloads_activations(job: Job, trainer: Trainer, split: Split, notes: Notes) -> OffloadStyle:
    """How activations wait on the host. InvalidJob for what has no offload on one GPU."""
    for name, why in (
        ("optimizer", "outside DeepSpeed no trainer modelled here moves optimizer states alone"),
        ("parameters", "outside DeepSpeed and FSDP no trainer modelled here moves the weights that it trains"),
        ("reference", f"say {REFERENCE_OFFLOADS}, with a trainer that swaps its reference in"),
    ):
        with_weights = split.is_fsdp and "parameters" in job.offload  # FSDP's cpu_offload moves states with the weights
        elsewhere = (split.is_deepspeed or with_weights) and name != "reference"
        if name in job.offload and not elsewhere and not (trainer.megatron and name == "optimizer"):
            raise InvalidJob(f"offload: {name} is not modelled ({why})", "use offload: activations, or leave it out")
    if "checkpoints" in job.offload:
        return _offloads_inputs(job, trainer, notes)
    if "activations" not in job.offload:
        return ""
    known = trainer.name == "trl" and split.name == "ddp"  # elsewhere weights are not where TRL saw them, and move too
    several = split.ranks > 1 and trainer.name != "prime-rl" and not known
    if several or trainer.megatron or job.images is not None:
        what = "over several GPUs" if several else "with images" if job.images is not None else "in Megatron"
        raise InvalidJob(f"offload: activations {what} is not modelled yet", "leave offload out")
    if trainer.name in ("trl", "torchtune", "prime-rl"):
        notes.assume(
            f"offload: activations as {trainer.title} does it: saved tensors of 1 KiB or more go to pinned memory on a "
            "stream of their own, the last five of them wait, one saved again meanwhile stays on the card"
        )
        return "trl"
    if trainer.name != "pytorch":
        raise InvalidJob(f"offload: {trainer.title} does not offload activations", "use trainer trl or pytorch")
    notes.assume(
        "offload: activations by torch.autograd.graph.save_on_cpu around forward and loss: every saved tensor, weights "
        "included, once for each node that saves it"
    )
    return "torch"
