"""What generates beside the trainer, resolved: the engine, its place, and how weights come to it."""

from typing import Literal, NamedTuple

from memplan.spec.model import ModelSpec

Engine = Literal["none", "hf", "vllm", "sglang"]


class Syncing(NamedTuple):
    """Weights from the trainer to the engine."""

    bucket_bytes: int = 0
    """Sent at once; 0: a tensor at a time."""
    buckets: int = 1
    """Of them at once on a card."""
    itemsize: int = 2
    """Bytes of an element as it is gathered and sent."""
    gather: Literal["", "tensor", "unit", "model"] = ""
    """What is gathered whole at once; empty where every card has it whole already."""
    from_host: bool = False
    """Sent from the trainer's copy on the host; elsewhere its parameters are on the card for it."""
    before_waking: bool = False
    """Gathered before the engine's weights are woken."""
    again: bool = False
    """A copy of the base stands beside the one that was gathered for the first."""
    free_share: float = 0.0
    """Of what is free then, which buffers take in place of ``bucket_bytes``."""


class Draft(NamedTuple):
    """What drafts tokens, beside the model that is served."""

    layers: int = 0
    """Of the served model's own shape, with its embedding and head."""
    rows: int = 0
    """Of a head of its own, with an embedding: EAGLE-3's."""
    model: ModelSpec | None = None
    """A model of its own."""
    tokens: int = 1
    """Drafted at once."""


class Away(NamedTuple):
    """What of the trainer is on the host while the engine generates; the update has it back whole."""

    parameters: bool = False
    optimizer: bool = False
    gradients: bool = False
    whole: bool = False
    """The trainer's process is paused: all that torch has of the card in it."""
    locked: tuple[str, ...] = ()
    """Of ``parameters`` and ``optimizer``, what page-locked copies are made of."""

    def covers(self, other: "Away") -> bool:
        """Whether all that is on the host there is here, too."""
        return self.whole == other.whole and all(own or not its for own, its in zip(self[:3], other[:3], strict=True))


def indivisible(model: ModelSpec, ranks: int, experts: int = 1) -> str:
    """What so many tensor parallel ranks do not divide; empty where they divide all (vllm distributed/utils.py: divide;
    models/qwen2.py: heads of keys and values are divided or repeated)."""
    if model.num_heads % ranks:
        return f"the {model.num_heads} heads"
    for heads in {getattr(mixer, "num_kv_heads", 0) or 0 for mixer in model.mixers} - {0}:
        if heads % ranks and ranks % heads:
            return f"the {heads} heads of keys and values"
    for part in (run.layer.feed_forward for run in model.runs):
        if part is None:
            continue
        routed = part.experts.intermediate if part.experts and experts == 1 else 0
        for width in (0 if part.experts else part.intermediate, routed):
            if width % ranks:
                return f"the {width:,} inner features"
    return ""


class Generator(NamedTuple):
    """The engine that a job's completions come out of. Nothing is left open."""

    engine: Engine
    """none: it is not counted, and the trainer alone does what it does around it."""
    version: str
    model: ModelSpec
    """What it serves: the policy as its checkpoint has it, with its head."""
    separate: bool = False
    """On cards of its own."""
    own_process: bool = False
    """Colocated, in a process of its own: a second context on the card."""
    first: bool = False
    """Colocated, it starts before the trainer holds anything of the card."""
    gpus: int = 1
    """It stands on, in all."""
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    share: float = 0.9
    """vLLM's gpu_memory_utilization; SGLang's mem_fraction_static."""
    kv_cache_memory: int = 0
    """Bytes that the cache has whatever the share says; 0: what the share leaves."""
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    prompt_length: int = 0
    completion_length: int = 0
    rows: int = 0
    """Completions that one engine has to generate in a step."""
    group: int = 1
    """Completions of one prompt."""
    itemsize: int = 2
    """Bytes of an element of its weights where they are not quantised."""
    kv_itemsize: int = 2
    latent: bool = True
    """transformers' generate keeps MLA's latents, not what is made of them."""
    quantization: str = "none"
    eager: bool = False
    """No CUDA graphs."""
    logprobs_mode: str = "raw_logprobs"
    sampler: str = ""
    """flashinfer: it sorts nothing, whatever the version does by itself."""
    sleep: int = 0
    """Level: 0 none, 1 weights on the host, 2 weights nowhere."""
    fails: tuple[str, str] = ("", "")
    """Why it does not start as it is told to, on any card, and what to change."""
    shared_weights: bool = False
    draft: Draft | None = None
    adapter_rank: int = 0
    """LoRA as an adapter of the engine's own, of so high a rank; 0: merged, or none."""
    syncing: Syncing = Syncing()
    away: Away = Away()
    empties: bool = True
    """The trainer gives its cache back before the engine wakes; elsewhere all that it has reserved stands."""
    trainers: int = 1
    """Processes of the trainer on a card, one for each of its models."""
    expandable: bool = False
    """Its allocator's segments grow, and blocks are split whatever is left of them."""
    host_store: int = 0
    """Bytes of a node's memory that Ray's object store may grow to."""
    host_copy: bool = False
    """SGLang: its weights are kept on the host while it sleeps."""
    scorer: "Generator | None" = None
    """A reward model's own engine, on the trainer's cards, which is awake while it scores."""
    margin: float = 0.05
    assumptions: tuple[str, ...] = ()
