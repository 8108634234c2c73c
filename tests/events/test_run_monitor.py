"""Every step is published once, in order and final, to all hooks."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapper
from torch.utils._python_dispatch import TorchDispatchMode

from mmstable.events import Fault, Outcome
from mmstable.events.monitor import RunMonitor
from mmstable.optim.observer import monitor_of
from mmstable.report import (
    GuardIntervention,
    RunEnd,
    ScaleChange,
    StepFault,
    WrapperTotals,
    read_events,
)
from tests.events.monitored import (
    ANY,
    Adversaries,
    Repeated,
    ThreeBackwards,
    scalar,
    train,
)
from tests.loops.runs import iter_loop, log_of
from tests.optim.test_against_stock import CpuAmpOptimWrapper
from tests.torch_features import sgd
from tests.toys import (
    INF,
    NAN,
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)

ALL = [
    dict(type=f'mmstable.{name}')
    for name in ('GradNanLoggerHook', 'EventLogHook', 'ReplicaCheckHook')
]
GUARD = dict(
    type='mmstable.DivergenceGuardHook',
    max_consecutive_bad=3,
    snapshot_interval=100,
)
EMA = dict(type='mmstable.SafeEMAHook')
STOCK = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.01))


def events_of(runner, kind):
    path = f'{runner.log_dir}/stability/events.jsonl'
    return [e for e in read_events(path) if isinstance(e, kind)]


def average_steps(runner):
    (hook,) = (h for h in runner.hooks if isinstance(h, EMAHook))
    return int(hook.ema_model.steps)


@pytest.mark.parametrize('bad', [(0,), (1,)], ids=['nan_first', 'nan_last'])
def test_two_updates_in_a_train_step(tmp_path, bad):
    runner, heard = train(
        tmp_path, Repeated(bad), hooks=[*ALL, EMA], max_iters=4
    )
    pair = ['skipped', 'applied'] if bad == (0,) else ['applied', 'skipped']
    assert heard.steps == [
        ('optim_wrapper', iteration, outcome)
        for iteration in (1, 2, 3, 4)
        for outcome in pair
    ]
    assert [one.iteration for one in heard.bad] == [1, 2, 3, 4]
    wrapper = runner.optim_wrapper
    assert (wrapper.applied_steps, wrapper.skipped_steps) == (4, 4)
    # The weights have changed, so their average has to follow.
    assert average_steps(runner) == 4
    assert len(events_of(runner, StepFault)) == 4
    (end,) = events_of(runner, RunEnd)
    assert end.wrappers['optim_wrapper'] == WrapperTotals(
        4, 4, {'nan_loss': 4}
    )
    assert log_of(runner).count('loss is NaN or Inf') == 4
    assert scalar(runner, 'stable/skip_rate')[-1] == 0.5
    assert scalar(runner, 'stable/skipped')[-1] == 4


@pytest.mark.parametrize('bad', [(0,), (1,)], ids=['nan_first', 'nan_last'])
def test_the_guard_acts_on_steps_that_a_later_one_would_hide(tmp_path, bad):
    guard = dict(GUARD, max_bad_rate=0.3, window=20)
    hooks = [*ALL, guard, dict(type='mmstable.EventLogHook')]
    runner, _ = train(tmp_path, Repeated(bad), hooks=hooks, max_iters=8)
    done = events_of(runner, GuardIntervention)
    # No earlier weights are better: it is reported.
    assert done[0].fault is Fault.NAN_LOSS
    assert done[0].action == 'warn'


def test_a_lost_iteration_leaves_no_trace_in_the_average(tmp_path):
    model = Repeated(bad=(0, 1), iterations=(2,))
    runner, heard = train(tmp_path, model, hooks=[EMA], max_iters=4)
    assert len(heard.bad) == 2
    assert average_steps(runner) == 3


def test_the_schedule_waits_only_if_nothing_was_applied(tmp_path):
    schedule = [dict(type='LinearLR', start_factor=0.1, by_epoch=False)]
    hooks = dict(
        param_scheduler=dict(type='mmstable.SafeParamSchedulerHook'),
        logger=dict(type='LoggerHook', interval=1),
    )
    waits = 'the LR schedule is held back'
    for bad, count in (((0,), 0), ((1,), 0), ((0, 1), 1)):
        runner, _ = train(
            tmp_path / str(bad),
            Repeated(bad, iterations=(2,)),
            hooks=(),
            default_hooks=hooks,
            param_scheduler=schedule,
            max_iters=4,
        )
        assert log_of(runner).count(waits) == count, bad


@pytest.mark.parametrize('loop', [None, iter_loop(4)], ids=['stock', 'safe'])
def test_three_backwards_make_one_step(tmp_path, loop):
    model = ThreeBackwards(bad=[2])
    settings = {} if loop is None else dict(train_cfg=loop)
    runner, heard = train(
        tmp_path, model, hooks=ALL, **{'max_iters': 4, **settings}
    )
    outcomes = ['applied', 'skipped', 'applied', 'applied']
    assert [outcome for *_, outcome in heard.steps] == outcomes
    assert [iteration for _, iteration, _ in heard.steps] == [1, 2, 3, 4]
    (bad,) = heard.bad
    assert bad.loss_terms == ('loss_aux',)
    assert bad is heard.reports[1]
    assert len(events_of(runner, StepFault)) == 1
    (end,) = events_of(runner, RunEnd)
    assert end.wrappers['optim_wrapper'].skipped == 1
    assert log_of(runner).count('loss is NaN or Inf') == 1


def test_wrappers_at_different_rates(tmp_path):
    model = Adversaries()
    runner, heard = train(
        tmp_path,
        model,
        model.wrappers(),
        hooks=[Sabotage(grads={2: ('net.head.bias', NAN)}), *ALL],
        max_iters=4,
    )
    generator = [s for s in heard.steps if s[0] == 'generator']
    assert generator == [
        ('generator', iteration, 'applied')
        for iteration in (1, 1, 2, 2, 3, 3, 4, 4)
    ]
    critic = [s for s in heard.steps if s[0] == 'critic']
    assert critic == [('critic', 2, 'skipped'), ('critic', 4, 'applied')]
    assert not [s for s in heard.steps if s[0] == 'idle']
    scalars = runner.message_hub.log_scalars
    assert 'train/stable/generator/skipped' not in scalars
    assert scalar(runner, 'stable/critic/skipped')[-1] == 1
    assert len(scalar(runner, 'generator/grad_norm')) == 8
    assert len(scalar(runner, 'critic/grad_norm')) == 1
    assert 'train/stable/skipped' not in runner.message_hub.log_scalars
    assert [one.wrapper for one in heard.bad] == ['critic']
    (end,) = events_of(runner, RunEnd)
    assert end.wrappers == {
        'generator': WrapperTotals(applied=8),
        'critic': WrapperTotals(1, 1, {'nan_grad': 1}),
        'idle': WrapperTotals(),
    }
    log = log_of(runner)
    for name in ('generator', 'critic'):
        assert log.count(f'fp32 training protected ({name})') == 1


class CriticFirst(Adversaries):
    """The other way round than its wrappers are in their dictionary."""

    rates = (('critic', 1, 1), ('generator', 2, 1))


def test_steps_of_several_wrappers_are_published_in_their_order(tmp_path):
    model = CriticFirst()
    bad = Sabotage(grads={2: ('net.head.bias', NAN)})
    _, heard = train(
        tmp_path, model, model.wrappers(), hooks=[bad, ANY], max_iters=3
    )
    names = [name for name, _, _ in heard.steps]
    assert names == ['critic', 'generator', 'generator'] * 3
    assert heard.steps[3] == ('critic', 2, 'skipped')


def test_after_bad_step_needs_no_guard(tmp_path):
    _, heard = train(
        tmp_path, ToyModel(), hooks=[ANY, Sabotage(loss=[2])], max_iters=3
    )
    assert [one.iteration for one in heard.bad] == [2]
    assert heard.events == heard.bad


def test_a_step_outside_of_an_iteration_is_not_lost(tmp_path):
    class Extra(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            loss = sum(p.square().sum() for p in runner.model.parameters())
            runner.optim_wrapper.update_params(loss)

    _, heard = train(tmp_path, ToyModel(), hooks=[ANY, Extra()], max_iters=3)
    assert [iteration for _, iteration, _ in heard.steps] == [1, 1, 2, 2, 3, 3]


def test_reports_are_final(tmp_path):
    runner, heard = train(
        tmp_path, ThreeBackwards(bad=[3]), hooks=ALL, max_iters=3
    )
    assert runner.optim_wrapper.last_step is heard.reports[-1]
    assert heard.reports[-1].losses.keys() == {'loss', 'loss_aux', 'loss_ok'}


def test_there_is_one_monitor_for_each_runner(tmp_path):
    runners = [
        train(tmp_path / str(i), ToyModel(), hooks=[*ALL, GUARD, EMA])[0]
        for i in range(2)
    ]
    found = [
        [h for h in runner.hooks if isinstance(h, RunMonitor)]
        for runner in runners
    ]
    assert [len(one) for one in found] == [1, 1]
    assert found[0][0] is not found[1][0]
    assert monitor_of(runners[0]) is found[0][0]


def test_no_hook_is_called_twice_when_the_monitor_comes(tmp_path):
    class First(Hook):
        """Asks for the monitor, which comes ahead of this hook."""

        def __init__(self, stage):
            self.stage, self.calls = stage, 0

        def before_run(self, runner):
            self.ask('before_run', runner)

        def before_train(self, runner):
            self.ask('before_train', runner)

        def ask(self, stage, runner):
            if stage == self.stage:
                self.calls += 1
                monitor_of(runner).bind(runner)

    for stage in ('before_run', 'before_train'):
        first = First(stage)
        _, heard = train(tmp_path / stage, ToyModel(), hooks=[first])
        assert (first.calls, len(heard.steps)) == (1, 6)


def test_a_scale_that_moves_is_an_event(tmp_path):
    wrapper = dict(
        type='mmstable.SafeAmpOptimWrapper',
        loss_scale=64.0,
        optimizer=dict(type='SGD', lr=0.01),
    )
    sabotage = Sabotage(grads={2: ('net.head.bias', INF)})
    _, heard = train(tmp_path, ToyModel(), wrapper, [ANY, sabotage])
    (change,) = (e for e in heard.events if isinstance(e, ScaleChange))
    assert (change.iteration, change.wrapper) == (2, 'optim_wrapper')
    assert (change.loss_scale, change.next_loss_scale) == (64.0, 32.0)


class Norms(TorchDispatchMode):
    """Counts how often gradients are measured."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._foreach_norm.Scalar
        return func(*args, **(kwargs or {}))


