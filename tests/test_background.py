"""Threads that end before Python does, in whatever way it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from mmstable.io.process import BackgroundThread
from tests.cli.runs import ROOT

# Python would stop the thread in the middle of what it does.
WORKS = """
import sys, threading, time
from process import BackgroundThread

def work(stopped):
    started.set()
    {waits}
    time.sleep(0.3)
    print('done', flush=True)

started, wakes = threading.Event(), threading.Event()
BackgroundThread('works', work, wakes.set).start()
started.wait()
{ends}
"""


@pytest.mark.parametrize('waits', ['stopped.wait()', 'wakes.wait()'])
@pytest.mark.parametrize(
    ('ends', 'code'), [('', 0), ('sys.exit(3)', 3), ('1 / 0', 1)]
)
def test_it_ends_before_python_does(waits, ends, code):
    done = subprocess.run(
        [sys.executable, '-c', WORKS.format(waits=waits, ends=ends)],
        # By itself: the rest of the package takes seconds to import.
        cwd=ROOT / 'mmstable/io',
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == 'done\n'
    assert done.returncode == code


def test_it_can_end_itself():
    one = BackgroundThread('ends', lambda stopped: one.stop())
    one.start()
    one._thread.join(10)
    assert not one.is_alive
    assert one.is_stopped


def test_a_forked_process_leaves_it_alone():
    woken = []
    one = BackgroundThread(
        'mine', threading.Event.wait, lambda: woken.append(os.getpid())
    )
    one.start()
    child = os.fork()
    if child == 0:
        one.stop()
        os._exit(len(woken))
    assert os.waitpid(child, 0)[1] == 0
    assert one.is_alive
    one.stop()
    assert woken == [os.getpid()]
    assert not one.is_alive
