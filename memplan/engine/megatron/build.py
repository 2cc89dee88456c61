"""The ledger of one rank of a Megatron job: its schedule, then rows of states, activations, head, buffers."""

from __future__ import annotations

from functools import cached_property

from memplan.engine.ledger import Ledger
from memplan.engine.megatron import head
from memplan.engine.megatron.activations import enter_activations, layer_instants
from memplan.engine.megatron.buffers import enter_buffers, enter_surroundings
from memplan.engine.megatron.references import enter_references
from memplan.engine.megatron.shape import Shape, shape_of
from memplan.engine.megatron.stages import Chunk, chunks_of
from memplan.engine.megatron.states import enter_states
from memplan.engine.megatron.steps import Held
from memplan.engine.megatron.weights import Share, padded_vocabulary, rank_shares
from memplan.engine.rollouts import enter_rollout
from memplan.spec.recipe import Recipe

STEP = "step.optimizer"
PASS = "policy"


class Rank:
    """What the rows of one rank are made from, each made when it is first asked for."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    @cached_property
    def shape(self) -> Shape:
        """Sizes of a micro-batch."""
        return shape_of(self.recipe)

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """The stage's layers."""
        recipe = self.recipe
        return chunks_of(recipe.model, recipe.parallel, recipe.megatron, recipe.accumulation, recipe.checkpointing)

    @cached_property
    def shares(self) -> list[Share]:
        """The stage's parameters."""
        return rank_shares(self.recipe.model, self.recipe.parallel, self.recipe.megatron, self.chunks)

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the embedding on this rank."""
        degrees = self.recipe.parallel
        return padded_vocabulary(self.recipe.model, degrees, self.recipe.megatron) // degrees.tensor

    @cached_property
    def tail(self) -> head.Tail | None:
        """Instants of the loss, on the last stage."""
        return head.tail(self.recipe, self.shape, self.vocabulary) if self.recipe.parallel.last else None

    @cached_property
    def schedule(self) -> tuple[str, ...]:
        """Forward, loss, backward of the last layer step by step, embedding, optimizer."""
        loss = [f"{PASS}.{point}" for point, _ in self.tail.at] if self.tail else []
        embedding = [f"{PASS}.embedding-backward"] if self.recipe.parallel.first else []
        layers = layer_instants(self.shape, self.chunks)
        return (f"{PASS}.layer-forward", f"{PASS}.forward", *loss, *layers, *embedding, STEP)


def megatron_ledger(recipe: Recipe, detailed: bool = True) -> Ledger:
    """Every row of one rank, over the instants of one step in steady state."""
    rank = Rank(recipe)
    book = Ledger(rank.schedule, detailed)
    enter_states(book, recipe, rank.shares, STEP)
    enter_activations(book, rank.shape, rank.chunks)
    _enter_head(book, rank)
    enter_buffers(book, recipe, rank.shape, rank.shares)
    enter_references(book, recipe)
    enter_rollout(book, recipe)
    enter_surroundings(book, recipe)
    return book


def _enter_head(book: Ledger, rank: Rank) -> None:
    """Final norm and output product with the loss on the last stage, the embedding's gradient on the first."""
    shape, recipe = rank.shape, rank.recipe
    if rank.tail is not None:
        last = f"{PASS}.{rank.tail.at[-1][0]}"
        for held in head.norm_kept(shape):
            _add(book, held, "activations", f"{PASS}.forward", last, "kept for the backward of norm and head", head.OUTPUT)
        for point, all_held in rank.tail.at:
            for held in all_held:
                category = "logits" if "V" in held.template or held.template == "bytes" else "activations"
                _add(book, held, category, f"{PASS}.{point}", f"{PASS}.{point}", "vocabulary-parallel head", rank.tail.source)
    if recipe.parallel.first:
        point = f"{PASS}.embedding-backward"
        for held in head.embedding_backward(shape, rank.vocabulary):
            _add(book, held, "gradients", point, point, "before it is added to the buffer", head.OUTPUT)


def _add(book: Ledger, held: Held, category: str, born: str, dies: str, why: str, source: str) -> None:
    book.add(
        held.name,
        category,
        held.bytes,
        born,
        dies,
        template=held.template,
        numbers=held.factors,
        why=why,
        source=source,
    )
