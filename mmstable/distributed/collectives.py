"""Do all ranks agree?  No-ops on a single process."""

from __future__ import annotations

from typing import Any, TypeVar

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


def any_rank_each(*flags: bool) -> list[bool]:
    """The same for several flags, in one collective call."""
    if get_world_size() == 1:
        return list(flags)
    verdicts = torch.tensor([float(flag) for flag in flags])
    all_reduce(verdicts, op='max')
    return [bool(verdict) for verdict in verdicts]


def least_of_ranks(number: int) -> int:
    """The smallest ``number`` of all ranks. A collective call."""
    if get_world_size() == 1:
        return number
    least = torch.tensor(number)
    all_reduce(least, op='min')
    return int(least)


def most_of_ranks(number: int) -> int:
    """The largest ``number`` of all ranks. A collective call."""
    return -least_of_ranks(-number)


def lists_of_ranks(items: list[_Item]) -> list[_Item]:
    """The items of all ranks, each once. A collective call."""
    if get_world_size() == 1:
        return items
    lists = all_gather_object(items)
    return list(dict.fromkeys(item for one in lists for item in one))


def sum_of_ranks(number: int) -> int:
    """The sum of the ``number`` of all ranks. A collective call."""
    if get_world_size() == 1:
        return number
    total = torch.tensor(number)
    all_reduce(total, op='sum')
    return int(total)


def norm_over_ranks(
    norm: Tensor, norm_type: float, group: Any = None
) -> Tensor:
    """The norm of what all ranks hold, from each one's. A collective call.

    Args:
        norm (Tensor): Norms of what this rank holds.
        norm_type (float): Their order.
        group (ProcessGroup, optional): The ranks; None for all of them.
            Defaults to None.
    """
    if get_world_size(group) == 1:
        return norm
    if norm_type == float('inf'):
        total = norm.clone()
        all_reduce(total, op='max', group=group)
        return total
    # In double precision, as squares of large norms would overflow.
    total = norm.double() ** norm_type
    all_reduce(total, op='sum', group=group)
    return (total ** (1.0 / norm_type)).to(norm.dtype)
