"""Checkpoints that are written while training continues."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from mmengine.hooks import Hook

from mmstable.checkpoint import content, storage, writer
from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.folders import finish_saves
from mmstable.hooks import safe_checkpoint_hook
from mmstable.io import files
from mmstable.report import CheckpointFailed
from tests.hooks.test_safe_checkpoint_hook import (
    checkpoints,
    hook_of,
    log_of,
    make,
    train,
)
from tests.patience import PATIENCE
from tests.toys import assert_same, read_saved, weights


def saved(content):
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def test_a_copy_gives_the_same_bytes():
    whole = torch.arange(64.0)
    tied = torch.nn.Linear(4, 4)
    checkpoint = {
        'state_dict': torch.nn.Sequential(tied, tied).state_dict(),
        'views': [whole[:8], whole[4:12].view(2, 4).t()],
        'other': {'mmstable': (1, 'a', None, torch.tensor(2))},
    }
    copied = content.capture(checkpoint)
    before = saved(checkpoint)
    assert saved(copied) == before
    whole.zero_()
    tied.weight.data.zero_()
    assert saved(copied) == before


class Gate:
    """Lets writers pass one after the other, as the test says."""

    def __init__(self, monkeypatch):
        self.arrived, self.opened = threading.Event(), threading.Event()
        write = storage.CheckpointStorage._write_local

        def wait(*args):
            self.arrived.set()
            assert self.opened.wait(PATIENCE)
            write(*args)

        monkeypatch.setattr(storage.CheckpointStorage, '_write_local', wait)


class Watch(Hook):
    """Opens the gate after an iteration, and sees what is there before."""

    def __init__(self, gate, at):
        self.gate, self.at = gate, at
        self.seen = {}
        self.failed = []

    def before_train_iter(self, runner, *args, **kwargs):
        self.seen[runner.iter] = (
            checkpoints(runner.work_dir),
            weights(runner.model),
        )
        if runner.iter == self.at:
            assert self.gate.arrived.wait(PATIENCE)
            self.gate.opened.set()

    def after_event(self, runner, event):
        if isinstance(event, CheckpointFailed):
            self.failed.append((runner.iter, event.iteration, event.name))


def test_training_continues_while_it_is_written(tmp_path, monkeypatch):
    watch = Watch(Gate(monkeypatch), at=3)
    runner = train(tmp_path, watch, max_iters=6)
    # Iteration 3 was trained with the file of iteration 2 still unwritten.
    assert watch.seen[3][0] == []
    file = read_saved(tmp_path / 'iter_2.pth')
    assert_same(file['state_dict'], watch.seen[2][1])
    assert file['meta']['iter'] == 2
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    assert not any(
        one.name == 'mmstable-save' for one in threading.enumerate()
    )
    assert hook_of(runner).last_ckpt == str(tmp_path / 'iter_6.pth')


GUARD = dict(type='mmstable.DivergenceGuardHook', snapshot_interval=1)
EMA = dict(type='EMAHook', momentum=0.5)
ADAMW = dict(
    type='mmstable.SafeOptimWrapper', optimizer=dict(type='AdamW', lr=0.01)
)


def test_the_snapshot_of_the_guard_is_not_copied_again(tmp_path, monkeypatch):
    copied = []
    capture = writer.capture

    def note(checkpoint, kept):
        copied.append(content.content_size(checkpoint, kept))
        return capture(checkpoint, kept)

    monkeypatch.setattr(writer, 'capture', note)
    for name, hooks in {'a': [EMA], 'b': [EMA, GUARD]}.items():
        train(tmp_path / name, *hooks, optim_wrapper=ADAMW)
    alone, shared = copied[:3], copied[3:]
    # Random generators and histories are left.
    state = read_saved(tmp_path / 'a' / 'iter_6.pth')
    size = content.content_size(
        [state['state_dict'], state['ema_state_dict'], state['optimizer']]
    )
    assert [a - b for a, b in zip(alone, shared)] == 3 * [size]
    for path in sorted((tmp_path / 'a').glob('*.pth')):
        ours = read_saved(tmp_path / 'b' / path.name)
        theirs = read_saved(path)
        for section in ('state_dict', 'ema_state_dict', 'optimizer'):
            assert_same(ours[section], theirs[section])
            # Each tensor brings its own storage, and no more.
            assert saved(ours[section]) == saved(theirs[section])


def test_later_snapshots_leave_a_shared_one_alone(tmp_path, monkeypatch):
    watch = Watch(Gate(monkeypatch), at=5)
    checkpoint = dict(interval=3)
    train(tmp_path, watch, GUARD, checkpoint=checkpoint, optim_wrapper=ADAMW)
    assert watch.seen[5][0] == []
    file = read_saved(tmp_path / 'iter_3.pth')
    assert_same(file['state_dict'], watch.seen[3][1])


def test_the_next_one_waits_for_the_one_before(tmp_path, monkeypatch):
    order = []
    write = storage.CheckpointStorage._write_local

    def note(self, checkpoint, path):
        order.append(('begin', checkpoint['meta']['iter']))
        write(self, checkpoint, path)
        order.append(('end', checkpoint['meta']['iter']))

    monkeypatch.setattr(storage.CheckpointStorage, '_write_local', note)
    train(tmp_path, checkpoint=dict(interval=1), max_iters=3)
    assert order == [(w, i) for i in (1, 2, 3) for w in ('begin', 'end')]


def test_it_can_be_switched_off(tmp_path, monkeypatch):
    threads = []
    write = storage.CheckpointStorage._write_local

    def note(self, *args):
        threads.append(threading.current_thread() is threading.main_thread())
        write(self, *args)

    monkeypatch.setattr(storage.CheckpointStorage, '_write_local', note)
    train(tmp_path / 'a', checkpoint=dict(async_save=False))
    train(tmp_path / 'b')
    assert threads == 3 * [True] + 3 * [False]
    with pytest.raises(TypeError, match='async_save'):
        make(tmp_path / 'c', checkpoint=dict(async_save='no'))


def test_little_memory_makes_training_wait(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)
    gate.opened.set()
    monkeypatch.setattr(safe_checkpoint_hook, '_free_memory', lambda: 100)
    watch = Watch(gate, at=-1)
    runner = train(tmp_path, watch)
    assert watch.seen[2][0] == ['iter_2.pth']
    assert 'of host memory are needed to copy it, 0 MiB' in log_of(runner)


class Uncopied:
    def __deepcopy__(self, memo):
        raise RuntimeError('not me')

    def __reduce__(self):
        return dict, ()


class Odd(Hook):
    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['odd'] = Uncopied()


def test_what_cannot_be_copied_is_written_at_once(tmp_path):
    runner = train(tmp_path, Odd())
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    assert 'cannot be copied: RuntimeError: not me' in log_of(runner)


class Flaky:
    """A disk that fails at some of the writes of a file."""

    def __init__(self, monkeypatch, *numbers):
        self.calls = 0
        write = torch.save

        def save(content, stream, **kwargs):
            self.calls += 1
            if self.calls in numbers:
                raise OSError(5, 'Input/output error')
            write(content, stream, **kwargs)

        monkeypatch.setattr(storage.torch, 'save', save)


def test_a_failed_write_is_tried_once_more(tmp_path, monkeypatch):
    Flaky(monkeypatch, 2)
    watch = Watch(None, at=-1)
    runner = train(tmp_path, watch)
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    assert 'writing iter_4.pth failed and is tried once more' in log_of(runner)
    assert watch.failed == []


def test_a_failure_is_reported_and_training_continues(tmp_path, monkeypatch):
    Flaky(monkeypatch, 2, 3)
    watch = Watch(None, at=-1)
    keep = dict(max_keep_ckpts=1, interval=2)
    runner = train(tmp_path, watch, max_iters=8, checkpoint=keep)
    (failed,) = watch.failed
    assert failed[1:] == (4, 'iter_4.pth')
    # While training, not at the next checkpoint only.
    assert failed[0] in (4, 5)
    assert log_of(runner).count('iter_4.pth is not saved: [Errno 5]') == 1
    assert checkpoints(tmp_path) == ['iter_8.pth']


def test_an_error_that_is_not_the_disks_ends_the_run(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError('cannot be pickled')

    monkeypatch.setattr(storage.torch, 'save', fail)
    with pytest.raises(RuntimeError, match='cannot be pickled'):
        train(tmp_path)


def test_a_rank_alone_waits_for_what_it_writes(tmp_path, monkeypatch):
    gate = Gate(monkeypatch)

    class Emergency(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 2:
                assert gate.arrived.wait(PATIENCE)
                threading.Timer(0.1, gate.opened.set).start()
                runner.saved = hook_of(runner).save_alone(runner, {})
                runner.files = checkpoints(tmp_path)

    runner = train(tmp_path, Emergency(), max_iters=3)
    assert runner.saved == str(tmp_path / 'iter_2.pth')
    assert runner.files == ['iter_2.pth']


def test_another_rank_does_not_rely_on_an_unfinished_one(
    tmp_path, monkeypatch
):
    """The main process may be gone before the file is complete."""

    class Emergency(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner, *args, **kwargs):
            if runner.iter + 1 == 2:
                finish_saves(runner)
                with monkeypatch.context() as patch:
                    patch.setattr(writer, 'is_main_process', lambda: False)
                    runner.saved = hook_of(runner).save_alone(runner, {})

    runner = train(tmp_path, Emergency(), max_iters=3)
    assert runner.saved == str(tmp_path / 'emergency_iter_2.pth')
    assert verify_checkpoint(Path(runner.saved)).iteration == 2


def test_nothing_is_left_when_a_write_fails(tmp_path, monkeypatch):
    Flaky(monkeypatch, 1, 2)
    train(tmp_path)
    assert not list(tmp_path.glob(f'.*{files._SUFFIX}'))
    assert find_checkpoint(tmp_path).found.iteration == 6


EXIT = """
import sys, time
from pathlib import Path
from mmengine.hooks import Hook
from mmstable.checkpoint import storage
from tests.hooks.test_safe_checkpoint_hook import make

write = storage.CheckpointStorage._write_local

def slow(*args):
    time.sleep(0.5)
    write(*args)

storage.CheckpointStorage._write_local = slow

class Leave(Hook):
    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter == 2:
            sys.exit(7)

loop = dict(by_epoch=False, max_iters=4)
make(Path(sys.argv[1]), Leave(), train_cfg=loop).train()
"""


def test_an_exit_waits_for_it(tmp_path):
    done = subprocess.run(
        [sys.executable, '-c', EXIT, str(tmp_path)], check=False
    )
    assert done.returncode == 7
    assert verify_checkpoint(tmp_path / 'iter_2.pth').iteration == 2
