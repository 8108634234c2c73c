"""The arrays of a sample, whatever they are packed in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement

_DEEPEST = 8
# How the names of facts end that tell samples apart, the best first.
_IDENTITIES = ('_path', 'filename', 'file_name', 'img_id', '_id', '_idx')


class Part(NamedTuple):
    """An array of a sample.

    Args:
        path (str): Where it is, as 'data_samples.gt_sem_seg.data'.
        array (np.ndarray): Its values.
        is_tensor (bool): Whether it is a tensor, with channels first.
    """

    path: str
    array: np.ndarray
    is_tensor: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The names on the way to it."""
        return tuple(self.path.split('.'))


def parts_of(sample: Any) -> list[Part]:
    """All arrays and numbers of a sample.

    Args:
        sample (Any): What a pipeline gave: dicts, sequences, data elements,
            and objects that hold a tensor, such as boxes and points.
    """
    return list(_walk(sample, '', _DEEPEST))


def _walk(value: Any, path: str, depth: int) -> Iterator[Part]:
    if depth == 0:
        return
    if isinstance(value, torch.Tensor):
        yield Part(path, _as_array(value), True)
    elif isinstance(value, np.ndarray):
        yield Part(path, value, False)
    elif isinstance(value, (bool, int, float, np.generic)):
        yield Part(path, np.asarray(value), False)
    else:
        for name, one in _children(value):
            yield from _walk(
                one, f'{path}.{name}' if path else name, depth - 1
            )


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, BaseDataElement):
        # What is known about it, but is not data, is not looked at.
        yield from value.items()
    elif isinstance(value, Mapping):
        yield from ((str(name), one) for name, one in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), one) for index, one in enumerate(value))
    else:
        # Boxes and points of mmdet and mmdet3d; masks of mmdet.
        for name in ('tensor', 'masks'):
            held = getattr(value, name, None)
            if isinstance(held, (torch.Tensor, np.ndarray)):
                yield name, held


def _as_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        # numpy has none.
        tensor = tensor.float()
    return tensor.numpy()


def identity_of(facts: Any) -> str:
    """What a sample is called, as 'img_path=a/b.png'; '' if nobody knows.

    Args:
        facts (Any): What a data set knows of it, or what the pipeline gave.
    """
    known = dict(_facts(facts, _DEEPEST))
    for end in _IDENTITIES:
        for name, value in known.items():
            if name.endswith(end) and name != 'sample_idx':
                return f'{name}={value}'
    return ''


def _facts(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0:
        return
    if isinstance(value, BaseDataElement):
        held = list(value.metainfo_items())
    elif isinstance(value, Mapping):
        held = [(str(name), one) for name, one in value.items()]
    else:
        return
    for name, one in held:
        if isinstance(one, (str, int)) and not isinstance(one, bool):
            yield name, one
        else:
            yield from _facts(one, depth - 1)
