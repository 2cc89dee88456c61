"""Which program turns hidden states into a loss, in which dtype, and what the trainer's code holds beside it."""

from memplan.errors import InvalidJob
from memplan.resolve.choices import has_value_head
from memplan.resolve.notes import Notes
from memplan.resolve.plans import whole_streams
from memplan.resolve.storage import Split, Stored
from memplan.spec.groups import Loss, LossCode
from memplan.spec.job import Job
from memplan.tables.loss_heads import READS_WEIGHT
from memplan.tables.methods import Method
from memplan.tables.trainer import Trainer, by_method, names_method
from memplan.tables.trainers import SHOWN_HEADS
from memplan.units import words_of

WITHOUT_LOGITS = ("fused", "chunked", "cut-cross-entropy", "tiled")
"""Loss heads, in the job's words, that never make all of the logits."""
INSIDE = words_of(
    """cross-entropy shifted-cross-entropy foak-cross-entropy compiled-cross-entropy megatron-cross-entropy
    unsloth-cross-entropy chunked-cross-entropy kl-divergence jensen-shannon"""
)
"""Programs that give a loss and no log-probabilities."""


COMPILED = {
    "cross-entropy": "compiled-cross-entropy",
    "shifted-cross-entropy": "compiled-cross-entropy",
    "linear-chunks": "compiled-linear-chunks",
    "output-chunks": "compiled-output-chunks",
}
"""What torch.compile makes of a head's program."""


def head(
    job: Job, method: Method, trainer: Trainer, stored: Stored, split: Split, lora: bool, notes: Notes
) -> tuple[Loss, str]:
    """The loss of this trainer and method, and the entropy that it makes, in the job's word."""
    if method.score_head or job.own_loss is not None:
        return _without_program(job, method, trainer, stored, split, notes), "none"
    unscored = job.entropy == "unscored"  # none, nor beside the scores of a rollout, as a fork has it
    job = job.but(entropy="none") if unscored else job
    name = _program(job, method, trainer, lora, notes)
    _check_tiled(name, job, trainer, stored, split)
    _check_policy(name, stored, split)
    without_logits = SHOWN_HEADS.get(name, name) in WITHOUT_LOGITS
    _check_extras(job, name, without_logits, trainer)
    _check_options(job, method, trainer)
    updates_alone = name.startswith("liger-policy")
    logs = name not in INSIDE and not updates_alone and not notes.is_given("entropy")
    entropy = trainer.entropy.used_as.get(method.name, job.entropy) if logs else job.entropy
    if entropy != job.entropy:
        notes.fill("entropy", entropy, "trainer", f"{trainer.title} logs it")
    if entropy != "none" and name == "flash-cross-entropy-in-place":
        name = "flash-cross-entropy"  # verl: inplace_backward = False where the entropy is made
    native_amp = stored.autocast > 0 and not split.is_deepspeed
    wraps = trainer.numerics.fp32_outputs and native_amp
    own = names_method(trainer.logits.fp32, method.name)
    asked = job.logits_dtype == "fp32" and stored.precision.dtype != "fp32"  # what is fp32 is not cast to it
    wide = asked or (job.logits_dtype != "bf16" and (own or wraps))
    shifts = name in ("shifted-cross-entropy", "foak-cross-entropy")
    itself = name in ("cross-entropy", "megatron-cross-entropy", "unsloth-cross-entropy") or (shifts and not own)
    wide = wide and not itself and (not without_logits or updates_alone)
    term = job.sft_term if job.sft_term is not None else method.name in trainer.loss.sft_term
    if job.sft_term and method.pairs and without_logits:
        notes.assume(f"sft_term: loss_head {name} makes no logits, so it is made of log-probabilities: no memory")
    term = term and method.pairs and not without_logits
    made_of = by_method(trainer.loss.sft_term_of, method.name, "logits") if term else "logits"
    if made_of == "free":
        notes.assume(f"sft_term: {trainer.title} makes it of the log-probabilities that are there: no memory")
    around_forward = trainer.megatron or trainer.numerics.leaves_autocast
    if made_of == "scored":
        notes.assume("sft_term: counted before the log-probabilities; TRL makes it of scored tokens, later")
    _assume(job, trainer, name, notes)
    scaled = method.name in trainer.logits.rescaled and not without_logits
    keeps = trainer.logits.outputs_held and (scaled or name in ("cross-entropy", "chunked-cross-entropy"))
    if job.hold_outputs is not None:
        if job.hold_outputs and not (name in INSIDE and method.name == "sft"):
            raise InvalidJob(f"hold_outputs: loss_head {name} leaves no logits in the outputs", "leave it out")
        keeps = job.hold_outputs
    elif trainer.name == "pytorch" and method.name == "sft" and name in INSIDE:
        notes.assume("hold_outputs: false: the loop names the loss alone; outputs = model(...) would hold the logits")
    leaves = wraps or (around_forward and stored.autocast > 0)
    code = _code(job, method, trainer, name, leaves, without_logits and not updates_alone, entropy)
    code = code._replace(scoring_entropy=code.scoring_entropy and not unscored)
    loss = Loss(
        head=name,
        to_fp32=wide,
        keeps_outputs=keeps,
        fp32_outputs=wraps or (keeps and own),
        code=code._replace(late_sft_term=made_of if made_of in ("viewed", "copied") else ""),
        sft_term=term and made_of != "free",
        pair_pass=job.pair_pass,
    )
    return loss, "unscored" if unscored else entropy


