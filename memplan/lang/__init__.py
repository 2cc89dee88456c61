"""The language that memplan speaks: English in the code, another where it is asked for.

Every message is written in English where it is made, and becomes another language where it leaves: as blocks for a
screen or for Markdown, before they are broken into lines, and as lines on standard error. There a catalogue is looked
up by templates, "Fits {gpu} with {size} to spare", that the finished text is held against. So nothing that makes a
message knows of languages, a message that no catalogue has stays English, and a start in English reads no catalogue.

What that costs: a template is found by its shape, so a field says what it may hold (``catalogue.KINDS``), and a name
from outside can at worst be mistaken for words of ours: it is put into the sentence as text, never read as a template.
Names that stand alone are marked by ``Name``. Keys, options, names and numbers stay as they are, and so does all that
programs read: JSON, YAML, CSV."""

ENGLISH = "en"
LANGUAGES = (ENGLISH, "zh")


class Name(str):
    """Text that is a name in every language: a model's, a file's."""

    __slots__ = ()


_spoken = [ENGLISH]


def language() -> str:
    """The language that is spoken now."""
    return _spoken[0]


def use(name: str) -> None:
    """Speak this language from now on."""
    _spoken[0] = name


def said(text: str) -> str:
    """The text in the language that is spoken; as it is where that is English, or where nobody has written it."""
    if _spoken[0] == ENGLISH or isinstance(text, Name):
        return text
    from memplan.lang.catalogue import catalogue

    return catalogue(_spoken[0]).said(text)
