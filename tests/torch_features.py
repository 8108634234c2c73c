"""What the torch under the tests cannot do, and the skips that say so.

A test that needs such a thing fails by torch's error, or by the one line in
which mmstable refuses; ``conftest.py`` makes a skip of that. Nothing is
skipped where torch can do it.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import pytest
import torch

from mmstable.optim.half_precision import (
    _half_works_on_cpu as half_works_on_cpu,
)

_HALF = 'autocast to float16 on a CPU'


def sgd(params: Any, fused: bool = False, **kwargs: Any) -> torch.optim.SGD:
    """SGD, whether or not this torch knows a fused one."""
    if fused or _sgd_knows_fused():
        kwargs['fused'] = fused
    return torch.optim.SGD(params, **kwargs)


def why_not(failure: str) -> str | None:
    """The missing part of torch that a failure is about, if it is one.

    Args:
        failure (str): All that pytest prints of a failed test.
    """
    for text, reason in _missing().items():
        if text in failure:
            return f'torch {torch.__version__} has no {reason}'
    return None


def skip_without_half() -> None:
    """For fixtures of many tests: only the first would show the refusal."""
    if not half_works_on_cpu():
        pytest.skip(f'torch {torch.__version__} has no {_HALF}')


@cache
def _missing() -> dict[str, str]:
    """What errors say of things that this torch lacks, and their names."""
    missing = {}
    if not _sgd_knows_fused():
        missing["__init__() got an unexpected keyword argument 'fused'"] = (
            'fused SGD'
        )
    if not fuses_on_cpu():
        missing['`fused=True` requires all the params to be'] = (
            'fused optimizers on a CPU'
        )
    if not hasattr(torch.amp, 'GradScaler'):
        missing["module 'torch.amp' has no attribute 'GradScaler'"] = (
            'GradScaler for a CPU'
        )
    if not half_works_on_cpu():
        missing['cannot autocast to float16 on a CPU'] = _HALF
        missing['在 CPU 上不支持 float16 autocast'] = _HALF
        missing['AutocastCPU only support Bfloat16'] = _HALF
    if not _shards_on_cpu():
        missing['Stream() takes no arguments'] = 'FSDP on a CPU'
    return missing


def _shards_on_cpu() -> bool:
    # FSDP orders its streams by priority.
    try:
        torch.cpu.Stream(priority=-1)
    except TypeError:
        return False
    return True


def _sgd_knows_fused() -> bool:
    return 'fused' in inspect.signature(torch.optim.SGD).parameters


def fuses_on_cpu() -> bool:
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)
    except RuntimeError:
        return False
    return True
