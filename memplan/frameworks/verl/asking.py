"""Numbers of verl's settings that a text may leave open: asked for where memory depends on them."""

import re
from collections.abc import Sequence
from typing import Any

from memplan.frameworks.base import Draft, Keys
from memplan.frameworks.deciding import subject_of
from memplan.frameworks.files.documents import Settings, is_template, words
from memplan.frameworks.shell.reader import Word
from memplan.frameworks.verl.keys import ROLLOUT
from memplan.spec.reading import Unread
from memplan.spec.rollout import Rollout

NUMBER = re.compile(r"[-+]?\d+(\.\d*)?")


class VerlKeys(Keys):
    """Keys whose subject is told by what stands behind ``actor_rollout_ref``."""

    def warn(self, key: str, why: str = "not understood", decides: str | None = None, hint: str = "") -> None:
        """This one bears on memory and is not understood, where the file says it."""
        if decides is None:
            short = key.removeprefix("actor_rollout_ref.")
            of_loss = short.rpartition(".")[2].startswith("entropy_")
            decides = "loss" if of_loss else subject_of(short, self.settings.values.get(key, True))
        super().warn(key, why, decides, hint)


def known(keys: Keys, key: str, job_key: str = "", usual: int = 1) -> int:
    """A whole number, or its default; what stands for another is asked for as ``job_key``, or is left at its default.
    A number of 0 is as good as none. Raises InvalidJob for one below it where ``usual`` is none, and for a word."""
    value = keys.get(key)
    word = isinstance(value, str) and not NUMBER.fullmatch(value.strip())
    if word and value.isalpha() and value.lower() not in ("none", "null", "auto"):
        raise keys.settings.error(key, f"{value[:20]!r} is no number", "write a number")
    null = job_key and keys.settings.values.get(key, key) is None and keys.defaults.get(key) is not None
    if word or null:
        asked = job_key in keys.draft.given or any(each.asks == job_key for each in keys.draft.unread)
        if job_key and not asked:
            keys.draft.ask(job_key, keys.settings.where(key), f"{key} is {'null' if null else str(value)[:40]}")
        value = keys.defaults.get(key)
        return usual if value is None else int(value)
    number = keys.whole(key) or usual
    if number < min(0, usual):
        raise keys.settings.error(key, f"{number} is too small", "write 1 or more")
    return number


NUMBERS = re.compile(r"(size|_gpu|_per_node|_len|length|nnodes|path|partial_pretrain|rank|\.n)$")
"""Names whose values are asked for one by one."""
FELT = words(
    """use_kl_loss use_kl_in_reward use_dynamic_bsz enable_gradient_checkpointing use_remove_padding strategy use_liger
    adv_estimator entropy_coeff use_fused_kernels enable_activation_offload model_dtype offload_policy optimizer
    recompute_granularity reshard_after_forward sequence_parallel use_distributed_optimizer engine model_engine"""
)
"""Switches and words that the update's memory feels."""
OF_THE_ENGINE = words(
    "name gpu_memory_utilization free_cache_engine enforce_eager max_num_seqs max_num_batched_tokens dtype quantization"
)
"""Of ``rollout``."""


def settled(draft: Draft, settings: Settings) -> Settings:
    """The settings without those that stand for something else, where no number is asked for: a default is taken for
    each, and told where memory feels it."""
    open_ones = [key for key, value in settings.values.items() if is_template(value) and not NUMBERS.search(key)]
    for key in open_ones:
        last = key.rpartition(".")[2]
        felt = last in FELT or (key.startswith(ROLLOUT) and last in OF_THE_ENGINE)
        if felt and not key.startswith(("reward", "actor_rollout_ref.ref.")):
            why = f"{str(settings.values[key])[:40]} is not in the file: the default is taken"
            subject = subject_of(key.removeprefix("actor_rollout_ref.")) or "method"
            asks = f"rollout.{last}" if key.startswith(ROLLOUT) and last in Rollout.model_fields else ""
            hint = f"add --set {asks}=…" if asks else ""
            draft.unread.append(Unread(key, settings.where(key), why, subject, hint, asks))
    left = {key: value for key, value in settings.values.items() if key not in open_ones}
    return Settings(settings.path, left, settings.lines, settings.prefix, settings.paths)


def gpus(keys: Keys, usual: int, shared: int = 1) -> int:
    """GPUs in all: of a node times nodes; a node's where they are not known, or those that share one copy."""
    said = [keys.raw(key) for key in ("trainer.n_gpus_per_node", "trainer.nnodes")]
    each, nodes = (value if isinstance(value, int) else usual for value, usual in zip(said, (0, 1), strict=True))
    if each and keys.settings.values.get("rollout.n_gpus_per_node"):  # recipes whose rollouts have GPUs of their own
        keys.draft.trains_on(each * nodes, keys.settings.path)
    given = keys.draft.options.get("num_gpus")
    if given is not None:
        if each and each * nodes != int(given):
            where = keys.settings.where("trainer.n_gpus_per_node")
            of = f", {nodes} nodes of {each}" if nodes > 1 else ""
            keys.draft.remarks.append(
                f"{where}: the file runs on {each * nodes} GPUs{of}: {int(given)} are counted, as the option says"
            )
        keys.skip("trainer.n_gpus_per_node", "trainer.nnodes")
        return max(1, int(given))
    before = len(keys.draft.unread)
    each = known(keys, "trainer.n_gpus_per_node", "num_gpus", usual)
    nodes = known(keys, "trainer.nnodes", "num_gpus")
    if len(keys.draft.unread) == before:
        keys.put("num_gpus", each * nodes, "trainer.n_gpus_per_node", "trainer.nnodes")
        if nodes > 1:
            keys.put("gpus_per_node", each, "trainer.n_gpus_per_node")
    else:
        each, nodes = -(-max(each, 8) * nodes // shared) * shared, 1
        keys.assume("num_gpus", each, "its number is not in the file: a node's, or those that share one copy")
    return max(1, each * nodes)


_NPROC = re.compile(r"--n(?:proc[_-]per[_-]node|nodes)")


def processes_of(words: Sequence[Word]) -> dict[str, Any]:
    """How many processes torchrun starts on a node, and on how many nodes: numbers, or what stands for them."""
    found: dict[str, Any] = {}
    for place, word in enumerate(words):
        if not _NPROC.match(word.text):
            continue
        text = word.text.partition("=")[2] or (words[place + 1].text if place + 1 < len(words) else "")
        name = "trainer.nnodes" if "nodes" in word.text else "trainer.n_gpus_per_node"
        found[name] = int(text) if text.isdigit() and len(text) < 7 else text
    return found
