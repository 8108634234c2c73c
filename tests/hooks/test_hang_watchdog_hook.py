"""Runs that hang for real, and say where."""

from __future__ import annotations

import ctypes
import gc
import io
import multiprocessing
import os
import pdb
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook

from mmstable import runner_view
from mmstable.errors import TrainingHangs
from mmstable.hang import report
from mmstable.hang.report import StallCause
from mmstable.hooks import HangWatchdogHook
from mmstable.report import Hang, read_events
from tests.loops.runs import Numbered, Score, iter_loop, loader, log_of
from tests.patience import PATIENCE, wait_until
from tests.toys import (
    ToyData,
    ToyModel,
    assert_same,
    read_saved,
    toy_runner,
    weights,
)

LIMIT = 1.0
# With this factor, iterations that a busy machine slows down raise no limit.
WATCHDOG = dict(
    type='mmstable.HangWatchdogHook',
    min_limit=LIMIT,
    rare_limit=LIMIT,
    factor=1.0,
)
# Set by each Hang event. Forked workers share it.
reported = multiprocessing.get_context('fork').Event()


def hang_until_reported() -> None:
    # A busy machine may have caused an earlier report.
    reported.clear()
    reported.wait(60 * PATIENCE)


class NoteReport(Hook):
    def after_event(self, runner, event):
        if isinstance(event, Hang):
            reported.set()


def hanging_run(folder, hooks=(), max_iters=6, watchdog=WATCHDOG, **settings):
    log = dict(type='mmstable.EventLogHook')
    runner = toy_runner(
        folder,
        max_iters=max_iters,
        hooks=[watchdog, log, NoteReport(), *hooks],
        train_cfg=iter_loop(max_iters, val_interval=5),
        **settings,
    )
    runner.train()
    return runner


def hangs_of(runner) -> list[Hang]:
    path = Path(runner.log_dir, 'stability', 'events.jsonl')
    return [e for e in read_events(path) if isinstance(e, Hang)]


def the_hang(runner, phase: str) -> Hang:
    hang = next(one for one in hangs_of(runner) if one.phase == phase)
    assert hang.rank == 0
    assert hang.seconds > LIMIT
    assert hang.text in log_of(runner)
    assert f"rank 0 has been in '{hang.phase}" in hang.text
    stacks = Path(hang.file).read_text()
    assert hang.text in stacks
    assert 'Thread MainThread' in stacks
    return hang


class SlowData(ToyData):
    """One sample hangs."""

    def __getitem__(self, index):
        if index == 9:
            hang_until_reported()
        return super().__getitem__(index)


def data_loader(data=None, **settings):
    from mmengine.dataset import InfiniteSampler

    data = data or SlowData()
    return loader(
        data,
        batch_size=2,
        sampler=InfiniteSampler(data, shuffle=False, seed=0),
        **settings,
    )


def test_a_data_set_that_sleeps(tmp_path):
    runner = hanging_run(tmp_path, train_dataloader=data_loader())
    hang = the_hang(runner, 'data')
    assert hang.iteration == 4
    assert re.search(r'hang_watchdog_hook.py:\d+: reported.wait', hang.line)
    assert '(samples 8, 9)' in hang.text
    assert 'training continues after' in log_of(runner)
    left = {p.name for p in Path(hang.file).parent.iterdir()}
    assert left == {'events.jsonl', 'stacks.rank0.txt'}


def test_a_worker_that_sleeps(tmp_path):
    runner = hanging_run(tmp_path, train_dataloader=data_loader(num_workers=2))
    hang = the_hang(runner, 'data')
    assert re.search(r'worker 1 of 2 \(pid \d+\) is blocked', hang.text)
    assert re.search(r'hang_watchdog_hook.py:\d+: reported.wait', hang.line)
    stacks = Path(hang.file).read_text()
    assert '\nworker 2 of 2, pid' in stacks
    assert '__getitem__' in stacks


fork = multiprocessing.get_context('fork')
shared_lock, is_held = fork.Lock(), fork.Event()


