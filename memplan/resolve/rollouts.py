"""What online methods and distillation ask for: a rollout's groups and lengths, a critic, a reward model, a teacher."""

from memplan.errors import InvalidJob
from memplan.models import load_model
from memplan.resolve.notes import Notes
from memplan.resolve.packing import whole
from memplan.resolve.quantised import Base
from memplan.resolve.storage import Split
from memplan.spec.groups import Checkpointing, Critic, Loss, OtherModels, Resident
from memplan.spec.job import Job
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.other_models import OF_CRITICS, ExtraModel
from memplan.spec.recipe import Recipe
from memplan.tables.methods import METHODS, Method
from memplan.tables.styles import PARTED
from memplan.tables.trainer import Trainer
from memplan.units import ceil_div


def with_rollout_lengths(job: Job, notes: Notes) -> Job:
    """The job with its rollout's lengths as those of its sequences. Raises InvalidJob where they contradict."""
    method, rollout = METHODS[job.method], job.rollout
    if rollout is None:
        return job
    if not (method.online or method.teacher):
        raise InvalidJob(f"rollout: {method.name} generates nothing", "leave rollout out, or use an online method")
    if rollout.group_size is not None and (method.pairs or method.teacher):
        raise InvalidJob(
            f"rollout.group_size: {method.name} has {'two completions' if method.pairs else 'one completion'} for each "
            "prompt",
            "leave group_size out",
        )
    if rollout.completion_length is None or rollout.prompt_length is None:
        if rollout.completion_length or rollout.prompt_length:
            raise InvalidJob(
                "rollout: one of prompt_length and completion_length without the other",
                "give both: their sum is the sequence_length",
            )
        return job
    lengths = {
        "sequence_length": rollout.prompt_length + rollout.completion_length,
        "completion_length": rollout.completion_length,
    }
    for key, length in lengths.items():
        if notes.is_given(key) and getattr(job, key) not in (None, length):
            raise InvalidJob(
                f"{key}: {getattr(job, key)} contradicts the rollout's lengths, which make {length}", f"leave {key} out"
            )
        notes.sources[key] = notes.sources.get("rollout", "default")
    return job.model_copy(update=lengths)


def completions_per_example(job: Job, method: Method, trainer: Trainer, accumulation: int, notes: Notes) -> int:
    """Rows that one example of the batch stands for, beside the two of a pair."""
    if not method.online or method.pairs:
        return 1
    group = job.rollout.group_size if job.rollout else None
    if group is not None and job.token_budget is not None:
        return 1  # a packed row holds what it holds, of whichever prompts
    if group is None:
        notes.assume("batch_size: counts completions; rollout.group_size says how many each prompt has")
        return 1
    if trainer.rollouts.counts_prompts:
        notes.assume(f"batch_size: counts prompts, of {group} completions each")
        return group
    completions = job.batch_size * accumulation * job.num_gpus
    if completions % group:
        raise InvalidJob(
            f"rollout.group_size: {group} does not divide the {completions} completions of a step "
            f"(batch_size × gradient_accumulation_steps × num_gpus; {trainer.title} counts completions)",
            f"make batch_size × gradient_accumulation_steps × num_gpus a multiple of {group}",
        )
    notes.assume(f"batch_size: {trainer.title} counts completions, so a group may be spread over micro-steps")
    return 1


def critic(
    job: Job, trainer: Trainer, spec: ModelSpec, base: Base, split: Split, adapter: Adapter | None, notes: Notes
) -> Critic | None:
    """PPO's value model: the job's, or one of the policy's shape. Raises InvalidJob for what is not modelled."""
    method, named = METHODS[job.method], [extra for extra in job.extra_models if extra.role == "critic"]
    if not method.critic:
        if named:
            raise InvalidJob(f"extra_models: {method.name} has no critic", "leave it out, or use method ppo")
        return None
    if len(named) > 1:
        raise InvalidJob("extra_models: more than one critic", "name one")
    _check_critic(job, trainer, base, split)
    own = load_model(named[0].model) if named and named[0].model is not None else spec
    if not own.classifies:
        raise InvalidJob(
            f"method: a critic needs a sequence-classification class, and transformers has none for {own.family}",
            "name another in extra_models: [{role: critic, model: …}]",
        )
    if not named or named[0].model is None:
        notes.assume("critic: a value model of the policy's shape, trained (extra_models can name another)")
    adapted, together = adapter if trainer.rollouts.critic_adapters else None, trainer.rollouts.critic == "together"
    if together and split.ranks > 1:
        notes.assume(
            f"critic: beside the policy in one engine under {split.name}, by its rules, not held against a run"
        )
    if adapter and not adapted:
        notes.assume(f"critic: {trainer.title} trains all of its weights, whatever LoRA does to the policy")
    apart = trainer.rollouts.critic in PARTED or (split.is_deepspeed and not together)  # an engine holds one model
    return Critic(own.thawed.as_reward_model(), adapted, apart, together)


def of_critic(job: Job) -> ExtraModel | None:
    """What the job says of its critic."""
    return next((extra for extra in job.extra_models if extra.role == "critic"), None)


