"""Which language does this run speak?

The option ``--lang`` of the command line decides, or else a hook's ``lang``,
or else the environment variable ``MMSTABLE_LANG``, or else it is English. It
is chosen once, at the start of a run, for all that the run prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mmstable.errors import ConfigError
from mmstable.messages.message import Message

LANGUAGES = Message._fields
VARIABLE = 'MMSTABLE_LANG'

# By the command line, which wins over the hooks of a run.
_preferred: str | None = None
_chosen: str | None = None
# For a part of one thread only.
_borrowed: ContextVar[str | None] = ContextVar('language', default=None)


def choose_language(hooks: Iterable[object]) -> None:
    """Speak the language that one of the hooks of a run asks for.

    Without such a hook it is that of the environment. Every run chooses
    anew, so that none inherits the language of the one before it.

    Args:
        hooks (Iterable): Those of the run, or their configs. The first that
            has a ``lang`` decides.
    """
    asked = (getattr(hook, 'lang', None) for hook in hooks)
    # A config may name a language that its hook is going to refuse.
    use_language(next((lang for lang in asked if lang in LANGUAGES), None))


def prefer_language(lang: str | None) -> None:
    """Speak this language whatever the hooks of a run ask for.

    Args:
        lang (str, optional): One of :data:`LANGUAGES`; None to let them
            choose.
    """
    global _preferred  # noqa: PLW0603
    _preferred = lang
    use_language(None)


def use_language(lang: str | None) -> None:
    """Speak this language from now on.

    Args:
        lang (str, optional): One of :data:`LANGUAGES`; None for that of the
            environment. That of the command line wins over it.
    """
    global _chosen  # noqa: PLW0603
    # What is wrong with the environment must be said in some language.
    _chosen = LANGUAGES[0]
    _chosen = _preferred or lang or _of_environment()


@contextmanager
def speaking(lang: str) -> Iterator[None]:
    """Speak another language for a while; other threads do not notice.

    Args:
        lang (str): One of :data:`LANGUAGES`.
    """
    token = _borrowed.set(lang)
    try:
        yield
    finally:
        _borrowed.reset(token)


def language() -> str:
    """The language to speak now."""
    borrowed = _borrowed.get()
    if borrowed is not None:
        return borrowed
    return _of_environment() if _chosen is None else _chosen


def _of_environment() -> str:
    lang = os.environ.get(VARIABLE) or LANGUAGES[0]
    # As locales are written, too: zh-CN.
    name = lang.lower().replace('-', '_')
    if name not in LANGUAGES:
        raise ConfigError(
            f'the environment variable {VARIABLE} must be one of '
            f'{", ".join(LANGUAGES)}, got {lang!r}.'
        )
    return name
