"""Distillation on the play: a teacher's forward before the student's, or between its logits and its loss."""

from collections.abc import Callable

from memplan.engine.passes import Stage
from memplan.engine.play.model import PassRun
from memplan.engine.play.tape import PlayTape
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim

NAME = "teacher"


class Lesson:
    """The passes of a micro-step, of which a teacher may be one. ``run`` makes a pass that is about to be played."""

    def __init__(self, tape: PlayTape, passes: list[Stage], run: Callable[[Stage], PassRun]) -> None:
        self.tape, self.run, self.logits = tape, run, list[Tensor]()
        self.teacher = next((each for each in passes if each[0].plan.name == NAME), None)
        self.asked = any(traced.plan.head.waits for traced, _ in passes)
        """The student's loss asks it; else its logits wait for that."""
        self.passes = [each for each in passes if not self.asked or (each != self.teacher and each[1] != "loss")]

    def begins(self, run: PassRun) -> None:
        """A pass is about to run forward: the student's loss makes what it reads of the teacher itself."""
        head, leaving = run.plan.head, run.p.leaving
        if not head.teacher_itemsize or self.teacher is None:
            return
        if not self.asked:
            size = Dim("n", run.p.tokens * run.plan.spec.head.outputs)
            self.logits.append(self.tape.new(size, head.teacher_itemsize, "teacher's logits", category="logits"))

        def asks(x: Tensor) -> Tensor:
            x, autocast = leaving(x) if leaving else x, self.tape.autocast
            self.logits.clear()
            if self.asked and self.teacher is not None:
                self.tape.mark(f"{NAME}.forward")
                self.run(self.teacher).forward()
                self.tape.autocast = autocast
                self.tape.mark(f"{run.plan.name}.loss")
            return x

        run.p.leaving = asks