class LockedData(ToyData):
    """One sample hangs with a lock that another one needs."""

    def __getitem__(self, index):
        if index == 6:
            with shared_lock:
                is_held.set()
                reported.clear()
                for _ in range(int(600 * PATIENCE)):
                    time.sleep(0.1)
                    if reported.is_set():
                        break
        if index == 4:
            is_held.wait(60)
            with shared_lock:
                pass
        return super().__getitem__(index)


def test_the_worker_that_holds_a_lock_is_named(tmp_path):
    data = data_loader(LockedData(), num_workers=2)
    runner = hanging_run(tmp_path, train_dataloader=data)
    hang = the_hang(runner, 'data')
    # The first one is waited for, but waits for the second one.
    assert re.search(r'worker 2 of 2 \(pid \d+\) is blocked', hang.text)
    assert 'time.sleep(0.1)' in hang.line


class StopWorker(Hook):
    """Stops a worker until the log says that training hangs."""

    def __init__(self, number: int) -> None:
        self.number = number

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 3:
            workers = runner.train_loop.dataloader_iterator._batches._workers
            self.pid = workers[self.number].pid
            os.kill(self.pid, signal.SIGSTOP)

    def after_event(self, runner, event):
        if isinstance(event, Hang):
            os.kill(self.pid, signal.SIGCONT)


def test_a_worker_that_is_stopped(tmp_path):
    stop = StopWorker(1)
    runner = hanging_run(
        tmp_path,
        [stop],
        12,
        train_dataloader=data_loader(ToyData(), num_workers=2),
    )
    hang = the_hang(runner, 'data')
    assert f'worker 2 of 2 (pid {stop.pid}) is stopped' in hang.text


class HoldingData(ToyData):
    """One sample holds the GIL until a file is there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index):
        if index == 9:
            wait = f'until [ -e {self.path} ]; do sleep 0.1; done'
            ctypes.PyDLL(None).system(wait.encode())
        return super().__getitem__(index)


class TouchAfterHang(Hook):
    def __init__(self, path: Path) -> None:
        self.path = path

    def after_event(self, runner, event):
        if isinstance(event, Hang):
            self.path.touch()


def test_a_worker_in_c_that_holds_the_lock(tmp_path):
    path = tmp_path / 'told'
    # The thread that sends batches may hang with a lock that all workers
    # share: of several, another one could be waited for.
    data = data_loader(HoldingData(path), num_workers=1)
    runner = hanging_run(
        tmp_path / 'work', [TouchAfterHang(path)], train_dataloader=data
    )
    hang = the_hang(runner, 'data')
    assert re.search(r'worker 1 of 1 \(pid \d+\) is blocked', hang.text)
    assert 'ctypes.PyDLL(None).system' in hang.line
    assert 'in _worker_loop' in Path(hang.file).read_text()


class DeadlyData(ToyData):
    def __getitem__(self, index):
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.soak
def test_a_dead_worker_needs_no_watchdog(tmp_path):
    batches = data_loader(DeadlyData(), num_workers=2)
    # The others: torch was just reading what the worker had sent.
    with pytest.raises((RuntimeError, OSError, EOFError)) as raised:
        hanging_run(tmp_path, max_iters=50, train_dataloader=batches)
    assert not [t for t in threading.enumerate() if 'watchdog' in t.name]
    # torch complains of a dead worker until nobody needs its loader.
    del raised
    gc.collect()


class HangingModel(ToyModel):
    """Hangs in its fifth iteration.

    Args:
        hang: How.
    """

    def __init__(self, hang) -> None:
        super().__init__()
        self.hang, self.count = hang, 0

    def forward(self, inputs, targets, mode='tensor', **names):
        self.count += 1
        if self.count == 5:
            self.hang()
        return super().forward(inputs, targets, mode)


def loop_in_python() -> None:
    reported.clear()
    deadline = time.monotonic() + 60 * PATIENCE
    while not reported.is_set() and time.monotonic() < deadline:
        pass


def hold_the_lock(folder: Path) -> None:
    """Hold the GIL until the stack of this function is written."""
    file = folder / '*/stability/watchdog.rank0.txt'
    # Unlike `sleep`, it continues after a signal.
    ctypes.PyDLL(None).system(
        f'for i in $(seq {600 * PATIENCE:.0f}); do '
        f'grep -q hold_the_lock {file} && break; sleep 0.1; done'.encode()
    )


def test_a_module_that_loops(tmp_path):
    hang = the_hang(
        hanging_run(
            tmp_path,
            model=HangingModel(loop_in_python),
            train_dataloader=data_loader(Numbered(16)),
        ),
        'forward',
    )
    assert hang.iteration == 4
    assert 'test_hang_watchdog_hook.py:' in hang.line
    assert 'in loop_in_python' in Path(hang.file).read_text()


def test_a_call_in_c_that_holds_the_lock(tmp_path):
    model = HangingModel(partial(hold_the_lock, tmp_path))
    runner = hanging_run(tmp_path, model=model)
    hang = the_hang(runner, 'forward')
    assert 'ctypes.PyDLL(None).system' in hang.line
    assert 'held the GIL' in hang.text


def test_a_call_in_c_that_a_signal_ends(tmp_path):
    hang = the_hang(
        hanging_run(
            tmp_path,
            model=HangingModel(lambda: ctypes.PyDLL(None).sleep(60)),
        ),
        'forward',
    )
    assert 'ctypes.PyDLL(None).sleep' in hang.line
    assert 'held the GIL' in hang.text


HELD = """
import ctypes, os, sys
from tests.hooks.test_hang_watchdog_hook import HangingModel, hanging_run

