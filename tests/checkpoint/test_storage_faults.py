"""Disks that fail while checkpoints are written in the background."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmstable.checkpoint import storage, writer
from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.errors import ResultNotSaved
from mmstable.io import files
from tests.checkpoint.test_background_save import Watch
from tests.hooks.test_safe_checkpoint_hook import (
    At,
    checkpoints,
    log_of,
    make,
    train,
)
from tests.patience import PATIENCE


class FailingDisk:
    """Fails at the given calls of a function of the operating system."""

    def __init__(self, monkeypatch, name, number, *calls):
        self.count = 0
        original = getattr(os, name)

        def call(*args, **kwargs):
            self.count += 1
            if self.count in calls:
                raise OSError(number, os.strerror(number))
            return original(*args, **kwargs)

        monkeypatch.setattr(files.os, name, call)


# An fsync of the file and one of the folder for each checkpoint.
@pytest.mark.parametrize('number', [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize('name', ['fsync', 'replace'])
def test_one_failure_is_repeated(tmp_path, monkeypatch, name, number):
    # At the second checkpoint: each has a file, a manifest and a pointer.
    calls = dict(fsync=3, replace=4)
    FailingDisk(monkeypatch, name, number, calls[name])
    runner = train(tmp_path)
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']
    for path in tmp_path.glob('iter_*.pth'):
        assert verify_checkpoint(path)
    assert log_of(runner).count('failed and is tried once more') == 1
    assert not list(tmp_path.glob('.*'))


def test_two_fsyncs_a_checkpoint(tmp_path, monkeypatch):
    disk = FailingDisk(monkeypatch, 'fsync', 0)
    train(tmp_path, checkpoint=dict(max_keep_ckpts=1))
    assert disk.count == 2 * 3


def damage_writes(monkeypatch, count, cut):
    """Let the next files arrive damaged; return what is left to damage."""
    left = [count]
    check = storage.check_container

    def torn(path):
        if left[0]:
            left[0] -= 1
            with open(path, 'r+b') as file:
                cut(file)
        check(path)

    monkeypatch.setattr(storage, 'check_container', torn)
    return left


def cut_off(file):
    file.truncate(os.fstat(file.fileno()).st_size // 2)


def zero_the_end(file):
    file.seek(-200, os.SEEK_END)
    file.write(bytes(200))


@pytest.mark.parametrize('cut', [cut_off, zero_the_end])
def test_a_torn_write_is_repeated(tmp_path, monkeypatch, cut):
    damage_writes(monkeypatch, 1, cut)
    runner = train(tmp_path)
    assert 'it was damaged on its way' in log_of(runner)
    assert checkpoints(tmp_path) == ['iter_2.pth', 'iter_4.pth', 'iter_6.pth']


def test_two_torn_writes_leave_the_older_file(tmp_path, monkeypatch):
    at = At(_3=lambda runner: damage_writes(monkeypatch, 2, cut_off))
    watch = Watch(None, at=-1)
    one = dict(max_keep_ckpts=1)
    runner = train(tmp_path, at, watch, max_iters=5, checkpoint=one)
    assert [name for *_, name in watch.failed] == ['iter_4.pth']
    assert f'The last good checkpoint is {tmp_path}/iter_2' in log_of(runner)
    assert find_checkpoint(tmp_path).found.iteration == 5


def test_a_slow_fsync_does_not_stop_training(tmp_path, monkeypatch):
    begun, opened = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor):
        begun.set()
        assert opened.wait(PATIENCE)
        fsync(descriptor)

    monkeypatch.setattr(files.os, 'fsync', slow)
    watch = Watch(SimpleNamespace(arrived=begun, opened=opened), at=3)
    train(tmp_path, watch)
    assert watch.seen[3][0] == []
    assert find_checkpoint(tmp_path).found.iteration == 6


def test_a_removed_folder_is_made_again(tmp_path):
    out = tmp_path / 'out'
    at = At(_3=lambda runner: shutil.rmtree(out))
    train(tmp_path / 'work', at, checkpoint=dict(out_dir=str(out)))
    assert checkpoints(out / 'work') == ['iter_4.pth', 'iter_6.pth']


def test_a_full_disk_from_the_start(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=3 << 19)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
    monkeypatch.setattr(writer.RunState, 'size', lambda self: 1 << 20)
    monkeypatch.setattr(storage, 'content_size', lambda content: 1 << 20)
    runner = make(tmp_path, max_iters=8)
    with pytest.raises(ResultNotSaved):
        runner.train()
    log = log_of(runner)
    assert f'mmstable: no checkpoint can be saved in {tmp_path}: no sp' in log
    lines = [line for line in log.splitlines() if 'continues' in line]
    assert 'WARNING' in lines[0] and 'NOTHING' not in lines[0]
    assert 'ERROR' in lines[1]
    assert 'NOTHING of this run is saved yet' in lines[1]
    assert f'1.5 MiB are free in {tmp_path}.' in lines[1]


def test_a_run_that_cannot_be_saved_is_stopped(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=1000)
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
    late = dict(max_unsaved=0)
    runner = make(tmp_path, max_iters=100, checkpoint=late)
    with pytest.raises(ResultNotSaved, match='Make room, and start again'):
        runner.train()
    assert runner.iter < 10


def test_a_run_with_a_checkpoint_is_not_stopped(tmp_path, monkeypatch):
    usage = SimpleNamespace(free=1000)

    def fill(runner):
        monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)

    def clear(runner):
        monkeypatch.undo()

    late = dict(max_unsaved=0)
    train(tmp_path, At(_3=fill, _9=clear), max_iters=10, checkpoint=late)
    assert find_checkpoint(tmp_path).found.iteration == 10


def test_the_search_reads_no_more_than_it_needs(tmp_path, monkeypatch):
    from mmstable.checkpoint import catalog

    for number in range(1, 400):
        (tmp_path / f'iter_{number}.pth').write_bytes(b'no checkpoint')
    train(tmp_path / 'work', max_iters=2)
    shutil.copy(tmp_path / 'work/iter_2.pth', tmp_path / 'iter_400.pth')
    opened = []
    inspect = catalog.inspect_checkpoint
    monkeypatch.setattr(
        catalog,
        'inspect_checkpoint',
        lambda path: (opened.append(Path(path).name), inspect(path))[1],
    )
    found = find_checkpoint(tmp_path).found
    assert found.path.name == 'iter_400.pth'
    assert 'iter_400.pth' in opened
    assert len(opened) <= 200
