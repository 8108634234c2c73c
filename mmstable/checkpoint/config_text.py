"""Which config text of a checkpoint may mmengine run?

mmengine saves the text of a config, and its ``Inferencer`` runs that as
Python. A genuine text is what ``Config.pretty_text`` writes: names that are
given plain values.
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

_LONGEST, _DEEPEST = 1 << 20, 40
# What mmengine looks up in a registry, and where.
_TYPE_KEYS = ('type', 'constructor', 'runner_type')
_SCOPE_KEYS = ('_scope_', 'default_scope')
_F_STRING = re.compile(r"""\b[rR]?[fF][rR]?["']""")
_PLAIN = (str, int, float, bool, type(None))


def drop_foreign_configs(checkpoint: Any) -> None:
    """Take out what would run code, or import modules, in config texts.

    Args:
        checkpoint (Any): What was loaded, changed in place.
    """
    content = checkpoint if isinstance(checkpoint, dict) else {}
    hub = content.get('message_hub')
    info = hub.get('runtime_info') if isinstance(hub, dict) else None
    notes: set[str] = set()
    for section in (info, content.get('meta')):
        if not isinstance(section, dict) or 'cfg' not in section:
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
    """A config text as far as it is data; None if it is more than that.

    An assignment of ``custom_imports`` is left out, unless all modules in it
    are imported already: mmengine would import them.
    """
    if type(text) is not str or len(text) > _LONGEST:
        return None
    # mmengine replaces what is in double braces before it reads the text,
    # which can turn a string into code; so can a comment on the encoding.
    first_lines = text.split('\n', 2)[:2]
    if '{{' in text or any(x.lstrip().startswith('#') for x in first_lines):
        return None
    if _F_STRING.search(text):
        # Never dumped, and slow to parse.
        return None
    try:
        tree = ast.parse(text)
        kept = [one for one in tree.body if not _imports_modules(one)]
        if not all(map(_is_plain_assignment, tree.body)):
            return None
        if kept == tree.body:
            return text
        return plain_config(ast.unparse(ast.Module(kept, [])))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_plain_assignment(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    return (
        isinstance(target, ast.Name)
        # mmengine would run the files that it names.
        and target.id != '_base_'
        and not target.id.startswith('__')
        and _is_plain(statement.value, _DEEPEST)
        and _may_be(target.id, statement.value)
    )


def _imports_modules(statement: ast.stmt) -> bool:
    targets = getattr(statement, 'targets', ())
    if not any(getattr(one, 'id', '') == 'custom_imports' for one in targets):
        return False
    return any(
        isinstance(one, ast.Constant)
        and isinstance(one.value, str)
        and one.value not in sys.modules
        for one in ast.walk(statement)
    )


def _is_plain(node: ast.expr | None, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in _PLAIN and '{{' not in str(node.value)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and (
            isinstance(node.operand, ast.Constant)
            and type(node.operand.value) in (int, float)
        )
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(_is_plain(one, depth - 1) for one in node.elts)
    if isinstance(node, ast.Dict):
        return _are_plain_items(zip(node.keys, node.values), depth)
    if not isinstance(node, ast.Call) or len(node.args) > 1:
        return False
    return (
        isinstance(node.func, ast.Name)
        and node.func.id == 'dict'
        # As `dict({'a key': 1})`, where keys are no names.
        and all(isinstance(one, ast.Dict) for one in node.args)
        and all(_is_plain(one, depth - 1) for one in node.args)
        and all(one.arg is not None for one in node.keywords)
        and _are_plain_items(
            ((ast.Constant(one.arg), one.value) for one in node.keywords),
            depth,
        )
    )


def _are_plain_items(
    items: Iterable[tuple[ast.expr | None, ast.expr]], depth: int
) -> bool:
    return all(
        _is_plain(key, depth - 1)
        and _is_plain(value, depth - 1)
        and _may_be(getattr(key, 'value', None), value)
        for key, value in items
    )


def _may_be(key: Any, node: ast.expr) -> bool:
    """Whether a setting may have a value.

    A registry imports what it does not know by its path, whatever that is:
    ``dict(type='os.system', command=...)`` is a program, and a scope or a
    word without a dot may be the name of any module.
    """
    name = getattr(node, 'value', None)
    if not isinstance(name, str):
        return True
    if key in _SCOPE_KEYS:
        return name in _scopes()
    if key not in _TYPE_KEYS:
        return True
    scope, dot, leaf = name.rpartition('.')
    if dot:
        return leaf[:1].isupper() and scope in _scopes()
    return name in sys.modules or not _is_module(name)


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
