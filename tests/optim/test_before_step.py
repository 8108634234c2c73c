"""A hook is called before each step, whatever else replaces the step."""

from __future__ import annotations

import pytest
import torch
from mmengine.optim import ConstantLR

from mmstable.optim import observer as module
from mmstable.optim.observer import before_step


@pytest.fixture(params=['as torch is', 'before torch 2.3'])
def optimizer(request, monkeypatch):
    if request.param == 'before torch 2.3':
        monkeypatch.setattr(module.torch, '__version__', '2.1.2')
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return torch.optim.SGD([weight], lr=0.25)


def called_by(optimizer):
    calls = []
    return calls, before_step(
        optimizer, lambda *args: calls.append(args[0] is optimizer)
    )


def test_it_is_called_once_a_step_until_its_end(optimizer):
    before = vars(optimizer).get('step')
    calls, end = called_by(optimizer)
    optimizer.step()
    optimizer.step(closure=None)
    assert calls == [True, True]
    assert optimizer.param_groups[0]['params'][0].item() == 0.5
    end()
    optimizer.step()
    assert len(calls) == 2
    assert vars(optimizer).get('step') == before


def test_two_end_in_any_order(optimizer):
    first, end_first = called_by(optimizer)
    second, end_second = called_by(optimizer)
    optimizer.step()
    end_first()
    optimizer.step()
    end_second()
    optimizer.step()
    assert (len(first), len(second)) == (1, 2)


@pytest.mark.parametrize('scheduler_first', [True, False])
def test_a_scheduler_counts_steps_beside_it(optimizer, scheduler_first):
    if scheduler_first:
        scheduler = ConstantLR(optimizer, factor=0.5)
    calls, end = called_by(optimizer)
    if not scheduler_first:
        scheduler = ConstantLR(optimizer, factor=0.5)
    optimizer.step()
    scheduler.step()
    end()
    optimizer.step()
    # It counts from -1.
    assert optimizer._global_step == 1
    assert len(calls) == 1


def test_what_was_compiled_changes_nothing(optimizer):
    torch.compile(torch.nn.Linear(1, 1), backend='eager')
    calls, _ = called_by(optimizer)
    optimizer.step()
    assert len(calls) == 1
