"""What became of a run whose event file has no end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from mmstable.finding import Finding
from mmstable.io.process import ProcessIdentity
from mmstable.report.diagnosis import bad_end, state_of
from mmstable.report.history import read_history
from tests.report.event_files import end, header, heartbeat, write_run

# The last record is of 1050.
SOON, LATE = 1100.0, 9000.0


def dead() -> ProcessIdentity:
    child = subprocess.Popen([sys.executable, '-c', ''])
    child.wait()
    return replace(ProcessIdentity.of_this_process(), pid=child.pid)


def write(folder: Path, process: ProcessIdentity, **more: Any) -> None:
    write_run(folder, heartbeat(50), start=header(**asdict(process), **more))


def state(folder: Path, now: float) -> str:
    return state_of(read_history(folder).starts[-1], now)


def finding(folder: Path) -> Finding:
    one = bad_end(read_history(folder))
    assert one is not None
    return one


def test_a_living_process_is_running(tmp_path):
    write(tmp_path, ProcessIdentity.of_this_process())
    assert state(tmp_path, SOON) == state(tmp_path, LATE) == 'running'


def test_a_process_that_is_gone_was_killed(tmp_path):
    write(tmp_path, dead())
    assert state(tmp_path, SOON) == state(tmp_path, LATE) == 'killed'


def test_a_number_that_was_given_again_is_not_the_process(tmp_path):
    own = ProcessIdentity.of_this_process()
    if not own.born:
        pytest.skip('this system does not tell when a process began')
    write(tmp_path, replace(own, born='1'))
    assert state(tmp_path, SOON) == 'killed'


@pytest.mark.parametrize(
    'change', [dict(host='other'), dict(space='pid:[1]'), dict(pid=2**40)]
)
def test_what_cannot_be_asked_is_told_by_its_age(tmp_path, change):
    write(tmp_path, replace(dead(), **change))
    assert state(tmp_path, SOON) == 'running'
    assert state(tmp_path, LATE) == 'silent'


def test_an_end_that_was_recorded_counts(tmp_path):
    start = header(**asdict(dead()))
    write_run(tmp_path, end(60), start=start)
    assert state(tmp_path, SOON) == 'finished'


def old_file(folder: Path, pid: int) -> None:
    """As mmstable wrote it before it said which process it was."""
    host = ProcessIdentity.of_this_process().host
    write_run(folder, heartbeat(50), start=header(host=host, pid=pid))


def test_the_command_that_resumes(tmp_path):
    write(tmp_path, dead(), resume_command="mmstable train 'my config.py'")
    one = finding(tmp_path)
    assert one.fix.startswith('--max-restarts restarts a run automatically')
    assert one.fix.endswith(": mmstable train 'my config.py' --resume auto")
    write(tmp_path, dead(), resume_command='mmstable train c.py', restarts=1)
    assert '--max-restarts' not in finding(tmp_path).fix


@pytest.mark.parametrize('command', ['', 'x' * 301, 'x\x1b[31m', 'a\nb'])
def test_a_general_command_if_none_can_be_shown(tmp_path, command):
    folder = tmp_path / 'a folder'
    write(folder, dead(), resume_command=command)
    assert finding(folder).fix.endswith(
        f": mmstable train CONFIG --work-dir '{folder}' --resume auto"
    )


def test_a_run_elsewhere_that_fell_silent_has_it_too(tmp_path):
    process = replace(dead(), host='other')
    write(tmp_path, process, resume_command='mmstable train c.py')
    one = finding(tmp_path)
    assert one.what == 'The run fell silent at iteration 50.'
    assert one.fix.endswith(': mmstable train c.py --resume auto')


def test_a_run_whose_supervisor_lives_waits_for_its_restart(tmp_path):
    supervisor = subprocess.Popen(
        [sys.executable, '-c', 'input()'], stdin=subprocess.PIPE
    )
    try:
        now = time.time() + 1
        write(tmp_path, dead(), supervisor=supervisor.pid, time=now)
        assert state(tmp_path, SOON) == 'restarting'
        assert bad_end(read_history(tmp_path)) is None
        # Another process that got its number later is none.
        write(tmp_path, dead(), supervisor=supervisor.pid, time=1000.0)
        assert state(tmp_path, SOON) == 'killed'
    finally:
        supervisor.communicate(b'\n')
    write(tmp_path, dead(), supervisor=supervisor.pid, time=now)
    assert state(tmp_path, SOON) == 'killed'


def test_the_supervisor_that_gives_up_calls_it_killed(tmp_path):
    write(tmp_path, dead(), supervisor=os.getpid(), time=time.time() + 1)
    assert state(tmp_path, SOON) == 'killed'
    assert 'It was restarted before' in finding(tmp_path).fix
