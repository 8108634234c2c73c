"""Copy tensors to host memory, and keep the newest states of a run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from mmstable.optim.buffers import can_write
from mmstable.state.device import copy_stream, host_block


class HostCopy(NamedTuple):
    """The values of a tensor, and the device it was on."""

    values: Tensor
    device: torch.device

    def restore(self, present: Tensor | None, on_host: bool = False) -> Tensor:
        """Return a tensor with these values.

        Args:
            present (Tensor, optional): The one to write to, if it can hold
                them.
            on_host (bool): Whether to return the copy itself, because the
                device is lost. Defaults to False.
        """
        if on_host:
            return self.values
        if present is None or not can_write(present, self.values):
            return self.values.clone().to(self.device)
        with torch.no_grad():
            return present.copy_(self.values)


# A dtype, and whether to pin host memory for copies of a tensor.
_Kind = tuple[torch.dtype, bool]
# MPS shares the memory of the host, and there pinned memory may be a tensor
# of the device: https://github.com/pytorch/pytorch/issues/181374.
_NOT_PINNED = ('cpu', 'mps')


class HostMemory:
    """Host memory for copies, in one block for each dtype.

    A block that an accelerator copies to is pinned: only then copies run
    beside the training.

    Args:
        tensors (Iterable[Tensor]): What is going to be copied.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._sizes = _sizes(tensors)
        self._blocks = {
            kind: host_block(count, kind[0], pinned=kind[1])
            for kind, count in self._sizes.items()
        }
        self._used: Counter[_Kind] = Counter()
        # Copies of whole storages, by the address of the original.
        self._copies: dict[int, Tensor] = {}
        # Copies that are made beside the training: memory and tensor.
        self.late: list[tuple[Tensor, Tensor]] | None = None
        # Whether a checkpoint is being written from it.
        self.is_lent = False

    @property
    def blocks(self) -> list[Tensor]:
        """The memory that it has taken."""
        return list(self._blocks.values())

    def reuse(self, tensors: Iterable[Tensor]) -> HostMemory:
        """Return memory for other copies: this one, if it is as large."""
        if self.is_lent or _sizes(tensors) != self._sizes:
            return HostMemory(tensors)
        self._used.clear()
        self._copies.clear()
        return self

    def copy(self, tensor: Tensor, late: bool = False) -> HostCopy:
        """Copy a tensor, without waiting for an accelerator.

        Args:
            tensor (Tensor): The tensor.
            late (bool): Whether nothing but a step changes it, so that it
                can be copied beside the next forward pass. Defaults to
                False.
        """
        values = self._take(tensor)
        if late and self.late is not None and not is_opaque(tensor):
            self.late.append((values, tensor.detach()))
        else:
            # What is queued after this cannot overtake it.
            values.copy_(tensor.detach(), non_blocking=True)
        if not is_opaque(tensor) and values.stride() == tensor.stride():
            storage = tensor.untyped_storage()
            if 0 < storage.nbytes() == tensor.numel() * tensor.element_size():
                self._copies[storage._cdata] = values
        return HostCopy(values, tensor.device)

    def storages(self) -> dict[int, UntypedStorage]:
        """Return the copies of whole storages, by ``_cdata`` of the original.

        They share the memory of the copies. The addresses are valid only as
        long as the tensors that were copied.
        """
        return {key: _storage(one) for key, one in self._copies.items()}

    def _take(self, tensor: Tensor) -> Tensor:
        kind = _kind(tensor)
        begin = self._used[kind]
        end = begin + tensor.numel()
        if is_opaque(tensor) or end > self._sizes[kind]:
            return torch.empty_like(tensor, device='cpu')
        self._used[kind] = end
        # With strides like those of the tensor, or it is copied twice.
        strides = torch.empty_like(tensor, device='meta').stride()
        block = self._blocks[kind]
        return block.as_strided(tensor.shape, strides, begin)


def _storage(values: Tensor) -> UntypedStorage:
    """Return a storage that holds the values of a dense tensor, only."""
    flat = values.as_strided((values.numel(),), (1,)).view(torch.uint8)
    return torch.from_numpy(flat.numpy()).untyped_storage()


def is_opaque(tensor: Tensor) -> bool:
    """Whether a tensor is more than values in one piece of memory."""
    # A DTensor is copied to another DTensor only.
    return tensor.layout is not torch.strided or hasattr(tensor, 'to_local')


