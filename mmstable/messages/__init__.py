"""What a user reads, in the language of the run.

English stands in the code where it is said, as in
``_('Rank {rank} hangs in {phase}', rank=rank, phase=phase)``. The
Chinese is in ``locale/zh_CN/LC_MESSAGES/mmstable.po``.

The option ``--lang`` of the command line decides which it is, or else a hook's
``lang``, or else the environment variable ``MMSTABLE_LANG``, or else it is
English. It is chosen once, at the start of a run, for all that the run prints.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from mmstable.errors import ConfigError
from mmstable.messages.printable import printable
from mmstable.messages.secrets import MASK

LANGUAGES = ('en', 'zh_cn')
VARIABLE = 'MMSTABLE_LANG'
PO_FILE = Path(__file__).parents[1] / 'locale/zh_CN/LC_MESSAGES/mmstable.po'

# Characters of a field, which may be a message itself.
_LONGEST = 4000
_SEPARATORS = {'en': ', ', 'zh_cn': '、'}

# By the command line, which wins over the hooks of a run.
_preferred: str | None = None
_chosen: str | None = None
# For a part of one thread only.
_borrowed: ContextVar[str | None] = ContextVar('language', default=None)


def _(message: str, /, **fields: Any) -> str:
    """Translate a message and fill it in.

    Fields may hold what others wrote: they are escaped and shortened.

    Besides the format specs of ``str.format`` there are two more:
    ``{n:step|steps}`` is a count with its noun, '1 step' or '3 steps'; and a
    list is joined, by what its spec says if it has one: ``{names}``,
    ``{reasons:; }``.

    Args:
        message (str): The English template; without a translation it is
            used in every language.
        **fields: What the template names.
    """
    lang = language()
    template = message if lang == 'en' else read_po().get(message, message)
    text = _Formatter(_SEPARATORS[lang]).vformat(template, (), fields)
    if MASK in str(fields.get('command', '')):
        text += _(
            ' Before you use it, put the values of the secrets in the place '
            'of {mask}.',
            mask=MASK,
        )
    return text


def N_(message: str) -> str:
    """Mark a message of a table or a constant, which ``_`` gets later."""
    return message


@cache
def read_po(path: Path = PO_FILE) -> dict[str, str]:
    """Translations by their English.

    A ``.po`` file is read as it is: it takes a few milliseconds, and there is
    no compiled one that could be out of date.

    Args:
        path (Path): The file. Defaults to PO_FILE.
    """
    # A string may go on in the next line.
    content = path.read_text(encoding='utf-8').replace('"\n"', '')
    # The head of the file is the entry of '', and a missing one is ''.
    pairs = re.findall(r'^msgid (".+")\nmsgstr (".+")$', content, re.M)
    # Strings are escaped as in JSON.
    return {json.loads(en): json.loads(other) for en, other in pairs}


class _Formatter(Formatter):
    def __init__(self, separator: str) -> None:
        self._separator = separator

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, (list, tuple)):
            items = [printable(item, _LONGEST) for item in value]
            return (format_spec or self._separator).join(items)
        if '|' in format_spec:
            one, several = format_spec.split('|')
            return f'{value} {one if value == 1 else several}'
        text = super().format_field(value, format_spec)
        return printable(text, _LONGEST)


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
