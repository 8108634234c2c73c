"""Limits of loss and norm: told before a step, compared where it is made.

The device is simulated: the step is told that its verdict is not on the host.
"""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.events import Fault
from mmstable.numerics.clip_settings import parse_clip
from mmstable.optim.step_attempt import StepAttempt
from tests.optim.test_costs import HOST_READ, Recorder
from tests.toys import INF, assert_same, toy_net, toy_runner, weights

wrappers = pytest.mark.parametrize(
    ('cls', 'settings'),
    [
        (SafeOptimWrapper, {}),
        (SafeAmpOptimWrapper, dict(loss_scale=256.0)),
        (SafeOptimWrapper, dict(clip_grad=dict(max_norm=0.1))),
    ],
    ids=['fp32', 'fp16', 'clipped'],
)


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(StepAttempt, 'is_on_host', False)


def make(cls, settings, fused=True):
    net = toy_net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
    wrapper = cls(optimizer=optimizer, **settings)
    step(net, wrapper)
    return net, wrapper


def step(net, wrapper, factor=1.0):
    """A step of a loss of 1, and of a norm of about 1, times a factor."""
    loss = sum(p.sum() for p in net.parameters()) / 10
    loss = (loss - loss.detach() + 1.0) * factor
    wrapper.backward(loss)
    wrapper.step()


@wrappers
def test_a_device_compares_without_the_host(accelerator, cls, settings):
    net, wrapper = make(cls, settings)
    wrapper.limit_steps(loss=50.0, norm=50.0)
    for factor, is_made in ((1.0, True), (100.0, False), (2.0, True)):
        before = weights(net)
        recorder = Recorder()
        with recorder:
            step(net, wrapper, factor)
        assert recorder.calls[HOST_READ] == 0
        # Nobody has read the verdict, but it is obeyed.
        assert wrapper._safe_step.ahead is not None
        moved = any(
            not torch.equal(now, before[name])
            for name, now in weights(net).items()
        )
        assert moved is is_made
        report = wrapper.last_step
        assert report.applied is is_made
        assert report.fault is (None if is_made else Fault.SPIKE)
        assert report.loss == pytest.approx(factor)
        wrapper.zero_grad()


@pytest.mark.parametrize('limits', [(50.0, INF), (INF, 50.0)])
@pytest.mark.parametrize('on_host', [False, True])
@wrappers
def test_either_limit_is_enough(monkeypatch, cls, settings, limits, on_host):
    monkeypatch.setattr(StepAttempt, 'is_on_host', on_host)
    net, wrapper = make(cls, settings)
    wrapper.limit_steps(*limits)
    before = weights(net)
    step(net, wrapper, 100.0)
    assert wrapper.last_step.fault is Fault.SPIKE
    assert_same(weights(net), before)


@wrappers
def test_limits_cost_a_device_no_more_operations(accelerator, cls, settings):
    counts = []
    for limits in ((INF, INF), (50.0, 50.0)):
        net, wrapper = make(cls, settings)
        wrapper.limit_steps(*limits)
        recorder = Recorder()
        with recorder:
            step(net, wrapper)
            wrapper.resolve()
        counts.append(sum(recorder.calls.values()))
        assert wrapper.last_step.applied
    # The comparison of the loss, and that both hold.
    assert counts[1] <= counts[0] + 2


def test_the_host_compares_without_any_operation():
    counts = []
    for limits in (None, (50.0, 50.0)):
        net, wrapper = make(SafeOptimWrapper, {})
        if limits is not None:
            wrapper.limit_steps(*limits)
        recorder = Recorder()
        with recorder:
            step(net, wrapper)
        counts.append(recorder.calls)
    assert counts[0] == counts[1]


@pytest.mark.parametrize('limit', [INF, 1e300])
def test_a_loss_that_is_not_finite_is_judged_by_its_gradients(
    accelerator, limit
):
    net, wrapper = make(SafeOptimWrapper, {})
    wrapper.limit_steps(loss=limit, norm=INF)
    loss = sum(p.sum() for p in net.parameters()) + INF
    before = weights(net)
    wrapper.backward(loss)
    wrapper.step()
    assert wrapper.last_step.applied
    assert wrapper.last_step.loss is None
    assert any(
        not torch.equal(now, before[name])
        for name, now in weights(net).items()
    )


def test_squares_that_overflow_are_withheld_by_the_device(accelerator):
    net, wrapper = make(SafeOptimWrapper, {})
    before = weights(net)
    step(net, wrapper, 1e25)
    assert_same(weights(net), before)
    report = wrapper.last_step
    assert (report.fault, report.skipped) == (Fault.SPIKE, True)
    step(net, wrapper)
    assert wrapper.last_step.applied


def test_gradients_that_the_device_need_not_have_withheld(monkeypatch):
    """A huge norm of values that are small enough, in float16."""

    def run(on_host):
        param = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float16))
        optimizer = torch.optim.AdamW([param], lr=0.01, eps=1e-3, fused=True)
        wrapper = SafeOptimWrapper(optimizer)
        monkeypatch.setattr(StepAttempt, 'is_on_host', on_host)
        for factor in (1.0, 20.0, 300.0, 9000.0, 1.0):
            wrapper.update_params(param.sum() * factor)
            outcomes.append(wrapper.last_step.outcome.value)
        return param.detach()

    outcomes: list[str] = []
    torch.testing.assert_close(run(False), run(True))
    wanted = ['applied'] * 3 + ['skipped', 'applied']
    assert outcomes == wanted * 2


def test_parts_that_are_clipped_apart_are_judged_together(accelerator):
    net, wrapper = make(SafeOptimWrapper, {})
    wrapper.clip = parse_clip(
        'test', configs=[dict(module_name='head', max_norm=1e6)]
    )
    wrapper.initialize_count_status(net, 0, 10)
    step(net, wrapper)
    wrapper.limit_steps(loss=INF, norm=50.0)
    step(net, wrapper, 40.0)
    assert wrapper.last_step.applied
    before = weights(net)
    step(net, wrapper, 100.0)
    assert_same(weights(net), before)
    assert wrapper.last_step.fault is Fault.SPIKE


class Unread(Hook):
    """Notes whether steps run ahead of the host."""

    priority = 'HIGHEST'

    def __init__(self) -> None:
        self.ahead: list[bool] = []

    def after_train_iter(self, runner, *args, **kwargs):
        step = runner.optim_wrapper._safe_step
        self.ahead.append(step.ahead is not None)


def test_a_guarded_run_runs_ahead(accelerator, tmp_path):
    unread = Unread()
    runner = toy_runner(
        tmp_path,
        dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, fused=True),
        ),
        80,
        [unread, dict(type='mmstable.DivergenceGuardHook')],
    )
    runner.train()
    assert unread.ahead == [False] + [True] * 79
    assert runner.optim_wrapper.applied_steps == 80
    assert runner.optim_wrapper._safe_step._norm_limit < INF
