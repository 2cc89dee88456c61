"""How a command is made: its parameters, its help in sections; and the group, which makes only what is asked for."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from memplan import __version__
from memplan.cli.parameters import Parameter, parameters_of
from memplan.cli.said_help import SaidHelp, write_rows
from memplan.errors import UsageError, did_you_mean, nearest
from memplan.tables.texts import texts_by_name

COMMANDS = texts_by_name(__file__)
"""Every command with its line in the help; each is a module of memplan.cli with a function of that name."""

VERSION_HELP = "Print the version and exit."
OPTIONS = (
    ("--version", VERSION_HELP),
    ("--lang NAME", "Language of what is said: en, zh. [default: the locale's]"),
    ("-h, --help", "Show this message and exit."),
)
HELP_WORDS = ("-h", "--help", "--help-all")
GROUP_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


HELP = """What will a training job use on each GPU, will it fit, and what should I change?

Start with: memplan estimate llama-3.1-8b --method simpo --gpu h100-80gb
"""


class Group(SaidHelp, TyperGroup):
    """Makes a command when it is asked for: the options of the others cost nothing."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave --version and --help aside where a command comes first: typer would build validators for them."""
        print_help_where_asked(ctx, args[:1])
        if args and args[0] in COMMANDS:
            self.params, self.add_help_option = [], False
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name. Raises UsageError, naming the nearest, for a word that is none."""
        name = cmd_name.lower()
        if name not in COMMANDS:
            raise UsageError(f"no such command: {cmd_name!r}", _instead(cmd_name))
        return make(name, ctx.meta.pop("arguments", None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of the first word, with the options that the others name, and these with flags made plain."""
        given = ctx.meta["arguments"] = args[1:]
        found = super().resolve_command(ctx, args)
        return *found[:2], given

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """What goes with every command, then the commands."""
        write_rows(formatter, "Options", OPTIONS)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The table itself, without making a command of each line."""
        write_rows(formatter, "Commands", list(COMMANDS.items()))


def help_words(args: Sequence[str]) -> list[str]:
    """The words before ``--`` that ask for help."""
    return [word for word in args[: args.index("--") if "--" in args else None] if word in HELP_WORDS]


def print_help_where_asked(ctx: Any, args: Sequence[str]) -> None:
    """Print the help and leave, where a word before ``--`` asks for it; typer would print it past a full disk."""
    asked = help_words(args)
    if asked:
        from memplan.cli.output import print_text

        ctx.meta["everything"] = "--help-all" in asked
        print_text(ctx.get_help() + "\n")
        raise typer.Exit


def _instead(word: str) -> str:
    """What to type instead of a word that is no command: perhaps it was meant as the model."""
    if word.lower() == "help":
        return "memplan --help, or memplan COMMAND --help"
    if not nearest(word, COMMANDS):
        from memplan.presets import has_model

        if "/" in word or has_model(word):
            return f"to estimate a model: memplan estimate {word}"
    return did_you_mean(word, COMMANDS)


class Command(SaidHelp, TyperCommand):
    """A command that shows its options in sections."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help where it is asked for; an error says which command it is of."""
        print_help_where_asked(ctx, args)
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # the parser does not always say which command it was
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments first, then every section that has an option to show."""
        from memplan.cli.helps import write_options  # reads docstrings from the source: only when somebody asks

        write_options(formatter, self.params, ctx.meta.get("everything", False))


def whole_command() -> Any:
    """``memplan`` itself. No completion scripts: detecting the shell would cost every start an import."""
    app = typer.Typer(
        cls=Group, add_completion=False, rich_markup_mode=None, context_settings=GROUP_SETTINGS, help=HELP
    )
    app.callback(invoke_without_command=True)(help_alone)
    return typer.main.get_command(app)


def print_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from memplan.cli.output import print_text

        print_text(f"memplan {__version__}\n")
        raise typer.Exit


VERSION = typer.Option("--version", is_eager=True, callback=print_version, help=VERSION_HELP)
"""Eager, so that it ends the program before typer looks at anything else."""


def help_alone(ctx: typer.Context, version: Annotated[bool, VERSION] = False) -> None:
    """Print the help where no command is given."""
    if ctx.invoked_subcommand is None:
        print_help_where_asked(ctx, HELP_WORDS[:1])


def make(name: str, arguments: list[str] | None = None) -> Any:
    """The command of this name, made by typer of its function and its parameters: all of them for help, else those
    that the arguments name, whose flags with values become plain in place."""
    from memplan.cli.flags import given_only, plain_flags, spelling

    module = import_module(f"memplan.cli.{name}")
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    parameters = parameters_of(name, _keys)
    shows_help = arguments is None or bool(help_words(arguments))
    if arguments is not None and not shows_help:
        arguments[:] = plain_flags(arguments, parameters, spelling)
        parameters = given_only(parameters, arguments, spelling)
    function = with_signature(getattr(module, name), parameters)
    settings = GROUP_SETTINGS | {"token_normalize_func": spelling}
    app.command(name=name, cls=Command, context_settings=settings, help=module.HELP, add_help_option=shows_help)(
        function
    )
    command: Any = typer.main.get_command(app)
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    for each in command.params:
        if kinds.get(each.name) in (str, list[str]):
            each.get_runtime_param = Words
    return command


def _keys() -> list[Parameter]:
    """The options that are keys of a job."""
    from memplan.cli.options import job_options

    return [Parameter(of.parameter, str if of.metavar else bool, of.written, of.metavar) for of in job_options()]


class Words:
    """What typer makes of words: words. It would build a validator of Pydantic's for it, a fifth of a start."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The words as they are; none of several are an empty tuple, as typer has it."""
        return () if value is None and (param.multiple or param.nargs == -1) else value


def with_signature(function: Callable[..., int], parameters: Sequence[Parameter]) -> Callable[..., int]:
    """The function with a signature for typer to read: its parameters are made from tables, not written by hand."""

    def command(**values: Any) -> int:
        return function(values)

    command.__signature__ = inspect.Signature([each.made() for each in parameters])  # type: ignore[attr-defined]
    return command
