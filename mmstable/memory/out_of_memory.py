"""Is this error about memory, and what of it can be freed?"""

from __future__ import annotations

import ctypes
import gc
import traceback
from functools import cache
from typing import Any, Callable

import torch

# It has another name before torch 2.5.
_TYPES: tuple[type[BaseException], ...] = (
    getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError),
    torch.cuda.OutOfMemoryError,
    MemoryError,
)
# What libraries and back-ends say in a plain RuntimeError, in lower case.
_WORDS = (
    'out of memory',
    "can't allocate memory",
    'cannot allocate memory',
    'not enough memory',
    'insufficient memory',
    'alloc_failed',
    'cublas_status_not_initialized when calling cublascreate',
    'memory allocation failed',
    'failed to allocate memory',
    # Ascend: the runtime's code for it.
    'error code is 207018',
    'ej0001',
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory left.

    Args:
        error (BaseException): Any error.
    """
    if isinstance(error, _TYPES):
        return True
    if not isinstance(error, (RuntimeError, OSError)):
        return False
    text = str(error).lower()
    return any(word in text for word in _WORDS)


def release(error: BaseException) -> None:
    """Drop what an error keeps alive: all variables of the failed calls.

    Without that the activations of a failed forward pass stay in memory as
    long as somebody holds the error.

    Args:
        error (BaseException): An error that was caught.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        # Frames that still run are left alone.
        traceback.clear_frames(one.__traceback__)
        for frame, _ in traceback.walk_tb(one.__traceback__):
            # Whoever has read this before has left a copy in the frame,
            # which is renewed now.
            _ = frame.f_locals
        pending += [one.__cause__, one.__context__]


def empty_cache(device: torch.device, everything: bool = True) -> None:
    """Give back all memory of a device that nobody uses.

    Args:
        device (torch.device): Where the model is.
        everything (bool): Whether to look for it among old objects, too,
            which may take a second. Defaults to True.
    """
    gc.collect(2 if everything else 1)
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, 'empty_cache'):
        module.empty_cache()
    trim = _trimmer()
    if trim is not None and device.type == 'cpu':
        trim(0)


@cache
def _trimmer() -> Callable[[int], int] | None:
    """What gives free memory of the host back; only glibc has it."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
