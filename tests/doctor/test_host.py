"""Memory, limits, disk and clock, in numbers and on this machine."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from mmstable.doctor import NotSeen, Plan
from mmstable.doctor.host import (
    ProgramFailed,
    Written,
    against_disk,
    clock,
    disk,
    host,
    judge,
    limit,
    memory,
    output_of,
    shared_memory,
    space,
    swap,
    write,
)
from mmstable.finding import Finding
from mmstable.memory.host import Room

GIB = 1 << 30


def ids(items) -> list[str]:
    return [one.id for one in items if isinstance(one, Finding)]


@pytest.mark.parametrize(
    ('items', 'expected'),
    [
        (memory(Room(64 * GIB, 1 * GIB, 'cgroup')), ['little_ram']),
        (memory(Room(64 * GIB, 32 * GIB, 'machine')), []),
        (swap(8 * GIB, 6 * GIB), ['swapping']),
        (swap(8 * GIB, GIB), []),
        (swap(0, 0), []),
        (limit('NOFILE', 1024, 524288), ['low_limit']),
        (limit('NOFILE', 65536, 524288), []),
        (limit('NPROC', -1, -1), []),
        (space('/', 500 * GIB, GIB // 2), ['no_space']),
        (space('/', 500 * GIB, 10 * GIB), ['little_space']),
        (space('/', 500 * GIB, 100 * GIB), []),
        (judge('/', Written(5e6, True)), ['slow_disk']),
        (judge('/', Written(5e8, False)), ['disk_corrupt']),
        (judge('/', Written(5e8, True)), []),
    ],
)
def test_what_numbers_mean(items, expected):
    assert ids(items) == expected


def test_the_limit_of_a_container_is_named():
    (fact,) = memory(Room(64 * GIB, 32 * GIB, 'cgroup'))
    assert fact.value == '32.0 GiB left of 64.0 GiB (of the control group)'


@pytest.mark.parametrize(
    ('total', 'expected'), [(64 << 20, ['small_shm']), (16 * GIB, [])]
)
def test_shared_memory(total, expected, monkeypatch):
    usage = shutil._ntuple_diskusage(total, 0, total)
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
    assert ids(shared_memory()) == expected


@pytest.mark.parametrize(
    ('seconds', 'expected'), [(60.0, ['disk_clock']), (0.2, [])]
)
def test_a_file_server_with_another_clock(
    seconds, expected, tmp_path, monkeypatch
):
    now = time.time()
    monkeypatch.setattr('time.time', lambda: now + seconds)
    assert ids(against_disk(str(tmp_path))) == expected


def test_no_shared_memory(tmp_path):
    (item,) = shared_memory(tmp_path / 'none')
    assert isinstance(item, NotSeen)
    assert 'No such file' in item.why


def test_this_host(tmp_path):
    facts = {one.id for one in host(Plan()) if not isinstance(one, Finding)}
    assert {'ram', 'shm', 'swap', 'limit_nofile', 'cores'} <= facts


def test_a_disk_is_tried_and_left_clean(tmp_path):
    facts = list(disk(Plan(folder=str(tmp_path))))
    assert 'disk_speed' in [getattr(one, 'id', '') for one in facts]
    assert os.listdir(tmp_path) == []
    assert write(str(tmp_path), 8 << 20).is_same


def test_a_disk_that_changes_bits(tmp_path, monkeypatch):
    real = os.fsync

    def flip(descriptor: int) -> None:
        os.pwrite(descriptor, b'flipped', 1000)
        real(descriptor)

    monkeypatch.setattr(os, 'fsync', flip)
    assert not write(str(tmp_path), 8 << 20).is_same


def test_a_disk_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(folder: str, size: int) -> Written:
        raise OSError(30, 'Read-only file system')

    monkeypatch.setattr('mmstable.doctor.host.write', refuse)
    found = [
        one
        for one in disk(Plan(folder=str(tmp_path)))
        if isinstance(one, Finding)
    ]
    assert [one.id for one in found if one.id == 'disk_write']
    assert 'Read-only file system' in found[-1].what


def test_the_clock(tmp_path, monkeypatch):
    assert 'wrong_clock' not in ids(clock(Plan(folder=str(tmp_path))))
    monkeypatch.setattr('time.time', lambda: 3600.0)
    assert 'wrong_clock' in ids(clock(Plan(folder=str(tmp_path))))


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['no-such-program-here'], 'no-such-program-here: No such file'),
        (['sleep', '60'], 'sleep has not ended within 0.2 s'),
        (['false'], 'false: 1'),
        (['sh', '-c', 'printf "a\\nb" >&2; false'], '^sh: a b$'),
    ],
)
def test_programs_that_fail(words, message):
    with pytest.raises(ProgramFailed, match=message):
        output_of(words, seconds=0.2)
