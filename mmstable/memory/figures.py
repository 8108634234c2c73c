"""The figures of a reading, for dashboards."""

from __future__ import annotations

from mmstable.memory.device_memory import DeviceReading
from mmstable.memory.process_tree import Reading

_MIB = 1 << 20


def figures_of(
    reading: Reading, device: DeviceReading | None
) -> dict[str, float]:
    """Names and values; sizes in MiB.

    Args:
        reading (Reading): Of the host.
        device (DeviceReading, optional): Of the device; None on a CPU.
    """
    figures: dict[str, float] = {
        'host_mib': reading.tree / _MIB,
        'host_left_mib': reading.room.left / _MIB,
        'workers_mib': reading.workers / _MIB,
        'descriptors': max(reading.main_files, reading.worker_files),
    }
    if reading.shared is not None:
        used = reading.shared.limit - reading.shared.left
        figures['shared_mib'] = used / _MIB
    if device is not None:
        figures['device_allocated_mib'] = device.allocated / _MIB
        figures['device_peak_mib'] = device.peak / _MIB
        figures['device_reserved_mib'] = device.reserved / _MIB
        figures['device_retries'] = device.retries
    return {f'train/stable/memory/{k}': v for k, v in figures.items()}
