"""Count what an operation asks of torch's dispatcher."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class DispatchCounts(TorchDispatchMode):
    """Counts host reads and large allocations while it is active.

    Args:
        large (int): From how many values on a new tensor is counted.
    """

    def __init__(self, large: int) -> None:
        super().__init__()
        self.host_reads = 0
        self.large_allocations = 0
        self._large = large

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            self.host_reads += 1
        output = func(*args, **(kwargs or {}))
        known = _storages((args, kwargs))
        for tensor in _tensors(output):
            is_new = _storage(tensor) not in known
            self.large_allocations += is_new and tensor.numel() >= self._large
        return output


def count(action: Callable[[], object], large: int) -> DispatchCounts:
    """Count while an action runs once.

    Args:
        action (Callable): What to run.
        large (int): From how many values on a new tensor is counted.
    """
    with DispatchCounts(large) as counts:
        action()
    return counts


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storages(tree: Any) -> set[int]:
    return {_storage(tensor) for tensor in _tensors(tree)}
