"""An engine alone, as a ledger: what its card holds when it has loaded and profiled, and while it generates."""

from memplan.engine.allocator.reserved import Band
from memplan.engine.generation.activation import unprofiled_bytes
from memplan.engine.generation.figures import NON_TORCH, communicators, engine_figures, graphs_on, stranded
from memplan.engine.ledger import Ledger
from memplan.engine.overhead import context_of
from memplan.spec.generation import Generator
from memplan.spec.gpu import Gpu
from memplan.tables.engines import era_of

START, GENERATE = "start.engine", "rollout.generate"


def engine_ledger(of: Generator, gpu: Gpu) -> Ledger:
    """Two instants: the profile run, before there is a cache; and generation."""
    ledger, found, era = Ledger((START, GENERATE)), engine_figures(of, gpu), era_of(of.engine, of.version)

    def enter(
        name: str, category: str, band: Band, why: str, meter: str = "allocated", born: str = "", dies: str = ""
    ) -> None:
        row = ledger.add(name, category, band.expected, born, dies, meter=meter, low=band.low, high=band.high)
        row.formula(TEMPLATES.get(name, "")).since(why, era.source)

    graphs, context = graphs_on(of, era, gpu), context_of(gpu)
    enter("engine's weights", "parameters", _exact(found.weights), f"{of.tensor_parallel} ranks share them")
    dies = "" if era.strands and not of.kv_cache_memory else START
    replaced = Band(0, 0, stranded(of, gpu, found.weights))
    enter("weights that loading replaced", "parameters", replaced, "freed in a pool that is open: at most", dies=dies)
    enter(
        "forward and sampler of the profile run",
        "activations",
        Band(found.activation // 2, found.activation, found.activation * 3 // 2),
        "the most that a full batch needs, which the engine keeps free for good",
    )
    cache = _exact(found.kv + found.states)
    enter("KV cache", "kv_cache", cache, "what the budget leaves, taken at once", born=GENERATE)
    if checks := unprofiled_bytes(of, era):
        why = "a full batch checks more drafted tokens than the profile run: at most"
        enter("logits of drafted tokens", "activations", Band(0, 0, checks), why, born=GENERATE)
    if found.beside:
        why = "where each request's tokens are, and FlashInfer's workspace: outside of the share"
        enter("requests' rows and workspace", "workspaces", _exact(found.beside), why, born=GENERATE)
    enter("CUDA graphs", "workspaces", graphs, "captured for each size of a batch", "device", GENERATE)
    enter(
        "outside PyTorch",
        "context",
        NON_TORCH._replace(expected=found.non_torch, high=max(found.non_torch, NON_TORCH.high)),
        "kernels and workspaces that load",
        "device",
    )
    outside = Band(*(each - other for each, other in zip(found.outside, communicators(of, gpu), strict=True)))
    enter("CUDA context", "context", outside, context.source, "device")
    enter("communicators of its ranks", "communication", communicators(of, gpu), "NCCL's buffers", "device")
    return ledger


TEMPLATES = {
    "engine's weights": "divided by ranks, vocabulary padded, scales with what is quantised",
    "forward and sampler of the profile run": "max_num_batched_tokens × layer, or max_num_seqs × V × bytes",
    "logits of drafted tokens": "max_num_seqs × (drafted − 1) × V × bytes",
    "KV cache": "share × card − weights − activation − outside PyTorch (− estimate of graphs)",
    "CUDA graphs": "layers × sizes × bytes",
}


def _exact(size: int) -> Band:
    return Band(size, size, size)
