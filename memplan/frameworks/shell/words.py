"""What words of a shell come to: quotes taken off, variables, sums and plain substitutions put in.

What nobody can know (a variable that is never set, ``$1``, ``$(nvidia-smi …)``) stays as it is written, so that whoever
needs it can ask for it by name. Nothing is run."""

import re
from dataclasses import dataclass, field

from memplan.errors import InvalidJob
from memplan.frameworks.shell.fields import UNKNOWN, Fields, Value, unknown
from memplan.frameworks.shell.filters import Filtered
from memplan.frameworks.shell.patterns import changed, globbed
from memplan.frameworks.shell.reader import MAX_LINE, MAX_WORDS, SHORTER, Word
from memplan.frameworks.shell.sums import whole_sum
from memplan.frameworks.shell.syntax import ANSI, end_of_word

BUDGET = 4_000_000
"""Characters that may be worked out of one script."""
_NAME = re.compile(r"\$(\w+|[@*#?$!-])")
_BRACED = re.compile(r"(#?|!)(\w+|[@*#?])(?:\[((?:[^][]|\[[^][]*\])*)\])?(.*)", re.DOTALL)
_SEVERAL = re.compile(r"\$@|\$\{(@|\w+\[@\])\}")
"""Words that may be none, in quotes too."""
RANKS = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
"""What each of a step's processes has another of, whatever a script takes for it by itself."""
_RUN = re.compile(r"[^'\"\\$`]+")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass
class Variables(Filtered):
    """What a script has set, and the words that come of it."""

    path: str
    values: dict[str, Value] = field(default_factory=dict)
    arguments: list[Value] | None = None
    """$1 and on, where they are known: of a function, or after ``set --``."""
    used: set[str] = field(default_factory=set)
    """Notes of the values that were put in."""
    spent: int = 0
    depth: int = 0
    line: int = 0

    def spend(self, cost: int) -> None:
        """Work is bounded."""
        self.spent += cost
        if self.spent > BUDGET:
            raise InvalidJob(f"{self.path}, line {self.line}: takes too long to work out", SHORTER)

    def words(self, raw: str, line: int, split: bool = True) -> list[Word]:
        """The words that a written word comes to, one, none or several."""
        fields = Fields(line, split)
        self.line = line
        self.depth += 1
        if self.depth > 30:
            raise InvalidJob(f"{self.path}, line {line}: values nested too deeply", SHORTER)
        self._into(fields, raw, quoted=False)
        fields.end()
        self.depth -= 1
        size = sum(len(word.text) for word in fields.done)
        self.spend(size + 1)
        if len(fields.done) > MAX_WORDS:
            raise InvalidJob(f"{self.path}, line {line}: more than {MAX_WORDS} words in one command", "is it a script?")
        if size > MAX_LINE:
            raise InvalidJob(f"{self.path}, line {line}: a command of more than {MAX_LINE} characters", SHORTER)
        return fields.done

    def text(self, raw: str, line: int = 0) -> str:
        """The same as one text: no blank ends it."""
        return " ".join(word.text for word in self.words(raw, line or self.line, split=False))

    def document(self, raw: str, line: int) -> str:
        """A here-document: quotes stand for themselves."""
        fields = Fields(line, False)
        self._into(fields, raw, quoted=True)
        fields.end()
        self.spend(len(raw))
        return "".join(word.text for word in fields.done)

    def _into(self, fields: Fields, raw: str, quoted: bool) -> None:
        place = 0
        while place < len(raw):
            run = _RUN.match(raw, place)
            if run:
                fields.add(run.group())
                place = run.end()
                continue
            place = self._special(fields, raw, place, quoted)

    def _special(self, fields: Fields, raw: str, place: int, quoted: bool) -> int:
        """A quote, a backslash or a dollar; where it ends."""
        char = raw[place]
        if char == "\\":
            after = raw[place + 1 : place + 2]
            kept = quoted and after not in '$`"\\\n'
            if after != "\n":
                fields.add(char + after if kept else after)
            return place + 2
        if not quoted and (ansi := ANSI.match(raw, place)):
            fields.add(re.sub(r"\\(['\"\\])", r"\1", ansi.group(1)))
            return ansi.end()
        if char == "'":
            if quoted:
                fields.add(char)
                return place + 1
            end = raw.find("'", place + 1)
            end = len(raw) if end < 0 else end
            fields.add(raw[place + 1 : end])
            return end + 1
        if char == '"' and quoted:
            fields.add(char)
            return place + 1
        if char == "$" and not _NAME.match(raw, place) and raw[place + 1 : place + 2] not in ("(", "{", "["):
            fields.add(char)
            return place + 1
        if char == "$" and raw[place + 1] not in "({[":
            found = _NAME.match(raw, place)
            assert found is not None
            self._parameter(fields, found.group(), found.group(1), quoted)
            return found.end()
        end = end_of_word(raw, place, whole=False)
        end = len(raw) if end < 0 else end
        self._bracket(fields, raw[place:end], quoted)
        return end

    def _bracket(self, fields: Fields, written: str, quoted: bool) -> None:
        """``"…"``, `` `…` ``, ``$(…)``, ``$((…))``, ``${…}``."""
        inner = written[1:-1] if written[0] in '"`' else written[2:-1]
        if written[0] == '"':
            if not _SEVERAL.fullmatch(inner):
                fields.add("")
            self._into(fields, inner, quoted=True)
        elif written.startswith("$((") and written.endswith("))"):
            value = self.sum(written[3:-2])
            fields.add(unknown(written) if value is None else str(value), quoted)
        elif written.startswith("$["):
            value = self.sum(inner)
            fields.add(unknown(written) if value is None else str(value), quoted)
        elif written.startswith("${"):
            self._parameter(fields, written, inner, quoted)
        else:
            code = _ESCAPED.sub(r"\1", inner) if written[0] == "`" else inner
            remark = code.lstrip().startswith("#") and "\n" not in code  # `# a remark between arguments`
            found = "" if remark else self.output(code)
            fields.add(unknown(written) if found is None else found, quoted)

    def sum(self, text: str) -> int | None:
        """A sum of whole numbers and of names that hold such."""
        put_in = self.text(text.replace('"', ""))
        self.spend(len(text))
        return None if UNKNOWN in put_in else whole_sum(put_in, self._number)

    def _number(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None or self.depth > 20:
            return None
        self.used |= value.notes
        if value.text.strip().isdigit() and len(value.text) < 20:
            return int(value.text)
        self.depth += 1
        found = whole_sum(value.text, self._number)
        self.depth -= 1
        return found

    def _parameter(self, fields: Fields, written: str, inner: str, quoted: bool) -> None:
        """``$NAME`` or ``${NAME…}``."""
        match = _BRACED.fullmatch(inner)
        if match is None:
            fields.add(unknown(written))
            return
        sign, name, index, rest = match.groups()
        value = self.value_of(name)
        several = index in ("@", "*") or name in ("@", "*")
        if sign == "!" and value is not None and not rest:
            value = self._indices(value) if several else self.value_of(value.text)
        if value is not None:
            self.used |= value.notes
        if sign == "#":
            size = None if value is None else self._size(value, several)
            fields.add(unknown(written) if size is None else str(size))
        elif several and not rest:
            self._several(fields, value, written, name, quoted)
        else:
            text = None if value is None else self._item(value, index)
            made = self._changed(name, text, rest)
            fields.add(unknown(written) if made is None else made, quoted)

    def value_of(self, name: str) -> Value | None:
        """A variable's, or an argument's; None where it is never set."""
        if name in ("@", "*"):
            known = self.arguments or []
            words = tuple(Word(each.text, self.line) for each in known)
            return Value(" ".join(each.text for each in known), words, frozenset().union(*(e.notes for e in known)))
        if name == "#":
            return None if self.arguments is None else Value(str(len(self.arguments)))
        if not name.isdigit():
            return self.values.get(name)
        if name == "0":
            return Value(self.path)
        if self.arguments is None or len(name) > 3:
            return None
        return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else Value("")

    def _several(self, fields: Fields, value: Value | None, written: str, name: str, quoted: bool) -> None:
        if value is None:
            fields.add(unknown(written))
        elif value.items is None:
            fields.add(value.text, quoted)
        elif quoted or not fields.split:
            fields.items(value.items)
        else:
            fields.items(tuple(Word(part, word.line) for word in value.items for part in word.text.split()))

    @staticmethod
    def _indices(value: Value) -> Value:
        """``${!name[@]}``: places of an array's items, or the keys that they are under."""
        items = value.items if value.items is not None else (Word("", 0),)
        keys = [re.match(r"\[([^]]+)\]=", word.text) for word in items]
        words = (
            Word(key[1] if key else str(n), word.line) for n, (key, word) in enumerate(zip(keys, items, strict=True))
        )
        return Value(value.text, tuple(words), value.notes)

    @staticmethod
    def _size(value: Value, several: bool) -> int | None:
        words = value.items if several and value.items is not None else (Word(value.text, 0),)
        if any(UNKNOWN in word.text for word in words):  # `($(free_gpus))`: how many, nobody knows
            return None
        return len(words) if several else len(value.text)

    def _item(self, value: Value, index: str | None) -> str | None:
        if index is None or value.items is None:
            return value.text if index in (None, "0", "@", "*") else None
        named = next((word.text for word in value.items if word.text.startswith(f"[{index}]=")), None)
        if named is not None:
            return named.partition("=")[2]
        place = self.sum(index)
        if place is None or not -len(value.items) <= place < len(value.items):
            return None
        return value.items[place].text

    def _changed(self, name: str, text: str | None, rest: str) -> str | None:
        """``:-default``, ``%.py``, ``##*/``, ``/a/b``, ``:0:3``, ``^^`` behind the name; None for what is not known."""
        if not rest:
            return text
        if text is None and name in RANKS:
            return None
        empty = text is None or (rest[0] == ":" and not text)
        bare = rest.lstrip(":") if rest[:2] in (":-", ":=", ":+", ":?") else rest
        if bare[0] in "-=":
            if not empty:
                return text
            known = name.isdigit() and self.arguments is None
            made = self.text(bare[1:])
            if bare[0] == "=" and not known:
                self.values[name] = Value(made)
            return made
        if bare[0] == "+":
            return "" if empty else self.text(bare[1:])
        if bare[0] == "?" or text is None or UNKNOWN in text:
            return text if bare[0] == "?" else None
        self.spend(len(text) ** 2)
        return changed(text, bare, self.text, self.sum)

    def matches(self, text: str, pattern: str) -> bool:
        """Whether a text is of a pattern with ``*`` and ``?``."""
        self.spend(len(text) + len(pattern))
        return globbed(text, pattern)
