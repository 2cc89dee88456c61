"""The dialect of vision-language models: tower and projector, what is trained of them, and images; and all in one call.

Source: the scripts of ``hf_dialect_scripts``."""

import re
from typing import Any

from memplan.frameworks.asking import MODEL, SEEING, SEES_TOKENS, SUCH
from memplan.frameworks.common.image_bounds import SIDE, fill_with_images, one_of_area, room_of
from memplan.frameworks.common.local_models import alike, check_vocabulary
from memplan.frameworks.draft import UNSET
from memplan.frameworks.files.documents import is_template
from memplan.frameworks.hugging_face.dialect import Dialect, read_adapter, read_kernels, read_lengths, read_quantisation
from memplan.frameworks.hugging_face.dialect_names import HARMLESS, NAMES
from memplan.frameworks.hugging_face.towers import PARTS, reads_text_alone, side_of, together


def read_dialect(dialect: Dialect) -> None:
    """All of it but the model and the method."""
    read_lengths(dialect)
    read_beside(dialect)


def read_beside(dialect: Dialect) -> None:
    """All but the model, the method and the lengths."""
    read_quantisation(dialect)
    read_adapter(dialect)
    read_freezing(dialect)
    read_kernels(dialect)
    read_images(dialect)
    keys = dialect.keys
    if keys.flag("packing"):
        keys.remark("packing: rows are counted full", "packing")
    if keys.has("use_reentrant") and keys.flag("use_reentrant") is not None:
        keys.put("gradient_checkpointing_reentrant", keys.flag("use_reentrant"), "use_reentrant")


FROZEN = (("llm", "language_model"), ("tower", "vision_tower"), ("projector", "multi_modal_projector"))

BACKBONE = ("layers", "embed_tokens", "norm")
"""A language model but for its head."""
NEXT = {"llm": "mm_language_model", "tower": "mm_vision_tower", "projector": "mm_mlp_adapter"}
"""LLaVA-NeXT's words in mm_tunable_parts."""


def read_freezing(dialect: Dialect) -> None:
    """``freeze``: which of tower, projector and language model are not trained."""
    keys, only = dialect.keys, dialect.on("only-projector")
    by = {module: dialect.on(f"freeze-{part}") or dialect.off(f"tune-{part}") for part, module in FROZEN}
    if parts := dialect.one("parts"):
        by = {module: "" if NEXT[part] in (keys.names(parts) or ()) else parts for part, module in FROZEN}
    elif only:
        by |= {"language_model": only, "vision_tower": only}
    elif dialect.on("tune-tower"):
        by["vision_tower"] = ""
    frozen = [module for module, name in by.items() if name]
    has_none = dialect.script is not None and dialect.script.tower_apart and not dialect.tower
    if only and has_none and "freeze" not in keys.draft.given:
        keys.bound(only, "a projector of no known tower: the language model is counted as trained", "freezing")
    if has_none or dialect.tower == UNKNOWN or "freeze" in keys.draft.given:
        return
    if keys.draft.values.get("lora") is not None or "lora" in keys.draft.given:
        _beside_adapters(dialect, [module for module in ("vision_tower", "multi_modal_projector") if not by[module]])
    elif frozen:
        told = dict.fromkeys(by[module] for module in frozen)
        if dialect.script is not None and by["language_model"] == dialect.script.head != "":
            frozen = [*BACKBONE, *frozen[1:]]
        keys.put("freeze", frozen, *told)


def _beside_adapters(dialect: Dialect, left: list[str]) -> None:
    """Parts beside a language model with adapters: ``left`` are not frozen, and known scripts train them whole."""
    keys, on = dialect.keys, dialect.adapts_tower
    lora = keys.draft.values.get("lora")
    if dialect.script is None or not dialect.script.beside or not isinstance(lora, dict):
        named = {module: dialect.off(f"freeze-{part}") or dialect.on(f"tune-{part}") for part, module in FROZEN[1:]}
        for module in (module for module in left if named[module]):
            weighs = "" if module == "multi_modal_projector" else "freezing"
            keys.warn(named[module], "whether it is trained in full beside adapters is the script's own", weighs)
        return
    if dialect.one("parts"):
        keys.warn(dialect.one("parts"), "parts that are trained beside adapters are not read", "freezing")
    adapted = ["vision_tower"] if on else []
    lora["modules_to_train"] = [module for module in left if module not in adapted]
    lora["exclude_modules"] = [module for _, module in FROZEN[1:] if module not in {*left, *adapted}]


SEES = re.compile(r"(?i)multi_?modal|vlm|llava|vision|internvl|idefics|[-_]vl[-_\d]|[-_]vl\b|minicpm-v|paligemma")
"""Names of models and scripts that take images."""

