"""How the GPUs of a job are divided: degrees, and what follows from them; Megatron's layouts of a pipeline.

Which layers each stage and chunk has is a string or lists of names. ``Ettt|(tt|)*29,m|L``: E the embedding, t a layer,
m multi-token prediction, L head and loss; commas are decoration (megatron-core 0.16
transformer/pipeline_parallel_layer_layout.py)."""

import re
from functools import lru_cache
from typing import NamedTuple

from memplan.errors import InvalidJob


class Parallel(NamedTuple):
    """Degrees of parallelism, resolved, and the pipeline stage of the rank that is described."""

    world: int = 1
    """GPUs in all."""
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    virtual: int = 1
    """Chunks of layers on each pipeline stage (interleaved schedule)."""
    sequence: bool = False
    """Norms and dropouts between tensor-parallel products run on a part of the sequence."""
    replicas: int = 1
    """Copies of the sharded states: hybrid sharding, MiCS, instances of Megatron's distributed optimizer."""
    stage: int = 0
    """Of the pipeline, from 0 on."""
    gathers_keys: bool = False
    """Context-parallel ranks gather all keys and values, whatever is the trainer's way."""
    whole_stream: bool = False
    """Tensor-parallel ranks have all of the residual stream and the logits (transformers' plans)."""
    whole_embedding: bool = False
    """Beside a whole stream: the embedding is not divided (transformers before 5.21)."""

    @property
    def summed(self) -> int:
        """Ranks that share each product beside a whole stream."""
        return self.tensor if self.whole_stream else 1

    @property
    def model(self) -> int:
        """GPUs that hold one copy of the model's layers between them, sequence split included."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Ranks that see other examples."""
        return self.world // self.model

    @property
    def shards(self) -> int:
        """Ranks that the states of one (tensor, pipeline) part are split over: data and context parallel ones."""
        return self.data * self.context // self.replicas

    @property
    def expert_shards(self) -> int:
        """The same for experts: what is left of the stage's GPUs beside expert and expert-tensor parallelism."""
        return self.world // (self.pipeline * self.expert * self.expert_tensor * self.replicas)

    @property
    def first(self) -> bool:
        """Whether the rank's stage holds the embedding."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the rank's stage holds final norm, head and loss."""
        return self.stage == self.pipeline - 1


LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
MOST = 100_000
"""Characters of a layout that is written out."""
_GROUP, _LETTER = re.compile(r"\(([^()]+)\)\*(\d{1,4})"), re.compile(r"([^*|()])\*(\d{1,4})")
HINT = "write such as Ett|(tt|)*6ttL: E embedding, t layer, m MTP, L loss, | between stages"


def layout(value: object) -> str:
    """A layout written out, ``Ettt|tt|ttL``; empty for none. Raises InvalidJob for what is none."""
    if value in (None, "", [], ()):
        return ""
    if isinstance(value, (list, tuple)):
        rows = [[row] if isinstance(row, str) else row for row in value]
        words = [[str(word).strip().lower() for word in row] for row in rows if isinstance(row, (list, tuple))]
        text = "|".join("".join(LETTERS.get(word, "?") for word in row) for row in words)
    else:
        text = re.sub(r"[\s,\"']", "", str(value))
        for pattern in (_GROUP, _LETTER):
            text = pattern.sub(lambda found: (found[1] * int(found[2]))[:MOST], text)
    rows_of = text[:MOST].split("|")
    if set("".join(rows_of)) - set(LETTERS.values()) or not text.startswith("E") or not text.endswith("L"):
        raise InvalidJob(f"megatron.pipeline_model_parallel_layout: {str(value)[:60]!r} is no layout", HINT)
    if text.count("E") != 1 or text.count("L") != 1 or "t" in text.partition("m")[2]:
        raise InvalidJob(
            "megatron.pipeline_model_parallel_layout: has one E, one L, and no layer behind its first m", HINT
        )
    return text


@lru_cache(maxsize=256)
def rows(text: str) -> tuple[str, ...]:
    """The chunks of a layout, in the order in which a micro-batch passes them."""
    return tuple(text.split("|")) if text else ()


def evenest(layers: int, parts: int, mtp: int = 0) -> str:
    """A layout of so many parts as it is typed: those in front have one layer more where layers do not divide, and the
    last, which has the head, never."""
    each, more = divmod(layers, parts)
    runs = "".join(f"(t*{size}|)*{count}" for size, count in ((each + 1, more), (each, parts - more - 1)) if count)
    return f"E{runs}t*{each}{'m' * mtp}L"
