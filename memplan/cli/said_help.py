"""Help in the language that is spoken: English as typer lays it out, others by the widths of their characters."""

from collections.abc import Sequence
from typing import Any

from memplan.lang import ENGLISH, language, said


class SaidHelp:
    """For commands and their group: usage and text in the language that is spoken."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """The line of usage."""
        pieces = self.collect_usage_pieces(ctx)  # type: ignore[attr-defined]
        mark = said("Usage:")
        prefix = f"{mark} " if mark.isascii() else mark
        formatter.write_usage(ctx.command_path, " ".join(map(said, pieces)), prefix)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """What the command is for."""
        if language() == ENGLISH:
            super().format_help_text(ctx, formatter)  # type: ignore[misc]
            return
        from memplan.render.blocks import Prose

        for paragraph in (self.help or "").strip().split("\n\n"):  # type: ignore[attr-defined]
            formatter.write_paragraph()
            _write(formatter, [Prose(" ".join(paragraph.split()))])


def write_rows(formatter: Any, title: str, rows: Sequence[tuple[str, str]], col_max: int = 30) -> None:
    """A section of names and what they are."""
    if language() == ENGLISH:
        with formatter.section(title):
            formatter.write_dl(list(rows), col_max=col_max)
        return
    from memplan.lang import Name
    from memplan.render.blocks import Heading, definitions

    formatter.write_paragraph()
    _write(formatter, [Heading(f"{title}:"), definitions([(Name(name), text) for name, text in rows])])


def _write(formatter: Any, blocks: Sequence[Any]) -> None:
    from memplan.render.layout import lines

    for line in lines(blocks, formatter.width):
        formatter.write("".join(span.text for span in line) + "\n")
