"""Writing event files on disks that behave, and on others."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from mmengine.logging import MMLogger

from mmstable.events.codec import encode
from mmstable.events.log import EventLog
from mmstable.report import ScaleChange, read_events

CHANGE = ScaleChange(3, 2.0, 'optim_wrapper', 1024.0, 512.0)


@pytest.fixture
def warned(tmp_path):
    """The warnings, collected where mmengine does not drop repetitions."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    # It has no log file, which a size limit would hit as well.
    logger = MMLogger.get_instance(f'log_{tmp_path.name}')
    logger.addHandler(Collector(logging.WARNING))
    return messages


@pytest.fixture
def size_limit():
    """Let files grow to a given size only: the disk is full then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_records_are_on_disk_at_once(tmp_path, header):
    log = EventLog(tmp_path / 'a' / 'b', header)
    path = tmp_path / 'a' / 'b' / 'events.jsonl'
    log.write()
    assert list(read_events(path)) == [header]
    log.write(CHANGE)
    assert list(read_events(path)) == [header, CHANGE]


def test_other_ranks_start_a_file_only_when_needed(tmp_path, header):
    header = replace(header, rank=1)
    log = EventLog(tmp_path, header)
    assert not list(tmp_path.iterdir())
    log.write(CHANGE)
    (path,) = tmp_path.iterdir()
    assert path.name == 'events.rank1.jsonl'
    assert list(read_events(path)) == [header, CHANGE]


def test_two_runs_in_one_directory_do_not_mix(tmp_path, header):
    first = EventLog(tmp_path, header)
    second = EventLog(tmp_path, replace(header, pid=8))
    first.write()
    second.write()
    second.write(CHANGE)
    first.close()
    assert list(read_events(tmp_path / 'events.jsonl')) == [header]
    read = list(read_events(tmp_path / 'events-2.jsonl'))
    assert [read[0].pid, read[1]] == [8, CHANGE]


@pytest.mark.soak
def test_a_killed_process_leaves_a_readable_file(tmp_path, header):
    script = (
        'import os, signal, sys\n'
        'from pathlib import Path\n'
        'from mmstable.events.log import EventLog\n'
        'from mmstable.events.codec import decode\n'
        'header, change = map(decode, sys.stdin.buffer)\n'
        'log = EventLog(Path(sys.argv[1]), header)\n'
        'for _ in range(100):\n'
        '    log.write(change)\n'
        'os.kill(os.getpid(), signal.SIGKILL)\n'
    )
    result = subprocess.run(
        [sys.executable, '-c', script, str(tmp_path)],
        input=encode(header) + encode(CHANGE),
        timeout=60,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL
    events = list(read_events(tmp_path / 'events.jsonl'))
    assert events == [header] + [CHANGE] * 100


def test_a_file_in_place_of_the_directory(tmp_path, header, warned):
    blocked = tmp_path / 'stability'
    blocked.write_text('mine')
    log = EventLog(blocked, header)
    log.write()
    log.write(CHANGE)
    log.write(CHANGE)
    log.close()
    assert log.lost == 2
    assert blocked.read_text() == 'mine'
    (line,) = warned
    assert f"cannot write the event file in '{blocked}': [Errno 17]" in line
    assert 'Training continues' in line


def test_a_full_disk_costs_records_and_no_torn_line(
    tmp_path, header, warned, size_limit
):
    log = EventLog(tmp_path / 'stability', header)
    path = tmp_path / 'stability' / 'events.jsonl'
    log.write(CHANGE)
    size_limit(os.path.getsize(path) + 20)
    log.write(CHANGE)
    log.write(CHANGE)
    assert list(read_events(path)) == [header, CHANGE]
    size_limit(resource.RLIM_INFINITY)
    log.write(replace(CHANGE, iteration=9))
    events = list(read_events(path))
    assert events == [header, CHANGE, replace(CHANGE, iteration=9)]
    assert log.lost == 2
    (line,) = warned
    assert 'No space left on device' in line


def test_a_disk_that_is_full_from_the_start(
    tmp_path, header, warned, size_limit
):
    log = EventLog(tmp_path / 'stability', header)
    size_limit(10)
    log.write()
    size_limit(resource.RLIM_INFINITY)
    log.write(CHANGE)
    path = tmp_path / 'stability' / 'events.jsonl'
    assert list(read_events(path)) == [header, CHANGE]
    assert len(warned) == 1
