"""A schedule waits for skipped steps, and still ends with the run."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapperDict

from mmstable import SafeOptimWrapper
from mmstable.errors import ConfigError
from mmstable.hooks import ResumeReportHook, SafeParamSchedulerHook
from tests.hooks.test_safe_ema_hook import TwoParts
from tests.loops.runs import DropoutModel, Numbered, loader, validation
from tests.toys import (
    NAN,
    Sabotage,
    ToyData,
    assert_same,
    read_saved,
    toy_runner,
    weights,
)

GRAD = 'net.head.weight'
OURS = dict(type='mmstable.SafeParamSchedulerHook')
STOCK = dict(type='ParamSchedulerHook')
SCHEDULE = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=4),
    # Never the same value twice.
    dict(type='ExponentialLR', gamma=0.9, by_epoch=False, end=100),
]
EARLY = 'Detected call of `scheduler.step'


class Rates(Hook):
    """The learning rate after every iteration, and before the first."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.seen = []

    def before_train(self, runner):
        self._note(runner)

    def after_train_iter(self, runner, *args, **kwargs):
        self._note(runner)

    def _note(self, runner):
        rates = runner.optim_wrapper.get_lr().items()
        self.seen.append(
            {name: value[0] for name, value in rates if 'base' not in name}
        )

    def of(self, name='lr'):
        return [rates[name] for rates in self.seen]


def wrapper_of(accumulate=1, kind='mmstable.SafeOptimWrapper'):
    return dict(
        type=kind,
        optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
        accumulative_counts=accumulate,
    )


def make(work_dir, hook=OURS, bad=(), accumulate=1, max_iters=10, **kwargs):
    spoiled = Sabotage(grads=dict.fromkeys(bad, (GRAD, NAN)))
    rates = kwargs.pop('rates', None) or Rates()
    settings = dict(
        optim_wrapper=wrapper_of(accumulate),
        param_scheduler=SCHEDULE,
        default_hooks=dict(
            param_scheduler=hook,
            checkpoint=dict(type='CheckpointHook', interval=5, by_epoch=False),
        ),
        hooks=[spoiled, rates, *kwargs.pop('hooks', ())],
    )
    runner = toy_runner(
        work_dir, max_iters=max_iters, **{**settings, **kwargs}
    )
    runner.rates = rates
    return runner


def train(*args, **kwargs):
    runner = make(*args, **kwargs)
    runner.train()
    return runner


def hook_of(runner):
    return next(
        one for one in runner.hooks if isinstance(one, SafeParamSchedulerHook)
    )


def log_of(runner):
    return Path(runner.logger.log_file).read_text()


@pytest.fixture(scope='module')
def clean(tmp_path_factory):
    """The learning rate at each place of the schedule."""
    runner = train(tmp_path_factory.mktemp('clean'), STOCK)
    found = runner.rates.of()
    assert len(set(found)) == 11
    return found


def test_two_skips_by_hand(tmp_path, clean):
    runner = train(tmp_path, bad=[3, 4])
    places = [0, 1, 2, 2, 2, 3, 5, 6, 7, 9, 10]
    assert runner.rates.of() == [clean[place] for place in places]
    assert log_of(runner).count('the LR schedule is held back') == 1


def test_the_stock_hook_does_not_wait(tmp_path, clean):
    runner = train(tmp_path, STOCK, bad=[3, 4])
    assert runner.rates.of() == clean


def test_the_first_steps_may_be_skipped(tmp_path, clean):
    runner = train(tmp_path, bad=[1, 2, 3])
    found = runner.rates.of()
    assert found[:5] == [clean[0]] * 4 + [clean[1]]
    assert found[-1] == clean[-1]


def test_a_lost_window_gives_its_rate_to_the_next_one(tmp_path):
    clean = train(tmp_path / 'a', STOCK, accumulate=4, max_iters=40)
    runner = train(tmp_path / 'b', bad=[4], accumulate=4, max_iters=40)
    found, expected = runner.rates.of(), clean.rates.of()
    # Seen before iterations 4 and 8, in which the steps are made.
    assert found[7] == expected[3]
    assert found[3:8] == [expected[3]] * 5
    assert found[-1] == expected[-1]