class CountNorms(Hook):
    """Counts in the steps of the model, not in mmengine's own logging."""

    priority = 'VERY_LOW'

    def __init__(self):
        self.per_iteration = []

    def before_train_iter(self, runner, *args, **kwargs):
        self.mode = Norms()
        self.mode.__enter__()

    def after_train_iter(self, runner, *args, **kwargs):
        self.mode.__exit__(None, None, None)
        self.per_iteration.append(self.mode.count)


@pytest.mark.parametrize(
    ('clip', 'norms'), [(None, 1), (dict(max_norm=1e-3), 2)]
)
def test_a_stock_wrapper_is_measured_once_for_all_hooks(tmp_path, clip, norms):
    counter = CountNorms()
    wrapper = dict(STOCK, clip_grad=clip)
    runner, heard = train(
        tmp_path, ToyModel(), wrapper, [*ALL, GUARD, EMA, counter], max_iters=4
    )
    # One of the two is mmengine's own, to clip.
    assert counter.per_iteration == [norms] * 4
    assert [outcome for *_, outcome in heard.steps] == ['applied'] * 4
    assert all(report.grad_norm > 1e-2 for report in heard.reports)
    assert scalar(runner, 'grad_norm') == pytest.approx(
        [report.grad_norm for report in heard.reports], rel=1e-5
    )


