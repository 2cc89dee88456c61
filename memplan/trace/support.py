"""What can be traced: everything else is refused by name, before anything is built."""

from memplan.engine.micro_step import loops_experts
from memplan.errors import InvalidJob
from memplan.resolve.stopping import AS_WHOLE, UNSEEN, rests_unseen, stops
from memplan.spec.recipe import Recipe
from memplan.units import words_of

TRAINERS = words_of(
    """pytorch transformers trl llamafactory llamafactory-v1 simpo-repo openrlhf verl litgpt mindspeed
    nemo-aligner slime"""
)
OPTIMIZERS = ("adamw", "sgd", "sgd-momentum", "rmsprop", "adafactor", "muon")
SHARDINGS = ("none", "ddp", "fsdp2", "fsdp")
HEADS = words_of(
    """cross-entropy shifted-cross-entropy repeated-cross-entropy foak-cross-entropy chunked-cross-entropy
    log-softmax stacked-log-softmax selective selective-kernel flash-cross-entropy flash-cross-entropy-in-place
    one-hot megatron-cross-entropy megatron-fused shared-softmax fused chunked-log-probs chunked-nll
    chunked-lm-head liger tiled score kl-divergence jensen-shannon"""
)
WITHOUT_LOGITS = ("fused", "chunked-log-probs", "chunked-nll", "liger", "tiled")
"""Those that take hidden states."""


def check(recipe: Recipe) -> None:
    """Raise InvalidJob, naming the key, for a job whose real step is not written here."""
    name = recipe.trainer.name
    if name not in TRAINERS:
        raise InvalidJob(f"trainer: {name} cannot be traced", "use trainer pytorch or transformers")
    if recipe.in_megatron:
        raise InvalidJob(f"trainer: {name} trains Megatron's own model, which is not traced", "use trainer pytorch")
    if recipe.sharding.name not in SHARDINGS:
        raise InvalidJob(f"sharding: {recipe.sharding.name} cannot be traced", "use " + ", ".join(SHARDINGS))
    if recipe.optimizer.row.name not in OPTIMIZERS:
        raise InvalidJob(f"optimizer: {recipe.optimizer.row.name} cannot be traced", "use " + ", ".join(OPTIMIZERS))
    _check_quantised(recipe)
    if loops_experts(recipe):
        raise InvalidJob(
            f"trainer_version: before transformers 5, which is traced, {recipe.model.family}'s experts ran one by one",
            "leave trainer_version out",
        )
    _check_sft_term(recipe)
    if name != "pytorch" and recipe.provenance.sources.get("logits_dtype"):
        raise InvalidJob(f"logits_dtype: {name} decides it itself", "leave logits_dtype out")
    if recipe.operators.kernels.compiled:
        raise InvalidJob("compile: what a compiler makes cannot be traced", "leave compile out")
    if recipe.loss.code.entropy == "compiled":
        raise InvalidJob("entropy: what a compiler makes cannot be traced", "use entropy none")
    if recipe.loss.head not in HEADS:
        raise InvalidJob(f"loss_head: {recipe.loss.head} cannot be traced", "use cross-entropy, log-softmax, selective")
    if recipe.loss.head in ("shifted-cross-entropy", "foak-cross-entropy") and recipe.loss.to_fp32:
        raise InvalidJob(
            "trainer_version: models of transformers before 4.46 cast their logits in place, which is not traced",
            "use trainer_version 4.48",
        )
    if recipe.model.family == "generic":
        raise InvalidJob("total_params: there is no model to trace", "name a preset, a config.json or a Hub id")
    if any(resident.role == "teacher" for resident in recipe.others.residents) and not recipe.teacher:
        raise InvalidJob(f"extra_models: {recipe.method.name} asks no teacher, so none is traced", "leave it out")
    if recipe.batch.longest or recipe.batch.scoring:
        raise InvalidJob("token_budget: packed rows cannot be traced", "use batch_size and sequence_length")
    _check_online(recipe)
    if recipe.provenance.job.get("images") and recipe.model.tower is None:
        raise InvalidJob(f"images: {recipe.model.family} has no vision tower to trace", "leave images out")
    images = recipe.batch.images
    if recipe.operators.attention == "flash" and (recipe.batch.padded or (images is not None and images.masked)):
        raise InvalidJob("attention: flash removes padding, of text or images, by the data", "use attention sdpa")
    if recipe.operators.attention == "flash" and not recipe.numerics.autocast and recipe.numerics.itemsize > 2:
        raise InvalidJob("attention: flash has no kernels for fp32", "use attention sdpa")
    if recipe.storage.gradient_itemsize != recipe.storage.precision.weights:
        raise InvalidJob("grad_dtype: autograd gives gradients the dtype of the weights", "leave grad_dtype out")
    if recipe.operators.kernels.adapters:
        raise InvalidJob("kernels: fused adapters cannot be traced", "leave kernels out")
    if recipe.checkpointing.recompute.modules:
        raise InvalidJob("gradient_checkpointing: Megatron's modules cannot be traced", "use full or none")
    if recipe.checkpointing.offload == "trl" or (
        recipe.checkpointing.offload and recipe.method.pairs and recipe.loss.pair_pass != "concatenated"
    ):
        raise InvalidJob("offload: TRL's streams and halves of pairs cannot be traced", "use trainer pytorch")
    if recipe.operators.mixer_kernels:
        raise InvalidJob("mixer_kernels: kernels of mamba-ssm and its like need a GPU", "use mixer_kernels torch")
    _check_halves(recipe)
    _check_ranks(recipe)


