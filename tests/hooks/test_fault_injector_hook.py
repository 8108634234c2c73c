"""Faults happen where, when and as they are told to, and are recorded."""

from __future__ import annotations

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict
from torch import nn

from mmstable import SafeOptimWrapper
from mmstable.hooks import FaultInjectorHook
from mmstable.report import InjectedFault, StepFault, read_events
from tests.inject.runs import (
    ADAM,
    FP16,
    HEAD,
    LOOPS,
    STOCK,
    TermsModel,
    build,
    events,
    hooks_on,
    injected,
    is_finite,
    step_faults,
    train,
)
from tests.loops.runs import log_of
from tests.ranks import run_ranks
from tests.toys import ToyModel, assert_same, toy_runner, weights


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize('value', ['NaN', 'Inf'])
def test_gradient_of_a_named_parameter(tmp_path, value, loop):
    fault = dict(kind=f'{value.lower()}_grad', param=HEAD, at=3)
    runner = train(
        tmp_path,
        fault,
        train_cfg=dict(type=LOOPS[loop], max_iters=6, val_interval=10**6),
    )
    assert injected(runner) == [(3, fault['kind'], HEAD, value)]
    (bad,) = events(runner, StepFault)
    assert (bad.iteration, bad.fault) == (3, 'nan_grad')
    assert bad.culprits == ((HEAD, value),)
    assert is_finite(runner.model)
    assert hooks_on(runner.model) == 0


def test_gradients_by_a_regular_expression(tmp_path):
    runner = train(
        tmp_path, dict(kind='inf_grad', param=r'net\.head\..*', at=[2, 6])
    )
    (second, last) = events(runner, StepFault)
    names = {'net.head.weight', 'net.head.bias'}
    for bad, iteration in ((second, 2), (last, 6)):
        assert bad.iteration == iteration
        assert {c.name for c in bad.culprits} == names
    assert {t[2] for t in injected(runner)} == names
    assert hooks_on(runner.model) == 0


def test_stock_wrapper_dies_of_it(tmp_path):
    fault = dict(kind='nan_grad', param=HEAD, at=3)
    runner = train(tmp_path, fault, optim_wrapper=STOCK)
    assert not is_finite(runner.model)
    assert injected(runner) == [(3, 'nan_grad', HEAD, 'NaN')]


@pytest.mark.parametrize(
    ('fault', 'terms'),
    [
        (dict(kind='nan_loss'), {'loss_cls': 'NaN', 'loss_bbox': 'NaN'}),
        (dict(kind='inf_loss', term='loss_bbox'), {'loss_bbox': 'Inf'}),
    ],
)
def test_losses(tmp_path, fault, terms):
    runner = train(tmp_path, {**fault, 'at': 3}, model=TermsModel())
    assert {t[2]: t[3] for t in injected(runner)} == terms
    (bad,) = events(runner, StepFault)
    assert (bad.iteration, bad.fault) == (3, 'nan_loss')
    spoiled = {
        name
        for name, value in bad.losses.items()
        if not torch.isfinite(torch.tensor(value))
    }
    assert spoiled == {'loss', *terms}
    assert hooks_on(runner.model) == 0


def test_a_loss_that_is_no_dict(tmp_path):
    class Plain(ToyModel):
        def train_step(self, data, optim_wrapper):
            loss = self(**data, mode='loss')
            optim_wrapper.update_params(loss)
            return dict(loss=loss)

        def forward(self, inputs, targets, mode='tensor'):
            return super().forward(inputs, targets, mode)['loss']

    runner = train(tmp_path, dict(kind='nan_loss', at=2), model=Plain())
    assert injected(runner) == [(2, 'nan_loss', 'loss', 'NaN')]
    assert step_faults(runner) == [(2, 'nan_loss')]