def test_a_stock_wrapper_is_left_as_it_was(tmp_path):
    runner, _ = train(tmp_path, ToyModel(), STOCK, [*ALL, GUARD], max_iters=2)
    wrapper = runner.optim_wrapper
    assert 'step' not in vars(wrapper)
    assert not wrapper.optimizer._optimizer_step_pre_hooks


def test_a_stock_wrapper_that_fails_is_left_as_it_was(tmp_path):
    class Crash(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            raise RuntimeError('crash')

    runner = toy_runner(
        tmp_path, dict(STOCK), hooks=[*ALL, Crash()], train_cfg=iter_loop(3)
    )
    with pytest.raises(RuntimeError, match='crash'):
        runner.train()
    assert 'step' not in vars(runner.optim_wrapper)


def test_observing_changes_nothing(tmp_path):
    runner, _ = train(tmp_path / 'a', ToyModel(), dict(STOCK), [*ALL, GUARD])
    plain = toy_runner(tmp_path / 'b', dict(STOCK))
    plain.train()
    assert_same(weights(runner.model), weights(plain.model))


def test_observing_makes_no_scheduler_warn(tmp_path):
    schedule = dict(type='LinearLR', start_factor=0.1, end=3, by_epoch=False)
    logger = dict(type='mmstable.GradNanLoggerHook')
    stock = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1))
    runner = toy_runner(
        tmp_path, stock, hooks=[logger], param_scheduler=schedule
    )
    with warnings.catch_warnings():
        warnings.filterwarnings('error', 'Seems like `optimizer.step')
        runner.train()


