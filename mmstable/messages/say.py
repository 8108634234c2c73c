"""Fill in a message."""

from __future__ import annotations

from string import Formatter
from typing import Any

from mmstable.messages.catalogue import CATALOGUE
from mmstable.messages.language import language
from mmstable.messages.printable import printable

# Characters of a field, which may be a message itself.
_LONGEST = 4000
_SEPARATORS = {'en': ', ', 'zh_cn': '、'}


def say(key: str, /, **fields: Any) -> str:
    """The text of a message, in the language of this run.

    Fields may hold what others wrote: they are escaped and shortened.

    Args:
        key (str): The message's key in the catalogue.
        **fields: What its templates name.
    """
    lang = language()
    template = getattr(CATALOGUE[key], lang)
    return _Formatter(_SEPARATORS[lang]).vformat(template, (), fields)


class _Formatter(Formatter):
    """Knows counts and lists, see :class:`Message`."""

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
