"""Keep the config text in a checkpoint only as far as it is data.

mmengine's ``Inferencer`` runs this text as Python. A genuine text is what
``Config.pretty_text`` writes: names that are given plain values.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any

from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import print_log
from mmengine.registry import Registry, root

from mmstable.messages import _

_MAX_CHARS, _MAX_DEPTH = 1 << 20, 40
# What mmengine looks up in a registry, and where.
_TYPE_KEYS = ('type', 'constructor', 'runner_type')
_SCOPE_KEYS = ('_scope_', 'default_scope')
_F_STRING = re.compile(r"""\b[rR]?[fF][rR]?["']""")


def drop_foreign_configs(sections: Iterable[dict[str, Any]]) -> None:
    """Remove config texts that would run code or import modules.

    Args:
        sections (Iterable[dict]): Parts of a checkpoint that may have a
            config text, changed in place.
    """
    notes: set[str] = set()
    for section in sections:
        if 'cfg' not in section:
            continue
        text = plain_config(section['cfg'])
        if text is None:
            del section['cfg']
            notes.add(
                _(
                    'the config text in the checkpoint is left out: it is '
                    'more than plain values, or names what mmengine would '
                    'import, and mmengine would run it. If you need a '
                    'config, pass it yourself'
                )
            )
        elif text != section['cfg']:
            section['cfg'] = text
            notes.add(
                _(
                    '`custom_imports` is left out of the config text in the '
                    'checkpoint: mmengine would import what it names. Import '
                    'these modules yourself before you load it'
                )
            )
    for note in notes:
        print_log(note, logger='current', level=logging.WARNING)


def plain_config(text: Any) -> str | None:
    """Return a config text as far as it is data; None if it is more.

    An assignment of ``custom_imports`` is left out, unless all modules in it
    are imported already: mmengine would import them.
    """
    values = config_values(text)
    if values is None:
        return None
    if not _would_import(values.get('custom_imports')):
        return text
    tree = ast.parse(text)
    tree.body = [
        one
        for one in tree.body
        if one.targets[0].id != 'custom_imports'  # type: ignore[attr-defined]
    ]
    return ast.unparse(tree)


def config_values(text: Any) -> dict[str, Any] | None:
    """Return the values in a config text; None if it is more than data."""
    if type(text) is not str or len(text) > _MAX_CHARS:
        return None
    # mmengine replaces what is in double braces before it reads the text,
    # which can turn a string into code; so can a comment on the encoding.
    # f-strings are never dumped, and slow to parse.
    first_lines = text.split('\n', 2)[:2]
    if (
        '{{' in text
        or any(one.lstrip().startswith('#') for one in first_lines)
        or _F_STRING.search(text)
    ):
        return None
    values: dict[str, Any] = {}
    try:
        for one in ast.parse(text).body:
            target = one.targets[0] if isinstance(one, ast.Assign) else None
            if not isinstance(target, ast.Name) or len(one.targets) != 1:  # type: ignore[attr-defined]
                return None
            values[target.id] = ast.literal_eval(
                _Displays().visit(one.value)  # type: ignore[attr-defined]
            )
        # mmengine would run the files that `_base_` names.
        if any(name == '_base_' or name[:2] == '__' for name in values):
            return None
        return values if _is_plain(None, values, _MAX_DEPTH) else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _Displays(ast.NodeTransformer):
    """Turns ``dict(a=1)`` into ``{'a': 1}``, which is a literal."""

    def visit_Call(self, node: ast.Call) -> ast.Dict:
        """Also of ``dict({'a key': 1})``, where keys are no names."""
        self.generic_visit(node)
        keys: list[Any] = []
        values = []
        for argument in node.args[:1]:
            if isinstance(argument, ast.Dict):
                keys += argument.keys
                values += argument.values
        is_dict = isinstance(node.func, ast.Name) and node.func.id == 'dict'
        if not is_dict or len(node.args) > 1 or len(keys) < len(node.args):
            raise ValueError('a call')
        for one in node.keywords:
            keys.append(None if one.arg is None else ast.Constant(one.arg))
            values.append(one.value)
        return ast.Dict(keys, values)


def _is_plain(key: Any, value: Any, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, dict):
        return _is_plain(None, list(value), depth) and all(
            _is_plain(name, one, depth - 1) for name, one in value.items()
        )
    if isinstance(value, (list, tuple, set)):
        return all(_is_plain(None, one, depth - 1) for one in value)
    if isinstance(value, str):
        return '{{' not in value and _may_be(key, value)
    return value is None or isinstance(value, (int, float))


def _may_be(key: Any, name: str) -> bool:
    """Whether a setting may have a value.

    A registry imports what it does not know by its path, whatever that is:
    ``dict(type='os.system', command=...)`` is a program, and a scope or a
    word without a dot may be the name of any module.
    """
    if key in _SCOPE_KEYS:
        return name in _scopes()
    if key not in _TYPE_KEYS:
        return True
    scope, dot, leaf = name.rpartition('.')
    if dot:
        return leaf[:1].isupper() and scope in _scopes()
    return name in sys.modules or not _is_module(name)


def _would_import(value: Any) -> bool:
    """Whether a value names a module that is not imported."""
    if isinstance(value, (dict, list, tuple, set)):
        parts = value.values() if isinstance(value, dict) else value
        return any(map(_would_import, parts))
    return isinstance(value, str) and value not in sys.modules


@cache
def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _scopes() -> set[str]:
    registries = [
        one for one in vars(root).values() if isinstance(one, Registry)
    ]
    children = (name for one in registries for name in one.children)
    return {'mmengine', 'mmcv', *MODULE2PACKAGE, *children}
