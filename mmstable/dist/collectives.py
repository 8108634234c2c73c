"""Collectives, how ranks share gradients, and joining the ranks of a run.

On a single process the collectives return at once.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Callable, TypeVar

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import (
    all_gather_object,
    all_reduce,
    broadcast_object_list,
    get_rank,
    get_world_size,
    init_dist,
)
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from mmstable.dist.launch import set_rank_variables
from mmstable.dist.store import StoreClient, has_keys, leave_value
from mmstable.errors import MMStableError
from mmstable.messages import _

_Item = TypeVar('_Item')


def _reduce(number: Any, op: str) -> Any:
    """Reduce a number, or a list of them, of all ranks."""
    if get_world_size() == 1:
        return number
    reduced = torch.tensor(number)
    all_reduce(reduced, op=op)
    return reduced.tolist()


def any_rank(flag: bool) -> bool:
    """Whether ``flag`` is true on at least one rank. A collective call."""
    return flag if get_world_size() == 1 else bool(_reduce(int(flag), 'max'))


def any_rank_each(*flags: bool) -> list[bool]:
    """The same for several flags, in one collective call."""
    return list(map(bool, _reduce(list(map(int, flags)), 'max')))


def least_of_ranks(number: int) -> int:
    """The smallest ``number`` of all ranks. A collective call."""
    return _reduce(number, 'min')


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
    return _reduce(number, 'sum')


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
            return norm_over_ranks(norms, norm_type)
        for group in self.groups:
            norms = norm_over_ranks(norms, norm_type, group)
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

    def add(group: Any, *params: Any) -> None:
        if group not in shards.groups:
            shards.groups.append(group)
        cut.update(map(id, params))

    for module in model.modules():
        handle: Any = getattr(module, '_handle', None)
        if (
            isinstance(module, FullyShardedDataParallel)
            and handle is not None
            and handle.uses_sharded_strategy
        ):
            flat = handle.flat_param
            params = getattr(flat, '_params', None) or ()
            add(module.process_group, flat, *params)
    for one in model.parameters():
        param: Any = one
        for dim, placement in enumerate(getattr(param, 'placements', ())):
            if placement.is_shard():
                add(param.device_mesh.get_group(dim), param)
    if any(get_rank(group) != 0 for group in shards.groups):
        ids = {id(param) for param in model.parameters()}
        shards.repeated = ids - cut
    return shards


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is one of torch's distributed ones."""
    # By what it has: old torch keeps the class elsewhere.
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, 'to_local')


_LEFT = 'rank_zero_has_left'
# Seconds that other ranks wait for that, and that a call may take.
_END_TIMEOUT_S = 5.0


class ReportedByRankZero(MMStableError):
    """An error that rank 0 tells the user.

    Args:
        error (MMStableError): The error.
    """

    def __init__(self, error: MMStableError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code


def join_ranks(cfg: Config) -> str | None:
    """Start the process group, before anything is decided.

    The backend is nccl for CUDA and gloo for CPUs, unless the config says
    otherwise. mmengine itself asks CUDA for a device while it joins the
    ranks, and wraps the model for one; both fail without any.

    Args:
        cfg (Config): The config, changed in place for CPUs.

    Returns:
        str or None: What the user should know.
    """
    if cfg.launcher == 'none' or torch.distributed.is_initialized():
        return None
    set_rank_variables(cfg.launcher)
    settings = dict((cfg.get('env_cfg') or {}).get('dist_cfg') or {})
    if get_device() != 'cpu':
        # By mmengine, which knows the backends of other accelerators.
        init_dist(cfg.launcher, **{'backend': 'nccl', **settings})
        note = None
    else:
        note = _join_cpus(settings)
        _wrap_for_cpu(cfg)
    if get_rank() == 0:
        atexit.register(_mark_end, StoreClient('end', _END_TIMEOUT_S))
    from mmstable.dist.failure import watch_ranks

    watch_ranks()
    return note


def _mark_end(store: StoreClient) -> None:
    # The store may be gone before.
    with suppress(RuntimeError):
        leave_value(store, _LEFT, True)


def leave_after_rank_zero() -> None:
    """Wait a few seconds until rank 0 has reported why the run ends.

    torchrun ends all ranks as soon as one of them has failed.
    """
    if not torch.distributed.is_initialized() or get_rank() == 0:
        return
    deadline = time.monotonic() + _END_TIMEOUT_S
    store = StoreClient('end', _END_TIMEOUT_S)
    # The store may have ended with rank 0.
    with suppress(RuntimeError):
        while time.monotonic() < deadline and not has_keys(store, [_LEFT]):
            time.sleep(0.05)


def _join_cpus(settings: dict[str, Any]) -> str | None:
    backend, note = settings.pop('backend', None) or 'gloo', None
    if backend == 'nccl':
        # Every OpenMMLab config says so, and nccl knows GPUs only.
        backend, note = 'gloo', _('no GPU here: backend gloo instead of nccl')
    if 'timeout' in settings:
        settings['timeout'] = timedelta(seconds=settings['timeout'])
    # These are for mmengine and its launchers.
    for key in ('port', 'init_backend'):
        settings.pop(key, None)
    torch.distributed.init_process_group(backend, **settings)
    return note


def _wrap_for_cpu(cfg: Config) -> None:
    wrapper = dict(cfg.get('model_wrapper_cfg') or {})
    if not wrapper:
        wrapper['broadcast_buffers'] = False
        wrapper['find_unused_parameters'] = cfg.get(
            'find_unused_parameters', False
        )
    wrapper.setdefault('type', 'MMDistributedDataParallel')
    # Given, because mmengine fills in the local rank otherwise.
    wrapper.setdefault('device_ids', None)
    # That one has a strategy instead.
    if cfg.get('runner_type') != 'FlexibleRunner':
        cfg.model_wrapper_cfg = wrapper


def decide_on_rank_zero(decide: Callable[[], Any]) -> Any:
    """Let rank 0 decide for all of them. A collective call.

    Args:
        decide (Callable): Called on rank 0. If it raises an error of
            mmstable, all ranks do; the others :class:`ReportedByRankZero`.
    """
    told: list[Any] = [None, None]
    if get_rank() == 0:
        try:
            told[0] = decide()
        except MMStableError as error:
            told[1] = error
    broadcast_object_list(told)
    if told[1] is not None:
        raise told[1] if get_rank() == 0 else ReportedByRankZero(told[1])
    return told[0]
