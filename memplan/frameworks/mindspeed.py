"""MindSpeed-LLM's argument lists: Megatron's (``megatron``), with stages of post-training and adapters."""

from memplan.frameworks.base import Draft, Framework
from memplan.frameworks.files.documents import Document
from memplan.frameworks.megatron import reader as megatron
from memplan.frameworks.own_words.names import OTHERS


def read(document: Document, draft: Draft) -> None:
    """The training of a script."""
    megatron.read_for(document, draft, FRAMEWORK)


FRAMEWORK = Framework(
    "mindspeed", "MindSpeed-LLM", "2.0", megatron.is_mindspeed, read, extends=OTHERS, trainer="mindspeed"
)