def _without_program(job: Job, method: Method, trainer: Trainer, stored: Stored, split: Split, notes: Notes) -> Loss:
    """Scores, or a loss of the program's own. Raises InvalidJob where that is not modelled."""
    if method.score_head:
        _check_score(job)
        notes.fill("loss_head", "score", "default")
        return Loss("value-head" if has_value_head(method, trainer) else "score")
    own, degrees = job.own_loss, (job.tensor_parallel, job.pipeline_parallel, job.context_parallel)
    for bad, what in (
        (method.name != "sft", f"method {method.name}"),
        (trainer.megatron or max(degrees) > 1, "ranks that share a model"),
        (job.loss_head != "auto", f"loss_head {job.loss_head}"),
    ):
        if bad:
            raise InvalidJob(f"own_loss: with {what} it is not modelled", "leave own_loss out")
    assert own is not None
    notes.fill("loss_head", "own", "default")
    notes.assume(
        f"own_loss: at most {own.logits} bytes for each logit beside the logits; forwards of the model before one "
        f"backward: {own.forwards}"
    )
    wraps = trainer.numerics.fp32_outputs and stored.autocast > 0 and not split.is_deepspeed
    code = LossCode(
        leaves_autocast=wraps or (trainer.numerics.leaves_autocast and stored.autocast > 0),
        hidden_states=own.layers,
        own_logits=own.logits,
        own_hidden=own.hidden,
        own_forwards=own.forwards,
    )
    return Loss("own", to_fp32=wraps, keeps_outputs=bool(job.hold_outputs), fp32_outputs=wraps, code=code)


def _code(
    job: Job, method: Method, trainer: Trainer, name: str, leaves: bool, without_logits: bool, wanted: str
) -> LossCode:
    """What the trainer's code holds and copies beside its log-probabilities. ``leaves``: autocast is around the model's
    forward alone (accelerate; megatron-core 0.8 pipeline_parallel/schedules.py: forward_step)."""
    logits, extra = trainer.logits, not without_logits
    rescales, slices = method.name in logits.rescaled, by_method(logits.sliced, method.name, "")
    entropy = wanted != "none" and extra
    in_place = logits.tempered_in_place or slices == "completions" or rescales or method.teacher
    tempered = extra and job.temperature not in (None, 1.0) and not in_place
    metrics = by_method(logits.metrics, method.name, "") if extra else ""
    return LossCode(
        frees_logits=logits.freed,
        holds_logits=extra and names_method(logits.held, method.name),
        metrics="scored-again-tempered" if tempered and metrics == "scored-again" else metrics,
        metrics_everywhere=logits.metrics_everywhere,
        entropy=("compiled" if _compiles_entropy(job, trainer) else trainer.entropy.by) if entropy else "",
        entropy_gradient=entropy and (wanted == "loss" or trainer.entropy.keeps_graph),
        tempered=tempered,
        recomputed=extra and bool(job.recompute_loss),
        leaves_autocast=leaves,
        hidden_states=logits.hidden_states and method.name in ("dpo", "ipo"),
        stacked=name == "stacked-log-softmax",
        reads_reference=name == "liger-preference" and method.reference,
        projects_completions=method.name in logits.of_completions,
        slices_logits=slices,
        rescales=rescales and extra,
        step_outputs=method.name in logits.step_outputs,
        scoring_entropy=trainer.entropy.scoring and extra,
    )


