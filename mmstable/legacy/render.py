"""Write a config as formatted Python, whole or on top of its bases."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from mmstable.legacy.draft import Translation

_WIDTH = 79
_LONGEST_COMMENT = 4000
_PLAIN = (str, bytes, bool, int, float, complex, range, type(None))


def render(
    translation: Translation,
    title: str,
    bases: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a config file.

    Args:
        translation (Translation): The translated config.
        title (str): Name of the old config.
        bases (Sequence[str]): Config files to inherit from.
            Defaults to ().
        settings (Mapping, optional): Settings to write on top of ``bases``;
            None for all. Defaults to None.
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
        lines = ['No mmengine equivalent, ignored:', *map(str, left)]
        blocks.append('\n'.join(map(comment, lines)))
    return '\n\n'.join(blocks) + '\n'


def render_setting(key: str, value: Any) -> str:
    """Return an assignment, wrapped as the formatter would."""
    if not _is_name(key):
        why = _('{key!r} cannot be a key of a Python config.', key=key)
        raise UsageError(why)
    return f'{key} = {_render(value, key, len(key) + 3, 0)}'


def _render(value: Any, path: str, column: int, depth: int) -> str:
    """Return a value that starts at a column of a line of this depth."""
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
    """Return a value as a single line; the path is for errors."""
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
    """Return the prefix, the value and the path of each item."""
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
    why = N_('{path}: {value!r} cannot be written into a config file.')
    raise UsageError(_(why, path=path, value=value))


def _literal(value: Any) -> str:
    # mmengine substitutes `{{ ... }}` when it reads the file.
    return repr(value).replace('{{', '{\\x7b')


def _all_names(value: Mapping[Any, Any]) -> bool:
    return all(map(_is_name, value))


def _is_name(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier() and not iskeyword(key)


def comment(text: str) -> str:
    """Return a text as lines of comment."""
    return textwrap.fill(
        printable(text, _LONGEST_COMMENT).replace('{{', '{ {'),
        _WIDTH,
        initial_indent='# ',
        subsequent_indent='# ',
        break_long_words=False,
        break_on_hyphens=False,
    )


def difference(
    base: Mapping[str, Any], wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the smallest dict that mmengine has to merge into ``base``.

    Args:
        base (Mapping): The inherited config.
        wanted (Mapping): The result. Top-level keys of ``base`` must be in
            it: a config cannot remove them.
    """
    return {
        key: _change(base[key], value) if key in base else value
        for key, value in wanted.items()
        # By repr: a list is not equal to a tuple, and 1 not to True.
        if key not in base or repr(base[key]) != repr(value)
    }


def _change(before: Any, after: Any) -> Any:
    if not isinstance(after, Mapping):
        return after
    if not isinstance(before, Mapping) or set(before) - set(after):
        # mmengine merges dicts without this key.
        return {'_delete_': True, **after}
    return difference(before, after)
