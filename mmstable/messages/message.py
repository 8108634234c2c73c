"""One message in all languages."""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """Templates as of ``str.format``, all with the same fields.

    Besides the usual format specs there are two more: ``{n:step|steps}`` is
    a count with its noun, '1 step' or '3 steps'; and a list is joined, by
    what its spec says if it has one: ``{names}``, ``{reasons:; }``.

    Args:
        en (str): English.
        zh_cn (str): Chinese.
    """

    en: str
    zh_cn: str
