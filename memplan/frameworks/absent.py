"""Frameworks that are known by their files and not read, and scripts that train no language model: named, not guessed.

A reader of one's own wins over a row here; once there is one, its row goes."""

import re
from typing import NamedTuple

from memplan.errors import InvalidJob
from memplan.frameworks.commands.launch import launches
from memplan.frameworks.files.documents import Document, Settings
from memplan.tables.texts import lines_of

OWN_KEYS = "give the job in memplan's own keys: memplan estimate MODEL --method … --batch-size … --sequence-length …"
WEAK = frozenset({"transformers", "trl", "memplan", "accelerate", "deepspeed"})
"""Readers whose marks other frameworks' files have too."""


class Absent(NamedTuple):
    """One framework that is not read."""

    title: str
    alternatives: tuple[str, ...]

    def is_in(self, document: Document, keys: frozenset[str], commands: str) -> bool:
        """Whether a document is one of its."""
        for each in self.alternatives:
            found = each.startswith("$") and document.form == "shell" and re.search(each[1:], commands, re.MULTILINE)
            if found or (document.form != "shell" and not each.startswith("$") and keys >= set(each.split())):
                return True
        return False


def _rows() -> tuple[Absent, ...]:
    lines = [line.split(None, 1) for line in lines_of(__file__)]
    return tuple(
        Absent(name.replace("_", " "), tuple(each.strip() for each in marks.split(" | "))) for name, marks in lines
    )


ROWS = _rows()

OTHER_TASKS = re.compile(
    r"image_classification|image_pretrain|run_ma?im|run_mae|speech|_asr|audio|whisper|wav2vec|text_to_image|dreambooth"
    r"|controlnet|textual_inversion|unconditional|unet|_lcm|sdxl|diffusion|(train|run)_clip|siglip|_vit\b|imagenet"
    r"|object_detection|segmentation|contrastive|sentence_trans|embedding|retriev|rerank|classif|(train|finetune)_cls"
    r"|run_glue|squad|run_qa|question_answering|run_ner|run_swag|multiple_choice|run_xnli|internvl_stage2|_t2i|t2v"
)
"""Names of scripts whose head is not the vocabulary's, or whose model is no language model."""


def refuse(document: Document) -> None:
    """Raises InvalidJob, with its name, for the file of a framework that is not read."""
    keys = frozenset(document.settings.lines) | document.keys
    commands = "\n".join(" ".join(command.texts)[:20_000] for command in document.commands)
    row = next((row for row in ROWS if row.is_in(document, keys, commands)), None)
    if row is not None:
        what = "a script" if document.form == "shell" else "a config"
        raise InvalidJob(f"{document.path} is {what} of {row.title}, which memplan does not read", OWN_KEYS)


def refuse_other_tasks(document: Document) -> None:
    """Raises InvalidJob for a script that trains no language model."""
    for launch in launches(document) if document.form == "shell" else ():
        if OTHER_TASKS.search(launch.program.rsplit("/", 1)[-1]):
            settings = Settings(document.path, {}, {"program": launch.command.line})
            raise InvalidJob(
                f"{settings.where('program')}: {launch.program} trains no language model with a head of its vocabulary",
                "memplan estimates the training of language models",
            )
