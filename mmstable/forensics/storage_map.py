"""Which memory holds which tensor?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from mmengine.structures import BaseDataElement
from torch import Tensor
from torch.nn import Module

from mmstable.forensics.birth import BATCH, BUFFER, PARAMETER
from mmstable.forensics.ranges import plain_values, severity


class Known(NamedTuple):
    """A tensor that was there before the step.

    Args:
        source (str): 'parameter', 'buffer' or 'batch'.
        name (str): Its name in the model, or its path in the batch.
        severity (int): How bad it was then.
    """

    source: str
    name: str
    severity: int


def pointer(tensor: Tensor) -> int:
    """The address of a tensor's memory; 0 if it has none of its own.

    Not the tensor itself: what a forward pass saves comes back as another
    object in the backward pass.
    """
    try:
        return plain_values(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        # Tensors that are made of several.
        return 0


def covers_storage(tensor: Tensor) -> bool:
    """Whether a tensor has all values of its memory."""
    values = plain_values(tensor)
    size = values.numel() * values.element_size()
    return size >= values.untyped_storage().nbytes()


def map_known(model: Module, batch: Any) -> dict[int, Known]:
    """All tensors of a model and of a batch, by their address."""
    named = [
        *((BATCH, name, one) for name, one in walk_tensors(batch)),
        *((BUFFER, name, one) for name, one in model.named_buffers()),
        *((PARAMETER, name, one) for name, one in model.named_parameters()),
    ]
    return {
        pointer(one): Known(source, name, severity(one))
        for source, name, one in named
        if pointer(one)
    }


def walk_tensors(value: Any, path: str = '') -> Iterator[tuple[str, Tensor]]:
    """All tensors of a batch with their paths, as 'inputs[2]'."""
    if isinstance(value, Tensor):
        yield path, value
        return
    for name, item in _items(value):
        dot = '.' if path and name.isidentifier() else ''
        yield from walk_tensors(item, f'{path}{dot}{name}')


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, BaseDataElement):
        return value.all_items()
    if isinstance(value, Mapping):
        return [(str(key), item) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f'[{index}]', item) for index, item in enumerate(value)]
    # Boxes of mmdet and the like hold one tensor.
    inner = getattr(value, 'tensor', None)
    return [('tensor', inner)] if isinstance(inner, Tensor) else []
