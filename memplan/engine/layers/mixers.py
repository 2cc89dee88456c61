"""The program of each kind of mixer: softmax attention of Llama, Qwen3 and Gemma, MLA of DeepSeek, Mamba."""

from collections.abc import Callable
from typing import Any

from memplan.engine.layers.attention.softmax import attention
from memplan.engine.layers.modules import Pass
from memplan.engine.programs import Programs
from memplan.engine.tape.graph import Tensor
from memplan.errors import ModelError
from memplan.spec.parts import Attention, Mixer

Program = Callable[[Pass, Any, Tensor], "tuple[Tensor, Any]"]
"""Takes the hidden states; gives them back with what the layer still names (eager's probabilities)."""


STYLES: Programs[Program] = Programs("styles")
"""A program for each ``style`` of softmax attention that ``attention.py`` does not write."""


def softmax_attention(p: Pass, mixer: Attention, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Softmax attention, as its class writes it."""
    if mixer.style.startswith("falcon"):
        from memplan.engine.layers.attention.falcon import falcon

        return falcon(p, mixer, x)
    style = "gpt2" if mixer.style == "gpt2-upcast" and p.mode.operators.attention != "eager" else mixer.style
    return STYLES.get(style, attention)(p, mixer, x)


MIXERS: Programs[Program] = Programs("mixers")
"""A program for each ``kind`` of mixer."""


RETURNING = ("mpt", "bloom", "gpt-neo", "gptj", "codegen", "falcon", "falcon-alibi", "falcon-groups")
"""Styles whose layers return eager's probabilities beside the hidden states (transformers 5.23)."""


def mix(p: Pass, mixer: Mixer | None, x: Tensor) -> tuple[Tensor, Any]:
    """Run a mixer of any kind, which the form of the layer has."""
    assert mixer is not None
    if mixer.kind not in MIXERS:
        raise ModelError(
            f"its {mixer.kind} attention is described by its parameters alone: memplan has no program of it yet",
            "show its parameters with memplan show models, or name another model",
        )
    out, beside = MIXERS[mixer.kind](p, mixer, x)
    if p.returned is not None and getattr(mixer, "style", "") in RETURNING and isinstance(beside, Tensor):
        p.returned.append(beside)
    return out, beside
