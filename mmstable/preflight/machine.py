"""What does the machine have that a config can ask too much of?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True)
class Machine:
    """Facts about a machine; None is what nobody knows.

    Args:
        cores (int): Cores that this process may use.
        memory (int, optional): Bytes of RAM that are free.
        shared_memory (int, optional): Free bytes of /dev/shm.
        gpus (int): How many it has.
        bf16 (Callable): Whether its GPUs can do bfloat16. Asked only if that
            matters: the answer starts CUDA.
        disk (Callable): Free bytes where a path is, or would be.
        exists (Callable): Whether there is such a file or folder.
    """

    cores: int
    memory: int | None
    shared_memory: int | None
    gpus: int
    bf16: Callable[[], bool | None]
    disk: Callable[[str], int | None]
    exists: Callable[[str], bool]

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        return cls(
            cores=_cores(),
            memory=psutil.virtual_memory().available,
            shared_memory=_free('/dev/shm'),
            gpus=torch.cuda.device_count(),
            bf16=_can_do_bf16,
            disk=_free_above,
            exists=os.path.exists,
        )


def _cores() -> int:
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _can_do_bf16() -> bool | None:
    """None without an NVIDIA GPU: others, and CPUs, can do it."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return None
    device = int(os.environ.get('LOCAL_RANK', '0'))
    # Older ones emulate it, and torch calls that supported.
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _free_above(path: str) -> int | None:
    """Free bytes at a path, or at the nearest folder above that exists."""
    folder = os.path.abspath(path)
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return _free(folder)


def _free(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None
