"""Conversations as the text that a model sees: the tokenizer's own template where it can be rendered."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from memplan.errors import UsageError

Messages: TypeAlias = list[dict[str, Any]]
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "observation": "tool"}
"""ShareGPT's names of roles."""
MOST_WRITTEN = 64 << 20
"""Characters that a template makes of a row."""
MARKS_PER_MESSAGE = 5
"""Tokens for the marks around a message without a template: ChatML's start, role, newline, end, newline."""


class Chat(NamedTuple):
    """How a conversation becomes text."""

    render: Callable[[Messages, bool], str]
    """Messages, and whether the mark follows that begins an answer."""
    marks: int = 0
    """Tokens to add for every message that is in no text."""
    words: str = ""


def messages_of(value: Any, where: str, answers: str = "assistant") -> Messages:
    """A conversation in role and content; text alone is one message. Raises UsageError for what is none."""
    if isinstance(value, str):
        return [{"role": answers, "content": value}]
    if not isinstance(value, Sequence) or not all(isinstance(each, Mapping) for each in value):
        raise UsageError(f"{where}: {str(value)[:60]!r} is no conversation", "see --columns")
    return [_message(each) for each in value]


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    role = str(given.get("role", given.get("from", "user")))
    content = given.get("content", given.get("value"))
    kept = {key: value for key, value in given.items() if key not in ("from", "value")}
    return kept | {"role": ROLES.get(role, role), "content": text_of(content)}


def text_of(content: Any) -> str:
    """The text of a content: itself, or the text of its parts, without images."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    return json.dumps(content, ensure_ascii=False)


def plain_chat(why: str) -> Chat:
    """The contents alone, with an allowance for the marks around each message."""
    words = f"{why}: {MARKS_PER_MESSAGE} tokens are added to each message for its marks"
    return Chat(lambda messages, _: "\n".join(each["content"] for each in messages), MARKS_PER_MESSAGE, words)


def templated_chat(template: str, tokens: Mapping[str, str]) -> Chat | None:
    """The template as transformers renders it (5.0, utils/chat_template_utils.py: _compile_jinja_template): in a
    sandbox that reads nothing and changes nothing. None without jinja2. Raises UsageError for a template that fails."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime(2026, 1, 1).strftime(form)
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise UsageError(f"the chat template cannot be read: {str(error)[:200]}", "give --no-template") from None

    def render(messages: Messages, answering: bool) -> str:
        try:
            pieces = compiled.generate(messages=messages, add_generation_prompt=answering, tools=None, **tokens)
            return "".join(_bounded(pieces))
        except Exception as error:
            raise UsageError(f"the chat template refuses a row: {str(error)[:200]}", "give --no-template") from None

    return Chat(render)


def _bounded(pieces: Iterable[str]) -> Iterator[str]:
    """A template may write more than anyone reads."""
    written = 0
    for piece in pieces:
        written += len(piece)
        if written > MOST_WRITTEN:
            raise ValueError(f"it makes more than {MOST_WRITTEN >> 20} MiB of it")
        yield piece


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
