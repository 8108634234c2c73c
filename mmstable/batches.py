"""Single samples of a batch, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.structures import BaseDataElement
from torch import Tensor

# How names of facts end that tell samples apart, the best first.
_IDENTITIES = ('_path', 'filename', 'sample_idx', '_idx', '_id', '_index')
_WHOLE_IDENTITIES = ('index', 'idx', 'id', 'path', 'token')


def batch_size(batch: Any) -> int:
    """How many samples a batch has; 0 if that cannot be told.

    Args:
        batch (Any): What the data loader gave: a dict or a sequence of parts,
            as inputs and targets, or a list of samples.
    """
    if _is_list_of_samples(batch):
        return len(batch)
    sizes = (_length(part) for _, part in _parts(batch))
    return next((size for size in sizes if size), 0)


def take_samples(batch: Any, samples: list[int]) -> Any:
    """The same batch with some of its samples.

    Whatever has as many entries as the batch has samples is cut.

    Args:
        batch (Any): What the data loader gave.
        samples (list[int]): Their indices.
    """
    return _take(batch, samples, batch_size(batch))


def name_sample(batch: Any, index: int) -> str:
    """What a sample of a batch is called, as 'img_path=a/b.png'.

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


def _take(batch: Any, samples: list[int], size: int) -> Any:
    if _is_list_of_samples(batch):
        return [batch[index] for index in samples]
    if isinstance(batch, Mapping):
        return {
            key: _take_part(one, samples, size) for key, one in batch.items()
        }
    if isinstance(batch, (list, tuple)):
        return [_take_part(one, samples, size) for one in batch]
    return _take_part(batch, samples, size)


def _take_part(part: Any, samples: list[int], size: int) -> Any:
    if isinstance(part, Mapping):
        return _take(part, samples, size)
    if _length(part) != size:
        return part
    if isinstance(part, Tensor):
        return part[torch.tensor(samples, device=part.device)]
    return [part[index] for index in samples]


def _facts(batch: Any, index: int, size: int) -> Iterator[tuple[str, Any]]:
    """What is known of a sample besides its tensors."""
    if _is_list_of_samples(batch):
        yield from _facts_of(batch[index], '')
        return
    for name, part in _parts(batch):
        if isinstance(part, Mapping):
            yield from _facts(part, index, size)
        elif _length(part) == size:
            yield from _facts_of(part[index], name)


def _facts_of(sample: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(sample, BaseDataElement):
        for key, value in sample.metainfo_items():
            yield from _facts_of(value, key)
    elif isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from _facts_of(value, str(key))
    elif isinstance(sample, Tensor):
        if sample.numel() == 1 and not sample.is_floating_point():
            yield name, int(sample)
    elif isinstance(sample, (str, int)) and not isinstance(sample, bool):
        yield name, sample


def batch_shapes(batch: Any) -> tuple[str, ...]:
    """The shapes of all tensors of a batch, each with its name.

    Lists of tensors are named by their entries; what is deeper inside of
    samples is left out.

    Args:
        batch (Any): What the data loader gave.
    """
    return tuple(_shapes(batch, ''))


def _shapes(part: Any, name: str) -> Iterator[str]:
    if isinstance(part, Tensor):
        kind = str(part.dtype).replace('torch.', '')
        yield f'{name or "tensor"} {tuple(part.shape)} {kind}'
    elif isinstance(part, Mapping):
        for key, one in part.items():
            yield from _shapes(one, f'{name}.{key}' if name else str(key))
    elif isinstance(part, (list, tuple)):
        for index, one in enumerate(part):
            yield from _shapes(one, f'{name}[{index}]')
