"""Find things in the nested dicts and lists of a config."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Node = Mapping[str, Any]


def look_up(node: Any, path: str, default: Any = None) -> Any:
    """What is at a dotted path; numbers are places in lists."""
    for name in path.split('.') if path else ():
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, (list, tuple)) and _is_place(name, node):
            node = node[int(name)]
        else:
            return default
    return node


def walk(node: Any, path: str = '') -> Iterator[tuple[str, Node]]:
    """Every dict at or below a node, and where it is."""
    pairs: Any = ()
    if isinstance(node, Mapping):
        yield path, node
        pairs = node.items()
    elif isinstance(node, (list, tuple)):
        pairs = enumerate(node)
    for name, value in pairs:
        if isinstance(value, (Mapping, list, tuple)):
            yield from walk(value, f'{path}.{name}' if path else str(name))


def kind_of(node: Any) -> str:
    """The class that a dict is for, without its package; '' if unknown."""
    kind = node.get('type') if isinstance(node, Mapping) else node
    if not isinstance(kind, str):
        kind = getattr(kind, '__name__', '') if kind is not None else ''
    return kind.rpartition('.')[2]


def changed(settings: Node, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with other values at some paths; dicts are made as needed."""
    result: Any = copy.deepcopy(dict(settings))
    for path, value in changes.items():
        *parents, last = path.split('.')
        node = result
        for name in parents:
            node = _enter(node, name)
        node[int(last) if isinstance(node, list) else last] = value
    return result


def _enter(node: Any, name: str) -> Any:
    """What is there, as something that can be changed."""
    key: Any = int(name) if isinstance(node, list) else name
    inner = node[key] if isinstance(node, list) else node.get(key)
    if isinstance(inner, (list, tuple)):
        inner = list(inner)
    elif not isinstance(inner, dict):
        inner = {}
    node[key] = inner
    return inner


def _is_place(name: str, items: Any) -> bool:
    return name.isdigit() and int(name) < len(items)
