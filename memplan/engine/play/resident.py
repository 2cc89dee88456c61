"""What is on the card before the first step, in the order in which a trainer puts it there."""

from memplan.engine.model_states import left_bytes, shard_elements
from memplan.engine.overhead import HANDLES, warm_up_bytes, workspace_bytes
from memplan.engine.parallel.sharding import held
from memplan.engine.play.tape import PlayTape
from memplan.engine.play.wrapping import wrapped, wraps
from memplan.engine.tape.graph import Tensor
from memplan.engine.tape.tags import Dim
from memplan.engine.tensors import Weight, layer_weights, marked, model_weights, tower_in_order
from memplan.spec.groups import Quantised
from memplan.spec.groups import Resident as OtherModel
from memplan.spec.lora import Adapter
from memplan.spec.model import ModelSpec
from memplan.spec.recipe import Recipe
from memplan.units import ceil_div


class Resident:
    """Weights, adapters, models beside them, buffers and workspaces."""

    def __init__(self, recipe: Recipe, tape: PlayTape) -> None:
        self.tape, self.held, self.offloads = tape, list[Tensor](), recipe.sharding.fsdp.cpu_offload
        adapter, holds = recipe.adapter, held(recipe)
        if size := warm_up_bytes(recipe):
            tape.new(Dim("n", size), 1, "the allocator's warm-up", category="temporaries")
        self.weights = weights = in_order(recipe.model, adapter is None, adapter)
        if critic := recipe.others.critic:
            weights += in_order(critic.spec, critic.adapter is None, critic.adapter)
            self._buffers(critic.spec, recipe.numerics.itemsize)
        shards, by_rows = holds.parameter_shards, recipe.sharding.name == "fsdp2"
        self.trained = [weight for weight in weights if weight.trained]
        if wraps(recipe):
            self.held += wrapped(recipe, tape, weights)
            weights = [
                each for each in of_tower(recipe.model, adapter is None, adapter) if each.apart or each.unit == "layer"
            ]
        if recipe.zero_stage > 0:
            from memplan.engine.play.zero.loading import loaded

            self.held += loaded(recipe, tape, weights)
            weights = [weight for weight in weights if not weight.trained and recipe.zero_stage < 3]
        for weight in sorted(weights, key=lambda weight: weight.adapter):
            if self._packed(weight, recipe.quantised, shards) or self.offloads:
                continue
            elements = shard_elements([weight], shards, by_rows)
            self._hold(elements * holds.stored_itemsize(recipe, weight), weight.name, "parameters")
        if recipe.zero_stage == 0:
            from memplan.engine.play.zero.whole import masters

            self.held += masters(recipe, tape, self.weights)
        self._buffers(recipe.model, recipe.numerics.itemsize)
        for model in recipe.others.residents:
            self._beside(recipe, model)
        if recipe.hardware.gpu is not None:
            for _ in range(HANDLES):
                self._hold(workspace_bytes(recipe.hardware.gpu), "matmul workspace", "workspaces")

    def _beside(self, recipe: Recipe, model: OtherModel) -> None:
        shards = recipe.sharding.ranks if model.sharded else 1
        category = model.role if model.role == "reference" else "extra_models"
        away = model.sharded and (self.offloads or bool(recipe.sharding.deepspeed.parameters))
        for weight in in_order(model.spec, False, None):
            own = 0 if recipe.storage.precision.master else weight.itemsize
            if away or self._packed(weight, model.quantised, 1, category):
                continue
            elements = shard_elements([weight], shards, recipe.sharding.name == "fsdp2")
            self._hold(elements * (own or model.itemsize), weight.name, category)
        self._buffers(model.spec, model.itemsize)

    def _packed(self, weight: Weight, base: Quantised | None, shards: int, category: str = "parameters") -> bool:
        """The tensors that a quantised matrix becomes; False for what is none."""
        if base is None or weight.trained or weight.adapter or not weight.quantised_by(base):
            return False
        for _ in range(weight.stacked):
            (first, packed), *rest = base.scheme.tensors(weight.rows, weight.columns).items()
            away = shards > 1 and self.offloads  # what is packed is a parameter, what scales it is none
            for name, size in ((first, 0 if away else ceil_div(packed, shards)), *rest):
                self._hold(size, f"{weight.name}.{name}", category)
        self._hold(left_bytes(base, weight), f"{weight.name}, where it is not quantised", category)
        return True

    def _buffers(self, spec: ModelSpec, itemsize: int) -> None:
        self._hold(spec.buffer_bytes + spec.buffer_elements * itemsize, "buffers", "buffers")

    def _hold(self, size: int, label: str, category: str) -> None:
        if size:
            self.held.append(self.tape.new(Dim("n", size), 1, label, category=category))


def in_order(spec: ModelSpec, trained: bool, adapter: Adapter | None) -> list[Weight]:
    """Every parameter by itself, in the model's order: layer after layer, not kind after kind."""
    weights = model_weights(spec, trained, adapter)
    layers = [
        weight
        for run in spec.runs
        for _ in range(run.count)
        for weight in marked(layer_weights(run.layer, 1, trained, adapter), run.layer.frozen)
    ]
    beside = of_tower(spec, trained, adapter)
    before = [weight for weight in weights if weight.unit == "embedding"]
    after = [weight for weight in weights if weight.unit in ("norm", "head")]
    return [*beside, *before, *layers, *after]


def of_tower(spec: ModelSpec, trained: bool, adapter: Adapter | None) -> list[Weight]:
    """The parameters of layers that only images reach, and of a vision tower."""
    resting = [
        weight._replace(trained=False, idle=weight.trained)
        for run in (spec.resting if spec.tower else ())
        for _ in range(run.count)
        for weight in marked(layer_weights(run.layer, 1, trained, adapter), run.layer.frozen)
    ]
    return [*resting, *(weight for _, weight in tower_in_order(spec, trained, adapter))]
