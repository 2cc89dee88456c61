"""Models that a file names by a folder of another machine, or by a repository that the Hub does not give: known by
their names, said aloud, or asked for."""

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from memplan.errors import ModelError, ModelNotFound
from memplan.frameworks import asking
from memplan.frameworks.asking import MODEL, SEES_TOKENS, SUCH, beside, model_hint, of_another_family, option_of
from memplan.frameworks.base import Keys
from memplan.frameworks.common.config_changes import settle_changes
from memplan.frameworks.draft import ASSUMED, Draft, NotKnown, Origin
from memplan.frameworks.files.documents import is_template, words
from memplan.frameworks.hugging_face.towers import internvl_of
from memplan.models import load_model
from memplan.presets import every_model, find_by_hub_id, find_preset, hub_ids, last_part, model_names
from memplan.spec.reading import Unread, unanswered

_LOCAL = re.compile(
    r"^(~|\$|\.{0,2}/|[A-Za-z]:\\)|^[^/]+/[^/]+/.|^s3:|^gs:|^hdfs:"
    r"|^(checkpoints?|ckpts?|outputs?|out|results?|(saved_|base_|hf_|local_)?models?|save[sd]?|runs?|experiments?"
    r"|weights|logs|data|adapters?|artifacts?)/"
)
"""Not as the Hub's ids are: owner/name."""
_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_CACHED = re.compile(r".*\bmodels--([^-/]+(?:-[^-/]+)*)--([\w.-]+)(/.*)?")
"""A folder of the Hub's own cache, which is a repository's by its name."""
TUNED = re.compile(r"-(instruct|chat|base|it|hf)(-hf)?$", re.IGNORECASE)
"""What a name says of how a model was tuned, which its shape does not depend on."""
STORED = re.compile(r"-(unsloth-)?(bnb-4bit|awq|gptq(-int4|-4bit)?|int4)$", re.IGNORECASE)
"""What a name says of how a copy is stored, where the job says that itself."""


def is_folder(name: str) -> bool:
    """Whether a model's name is a folder of a machine rather than one of the Hub's."""
    return _LOCAL.search(name) is not None


def settle_model(draft: Draft, options: Mapping[str, Any]) -> None:
    """Take a folder that is not here, or a repository that the Hub does not give, for the model of its name; of the
    trained model, and of those beside it, which are asked for and counted in its shape where that is nobody's. Raises
    NotKnown where the trained one's is."""
    unknown = _settle_beside(draft)
    _settle_trained(draft, options)
    settle_changes(draft)
    for each in unknown:
        each["model"] = options.get("model") or draft.values.get("model")


def _settle_trained(draft: Draft, options: Mapping[str, Any]) -> None:
    name = draft.values.get("model")
    if "model" in options or not isinstance(name, str):
        if "seen" in draft.facts and not {"model", "total_params"} & {*draft.values, *options}:
            draft.ask("model", draft.facts["seen"], "nothing names it", SEES_TOKENS)
        return
    if name.endswith("/") and not is_folder(name):  # the folder of that name beside the file
        draft.values["model"] = name = name.rstrip("/")
    if not os.path.exists(os.path.expanduser(name)):
        draft.values["model"] = name = _CACHED.sub(r"\1/\2", name)
    said = draft.origins["model"].text if "model" in draft.origins else "the file"
    pair = internvl_of(name) if find_preset(name.rpartition("/")[2]) is None else None
    if pair is not None:
        draft.values["model"], why = pair, "by its name, of a tower and a language model that are known"
        draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} is put together {why}")
        return
    stored = STORED.sub("", name) if draft.values.get("quantization", "none") != "none" else name
    hub, why = _another(name.rstrip("/"), stored.rstrip("/"), draft.values.get("revision"))
    if hub:
        draft.values["model"] = hub
        draft.origins["model"] = Origin(ASSUMED, f"{said}: {name[:80]} {why}")
    elif why:
        lora = draft.values.get("lora")
        targets = lora.get("targets") if isinstance(lora, Mapping) else None
        sees = draft.facts.get("sees") or speaks_of_images(said)
        hint = question(name, targets, draft.unread, draft.options, draft.values.get("images"), bool(sees))
        shared = (draft.now(key) for key in ("expert_parallel", "tensor_parallel"))
        raise NotKnown(f"{said}: {name[:80]} {why}", asking.with_experts(hint, *shared))


def question(
    model: object,
    targets: object,
    unread: Iterable[Unread],
    options: Mapping[str, Any],
    images: object = None,
    sees: bool = False,
) -> str:
    """What is typed for a model that nobody gives, with what else is asked for and no option says; for one that sees
    images, by its name or by the file (``images``, those that this tells of; ``sees``), one that does."""
    asked = [*unread, *of_another_family(targets)]
    many = any(each.asks == "images" for each in asked)
    if not (images or sees or many or speaks_of_images(str(model))):
        return model_hint(unanswered(asked, options), _such_as(str(model)))
    if not (images or many):
        asked.append(Unread("images", "", decides="lengths", hint=option_of("images"), asks="images"))
    return model_hint(unanswered(asked, options), MODEL if many else SEES_TOKENS)