def _compiles_entropy(job: Job, trainer: Trainer) -> bool:
    """Whether the entropy of the update is compiled: verl's of packed rows (workers/actor/dp_actor.py:
    _forward_micro_batch, 0.2 to 0.9)."""
    return trainer.entropy.compiled and not job.padded


def _assume(job: Job, trainer: Trainer, name: str, notes: Notes) -> None:
    """What is only approximated is said."""
    if name == "liger-preference":
        notes.assume(
            "loss_head: Liger's preference loss as eager torch; torch.compile fuses some of it: published runs of the "
            "head alone lie between 31 % below and 12 % above"
        )
    if name.startswith("liger-policy"):
        notes.assume(
            "loss_head: Liger's GRPO loss makes the gradient of a frozen head too, as before liger-kernel 0.8.5"
        )
    if job.entropy != "none" and trainer.entropy.by == "softmax" and not _compiles_entropy(job, trainer):
        notes.assume(f"entropy: as eager torch; {trainer.title} compiles it, which holds less")


def _program(job: Job, method: Method, trainer: Trainer, lora: bool, notes: Notes) -> str:
    loss = trainer.loss
    own = by_method(loss.heads, method.name, "")
    own = by_method(loss.adapter_heads, method.name, own) if lora else own
    own = COMPILED.get(own, own) if job.compile and not trainer.loss.compiles_layers else own
    if job.kernels == "foak" and own in ("cross-entropy", "shifted-cross-entropy"):
        own = "foak-cross-entropy"
    if job.kernels == "unsloth":
        own = "compiled-unsloth-chunks" if method.name == "sft" else "compiled-unsloth-log-probs"
        own = "unsloth-cross-entropy" if job.loss_head == "cross-entropy" and method.name == "sft" else own
    if job.kernels == "liger":
        own = by_method(loss.liger_heads, method.name, own)
        if not own:
            raise InvalidJob(f"kernels: Liger's {method.name} loss is not modelled yet", "leave kernels out")
    if job.loss_head == "auto":
        return notes.fill("loss_head", own, "trainer" if trainer.name != "pytorch" else "default")
    if job.loss_head == SHOWN_HEADS.get(own, own):
        return own
    if trainer.name in ("llamafactory", "llamafactory-v1") and method.name == "sft":
        raise InvalidJob(
            f"loss_head: {trainer.title}'s SFT takes the model's own loss, not {job.loss_head}",
            "leave loss_head out, or set kernels liger",
        )
    if trainer.name == "trl" and method.name == "sft" and job.loss_head in ("selective", "log-softmax"):
        raise InvalidJob(
            f"loss_head: {trainer.title}'s SFT takes the model's own loss (loss_type nll), in chunks (chunked_nll) "
            f"or Liger's, not {job.loss_head}",
            "leave loss_head out, or use cross-entropy, chunked or fused",
        )
    if method.teacher:
        raise InvalidJob(
            f"loss_head: {job.loss_head} gives no distribution over the vocabulary for {method.name}",
            "leave loss_head out",
        )
    if job.loss_head == "fused" and job.kernels == "foak":
        return "foak-chunks"
    if job.loss_head == "fused":
        fused = by_method(loss.fused_heads, method.name, "fused")
        if not fused:
            raise InvalidJob(f"loss_head: Liger's {method.name} loss is not modelled yet", "leave loss_head out")
        return fused
    if job.loss_head == "chunked":
        return "chunked-nll" if method.name == "sft" else "chunked-log-probs"
    if job.loss_head in ("cross-entropy", "cut-cross-entropy", "tiled") and method.name != "sft":
        raise InvalidJob(
            f"loss_head: {job.loss_head} gives no log-probabilities for {method.name}", "use log-softmax or selective"
        )
    return job.loss_head


