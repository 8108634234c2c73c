"""Hooks hear of an exception before it leaves training."""

from __future__ import annotations

import re

import pytest
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook

from mmstable.checkpoint.loading import load_checkpoint
from tests.loops.runs import (
    Numbered,
    build,
    diary,
    epoch_loop,
    iter_loop,
    loader,
    log_of,
    resume,
    train,
    validation,
)


class Fail(Hook):
    """Raise in one stage of one iteration."""

    def __init__(self, stage: str, iteration: int, error: BaseException):
        self.iteration, self.error = iteration, error
        setattr(self, stage, self.fail)

    def fail(self, runner, **kwargs):
        if runner.iter == self.iteration:
            raise self.error


class Ear(Hook):
    priority = 'LOWEST'

    def __init__(self) -> None:
        self.heard: list = []

    def on_exception(self, runner, exception):
        self.heard.append((exception, runner.train_loop.resume_meta()))


class Broken(Hook):
    def on_exception(self, runner, exception):
        raise OSError('disk full')


def data():
    numbered = Numbered()
    return loader(numbered, sampler=InfiniteSampler(numbered, seed=5))


@pytest.mark.parametrize(
    'error', [RuntimeError('boom'), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize(
    ('stage', 'finished'),
    [('before_train_iter', 2), ('after_train_iter', 3), ('before_train', 0)],
)
@pytest.mark.parametrize(
    'loop', [iter_loop(5), epoch_loop(2)], ids=['iterations', 'epochs']
)
def test_hooks_hear_of_it_once(tmp_path, loop, stage, finished, error):
    ear = Ear()
    iteration = 0 if stage == 'before_train' else 2
    made = data() if 'max_iters' in loop else loader(Numbered())
    runner = build(
        tmp_path, made, loop, hooks=[Fail(stage, iteration, error), ear]
    )
    with pytest.raises(type(error)) as caught:
        runner.train()
    assert caught.value is error
    assert ear.heard == [(error, dict(epoch=0, iter=finished))]


def test_validation_is_part_of_training(tmp_path):
    ear, error = Ear(), RuntimeError('boom')
    runner = build(
        tmp_path,
        data(),
        iter_loop(5, val_interval=3),
        hooks=[Fail('before_val_iter', 3, error), ear],
        **validation(),
    )
    with pytest.raises(RuntimeError, match='boom'):
        runner.train()
    assert ear.heard == [(error, dict(epoch=0, iter=3))]


def test_a_hook_that_fails_hides_nothing(tmp_path):
    ear, error = Ear(), RuntimeError('boom')
    runner = build(
        tmp_path,
        data(),
        iter_loop(5),
        hooks=[Broken(), Fail('after_train_iter', 2, error), ear],
    )
    with pytest.raises(RuntimeError, match='boom'):
        runner.train()
    assert len(ear.heard) == 1
    log = log_of(runner)
    assert 'Broken.on_exception failed' in log
    assert 'disk full' in log


def test_hooks_hear_of_a_planned_exit(tmp_path):
    ear = Ear()
    runner = build(
        tmp_path,
        data(),
        iter_loop(5),
        hooks=[Fail('after_train_iter', 2, SystemExit(3)), ear],
    )
    with pytest.raises(SystemExit):
        runner.train()
    ((heard, _),) = ear.heard
    assert isinstance(heard, SystemExit)


def test_a_hook_without_memory_is_named(tmp_path):
    error = torch.cuda.OutOfMemoryError('CUDA out of memory.')
    runner = build(
        tmp_path,
        data(),
        iter_loop(5),
        hooks=[Fail('after_train_iter', 2, error)],
    )
    with pytest.raises(torch.cuda.OutOfMemoryError):
        runner.train()
    log = log_of(runner)
    assert re.search(r'memory in a hook \(.*test_exceptions\.py:\d+\)', log)
    assert 'A smaller batch does not help' in log


class SaveOnException(Hook):
    def on_exception(self, runner, exception):
        runner.save_checkpoint(
            runner.work_dir,
            'emergency.pth',
            meta=runner.train_loop.resume_meta(),
        )


@pytest.mark.parametrize(
    ('loop', 'make'),
    [(iter_loop(8), data), (epoch_loop(2), lambda: loader(Numbered()))],
    ids=['iterations', 'epochs'],
)
def test_the_batch_that_failed_comes_again(tmp_path, loop, make):
    whole = train(tmp_path / 'whole', make(), loop)
    runner = build(
        tmp_path / 'part',
        make(),
        loop,
        hooks=[
            Fail('before_train_iter', 5, RuntimeError('boom')),
            SaveOnException(),
        ],
    )
    with pytest.raises(RuntimeError, match='boom'):
        runner.train()
    emergency = tmp_path / 'part' / 'emergency.pth'
    saved = load_checkpoint(emergency)
    assert saved['mmstable']['loop']['iteration'] == 5
    rest = resume(tmp_path / 'rest', emergency, make(), loop)
    assert diary(rest).numbers == diary(whole).numbers[5:]
