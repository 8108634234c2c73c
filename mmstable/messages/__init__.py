"""Messages in the language of the run, with foreign text escaped.

English stands in the code where it is logged, as in
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
import reprlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from mmstable.errors import ConfigError
from mmstable.messages.secrets import MASK

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def printable(text: object, limit: int = 500) -> str:
    """Escape a text to one line that is safe to print and to log.

    Characters that Python does not call printable are escaped as by ``repr``:
    control characters, terminal codes, line separators, characters that turn
    the direction of writing, lone surrogates.

    Args:
        text (object): The text, or anything that has one.
        limit (int): Characters to show; the rest is counted.
            Defaults to 500.
    """
    whole = str(text)
    shown = whole[:limit]
    if not shown.isprintable():
        shown = ''.join(map(_escape, shown))
    if len(whole) > limit:
        shown += f'... ({len(whole) - limit} more characters)'
    return shown


def short_repr(value: object) -> str:
    """Return ``repr`` of a value, shortened if it is long or deep.

    Args:
        value (object): Numbers, strings, lists, dicts and the like.
    """
    return printable(_SHORT.repr(value))


def _escape(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


LANGUAGES = ('en', 'zh_cn')
VARIABLE = 'MMSTABLE_LANG'
PO_FILE = Path(__file__).parents[1] / 'locale/zh_CN/LC_MESSAGES/mmstable.po'

# Characters of a field, which may be a message itself.
_LONGEST = 4000

# By the command line, which wins over the hooks of a run.
_preferred: str | None = None
_chosen: str | None = None
# For a part of one thread only.
_borrowed: ContextVar[str | None] = ContextVar('language', default=None)


def _(message: str, /, **fields: Any) -> str:
    """Translate a message and fill it in.

    Fields may hold foreign text: they are escaped and shortened.

    Besides the format specs of ``str.format`` there are two more:
    ``{n:step|steps}`` is a count with its noun, '1 step' or '3 steps'; and a
    list is joined, by its spec if it has one: ``{names}``, ``{reasons:; }``.

    Args:
        message (str): The English template; without a translation it is
            used in every language.
        **fields: Values for the template.
    """
    lang = language()
    template = message if lang == 'en' else read_po().get(message, message)
    text = _FORMATTERS[lang].vformat(template, (), fields)
    if MASK in str(fields.get('command', '')):
        text += _(
            ' Replace {mask} by the values of the secrets first.',
            mask=MASK,
        )
    return text


# Marks a message of a table or a constant, which ``_`` gets later. Hundreds of
# them are marked while modules are imported: a built-in costs least.
N_ = str


@cache
def read_po(path: Path = PO_FILE) -> dict[str, str]:
    """Read the translations by their English.

    A ``.po`` file is read as it is: it takes a few milliseconds, and there is
    no compiled one that could be out of date.

    Args:
        path (Path): The file. Defaults to PO_FILE.
    """
    # A string may continue in the next line.
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


_FORMATTERS = {'en': _Formatter(', '), 'zh_cn': _Formatter('、')}


def choose_language(hooks: Iterable[object]) -> None:
    """Use the language that one of the hooks of a run sets.

    Without such a hook the environment decides. Every run chooses again, so
    that it does not inherit the language of an earlier run.

    Args:
        hooks (Iterable): Those of the run, or their configs. The first that
            has a ``lang`` decides.
    """
    asked = (getattr(hook, 'lang', None) for hook in hooks)
    # A config may name a language that its hook is going to refuse.
    use_language(next((lang for lang in asked if lang in LANGUAGES), None))


def prefer_language(lang: str | None) -> None:
    """Use this language, even if hooks of a run set another.

    Args:
        lang (str, optional): One of :data:`LANGUAGES`; None to let them
            choose.
    """
    global _preferred  # noqa: PLW0603
    _preferred = lang
    use_language(None)


def use_language(lang: str | None) -> None:
    """Use this language from now on.

    Args:
        lang (str, optional): One of :data:`LANGUAGES`; None for that of the
            environment. That of the command line wins over it.
    """
    global _chosen  # noqa: PLW0603
    # Errors of the environment variable are in this language.
    _chosen = LANGUAGES[0]
    _chosen = _preferred or lang or _of_environment()


@contextmanager
def speaking(lang: str) -> Iterator[None]:
    """Use another language in a context, in this thread only.

    Args:
        lang (str): One of :data:`LANGUAGES`.
    """
    token = _borrowed.set(lang)
    try:
        yield
    finally:
        _borrowed.reset(token)


def language() -> str:
    """Return the current language."""
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


_UNITS = ('B', 'KiB', 'MiB', 'GiB', 'TiB')
_FACTORS = {'': 1, 'B': 1}
for _power, _letter in enumerate('KMGT', 1):
    _FACTORS[_letter] = _FACTORS[f'{_letter}IB'] = 1024**_power
    _FACTORS[f'{_letter}B'] = 1000**_power
_SIZE = re.compile(r'\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*')


def readable(size: float) -> str:
    """Format a number of bytes, such as '1.5 GiB'.

    Args:
        size (float): Bytes.
    """
    power = 0
    while abs(size) >= 1024 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f'{size:.1f} {_UNITS[power]}' if power else f'{size:.0f} B'


def parse_size(text: str) -> int:
    """Parse the bytes of a size like '24GiB', '512 MiB' or '80GB'.

    A single letter is a power of 1024, as in '24G'.

    Args:
        text (str): The size.
    """
    found = _SIZE.fullmatch(text)
    unit = None if found is None else _FACTORS.get(found[2].upper())
    size = 0 if found is None or unit is None else int(float(found[1]) * unit)
    if size < 1:
        raise ValueError(
            _(
                'a size must be a number above 0 with a unit, such as '
                "'24GiB', got {text}",
                text=repr(text),
            )
        )
    return size


def readable_time(seconds: float) -> str:
    """Format a duration, such as '47 min' or '3.2 h'."""
    if seconds < 90:
        return f'{seconds:.0f} s'
    if seconds < 90 * 60:
        return f'{seconds / 60:.0f} min'
    if seconds < 48 * 3600:
        return f'{seconds / 3600:.1f} h'
    return f'{seconds / 86400:.1f} d'


class RateLimit:
    """At most so many lines in so many iterations.

    Args:
        most (int): How many lines.
        per (int): In how many iterations.
    """

    def __init__(self, most: int, per: int) -> None:
        self._per = per
        self._printed: deque[int] = deque(maxlen=most)
        self._unprinted: list[int] = []

    def allows(self, iteration: int) -> bool:
        """Whether a line may be printed; if not, it is counted."""
        full = len(self._printed) == self._printed.maxlen
        if full and iteration - self._printed[0] < self._per:
            self._unprinted.append(iteration)
            return False
        self._printed.append(iteration)
        return True

    def take_unprinted(self) -> tuple[int, int, int] | None:
        """Lines not printed since the last call: count, first, last."""
        if not self._unprinted:
            return None
        facts = len(self._unprinted), self._unprinted[0], self._unprinted[-1]
        self._unprinted = []
        return facts