@pytest.mark.parametrize('accumulate', [1, 3])
@pytest.mark.parametrize('cfg', [OURS], ids=str)
def test_a_healthy_run_is_that_of_mmengine(tmp_path, accumulate, cfg):
    ours = train(tmp_path / 'a', cfg, accumulate=accumulate)
    stock = train(tmp_path / 'b', STOCK, accumulate=accumulate)
    assert ours.rates.seen == stock.rates.seen
    assert_same(weights(ours.model), weights(stock.model))
    saved = [
        read_saved(Path(one.work_dir, 'iter_5.pth')) for one in (ours, stock)
    ]
    assert_same(saved[0]['param_schedulers'], saved[1]['param_schedulers'])
    assert 'mmstable' not in saved[0]


@pytest.mark.parametrize('accumulate', [1, 2])
def test_a_resume_half_way_ends_as_an_unbroken_run(tmp_path, accumulate):
    settings = dict(bad=[2, 4, 8], accumulate=accumulate, max_iters=20)
    settings['default_hooks'] = dict(
        param_scheduler=OURS,
        checkpoint=dict(type='CheckpointHook', interval=4, by_epoch=False),
    )
    whole = train(tmp_path / 'whole', **settings)
    rest = train(
        tmp_path / 'rest',
        **settings,
        load_from=str(tmp_path / 'whole' / 'iter_4.pth'),
        resume=True,
    )
    saved = read_saved(tmp_path / 'whole' / 'iter_4.pth')['mmstable']
    assert (
        saved['SafeParamSchedulerHook']['optim_wrapper']['owed']
        == 1 + accumulate
    )
    assert rest.rates.seen == whole.rates.seen[4:]
    assert_same(weights(rest.model), weights(whole.model))


def test_weights_alone_bring_no_backlog(tmp_path):
    train(tmp_path / 'first', bad=[4])
    runner = train(
        tmp_path / 'second', load_from=str(tmp_path / 'first' / 'iter_5.pth')
    )
    assert runner.rates.of()[1] != runner.rates.of()[0]
    assert hook_of(runner).state_dict() == {}


def test_a_schedule_moved_to_the_iteration_owes_nothing(tmp_path, clean):
    train(tmp_path / 'first', bad=[3, 4])
    runner = make(
        tmp_path / 'second',
        hooks=[ResumeReportHook(override_lr_schedule=True)],
        load_from=str(tmp_path / 'first' / 'iter_5.pth'),
        resume=True,
    )
    # As it is when a run is started from a config.
    runner.cfg = Config(dict(param_scheduler=SCHEDULE))
    runner.train()
    assert runner.rates.of()[1:] == clean[6:]


class Counted(Hook):
    """How often each schedule has moved."""

    priority = 'LOWEST'

    def __init__(self):
        self.seen = []

    def after_train_iter(self, runner, *args, **kwargs):
        self.seen.append([x._global_step for x in runner.param_schedulers])


def test_schedules_by_epoch_move_by_epoch(tmp_path):
    counted = Counted()
    schedule = [
        dict(type='ExponentialLR', gamma=0.9, by_epoch=True),
        dict(type='PolyLR', by_epoch=False, begin=0),
    ]
    train(
        tmp_path,
        bad=[2],
        hooks=[counted],
        param_scheduler=schedule,
        train_dataloader=torch.utils.data.DataLoader(ToyData(), batch_size=4),
        train_cfg=dict(by_epoch=True, max_epochs=2),
    )
    by_epoch, by_iter = zip(*counted.seen)
    assert by_epoch == (0, 0, 0, 0, 1, 1, 1, 1)
    assert by_iter[:3] == (1, 1, 2)
    assert by_iter[-1] == 8


@pytest.mark.parametrize('hook', [OURS, STOCK], ids=['ours', 'stock'])
def test_schedules_that_look_at_a_metric(tmp_path, hook):
    runner = train(
        tmp_path,
        hook,
        model=DropoutModel(),
        train_dataloader=loader(Numbered(6)),
        param_scheduler=[
            dict(
                type='ReduceOnPlateauLR',
                monitor='score',
                # Scores rise, so all after the first one are worse.
                rule='less',
                patience=0,
                factor=0.5,
            )
        ],
        train_cfg=dict(by_epoch=True, max_epochs=4),
        **validation(),
    )
    assert runner.optim_wrapper.get_lr()['lr'][0] == 0.1 * 0.5**2


