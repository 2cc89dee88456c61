"""The dialect of scripts on transformers' Trainer: adapters, quantisation, freezing, lengths, images and kernels.

What each name means is in ``hf_dialect_names``, what a known script does where it is silent in ``hf_dialect_scripts``.
"""

import re
from collections.abc import Mapping
from typing import Any

from memplan.frameworks.asking import LORA
from memplan.frameworks.base import FILE, Keys, Origin
from memplan.frameworks.files.following import found_at, program_at
from memplan.frameworks.hugging_face.dialect_names import MEANINGS, NAMES
from memplan.frameworks.hugging_face.dialect_scripts import Script
from memplan.frameworks.own_words.names import lora_targets, module_names

ALL = ("all-linear", "all", "all_linear", "linear", "auto", "all-linear-layers")
"""Words for every linear of the model."""
MODES: Mapping[str, tuple[bool, bool]] = {
    "full": (False, False), "lora": (True, False), "qlora": (True, True), "common": (False, False),
    "sft": (False, False), "none": (False, False),
}  # fmt: skip
"""Words of a mode: whether there are adapters, and whether the base is in 4 bits."""
NAMED = re.compile(r"(^|[/_-])q?lora([_-]\w*)?\.py$")
"""Names of scripts that train adapters, whatever their keys say."""
PLAIN = ("lora", "none", "")
"""Kinds of adapters that are LoRA, or none."""


class Dialect:
    """What one file says in the dialect, under a script's defaults."""

    def __init__(self, keys: Keys, script: Script | None, program: str = "") -> None:
        self.keys, self.script, self.program = keys, script, program
        self.tower = ""
        """The key of a tower that stands beside the language model's."""
        self._own = dict(script.also) if script else {}

    def names(self, meaning: str) -> tuple[str, ...]:
        """The names that mean this here."""
        usual = (name for name in NAMES.get(meaning, ()) if name not in self._own)
        return (*usual, *(name for name, means in self._own.items() if means == meaning))

    def one(self, meaning: str) -> str:
        """The name that the file says it by, else the script's default's, or nothing. Two that differ are told."""
        names = self.names(meaning)
        self.keys.skip(*names)
        said = [name for name in names if self.keys.has(name)]
        told = MEANINGS.get(meaning, ("", ""))[1] in self.keys.draft.given
        if len({str(self.keys.get(name)) for name in said}) > 1 and meaning in MEANINGS and not told:
            self.keys.warn(said[1], f"another value than {said[0]}'s", MEANINGS[meaning][0])
        return next(iter(said), next((name for name in names if self.keys.defaults.get(name) is not None), ""))

    def on(self, *meanings: str) -> str:
        """The name of the first of these switches that is on; empty where none is."""
        names = [name for meaning in meanings if (name := self.one(meaning))]
        return next((name for name in names if self.keys.flag(name)), "")

    @property
    def adapts_tower(self) -> str:
        """The name of what puts adapters on the vision tower too; empty where none are there."""
        return self.on("tower-lora") or (self.ranked("tower-rank-on") if self.ranked("rank-on") else "")

    def ranked(self, meaning: str) -> str:
        """The name of a rank above 0, which turns these adapters on."""
        name = self.one(meaning)
        return name if name and (self.keys.whole(name) or 0) > 0 else ""

    def off(self, meaning: str) -> str:
        """The name of a switch that is said to be off."""
        name = self.one(meaning)
        return name if name and self.keys.flag(name) is False else ""


