"""A reference that a file names: counted in the policy's shape, where nothing speaks against that."""

from memplan.frameworks.base import Keys
from memplan.frameworks.common.local_models import SIZE, within
from memplan.presets import find_preset


def put_reference(keys: Keys, key: str, resident: bool = False) -> None:
    """A reference that is named, counted in the policy's shape, which is said; where it is known to have another one,
    that leaves the training unclear. ``resident``: whether it stands there beside adapters too."""
    if resident:
        keys.put("reference", "resident", key)
    said, policy = keys.text(key) or "", str(keys.draft.options.get("model") or keys.draft.values.get("model"))
    if said in ("", policy):
        keys.skip(key)
        return
    known = [find_preset(name.rpartition("/")[2]) or within(name) for name in (said, policy)]
    shapes = [{part: each["config"].get(part) for part in _SHAPE} for each in known if each]
    sizes = [set(SIZE.findall(name.lower())) for name in (said, policy)]
    differs = shapes[0] != shapes[1] if len(shapes) == 2 else bool(all(sizes) and not sizes[0] & sizes[1])
    other = "model" if differs else ""
    hint = f"add --without {key}, if it has that shape" if other else ""
    keys.warn(key, "the reference is counted as the policy's own shape", other, hint)


_SHAPE = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size", "text_config")