def test_each_optimizer_has_its_own(tmp_path, clean):
    model = TwoParts()
    wrappers = OptimWrapperDict(
        **{
            name: SafeOptimWrapper(torch.optim.SGD(part.parameters(), lr=0.1))
            for name, part in model.net.named_children()
        }
    )
    runner = train(
        tmp_path,
        bad=[3, 4],
        model=model,
        optim_wrapper=wrappers,
        max_iters=10,
    )
    places = [0, 1, 2, 2, 2, 3, 5, 6, 7, 9, 10]
    assert runner.rates.of('head.lr') == [clean[place] for place in places]
    assert runner.rates.of('backbone.lr') == clean
    hook = hook_of(runner)
    hook.add_backlog(3, 'head')
    assert set(hook.state_dict()) == {'head'}
    with pytest.raises(
        ValueError, match="'tail' matches nothing. There is backbone, norm"
    ):
        hook.add_backlog(1, 'tail')


class SetBack(Hook):
    """Puts the schedule back to its start, once."""

    priority = 'HIGH'

    def before_train(self, runner):
        self.states = [x.state_dict() for x in runner.param_schedulers]
        self.rate = runner.optim_wrapper.get_lr()['lr'][0]

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == 4:
            for one, state in zip(runner.param_schedulers, self.states):
                one.load_state_dict(state)
            for group in runner.optim_wrapper.param_groups:
                group['lr'] = self.rate
            hook_of(runner).add_backlog(3)


def test_a_schedule_that_is_set_back_catches_up(tmp_path):
    schedule = SCHEDULE[:1]
    clean = train(
        tmp_path / 'a', STOCK, max_iters=20, param_scheduler=schedule
    )
    runner = train(
        tmp_path / 'b',
        max_iters=20,
        param_scheduler=schedule,
        hooks=[SetBack()],
    )
    found, expected = runner.rates.of(), clean.rates.of()
    assert found[4:6] == expected[1:3]
    (one,) = runner.param_schedulers
    assert one._global_step == 20
    assert found[-1] == pytest.approx(expected[-1])


@pytest.mark.parametrize('iterations', [-1, 1.5, None])
def test_a_backlog_must_be_a_number(iterations):
    hook = SafeParamSchedulerHook()
    message = '`iterations` must be an int of at least 0'
    with pytest.raises((TypeError, ValueError), match=message):
        hook.add_backlog(iterations)


def warned(*args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        runner = train(*args, **kwargs)
    text = [str(one.message) for one in caught]
    return any(EARLY in one for one in text) or EARLY in log_of(runner)


@pytest.mark.parametrize(('accumulate', 'bad'), [(1, [1, 2]), (2, [2, 4])])
def test_no_warning_of_a_schedule_ahead_of_the_optimizer(
    tmp_path, accumulate, bad
):
    settings = dict(bad=bad, accumulate=accumulate)
    assert not warned(tmp_path / 'ours', OURS, **settings)
    # A skip alone does not make mmengine warn: it counts calls.
    by_stock = warned(tmp_path / 'stock', STOCK, **settings)
    assert by_stock is (accumulate > 1)


def test_stock_wrappers_are_not_obeyed_and_that_is_said(tmp_path, clean):
    runner = train(tmp_path, optim_wrapper=wrapper_of(kind='OptimWrapper'))
    assert runner.rates.of() == clean
    assert log_of(runner).count('does not report skipped steps') == 1


def test_two_hooks_would_move_a_schedule_twice(tmp_path):
    with pytest.raises(
        ConfigError,
        match='ParamSchedulerHook and SafeParamSchedulerHook are both there '
        'and would move every schedule twice',
    ):
        train(tmp_path, STOCK, hooks=[OURS])


def test_a_loop_without_before_train_moves_schedules_too(tmp_path):
    runner = make(tmp_path)
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    runner.param_schedulers = runner.build_param_scheduler(
        runner.param_schedulers
    )
    before = runner.param_schedulers[0].last_step
    runner.optim_wrapper.optimizer.step()
    hook_of(runner).after_train_iter(runner, 0)
    assert runner.param_schedulers[0].last_step == before + 1
