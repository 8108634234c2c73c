"""Do all ranks agree?  No-ops on a single process."""

from __future__ import annotations

from typing import TypeVar

import torch
from mmengine.dist import all_gather_object, all_reduce, get_world_size
from torch import Tensor

_Item = TypeVar('_Item')


def any_rank(flag: bool) -> bool:
    """Whether ``flag`` is true on at least one rank. A collective call."""
    if get_world_size() == 1:
        return flag
    verdict = torch.tensor(float(flag))
    all_reduce(verdict, op='max')
    return bool(verdict)


def least_of_ranks(number: int) -> int:
    """The smallest ``number`` of all ranks. A collective call."""
    if get_world_size() == 1:
        return number
    least = torch.tensor(number)
    all_reduce(least, op='min')
    return int(least)


def lists_of_ranks(items: list[_Item]) -> list[_Item]:
    """The items of all ranks, each once. A collective call."""
    if get_world_size() == 1:
        return items
    lists = all_gather_object(items)
    return list(dict.fromkeys(item for one in lists for item in one))


def norm_over_ranks(norm: Tensor, norm_type: float) -> Tensor:
    """The norm of what all ranks hold, from each one's. A collective call."""
    if get_world_size() == 1:
        return norm
    if norm_type == float('inf'):
        total = norm.clone()
        all_reduce(total, op='max')
        return total
    total = norm**norm_type
    all_reduce(total, op='sum')
    return total ** (1.0 / norm_type)
