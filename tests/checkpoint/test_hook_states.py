"""What a resumed run knows of hooks, and of a checkpoint that is not exact."""

from __future__ import annotations

import pytest
from mmengine.hooks import EarlyStoppingHook, Hook

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.cli import start
from mmstable.errors import CheckpointError
from tests.hooks.test_safe_checkpoint_hook import (
    Count,
    hook_of,
    log_of,
    make,
    train,
    validating,
)
from tests.toys import read_saved

LOOP = dict(type='mmstable.SafeIterBasedTrainLoop', max_iters=6)


def stopping(patience=3):
    return EarlyStoppingHook(
        monitor='acc', rule='less', patience=patience, min_delta=0
    )


def test_early_stopping_continues_to_count(tmp_path):
    """The metric only rises, so every validation after the first waits."""
    loop = dict(by_epoch=False, max_iters=3, val_interval=1)
    validating(
        tmp_path,
        stopping(),
        train_cfg=loop,
        checkpoint=dict(interval=1),
    ).train()
    saved = read_saved(tmp_path / 'iter_3.pth')['mmstable']
    # Saved before the third validation.
    state = saved['SafeCheckpointHook']['hooks']['EarlyStoppingHook']
    assert state == {'wait_count': 1.0, 'best_score': 1.0}
    rest = validating(
        tmp_path / 'rest',
        stopping(),
        train_cfg=dict(loop, max_iters=9),
        load_from=str(tmp_path / 'iter_3.pth'),
        resume=True,
    )
    # Worse than the best before: 6 and 7 are the second and third to wait.
    Count.values['count'] = 5
    rest.train()
    assert rest.iter == 5
    hook = next(h for h in rest.hooks if isinstance(h, EarlyStoppingHook))
    assert type(hook.wait_count) is int


class Counter(Hook):
    """Counts in an attribute, which nobody saves."""

    def __init__(self):
        self.seen = 0

    def after_train_iter(self, *args, **kwargs):
        self.seen += 1


class Constant(Hook):
    def __init__(self):
        self.setting = 3


class Saves(Counter):
    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['seen'] = self.seen


def resume(tmp_path, *hooks):
    runner = make(
        tmp_path / 'rest',
        *hooks,
        train_cfg=LOOP,
        load_from=str(tmp_path / 'iter_4.pth'),
        resume=True,
    )
    runner.train()
    return hook_of(runner).restored['result']


def test_a_hook_without_saved_state_is_named(tmp_path):
    train(tmp_path, Counter(), Constant(), Saves(), train_cfg=LOOP)
    result = resume(tmp_path, Counter(), Constant(), Saves())
    assert result == 'approximate: Counter does not save its state'
    assert resume(tmp_path, Constant()).startswith('exact')


class Raise(Hook):
    """Fails after the step of an iteration."""

    priority = 'ABOVE_NORMAL'

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == 3:
            raise RuntimeError('after the step')


def test_the_reason_of_an_inexact_state_is_repeated(tmp_path):
    runner = make(
        tmp_path,
        Raise(),
        dict(type='mmstable.EmergencyCheckpointHook'),
        train_cfg=LOOP,
    )
    with pytest.raises(RuntimeError, match='after the step'):
        runner.train()
    reason = 'not all hooks of the iteration have run'
    assert f'not exactly the one before: {reason}' in log_of(runner)
    found = find_checkpoint(tmp_path).found
    assert found.path.name == 'emergency_iter_3.pth'
    rest = make(
        tmp_path / 'rest',
        train_cfg=LOOP,
        load_from=str(found.path),
        resume=True,
    )
    rest.train()
    assert hook_of(rest).restored['result'] == f'approximate: {reason}'


def test_a_disk_that_lags_is_waited_for(tmp_path, monkeypatch):
    path, pauses = tmp_path / 'iter_1.pth', []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 6:
            path.touch()

    monkeypatch.setattr(start.time, 'sleep', sleep)
    start._check_all_see(str(path))
    assert len(pauses) == 6
    path.unlink()
    with pytest.raises(CheckpointError, match='is there on rank 0, but not'):
        start._check_all_see(str(path))
    assert sum(pauses[6:]) == 30