@pytest.mark.parametrize('nested', [False, True])
def test_input(tmp_path, nested):
    class Wrapping(nn.Module):
        def forward(self, data, training=False):
            imgs = data['inputs']
            inputs = dict(ids=torch.tensor([1]), imgs=(imgs,))
            return dict(inputs=inputs, targets=data['targets'])

    class Model(TermsModel):
        def __init__(self):
            super().__init__()
            if nested:
                self.data_preprocessor = Wrapping()

    runner = train(tmp_path, dict(kind='inf_input', at=3), model=Model())
    path = 'inputs.imgs[0]' if nested else 'inputs'
    assert injected(runner) == [(3, 'inf_input', path, 'Inf')]
    assert step_faults(runner) == [(3, 'nan_loss')]


def test_a_named_input_leaves_the_data_set_alone(tmp_path):
    fault = dict(kind='nan_input', input='targets', at=[2, 10])
    seen = []

    class Look(Hook):
        def after_train_iter(self, runner, batch_idx, data_batch, outputs):
            seen.append(data_batch['targets'].clone())

    runner = train(tmp_path, fault, max_iters=10, hooks=[Look()])
    assert [t[2] for t in injected(runner)] == ['targets', 'targets']
    assert all(torch.isfinite(targets).all() for targets in seen)


@pytest.mark.parametrize(
    ('fault', 'target', 'entry'),
    [
        (dict(kind='nan_weight', param='head.bias'), 'head.bias', None),
        (
            dict(kind='inf_buffer', buffer='body.1.running_mean'),
            'body.1.running_mean',
            None,
        ),
        (
            dict(kind='nan_state', param='head.bias'),
            'head.bias.exp_avg',
            'exp_avg',
        ),
        (
            dict(kind='inf_state', param='head.bias', entry='exp_avg_sq'),
            'head.bias.exp_avg_sq',
            'exp_avg_sq',
        ),
    ],
)
def test_poison(tmp_path, fault, target, entry):
    poison = []

    class Look(Hook):
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            state = runner.model.state_dict()
            if entry:
                head = runner.model.head.bias
                state = {
                    f'head.bias.{key}': value
                    for key, value in runner.optim_wrapper.optimizer.state[
                        head
                    ].items()
                }
            poison.append(
                [k for k, v in state.items() if not torch.isfinite(v).all()]
            )

    runner = train(
        tmp_path,
        {**fault, 'at': 3},
        model=TermsModel(),
        max_iters=3,
        optim_wrapper=ADAM,
        hooks=[Look()],
    )
    assert poison == [[], [], [target]]
    assert [t[2] for t in injected(runner)] == [target]


def test_spikes_are_finite(tmp_path):
    plain = train(tmp_path / 'plain')
    runner = train(
        tmp_path / 'spiky',
        dict(kind='spike_loss', factor=100.0, at=2),
        dict(kind='spike_grad', param=HEAD, factor=50, at=4),
        dict(kind='spike_grad', at=5),
    )
    losses = {
        name: run.message_hub.get_scalar('train/loss').data[0].tolist()
        for name, run in (('plain', plain), ('spiky', runner))
    }
    assert losses['spiky'][0] == losses['plain'][0]
    assert losses['spiky'][1] == pytest.approx(100 * losses['plain'][1])
    assert injected(runner) == [
        (2, 'spike_loss', 'loss', '100.0'),
        (4, 'spike_grad', HEAD, '50'),
        (5, 'spike_grad', 'all', '1000.0'),
    ]
    assert is_finite(runner.model)


def test_one_micro_batch_of_a_window(tmp_path):
    runner = train(
        tmp_path,
        dict(kind='nan_loss', at=2),
        dict(kind='nan_grad', param=HEAD, at=5),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            accumulative_counts=3,
            optimizer=dict(type='SGD', lr=0.1),
        ),
    )
    dropped, spoiled = events(runner, StepFault)
    assert (dropped.iteration, dropped.dropped_micro_batches) == (3, 1)
    assert (spoiled.iteration, spoiled.fault) == (6, 'nan_grad')
    assert [t[0] for t in injected(runner)] == [2, 5]


def test_fp16_takes_it_for_an_overflow(tmp_path):
    fault = dict(kind='inf_grad', param=HEAD, at=3)
    runner = train(tmp_path, fault, optim_wrapper=FP16)
    assert step_faults(runner) == [(3, 'overflow')]
    assert is_finite(runner.model)


