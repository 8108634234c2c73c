"""What is known of an out-of-memory error before its traces are dropped?"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

FORWARD, BACKWARD, OPTIMIZER = 'forward', 'backward', 'optimizer'

_UNITS = {'': 1, 'k': 2**10, 'm': 2**20, 'g': 2**30, 't': 2**40}
_REQUESTED = re.compile(
    r'tried to allocate\s+([\d.]+)\s*(?:([kmgt])i?b\b|bytes)', re.IGNORECASE
)
_BACKWARD = (Tensor.backward.__code__, torch.autograd.backward.__code__)
_LONGEST = 2000


@dataclass(frozen=True)
class Failure:
    """An out-of-memory error.

    Args:
        phase (str): 'forward', 'backward' or 'optimizer'.
        text (str): What the error says.
        where (str): The innermost line of Python.
        requested (int, optional): Bytes that were asked for.
        allocated (int, optional): Bytes of tensors on the device.
        reserved (int, optional): Bytes that its allocator holds.
        peak (int, optional): The most bytes of tensors until then.
    """

    phase: str
    text: str
    where: str
    requested: int | None
    allocated: int | None
    reserved: int | None
    peak: int | None

    @classmethod
    def of(cls, error: BaseException, device: torch.device) -> Failure:
        """Look at an error and the device that it came from.

        Args:
            error (BaseException): The error.
            device (torch.device): Where the model is.
        """
        frames = traceback.extract_tb(error.__traceback__)
        where = f'{frames[-1].filename}:{frames[-1].lineno}' if frames else ''
        module: Any = getattr(torch, device.type, None)
        return cls(
            phase=_phase(error),
            text=str(error)[:_LONGEST],
            where=where,
            requested=requested_bytes(str(error)),
            allocated=_ask(module, 'memory_allocated', device),
            reserved=_ask(module, 'memory_reserved', device),
            peak=_ask(module, 'max_memory_allocated', device),
        )


def requested_bytes(text: str) -> int | None:
    """How much an error says that was asked for.

    Args:
        text (str): What the error says.
    """
    match = _REQUESTED.search(text)
    if match is None:
        return None
    unit = (match[2] or '').lower()
    return int(float(match[1]) * _UNITS[unit])


def was_inside(error: BaseException, owner: object) -> bool:
    """Whether an error came out of a method of this object.

    Args:
        error (BaseException): The error, with its frames.
        owner (object): Any object.
    """
    return any(
        frame.f_locals.get('self') is owner
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _phase(error: BaseException) -> str:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in _BACKWARD:
            return BACKWARD
        owner = frame.f_locals.get('self')
        if frame.f_code.co_name == 'step' and (
            isinstance(owner, Optimizer) or hasattr(owner, 'optimizer')
        ):
            return OPTIMIZER
    return FORWARD


def _ask(module: Any, name: str, device: torch.device) -> int | None:
    ask = getattr(module, name, None)
    return None if ask is None else int(ask(device))
