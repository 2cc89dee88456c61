"""Both stacks of an encoder-decoder, in a whole step or alone: there what stands between them is a layer of its own.

That is the encoder's final norm and dropout, whose output all layers of the decoder read, and the decoder's embedding.
What a stack's forward holds beside its residual stream (masks, positions, the embedding's output) is there until it
returns; checkpoints hold the masks, and so do the nodes of fused attention."""

from memplan.engine.layers.embedding import STEPS
from memplan.engine.layers.modules import Pass, norm
from memplan.engine.layers.shared_inputs import BIAS, CROSS_BIAS, MEMORY
from memplan.engine.play.model import PassRun
from memplan.engine.play.stack import Reached, StackRun, StackTape
from memplan.engine.play.weights import OUTSIDE, ModelPass, Weights
from memplan.engine.tape import ops
from memplan.engine.tape.graph import Node, Tensor, leaf
from memplan.engine.tape.tags import Dim
from memplan.spec.encoders import Encoder


class EncoderDecoder(PassRun):
    """An encoder over ``memory`` tokens of each row, a decoder over ``length``."""

    between = 0
    """Places of what stands between the stacks."""

    @property
    def encoder(self) -> Encoder:
        """The first stack."""
        assert self.plan.spec.encoder is not None
        return self.plan.spec.encoder

    @property
    def middle(self) -> int:
        """The decoder's first layer."""
        return self.encoder.layers

    def _hidden_states(self) -> Tensor:
        """From the encoder's embeddings to the decoder's last output."""
        plan, decoder, held, mode = self.plan, self.p, self.forward_locals, self.plan.mode
        self.p = encoder = ModelPass(decoder.weights, mode, plan.rows, plan.memory)
        inputs = [self._embedded(held)]
        self._hold_front(encoder, plan.spec.front, plan.rows)
        masks = self._masks_of(plan.memory, plan.memory, made=mode.padded)
        if mode.padded and mode.trained and mode.operators.attention != "eager" and not self.encoder.decoder_front:
            inputs.append(self._beside_bias(inputs.pop()))
        inputs.append(self._through(inputs, range(self.middle), masks))
        self.tape.enter(self.middle if self.between else -1)
        encoder.scope, decoder.scope = "behind the encoder", OUTSIDE
        states = self._joint(encoder, decoder, inputs)
        self.p, decoder.memory, decoder.shared = decoder, plan.memory, {MEMORY: states}
        masks = self._masks_of(plan.length, plan.length, made=mode.operators.attention == "eager")
        masks += self._masks_of(plan.length, plan.memory, made=mode.padded)
        x = self._through(inputs, range(self.middle, len(self.layers)), [states, *masks], shift=self.between)
        self.tape.enter(-1)
        decoder.scope, decoder.mode, decoder.shared = OUTSIDE, self.outside, {}
        self._name(states)
        return x

    def _name(self, states: Tensor) -> None:
        """The model's outputs hold the encoder's."""
        self.image_outputs.append(states)

    def _beside_bias(self, x: Tensor) -> Tensor:
        """The mask that T5's fused attention adds to its bias is kept until the encoder has run back."""
        node = self.tape.node((x,), (self.forward_locals[-1],), lambda t, grads: (grads[0],))
        return Tensor(x.dim, x.itemsize, x.storage, node)

    def seen(self, scope: object, shared: dict[str, Tensor]) -> dict[str, Tensor]:
        """The first layer of a stack, which comes last, makes biases of its own again."""
        if scope not in (0, self.middle + self.between):
            return shared
        for name in (BIAS, CROSS_BIAS):
            shared.pop(name, None)
        return dict(shared)

    def _joint(self, encoder: ModelPass, decoder: ModelPass, inputs: list[Tensor]) -> Tensor:
        """The encoder's output, in its list the decoder's first input; beside adapters, that is a leaf."""
        spec, mode, tape = self.plan.spec, self.plan.mode, self.tape
        x = self.sharding.before(self.middle, inputs.pop()) if self.between else inputs.pop()
        with tape.at("attention"):
            states = norm(encoder, self.encoder.final_norm, x, "h") if self.encoder.final_norm else x
            del x
            self.forward_locals.clear()  # the encoder has returned
            encoder.shared = {}
            if self.encoder.dropout:
                states = ops.dropout(tape, states, MEMORY)
            start = self._decoder_input(decoder)
            if not mode.trained and self.plan.embedding_trained and tape.grad_enabled:
                start = leaf(tape, start)
            front = self.encoder.decoder_front
            held = [start] if spec.front and not self._is_leaf else []
            decoder.scope = "before the decoder"
            for step in front or (("dropout",) if self.encoder.dropout else ()):
                start = STEPS[step](decoder, spec.but(extra=spec.extra[-1:]), start, held)
            self.forward_locals += held
        inputs.append(start)
        return states

    def _decoder_input(self, decoder: ModelPass) -> Tensor:
        """The embedding's output."""
        spec, itemsize = self.plan.spec, self.plan.mode.numerics.itemsize
        table = decoder.param("embed_tokens", spec.vocab_size * spec.hidden_size)
        x = ops.embedding(self.tape, table, decoder.dim("h", spec.hidden_size), itemsize)
        return ops.scale(self.tape, x, "embedding output") if spec.embedding_multiplier else x

    def _hold_front(self, p: Pass, steps: tuple[str, ...], rows: int) -> None:
        """What the stack's forward names of the embedding's steps, which are played."""

    @property
    def _is_leaf(self) -> bool:
        return self.plan.embedding_trained and not self.plan.mode.trained and self.plan.style != "no-grad"

    def _masks_of(self, length: int, keys: int, *, made: bool) -> list[Tensor]:
        """A stack's mask for each pair."""
        mode = self.plan.mode
        pairs = Dim("rows·s·s", self.plan.rows * length * keys if made else 0)
        itemsize = mode.numerics.itemsize if mode.operators.attention == "eager" else 1
        mask = self.tape.new(pairs, itemsize, "attention mask", category="batch")
        self.forward_locals.append(mask)
        return [mask] if self.plan.style == "checkpoint" else []


