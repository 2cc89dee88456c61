"""Which part of the targets LoRA adapts: layers, what is left out, ranks of their own; and rows that are trained."""

from functools import lru_cache
from itertools import groupby

from memplan.errors import InvalidJob, did_you_mean
from memplan.resolve.notes import Notes
from memplan.spec.job import Job
from memplan.spec.lora import ALL_LINEAR, EMBEDDING, Lora
from memplan.spec.model import ModelSpec
from memplan.spec.parts import Experts
from memplan.tables.trainer import Trainer


@lru_cache(maxsize=64)
def partly_adapted(spec: ModelSpec, layers: frozenset[int]) -> ModelSpec:
    """The model with adapters in these layers alone; in all where none is named."""
    if not layers:
        return spec
    runs, start = [], 0
    for run in spec.runs:
        for inside, group in groupby(range(start, start + run.count), key=layers.__contains__):
            layer = run.layer if inside else run.layer.but(unadapted=True)
            found = list(group)
            runs.append(run.piece(found[0] - start, len(found), layer))
        start += run.count
    return spec.but(runs=tuple(runs))


def chosen(lora: Lora, given: set[str], known: set[str], stacks: bool, spec: ModelSpec, notes: Notes) -> set[str]:
    """Targets without those that are excluded or trained whole, or that stand in no layer where layers are named."""
    excluded = set(lora.exclude_modules) - set(PARTS)
    for name in sorted(excluded):
        if name not in known | {spec.head.name, EMBEDDING}:
            hint = did_you_mean(name, sorted(known))
            raise InvalidJob(f"lora.exclude_modules: {spec.family} has no linear module {name!r}", hint)
    if stacks and (excluded or lora.layers_to_transform or lora.rank_pattern):
        key = next(key for key in ("exclude_modules", "layers_to_transform", "rank_pattern") if getattr(lora, key))
        raise InvalidJob(
            f"lora.{key}: not modelled beside the stacked experts of {spec.family}, of whose parameters PEFT asks",
            f"leave {key} out, or name targets: q_proj,k_proj,v_proj,o_proj",
        )
    given = given - {*excluded, *lora.modules_to_save}
    if not lora.layers_to_transform:
        return given
    if lora.targets == ALL_LINEAR:
        raise InvalidJob(
            "lora.layers_to_transform: PEFT wants names of modules with it, not all-linear",
            "name targets: " + ",".join(sorted(known - {spec.head.name, EMBEDDING})),
        )
    beyond = [number for number in lora.layers_to_transform if number >= spec.num_layers]
    if beyond:
        raise InvalidJob(
            f"lora.layers_to_transform: {beyond[0]}, where {spec.family} has layers 0 to {spec.num_layers - 1}",
            f"name layers up to {spec.num_layers - 1}",
        )
    if spec.tower is not None or spec.encoder is not None:
        raise InvalidJob(
            f"lora.layers_to_transform: {spec.family} has two stacks of layers, whose numbers PEFT does not tell apart",
            "leave it out",
        )
    outside = given & {spec.head.name, EMBEDDING, *(linear.name for linear in spec.outer_linears)}
    if outside:
        notes.remark(f"lora.targets: {', '.join(sorted(outside))} in no layer: not adapted beside layers_to_transform")
    return given - outside


PARTS = {"vision_tower": "vision", "multi_modal_projector": "projector"}
"""Words for all that stands in the tower, or in its projector: as in ``freeze``."""


def of_tower(lora: Lora, spec: ModelSpec) -> set[str]:
    """Linears of the tower and its projector that adapters may come to."""
    apart = _unadapted(lora)
    parts = spec.tower.parts if spec.tower else ()
    return {linear.name for each in parts if each.category not in apart for linear in each.part.linears}


def _unadapted(lora: Lora) -> frozenset[str]:
    return frozenset(PARTS[name] for name in {*lora.exclude_modules, *lora.modules_to_train} & set(PARTS))


