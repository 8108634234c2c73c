"""A config on its way to a protected one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.registry import HOOKS, OPTIM_WRAPPERS, Registry

from mmstable.preflight.config_tree import kind_of
from mmstable.preflight.config_view import DEFAULT_HOOKS
from mmstable.protection.change import (
    Change,
    Group,
    Left,
    Path,
    apply_changes,
)
from mmstable.protection.safe_classes import (
    SAFE,
    is_foreign,
    resolve,
    scoped,
)


class Draft:
    """The changes of a config that are decided so far.

    Args:
        settings (Mapping): The config in plain types, left as it is.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings: dict[str, Any] = copy.deepcopy(dict(settings))
        self.changes: list[Change] = []
        self.left: list[Left] = []
        self._classes: dict[tuple[str, str], type | None] = {}

    def get(self, *path: str | int) -> Any:
        """What is at a path; None if there is nothing."""
        node: Any = self.settings
        for name in path:
            if isinstance(node, Mapping):
                node = node.get(name)
            elif isinstance(node, (list, tuple)):
                node = node[int(name)]
            else:
                return None
        return node

    def put(
        self, path: Path, value: Any, group: Group, word: str = ''
    ) -> None:
        """Set something, unless it is so already."""
        parent = self.get(*path[:-1])
        is_there = isinstance(parent, Mapping) and path[-1] in parent
        if is_there and parent[path[-1]] == value:
            return
        change = Change(path, value, group, word)
        apply_changes(self.settings, [change])
        self.changes.append(change)

    def add_hook(self, hook: Mapping[str, Any]) -> None:
        """Add to ``custom_hooks``."""
        place = len(self.get('custom_hooks') or ())
        name = kind_of(hook)
        self.put(('custom_hooks', place), dict(hook), Group.HOOK, name)

    def class_at(
        self, path: Path, registry: Registry, default: str = ''
    ) -> type | None:
        """The class that the dict at a path is for; None if unknown."""
        node = self.get(*path)
        if not isinstance(node, Mapping):
            return type(node) if node is not None else None
        return self._resolve(registry, node.get('type', default))

    def _resolve(self, registry: Registry, kind: Any) -> type | None:
        if not isinstance(kind, str):
            return resolve(registry, kind, None)
        # Changing the scope of mmengine takes milliseconds each time.
        key = (registry.name, kind)
        if key not in self._classes:
            scope = self.settings.get('default_scope')
            self._classes[key] = resolve(registry, kind, scope)
        return self._classes[key]

    def make_safe(
        self, path: Path, registry: Registry, default: str = ''
    ) -> None:
        """Replace the class of a dict if it is mmengine's own.

        Args:
            path (tuple): Where the dict is.
            registry (Registry): Where mmengine would look for its class.
            default (str): The class of one that does not say.
                Defaults to ''.
        """
        found = self.class_at(path, registry, default)
        if found in SAFE:
            word = dotted(path)
            safe = scoped(SAFE[found])
            self.put((*path, 'type'), safe, Group.CLASS, word)
        elif found is not None and is_foreign(found):
            self.leave(path, found)

    def leave(self, path: Path, found: type) -> None:
        """Remember what is not replaced."""
        self.left.append(Left(dotted(path), found.__name__))

    def wrappers(self) -> list[Path]:
        """Where the optimizer wrappers are: one, or several with names."""
        whole = self.get('optim_wrapper')
        if not isinstance(whole, Mapping):
            return []
        if 'optimizer' in whole:
            return [('optim_wrapper',)]
        return [
            ('optim_wrapper', name)
            for name, value in whole.items()
            if isinstance(value, Mapping) and 'optimizer' in value
        ]

    def wrapper_class(self, path: Path) -> type | None:
        """The class of a wrapper."""
        return self.class_at(path, OPTIM_WRAPPERS, 'OptimWrapper')

    def hooks(self) -> Iterator[tuple[Path, type | None]]:
        """Where the hooks are, those of mmengine included; and of what class.

        A hook that is switched off is not among them.
        """
        named = self.get('default_hooks') or {}
        for name in {**DEFAULT_HOOKS, **named}:
            path: Path = ('default_hooks', name)
            if name not in named:
                kind = f'mmengine.{DEFAULT_HOOKS[name]["type"]}'
                yield path, self._resolve(HOOKS, kind)
            elif named[name] is not None:
                yield path, self.class_at(path, HOOKS)
        for place in range(len(self.get('custom_hooks') or ())):
            path = ('custom_hooks', place)
            yield path, self.class_at(path, HOOKS)


def dotted(path: Path) -> str:
    """A path as --cfg-options would name it."""
    return '.'.join(map(str, path))
