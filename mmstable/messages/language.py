"""Which language does this run speak?

A hook's ``lang`` decides, or else the environment variable ``MMSTABLE_LANG``,
or else it is English. It is chosen once, at the start of a run, for all that
the run prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from mmstable.errors import ConfigError
from mmstable.messages.message import Message
from mmstable.settings import one_of

LANGUAGES = Message._fields
VARIABLE = 'MMSTABLE_LANG'

_chosen: str | None = None


def check_language(owner: str, lang: str | None) -> str | None:
    """Check the argument ``lang`` of a hook."""
    return None if lang is None else one_of(owner, 'lang', lang, LANGUAGES)


def choose_language(hooks: Iterable[object]) -> None:
    """Speak the language that one of the hooks of a run asks for.

    Without such a hook it is that of the environment. Every run chooses
    anew, so that none inherits the language of the one before it.

    Args:
        hooks (Iterable): Those of the run. The first that has a ``lang``
            decides.
    """
    asked = (getattr(hook, 'lang', None) for hook in hooks)
    use_language(next(filter(None, asked), None))


def use_language(lang: str | None) -> None:
    """Speak this language from now on.

    Args:
        lang (str, optional): One of :data:`LANGUAGES`; None for that of the
            environment.
    """
    global _chosen  # noqa: PLW0603
    _chosen = _of_environment() if lang is None else lang


def language() -> str:
    """The language to speak now."""
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
