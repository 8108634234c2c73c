"""What the allocator of a device says of itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mmstable.events.samples import device_memory


class DeviceReading(NamedTuple):
    """Bytes on a device.

    Args:
        allocated (int): In tensors now.
        peak (int): In tensors at most.
        reserved (int): Taken from the device, in use or not.
        retries (int): How often the allocator had to give everything back
            and try again.
    """

    allocated: int
    peak: int
    reserved: int
    retries: int


def read_device(device: torch.device) -> DeviceReading | None:
    """What the allocator of a device holds; None on a CPU."""
    allocated, peak = device_memory(device)
    module: Any = getattr(torch, device.type, None)
    if allocated is None or peak is None:
        return None
    reserved = getattr(module, 'memory_reserved', None)
    stats = getattr(module, 'memory_stats', None)
    counts = {} if stats is None else stats(device)
    return DeviceReading(
        allocated,
        peak,
        allocated if reserved is None else int(reserved(device)),
        int(counts.get('num_alloc_retries', 0)),
    )