@lru_cache(maxsize=64)
def with_tower(spec: ModelSpec, lora: Lora) -> ModelSpec:
    """The model with the parts marked that adapters leave alone, and those that are trained whole beside them.

    Raises InvalidJob for a part that it does not have."""
    unadapted, trained = _unadapted(lora), frozenset(PARTS.get(name, "") for name in lora.modules_to_train)
    if "" in trained:
        name = next(name for name in lora.modules_to_train if name not in PARTS)
        raise InvalidJob(f"lora.modules_to_train: {name!r} is not modelled", f"modelled: {' and '.join(PARTS)}")
    if trained and spec.tower is None:
        raise InvalidJob(f"lora.modules_to_train: {spec.family} has no vision tower", "leave modules_to_train out")
    if spec.tower is None or not unadapted:
        return spec
    tower = spec.tower.but(unadapted=unadapted, trained=trained)
    return spec.but(tower=tower)


def beside_resting_tower(job: Job, spec: ModelSpec, notes: Notes, trainer: Trainer) -> Job:
    """The job, whose adapters of every linear leave the tower and its projector alone where the trainer freezes these
    and nobody says otherwise (LLaMA-Factory 0.9.5 model_utils/visual.py: patch_target_modules; ms-swift 4.2 pipelines/
    train/tuner.py: get_multimodal_target_regex)."""
    lora = job.lora
    if lora is None or spec.tower is None or not trainer.models.freezes_tower or lora.targets != ALL_LINEAR:
        return job
    if {"exclude_modules", "modules_to_train"} & lora.model_fields_set:
        return job
    notes.assume(f"lora.exclude_modules: {', '.join(PARTS)} ({trainer.title} freezes them)")
    return job.but(lora=lora.but(exclude_modules=tuple(PARTS)))


def check_ranks(lora: Lora, names: set[str]) -> None:
    """Ranks are of modules that are adapted. Raises InvalidJob for another name."""
    for name, _ in lora.rank_pattern:
        if name not in names:
            raise InvalidJob(f"lora.rank_pattern: {name!r} names no adapted module", did_you_mean(name, sorted(names)))


def trained_rows(lora: Lora, spec: ModelSpec, names: set[str]) -> tuple[tuple[str, int], ...]:
    """Rows that are trained; where embedding and head are tied, both have the embedding's. Raises InvalidJob."""
    counts = dict(lora.trainable_token_indices)
    for name, count in counts.items():
        if name not in (EMBEDDING, spec.head.name):
            raise InvalidJob(f"lora.trainable_token_indices: {name!r} is not modelled", f"name {EMBEDDING}")
        if name in names or name in lora.modules_to_save:
            raise InvalidJob(
                f"lora.trainable_token_indices: {name} is adapted or trained whole as well", "choose one of them"
            )
        if count > spec.vocab_size:
            raise InvalidJob(
                f"lora.trainable_token_indices: {count} of {spec.vocab_size} tokens", "name fewer, or modules_to_save"
            )
    if spec.head_is_tied and counts:
        if counts.get(spec.head.name, counts.get(EMBEDDING)) != counts.get(EMBEDDING):
            raise InvalidJob(
                f"lora.trainable_token_indices: rows of {spec.head.name} alone, whose weight is the embedding's",
                f"name {EMBEDDING}",
            )
        if spec.head.name in {*names, *lora.modules_to_save}:
            raise InvalidJob(
                f"lora.trainable_token_indices: {spec.head.name} follows the embedding's rows and is adapted too",
                f"take {spec.head.name} out of targets and modules_to_save",
            )
        counts[spec.head.name] = counts[EMBEDDING]
    return tuple(sorted(counts.items()))


def linears_of(spec: ModelSpec) -> tuple[set[str], list[Experts], set[str]]:
    """Names of the linears of a language model's layers, its stacked experts, and their routers that are no linears."""
    text = {linear.name for run in spec.runs for linear in run.layer.linears}
    text |= {linear.name for linear in spec.outer_linears}
    stacked = [run.layer.experts for run in spec.runs if run.layer.experts]
    routers = {experts.router.name for experts in stacked if not experts.plain_router}
    return text - routers, stacked, routers