class TwoStacks(EncoderDecoder, StackRun):
    """Both stacks alone."""

    between = 1

    def __init__(self, tape: StackTape, weights: Weights, reached: Reached) -> None:
        super().__init__(tape, weights, reached)
        self.places = len(self.layers) + 1

    def _name(self, states: Tensor) -> None:
        self.outputs.append(states)

    def _decoder_input(self, decoder: ModelPass) -> Tensor:
        """The output of the embedding that both stacks have. Where it is trained, its gradient meets that of the tied
        head, which waits and is counted elsewhere."""
        spec, itemsize, tape = self.plan.spec, self.plan.mode.numerics.itemsize, self.tape
        x = tape.new(decoder.dim("h", spec.hidden_size), itemsize, "embedding output")
        if not (self.needs_grad and tape.grad_enabled and self.plan.mode.trained):
            return x
        table = Dim("V·h", spec.vocab_size * spec.hidden_size)
        weight = Node(tape, [], (), lambda t, g: ())
        if spec.head_is_tied:
            self.waits[weight] = [Tensor(table, itemsize, None)]
        node = Node(tape, [(weight, 0)], (), lambda t, g: (t.gradient((table, itemsize), "embedding gradient"),))
        return Tensor(x.dim, x.itemsize, x.storage, node)

    def _hold_front(self, p: Pass, steps: tuple[str, ...], rows: int) -> None:
        """The embedding's output and positions, which the stack's forward names."""
        itemsize, wide = self.plan.mode.numerics.itemsize, p.dim("h", self.plan.spec.hidden_size)
        if steps and not self._is_leaf:
            self.forward_locals.append(self.tape.new(wide, itemsize, "embedding output"))
        if "row-positions" in steps:
            self.forward_locals.append(self.tape.new(wide, itemsize, "positions"))
