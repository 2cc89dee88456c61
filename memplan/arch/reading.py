"""What families read of a config in one way: kinds and numbers of layers, pairs of sides, shares of a whole, sizes that
divide. Each raises ModelError for what cannot be."""

from collections.abc import Mapping, Sequence

from memplan.arch.config import Config


def kinds(config: Config, key: str, given: object, known: Mapping[str, str]) -> list[str]:
    """A list of kinds, each by the name that it has in ``known``."""
    found = []
    for item in _items(config, key, given, "names"):
        if not isinstance(item, str) or item not in known:
            raise config.wrong(key, "a list of " + ", ".join(known), item)
        found.append(known[item])
    return found


def kinds_of_layers(config: Config, key: str, given: object, known: Mapping[str, str], more: bool = False) -> list[str]:
    """The kind of each of num_hidden_layers. ``more``: the list may go on behind the last of them."""
    layers = config.integer("num_hidden_layers")
    if not isinstance(given, (list, tuple)) or len(given) < layers or (len(given) > layers and not more):
        raise config.wrong(key, f"a list of num_hidden_layers ({layers}) names", given)
    return kinds(config, key, given[:layers], known)


def numbers(config: Config, key: str, given: object) -> tuple[int, ...]:
    """A list of numbers of layers, from 0 on."""
    found = []
    for item in _items(config, key, given, "layer numbers"):
        if not isinstance(item, int) or isinstance(item, bool) or item < 0:
            raise config.wrong(key, "a list of layer numbers", item)
        found.append(item)
    return tuple(found)


def pairs(config: Config, key: str, given: object, names: str) -> tuple[tuple[int, int], ...]:
    """A list of two sides each, called so."""
    found = []
    for item in _items(config, key, given, names) or [given]:
        sides = [side for side in item if isinstance(side, int) and side > 0] if isinstance(item, (list, tuple)) else []
        if len(sides) != 2:
            raise config.wrong(key, f"a list of {names}", item)
        found.append((sides[0], sides[1]))
    return tuple(found)


def _items(config: Config, key: str, given: object, names: str) -> Sequence[object]:
    if not isinstance(given, (list, tuple)):
        raise config.wrong(key, f"a list of {names}", given)
    return given


def share(config: Config, key: str, value: object) -> float:
    """A number above 0, at most 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1:
        raise config.wrong(key, "a number above 0, at most 1", value)
    return float(value)


def turning(config: Config, key: str, factor: float, width: int) -> int | None:
    """Elements of a head that turn, an even part of it; None for all."""
    turns = int(width * factor)
    if turns % 2 or not 0 < turns <= width:
        raise config.wrong(key, f"a factor that takes an even part of a head ({width})", factor)
    return None if turns == width else turns


def quotient(config: Config, key: str, value: int, by: str, divisor: int) -> int:
    """How often the size of another key goes into that of this one."""
    if value % divisor:
        raise config.wrong(key, f"a multiple of {by} ({divisor})", value)
    return value // divisor


def width_of_head(config: Config) -> int:
    """hidden_size / num_attention_heads."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return quotient(config, "hidden_size", hidden, "num_attention_heads", heads)
