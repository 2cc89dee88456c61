"""Whole training steps, played from the start: weights, micro-steps, the optimizer.

The first step decides where things lie: weights are there first, the optimizer's states come in its first step,
between gradients that are still alive. From the second step on all steps are alike."""

from memplan.engine.allocator.replay import EMPTY_CACHE
from memplan.engine.critic import NAME as CRITIC
from memplan.engine.micro_step import stages
from memplan.engine.optimizer.states import Stepped
from memplan.engine.parallel.fsdp1.flat_parameters import flattens, fullest_rank, stepped_by
from memplan.engine.parallel.zero.flat_groups import groups_of
from memplan.engine.parallel.zero.states import zero_tensors
from memplan.engine.pass_plan import PassPlan
from memplan.engine.passes import TracedPass
from memplan.engine.play.model import PassRun, play_back
from memplan.engine.play.notes import OPTIMIZER, STEP
from memplan.engine.play.optimizer import Optimizer, parts_of
from memplan.engine.play.resident import Resident
from memplan.engine.play.sharding import Sharding
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.teacher import NAME as TEACHER
from memplan.engine.play.teacher import Lesson
from memplan.engine.play.weights import Weights, listed
from memplan.engine.rows.model import keeps_masks, mask_bytes
from memplan.engine.step_and_evaluation import evaluation_of
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight
from memplan.spec.recipe import Recipe


def sharding_for(recipe: Recipe, tape: PlayTape, weights: list[Weight]) -> Sharding:
    """The hooks of what divides the policy's states."""
    if recipe.in_units:
        from memplan.engine.play.units import policy_units

        return policy_units(recipe, tape, weights)
    if recipe.several and recipe.sharding.name == "ddp":
        from memplan.engine.play.ddp import Ddp, gradients_of

        ddp = Ddp(recipe.sharding.ddp, recipe.sharding.gradient_as_bucket_view, tape, gradients_of(recipe, weights))
        ddp.late = not recipe.sharding.sync_each_batch
        return ddp
    if recipe.zero_stage >= 0 and recipe.sharding.deepspeed.whole_gradients:
        from memplan.engine.play.zero.whole import Whole

        return Whole(recipe, tape, weights)
    if recipe.zero_stage > 0:
        from memplan.engine.play.zero.hooks import Zero, Zero3

        return (Zero3 if recipe.zero_stage == 3 else Zero)(recipe, tape, weights)
    return Sharding()


def sharding_beside(recipe: Recipe, tape: PlayTape, plan: PassPlan) -> Sharding:
    """The hooks of a reference or a teacher, which may be divided as the policy is."""
    sharded = any(model.role == plan.name and model.sharded for model in recipe.others.residents)
    if recipe.zero_stage == 3:
        from memplan.engine.play.zero.hooks import Gathering

        return Gathering(tape, plan.name if sharded else "")
    if not sharded:
        return Sharding()
    from memplan.engine.play.units import reference_units

    return reference_units(recipe, tape, plan)


def played_evaluation(recipe: Recipe) -> Recipe | None:
    """The evaluation behind the last step, where it is played: none that keeps its logits."""
    return None if recipe.batch.eval_kept else evaluation_of(recipe)