def read_adapter(dialect: Dialect) -> None:
    """``lora``, after the base's quantisation: whether there is one, its rank and its targets."""
    keys = dialect.keys
    mode, kind, switch = _mode(dialect), dialect.one("kind"), dialect.on("lora", "q-lora", "gptq")
    rank_on, of_tower = dialect.ranked("rank-on"), dialect.ranked("tower-rank-on")
    full, rank = dialect.on("full"), dialect.one("rank")
    if kind and str(keys.get(kind)).lower() not in PLAIN:
        keys.warn(kind, "adapters other than LoRA are not read", "adapters")
    elif kind and str(keys.get(kind)).lower() == "lora":
        switch = switch or kind
    if rank_on:  # of two ranks that differ the larger, which takes no less
        rank = switch = max(rank_on, of_tower or rank_on, key=lambda name: keys.whole(name) or 0)
    elif of_tower:
        keys.warn(of_tower, "adapters on the tower alone are not read", "adapters")
    spoken = keys.get if dialect.program else keys.settings.values.get  # a default is of a program that is known
    off = full or any(spoken(name) is not None and keys.flag(name) is False for name in dialect.names("lora"))
    lora = bool(not full and (switch or mode))
    if not (lora or off) and mode is None and "program" not in keys.draft.facts:
        lora = NAMED.search(dialect.program) is not None or keys.draft.values.get("quantization", "none") != "none"
        ranked = rank if rank and keys.has(rank) and keys.whole(rank) else ""
        spoken_of = ranked or next((name for each in ("alpha", "targets") if keys.has(name := dialect.one(each))), "")
        if not lora and spoken_of:
            said = dialect.one("targets")
            named = keys.names(said) if said else None
            targets = lora_targets(named) if named else "all-linear"
            words = targets if isinstance(targets, str) else ",".join(targets)
            typed = f"add --lora-r {keys.whole(ranked) if ranked else 16} --lora-targets {words}, or --no-lora"
            why = f"{spoken_of}: whether adapters are on is the script's own"
            keys.draft.ask("lora", keys.settings.where(spoken_of), why, typed)
    made = isinstance(keys.draft.values.get("lora"), dict)  # by a program of its own
    parts = _parts(dialect, rank) if lora and not made else None
    for meaning in ("alpha", "dropout", "targets", "saved", "bias", "dora", "rslora"):
        keys.skip(*dialect.names(meaning))
    if parts is not None:
        keys.put("lora", parts, *(name for name in (switch, rank, dialect.one("mode")) if name))


def _mode(dialect: Dialect) -> bool | None:
    """Whether a word of the mode asks for adapters; None where it says nothing."""
    keys, name = dialect.keys, dialect.one("mode")
    if not name:
        return None
    word = (keys.text(name) or "").lower()
    if word not in MODES:
        keys.warn(name, f"{word[:20]} is not read", "adapters")
        return None
    return MODES[word][0]


def _parts(dialect: Dialect, rank: str) -> dict[str, Any] | None:
    """The adapter's own settings."""
    keys = dialect.keys
    if "lora" in keys.draft.given and not keys.draft.options.get("lora"):
        return None
    lora: dict[str, Any] = {"r": keys.whole(rank)} if rank and keys.whole(rank) else {}
    if not lora:
        what = "adapters are on, and their rank and modules are the script's own"
        keys.draft.ask("lora", keys.settings.where(), what, LORA)
    for meaning, job in (("alpha", "alpha"), ("dropout", "dropout")):
        name = dialect.one(meaning)
        if name and keys.number(name) is not None:
            lora[job] = keys.number(name)
    lora |= {job: True for job in ("dora", "rslora") if dialect.on(job)}
    bias = dialect.one("bias")
    if bias and keys.text(bias) in ("all", "lora_only"):
        lora["bias"] = keys.text(bias)
    saved = dialect.one("saved")
    if saved and keys.names(saved):
        lora["modules_to_save"] = [name.rsplit(".", 1)[-1] for name in keys.names(saved) or ()]
    lora["targets"] = "all-linear" if dialect.adapts_tower else _targets(dialect, asked="r" not in lora)
    if keys.has("freeze_merger") or keys.has("lora_namespan_exclude"):
        _add_ends(keys, lora)
    return lora