MANY = ("frames_upbound", "num_frames", "max_frames", "nframes", "video_folder", "video_max_frames", "n_frms",
        "video_max_pixels", "max_num_frames", "fps")  # fmt: skip
"""Keys that say that an example may be a video, or have many images."""
ONE = ("pad", "square", "none", "")
"""Aspect ratios under which LLaVA makes one square of an image; others make as many tiles as its shape asks for."""
GRID = re.compile(r"\(\s*(\d+)\s*[x,]\s*(\d+)\s*\)")


def read_images(dialect: Dialect) -> None:
    """``images``: one an example, as large as the processor may make it; where nothing bounds them, or an example is a
    video, as many as the sequence holds."""
    keys = dialect.keys
    of_tower = next((name for name in TOWERS if keys.has(name)), "") or _sees(dialect)
    names = f"{dialect.program} {keys.draft.values.get('model') or ''} {keys.draft.options.get('model') or ''}"
    of_tower = of_tower or ("output_dir" if SEES.search(names) else "")
    found, key = _image(dialect)
    aspect = str(keys.settings.values.get("image_aspect_ratio") or "pad").lower()
    many = next((name for name in MANY if keys.has(name)), "image_aspect_ratio" if aspect not in ONE else "")
    keys.skip(*MANY)
    if many and not keys.has(dialect.one("images")):
        found, of_tower = {}, many
    if "images" in keys.draft.given or not (key or of_tower):
        return
    if dialect.tower == UNKNOWN:  # with the model that sees them
        if not found:
            keys.draft.ask("images", keys.settings.where(of_tower), "how many images an example has, and how large")
        return
    if found:
        many = f"{found['per_example']} tiles of a packed row" if found["per_example"] != 1 else "one image an example"
        keys.assume("images", found, f"{many}, as large as {key} lets it be")
        return
    squares = _squares(dialect)
    if squares is None:
        fill_with_images(keys.draft, keys.settings.where(of_tower), of_tower)
    elif squares:
        keys.assume("images", {"per_example": squares, "patches": PATCHES}, f"{squares} squares at most of {of_tower}")
    else:
        keys.draft.ask("images", keys.settings.where(of_tower), "how many images an example has, and how large",
                       "add --set images.per_example=1 --set images.width=448 --set images.height=448")  # fmt: skip


PATCHES = 1
"""Of a square that the tower sees as one: it is as large as the tower makes it."""


