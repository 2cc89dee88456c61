"""A callback for the Hugging Face Trainer and TRL: will this run fit, and was the estimate right?

    trainer = DPOTrainer(..., callbacks=[MemoryCallback()])

Before the first step it estimates the run from the live model and the training arguments, and stops a run that will
not fit before it loads a batch. After some steps it logs what was estimated beside what was measured, and writes both
to a small JSON file. Importing this package needs transformers; nothing else of memplan imports it."""

from memplan.callback.trainer import MemoryCallback, WillNotFit

__all__ = ["MemoryCallback", "WillNotFit"]
