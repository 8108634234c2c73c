"""Run a model on one rank, although it belongs to several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable

import torch
import torch.nn.functional as F
from mmengine.dist import get_world_size
from torch import Tensor
from torch.futures import Future
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode


class CollectiveRefused(RuntimeError):
    """A replay that wanted to talk to other ranks, which do not listen.

    Args:
        op (str): The operation.
    """

    def __init__(self, op: str) -> None:
        self.op = op
        super().__init__(f'{op} would wait for ranks that do not replay')


class _AloneMode(TorchDispatchMode):
    """Answers for the other ranks, as if they had the same batch."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, 'namespace', '') not in _NAMESPACES:
            return func(*args, **(kwargs or {}))
        answer = _ANSWERS.get(str(func))
        if answer is None or _make_work is None:
            raise CollectiveRefused(str(func))
        done: Future[None] = Future()
        done.set_result(None)
        return answer(*args), _make_work(done).boxed()


_NAMESPACES = ('c10d', '_c10d_functional', 'c10d_functional')


def _find_work_maker() -> Callable[[Any], Any] | None:
    """What makes the handle of a collective call; torch 2.1 has none."""
    c10d = getattr(torch._C, '_distributed_c10d', None)
    if not hasattr(getattr(c10d, 'Work', None), 'boxed'):
        return None
    return getattr(c10d, '_create_work_from_future', None)


_make_work = _find_work_maker()


def _all_reduce(tensors: list[Tensor], *args: Any) -> list[Tensor]:
    # Which reduction it is cannot be read; most are sums.
    for one in tensors:
        one.mul_(get_world_size())
    return tensors


def _all_gather(
    outputs: list[list[Tensor]], inputs: list[Tensor], *args: Any
) -> list[list[Tensor]]:
    for gathered, own in zip(outputs, inputs):
        for one in gathered:
            one.copy_(own)
    return outputs


_ANSWERS: dict[str, Callable[..., Any]] = {
    'c10d.allreduce_.default': _all_reduce,
    'c10d.broadcast_.default': lambda tensors, *args: tensors,
    'c10d.allgather_.default': _all_gather,
}


@contextmanager
def local_ranks(model: Module) -> Iterator[None]:
    """Let a model run without the other ranks, as if all had its batch.

    To be used inside of :func:`~mmstable.forensics.traceless.traceless`,
    which undoes what is changed here.

    Args:
        model (Module): The model.
    """
    if get_world_size() == 1:
        yield
        return
    for module in model.modules():
        if is_synchronised(module):
            vars(module)['forward'] = partial(_normalise, module)
        if isinstance(module, DistributedDataParallel):
            # Parts of a model that are wrapped one by one.
            module.require_forward_param_sync = False
            module.require_backward_grad_sync = False
    with _AloneMode():
        yield


def is_synchronised(module: Module) -> bool:
    """Whether a module normalises by statistics of all ranks."""
    return isinstance(module, _BatchNorm) and ('Sync' in type(module).__name__)


def _normalise(module: Any, inputs: Tensor) -> Tensor:
    """What SyncBatchNorm does where there is one rank."""
    if module.training and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
    momentum = 0.0 if module.momentum is None else module.momentum
    use_batch = module.training or module.running_mean is None
    return F.batch_norm(
        inputs,
        module.running_mean,
        module.running_var,
        module.weight,
        module.bias,
        use_batch,
        momentum,
        module.eps,
    )
