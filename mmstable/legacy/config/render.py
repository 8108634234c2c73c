"""Write a translated config as Python that is nice to read."""

from __future__ import annotations

import keyword
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.legacy.config.translation import Translation
from mmstable.messages import _
from mmstable.messages.printable import printable

_WIDTH = 79
_LONGEST_COMMENT = 4000
_PLAIN = (str, bytes, bool, int, float, complex, range, type(None))


def render(
    translation: Translation,
    title: str,
    bases: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> str:
    """The text of a config file.

    Args:
        translation (Translation): What to write.
        title (str): What to call the old config.
        bases (Sequence[str]): Config files to inherit from.
            Defaults to ().
        settings (Mapping, optional): What to write below ``bases``; None for
            everything. Defaults to None.
    """
    if settings is None:
        settings = translation.settings
    blocks = [
        comment(f'Translated from {title} (mmcv 1.x) by `mmstable upgrade`.')
    ]
    if bases:
        blocks[0] += f'\n{render_setting("_base_", list(bases))}'
    for key, value in settings.items():
        origin = ', '.join(translation.origins.get(key, ()))
        about = f'{comment(f"From {origin}.")}\n' if origin else ''
        blocks.append(about + render_setting(key, value))
    left = translation.of_severity(Severity.WARNING, Severity.ERROR)
    if left:
        lines = [comment(str(one)) for one in left]
        blocks.append(
            '\n'.join([comment('Without counterpart in mmengine:'), *lines])
        )
    return '\n\n'.join(blocks) + '\n'


def render_setting(key: str, value: Any) -> str:
    """One assignment, on as many lines as it takes."""
    if not _is_name(key):
        raise UsageError(
            _('{key!r} cannot be a key of a Python config.', key=key)
        )
    return f'{key} = {_render(value, key, len(key) + 3, 0)}'


def _render(value: Any, path: str, column: int, depth: int) -> str:
    """A value that starts at a column of a line of this depth."""
    line = one_line(value, path)
    # The comma behind it has to fit as well.
    if column + len(line) + (depth > 0) <= _WIDTH or not _is_nested(value):
        return line
    inner = '    ' * (depth + 1)
    opening, closing = _brackets(value)
    lines = [
        f'{inner}{prefix}'
        f'{_render(one, where, len(inner) + len(prefix), depth + 1)},'
        for prefix, one, where in _items(value, path)
    ]
    return '\n'.join([opening, *lines, '    ' * depth + closing])


def one_line(value: Any, path: str) -> str:
    """A value as a single line; the path is for errors."""
    if not _is_nested(value):
        return _leaf(value, path)
    opening, closing = _brackets(value)
    parts = [
        prefix + one_line(one, where)
        for prefix, one, where in _items(value, path)
    ]
    comma = ',' if isinstance(value, tuple) and len(parts) == 1 else ''
    return f'{opening}{", ".join(parts)}{comma}{closing}'


def _is_nested(value: Any) -> bool:
    return isinstance(value, (Mapping, list, tuple)) and len(value) > 0


def _brackets(value: Any) -> tuple[str, str]:
    if isinstance(value, Mapping):
        return ('dict(', ')') if _all_names(value) else ('{', '}')
    return ('(', ')') if isinstance(value, tuple) else ('[', ']')


def _items(value: Any, path: str) -> list[tuple[str, Any, str]]:
    """What stands before each item, the item, and where it is."""
    if not isinstance(value, Mapping):
        return [('', one, f'{path}[{n}]') for n, one in enumerate(value)]
    named = _all_names(value)
    return [
        (f'{key}=' if named else f'{_literal(key)}: ', one, f'{path}.{key}')
        for key, one in value.items()
    ]


def _leaf(value: Any, path: str) -> str:
    if isinstance(value, Mapping):
        return 'dict()'
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, (*_PLAIN, list, tuple)):
        return _literal(value)
    raise UsageError(
        _(
            '{path}: {value!r} cannot be written into a config file.',
            path=path,
            value=value,
        )
    )


def _literal(value: Any) -> str:
    # mmengine would replace `{{ ... }}` in the text of the new file.
    return repr(value).replace('{{', '{\\x7b')


def _all_names(value: Mapping[Any, Any]) -> bool:
    return all(map(_is_name, value))


def _is_name(key: Any) -> bool:
    return (
        isinstance(key, str)
        and key.isidentifier()
        and not keyword.iskeyword(key)
    )


def comment(text: str) -> str:
    """A text as lines of comment."""
    return textwrap.fill(
        printable(text, _LONGEST_COMMENT).replace('{{', '{ {'),
        _WIDTH,
        initial_indent='# ',
        subsequent_indent='# ',
        break_long_words=False,
        break_on_hyphens=False,
    )
