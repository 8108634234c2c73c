"""A loss that is not finite, with gradients that are: gradients decide."""

import math

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.events import Fault, Intervention, StepReport
from mmstable.events.records import FaultExplained
from tests.loops.runs import iter_loop, log_of
from tests.optim.test_against_stock import CpuAmpOptimWrapper, optimizer_of
from tests.toys import (
    INF,
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    spoiled,
    toy_batch,
    toy_net,
    toy_runner,
    weights,
)


class WithConstant(ToyModel):
    """Has a term without a gradient, which is not finite."""

    value = INF

    def forward(self, inputs, targets, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        if mode == 'loss':
            outputs['loss_constant'] = torch.tensor(self.value)
        return outputs


def wrapper_of(model, precision, counts, stock):
    optimizer = optimizer_of(model, 'sgd', fused=False)
    settings = dict(optimizer=optimizer, accumulative_counts=counts)
    if precision == 'fp32':
        return (OptimWrapper if stock else SafeOptimWrapper)(**settings)
    if stock:
        return CpuAmpOptimWrapper(init_scale=1024.0, **settings)
    return SafeAmpOptimWrapper(loss_scale=1024.0, **settings)


@pytest.mark.parametrize('counts', [1, 3])
@pytest.mark.parametrize('precision', ['fp32', 'fp16'])
@pytest.mark.parametrize('value', [INF, -INF, NAN])
def test_it_trains_as_with_mmengine(
    tmp_path, monkeypatch, value, precision, counts
):
    monkeypatch.setattr(WithConstant, 'value', value)
    trained = []
    for name in ('ours', 'theirs'):
        model = WithConstant()
        wrapper = wrapper_of(model, precision, counts, name == 'theirs')
        toy_runner(tmp_path / name, wrapper, 7, model=model).train()
        trained.append((weights(model), wrapper.optimizer.state_dict()))
        if name == 'ours':
            assert (wrapper.applied_steps, wrapper.skipped_steps) == (
                -(-7 // counts),
                0,
            )
    assert_same(*trained)


class OnceConstant(WithConstant):
    """Has that term in some iterations only, counted from 1."""

    when = (4, 5)

    def __init__(self) -> None:
        super().__init__()
        self.done = 0

    def train_step(self, data, optim_wrapper):
        self.done += 1
        self.value = INF if self.done in self.when else 0.5
        return super().train_step(data, optim_wrapper)


class Listener(Hook):
    def __init__(self) -> None:
        self.steps, self.events, self.averages = [], [], []

    def after_step(self, runner, name, report):
        self.steps.append(report)

    def after_event(self, runner, event):
        self.events.append(event)

    def after_train_iter(self, runner, *args, **kwargs):
        history = runner.message_hub.get_scalar('train/loss')
        self.averages.append(history.mean(10))


@pytest.mark.parametrize('stock', [False, True])
def test_it_is_applied_reported_and_explained_once(tmp_path, stock):
    model, heard = OnceConstant(), Listener()
    wrapper = wrapper_of(model, 'fp32', 1, stock)
    hooks = [
        dict(type='mmstable.FaultForensicsHook'),
        dict(type='mmstable.GradNanLoggerHook'),
        dict(type='mmstable.DivergenceGuardHook', max_consecutive_bad=1),
        heard,
    ]
    settings = dict(train_cfg=iter_loop(8))
    runner = toy_runner(tmp_path, wrapper, 8, hooks, model=model, **settings)
    runner.train()
    faults = {r.iteration: r for r in heard.steps if r.fault is not None}
    assert list(faults) == [4, 5]
    for report in faults.values():
        assert report.fault is Fault.NAN_LOSS
        assert report.applied
        assert report.loss_terms == ('loss_constant',)
        assert report.bad_share == 0
    kinds = [type(event) for event in heard.events]
    assert kinds.count(StepReport) == 2
    (explained,) = (e for e in heard.events if type(e) is FaultExplained)
    assert explained.iteration == 4
    assert 'loss_constant' in explained.text
    assert Intervention not in kinds
    log = log_of(runner)
    assert log.count('step applied because all gradients are finite') == 2
    assert all(map(math.isfinite, heard.averages))


@pytest.mark.parametrize('window', [1, 3])
def test_a_skipped_nan_does_not_hide_other_losses(tmp_path, window):
    heard = Listener()
    runner = toy_runner(
        tmp_path,
        wrapper_of(model := ToyModel(), 'fp32', window, False),
        12,
        [
            Sabotage(loss=[1, 8]),
            dict(type='mmstable.GradNanLoggerHook'),
            heard,
        ],
        model=model,
    )
    runner.train()
    # Nothing but NaN until then.
    assert math.isnan(heard.averages[0])
    assert all(map(math.isfinite, heard.averages[1:]))
    values, counts = runner.message_hub.get_scalar('train/loss').data
    assert (counts == 0).nonzero()[0].tolist() == [0, 7]
    finite = [v for v, count in zip(values, counts) if count][-9:]
    assert heard.averages[-1] == pytest.approx(sum(finite) / 9)


@pytest.mark.parametrize('counts', [1, 2])
def test_a_scale_that_is_too_high_is_found_nevertheless(tmp_path, counts):
    model = WithConstant()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(model, 'sgd', fused=False),
        accumulative_counts=counts,
        loss_scale=2.0**24,
    )
    toy_runner(tmp_path, wrapper, 40 * counts, model=model).train()
    assert wrapper.applied_steps > 10
    assert wrapper.loss_scaler.get_scale() < 2.0**24


def test_one_bad_loss_leaves_the_scale_alone():
    net = toy_net()
    wrapper = SafeAmpOptimWrapper(
        optimizer=optimizer_of(net, 'sgd', fused=False), loss_scale=64.0
    )
    for index in range(8):
        x, y = toy_batch(index)
        loss = (net(x) - y).square().mean()
        wrapper.update_params(loss * (NAN if index % 4 < 3 else 1))
    assert wrapper.skipped_steps == 6
    assert wrapper.loss_scaler.get_scale() == 64.0


@pytest.mark.parametrize('fault', ['loss', 'gradient'])
def test_a_window_keeps_what_is_good_in_it(fault):
    """The second of three has an Inf constant, and bad gradients."""
    net, reference = toy_net(), toy_net()
    wrapper = SafeOptimWrapper(optimizer_of(net, 'sgd', False), 3)
    plain = optimizer_of(reference, 'sgd', False)
    for index in range(3):
        x, y = toy_batch(index)
        loss = (net(x) - y).square().mean() + INF
        is_bad = index == 1
        name = 'head.bias' if is_bad and fault == 'gradient' else None
        with spoiled(net, name, NAN):
            factor = NAN if is_bad and fault == 'loss' else 1
            wrapper.update_params(loss * factor)
        if not is_bad:
            ((reference(x) - y).square().mean() / 2).backward()
    plain.step()
    assert wrapper.last_step.applied
    assert wrapper.last_step.dropped_micro_batches == 1
    for ours, theirs in zip(net.parameters(), reference.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Pair(BaseModel):
    """The loss of the generator runs through the discriminator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gen, self.disc = nn.Linear(4, 3), nn.Linear(3, 1)
        self.done = 0

    def forward(self, inputs, mode='tensor'):
        return self.disc(self.gen(inputs))

    def train_step(self, data, optim_wrapper):
        inputs = self.data_preprocessor(data)['inputs']
        self.done += 1
        loss = self.disc(self.gen(inputs)).square().mean()
        optim_wrapper['gen'].update_params(loss * NAN)
        loss = self.disc(self.gen(inputs).detach()).square().mean()
        optim_wrapper['disc'].update_params(loss)
        return dict(loss=loss.detach())


def test_a_bad_loss_does_not_spoil_the_gradients_of_others(tmp_path):
    model = Pair()
    wrappers = OptimWrapperDict(
        **{
            name: SafeOptimWrapper(
                torch.optim.SGD(getattr(model, name).parameters(), lr=0.1), 2
            )
            for name in ('gen', 'disc')
        }
    )
    hooks = [dict(type='mmstable.GradNanLoggerHook')]
    toy_runner(tmp_path, wrappers, 8, hooks, model=model).train()
    assert wrappers['gen'].skipped_steps == 4
    assert wrappers['disc'].applied_steps == 4
