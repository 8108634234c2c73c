"""Ask a device for something that it may never answer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmstable.optim.observer import before_step

# Seconds until a device that has work left counts as hung.
_PATIENCE_S = 3.0


def device_module(device: torch.device) -> Any | None:
    """Return the module of torch for a device; None for a CPU."""
    if device.type == 'cpu':
        return None
    return getattr(torch, device.type, None)


def answers(device: torch.device, timeout_s: float = _PATIENCE_S) -> bool:
    """Whether a device completes its work within some seconds.

    One that has not may be stuck in a collective, or be lost: whatever reads
    it then would not return. A thread that waits is left behind.

    Args:
        device (torch.device): The device.
        timeout_s (float): Seconds to wait. Defaults to 3.0.
    """
    module = device_module(device)
    if not hasattr(module, 'synchronize'):
        return True
    done: list[bool] = []

    def wait() -> None:
        try:
            module.synchronize()  # type: ignore[union-attr]
        except RuntimeError:
            # Lost, which every later call will raise again.
            return
        done.append(True)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return bool(done)


def host_block(count: int, dtype: torch.dtype, pinned: bool) -> Tensor:
    """Take host memory for so many values.

    Args:
        count (int): The number of values.
        dtype (torch.dtype): Their type.
        pinned (bool): Whether an accelerator copies to it.
    """
    block = torch.empty(count, dtype=dtype)
    if not pinned or _register(block):
        return block
    # Blocks of torch's own allocator have powers of two as sizes.
    return torch.empty(count, dtype=dtype, pin_memory=True)


def _register(block: Tensor) -> bool:
    """Pin memory as it is, where the runtime library can."""
    cudart: Any = torch.cuda.cudart() if torch.cuda.is_available() else None
    register = getattr(cudart, 'cudaHostRegister', None)
    pointer, size = block.data_ptr(), block.numel() * block.element_size()
    if register is None or size == 0 or int(register(pointer, size, 0)):
        return False
    storage = block.untyped_storage()
    weakref.finalize(storage, cudart.cudaHostUnregister, pointer)
    return True


class CopyStream:
    """A stream of a device that copies to host memory beside the training.

    Training continues while it copies; code that changes a tensor that is
    being copied has to :meth:`wait` first. Steps of known optimizers do.

    Args:
        device (torch.device): The device. On a CPU, copies are made at once.
    """

    def __init__(self, device: torch.device) -> None:
        module: Any = device_module(device)
        self._module: Any = module if hasattr(module, 'Event') else None
        has_streams = self._module is not None and hasattr(module, 'Stream')
        self._stream = module.Stream() if has_streams else None
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        # Events around the newest copies.
        self._begin: Any = None
        self.end: Any = None

    @property
    def is_beside(self) -> bool:
        """Whether copies run beside the training."""
        return self._stream is not None

    def copy(
        self,
        pairs: Iterable[tuple[Tensor, Tensor]],
        optimizers: Iterable[Optimizer],
    ) -> None:
        """Copy tensors of the device to host memory, after all work so far.

        Args:
            pairs (Iterable): Host memory and tensor of each copy.
            optimizers (Iterable[Optimizer]): Their steps wait for it.
        """
        stream = self._stream
        if self._module is None:
            return
        if stream is None:
            self.end = self._module.Event()
            self.end.record()
            return
        for one in optimizers:
            if one not in self._optimizers:
                self._optimizers.add(one)
                before_step(one, lambda *args: self.wait())
        stream.wait_stream(self._module.current_stream())
        with self._module.stream(stream):
            self._begin = self._module.Event(enable_timing=True)
            self._begin.record(stream)
            for values, tensor in pairs:
                values.copy_(tensor, non_blocking=True)
                # The allocator must not give its memory to others before.
                tensor.record_stream(stream)
            self.end = self._module.Event(enable_timing=True)
            self.end.record(stream)

    def wait(self) -> None:
        """Let later work of the training wait for the newest copies."""
        if self._stream is not None and self.end is not None:
            self._module.current_stream().wait_event(self.end)

    def seconds(self) -> float:
        """How long the newest copies took; they must have ended."""
        if self._begin is None:
            return 0.0
        milliseconds: float = self._begin.elapsed_time(self.end)
        return milliseconds / 1000


@cache
def copy_stream(device: torch.device) -> CopyStream:
    """Return the stream that copies from a device."""
    return CopyStream(device)
