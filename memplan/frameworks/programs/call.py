"""One call of a program, with its arguments worked out."""

import ast
from typing import Any, NamedTuple

from memplan.frameworks.programs.operators import written
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Place, Thing, Unknown, root_of


class Call(NamedTuple):
    """One call, with its arguments worked out."""

    run: Run
    args: list[Any]
    named: dict[str, Any]
    places: dict[str, Place]
    place: Place
    node: ast.AST
    owner: Any = None
    name: str = ""

    def get(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.named.get(name, default)

    def unknown(self) -> Unknown:
        """That its result is not known."""
        given = (self.owner, *self.args, *self.named.values())
        return Unknown(written(self.node), self.place, (), next((root for root in map(root_of, given) if root), ""))

    def thing(self, name: str) -> Thing:
        """An object with its arguments, those without a name by their number."""
        made = Thing(name, self.place, {}, {}, depth=len(self.run.doubts))
        for number, value in enumerate(self.args):
            made.set(f"*{number}", value, self.place)
        for key, value in self.named.items():
            made.set(key, value, self.places.get(key, self.place))
        if name == "model" and self.run.aside:
            self.run.things.append(made)
        return made


def name_by_position(trainer: Thing) -> None:
    """What a trainer is given by position under its name: the model, and the first thing behind it that is none, which
    a reference model, a number or nothing may stand before."""
    values = trainer.values
    loose = (values.get(key) for key in ("*1", "*2", "*3"))
    arguments = next((each for each in loose if isinstance(each, Thing) and each.name != "model"), values.get("config"))
    for key, value in (("model", values.get("*0")), ("args", arguments)):
        if key not in values and value is not None:
            trainer.set(key, value, trainer.place)


def forwarded(call: Call, module: Any) -> Any:
    """``model(ids)`` of a module of the program's own: its ``forward``."""
    found = module.own.method("forward") if isinstance(module, Thing) and module.own else None
    if found is None:
        return call.unknown()
    before, last = len(call.run.things), found.node.body[-1]
    made = call.run.invoke(found.on(module), call.args, call.named, call.place)
    inner = last.value if isinstance(last, ast.Return) else None
    for each in call.run.things[before:] if inner is not None else ():
        if each.values.get("node") is inner:  # return self.model(**inputs): the outputs are the model's own
            each.values["node"] = call.node
    return made
