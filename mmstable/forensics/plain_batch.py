"""A batch as tensors and plain types, and back.

What a data loader gives may hold objects of any class. In a file they become
dicts that say what they were; nothing has to be imported to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

_KIND = '__kind__'
_DEEPEST = 32


class Packed:
    """A batch on its way to a file.

    Args:
        batch (Any): What the data loader gave.
    """

    def __init__(self, batch: Any) -> None:
        # Paths and classes of what cannot be saved.
        self.left_out: list[str] = []
        self.size = 0
        self.value = self._pack(batch, '')

    def _pack(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (str, int, float, bool):
            return value
        if isinstance(value, Tensor):
            return self._copy(value)
        if isinstance(value, np.generic):
            return self._pack(value.item(), path)
        if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf':
            tensor = self._copy(torch.from_numpy(np.ascontiguousarray(value)))
            return {_KIND: 'array', 'tensor': tensor}
        if isinstance(value, BaseDataElement):
            return {
                _KIND: 'element',
                'type': _class_name(value),
                'meta': self._pack_items(dict(value.metainfo_items()), path),
                'data': self._pack_items(dict(value.items()), path),
            }
        if isinstance(value, Mapping):
            return {
                _KIND: 'dict',
                'items': self._pack_items(dict(value), path),
            }
        if isinstance(value, (list, tuple)):
            items = [
                self._pack(one, f'{path}[{index}]')
                for index, one in enumerate(value)
            ]
            return items if isinstance(value, list) else tuple(items)
        inner = getattr(value, 'tensor', None)
        if isinstance(inner, Tensor):
            return self._copy(inner)
        self.left_out.append(f'{path.lstrip(".")} ({_class_name(value)})')
        return None

    def _pack_items(self, items: dict[Any, Any], path: str) -> dict[str, Any]:
        return {
            str(key): self._pack(one, f'{path}.{key}')
            for key, one in items.items()
        }

    def _copy(self, tensor: Tensor) -> Tensor:
        copied = tensor.detach().as_subclass(Tensor).cpu().clone()
        self.size += copied.numel() * copied.element_size()
        return copied


def unpack(value: Any, depth: int = 0) -> Any:
    """The batch that was packed.

    Data elements get their own class if that is imported already, and
    mmengine's base class otherwise.

    Args:
        value (Any): ``Packed.value``, as read from a file.
        depth (int): How deep in it this is. Defaults to 0.

    Raises:
        ValueError: If it cannot have been packed here.
    """
    if depth > _DEEPEST:
        raise ValueError('the batch is nested too deeply')
    if isinstance(value, (list, tuple)):
        return type(value)(unpack(one, depth + 1) for one in value)
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind == 'dict':
        return _unpack_items(value, 'items', depth)
    if kind == 'array' and isinstance(value.get('tensor'), Tensor):
        return value['tensor'].numpy()
    if kind == 'element' and isinstance(value.get('type'), str):
        element = _find_class(value['type'])()
        element.set_metainfo(_unpack_items(value, 'meta', depth))
        for name, one in _unpack_items(value, 'data', depth).items():
            _fill(element, name, one)
        return element
    raise ValueError(f'the batch has an unknown part {str(kind)[:40]!r}')


def _fill(element: BaseDataElement, name: str, value: Any) -> None:
    try:
        element.set_field(value, name)
    except (AssertionError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f'the batch has a bad `{name[:40]}`') from error


def _unpack_items(value: dict, name: str, depth: int) -> dict[str, Any]:
    items = value.get(name)
    if not isinstance(items, dict):
        raise ValueError(f'the batch has no `{name}`')
    return {str(key): unpack(one, depth + 1) for key, one in items.items()}


def _class_name(value: Any) -> str:
    return f'{type(value).__module__}.{type(value).__qualname__}'


def _find_class(name: str) -> type[BaseDataElement]:
    module, _, leaf = name.rpartition('.')
    found = getattr(sys.modules.get(module), leaf, None)
    if isinstance(found, type) and issubclass(found, BaseDataElement):
        return found
    return BaseDataElement