def hold_for_ever():
    ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)

hanging_run(sys.argv[1], model=HangingModel(hold_for_ever))
"""


@pytest.mark.soak
def test_a_lock_that_is_held_for_ever_leaves_the_stack(tmp_path):
    run = subprocess.Popen([sys.executable, '-c', HELD, str(tmp_path)])

    def stacks() -> str:
        files = tmp_path.glob('*/stability/watchdog.rank0.txt')
        return ''.join(one.read_text() for one in files)

    try:
        wait_until(lambda: 'train_step.py' in stacks(), 300, run)
        assert 'in hold_for_ever' in stacks()
    finally:
        run.kill()
        run.wait()


class SleepyHook(Hook):
    """Hangs once."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 4:
            hang_until_reported()


def test_a_hook_that_sleeps(tmp_path):
    hang = the_hang(hanging_run(tmp_path, [SleepyHook()]), 'hook')
    assert hang.part == 'SleepyHook'
    assert 'reported.wait' in hang.line


class SlowScore(Score):
    """A metric that hangs."""

    def compute_metrics(self, results):
        hang_until_reported()
        return super().compute_metrics(results)


def slow_validation(data=None, metric=Score):
    return dict(
        val_dataloader=loader(data or Numbered(4)),
        val_evaluator=Evaluator(metric()),
        val_cfg=dict(),
    )


class ValModel(ToyModel):
    def forward(self, inputs, targets, number=None, mode='tensor'):
        outputs = super().forward(inputs, targets, mode)
        return list(outputs) if mode == 'predict' else outputs