def _squares(dialect: Dialect) -> int | None:
    """Squares that a tower beside the language model sees at most; 0 where nothing bounds them. None for other towers,
    whose patches are as many as the sequence has tokens of images, or a multiple."""
    keys, values = dialect.keys, dialect.keys.settings.values
    other = "model" in keys.draft.given and "model" not in keys.draft.facts  # an option's, with a tower of its own
    if other or not (dialect.script and dialect.script.tower_apart):
        return None
    frames = next((keys.whole(name) for name in ("frames_upbound", "num_frames", "max_frames") if keys.has(name)), None)
    sides = [(int(a), int(b)) for a, b in GRID.findall(str(values.get("image_grid_pinpoints") or ""))]
    side = side_of(keys.text(dialect.tower) or "") if dialect.tower else 0
    if any(max(each) > MOST_TILES for each in sides):
        sides = [(a // side, b // side) for a, b in sides] if side else []
    tiles = max((a * b for a, b in sides), default=0)
    if "anyres" in str(values.get("image_aspect_ratio") or "") and not tiles:
        return 0
    most, tokens = max(frames or 0, tiles + 1 if tiles else 0), (side // PATCH) ** 2
    room = int(keys.draft.now("sequence_length") or 0)
    return most if most * tokens < room else 0  # more are pooled, which is not read


PATCH = 14
"""Pixels of a side of a patch, of CLIP L/14 and SigLIP SO400M."""
MOST_TILES = 64
"""Larger numbers of image_grid_pinpoints are pixels."""


def _image(dialect: Dialect) -> tuple[dict[str, Any], str]:
    """The largest image of an example, and the key that bounds it."""
    keys, pixels, side = dialect.keys, dialect.one("pixels"), dialect.one("square")
    tiles, thumbnail, dynamic = dialect.one("tiles"), dialect.on("thumbnail"), dialect.on("dynamic")
    many, packed = dialect.one("images"), dialect.one("packed")
    tower = next((name for name in TOWERS if keys.has(name)), "")
    if tower and not side and (seen := side_of(keys.text(tower) or "")):
        return {"per_example": 1, "width": seen, "height": seen}, tower
    room = room_of(keys.draft)
    if side and (packed or tiles):
        size, count = keys.whole(side, 448), keys.whole(tiles, 1) if tiles and dynamic else 1
        if size < SIDE:
            raise keys.settings.error(side, f"no token fits into {size} pixels", "write the pixels of a tile's side")
        tokens = size**2 // SIDE**2
        if packed and many and keys.has(packed):
            return {"per_example": keys.whole(many), "tokens": tokens}, many
        count = max(1, min(count + bool(thumbnail and count > 1), room // tokens))
        return {"per_example": 1, "tokens": tokens * count}, tiles if dynamic else side
    if pixels and (area := keys.whole(pixels)):
        return one_of_area(keys.draft, area), pixels
    return {}, ""


TOWERS = ("vision_tower", "mm_vision_tower", "image_tower", "vision_path", "image_encoder_name_or_path")
UNKNOWN = "unknown"
"""Of a tower beside a language model: what the two together are."""


def _sees(dialect: Dialect) -> str:
    """A key of the file that only a model with a tower has, or that says where images are."""
    keys = dialect.keys
    meanings = [f"{kind}-{part}" for part, _ in FROZEN[1:] for kind in ("freeze", "tune")]
    names = [name for meaning in (*meanings, "pixels", "square", "parts") for name in dialect.names(meaning)] + [
        "image_folder"
    ]
    return next((name for name in names if keys.has(name)), "")


def read_model(dialect: Dialect) -> None:
    """``model``: by its name; with the tower that stands in a key of its own where the two together are known."""
    keys, names = dialect.keys, dialect.names("model")
    said = [name for name in names if keys.has(name)]
    name = next(iter(said), next((name for name in names if keys.defaults.get(name)), ""))
    tower = next((name for name in TOWERS if keys.has(name)), "")
    given = "model" in keys.draft.given
    keys.skip(*names, *(TOWERS if tower else ()), *(("model_type", "config_name") if given else ()))
    if name:
        keys.skip("model_type")
    several = bool(name) and isinstance(keys.get(name), list)
    key = _sees(dialect)
    keys.draft.facts |= {"sees": True, "seen": keys.settings.where(key)} if key and not tower else {}
    if name and not given and (several or is_template(keys.get(name))):
        why = "is several words" if several else UNSET
        what = f"{name}: {str(keys.get(name))[:60]!r} {why}"
        keys.draft.ask("model", keys.settings.where(name), what, SEES_TOKENS if key and not tower else MODEL)
        name = ""
    words = (keys.text(name) or "" if name and not given else "", keys.text(tower) or "" if tower else "")
    if given and isinstance(keys.draft.options["model"], str):  # an option stands for the language model of the file
        words = (keys.draft.options["model"], words[1])
    apart = dialect.script is not None and dialect.script.tower_apart
    projector = str(keys.settings.values.get("mm_projector_type") or "")
    pair = together(*words, projector) if tower and apart else None
    hub = alike(words[0]) if tower and apart and words[0] and pair is None else ""
    pair = together(hub, words[1], projector) if hub else pair
    behind = apart and not given and together(SUCH["model"], words[1], projector)
    for key in keys.settings.values if pair or behind else ():
        if PARTS.search(key) and key not in (*HARMLESS, *TOWERS) and not any(key in known for known in NAMES.values()):
            keys.warn(key, decides="model")
    if pair:
        keys.draft.facts["model"] = pair
        if hub:
            keys.assume("model", pair, f"{keys.settings.where(name)}: {words[0][:80]} is taken for {hub}, by its name")
        else:
            keys.put("model", pair, name)
    elif name and not given:
        keys.put("model", words[0], name)
    if words[0] and not given:
        check_vocabulary(keys, words[0], ("tokenizer_name_or_path", "tokenizer_name", "tokenizer_path"))
    named = keys.draft.options.get("model") if given else key and (alike(words[0]) or words[0])
    blind = not pair and reads_text_alone(named)
    lost = bool(tower) and (blind or not (pair or given))
    if tower:  # one that a language model's name stands beside is asked about as if it were there
        dialect.tower = UNKNOWN if lost and (name or not behind) else tower
    elif blind and key:
        dialect.tower = UNKNOWN
        keys.warn(key, f"the model that is {'given' if given else 'named'} sees no images", "model", SEEING)
    if lost:
        keys.warn(tower, "the tower beside the language model is not counted", "model", MODEL if behind else SEEING)
    elif tower and not (dialect.script and dialect.script.beside) and (lora := dialect.on("lora")):
        keys.warn(lora, "adapters of the language model beside a tower with linears of the same names", "adapters")
