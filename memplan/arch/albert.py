"""ALBERT as transformers 5.23 builds it (``models/albert/configuration_albert.py``): an encoder whose layers are a few,
applied again and again. Its parameters, each counted once; its activations are refused in words.
"""

from functools import partial

from memplan.arch.config import Config, Scalar
from memplan.arch.decoder import build
from memplan.arch.encoders import bert_attention, dense_and_norm, embeddings
from memplan.arch.plain import drops, plain_feed_forward, row
from memplan.spec.encoders import Pooler
from memplan.spec.layer import Run
from memplan.spec.model import ModelSpec
from memplan.spec.parts import FeedForward, Linear, Part

ALBERT: dict[str, Scalar] = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_layers": 12,
    "num_hidden_groups": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "classifier_dropout_prob": 0.1,
    "tie_word_embeddings": True,
}


def feed_forward(family: object, config: Config) -> list[FeedForward]:
    """ffn and ffn_output."""
    return plain_feed_forward(FAMILY, config, ("ffn", "ffn_output"), config.integer("intermediate_size"), True)


def finish(spec: ModelSpec, config: Config) -> ModelSpec:
    """Applications of ``num_hidden_groups`` × ``inner_group_num`` layers; the first of each has the weights."""
    hidden, width = spec.hidden_size, config.integer("embedding_size")
    groups, inner = config.integer("num_hidden_groups"), config.integer("inner_group_num")
    if groups > spec.num_layers:
        raise config.wrong("num_hidden_groups", f"at most num_hidden_layers ({spec.num_layers})", groups)
    own, applied = groups * inner, spec.num_layers * inner
    layer = spec.runs[0].layer.model_copy(update={"form": "shared-block"})
    runs = [Run(count=own, layer=layer)]
    if applied > own:
        runs.append(Run(count=applied - own, layer=layer.model_copy(update={"repeats": True})))
    mapping = Linear(name="embedding_hidden_mapping_in", inputs=width, outputs=hidden, bias=True)
    pooler = Linear(name="pooler", inputs=hidden, outputs=hidden, bias=True)
    return spec.model_copy(
        update={
            "task": "masked",
            "bidirectional": True,
            "runs": tuple(runs),
            "embedding_width": width,
            "extra": (embeddings(config, width), Part(linears=(mapping,))),
            "final_norm": None,
            "transform": dense_and_norm("dense", "LayerNorm", hidden, width),
            "head": Linear(name="decoder", inputs=width, outputs=spec.vocab_size, bias=True),
            "scoring": Pooler(
                linears=(pooler,),
                score=Linear(name="classifier", inputs=hidden, outputs=1, bias=True),
                dropout=drops(config, "classifier_dropout_prob"),
            ),
        }
    )


FAMILY = row(
    model_type="albert",
    defaults=ALBERT,
    mixer=bert_attention,
    feed_forward=feed_forward,
    norms=("LayerNorm", "full_layer_layer_norm"),
    form="encoder",
    finish=finish,
)

FAMILIES = {FAMILY.model_type: partial(build, FAMILY)}