def test_a_validation_that_hangs(tmp_path):
    runner = hanging_run(
        tmp_path, model=ValModel(), **slow_validation(metric=SlowScore)
    )
    hang = the_hang(runner, 'validation')
    assert 'reported.wait' in hang.line


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(min_limit=0), '`min_limit` must be .* above 0, got 0'),
        (dict(rare_limit='1'), "`rare_limit` must be .* got '1'"),
        (dict(factor=0.5), '`factor` must be .* at least 1, got 0.5'),
        (dict(limits=dict(date=1)), "`limits` must be one of .* got 'date'"),
        (dict(limits=dict(data=0)), '`limits.data` must be .* above 0'),
        (dict(limits=[1]), '`limits` must be a dict, got'),
        (
            dict(action='stop'),
            "`action` must be one of wait, exit, got 'stop'",
        ),
        (dict(lang='fr'), "`lang` must be one of en, zh_cn, got 'fr'"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(
        (TypeError, ValueError), match=f'HangWatchdogHook: {message}'
    ):
        HangWatchdogHook(**settings)


def quiet_run(folder, hooks=(), watchdog=WATCHDOG, **settings):
    runner = hanging_run(folder, hooks, watchdog=watchdog, **settings)
    assert hangs_of(runner) == []
    assert 'training h' not in log_of(runner)
    left = {p.name for p in runner_view.stability_folder(runner).iterdir()}
    assert left == {'events.jsonl'}


@pytest.fixture
def looks(monkeypatch):
    """Seconds that the watchdog has counted, by phase."""
    longest = {}
    on_look = HangWatchdogHook.on_look

    def note(self, phase, seconds, limit):
        on_look(self, phase, seconds, limit)
        longest[phase.name] = max(seconds, longest.get(phase.name, 0.0))

    monkeypatch.setattr(HangWatchdogHook, 'on_look', note)
    return longest


class FirstSlow(ToyModel):
    """Waits in its first iteration until it is over the limit."""

    def __init__(self, looks) -> None:
        super().__init__()
        self.looks, self.count = looks, 0

    def forward(self, inputs, targets, mode='tensor'):
        self.count += 1
        if self.count == 1:
            wait_until(lambda: self.looks.get('forward', 0) > 2 * LIMIT)
        return super().forward(inputs, targets, mode)


def test_a_slow_first_iteration_is_no_hang(tmp_path, looks):
    patient = {**WATCHDOG, 'rare_limit': 60.0}
    quiet_run(tmp_path, watchdog=patient, model=FirstSlow(looks))


class AlwaysSlow(ToyModel):
    def forward(self, inputs, targets, mode='tensor'):
        time.sleep(0.5)
        return super().forward(inputs, targets, mode)


def test_iterations_that_all_take_long_are_no_hang(tmp_path):
    patient = dict(WATCHDOG, min_limit=0.25, rare_limit=60.0, factor=5.0)
    quiet_run(tmp_path, watchdog=patient, model=AlwaysSlow(), max_iters=5)


class EverySlow(Numbered):
    def __getitem__(self, index):
        time.sleep(0.4 * LIMIT)
        return super().__getitem__(index)


def test_a_long_validation_is_no_hang(tmp_path):
    begin = time.monotonic()
    quiet_run(
        tmp_path,
        model=ValModel(),
        val_dataloader=loader(EverySlow(6), batch_size=1),
        val_evaluator=Evaluator(Score()),
        val_cfg=dict(),
    )
    assert time.monotonic() - begin > 2 * LIMIT


class SlowAnswers:
    """A user who types after the limit."""

    def __init__(self, looks) -> None:
        self.looks = looks

    def readline(self):
        wait_until(lambda: self.looks.get('debugger', 0) > 2 * LIMIT)
        return 'continue\n'


class Breakpoint(Hook):
    def __init__(self, looks) -> None:
        self.answers = SlowAnswers(looks)

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 4:
            debugger = pdb.Pdb(stdin=self.answers, stdout=io.StringIO())
            debugger.use_rawinput = False
            debugger.set_trace()


def test_a_debugger_is_no_hang(tmp_path, looks):
    before = sys.gettrace()
    try:
        quiet_run(tmp_path, [Breakpoint(looks)])
    finally:
        sys.settrace(before)


SUSPENDED = 3 * LIMIT


class Suspend(Hook):
    """Stops this process for a while, as when a laptop is closed."""

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if runner.iter == 4:
            wake = f'sleep {SUSPENDED}; kill -CONT {os.getpid()}'
            # Seen before and after.
            time.sleep(0.25 * LIMIT)
            subprocess.Popen(['sh', '-c', wake])
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.25 * LIMIT)


def test_a_suspended_process_is_no_hang(tmp_path):
    begin = time.monotonic()
    quiet_run(tmp_path, [Suspend()])
    assert time.monotonic() - begin > SUSPENDED


def test_limits_by_hand(tmp_path):
    settings = dict(
        WATCHDOG,
        min_limit=60.0,
        rare_limit=60.0,
        limits=dict(SleepyHook=LIMIT, data=2 * LIMIT),
    )
    runner = hanging_run(tmp_path, [SleepyHook()], watchdog=settings)
    hang = the_hang(runner, 'hook')
    assert hang.limit == LIMIT


