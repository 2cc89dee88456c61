"""What a job does beside its steady step, resolved: how weights come to the card, and how they leave it."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from memplan.spec.base import Frozen

Loads = Literal["host", "card", "rank0", "partitioned"]
Saves = Literal["plain", "cloned", "gathered", "whole", "shards", "partitions"]


class Loading(NamedTuple):
    """How weights come from the checkpoint to the card."""

    way: Loads = "host"
    """host: each process reads the whole model into its own memory; card: straight to its card; rank0: the first
    process of a node into its memory, the others nothing; partitioned: under zero.Init, a part on each card."""
    itemsize: int = 2
    """Bytes of an element as from_pretrained makes it."""
    copied: bool = False
    """On the host they are copies, not pages of the checkpoint's file."""
    upcast: int = 0
    """Bytes of an element that trained weights are cast to on the host before they are divided; 0: they are not."""
    stacks: bool = False
    """Experts are stacked anew from the checkpoint's matrices."""
    warms_up: bool = False
    """Half of the model, unpacked, is asked for and let go of before what is packed on the card is read."""
    sent: bool = False
    """What is quantised is on the meta device in all processes of a node but the first, which sends them theirs."""


class Saving(NamedTuple):
    """How a checkpoint is written."""

    way: Saves = "plain"
    """plain: from where weights are; cloned: every process clones them to its host memory (DeepSpeed's stages 0 to 2);
    gathered: by the first process, a module at a time (ZeRO-3); whole: by the first process, a unit or tensor at a time
    (FSDP); shards: each process its own; partitions: each process its optimizer's alone (ZeRO-3 without gathering)."""
    adapters: bool = False
    """Files hold the adapters alone."""
    largest_file: int = 50 * 10**9
    """Bytes of the largest file of weights."""
    splits: bool = False
    """Stacked experts are split into the checkpoint's matrices."""


class Moments(NamedTuple):
    """The phases of a job, and what they do."""

    names: tuple[str, ...] = ()
    loading: Loading = Loading()
    saving: Saving = Saving()


class Evaluation(Frozen):
    """Settings of the evaluation between steps."""

    keeps_logits: bool = False
    """Logits of every batch are kept (compute_metrics, without preprocess_logits_for_metrics)."""
    accumulation_steps: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Batches whose logits wait on the card before they go to the host (eval_accumulation_steps); all of them."""
    examples: Annotated[int, Field(ge=1, le=10**12)] | None = None
    """Examples of the evaluation's data."""
