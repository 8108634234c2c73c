"""Which line of which file has set this?

Files are parsed, never run. Where it cannot be told, nothing is said.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any


class _Unclear(Exception):
    """Something is done to a setting that cannot be read off."""


@dataclass(frozen=True)
class ConfigSource:
    """Finds lines in a config and its bases.

    Args:
        file (str): The config.
        options (tuple): Paths that the command line has set; no file is to
            blame for them. Defaults to ().
    """

    file: str
    options: tuple[str, ...] = field(default=())

    def line_of(self, path: str) -> str:
        """The line that has set a path, or the nearest above it.

        Returns:
            str: As 'a.py:12'; '' if that cannot be told.
        """
        parts = path.split('.')
        if any(_overlap(path, option) for option in self.options):
            return ''
        try:
            found = _find(self.file, parts)
        except (_Unclear, OSError, SyntaxError, RecursionError, ValueError):
            return ''
        return '' if found is None else f'{found[0]}:{found[1]}'


def bases_of(file: str) -> list[str]:
    """The files that a config inherits from, as far as can be told."""
    try:
        return _direct_bases(file)
    except (OSError, SyntaxError, ValueError):
        return []


def sets_in_vain(file: str, name: str, meant: str) -> bool:
    """Whether a config sets one name, where it surely means another.

    It sets only the one, uses it for nothing, and no base knows of it: it is
    neither a variable nor a setting of the project.

    Args:
        file (str): The config.
        name (str): The name that it sets.
        meant (str): The name that it may mean; a base may set it.
    """
    try:
        stored, used = _names_in(file)
        bases = [_names_in(base) for base in _all_bases(file)]
    except (OSError, SyntaxError, RecursionError, ValueError):
        return False
    in_bases = {one for pair in bases for names in pair for one in names}
    return name in stored - used - in_bases and meant not in stored | used


def _names_in(file: str) -> tuple[set[str], set[str]]:
    """The names that a file sets, and those that it uses."""
    if not file.endswith('.py'):
        return set(), set()
    tree = _parse(file, os.stat(file).st_mtime_ns)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    return stored, {n.id for n in names if not isinstance(n.ctx, ast.Store)}


def _all_bases(file: str) -> list[str]:
    """The files that a config inherits from, and those that they do."""
    found: list[str] = []
    left = [file]
    while left:
        one_file = left.pop()
        new = [one for one in _direct_bases(one_file) if one not in found]
        found += new
        left += new
    return found


def _overlap(path: str, option: str) -> bool:
    return f'{path}.'.startswith(f'{option}.') or f'{option}.'.startswith(
        f'{path}.'
    )


def _find(file: str, parts: list[str]) -> tuple[str, int] | None:
    """File and line; bases are asked where the file itself is silent."""
    if not file.endswith('.py'):
        return None
    tree = _parse(file, os.stat(file).st_mtime_ns)
    values = _assigned(tree, parts[0])
    here = None
    for value in reversed(values):
        line, depth, replaces = _descend(tree, value, parts[1:])
        if depth == len(parts) - 1 or replaces:
            return file, line
        here = here or (file, line)
    for base in reversed(_bases(file, tree)):
        found = _find(base, parts)
        if found is not None:
            return found
    return here


@cache
def _parse(file: str, version: int) -> ast.Module:
    with open(file, encoding='utf-8') as text:
        return ast.parse(text.read())


def _assigned(tree: ast.Module, name: str) -> list[ast.expr]:
    """Everything that a file assigns to a top-level name, in order."""
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
        elif not isinstance(line, (ast.With, ast.ImportFrom, ast.Import)):
            stores = (
                n
                for n in ast.walk(line)
                if isinstance(n, ast.Name) and n.id == name
            )
            if any(stores):
                raise _Unclear
    return found


def _updates(call: ast.Call, name: str) -> list[ast.expr]:
    """``name.update(dict(...))``, as new configs write it."""
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


def _descend(
    tree: ast.Module, node: ast.expr, parts: list[str]
) -> tuple[int, int, bool]:
    """How far a path can be followed in an expression.

    Returns:
        tuple: The line where it ends, how many parts were found, and whether
        what a base says does not count.
    """
    line = node.lineno
    for depth, name in enumerate(parts):
        node = _resolve(tree, node)
        pairs = _pairs(node)
        if pairs is None:
            # A value that cannot be entered, or a list: it is all there is.
            return line, depth, True
        if name not in pairs:
            deleted = pairs.get('_delete_')
            replaces = isinstance(deleted, ast.Constant) and deleted.value
            is_list = isinstance(node, (ast.List, ast.Tuple))
            return line, depth, bool(replaces) or is_list
        node = pairs[name]
        line = node.lineno
    return line, len(parts), True


def _resolve(tree: ast.Module, node: ast.expr) -> ast.expr:
    """The value behind a name of the same file."""
    for _ in range(10):
        if not isinstance(node, ast.Name):
            return node
        values = _assigned(tree, node.id)
        if not values:
            raise _Unclear
        node = values[-1]
    raise _Unclear


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


def _direct_bases(file: str) -> list[str]:
    if not file.endswith('.py'):
        return []
    return _bases(file, _parse(file, os.stat(file).st_mtime_ns))


def _bases(file: str, tree: ast.Module) -> list[str]:
    """The files that it inherits from, as far as they can be read off."""
    folder = os.path.dirname(file)
    found = []
    for line in tree.body:
        if isinstance(line, ast.Assign) and any(
            _root(target) == '_base_' for target in line.targets
        ):
            names = ast.literal_eval(line.value)
            names = [names] if isinstance(names, str) else names
            # Those of other packages are not looked for.
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