def test_the_end_of_an_exception_is_the_end_of_the_thread(tmp_path):
    class Fails(Hook):
        def before_train(self, runner):
            raise ValueError('on purpose')

    with pytest.raises(ValueError, match='on purpose'):
        hanging_run(tmp_path, [Fails()])
    assert not [t for t in threading.enumerate() if 'watchdog' in t.name]


def test_a_run_that_has_ended_meanwhile_is_not_ended(tmp_path, monkeypatch):
    left, hook = [], HangWatchdogHook(LIMIT, LIMIT, action='exit')

    def inspect(*args):
        # StallCause out takes until the run has come to its end.
        reported.set()
        wait_until(lambda: hook.watchdog.is_stopped)
        return StallCause()

    monkeypatch.setattr(report, 'inspect', inspect)
    monkeypatch.setattr(hook, '_leave', lambda *args: left.append(args))
    runner = hanging_run(
        tmp_path, watchdog=hook, train_dataloader=data_loader()
    )
    assert runner.iter == 6
    assert not left
    assert "rank 0 has been in 'data" in log_of(runner)


def run_until_it_exits(folder: str, *hooks: Hook) -> None:
    hanging_run(
        folder,
        [dict(type='mmstable.EmergencyCheckpointHook'), *hooks],
        watchdog={**WATCHDOG, 'action': 'exit'},
        model=HangingModel(lambda: time.sleep(600)),
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False
            )
        ),
    )


def test_exit_saves_the_last_complete_state(tmp_path):
    process = multiprocessing.get_context('fork').Process(
        target=run_until_it_exits, args=(str(tmp_path),)
    )
    process.start()
    process.join(60 * PATIENCE)
    process.kill()
    assert process.exitcode == TrainingHangs.exit_code == 23
    saved = read_saved(tmp_path / 'emergency_iter_4.pth')
    assert saved['meta']['iter'] == 4
    whole = hanging_run(tmp_path / 'whole', max_iters=4)
    assert_same(saved['state_dict'], weights(whole.model))
    (path,) = tmp_path.glob('*/stability/events.jsonl')
    events = list(read_events(path))
    hang = next(e for e in events if isinstance(e, Hang))
    assert hang.action == 'exit'
    assert 'This process ends with exit code 23.' in hang.text
    assert events[-1].reason == 'exception'
    (log,) = tmp_path.glob('*/*.log')
    assert f'saved {tmp_path / "emergency_iter_4.pth"}' in log.read_text()


class FailsToListen(Hook):
    """A hook of somebody else, with a mistake."""

    def after_event(self, runner, event):
        raise KeyError('mine')


def test_it_ends_whatever_hooks_do_about_it(tmp_path):
    process = multiprocessing.get_context('fork').Process(
        target=run_until_it_exits, args=(str(tmp_path), FailsToListen())
    )
    process.start()
    process.join(60 * PATIENCE)
    process.kill()
    assert process.exitcode == 23
    assert (tmp_path / 'emergency_iter_4.pth').exists()


@pytest.mark.parametrize(
    ('variables', 'ends'),
    [
        ({}, False),
        ({'MMSTABLE_SUPERVISOR_FILE': '/tmp/x'}, True),
        ({'TORCHELASTIC_MAX_RESTARTS': '3'}, True),
        ({'TORCHELASTIC_MAX_RESTARTS': '0'}, False),
    ],
)
def test_who_is_started_again_ends(monkeypatch, variables, ends):
    monkeypatch.delenv('TORCHELASTIC_MAX_RESTARTS', raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert HangWatchdogHook()._ends() is ends
    assert not HangWatchdogHook(action='wait')._ends()
    assert HangWatchdogHook(action='exit')._ends()


def test_chinese(tmp_path):
    settings = {**WATCHDOG, 'lang': 'zh_cn'}
    runner = hanging_run(tmp_path, [SleepyHook()], watchdog=settings)
    hang = next(one for one in hangs_of(runner) if one.phase == 'hook')
    assert "训练卡住：rank 0 已在 'hook: SleepyHook' 中停留" in hang.text
