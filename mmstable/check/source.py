"""Find the file and line that set a value of a config.

Files are parsed, never run. No line is returned unless it is certain.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any


class _Unclear(ValueError):
    """A setting is computed in a way that is not supported."""


_UNREADABLE = (OSError, SyntaxError, RecursionError, ValueError)


@dataclass(frozen=True)
class ConfigSource:
    """Finds the lines that set values in a config and its bases.

    Args:
        file (str): The config.
        options (tuple): Paths that the command line has set, not a file.
            Defaults to ().
    """

    file: str
    options: tuple[str, ...] = ()

    def line_of(self, path: str) -> str:
        """Return the line that has set a path, or the nearest above it.

        Returns:
            str: As 'a.py:12'; '' if that is not certain.
        """
        for option in self.options:
            one, other = f'{path}.', f'{option}.'
            if one.startswith(other) or other.startswith(one):
                return ''
        try:
            return _find(self.file, path.split('.'))
        except _UNREADABLE:
            return ''


def bases_of(file: str) -> list[str]:
    """Return the files that a config inherits from; [] if uncertain."""
    try:
        return _bases(file)
    except _UNREADABLE:
        return []


def sets_in_vain(file: str, name: str, meant: str) -> bool:
    """Whether a config misspells a name.

    It sets only this name, never uses it, and no base has it: it is neither
    a variable nor a setting of the project.

    Args:
        file (str): The config.
        name (str): The name that it sets.
        meant (str): The likely name, which a base may set.
    """
    try:
        stored, used = _names_in(file)
        in_bases = set().union(
            *(names for base in _all_bases(file) for names in _names_in(base))
        )
    except _UNREADABLE:
        return False
    return name in stored - used - in_bases and meant not in stored | used


def _names_in(file: str) -> tuple[set[str], set[str]]:
    """Return the names that a file sets, and the names that it uses."""
    names = [n for n in ast.walk(_tree(file)) if isinstance(n, ast.Name)]
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return stored, {n.id for n in names if not isinstance(n.ctx, ast.Store)}


def _all_bases(file: str) -> list[str]:
    """Return the bases of a config, and their bases."""
    found: list[str] = []
    # The list grows while it is read: bases of bases follow.
    for one_file in chain([file], found):
        found += [one for one in _bases(one_file) if one not in found]
    return found


def _find(file: str, parts: list[str]) -> str:
    """Return file and line, from the file itself or from its bases."""
    tree = _tree(file)
    here = ''
    for value in reversed(_assigned(tree, parts[0])):
        line, depth, replaces = _descend(value, parts[1:])
        if depth == len(parts) - 1 or replaces:
            return f'{file}:{line}'
        here = here or f'{file}:{line}'
    bases = (_find(base, parts) for base in reversed(_bases(file)))
    return next(filter(None, bases), here)


def _tree(file: str) -> ast.Module:
    if not file.endswith('.py'):
        return ast.Module(body=[], type_ignores=[])
    return _parse(file, os.stat(file).st_mtime_ns)


@cache
def _parse(file: str, version: int) -> ast.Module:
    with open(file, encoding='utf-8') as text:
        return ast.parse(text.read())


def _assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """Return the values that a file assigns to a top-level name, in order."""
    found = []
    for line in tree.body:
        if isinstance(line, ast.Assign):
            targets = [t for t in line.targets if _root(t) == name]
            if targets and not isinstance(targets[0], ast.Name):
                # A part of it: `a['b'] = 1`.
                raise _Unclear
            found += [line.value for _ in targets]
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            found += _updates(line.value, name)
        elif not isinstance(line, (ast.With, ast.ImportFrom, ast.Import)) and (
            any(getattr(n, 'id', '') == name for n in ast.walk(line))
        ):
            raise _Unclear
    return found


def _updates(call: ast.Call, name: str) -> list[ast.expr]:
    """Return the argument of ``name.update(dict(...))``."""
    if not isinstance(call.func, ast.Attribute) or _root(call.func) != name:
        return []
    if (
        call.func.attr in ('update', 'merge')
        and isinstance(call.func.value, ast.Name)
        and len(call.args) == 1
    ):
        return [call.args[0]]
    raise _Unclear


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ''


def _descend(node: ast.expr, parts: list[str]) -> tuple[int, int, bool]:
    """Follow a path in an expression.

    Returns:
        tuple: The line of the last part found, the number of parts found, and
        whether the value replaces that of a base.
    """
    line = node.lineno
    for depth, name in enumerate(parts):
        pairs = _pairs(node)
        if pairs is None:
            # A value without parts, or a name, replaces that of a base.
            return line, depth, True
        if name not in pairs:
            deleted = pairs.get('_delete_')
            replaces = isinstance(deleted, ast.Constant) and deleted.value
            is_list = isinstance(node, (ast.List, ast.Tuple))
            return line, depth, bool(replaces) or is_list
        node = pairs[name]
        line = node.lineno
    return line, len(parts), True


def _pairs(node: ast.expr) -> dict[str, ast.expr] | None:
    if isinstance(node, ast.Call):
        if getattr(node.func, 'id', '') != 'dict':
            return None
        if any(word.arg is None for word in node.keywords):
            raise _Unclear
        return {str(w.arg): w.value for w in node.keywords}
    if isinstance(node, ast.Dict):
        if not all(isinstance(k, ast.Constant) for k in node.keys):
            raise _Unclear
        keys: list[Any] = node.keys
        return {str(k.value): v for k, v in zip(keys, node.values)}
    if isinstance(node, (ast.List, ast.Tuple)):
        if any(isinstance(one, ast.Starred) for one in node.elts):
            raise _Unclear
        return {str(n): one for n, one in enumerate(node.elts)}
    return None


def _bases(file: str) -> list[str]:
    """Return the files that a config names as its bases."""
    folder = os.path.dirname(file)
    found = []
    for line in _tree(file).body:
        if isinstance(line, ast.Assign) and any(
            _root(target) == '_base_' for target in line.targets
        ):
            names = ast.literal_eval(line.value)
            names = [names] if isinstance(names, str) else names
            # Bases in other packages (`mmdet::...`) are not read.
            found += [n for n in names if '::' not in n]
        elif isinstance(line, ast.With):
            found += [
                '../' * (one.level - 1)
                + (one.module or '').replace('.', '/')
                + '.py'
                for one in line.body
                if isinstance(one, ast.ImportFrom) and one.level
            ]
    return [os.path.normpath(os.path.join(folder, name)) for name in found]
