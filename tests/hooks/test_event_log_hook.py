"""The event file of real runs."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import time
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop, Runner
from torch.optim import SGD

import mmstable
from mmstable import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.report import (
    Heartbeat,
    Poisoned,
    RunEnd,
    RunStart,
    ScaleChange,
    StepFault,
    WrapperTotals,
    read_events,
)
from tests.toys import NAN, Sabotage, ToyModel, toy_runner

AMP = dict(
    type='mmstable.SafeAmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=0.01, fused=True),
    clip_grad=dict(max_norm=35, norm_type=2),
    loss_scale=1024.0,
)


def event_file(runner: Runner) -> Path:
    return Path(runner.log_dir, 'stability', 'events.jsonl')


def events_of(runner: Runner, kind: type | None = None) -> list:
    events = list(read_events(event_file(runner)))
    return [e for e in events if kind is None or isinstance(e, kind)]


def train(work_dir, *hooks, wrapper=None, interval=50, **kwargs) -> Runner:
    hook = dict(type='mmstable.EventLogHook', interval=interval)
    runner = toy_runner(work_dir, wrapper, hooks=(hook, *hooks), **kwargs)
    runner.train()
    return runner


def log_text(runner: Runner) -> str:
    return Path(runner.log_dir, f'{runner.timestamp}.log').read_text()


def test_the_header_says_what_runs(tmp_path):
    runner = train(tmp_path, wrapper=dict(AMP), max_iters=1)
    header = events_of(runner)[0]
    assert isinstance(header, RunStart)
    assert (header.schema, header.iteration) == (1, 0)
    assert header.versions['mmstable'] == mmstable.__version__
    assert header.versions['torch'] == str(torch.__version__)
    assert header.versions.keys() >= {'mmengine', 'python'}
    assert (header.rank, header.world_size) == (0, 1)
    assert (header.device, header.pid) == ('cpu', os.getpid())
    assert (header.seed, header.max_iterations) == (0, 1)
    text = runner.cfg.pretty_text.encode()
    assert header.config_sha256 == hashlib.sha256(text).hexdigest()
    setup = header.wrappers['optim_wrapper']
    assert setup.type.endswith('.SafeAmpOptimWrapper')
    assert setup.optimizer == 'torch.optim.adamw.AdamW'
    assert (setup.dtype, setup.accumulative_counts) == ('float16', 1)
    assert setup.clip_grad == {'max_norm': 35, 'norm_type': 2}
    assert setup.clip == 'max_norm=35'
    assert setup.loss_scale == 1024.0
    assert setup.scale_policy['min_scale'] == 1.0


def test_the_header_has_the_hooks_of_the_config(tmp_path):
    hooks = [dict(type='mmstable.EventLogHook', interval=3)]
    runner = toy_runner(tmp_path, hooks=hooks, max_iters=1)
    runner.cfg = Config(dict(custom_hooks=hooks))
    runner.train()
    assert events_of(runner)[0].custom_hooks == (dict(hooks[0]),)


def test_the_header_has_the_clipping_of_a_hook(tmp_path):
    clip = dict(type='mmstable.GradClipHook', max_norm=0.5)
    runner = train(tmp_path, clip, max_iters=1)
    setup = events_of(runner)[0].wrappers['optim_wrapper']
    assert (setup.clip_grad, setup.clip) == (None, 'max_norm=0.5')


def test_faults_by_parameter_and_iteration(tmp_path):
    sabotage = Sabotage(loss=[2], grads={4: ('net.norm.bias', NAN)})
    runner = train(tmp_path, sabotage, wrapper=dict(AMP))
    bad_loss, overflow = events_of(runner, StepFault)
    assert (bad_loss.iteration, bad_loss.fault) == (2, 'nan_loss')
    assert math.isnan(bad_loss.losses['loss'])
    assert bad_loss.next_loss_scale == bad_loss.loss_scale == 1024.0
    assert len(bad_loss.culprits) == len(list(runner.model.parameters()))
    assert (overflow.iteration, overflow.fault) == (4, 'overflow')
    assert overflow.culprits == (('net.norm.bias', 'NaN'),)
    assert (overflow.loss_scale, overflow.next_loss_scale) == (1024.0, 512.0)
    assert (overflow.outcome, overflow.rank) == ('skipped', 0)
    assert math.isfinite(overflow.losses['loss'])


def test_the_scale_is_followed_both_ways(tmp_path):
    scale = dict(init_scale=8.0, growth_interval=2, max_scale=16.0)
    runner = train(
        tmp_path,
        Sabotage(grads={4: ('net.head.bias', NAN)}),
        wrapper=dict(AMP, loss_scale=scale),
    )
    changes = [
        (e.iteration, e.loss_scale, e.next_loss_scale)
        for e in events_of(runner, ScaleChange)
    ]
    assert changes == [(2, 8.0, 16.0), (4, 16.0, 8.0), (6, 8.0, 16.0)]


def test_a_healthy_run_has_a_header_and_an_end_only(tmp_path):
    runner = train(tmp_path, wrapper=dict(AMP))
    header, end = events_of(runner)
    assert isinstance(header, RunStart)
    assert isinstance(end, RunEnd)
    assert (end.iteration, end.reason, end.lost_events) == (6, 'finished', 0)
    assert end.wrappers == {'optim_wrapper': WrapperTotals(applied=6)}


def test_heartbeats(tmp_path):
    runner = train(tmp_path, wrapper=dict(AMP), interval=2)
    beats = events_of(runner, Heartbeat)
    assert [beat.iteration for beat in beats] == [2, 4, 6]
    for beat in beats:
        sample = beat.wrappers['optim_wrapper']
        assert 0 < beat.losses['loss'] < 10
        assert sample.lr == 0.01
        assert sample.grad_norm > 0
        assert sample.loss_scale == 1024.0
        assert 0 < beat.iteration_time < 10
        assert beat.host_memory > 2**20
        assert beat.device_memory is None
    times = [event.time for event in events_of(runner)]
    assert times == sorted(times)


def test_totals_by_fault(tmp_path):
    runner = train(
        tmp_path,
        Sabotage(loss=[2, 3], grads={5: ('net.head.bias', NAN)}),
        wrapper=dict(AMP),
    )
    assert events_of(runner, RunEnd)[0].wrappers == {
        'optim_wrapper': WrapperTotals(
            applied=3, skipped=3, faults={'nan_loss': 2, 'overflow': 1}
        )
    }


def test_a_step_of_several_iterations_is_recorded_once(tmp_path):
    runner = train(
        tmp_path,
        Sabotage(loss=[2], grads={4: ('net.head.bias', NAN)}),
        wrapper=dict(AMP, accumulative_counts=3),
        max_iters=9,
    )
    kept, skipped = events_of(runner, StepFault)
    assert (kept.iteration, kept.outcome) == (3, 'applied')
    assert (kept.fault, kept.dropped_micro_batches) == ('nan_loss', 1)
    assert (skipped.iteration, skipped.outcome) == (6, 'skipped')
    assert events_of(runner, RunEnd)[0].wrappers == {
        'optim_wrapper': WrapperTotals(2, 1, {'overflow': 1}, 1)
    }


@pytest.mark.parametrize('kind', ['OptimWrapper', 'SafeOptimWrapper'])
def test_wrappers_without_scaling(tmp_path, kind):
    scope = 'mmstable.' if kind.startswith('Safe') else ''
    wrapper = dict(
        type=scope + kind,
        optimizer=dict(type='SGD', lr=0.1),
        clip_grad=dict(clip_value=1.0, type='value'),
    )
    runner = train(tmp_path, wrapper=wrapper, interval=3)
    header, *beats, end = events_of(runner)
    setup = header.wrappers['optim_wrapper']
    assert setup.type.endswith(f'.{kind}')
    assert setup.clip_grad == {'clip_value': 1.0}
    assert (setup.loss_scale, setup.scale_policy) == (None, None)
    samples = [beat.wrappers['optim_wrapper'] for beat in beats]
    assert [sample.lr for sample in samples] == [0.1, 0.1]
    assert [sample.loss_scale for sample in samples] == [None, None]
    assert all(sample.grad_norm > 0 for sample in samples)
    assert end.wrappers == {'optim_wrapper': WrapperTotals(applied=6)}


class TwoSteps(ToyModel):
    """Steps one wrapper once and the other twice in an iteration."""

    def train_step(self, data, optim_wrapper):
        data = self.data_preprocessor(data, True)
        for name, times in (('gen', 2), ('disc', 1)):
            for _ in range(times):
                loss = self(**data, mode='loss')['loss']
                optim_wrapper[name].update_params(loss)
        return dict(loss_gen=loss.detach())


def test_a_dictionary_of_wrappers(tmp_path):
    model = TwoSteps()
    net = model.net
    wrappers = OptimWrapperDict(
        gen=SafeAmpOptimWrapper(
            optimizer=SGD(net.backbone.parameters(), lr=0.1),
            dtype='bfloat16',
        ),
        disc=SafeOptimWrapper(SGD(net.head.parameters(), lr=0.2)),
        plain=OptimWrapper(SGD(net.norm.parameters(), lr=0.3)),
    )
    runner = train(
        tmp_path,
        Sabotage(grads={2: ('net.head.bias', NAN)}),
        wrapper=wrappers,
        model=model,
        interval=3,
        max_iters=3,
    )
    header, fault, beat, end = events_of(runner)
    assert list(header.wrappers) == ['gen', 'disc', 'plain']
    assert (fault.wrapper, fault.iteration) == ('disc', 2)
    assert {n: s.lr for n, s in beat.wrappers.items()} == {
        'gen': 0.1,
        'disc': 0.2,
        'plain': 0.3,
    }
    assert list(beat.losses) == ['loss_gen']
    assert end.wrappers['gen'].applied == 6
    assert end.wrappers['disc'] == WrapperTotals(2, 1, {'nan_grad': 1})


def test_a_resumed_run_has_its_own_file(tmp_path):
    checkpoints = dict(
        checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=4)
    )
    first = train(
        tmp_path / 'a',
        Sabotage(grads={2: ('net.head.bias', NAN)}),
        max_iters=4,
        default_hooks=checkpoints,
    )
    second = train(
        tmp_path / 'b',
        max_iters=6,
        load_from=str(tmp_path / 'a' / 'iter_4.pth'),
        resume=True,
    )
    assert events_of(first)[0].iteration == 0
    header, end = events_of(second)
    assert (header.iteration, end.iteration) == (4, 6)
    # The checkpoint counted the first run's steps; these are the second's.
    assert end.wrappers == {'optim_wrapper': WrapperTotals(applied=2)}


def test_two_runs_within_one_second_do_not_mix(tmp_path):
    hook = EventLogHook(interval=1)
    first = toy_runner(tmp_path, hooks=(hook,), max_iters=2)
    second = toy_runner(tmp_path, hooks=(hook,), max_iters=3)
    second._log_dir = first.log_dir
    first.train()
    second.train()
    assert [e.iteration for e in events_of(first)] == [0, 1, 2, 2]
    other = event_file(first).with_name('events-2.jsonl')
    assert [e.iteration for e in read_events(other)] == [0, 1, 2, 3, 3]


class StopEarly(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        runner.train_loop.stop_training = runner.iter == 2


class Crash(Hook):
    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 2:
            raise RuntimeError('crash')


def test_a_run_that_was_stopped(tmp_path):
    end = events_of(train(tmp_path, StopEarly()))[-1]
    assert (end.iteration, end.reason) == (3, 'stopped')


def test_a_run_that_crashed_has_its_last_fault_and_no_end(tmp_path):
    hooks = (
        dict(type='mmstable.EventLogHook'),
        Sabotage(grads={3: ('net.head.bias', NAN)}),
        Crash(),
    )
    runner = toy_runner(tmp_path, hooks=hooks)
    with pytest.raises(RuntimeError, match='crash'):
        runner.train()
    assert [type(e) for e in events_of(runner)] == [RunStart, StepFault]


class Clock:
    """Goes on by itself, and by what validation is said to take."""

    passed = 0.0

    @classmethod
    def perf_counter(cls):
        return time.perf_counter() + cls.passed


class SlowValidation(BaseLoop):
    def __init__(self, runner, dataloader, evaluator=None):
        super().__init__(runner, dataloader)

    def run(self):
        self.runner.call_hook('before_val')
        Clock.passed += 1000.0
        self.runner.call_hook('after_val')


def validating(work_dir: Path, hook: EventLogHook) -> Runner:
    runner = toy_runner(
        work_dir,
        hooks=(hook,),
        train_cfg=dict(by_epoch=False, max_iters=3, val_interval=1),
    )
    runner._val_loop = SlowValidation(runner, runner.train_dataloader)
    return runner


def test_validation_is_no_iteration_time(tmp_path, monkeypatch):
    monkeypatch.setattr('mmstable.events.samples.time', Clock)
    runner = validating(tmp_path, EventLogHook(interval=1))
    runner.train()
    first, *others = events_of(runner, Heartbeat)
    assert first.iteration_time is None
    assert all(0 < beat.iteration_time < 1000 for beat in others)


def test_validation_alone_writes_nothing(tmp_path):
    runner = validating(tmp_path, EventLogHook())
    runner.val()
    assert not event_file(runner).exists()


def test_a_directory_that_cannot_be_made(tmp_path):
    hooks = (
        dict(type='mmstable.EventLogHook', interval=1),
        Sabotage(grads={3: ('net.head.bias', NAN)}),
    )
    runner = toy_runner(tmp_path, hooks=hooks)
    Path(runner.log_dir, 'stability').write_text('in the way')
    runner.train()
    assert runner.iter == 6
    assert log_text(runner).count('cannot write the event file') == 1


class FillDisk(Hook):
    """From an iteration on, let every write to the event file fail."""

    priority = 'HIGHEST'

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 2:
            full = os.open('/dev/full', os.O_WRONLY)
            os.dup2(full, self._descriptor(event_file(runner)))
            os.close(full)

    def _descriptor(self, path: Path) -> int:
        for link in Path('/proc/self/fd').iterdir():
            if link.exists() and link.resolve() == path.resolve():
                return int(link.name)
        raise FileNotFoundError(path)


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs Linux')
def test_a_disk_that_fills_up(tmp_path):
    runner = train(tmp_path, FillDisk(), interval=1)
    assert runner.iter == 6
    assert [e.iteration for e in events_of(runner)] == [0, 1, 2]
    text = log_text(runner)
    assert text.count('cannot write the event file') == 1
    assert os.strerror(errno.ENOSPC) in text


def test_the_hook_changes_nothing(tmp_path):
    with_hook = train(tmp_path / 'a', interval=1)
    without = toy_runner(tmp_path / 'b')
    without.train()
    for left, right in zip(
        with_hook.model.parameters(), without.model.parameters()
    ):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ('interval', 'error', 'message'),
    [
        (0, ValueError, 'got 0'),
        (-5, ValueError, 'got -5'),
        (1.5, ValueError, 'got 1.5'),
        (True, TypeError, 'got True'),
        ('50', TypeError, "got '50'"),
    ],
)
def test_a_wrong_interval(interval, error, message):
    message = f'EventLogHook: `interval` must be an int of .* 1, {message}'
    with pytest.raises(error, match=message):
        EventLogHook(interval=interval)


def test_a_poisoned_state_is_recorded(tmp_path):
    class Poison(Hook):
        priority = 'HIGHEST'

        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter == 1:
                runner.model.net.head.weight.data[0, 0] = NAN

    runner = toy_runner(
        tmp_path,
        max_iters=2,
        hooks=[Poison(), dict(type='mmstable.EventLogHook')],
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', by_epoch=False, interval=2
            )
        ),
    )
    runner.train()
    assert list(tmp_path.glob('iter_*.pth')) == []
    (poisoned, *_) = events_of(runner, Poisoned)
    assert poisoned.iteration == 2
    (culprit,) = poisoned.culprits
    assert 'net.head.weight' in culprit.name
    assert culprit.kind == 'NaN'


@pytest.mark.parametrize(
    'extra', ['', '\U0001f600' * 10**6], ids=['short', 'long']
)
def test_an_exception_is_the_end_with_its_traceback(tmp_path, extra):
    class Fail(Hook):
        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter == 2:
                raise RuntimeError(f'{extra}no more')

    runner = toy_runner(
        tmp_path,
        hooks=[Fail(), dict(type='mmstable.EventLogHook')],
        train_cfg=dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=5),
    )
    with pytest.raises(RuntimeError, match='no more'):
        runner.train()
    (end,) = events_of(runner, RunEnd)
    assert end.reason == 'exception'
    assert end.traceback.endswith('no more\n')
    assert extra or "raise RuntimeError(f'{extra}no more')" in end.traceback
