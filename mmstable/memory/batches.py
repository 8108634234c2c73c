"""Batches of any size, made of a few real samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Callable

from mmengine.structures import BaseDataElement
from torch import Tensor


def batch_of(
    samples: Sequence[Any], size: int, collate: Callable[[list[Any]], Any]
) -> Any:
    """A batch in which the samples come again and again.

    Args:
        samples (Sequence): What the dataset gave.
        size (int): How many are in the batch.
        collate (Callable): What makes a batch of samples.
    """
    return collate(list(islice(cycle(samples), size)))


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors of a batch, those of data samples included."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, BaseDataElement):
        for value in tree.all_values():
            yield from tensors_in(value)
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from tensors_in(value)


def bytes_of(tree: Any) -> int:
    """Bytes of all tensors of a batch."""
    return sum(one.numel() * one.element_size() for one in tensors_in(tree))