def _add_ends(keys: Keys, lora: dict[str, Any]) -> None:
    """2U1's scripts adapt every linear and embedding whose name ``lora_namespan_exclude`` has no part of."""
    excluded = str(keys.get("lora_namespan_exclude") or "")
    ends = [name for name in ("lm_head", "embed_tokens") if name not in excluded]
    targets = lora["targets"]
    lora["targets"] = [*([targets] if isinstance(targets, str) else targets), *ends] if ends else targets
    if keys.has("num_lora_modules") and (keys.whole("num_lora_modules") or 0) > 0:
        keys.warn("num_lora_modules", "adapters on the last modules alone are not read", "adapters")


def _targets(dialect: Dialect, asked: bool) -> str | list[str]:
    """Names of the adapted linears; the last names of a pattern. What nobody says is asked for."""
    keys, name = dialect.keys, dialect.one("targets")
    if not name:
        what = "adapters are on, and which modules they are on is the script's own"
        if not asked:
            keys.draft.ask("lora", keys.settings.where(), what, "add --lora-targets, such as --lora-targets all-linear")
        return "all-linear"
    parts = keys.names(name) or ()
    whole = [part for part in parts if part[-1:] != "," or "[" in parts[0]]  # --lora_target_modules q_proj, v_proj
    if len(parts) > len(whole) > 0:
        keys.remark("PEFT finds no name with its comma: it is not counted", name)
    names = tuple(part.strip("[]'\" ,") for part in whole or parts)
    if len(names) == 1 and re.search(r"[\\^$*(|]", names[0]):
        names = module_names(names[0]) or names
    odd = [part for part in names if not re.fullmatch(r"[\w.-]+", part)]
    if odd or not names:
        keys.warn(name, f"{str(keys.get(name))[:40]} is not read", "adapters")
        return "all-linear"
    return lora_targets(names, ALL)


def read_quantisation(dialect: Dialect) -> None:
    """``quantization`` of the base: bits, or one of the switches."""
    keys, kind = dialect.keys, dialect.one("kind")
    if kind and str(keys.get(kind)).lower() not in PLAIN and not dialect.one("rank"):
        return  # the base of adapters that are not read
    bits, four, eight = dialect.one("bits"), dialect.on("four"), dialect.on("eight")
    q_lora, gptq, mode = dialect.on("q-lora"), dialect.on("gptq"), dialect.one("mode")
    of_q_lora = dialect.one("bits of use_qlora")
    nested, kind = dialect.on("nested"), dialect.one("quant-kind")
    word = (keys.text(kind) or "nf4").lower() if kind else "nf4"
    if word not in ("nf4", "fp4"):
        raise keys.settings.error(kind, f"{word[:20]!r} is no 4-bit type", "use nf4 or fp4")
    if four and eight:
        raise keys.settings.error(eight, f"true beside {four}: true", "keep one of them")
    width = keys.whole(bits) if bits else keys.whole(of_q_lora) if of_q_lora and q_lora else None
    by_mode = bool(mode) and MODES.get((keys.text(mode) or "").lower(), (False, False))[1]
    if gptq:
        keys.put("quantization", "gptq-4bit", gptq)
    elif width == 8 or eight:
        keys.put("quantization", "int8", eight or bits or of_q_lora)
    elif width == 4 or four or q_lora or by_mode:
        said = next(name for name in (four, q_lora, bits, mode) if name)
        keys.put("quantization", "nf4-double" if nested and word == "nf4" else word if word == "fp4" else "nf4", said)
    elif width not in (None, 0, 16, 32):
        keys.warn(bits, f"{width} bits are not read", "quantisation")


LONG = 16384
"""A script's own bound beyond which it is the model's and not that of its data."""


