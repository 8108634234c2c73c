"""Format the text of a config once in a process; importing this begins it.

mmengine formats it several times a run, which takes longer than a short run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mmengine.config import config

_format_code = config.FormatCode


@cache
def _formatted(text: str, *settings: tuple[tuple[str, Any], ...]) -> Any:
    style, others = map(dict, settings)
    return _format_code(text, style_config=style, **others)


def _format_once(
    text: str, style_config: dict[str, Any], **others: Any
) -> Any:
    return _formatted(text, (*style_config.items(),), (*others.items(),))


config.FormatCode = _format_once
