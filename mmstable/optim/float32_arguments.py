"""Arguments of a call that are float32 while it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Float32Arguments:
    """Casts tensors of half precision, in the containers they are in.

    A module gets the very lists and dicts of its caller, because it may fill
    them. :meth:`restore` puts the tensors back that were replaced inside.
    """

    def __init__(self) -> None:
        self._changed: list[list | dict] = []
        # By the id of what replaces it; that is kept, or its id may be reused.
        self._originals: dict[int, tuple[Any, Any]] = {}

    def cast(self, data: Any) -> Any:
        """The same with float32 tensors; the same object if it has none."""
        if torch.is_tensor(data):
            is_half = data.dtype in (torch.float16, torch.bfloat16)
            return self._replace(data, data.float()) if is_half else data
        if isinstance(data, (list, dict)):
            self._cast_inside(data)
        elif isinstance(data, tuple):
            parts = [self.cast(part) for part in data]
            if any(new is not old for new, old in zip(parts, data)):
                is_named = hasattr(data, '_fields')
                make: Any = type(data)
                return self._replace(
                    data, make(*parts) if is_named else make(parts)
                )
        return data

    def restore(self) -> None:
        """Undo all changes of lists and dicts but those by others."""
        for container in self._changed:
            for key, value in _items(container):
                replacement, original = self._originals.get(
                    id(value), (None, None)
                )
                if replacement is not None:
                    container[key] = original

    def _cast_inside(self, container: list | dict) -> None:
        changes = [
            (key, new)
            for key, old in _items(container)
            if (new := self.cast(old)) is not old
        ]
        for key, new in changes:
            container[key] = new
        if changes:
            self._changed.append(container)

    def _replace(self, original: Any, replacement: Any) -> Any:
        self._originals[id(replacement)] = replacement, original
        return replacement


def _items(container: list | dict) -> Iterable[tuple[Any, Any]]:
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))