class TwoSteps(ToyModel):
    """Steps two optimizers, and never calls itself."""

    def train_step(self, data, optim_wrapper):
        for wrapper in optim_wrapper.values():
            loss = self.forward(**data, mode='loss')['loss']
            wrapper.update_params(loss)
        return dict(loss=loss.detach())


def two_wrappers(model):
    parts = dict(body=model.net.backbone, head=model.net.head)
    return OptimWrapperDict(
        **{
            name: SafeOptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
            for name, part in parts.items()
        }
    )


def test_several_optimizers(tmp_path):
    model = TwoSteps()
    runner = train(
        tmp_path,
        dict(kind='nan_grad', param=HEAD, at=2),
        dict(kind='oom', at=4),
        model=model,
        optim_wrapper=two_wrappers(model),
    )
    assert injected(runner) == [(2, 'nan_grad', HEAD, 'NaN')]
    assert [e.wrapper for e in events(runner, StepFault)] == ['head']
    # This model leaves out what the fault was to happen in.
    text = log_of(runner)
    assert (
        'faults[1] (oom) was not injected: iteration 4 has no target' in text
    )
    assert hooks_on(model) == 0


def test_hooks_hear_of_it(tmp_path):
    class Listener(Hook):
        def __init__(self):
            self.heard = []

        def after_fault_injected(self, runner, fault):
            self.heard.append((fault.iteration, fault.kind, fault.rank))

    listener = Listener()
    train(
        tmp_path,
        dict(kind='nan_loss', between=(2, 3)),
        hooks=[listener],
    )
    assert listener.heard == [(2, 'nan_loss', 0), (3, 'nan_loss', 0)]


def test_what_is_not_due_changes_nothing(tmp_path):
    plain = toy_runner(tmp_path / 'plain')
    plain.train()
    never = train(
        tmp_path / 'never',
        dict(kind='nan_weight', param=HEAD, at=7),
        dict(kind='oom', at=3, rank=[1, 2]),
    )
    assert_same(weights(never.model), weights(plain.model))
    text = log_of(never)
    assert 'THIS RUN IS BROKEN ON PURPOSE, by 2 faults, seed 0' in text
    assert "[0] nan_weight(param='net.head.weight') at=7" in text
    assert '[1] oom at=3, rank=[1, 2]' in text
    assert list(never.hooks[0]._due) == []


def test_without_faults_it_is_silent(tmp_path):
    runner = toy_runner(tmp_path, hooks=[FaultInjectorHook()])
    runner.train()
    assert 'FaultInjectorHook: ' not in log_of(runner)


def test_a_frozen_parameter_is_reported(tmp_path):
    model = ToyModel()
    model.net.head.weight.requires_grad_(False)
    fault = dict(kind='nan_grad', param=HEAD, at=2)
    runner = train(tmp_path, fault, model=model)
    assert injected(runner) == []
    assert 'was not injected: iteration 2 has no target' in log_of(runner)


def on_one_rank(rank, folder):
    from mmengine.model import MMDistributedDataParallel

    runner = build(
        folder,
        dict(kind='nan_grad', param=HEAD, at=2, rank=1),
        dict(kind='nan_loss', at=4, rank=0),
        dict(kind='nan_input', at=5, rank=[1]),
        launcher='none',
        model=MMDistributedDataParallel(ToyModel()),
    )
    runner.train()
    assert is_finite(runner.model)
    assert hooks_on(runner.model) == 0
    # All ranks leave out the same steps.
    assert runner.optim_wrapper.skipped_steps == 3


@pytest.mark.dist
@pytest.mark.soak
def test_only_on_the_chosen_rank(tmp_path):
    run_ranks(on_one_rank, tmp_path)
    found = []
    for path in tmp_path.rglob('events*.jsonl'):
        for event in read_events(path):
            if isinstance(event, InjectedFault):
                found.append((event.rank, event.iteration, event.kind))
    assert sorted(found) == [
        (0, 4, 'nan_loss'),
        (1, 2, 'nan_grad'),
        (1, 5, 'nan_input'),
    ]
