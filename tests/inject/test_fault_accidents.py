"""Faults that end an iteration or a process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from mmstable.errors import ConfigError, InjectedError
from mmstable.inject.faults import OutOfMemoryError
from mmstable.report import InjectedFault, read_events
from tests.inject.runs import (
    HEAD,
    LOOPS,
    TermsModel,
    build,
    hooks_on,
    injected,
    train,
)
from tests.loops.runs import log_of
from tests.preloaded import Preloaded


@pytest.mark.parametrize('loop', LOOPS)
@pytest.mark.parametrize(
    ('fault', 'error', 'told'),
    [
        (dict(kind='oom'), OutOfMemoryError, {'oom'}),
        (dict(kind='exception'), InjectedError, {'exception'}),
        (dict(kind='exception', where='data'), InjectedError, {'exception'}),
        (dict(kind='nan_loss', term='x'), ConfigError, {'spike_loss'}),
        (dict(kind='inf_input', input='x'), ConfigError, set()),
    ],
)
def test_errors_leave_nothing_behind(tmp_path, fault, error, told, loop):
    # Otherwise the loop of mmstable survives a lack of memory.
    more = dict(oom=dict(enabled=False)) if loop == 'mmstable' else {}
    runner = build(
        tmp_path,
        dict(kind='nan_grad', param='head.bias', at=3),
        dict(kind='spike_loss', at=3),
        {**fault, 'at': 3},
        model=TermsModel(),
        train_cfg=dict(
            type=LOOPS[loop], max_iters=6, val_interval=10**6, **more
        ),
    )
    with pytest.raises(error):
        runner.train()
    assert hooks_on(runner.model) == 0
    assert {kind for _, kind, _, _ in injected(runner)} == told


def test_a_run_that_goes_on_is_spared(tmp_path):
    faults = [
        dict(kind='exception', message='a\nb', at=4),
        dict(kind='nan_grad', param=HEAD, at=4),
    ]
    checkpoints = dict(
        checkpoint=dict(type='CheckpointHook', interval=2, by_epoch=False)
    )
    with pytest.raises(InjectedError, match='a\nb'):
        train(tmp_path, *faults, default_hooks=checkpoints)
    rest = train(
        tmp_path,
        *faults,
        load_from=str(tmp_path / 'iter_2.pth'),
        resume=True,
    )
    assert rest.iter == 6
    assert [t[:2] for t in injected(rest)] == [(4, 'nan_grad')]
    assert (
        'exception of iteration 4 was injected before the restart'
        in log_of(rest)
    )
    ledger = (tmp_path / 'injected_faults.rank0.txt').read_text()
    assert len(ledger.splitlines()) == 1


KILLED = """
import sys
from tests.inject.runs import train
train(sys.argv[1], dict(kind='signal', signal='SIGKILL', at=3))
"""


@pytest.mark.parametrize('where', ['forward', 'data'])
def test_signal(tmp_path, where):
    heard = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
    try:
        runner = train(
            tmp_path,
            dict(kind='signal', signal='SIGUSR2', where=where, at=2),
        )
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert heard == [1]
    assert injected(runner) == [(2, 'signal', where, 'SIGUSR2')]


def test_a_fatal_signal_is_recorded_first(tmp_path):
    done = Preloaded(['-c', KILLED, str(tmp_path)], tmp_path, os.environ)
    done.communicate(timeout=60)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.rglob('events.jsonl')
    (fault,) = (e for e in read_events(path) if isinstance(e, InjectedFault))
    assert (fault.iteration, fault.value) == (3, 'SIGKILL')
    assert (tmp_path / 'injected_faults.rank0.txt').exists()


def test_a_hang_lasts_and_ctrl_c_ends_it(tmp_path, monkeypatch):
    start = time.monotonic()
    train(tmp_path / 'a', dict(kind='hang', seconds=0.3, at=2))
    assert time.monotonic() - start > 0.3

    fault = dict(kind='hang', seconds=50, where='data', at=2)
    runner = build(tmp_path / 'b', fault)
    sleep = time.sleep

    def interrupted(seconds):
        if seconds == 50:
            os.kill(os.getpid(), signal.SIGINT)
        sleep(seconds)

    monkeypatch.setattr(time, 'sleep', interrupted)
    # As in a fresh process, whatever a test before has left.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            runner.train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert injected(runner) == [(2, 'hang', 'data', '50')]
