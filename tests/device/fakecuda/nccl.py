"""A backend 'nccl' for the simulated device, carried by gloo.

It takes tensors of the rank's own device only, as nccl does.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.futures import Future

_KIND = 'fakenccl'
_NAMES = ('nccl', 'cuda:nccl')


class _Done(dist._Work):
    """A collective that is over when its call returns."""

    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self._future: Future = Future()
        self._future.set_result(result)

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> Future:
        return self._future


def _check(tensors: Any) -> None:
    for one in tensors:
        if isinstance(one, (list, tuple)):
            _check(one)
        elif not one.is_cuda:
            raise RuntimeError(
                'No backend type associated with device type cpu'
            )
        elif one.device.index != torch.cuda.current_device():
            raise RuntimeError(
                f'NCCL: tensor on {one.device}, but this rank uses cuda:'
                f'{torch.cuda.current_device()}: it would hang'
            )


class FakeNccl(dist.ProcessGroup):
    """A process group of gloo behind copies to the host."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._inner = dist.ProcessGroupGloo(
            dist.PrefixStore('gloo', store), rank, size, timeout
        )

    def getBackendName(self) -> str:
        return 'nccl'

    @property
    def pg_name(self) -> str:
        return 'nccl'

    @staticmethod
    def _on_host(tensors: Any) -> list[Any]:
        return [one.detach().cpu() for one in tensors]

    def _in_place(self, tensors: Any, call: Callable[..., Any]) -> _Done:
        _check(tensors)
        hosts = self._on_host(tensors)
        call(hosts).wait()
        with torch.no_grad():
            for one, host in zip(tensors, hosts):
                one.detach().copy_(host)
        return _Done(tensors)

    def allreduce(self, tensors: Any, opts: Any = None) -> _Done:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        is_average = op == dist.ReduceOp.AVG
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM if is_average else op
        done = self._in_place(
            tensors, lambda hosts: self._inner.allreduce(hosts, options)
        )
        if is_average:
            for one in tensors:
                one.div_(self.size())
        return done

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> _Done:
        for one in tensors:
            self.allreduce([one], opts)
        return _Done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> _Done:
        return self._in_place(
            tensors, lambda hosts: self._inner.broadcast(hosts, opts)
        )

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> _Done:
        _check(outputs)
        _check(inputs)
        for many, one in zip(outputs, inputs):
            hosts = [[torch.empty_like(out, device='cpu') for out in many]]
            self._inner.allgather(hosts, self._on_host([one])).wait()
            for out, host in zip(many, hosts[0]):
                out.copy_(host)
        return _Done(outputs)

    def _allgather_base(
        self, output: Any, given: Any, opts: Any = None
    ) -> _Done:
        parts = list(output.view(self.size(), -1).unbind(0))
        self.allgather([parts], [given.reshape(-1)])
        return _Done([output])

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> _Done:
        _check(inputs)
        like = inputs[0]
        hosts = [
            [torch.empty_like(like, device='cpu') for _ in range(self.size())]
        ]
        self._inner.allgather(hosts, self._on_host(inputs)).wait()
        if self.rank() == opts.rootRank:
            for out, host in zip(outputs[0], hosts[0]):
                out.copy_(host)
        return _Done(outputs)

    def reduce(self, tensors: Any, opts: Any) -> _Done:
        options = dist.AllreduceOptions()
        options.reduceOp = opts.reduceOp
        return self._in_place(
            tensors, lambda hosts: self._inner.allreduce(hosts, options)
        )

    def _reduce_scatter_base(
        self, output: Any, given: Any, opts: Any = None
    ) -> _Done:
        total = given.clone()
        self.allreduce([total], opts)
        own = total.view(self.size(), -1)[self.rank()]
        output.copy_(own.view_as(output))
        return _Done([output])

    def barrier(self, opts: Any = None) -> Any:
        # As that of nccl, which reduces a tensor of the current device.
        torch.zeros(1, device='cuda')
        return self._inner.barrier()


def install() -> None:
    """Let torch.distributed take this backend for nccl."""
    dist.Backend.register_backend(_KIND, FakeNccl, devices=['cuda'])
    c10d._NCCL_AVAILABLE = True
    torch._C._nccl_version = lambda: (2 << 32) | (21 << 16) | 5
    torch._C._nccl_version_suffix = lambda: b''
    init, new, get = (
        dist.init_process_group,
        dist.new_group,
        dist.get_backend,
    )
    default_device = c10d._get_pg_default_device

    def renamed(backend: Any) -> Any:
        is_nccl = isinstance(backend, str) and backend.lower() in _NAMES
        return _KIND if is_nccl else backend

    def init_process_group(
        backend: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        kwargs.pop('device_id', None)
        init(renamed(backend or 'nccl'), *args, **kwargs)

    def new_group(
        ranks: Any = None,
        timeout: Any = None,
        backend: Any = None,
        **kwargs: Any,
    ) -> Any:
        if backend is None and dist.is_initialized():
            backend = get()
        return new(ranks, timeout, renamed(backend), **kwargs)

    def get_backend(group: Any = None) -> str:
        found = get(group)
        return 'nccl' if found == _KIND else found

    def get_device(group: Any = None) -> torch.device:
        if get(group) == _KIND:
            return torch.device('cuda', torch.cuda.current_device())
        return default_device(group)

    replaced = dict(
        init_process_group=init_process_group,
        new_group=new_group,
        get_backend=get_backend,
        is_nccl_available=lambda: True,
    )
    for name, call in replaced.items():
        setattr(dist, name, call)
        setattr(c10d, name, call)
    c10d._get_pg_default_device = get_device
    c10d._get_object_coll_device = lambda group=None: get_device(group).type
