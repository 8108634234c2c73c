"""How do the ranks of a run share the gradients of a model?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from mmengine.dist import get_rank, get_world_size
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mmstable.distributed import collectives as dist


class Sharing(Enum):
    """What a gradient on one rank has to do with those on the others."""

    # There is one rank.
    ALONE = 'alone'
    # All ranks hold the same average of all gradients, as with DDP.
    REDUCED = 'reduced'
    # Every rank holds its own part of it, as with FSDP.
    SHARDED = 'sharded'
    # Nobody knows: the model is not wrapped.
    APART = 'apart'


def find_sharing(model: Module) -> Sharing:
    """How the ranks share the gradients of this model."""
    if get_world_size() == 1:
        return Sharing.ALONE
    if find_shards(model).groups:
        return Sharing.SHARDED
    replicated = (DistributedDataParallel, FullyShardedDataParallel)
    if any(isinstance(module, replicated) for module in model.modules()):
        return Sharing.REDUCED
    return Sharing.APART


@dataclass
class Shards:
    """Which ranks hold parts of which parameters.

    Args:
        groups (list): Process groups over which parameters are cut in parts;
            none without any.
        repeated (set[int]): Ids of the parameters that this rank holds a
            mere copy of: another rank counts them.
    """

    groups: list[Any] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)

    def total_norms(self, norms: Tensor, norm_type: float) -> Tensor:
        """Norms over all ranks. A collective call."""
        if not self.groups:
            return dist.norm_over_ranks(norms, norm_type)
        for group in self.groups:
            norms = dist.norm_over_ranks(norms, norm_type, group)
        return norms

    def count_once(self, params: Sequence[Tensor], norms: Tensor) -> Tensor:
        """The norms of gradients, without those that others count."""
        again = [
            index
            for index, param in enumerate(params)
            if id(param) in self.repeated
        ]
        if not again:
            return norms
        counted = norms.clone()
        # A NaN is kept: it must be seen by those who hold it, too.
        counted[again] = counted[again] * 0.0
        return counted


def find_shards(model: Module) -> Shards:
    """Which parameters of a model are cut into parts, and among whom."""
    shards = Shards()
    cut: set[int] = set()
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            _add_flat(module, shards, cut)
    for param in model.parameters():
        if is_dtensor(param):
            _add_dtensor(param, shards, cut)
    first = all(get_rank(group) == 0 for group in shards.groups)
    for param in model.parameters():
        if not first and id(param) not in cut:
            shards.repeated.add(id(param))
    return shards


def _add_flat(module: Any, shards: Shards, cut: set[int]) -> None:
    handle = module._handle
    if handle is None or not handle.uses_sharded_strategy:
        return
    _add_group(module.process_group, shards)
    flat = handle.flat_param
    cut.add(id(flat))
    cut.update(id(param) for param in getattr(flat, '_params', None) or ())


def _add_dtensor(param: Any, shards: Shards, cut: set[int]) -> None:
    for dim, placement in enumerate(param.placements):
        if placement.is_shard():
            _add_group(param.device_mesh.get_group(dim), shards)
            cut.add(id(param))


def _add_group(group: Any, shards: Shards) -> None:
    if group not in shards.groups:
        shards.groups.append(group)


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is one of torch's distributed ones."""
    # By what it has: old torch keeps the class elsewhere.
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, 'to_local')
