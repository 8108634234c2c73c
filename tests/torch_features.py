"""What the torch under the tests cannot do, and the skips that say so.

Each feature is looked for once, before any test runs. A test that uses a
missing one in this process is skipped at the call. A test that uses it in
another process has a marker, as :data:`needs_half`. Nothing is skipped where
torch can do it.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NoReturn

import pytest
import torch

from mmstable.optim import wrapper
from mmstable.optim.wrapper import _half_works_on_cpu as half_works_on_cpu


def sgd(params: Any, fused: bool = False, **kwargs: Any) -> torch.optim.SGD:
    """SGD, whether or not this torch knows a fused one."""
    if fused or _sgd_knows_fused():
        kwargs['fused'] = fused
    return torch.optim.SGD(params, **kwargs)


def guard_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of what is missing skip the test.

    Args:
        monkeypatch (pytest.MonkeyPatch): That of the test.
    """
    if not half_works_on_cpu():
        skip = _skip(_HALF)
        monkeypatch.setattr(wrapper, '_half_works_on_cpu', skip)
    if not hasattr(torch.amp, 'GradScaler'):
        skip = _skip('GradScaler for a CPU')
        monkeypatch.setattr(torch.amp, 'GradScaler', skip, raising=False)
    if not _sgd_knows_fused():
        _guard_fused(monkeypatch, torch.optim.SGD, 'fused SGD')
    if not fuses_on_cpu():
        name = 'fused optimizers on a CPU'
        _guard_fused(monkeypatch, torch.optim.AdamW, name)


def skip_without_half() -> None:
    """For fixtures of several tests, which begin before the guard."""
    if not half_works_on_cpu():
        _skip(_HALF)()


def _guard_fused(
    monkeypatch: pytest.MonkeyPatch, optimizer: Any, name: str
) -> None:
    init = optimizer.__init__

    def guarded(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get('fused'):
            _skip(name)()
        init(self, *args, **kwargs)

    monkeypatch.setattr(optimizer, '__init__', guarded)


def _skip(name: str) -> Any:
    def skip(*args: Any, **kwargs: Any) -> NoReturn:
        pytest.skip(_reason(name))

    return skip


def _reason(name: str) -> str:
    return f'torch {torch.__version__} has no {name}'


def _shards_on_cpu() -> bool:
    # FSDP orders its streams by priority.
    try:
        torch.cpu.Stream(priority=-1)
    except TypeError:
        return False
    return True


@cache
def _sgd_knows_fused() -> bool:
    return 'fused' in inspect.signature(torch.optim.SGD).parameters


@cache
def fuses_on_cpu() -> bool:
    """Whether optimizers can be fused on a CPU."""
    try:
        torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], fused=True)
    except RuntimeError:
        return False
    return True


_HALF = 'autocast to float16 on a CPU'
needs_half = pytest.mark.skipif(not half_works_on_cpu(), reason=_reason(_HALF))
needs_fsdp = pytest.mark.skipif(
    not _shards_on_cpu(), reason=_reason('FSDP on a CPU')
)