def _kind(tensor: Tensor) -> _Kind:
    return tensor.dtype, tensor.device.type not in _NOT_PINNED


def _sizes(tensors: Iterable[Tensor]) -> Counter[_Kind]:
    sizes: Counter[_Kind] = Counter()
    for one in tensors:
        if not is_opaque(one):
            sizes[_kind(one)] += one.numel()
    return sizes


@dataclass
class Snapshot:
    """The state of a run in host memory.

    Args:
        modules (dict): Weights, buffers and averages, by section and name.
        states (dict): State of each parameter, by optimizer.
        settings (list): Those of all groups of all optimizers.
        scales (dict): State of each loss scaler, by optimizer.
        schedules (list): State of each schedule.
        memory (HostMemory): The memory it took.
        meta (dict[str, int]): Epoch and iteration, as in a checkpoint.
        progress (dict): Random generators of this rank, and its position in
            the data.
        copied (Any, optional): The event after the last copy; None once
            everything is in host memory. Defaults to None.
    """

    modules: dict[str, dict[str, HostCopy]]
    states: dict[str, list[tuple[Tensor, dict[str, Any]]]]
    settings: list[dict[str, Any]]
    scales: dict[str, Any]
    schedules: list[dict[str, Any]]
    memory: HostMemory
    meta: dict[str, int]
    progress: dict[str, Any]
    copied: Any | None = None

    def settle(self) -> bool:
        """Whether everything has arrived in host memory, without waiting.

        To be called while the device works: a lost one does not answer.
        """
        if self.copied is not None and self.copied.query():
            self.copied = None
        return self.copied is None

    def copy_seconds(self) -> float:
        """Seconds that a device took to copy it; it must be the newest."""
        blocks = self.modules['state_dict'].values()
        device = next((one.device for one in blocks), torch.device('cpu'))
        return copy_stream(device).seconds()

    def wait(self) -> None:
        """Wait until everything has arrived in host memory."""
        copied = self.copied
        if copied is not None:
            copied.synchronize()


class Snapshots:
    """The newest, and an older one.

    A rollback goes to the newest one. If that did not help, that is, if the
    next rollback comes before a new one was taken, it goes to the older one.

    Args:
        span (int): How many iterations the older one may be behind.
        count (int): How many are kept, 1 or 2. Defaults to 2.
    """

    COUNT = 2

    def __init__(self, span: int, count: int = COUNT) -> None:
        self.span = span
        self.count = count
        self._kept: list[tuple[int, Snapshot]] = []
        self._used: Snapshot | None = None

    def outdated(self, iteration: int) -> Snapshot | None:
        """The one that the next takes the place of, if there are two.

        Args:
            iteration (int): Of the next.
        """
        if len(self._kept) < self.count:
            return None
        return self._kept[self._outdated(iteration)][1]

    def _outdated(self, iteration: int) -> int:
        # A slow divergence is not undone by a state that is nearly as new.
        is_recent = iteration - self._kept[0][0] <= self.span
        return int(is_recent and self.count > 1)

    def add(self, iteration: int, snapshot: Snapshot) -> None:
        """Keep one, in the place of an outdated one if there are two."""
        if len(self._kept) == self.count:
            del self._kept[self._outdated(iteration)]
        self._kept.append((iteration, snapshot))
        self._used = None

    def newest(self) -> Snapshot | None:
        """The newest one that is known to be in host memory."""
        settled = [one for __, one in self._kept if one.copied is None]
        return settled[-1] if settled else None

    def candidates(self) -> list[Snapshot]:
        """What may be restored, the newest first."""
        kept = [snapshot for _, snapshot in reversed(self._kept)]
        return kept[1:] if kept[1:] and kept[0] is self._used else kept

    def discard_newest(self) -> None:
        """Let :meth:`choose` give the older one."""
        self._kept.pop()

    def choose(self) -> tuple[int, Snapshot] | None:
        """Which to restore, and its iteration; None if there is none."""
        if len(self._kept) > 1 and self._kept[-1][1] is self._used:
            # What did not help is nothing to keep.
            self._kept.pop()
        if not self._kept:
            return None
        self._used = self._kept[-1][1]
        return self._kept[-1]
