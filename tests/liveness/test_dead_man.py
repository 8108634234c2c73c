"""A process that is suspended again and again, and one that is silent."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from mmstable.liveness.dead_man import DeadMan
from tests.cli.runs import ROOT
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(
    not hasattr(signal, 'SIGRTMIN'), reason='there is no such signal'
)
# Stacks that change all the time: whoever reads them meanwhile may crash.
BUSY = """
import sys, threading, time
from pathlib import Path
from mmstable.liveness.dead_man import DeadMan

def deep(count):
    return count and deep(count - 1) + 1

def arm():
    one.take_signals()
    while not stopped.wait(0.05):
        one.arm(1.0)

one, stopped = DeadMan(Path(sys.argv[1])), threading.Event()
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
    one = DeadMan(tmp_path / 'stacks')
    try:
        one.take_signals()
        one.arm(0.3)
        deadline = time.monotonic() + 20 * PATIENCE
        while one.read()[0] < 0.6:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        held, dump = one.read()
        assert held >= 0.6
        assert 'test_a_silent_process_writes_again_and_again' in dump
    finally:
        one.close()
    assert not (tmp_path / 'stacks').exists()
