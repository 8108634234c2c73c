"""A process that is suspended again and again, and one that is silent."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from mmstable.hang import watchdog_process
from mmstable.hang.dead_man_switch import DeadManSwitch
from tests.cli.runs import ROOT
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(
    not hasattr(signal, 'SIGRTMIN'), reason='there is no such signal'
)
# Stacks that change all the time.
BUSY = """
import sys, threading, time
from pathlib import Path
from mmstable.hang.dead_man_switch import DeadManSwitch

def deep(count):
    return count and deep(count - 1) + 1

def arm():
    while not stopped.wait(0.05):
        one.arm(1.0)

one, stopped = DeadManSwitch(Path(sys.argv[1])), threading.Event()
thread = threading.Thread(target=arm)
thread.start()
print('ready', flush=True)
for _ in range(5):
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        deep(50)
    print('on', flush=True)
    sys.stdin.readline()
stopped.set()
thread.join()
print(one.read()[0], flush=True)
one.close()
"""


@pytest.mark.soak
def test_a_suspended_process_writes_nothing_and_goes_on(tmp_path):
    with subprocess.Popen(
        [sys.executable, '-c', BUSY, str(tmp_path / 'stacks')],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as one:
        assert one.stdout.readline() == 'ready\n'
        for _ in range(2):
            one.send_signal(signal.SIGSTOP)
            time.sleep(2)
            assert not (tmp_path / 'stacks').read_text()
            one.send_signal(signal.SIGCONT)
        out, _ = one.communicate('\n' * 5, timeout=60 * PATIENCE)
    assert one.returncode == 0
    assert out.splitlines()[-1] == '0.0'
    assert not (tmp_path / 'stacks').exists()


def test_a_silent_process_writes_again_and_again(tmp_path):
    one = DeadManSwitch(tmp_path / 'stacks')
    try:
        one.arm(0.3)
        wait_until(lambda: one.read()[0] >= 0.6)
        held, dump = one.read()
        assert held >= 0.6
        assert 'test_a_silent_process_writes_again_and_again' in dump
    finally:
        one.close()
    assert not (tmp_path / 'stacks').exists()


@pytest.fixture
def switch(tmp_path):
    one = DeadManSwitch(tmp_path / 'stacks')
    yield one
    one.close()


def watching_processes() -> list[psutil.Process]:
    """Find the processes that watch this one."""
    words = [watchdog_process.__file__, str(os.getpid())]
    return [
        process
        for process in psutil.process_iter(['cmdline'])
        if (process.info['cmdline'] or [])[3:5] == words
    ]


def test_a_forked_process_does_not_keep_it_from_ending(tmp_path):
    one = DeadManSwitch(tmp_path / 'stacks')
    one.arm(0.2)
    assert watching_processes()
    # It has a copy of the pipe, as workers of a data loader have.
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        one.close()
        wait_until(lambda: not watching_processes())
        assert not (tmp_path / 'stacks').exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_thread_that_runs_is_not_silent(switch, tmp_path):
    # The GIL is free, the thread has too much to do.
    switch.arm(0.3)
    end = time.thread_time() + 1.0
    while time.thread_time() < end:
        pass
    assert not (tmp_path / 'stacks').read_text()


def test_nothing_is_written_in_a_pause(switch, tmp_path):
    switch.arm(0.3)
    switch.arm(math.inf)
    time.sleep(1.0)
    assert not (tmp_path / 'stacks').read_text()
    assert switch.read() == (0.0, '')
    switch.arm(0.3)
    wait_for_stack(tmp_path / 'stacks')


def wait_for_stack(path: Path) -> str:
    wait_until(lambda: 'Stack (' in path.read_text())
    return path.read_text()


def test_the_stack_is_that_of_the_thread_that_made_it(tmp_path):
    made, over = [], threading.Event()

    def train():
        made.append(DeadManSwitch(tmp_path / 'stacks'))
        over.wait()

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: made)
    made[0].arm(0.1)
    text = wait_for_stack(tmp_path / 'stacks')
    over.set()
    thread.join()
    made[0].close()
    assert 'in train\n' in text
    assert 'in wait_for_stack' not in text


def test_a_signal_for_one_thread():
    with pytest.raises(ProcessLookupError):
        # This process has no such thread.
        watchdog_process.signal_thread(
            os.getpid(), os.getppid(), signal.SIGUSR1
        )


def test_a_libc_that_cannot_address_threads(monkeypatch):
    asked = []
    monkeypatch.setattr(
        watchdog_process.ctypes, 'CDLL', lambda *_, **__: object()
    )
    monkeypatch.setattr(os, 'kill', lambda *words: asked.append(words))
    watchdog_process.signal_thread(4711, 4712, 43)
    assert asked == [(4711, 43)]


def test_a_kernel_without_handles_of_processes(monkeypatch, tmp_path):
    # It has nothing but stdin to wait for then.
    monkeypatch.delattr(os, 'pidfd_open', raising=False)
    monkeypatch.setattr(os, 'read', lambda *_: b'end\n')
    monkeypatch.setattr(
        watchdog_process.select, 'select', lambda read, *_: (read, [], [])
    )
    watchdog_process.watch(os.getpid(), os.getpid(), 0)


def test_it_ends_in_a_process_with_many_open_files(tmp_path):
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        one = DeadManSwitch(tmp_path / 'stacks')
        assert (tmp_path / 'stacks').exists()
        one.close()
    finally:
        for file in files:
            os.close(file)
    assert not (tmp_path / 'stacks').exists()