def _check_tiled(name: str, job: Job, trainer: Trainer, stored: Stored, split: Split) -> None:
    """Which losses run beside transformers' plans, and where DeepSpeed's tiles of logits do: they tell its ZeRO alone
    when a weight's gradient is whole. Raises InvalidJob."""
    if whole_streams(job, trainer) and name not in ("cross-entropy", "selective", *READS_WEIGHT):
        hint = "use cross-entropy" if job.method == "sft" else "leave tensor_parallel out"
        raise InvalidJob(f"loss_head: {name} with tensor_parallel is not modelled", hint)
    bound = "ddp" if split.name == "none" and job.num_gpus > 1 else split.name
    for bad, what in (
        (trainer.megatron, trainer.title),
        (not (split.is_deepspeed or bound == "none"), bound),
        (stored.autocast > 0, "autocast"),
    ):
        if name == "tiled" and bad:
            raise InvalidJob(f"loss_head: tiled under {what} is not modelled", "use a ZeRO stage, or another loss_head")


def _check_policy(name: str, stored: Stored, split: Split) -> None:
    """Liger's GRPO loss calls the layers past the forward that accelerate wraps in autocast (trl 0.18 to 1.9 and
    ms-swift 4.5 grpo_trainer.py: _forward_redirection, ``unwrapped_model.model``): fp32 weights compute in fp32."""
    wide = stored.autocast > 0 and stored.precision.weights > 2
    if name.startswith("liger-policy") and wide and not split.is_deepspeed:
        raise InvalidJob(
            "kernels: Liger's grpo loss runs outside autocast, so that fp32 weights compute in fp32",
            "use precision bf16, which loads the weights in bf16, or leave kernels out",
        )


def _check_options(job: Job, method: Method, trainer: Trainer) -> None:
    """Online DPO has no term of SFT, and TRL's makes its log-probabilities alone, once; no more does NeMo-Aligner."""
    if trainer.name == "nemo-aligner" and job.entropy != "none":
        raise InvalidJob(f"entropy: {trainer.title}'s {method.name} makes none", "leave entropy out")
    if method.name != "online-dpo":
        return
    if job.sft_term:
        raise InvalidJob("sft_term: online-dpo generates both completions: none is a target", "leave sft_term out")
    asked = {"entropy": job.entropy != "none", "recompute_loss": bool(job.recompute_loss)}
    for key in (key for key, wanted in asked.items() if wanted and trainer.name == "trl"):
        raise InvalidJob(f"{key}: {trainer.title}'s online-dpo has no such option", f"leave {key} out")


def _check_score(job: Job) -> None:
    for key in ("entropy", "temperature", "recompute_loss"):
        value = getattr(job, key)
        if value is True or value not in (None, False, "none", 1.0):
            raise InvalidJob(f"{key}: a scalar head has no vocabulary", f"leave {key} out with method {job.method}")


def _check_extras(job: Job, name: str, without_logits: bool, trainer: Trainer) -> None:
    """Entropy, temperature and recomputation belong to log-probabilities that the trainer's code makes of logits, as do
    outputs that it keeps over its step."""
    if without_logits and name not in INSIDE and job.method in trainer.logits.step_outputs:
        why = f"loss_head: {trainer.title}'s {job.method} makes its log-probabilities of whole logits"
        raise InvalidJob(f"{why}, not {SHOWN_HEADS.get(name, name)}", "use loss_head log-softmax or selective")
    asked = {
        "entropy": job.entropy != "none",
        "temperature": job.temperature not in (None, 1.0),
        "recompute_loss": bool(job.recompute_loss),
    }
    for key, wanted in asked.items():
        if wanted and name in INSIDE:
            raise InvalidJob(
                f"{key}: {SHOWN_HEADS.get(name, name)} makes no log-probabilities",
                "use loss_head log-softmax or selective",
            )
    if job.entropy == "loss" and without_logits and name not in ("fused", "chunked-log-probs"):
        raise InvalidJob(
            f"entropy: loss_head {SHOWN_HEADS.get(name, name)} makes none", "use loss_head fused or selective"
        )