class Player:
    """Plays steps of one recipe on one tape."""

    def __init__(self, recipe: Recipe, tape: PlayTape | None = None) -> None:
        self.recipe, self.tape = recipe, tape or PlayTape()
        self.tape.in_place = recipe.hardware.gpu is not None
        self.tape.gradient_mode = "keep" if recipe.in_units else recipe.fused_backward or "keep"
        self.resident = Resident(recipe, self.tape)
        self.weights: dict[str, Weights] = {}
        self.beside: dict[str, Sharding] = {}
        self.sharding = self.tape.sharding = sharding_for(recipe, self.tape, self.resident.weights)
        self.optimizer = Optimizer(recipe, self.tape, self._stepped())

    def through(self, plan: PassPlan) -> PassPlan:
        """The pass as it is played."""
        return plan

    def weights_of(self, plan: PassPlan) -> Weights:
        """The parameters of a pass: the policy's, or those of a model beside it."""
        critic, resident = self.recipe.others.critic, self.recipe.others.reference == "resident"
        own = plan.name if plan.name in (CRITIC, TEACHER) or (plan.name == "reference" and resident) else ""
        if own not in self.weights:
            adapter = critic.adapter if critic and own == CRITIC else None if own else self.recipe.adapter
            head = plan.spec.head.name
            copied = adapter is not None and not adapter.saved.isdisjoint(("embed_tokens", head))
            tied = {head: "embed_tokens"} if plan.spec.head_is_tied and not copied else {}
            self.weights[own] = Weights(self.tape, tied, listed(plan.spec))
        return self.weights[own]

    def sharding_of(self, plan: PassPlan) -> Sharding:
        """What divides the model of a pass."""
        if plan.name != TEACHER and (plan.name != "reference" or self.recipe.others.reference != "resident"):
            return self.sharding
        if plan.name not in self.beside:
            self.beside[plan.name] = sharding_beside(self.recipe, self.tape, plan)
        return self.beside[plan.name]

    def _stepped(self) -> list[Stepped]:
        """What the optimizer is given: of flat parameters, the part that the fullest rank holds."""
        recipe, trained = self.recipe, self.resident.trained
        if recipe.sharding.deepspeed.wrapper in ("fused", "bf16"):
            return [tensor for tensor, _ in zero_tensors(recipe, groups_of(recipe, trained))[0]]
        return parts_of(recipe, stepped_by(recipe, fullest_rank(recipe)) if flattens(recipe) else trained)

    def new(self, elements: int, itemsize: int, label: str, category: str) -> Tensor:
        """A tensor outside the passes."""
        return self.tape.new(Dim("n", elements), itemsize, label, category=category)

    def step(self) -> None:
        """Micro-steps, the optimizer, zero_grad. Two stand for many, all but the first being alike; three where those
        between the first and the last add to gradients that wait, and reduce nothing."""
        self.tape.mark(STEP)
        count = min(self.recipe.batch.accumulation, 3 if self.sharding.late else 2)
        batch = list[Tensor]()  # the loop's own name, which the optimizer's step does not end
        for i in range(count):
            batch.clear()
            batch += self._batch(self.recipe)
            self._micro_step(last=i + 1 == count)
        self.tape.mark(OPTIMIZER)
        if not self.recipe.sharding.fsdp.cpu_offload:
            self.sharding.step(self.optimizer.step)
        self.tape.stored.clear()
        self.tape.gradients.clear()  # what a fused update left for its end
        self.sharding.zero_grad()
        del batch

    def _micro_step(self, *, last: bool) -> None:
        recipe = self.recipe
        runs: dict[int, PassRun] = {}
        joined = recipe.method.pairs and recipe.loss.pair_pass == "two-forward"
        together = joined and not recipe.loss.code.leaves_autocast
        lesson = Lesson(self.tape, stages(recipe), lambda stage: self._run(recipe, stage[0]))
        passes = lesson.passes
        waiting: list[PassRun] = []
        for position, (traced, half) in enumerate(passes):
            name = traced.plan.name
            if half == "backward" and not waiting:
                for run in runs.values():
                    run.whole.clear()  # the loss is whole
                if recipe.batch.emptied:
                    self.tape.mark(EMPTY_CACHE)
            self.tape.mark(f"{name}.{half}")
            if half == "forward":
                run = self._run(recipe, traced)
                lesson.begins(run)
                run.forward(leaves=not (together and name == "chosen"))
                if traced.plan.style != "no-grad":
                    runs[id(traced)] = run
                del run
                continue
            waiting.append(runs.pop(id(traced)))
            if joined and runs:
                continue
            self.sharding.reduces = not self.sharding.late or (last and position + 1 == len(passes))
            play_back(self.tape, waiting[::-1])
            waiting.clear()
            self.tape.synchronise()

    def _run(self, recipe: Recipe, traced: TracedPass) -> PassRun:
        """A pass that is about to be played."""
        masks = (*mask_bytes(recipe, traced), traced.plan.style == "plain" and keeps_masks(traced))
        whole = self.weights_of(traced.plan), self.through(traced.plan), masks, self.sharding_of(traced.plan)
        if traced.plan.spec.encoder is None:
            return PassRun(*whole)
        from memplan.engine.play.encoder_decoder import EncoderDecoder

        return EncoderDecoder(*whole)

    def _evaluate(self, recipe: Recipe) -> None:
        """Two batches, whose logits are let go of: some when all passes are through. What the second has left gathered
        of one model is there while another runs in the third."""
        self.tape.mark(STEP)
        passes = list(stages(recipe))
        for _ in range(2 + (recipe.zero_stage == 3 and len({traced.plan.name for traced, _ in passes}) > 1)):
            batch, named = self._batch(recipe), list[PassRun]()
            for traced, half in passes:
                self.tape.mark(f"evaluation-{traced.plan.name}.{half}")
                if half == "forward":
                    run = self._run(recipe, traced)
                    run.forward()
                    named += [run] if traced.plan.head.code.holds_logits else []
                    del run
            self.tape.synchronise()
            del batch, named

    def _batch(self, recipe: Recipe) -> list[Tensor]:
        tokens = recipe.rows * recipe.batch.sequence_length
        count = 3 if recipe.trainer.name != "pytorch" or recipe.batch.padded else 1
        batch = [self.new(tokens, 8, "token ids, labels, mask", "batch") for _ in range(count)]
        answers = 2 * recipe.rows * recipe.batch.completion_length if recipe.model.encoder else 0
        batch.append(self.new(answers, 8, "labels and decoder tokens", "batch"))
        return [*batch, self.new(recipe.image_bytes * recipe.rows, 1, "pixels", "batch")]

    def steps(self, count: int) -> int:
        """Play so many; where the last begins."""
        start = 0
        for _ in range(count):
            start = len(self.tape.events)
            self.step()
        evaluation = played_evaluation(self.recipe)
        if evaluation is not None:
            self._evaluate(evaluation)
        return start
