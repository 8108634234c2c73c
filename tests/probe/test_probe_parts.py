"""Rates, clips and rows, without a run."""

from __future__ import annotations

import math

import pytest
import torch
from mmengine.optim import OptimWrapper

from mmstable.events import Culprit, Fault, Outcome, StepReport
from mmstable.events.records import LiveChange
from mmstable.optim import SafeOptimWrapper
from mmstable.probe.probing import (
    EVENT_COLUMNS,
    STEP_COLUMNS,
    event_row,
    step_row,
)
from mmstable.probe.run import LiveRates, read_clip, set_clip

COLUMNS = list(STEP_COLUMNS)


def make_optimizer(*rates: float) -> torch.optim.Optimizer:
    groups = [
        dict(params=[torch.nn.Parameter(torch.ones(1))], lr=rate)
        for rate in rates
    ]
    return torch.optim.SGD(groups, lr=1.0)


def step(optimizer: torch.optim.Optimizer) -> list[float]:
    """By how much each weight was changed."""
    params = [p for g in optimizer.param_groups for p in g['params']]
    before = [param.item() for param in params]
    for param in params:
        param.grad = torch.ones(1)
    optimizer.step()
    return [b - param.item() for b, param in zip(before, params)]


def test_a_factor_holds_for_steps_only():
    optimizer, rates = make_optimizer(0.5, 0.25), LiveRates()
    rates.bind({'one': optimizer})
    assert step(optimizer) == [0.5, 0.25]
    rates.multiply('one', [0.5, 0.5])
    assert rates.rates() == {'one': [0.25, 0.125]}
    assert step(optimizer) == [0.25, 0.125]
    assert [g['lr'] for g in optimizer.param_groups] == [0.5, 0.25]
    # As a schedule does.
    for group in optimizer.param_groups:
        group['lr'] *= 0.5
    assert step(optimizer) == [0.125, 0.0625]
    rates.multiply('one', [2.0])
    assert rates.rates() == {'one': [0.25, 0.0625]}
    rates.unbind()
    assert step(optimizer) == [0.25, 0.125]


def fail(optimizer: torch.optim.Optimizer, *args: object) -> None:
    raise RuntimeError(f'lr {optimizer.param_groups[0]["lr"]}')


def test_a_step_that_fails_leaves_the_rate_of_the_schedule():
    optimizer, rates = make_optimizer(0.5), LiveRates()
    rates.bind({'one': optimizer})
    rates.multiply('one', [0.5])
    optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match='lr 0.25'):
        optimizer.step()
    rates.unbind()
    assert optimizer.param_groups[0]['lr'] == 0.5


WRAPPERS = {
    'safe': lambda clip: SafeOptimWrapper(make_optimizer(0.1), clip_grad=clip),
    'stock': lambda clip: OptimWrapper(make_optimizer(0.1), clip_grad=clip),
}


@pytest.mark.parametrize('kind', WRAPPERS)
@pytest.mark.parametrize(
    ('clip', 'shown'),
    [
        (None, None),
        (dict(max_norm=5.0), 5.0),
        (dict(max_norm=5.0, norm_type=1), 5.0),
        (dict(type='value', clip_value=0.5), 'clip_value'),
    ],
)
def test_a_limit_is_read_and_changed(kind, clip, shown):
    wrapper = WRAPPERS[kind](clip and dict(clip))
    found = read_clip(wrapper)
    assert found == shown or shown in found
    set_clip(wrapper, 0.5)
    assert read_clip(wrapper) == 0.5
    (param,) = wrapper.optimizer.param_groups[0]['params']
    wrapper.update_params((100 * param).sum())
    assert param.item() == pytest.approx(1 - 0.1 * 0.5, abs=1e-5)


def test_rows_never_change_their_types():
    full = StepReport(
        iteration=3,
        time=1.0,
        outcome=Outcome.SKIPPED,
        fault=Fault.NAN_GRAD,
        wrapper='w',
        loss_scale=2,
        next_loss_scale=1,
        grad_norm=1.5,
        clip_coef=1,
        loss=2,
        culprits=(Culprit('a', 'NaN'),) * 9,
    )
    empty = StepReport(iteration=4, time=1, outcome=Outcome.APPLIED)
    rows = [step_row(full), step_row(empty)]
    assert [len(row) for row in rows] == [len(STEP_COLUMNS)] * 2
    types = [[type(value) for value in row] for row in rows]
    assert types[0] == types[1]
    assert set(types[0]) == {int, float, str}
    assert rows[0][COLUMNS.index('fault')] == 'nan_grad'
    assert rows[0][COLUMNS.index('culprits')] == 'a a a a a'
    assert rows[1][COLUMNS.index('fault')] == ''
    assert math.isnan(rows[1][COLUMNS.index('loss')])


def test_an_event_is_a_row_of_bounded_length():
    event = LiveChange.now(5, what='code', text='x' * 10**5)
    row = event_row(event)
    assert [type(value) for value in row] == [int, float, str, str]
    assert len(row) == len(EVENT_COLUMNS)
    assert len(row[-1]) == 4000