SIZE = re.compile(r"\d+(?:\.\d+)?b\b")


def _such_as(name: str) -> str:
    """How a model is named, by the example that its name begins with, or the one of this size spelt most like it: a
    newer one often has an older's shape."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    begun = [known for known in model_names() if re.match(rf"{re.escape(known)}(?![a-z\d])", last)]
    size = SIZE.search(last)
    of_size = [known for known in model_names() if size and size.group() in SIZE.findall(known)]
    close = sorted(begun, key=len)[-1:] or get_close_matches(last, of_size, 1, 0.8)
    return MODEL.replace(SUCH["model"], f"--model {close[0]}") if close else MODEL


def _settle_beside(draft: Draft) -> list[dict[str, Any]]:
    """Rewards and teachers: a reward model's name has words that are no other shape's. Unknown ones are asked for."""
    models, whys, unknown = draft.values.get("extra_models"), list[str](), list[dict[str, Any]]()
    if "extra_models" in draft.given or not isinstance(models, list):
        return []
    for each in [each for each in models if isinstance(each, dict) and isinstance(each.get("model"), str)]:
        name: str = each["model"]
        if name == draft.values.get("model"):  # whatever that one is
            unknown.append(each)
            continue
        bare = name if each.get("role") == "teacher" else re.sub(r"(?i)[-_]?(reward|rm)\b", "", name)
        hub, why = _another(name, bare, None)
        if hub:
            each["model"] = hub
            draft.remarks.append(f"extra_models: {name[:80]} {why}: {hub} is counted")
        elif why:
            unknown.append(each)
            whys.append(f"{name[:80]} {why}")
    if whys:  # all at once: an option says all of them
        where = draft.origins["extra_models"].text if "extra_models" in draft.origins else "extra_models"
        roles = [each["role"] if each in unknown else (each["role"], each.get("model", "")) for each in models]
        draft.ask("extra_models", where, "; ".join(dict.fromkeys(whys)), beside(*roles))
    return unknown


def _another(name: str, bare: str, revision: str | None) -> tuple[str, str]:
    """(the Hub's name, why) of the model that a name stands for; without a name where it is nobody's; nothing for one
    that is known, or that the Hub gives. ``bare``: the name without words that the shape does not depend on."""
    if os.path.exists(os.path.expanduser(name)):
        return "", ""
    if is_folder(name):
        return _of_folder(bare)
    if find_preset(name) is not None or find_by_hub_id(name) is not None:
        return "", ""
    there, refused = _asked(name, revision) if "/" in name else (False, "is not here, and no model's name")
    last = bare.rpartition("/")[2]
    preset = find_preset(last) or find_preset(TUNED.sub("", last)) or (None if there else within(last))
    if preset and refused:
        return preset["hub_id"], f"has its name: {refused}"
    return "", "" if _ID.fullmatch(name) else refused


def alike(name: str) -> str:
    """The Hub's name of the model that a name stands for which nobody gives, its storage aside; empty for none."""
    return _another(name.rstrip("/"), STORED.sub("", name).rstrip("/"), None)[0]


def _of_folder(name: str) -> tuple[str, str]:
    parts = [part.replace("___", ".") for part in re.split(r"[/\\]", name.strip("/\\"))]  # ModelScope's dots
    preset = find_preset(parts[-1]) or find_preset(TUNED.sub("", parts[-1]))
    hub = preset["hub_id"] if preset is not None else _of_owner(parts)
    if hub:
        return hub, "is not here, and has its name"
    known = within(name)
    if known is not None:
        return known["hub_id"], "is not here, and its name holds that of a model"
    return "", "is not here, and memplan knows no model by its name"


def vocabulary_by_name(name: str) -> int:
    """The vocabulary of the model that a tokenizer's path or repository has the name of; 0 for nobody's."""
    plain = name.removesuffix("/tokenizer.model").removesuffix("/tokenizer.json")
    hub = plain if find_by_hub_id(plain) else _of_folder(plain)[0]
    known = find_by_hub_id(hub) if hub else None
    return load_model(known).vocab_size if known else 0


def check_vocabulary(keys: Keys, model: str, names: Iterable[str]) -> None:
    """A tokenizer that is none of the model's may have more tokens, and the embedding grows with it."""
    last = model.rstrip("/").rpartition("/")[2]
    for key in names:
        said = keys.settings.values.get(key)
        if not isinstance(said, str) or is_template(said) or said.rstrip("/").rpartition("/")[2] == last:
            continue
        mine, size = vocabulary_by_name(model), vocabulary_by_name(said)
        if said and mine and (not size or size > mine):
            keys.warn(key, "the vocabulary is counted as its checkpoint's", "model")


@lru_cache(maxsize=256)
def _asked(name: str, revision: str | None) -> tuple[bool, str]:
    """(whether the Hub gives a repository, why it does not, or why it is not described)."""
    try:
        load_model(name, revision)
    except ModelError as error:
        return not isinstance(error, ModelNotFound), error.message
    return True, ""


def _of_owner(parts: list[str]) -> str:
    """The Hub's name of a folder that lies in one of its owner's: ``/models/deepseek-ai/deepseek-llm-7b-chat``."""
    owners = {hub_id.partition("/")[0] for each in every_model() for hub_id in hub_ids(each)}
    owner = next((each for each in owners if len(parts) > 1 and each.casefold() == parts[-2].casefold()), "")
    return f"{owner}/{parts[-1]}" if owner else ""


SEEN = words(
    """vl vlm mllm mm multimodal omni audio speech vision visual video image llava clip siglip internvl minicpmv
    minicpmo cogvlm janus owl mplug ovis molmo pixtral idefics smolvlm fastvlm paligemma florence kosmos fuyu
    xcomposer cogagent"""
)
"""Of a model that sees or hears."""
_LETTER = re.compile(r"(?i)minicpm-?[vo]\b|glm-?\d[.\d]*v\b|vl(?![a-z])")


def speaks_of_images(name: str) -> bool:
    """Whether a model's name, or a path, has a word of those that see or hear."""
    return bool(SEEN & {*_words(name)} or _LETTER.search(name))


TURNED = SEEN | words(
    """awq gptq aqlm hqq eetq exl2 mlx int4 int8 2bit 3bit bnb fp8 nf4 gguf quantized quantised 4bit 8bit reward rm
    eagle medusa draft pruned prune distill distilled distillation moe upcycled merged expanded vocab chinese zh ko kor
    korean ja jp japanese vi vietnamese thai arabic hindi turkish persian extended"""
)
"""Words beside a model's name by which a checkpoint may be another's shape, or have another vocabulary."""


def within(path: str) -> dict[str, Any] | None:
    """The one preset whose name stands in a path, nearest to its end: ``output/qwen2_5-7b-mine/checkpoint-400``.

    None where two names stand beside each other, or words of another size or shape."""
    for folder in reversed([part for part in path.split("/") if part][-4:]):
        parts = _untuned(folder)
        turned = _names_by_words().get(_in_order(parts))  # vicuna-v1-3-7b
        if turned:
            return find_preset(turned)
        found = {name: place for name in _names() if (place := _place(name, parts)) is not None}
        longest = max(found, key=len, default=None)
        if longest is None:
            continue
        start, end = found[longest], found[longest] + len(longest)
        inside = all(start <= place and place + len(name) <= end for name, place in found.items())
        rest = [*parts[:start], "", *parts[end:]]
        sized = any(word.isdigit() and after == "b" for word, after in pairwise(rest))
        return None if sized or not inside or TURNED.intersection(rest) else find_preset(_names()[longest])
    return None


def _words(name: str) -> tuple[str, ...]:
    """Runs of letters and of digits; a version's v is left out."""
    found = re.findall(r"[a-z]+|\d+", name.casefold())
    pairs = zip(found, [*found, ""][1:], strict=True)
    return tuple(word for word, after in pairs if not (word == "v" and after.isdigit()))


def _untuned(name: str) -> tuple[str, ...]:
    """Its words without those of how a model was tuned, wherever they stand: ``Llama-3-Base-8B-SFT``."""
    return tuple(word for word in _words(name) if word not in ("base", "instruct", "chat", "it", "hf"))


def _place(name: tuple[str, ...], parts: tuple[str, ...]) -> int | None:
    """Where a name's words stand in others, one after the other."""
    width = len(name)
    return next((at for at in range(len(parts) - width + 1) if parts[at : at + width] == name), None)


@cache
def _names() -> dict[tuple[str, ...], str]:
    """Names of presets and of the Hub's repositories that tell a family and a size, by their words."""
    found = {}
    for preset in every_model():
        for name in (str(preset["name"]), *map(last_part, hub_ids(preset))):
            parts = _untuned(name)
            if len(parts) > 2 and "b" in parts:
                found[parts] = str(preset["name"])
    return found


@cache
def _names_by_words() -> dict[tuple[str, ...], str]:
    """The same names by their words in the order of the alphabet, where only one has these."""
    found: dict[tuple[str, ...], set[str]] = {}
    for parts, name in _names().items():
        found.setdefault(_in_order(parts), set()).add(name)
    return {parts: names.pop() for parts, names in found.items() if len(names) == 1}


def _in_order(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Words in the order of the alphabet, behind the last number of a size."""
    size = next((number for number, after in pairwise(parts) if after == "b"), "")
    return (size, *sorted(parts))