def has_own_batch(found: Recipe) -> bool:
    """Whether a critic is trained by itself, in micro-batches that need not be the policy's."""
    return (
        found.others.critic is not None
        and found.trainer.rollouts.critic in PARTED
        and found.trainer.name != "openrlhf"  # it says one size for both
    )


def with_own_batch(job: Job, found: Recipe, again: Checkpointing) -> Recipe:
    """The recipe with the critic's micro-batch, and ``again``, its checkpointing. InvalidJob for one engine of both."""
    critic, said = found.others.critic, of_critic(job)
    key = next((key for key in OF_CRITICS if said is not None and getattr(said, key) is not None), "")
    if critic is None or said is None or not key:
        return found
    alone = has_own_batch(found)
    if not alone or (found.in_megatron and said.gradient_checkpointing is not None):
        what = "on Megatron" if alone else f"that {found.trainer.title} trains as the policy"
        raise InvalidJob(f"extra_models: {key} of a critic {what} is not modelled", f"leave {key} out")
    batch = found.batch._replace(scoring=0)
    longest = batch.longest or batch.sequence_length
    if said.batch_size is not None:
        scored = min(job.completion_length or longest, longest)
        batch = batch._replace(size=said.batch_size, sequence_length=longest, longest=0, completion_length=scored)
    if said.token_budget is not None:
        row = whole(job, max(said.token_budget, longest))  # a longer sequence is one by itself
        batch = batch._replace(size=1, sequence_length=row, longest=longest, completion_length=row)
        batch = batch._replace(padded=batch.padded or not (found.operators.attention == "flash" or found.in_megatron))
    tokens = found.batch.size * found.batch.sequence_length * found.batch.accumulation
    batch = batch._replace(accumulation=max(1, ceil_div(tokens, batch.size * batch.sequence_length)))
    return found._replace(others=found.others._replace(critic=critic._replace(own=(batch, again))))


def _check_critic(job: Job, trainer: Trainer, base: Base, split: Split) -> None:
    if split.ranks > 1 and split.is_fsdp and trainer.rollouts.critic not in PARTED:
        raise InvalidJob(
            f"sharding: {split.name}: {trainer.title}'s policy and critic in one backward under FSDP are not modelled",
            "use sharding zero3, or trainer verl",
        )
    if base.quantised:
        raise InvalidJob(
            f"quantization: {job.quantization}: a critic beside a quantised policy is not modelled",
            "leave quantization out, or use method grpo or rloo",
        )
    if job.images:
        raise InvalidJob("images: a critic that sees images is not modelled", "leave images out, or use method grpo")


def reward_model(
    job: Job, method: Method, trainer: Trainer, spec: ModelSpec, itemsize: int, notes: Notes
) -> list[Resident]:
    """The reward model that a trainer cannot do without; said where an online method names none."""
    if not method.online or any(extra.role == "reward" for extra in job.extra_models):
        return []
    if method.name in trainer.rollouts.reward_like_policy and spec.classifies:
        notes.assume(
            f"reward model: {trainer.title} needs one: of the policy's shape, unless extra_models names another"
        )
        return [Resident("reward", spec.as_reward_model(), itemsize, False)]
    notes.assume("reward: no model on the card (a function or a server); extra_models with role reward adds one")
    return []


def check_teacher(job: Job, method: Method, spec: ModelSpec, split: Split, half: str) -> None:
    """Raise InvalidJob for a distillation without a teacher that fits its student. ``half``: the student's dtype."""
    if not method.teacher:
        return
    named = [extra for extra in job.extra_models if extra.role == "teacher"]
    if len(named) != 1:
        raise InvalidJob(
            f"extra_models: {method.name} needs {'one teacher, not ' + str(len(named)) if named else 'a teacher'}",
            "extra_models: [{role: teacher, model: qwen2.5-7b}]",
        )
    if split.ranks > 1 and split.name == "fsdp2":
        raise InvalidJob("sharding: fsdp2: a teacher beside a sharded student is not modelled", "use zero2 or zero3")
    teacher = load_model(named[0].model or {})
    if teacher.head.outputs != spec.head.outputs:
        raise InvalidJob(
            f"extra_models: teacher {teacher.name} has a vocabulary of {teacher.head.outputs}, the student of "
            f"{spec.head.outputs}; a divergence needs the same",
            "name a teacher with the student's vocabulary",
        )
    given = named[0].precision
    if {given, half} == {"bf16", "fp16"}:
        raise InvalidJob(
            f"extra_models: a teacher in {given} beside a student in {half} makes fp32 of both, which is not modelled",
            f"use precision {half} for the teacher",
        )
    if job.images:
        raise InvalidJob("images: distillation with images is not modelled", "leave images out")


def beside_teachers(loss: Loss, spec: ModelSpec, others: OtherModels) -> Loss:
    """A loss of the program's own, whose tensors are as wide as the logits of a teacher that has more of them."""
    own, widest = spec.head.outputs, max([spec.head.outputs, *(each.spec.head.outputs for each in others.residents)])
    return loss._replace(code=loss.code._replace(own_logits=ceil_div(loss.code.own_logits * widest, own)))
