"""Help in the language that is spoken: English as typer lays it out, others by the widths of their characters, and so
on a screen that is narrower than typer knows."""

from collections.abc import Sequence
from typing import Any

from memplan.lang import ENGLISH, Name, language, said

NARROW = 79
"""Up to this width click spills: names of options, titles of sections, and everything below 50."""


class SaidHelp:
    """For commands and their group: usage and text in the language that is spoken."""

    def get_help(self, ctx: Any) -> str:
        """All of it, no wider than the screen."""
        from memplan.render.text import screen_width

        if (width := screen_width()) <= NARROW:
            ctx.terminal_width = width
        return str(super().get_help(ctx))  # type: ignore[misc]

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """The line of usage."""
        pieces = self.collect_usage_pieces(ctx)  # type: ignore[attr-defined]
        mark = said("Usage:")
        prefix = f"{mark} " if mark.isascii() else mark
        if not _is_plain(formatter):
            from memplan.render.blocks import Prose

            _write(formatter, [Prose(f"{prefix}{ctx.command_path} {' '.join(map(said, pieces))}", indent=0)])
            return
        formatter.write_usage(ctx.command_path, " ".join(map(said, pieces)), prefix)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What the command is for."""
        if _is_plain(formatter):
            super().format_help_text(ctx, formatter)  # type: ignore[misc]
            return
        from memplan.render.blocks import Prose

        for paragraph in (self.help or "").strip().split("\n\n"):  # type: ignore[attr-defined]
            formatter.write_paragraph()
            _write(formatter, [Prose(" ".join(paragraph.split()))])


def write_rows(formatter: Any, title: str, rows: Sequence[tuple[str, str]], col_max: int = 30) -> None:
    """A section of names and what they are."""
    if _is_plain(formatter):
        with formatter.section(title):
            formatter.write_dl(list(rows), col_max=col_max)
        return
    from memplan.render.blocks import Heading, definitions

    formatter.write_paragraph()
    _write(formatter, [Heading(f"{title}:"), definitions([(Name(name), text) for name, text in rows])])


def _is_plain(formatter: Any) -> bool:
    return language() == ENGLISH and formatter.width >= NARROW - 2


def _write(formatter: Any, blocks: Sequence[Any]) -> None:
    from memplan.render.layout import lines

    for line in lines(blocks, formatter.width):
        formatter.write("".join(span.text for span in line) + "\n")
