"""Ask a device for something that it may never answer."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

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


def record_event(device: torch.device) -> Any | None:
    """An event after all that was queued on a device; None for a CPU."""
    module = device_module(device)
    if not hasattr(module, 'Event'):
        return None
    event = module.Event()  # type: ignore[union-attr]
    event.record()
    return event
