"""DeepSpeed's engine, which a program wraps its model in: its config, and the loader that it makes of training data.

Source: DeepSpeed 0.19 __init__.py (initialize, add_config_arguments), runtime/engine.py (deepspeed_io)."""

from typing import Any

from memplan.frameworks.programs.call import Call
from memplan.frameworks.programs.run import Run
from memplan.frameworks.programs.values import Place, Thing, Unknown

INITIALISED = "deepspeed.initialize"
MICRO = "train_micro_batch_size_per_gpu"


def arguments(call: Call) -> Any:
    """``deepspeed.add_config_arguments(parser)``: ``--deepspeed`` and ``--deepspeed_config``."""
    parser, given = call.get(0, "parser"), call.run.known
    for name, default in (("deepspeed", False), ("deepspeed_config", None)):
        if isinstance(parser, Thing):
            parser.set(name, given.arguments.get(name, default), given.places.get(name, call.place))
    return parser


def initialised(call: Call) -> tuple[Any, ...]:
    """``engine, optimizer, loader, scheduler = deepspeed.initialize(model=model, config=…)``."""
    made = call.thing(INITIALISED)
    call.run.things.append(made)
    unknown = Unknown(f"what {INITIALISED}() gives", call.place)
    if call.get(4, "training_data") is None:
        return call.get(1, "model"), unknown, None, unknown
    loader = Thing("torch.utils.data.DataLoader", call.place, {"batch_size": _micro_batch(call.run, made)})
    call.run.things.append(loader)
    return call.get(1, "model"), unknown, loader, unknown


def config_of(made: Thing) -> tuple[Any, Place]:
    """What DeepSpeed is given, and where: its config, else what the options name."""
    for key in ("config", "config_params", "*10"):
        if made.values.get(key) is not None:
            return made.values[key], made.places.get(key, made.place)
    options = made.values.get("args", made.values.get("*0"))
    found = options.values.get("deepspeed_config") if isinstance(options, Thing) else None
    if isinstance(options, Thing) and found is not None:
        return found, options.places.get("deepspeed_config", made.place)
    return Unknown("what the command gives DeepSpeed", made.place), made.place


def _micro_batch(run: Run, made: Thing) -> Any:
    given, place = config_of(made)
    document = run.files.data(given) if isinstance(given, str) else None
    values = document.settings.values if document is not None else given if isinstance(given, dict) else {}
    return values.get(MICRO, Unknown(f"{MICRO} of DeepSpeed's config", place))
