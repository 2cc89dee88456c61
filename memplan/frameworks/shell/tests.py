"""Whether a shell's condition holds, where the script says so: ``[ "$X" = lora ]``, ``[[ -z $Y && $N -gt 1 ]]``."""

import operator
import re
from collections.abc import Callable

from memplan.frameworks.shell.fields import UNKNOWN
from memplan.frameworks.shell.sums import whole_sum
from memplan.frameworks.shell.words import Variables

_UNSET = re.compile(rf"{UNKNOWN}\$\{{?[A-Za-z_]\w*\}}?")
"""A variable that the script never sets: empty, if nobody exports it."""
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_FILES = ("-f", "-e", "-s", "-r", "-d", "-x", "-w", "-h", "-L")


def holds(words: list[str], variables: Variables, files: dict[str, str]) -> bool | None:
    """The condition's value; None where it depends on what nobody knows."""
    return _Condition(words, variables, files).whole() if "=~" not in words and words else None


class _Condition:
    """Words taken one by one."""

    def __init__(self, words: list[str], variables: Variables, files: dict[str, str]) -> None:
        self.words, self.variables, self.files, self.place = words[:200], variables, files, 0

    def take(self, *wanted: str) -> str | None:
        """The next word, where it is one of these."""
        if self.place < len(self.words) and (not wanted or self.words[self.place] in wanted):
            self.place += 1
            return self.words[self.place - 1]
        return None

    def whole(self) -> bool | None:
        """Terms with or between them."""
        found = self.every()
        while self.take("||", "-o"):
            other = self.every()
            found = True if found or other else None if found is None or other is None else False
        return found

    def every(self) -> bool | None:
        """Terms with and between them."""
        found = self.single()
        while self.take("&&", "-a"):
            other = self.single()
            found = False if found is False or other is False else None if found is None or other is None else True
        return found

    def single(self) -> bool | None:
        """One comparison, perhaps denied or in brackets."""
        denied = False
        while self.take("!"):
            denied = not denied
        if self.take("("):
            found = self.whole()
            self.take(")")
        else:
            found = self.compared(self.take() or "")
        return found if found is None else found is not denied

    def compared(self, one: str) -> bool | None:
        """``one``, ``-z one`` or ``one = two``."""
        sign = self.take("=", "==", "!=", "<", ">", *_NUMBERS)
        if sign is not None:
            return self.pair(one, sign, self.take() or "")
        if one in ("-z", "-n"):
            return self.filled(self.take() or "", one == "-n")
        if one in _FILES:
            return True if self.take() in self.files else None
        if one.startswith("-") and len(one) == 2 and self.place < len(self.words):
            self.take()
            return None
        return None if UNKNOWN in one else bool(one)

    def filled(self, text: str, wanted: bool) -> bool | None:
        """Of ``-n`` and ``-z``: whether there is anything."""
        if _UNSET.fullmatch(text):
            return not wanted
        return None if UNKNOWN in text else bool(text) is wanted

    def pair(self, one: str, sign: str, two: str) -> bool | None:
        """A comparison of texts or of numbers."""
        if UNKNOWN in one + two:
            return None
        if sign in _NUMBERS:
            left, right = whole_sum(one), whole_sum(two)
            return None if left is None or right is None else _NUMBERS[sign](left, right)
        if sign in "<>":
            return one < two if sign == "<" else one > two
        return self.variables.matches(one, two) is not (sign == "!=")
