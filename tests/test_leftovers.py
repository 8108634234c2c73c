"""Nothing of a run is left in its process when the run has ended."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import weakref

import psutil
import pytest
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from torch.utils.data._utils import signal_handling

from mmstable.hang import watchdog_process
from mmstable.probe import server
from tests.loops.runs import iter_loop, loader
from tests.patience import wait_until
from tests.preloaded import ROOT, Preloaded
from tests.toys import ToyData, toy_runner

HOOKS = [
    dict(type='mmstable.EventLogHook'),
    dict(type='mmstable.HangWatchdogHook', min_limit=1.0, rare_limit=1.0),
    dict(type='mmstable.MemoryGuardHook', interval=0.1),
    dict(type='mmstable.IterProfileHook', begin=1, interval=9, iterations=8),
    dict(type='mmstable.LiveProbeHook', use_probing=False),
]
_DELETED = ' (deleted)'
ALONE = 'MMSTABLE_TEST_ALONE'


class Fails(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 4:
            raise KeyError('on purpose')


def watchdog_processes() -> list[int]:
    def words(one):
        return one.info['cmdline'] or []

    return [
        one.pid
        for one in psutil.process_iter(['cmdline'])
        if watchdog_process.__file__ in words(one)
        and str(os.getpid()) in words(one)
    ]


def open_files() -> set[str]:
    found = set()
    for number in os.listdir('/proc/self/fd'):
        try:
            found.add(os.readlink(f'/proc/self/fd/{number}'))
        except OSError:
            continue
    # mmengine closes its log files when the next run opens others.
    return {one for one in found if not one.endswith('.log')}


def left_behind(folder) -> dict[str, object]:
    """What is there, by kind; all of it is empty or the same at the end."""
    gc.collect()
    below = str(folder)
    return dict(
        threads=[
            one.name
            for one in threading.enumerate()
            # It ends by itself when it has had nothing to do for a while.
            if one.name.startswith('mmstable') and one.name != 'mmstable-vis'
        ],
        watchdog_processes=watchdog_processes(),
        sockets=server.find_sockets(os.getpid()),
        files=[one for one in open_files() if one.startswith(below)],
        mask=signal.pthread_sigmask(signal.SIG_BLOCK, []),
        children=signal.getsignal(signal.SIGCHLD),
    )


def train(folder, fails: bool, is_stock: bool) -> weakref.ref:
    data = ToyData()
    batches = loader(
        data,
        batch_size=2,
        sampler=InfiniteSampler(data, shuffle=False, seed=0),
        num_workers=1,
        # They have copies of all open files, of pipes as well.
        persistent_workers=True,
    )
    loop = dict(by_epoch=False, max_iters=8) if is_stock else iter_loop(8)
    runner = toy_runner(
        folder,
        hooks=[*HOOKS, *([Fails()] if fails else [])],
        train_cfg=loop,
        train_dataloader=batches,
    )
    try:
        runner.train()
    except KeyError as error:
        assert fails and error.args == ('on purpose',)
    # In a garbage collection that takes torch five seconds.
    batches._iterator._shutdown_workers()
    return weakref.ref(runner)


@pytest.mark.skipif(
    not hasattr(signal, 'SIGRTMIN'), reason='there is no such signal'
)
def test_nothing_is_left(tmp_path, monkeypatch):
    if ALONE not in os.environ:
        # A process of its own: other tests may keep what they got.
        words = ['-m', 'pytest', '-q', '-p', 'no:xdist', __file__]
        run = Preloaded(words, ROOT, {**os.environ, ALONE: '1'})
        printed, __ = run.communicate(timeout=200)
        assert run.returncode == 0, printed
        return
    monkeypatch.setenv(server.VARIABLE, str(tmp_path / 'sockets'))
    # Once in a process; torch does it with the first worker.
    signal_handling._set_SIGCHLD_handler()
    for fails, is_stock in itertools.product((False, True), repeat=2):
        before = left_behind(tmp_path)
        runner = train(tmp_path / f'{fails}_{is_stock}', fails, is_stock)
        if fails and is_stock:
            # Only the thread that trains could change it, and nobody told it.
            before['mask'] = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        # mmengine's own loops tell no hook of an exception: threads have to
        # see.
        wait_until(lambda before=before: left_behind(tmp_path) == before)
        assert runner() is None, (fails, is_stock)