def test_nobody_observes_for_hooks_that_do_not_obey(tmp_path):
    counter = CountNorms()
    runner = toy_runner(
        tmp_path, dict(STOCK), hooks=[EMA, ANY, counter], max_iters=2
    )
    runner.train()
    assert counter.per_iteration == [0, 0]


def test_faults_of_a_stock_wrapper(tmp_path):
    sabotage = Sabotage(grads={2: ('net.norm.bias', NAN)})
    runner, heard = train(
        tmp_path, ToyModel(), dict(STOCK), [sabotage, *ALL], max_iters=2
    )
    (bad,) = heard.bad
    assert (bad.outcome, bad.fault) == (Outcome.APPLIED, Fault.NAN_GRAD)
    assert bad.culprits == (('net.norm.bias', 'NaN'),)
    (recorded,) = events_of(runner, StepFault)
    assert recorded == bad
    assert 'WEIGHTS UPDATED WITH IT' in log_of(runner)


@pytest.mark.parametrize('fused', [False, True])
@pytest.mark.parametrize('clip', [None, dict(max_norm=1.0)])
def test_steps_that_a_stock_amp_wrapper_skips(tmp_path, fused, clip):
    model = Repeated(bad=(), times=2)
    optimizer = sgd(model.parameters(), lr=0.01, fused=fused)
    wrapper = CpuAmpOptimWrapper(64.0, optimizer=optimizer, clip_grad=clip)

    class SpoilFirst(Sabotage):
        """Only the first backward pass of iteration 2 has an Inf."""

        def before_train_iter(self, runner, *args, **kwargs):
            if runner.iter != 1:
                return
            done = []

            def spoil(grad):
                done.append(1)
                return grad * INF if len(done) == 1 else grad

            param = runner.model.net.norm.bias
            self._handles.append(param.register_hook(spoil))

    runner, heard = train(
        tmp_path, model, wrapper, [SpoilFirst(), *ALL], max_iters=3
    )
    outcomes = [outcome for *_, outcome in heard.steps]
    assert outcomes == ['applied'] * 2 + ['skipped'] + ['applied'] * 3
    (bad,) = heard.bad
    assert (bad.iteration, bad.fault) == (2, Fault.OVERFLOW)
    assert bad.culprits[0].name == 'net.norm.bias'
    assert (bad.loss_scale, bad.next_loss_scale) == (64.0, 32.0)
    (change,) = events_of(runner, ScaleChange)
    assert (change.loss_scale, change.next_loss_scale) == (64.0, 32.0)
    (end,) = events_of(runner, RunEnd)
    assert end.wrappers['optim_wrapper'] == WrapperTotals(
        5, 1, {'overflow': 1}
    )


def test_a_mixed_dictionary(tmp_path):
    model = Adversaries()
    model.rates = (('generator', 2, 1), ('critic', 1, 1), ('idle', 2, 1))
    runner, heard = train(
        tmp_path,
        model,
        model.wrappers(OptimWrapper),
        hooks=ALL,
        max_iters=2,
    )
    assert Counter(name for name, *_ in heard.steps) == {
        'generator': 4,
        'critic': 2,
        'idle': 4,
    }
    assert len(scalar(runner, 'idle/grad_norm')) == 4


SAVES = dict(
    checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False)
)


@pytest.mark.parametrize('kind', ['stock', 'safe'])
def test_the_tally_goes_on_after_a_resume(tmp_path, kind):
    wrapper = dict(STOCK) if kind == 'stock' else None
    sabotage = Sabotage(grads={2: ('net.norm.bias', 1e-30)})
    bad = Sabotage(loss=[2]) if kind == 'safe' else sabotage
    first, _ = train(
        tmp_path / 'a', ToyModel(), wrapper, [bad, *ALL], default_hooks=SAVES
    )
    rest, _ = train(
        tmp_path / 'b',
        ToyModel(),
        wrapper,
        ALL,
        load_from=str(tmp_path / 'a' / 'iter_2.pth'),
        resume=True,
    )
    tallies = [
        monitor_of(run).sources['optim_wrapper'].steps.tally.state_dict()
        for run in (first, rest)
    ]
    assert tallies[0] == tallies[1]
    assert tallies[0]['applied'] == (5 if kind == 'safe' else 6)
    saved = torch.load(tmp_path / 'a' / 'iter_6.pth', weights_only=False)
    ours = saved['mmstable']
    assert ('RunMonitor' in ours) is (kind == 'stock')
    assert ('safe_step' in saved['optimizer']) is (kind == 'safe')
    assert 'applied' not in str(ours['GradNanLoggerHook'])
