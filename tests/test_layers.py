"""Imports go one way: a folder uses only those listed before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.some_files import some_files

PACKAGE = Path(__file__).resolve().parents[1] / 'mmstable'
ORDER = [
    'version',
    'registry',
    'errors',
    'messages',
    'settings',
    'io',
    'torch_internals',
    'finding',
    'runner_view',
    'batch',
    'vis_backend',
    'events',
    'dist',
    'optim',
    'state',
    'checkpoint',
    'oom',
    'loops',
    'memory',
    'guard',
    'forensics',
    'doctor',
    'hang',
    'profile',
    'probe',
    'legacy',
    'check',
    'inject',
    'report',
    'notify',
    'hooks',
    'strategies',
    'demo',
    'protection',
    'cli',
]
# They are the doors to everything.
DOORS = ('__init__', '__main__')


def imported(path: Path) -> Iterator[str]:
    """Top-level names of mmstable that a file imports, at any place."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == 'mmstable':
            names = [f'mmstable.{alias.name}' for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            package, _, rest = name.partition('.')
            if package == 'mmstable' and rest:
                yield rest.split('.')[0]


def owner(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].partition('.')[0]


FILES = [
    path
    for path in some_files(PACKAGE, '**/*.py')
    if '.mim' not in path.parts and owner(path) not in DOORS
]


def test_every_folder_has_its_place():
    unknown = {owner(path) for path in FILES} - set(ORDER)
    assert not unknown


def later_imports(path: Path) -> set[str]:
    own = ORDER.index(owner(path))
    # The door itself has names that are no modules.
    names = {name for name in imported(path) if name in ORDER}
    return {name for name in names if ORDER.index(name) > own}


def test_imports_go_one_way():
    found = {str(path): later_imports(path) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}
