"""What a row of the terms is made of, and words that many rows share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chinese:
    """The words of a row in Chinese; a formula only where the English one has words in it."""

    title: str
    lifetime: str = ""
    shards: str = ""
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One term."""

    key: str
    title: str
    what: str
    """Two sentences."""
    formula: str
    source: str
    section: str
    """Anchor in MEMORY_ESTIMATION.md."""
    zh: Chinese
    lifetime: str = ""
    """From birth to death, in instants of the schedule; empty for a concept."""
    shards: str = ""
    """What divides it over GPUs; empty for a concept."""
    categories: tuple[str, ...] = ()
    """Categories of the ledger's rows that it covers; empty for a concept."""
    see: tuple[str, ...] = ()
    """Keys of related terms."""
    aliases: tuple[str, ...] = ()
    """Other words for it."""


WHOLE_STEP, NOTHING = "the whole step", "nothing"
WHOLE_STEP_ZH, NOTHING_ZH = "整个训练步", "不切分"
ROWS_ONLY, ROWS_ONLY_ZH = "nothing: each rank has its own rows", "不切分：每张卡处理自己的序列"
REPLAY = "torch 2.13 tools/autograd/derivatives.yaml; transformers 5.23 modeling_llama.py"
ZERO_1_2, ZERO_3 = "deepspeed 0.19 runtime/zero/stage_1_and_2.py", "stage3.py"
FSDP2 = "torch 2.13 distributed/fsdp/_fully_shard"
