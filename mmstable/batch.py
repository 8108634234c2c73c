"""Batches as data: their samples, names and shapes, and a form for files.

A data loader may give objects of any class. For a file they become dicts that
name their class; no class has to be imported to read them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Callable

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

# Endings of names that identify a sample, the best first; then whole names.
_IDENTITIES = ('_path', 'filename', 'sample_idx', '_idx', '_id', '_index')
_WHOLE_IDENTITIES = ('index', 'idx', 'id', 'path', 'token')
_Items = Callable[[BaseDataElement], Iterable[tuple[str, Any]]]


def _leaves(
    tree: Any, path: str = '', items: _Items = BaseDataElement.all_items
) -> Iterator[tuple[str, Any]]:
    """Walk over all values of a tree that are no containers.

    Args:
        tree (Any): Dicts, lists, tuples and data elements of anything.
        path (str): The name of the tree. Defaults to ''.
        items (Callable): Gives the entries of a data element. Defaults to
            BaseDataElement.all_items.

    Yields:
        tuple: The path of a value, as 'inputs[0]', and the value.
    """
    if isinstance(tree, BaseDataElement):
        entries = ((f'{path}.{key}', one) for key, one in items(tree))
    elif isinstance(tree, Mapping):
        entries = ((f'{path}.{key}', one) for key, one in tree.items())
    elif isinstance(tree, (list, tuple)):
        entries = ((f'{path}[{i}]', one) for i, one in enumerate(tree))
    else:
        yield path.lstrip('.'), tree
        return
    for name, value in entries:
        yield from _leaves(value, name, items)


def named_tensors(tree: Any) -> Iterator[tuple[str, Tensor]]:
    """Walk over all tensors of a batch with their paths, as 'inputs[2]'."""
    for path, value in _leaves(tree):
        # Boxes of mmdet and the like hold one tensor.
        inner = getattr(value, 'tensor', None)
        if isinstance(value, Tensor):
            yield path, value
        elif isinstance(inner, Tensor):
            yield f'{path}.tensor'.lstrip('.'), inner


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Walk over all tensors of a batch, those of data samples included."""
    return (one for _, one in named_tensors(tree))


def bytes_of(tree: Any) -> int:
    """Bytes of all tensors of a batch."""
    return sum(one.numel() * one.element_size() for one in tensors_in(tree))


def batch_shapes(batch: Any) -> tuple[str, ...]:
    """The shapes of all tensors of a batch, each with its name.

    Lists of tensors are named by their entries; tensors inside of data
    elements are left out.

    Args:
        batch (Any): What the data loader gave.
    """
    return tuple(
        f'{name or "tensor"} {tuple(one.shape)} '
        f'{str(one.dtype).replace("torch.", "")}'
        for name, one in _leaves(batch, items=lambda element: ())
        if isinstance(one, Tensor)
    )


def batch_size(batch: Any) -> int:
    """Count the samples of a batch; 0 if their number is unknown.

    Args:
        batch (Any): What the data loader gave: a dict or a sequence of parts,
            as inputs and targets, or a list of samples.
    """
    if _is_list_of_samples(batch):
        return len(batch)
    sizes = (_length(part) for _, part in _parts(batch))
    return next((size for size in sizes if size), 0)


def take_samples(batch: Any, samples: list[int]) -> Any:
    """Cut a batch to some of its samples.

    Each part with as many entries as the batch has samples is cut.

    Args:
        batch (Any): What the data loader gave.
        samples (list[int]): Their indices.
    """
    size = batch_size(batch)
    if isinstance(batch, (list, tuple)) and not _is_list_of_samples(batch):
        return [_take(part, samples, size) for part in batch]
    return _take(batch, samples, size)


def name_sample(batch: Any, index: int) -> str:
    """Name a sample of a batch, as 'img_path=a/b.png'.

    Args:
        batch (Any): What the data loader gave.
        index (int): The index of the sample.

    Returns:
        str: Its path, if it has one; or its number in the data set; or ''.
    """
    facts = dict(_facts(batch, index, batch_size(batch)))
    for end in _IDENTITIES:
        for name, value in facts.items():
            if name.endswith(end):
                return f'{name}={value}'
    for name in _WHOLE_IDENTITIES:
        if name in facts:
            return f'{name}={facts[name]}'
    return ''


def _is_list_of_samples(batch: Any) -> bool:
    return (
        isinstance(batch, (list, tuple))
        and bool(batch)
        and all(isinstance(one, (Mapping, BaseDataElement)) for one in batch)
    )


def _parts(batch: Any) -> list[tuple[str, Any]]:
    if isinstance(batch, Mapping):
        first = [name for name in ('inputs', 'img') if name in batch]
        return [(str(n), batch[n]) for n in dict.fromkeys([*first, *batch])]
    if isinstance(batch, (list, tuple)):
        return [('', part) for part in batch]
    return [('', batch)]


def _length(part: Any) -> int:
    if isinstance(part, Tensor):
        return len(part) if part.dim() else 0
    if isinstance(part, (list, tuple)):
        return len(part)
    return batch_size(part) if isinstance(part, Mapping) else 0


def _take(part: Any, samples: list[int], size: int) -> Any:
    if isinstance(part, Mapping):
        return {key: _take(one, samples, size) for key, one in part.items()}
    if _length(part) != size:
        return part
    if isinstance(part, Tensor):
        return part[torch.tensor(samples, device=part.device)]
    return [part[index] for index in samples]


def _facts(batch: Any, index: int, size: int) -> Iterator[tuple[str, Any]]:
    """Walk over the words and whole numbers that describe a sample."""
    if _is_list_of_samples(batch):
        yield from _facts_of(batch[index], '')
        return
    for name, part in _parts(batch):
        if isinstance(part, Mapping):
            yield from _facts(part, index, size)
        elif _length(part) == size:
            yield from _facts_of(part[index], name)


def _facts_of(sample: Any, name: str) -> Iterator[tuple[str, Any]]:
    items = BaseDataElement.metainfo_items
    for path, value in _leaves(sample, name, items):
        key = path.rpartition('.')[2]
        if isinstance(value, Tensor):
            if value.numel() == 1 and not value.is_floating_point():
                yield key, int(value)
        elif isinstance(value, (str, int)) and not isinstance(value, bool):
            yield key, value


def batch_of(
    samples: Sequence[Any], size: int, collate: Callable[[list[Any]], Any]
) -> Any:
    """Make a batch of any size by repeating a few samples.

    Args:
        samples (Sequence): Samples of a dataset.
        size (int): How many are in the batch.
        collate (Callable): Makes a batch of samples.
    """
    return collate(list(islice(cycle(samples), size)))


_KIND = '__kind__'
_MAX_DEPTH = 32


class Packed:
    """A batch on its way to a file.

    Args:
        batch (Any): What the data loader gave.
    """

    def __init__(self, batch: Any) -> None:
        # Paths and classes of values that cannot be saved.
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
    """Rebuild a batch that was packed.

    Data elements get their own class if that is imported already, and
    mmengine's base class otherwise.

    Args:
        value (Any): ``Packed.value``, as read from a file.
        depth (int): How deep in it this is. Defaults to 0.

    Raises:
        ValueError: If it cannot have been packed here.
    """
    if depth > _MAX_DEPTH:
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