def read_lengths(dialect: Dialect) -> None:
    """``sequence_length``: one name, or two whose sum it is; of two that differ the longer, which takes no less."""
    keys = dialect.keys
    several = [name for name in dialect.names("length") if keys.has(name)]
    asked = len(several) > 1 and "sequence_length" not in keys.draft.given
    said = {name: keys.whole(name) or 0 for name in several if asked}
    if len(set(said.values())) > 1:
        longest = max(said, key=said.__getitem__)
        keys.put("sequence_length", said[longest], longest)
        keys.bound(longest, f"the longest of {', '.join(said)} is counted", "lengths", "sequence_length")
        keys.skip(*said, *dialect.names("part"), *dialect.names("packed"))
        return
    parts = [name for name in dialect.names("part") if keys.has(name) or keys.defaults.get(name) is not None]
    packed, name = dialect.one("packed"), dialect.one("length")
    keys.skip(*dialect.names("part"))
    if "sequence_length" in keys.draft.given:
        return
    if packed and keys.has(packed):
        keys.put("sequence_length", keys.whole(packed), packed)
    elif len(parts) == 2 and not (name and keys.has(name)):
        keys.put("sequence_length", sum(keys.whole(part) or 0 for part in parts), *parts)
    elif name and keys.has(name):
        keys.copy("sequence_length", name, "whole")
    elif name:
        keys.put("sequence_length", keys.whole(name), name)
        if (keys.whole(name) or 0) > LONG:
            why = f"{name} is the script's own {keys.whole(name)}, which samples hardly have"
            keys.bound(name, why, "lengths", "sequence_length")


_PATCH = re.compile(r"replace_(\w+?)_attn_with_flash")
_COMMENT = re.compile(r"(?m)#.*$")
_OF_LLAMA = re.compile(r"vicuna|alpaca|llava(?!.*(?:mistral|mpt|qwen|phi|gemma))")
"""Names of models that are Llamas inside."""


def _with_flash(dialect: Dialect) -> bool:
    """Whether the program takes flash attention itself: one that is here, where its text says so, for every model or,
    where it patches one family's layers alone, for that family's; the variant train_mem.py of FastChat and LLaVA."""
    keys, here = dialect.keys, dialect.keys.settings.path
    variant = dialect.program.endswith("_mem.py")
    program = found_at(here, program_at(here, dialect.program)) if variant or dialect.script else None
    text = _COMMENT.sub("", program.read_text("utf-8", "replace")) if program else ""
    patched = (_PATCH if variant else _PATCHES).findall(text[:10_000])
    if not (variant or patched):
        return _LITERAL.search(text) is not None
    name = str(keys.draft.options.get("model") or keys.get("model_name_or_path") or "").lower()
    own = any(family in name or (family == "llama" and _OF_LLAMA.search(name)) for family in patched)
    return own or (not patched and (not text or "flash" in text))


_PATCHES = re.compile(r"^replace_(\w+?)_attn_with_flash\w*\(", re.MULTILINE)
"""Of any program, whatever its options say: train_mem_moe.py beside train_mem.py."""
_LITERAL = re.compile(r"""attn_implementation["']?\s*[=:]\s*["']flash_attention_2""")


def read_kernels(dialect: Dialect) -> None:
    """Checkpointing, attention and Liger under the scripts' own names."""
    keys, flash, plain = dialect.keys, dialect.one("flash"), dialect.one("no-flash")
    checkpointing, liger = dialect.one("checkpointing"), dialect.one("liger")
    if checkpointing and keys.flag(checkpointing) is not None:
        keys.put("gradient_checkpointing", "full" if keys.flag(checkpointing) else "none", checkpointing)
    if flash and keys.has(flash) and str(keys.get(flash)).lower() not in ("true", "false", "0", "1", "auto"):
        keys.warn(flash)
        flash = ""
    if flash and str(keys.get(flash)).lower() != "auto" and keys.flag(flash):
        keys.put("attention", "flash", flash)
    if _with_flash(dialect) and not (flash or keys.get("attn_implementation")):
        where = f"{keys.settings.path}: {dialect.program}: the flash attention variant of the script"
        keys.draft.put("attention", "flash", Origin(FILE, where))
    if plain:
        keys.put("attention", "sdpa" if keys.flag(plain) else "flash", plain)
    if liger and keys.flag(liger):
        if keys.draft.values.get("method", "sft") == "sft":
            keys.put("kernels", "liger", liger)
        else:  # the loss of pairs is the script's own, and is made of logits
            keys.warn(liger, "Liger's layers are not counted beside a loss of pairs", "")
