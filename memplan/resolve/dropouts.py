"""The model as a trainer leaves it that turns dropout off: without modules of it, with what its class calls itself.

trl 0.9 to 1.16, trainer/utils.py: ``disable_dropout_in_model`` sets ``p = 0`` on every ``nn.Dropout``, which then hands
its input on and keeps no mask (torch 2.13 aten/src/ATen/native/Dropout.cpp).
"""

from functools import lru_cache

from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.layer import Layer
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Mixer
from memplan.tables.families import FUNCTIONAL_DROPOUT, PROBABILITIES_ALONE
from memplan.tables.trainer import Trainer


def trained_without_dropout(job: Job, trainer: Trainer, spec: ModelSpec, notes: Notes) -> ModelSpec:
    """The model that the method trains and scores with."""
    if job.method not in trainer.disables_dropout:
        return spec
    found = _without_modules(spec)
    if found is None:
        return spec
    notes.assume(f"dropout: off ({trainer.title} sets every nn.Dropout to 0 in {job.method}; others stay)")
    return found


@lru_cache(maxsize=64)
def _without_modules(spec: ModelSpec) -> ModelSpec | None:
    """None where its class has no such module, or none that drops."""
    called = any(getattr(mixer, "style", "") == "interleaved" for mixer in spec.mixers)  # GPT-J's from 5.24 on
    stays = PROBABILITIES_ALONE if called else FUNCTIONAL_DROPOUT.get(spec.family, PROBABILITIES_ALONE)
    runs = tuple(run.model_copy(update={"layer": _layer(run.layer, stays)}) for run in spec.runs)
    update: dict[str, object] = {"runs": runs}
    if "front" not in stays:
        update["front"] = tuple(step for step in spec.front if step != "dropout")
    if spec.encoder and "front" not in stays:
        update["encoder"] = spec.encoder.model_copy(update={"dropout": False})
    if spec.pooler:
        update["pooler"] = spec.pooler.model_copy(update={"first_dropout": False, "dropout": False})
    found = spec.model_copy(update=update)
    return None if found == spec else found


def _layer(layer: Layer, stays: frozenset[str]) -> Layer:
    update: dict[str, object] = {
        name: _mixer(part, stays) for name in ("mixer", "cross") if (part := getattr(layer, name)) is not None
    }
    if layer.feed_forward and "inner" not in stays:
        update["feed_forward"] = layer.feed_forward.model_copy(update={"dropout": False})
    if "branches" not in stays:
        update["dropout"] = ()
    return layer.model_copy(update=update)


def _mixer(mixer: Mixer, stays: frozenset[str]) -> Mixer:
    fields = [name for name in ("dropout", "position_dropout") if getattr(mixer, name, False)]
    return mixer if "probabilities" in stays or not fields else mixer.model_copy(update=dict.fromkeys(fields, False))