def _check_quantised(recipe: Recipe) -> None:
    """bitsandbytes' four bits alone, and only whole."""
    base = recipe.quantised
    if base is None:
        return
    if base.scheme.product != "bnb-4bit":
        raise InvalidJob(
            f"quantization: {base.scheme.name} cannot be traced: its kernels need a GPU", "use quantization nf4"
        )
    if base.experts and recipe.model.routed:
        raise InvalidJob(
            f"trainer_version: before transformers 5, which is traced, {recipe.model.family}'s experts were linears, "
            "and quantised",
            "leave trainer_version out",
        )
    if recipe.sharding.ranks > 1:
        raise InvalidJob("num_gpus: a quantised base is traced on one GPU", "num_gpus 1")


def _check_sft_term(recipe: Recipe) -> None:
    late = recipe.trainer.loss.sft_term_of.get(recipe.method.name) == "scored"
    if recipe.loss.sft_term and late:
        raise InvalidJob("sft_term: TRL's from 0.29 on is not traced in dpo", "use trainer_version 0.24")


def _check_online(recipe: Recipe) -> None:
    """Updates that are written here: a plain loop's, and TRL's without a critic."""
    method, name = recipe.method, recipe.trainer.name
    if not (method.online or method.teacher):
        return
    if name not in ("pytorch", "trl"):
        raise InvalidJob(f"trainer: {method.name} of {name} cannot be traced", "use trainer pytorch")
    if recipe.sharding.ranks > 1 and (recipe.others.critic is not None or method.teacher):
        raise InvalidJob(f"num_gpus: {recipe.sharding.ranks}: {method.name} is traced on one GPU", "use num_gpus 1")
    written = name == "trl" and method.optional_reference and recipe.loss.head == "fused"
    if recipe.loss.head in WITHOUT_LOGITS and not written and (name == "trl" or method.name != "online-dpo"):
        raise InvalidJob(f"loss_head: {recipe.loss.head} is not traced with {method.name}", "leave loss_head out")
    if recipe.others.reference == "offloaded":
        raise InvalidJob("reference: offloaded cannot be traced", "use resident, adapter or none")


def _check_ranks(recipe: Recipe) -> None:
    """What torch itself cannot run on shards, or would not split."""
    if recipe.model.frozen and recipe.sharding.name == "fsdp" and not recipe.sharding.fsdp.use_orig_params:
        raise InvalidJob("freeze: Must flatten tensors with uniform `requires_grad`", "use fsdp.use_orig_params true")
    for said, hint in stops(recipe):
        raise InvalidJob(said, hint)
    if rests_unseen(recipe):
        raise InvalidJob(UNSEEN, AS_WHOLE)
    if not recipe.parallel.whole_stream and (recipe.parallel.model > 1 or recipe.parallel.expert > 1):
        raise InvalidJob(
            "tensor_parallel, pipeline_parallel, context_parallel, expert_parallel: ranks that hold parts of a model "
            "are not traced",
            "leave them out",
        )
    if recipe.sharding.name == "none":
        return
    if recipe.sharding.ranks == 1 and recipe.sharding.name != "fsdp2":
        raise InvalidJob(
            f"num_gpus: 1, so that sharding {recipe.sharding.name} has nothing to share", "num_gpus 2 or more"
        )
    if recipe.sharding.ddp.comm_hook != "none":
        raise InvalidJob(f"ddp.comm_hook: {recipe.sharding.ddp.comm_hook} cannot be traced", "leave it out")
    if recipe.sharding.name == "fsdp" and recipe.sharding.fsdp.cpu_offload:
        raise InvalidJob(
            "fsdp.cpu_offload: FSDP1 moves weights between devices, which fake tensors cannot", "use sharding fsdp2"
        )
    if recipe.sharding.name != "fsdp2":
        return
    if recipe.optimizer.row.factored:
        raise InvalidJob(
            f"optimizer: torch.optim's {recipe.optimizer.row.name} does not run on FSDP2's shards", "use adamw or sgd"
        )
    cast = (
        recipe.storage.precision.mixed
        and recipe.adapter is not None
        and recipe.adapter.itemsize != recipe.numerics.itemsize
    )
    if cast and recipe.others.reference == "adapter" and recipe.trainer.reference.first:
        raise InvalidJob(
            "lora.dtype: FSDP2 settles dtypes in its first forward, in which the reference has the adapters off",
            "use lora.dtype bf16, or reference resident or precomputed",
        )


def _check_halves(recipe: Recipe) -> None:
    if recipe.method.pairs and recipe.loss.pair_pass != "concatenated":
        if recipe.loss.head not in ("log-softmax", "selective", "score"):
            raise InvalidJob(
                f"loss_head: {recipe.loss.head} is not traced with pair_pass {recipe.loss.pair_pass}",
                "use pair_pass concatenated, or loss_head selective",
            )
        if recipe.loss.sft_term:
            raise InvalidJob(
                f"sft_term: not traced with pair_pass {recipe.loss.pair_pass}", "use pair_pass concatenated"
            )
    elif recipe.method.name == "kto" and recipe.others.reference == "none":
        raise InvalidJob("reference: none", "use resident, adapter or precomputed")


def check_fallback(recipe: Recipe, reason: str) -> None:
    """Raise InvalidJob for a job that fake CPU tensors would answer wrongly."""
    hint = "install a C++ compiler (g++), or a CUDA build of torch: no GPU is needed"
    if recipe.numerics.autocast:
        raise InvalidJob(f"autocast on a CPU differs from CUDA's, and fake CUDA tensors cannot be had: {reason}", hint)
    if recipe.model.routed:
        raise InvalidJob(f"experts run otherwise on a CPU, and fake CUDA tensors cannot be had: {reason}", hint)
