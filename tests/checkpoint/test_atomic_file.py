from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time

import pytest
import torch

from mmstable.io import files as module
from mmstable.io.files import atomic_file, remove_leftovers, replace_text
from tests.checkpoint.leftovers import leave_half_a_file
from tests.toys import read_saved


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_went_through_is_known(tmp_path):
    path = tmp_path / 'a.pth'
    with atomic_file(path) as stream:
        torch.save(torch.arange(10**6), stream)
    data = path.read_bytes()
    assert stream.size == len(data)
    assert stream.sha256() == hashlib.sha256(data).hexdigest()
    assert torch.equal(read_saved(path), torch.arange(10**6))


def test_name_is_given_last(tmp_path):
    path = tmp_path / 'a'
    path.write_bytes(b'old')
    seen = []

    def verify(temporary):
        seen.append((temporary.read_bytes(), temporary.stat().st_ino))

    with atomic_file(path, verify) as stream:
        stream.write(b'new')
        assert path.read_bytes() == b'old'
    # Renamed, not copied: there is no moment with half of it.
    assert seen == [(b'new', path.stat().st_ino)]
    assert names(tmp_path) == ['a']


def refuse(path):
    raise ValueError('not good enough')


@pytest.mark.parametrize('old', [None, b'old'])
def test_failure_leaves_everything_as_it_was(tmp_path, old):
    path = tmp_path / 'a'
    if old:
        path.write_bytes(old)
    with pytest.raises(KeyboardInterrupt), atomic_file(path) as stream:
        stream.write(b'new')
        raise KeyboardInterrupt
    with (
        pytest.raises(ValueError, match='not good enough'),
        atomic_file(path, refuse) as stream,
    ):
        stream.write(b'new')
    assert names(tmp_path) == (['a'] if old else [])
    assert not old or path.read_bytes() == old


class FullDisk:
    """``open`` of files that hold so many bytes."""

    def __init__(self, room):
        self.room = room

    def __call__(self, *args, **kwargs):
        file = open(*args, **kwargs)  # noqa: SIM115
        disk, write = self, file.write

        class File:
            def __getattr__(self, name):
                return getattr(file, name)

            def __enter__(self):
                return self

            def __exit__(self, *args):
                file.close()

            def write(self, data):
                disk.room -= len(data)
                if disk.room < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(data)

        return File()


def test_full_disk_is_told_as_it_is(tmp_path, monkeypatch):
    path = tmp_path / 'a.pth'
    monkeypatch.setattr(module, 'open', FullDisk(3 << 20), raising=False)
    # torch itself would say "unexpected pos".
    with (
        pytest.raises(OSError, match='No space left on device'),
        atomic_file(path) as stream,
    ):
        torch.save(torch.zeros(2 << 20), stream)
    assert names(tmp_path) == []


def test_fsync_may_fail_too(tmp_path, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / 'last'
    path.write_text('old')
    monkeypatch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match='No space left'):
        replace_text(path, 'new')
    assert path.read_text() == 'old'
    assert names(tmp_path) == ['last']


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / '.mine.tmp').touch()
    left = leave_half_a_file(tmp_path)
    assert left.name.endswith('.mmstable-tmp')
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ['.mine.tmp']


WRITING = """
import sys
from pathlib import Path
from mmstable.io.files import atomic_file

with atomic_file(Path(sys.argv[1], 'a')) as stream:
    stream.write(b'half, ')
    print('writing', flush=True)
    sys.stdin.readline()
    stream.write(b'all')
"""


def test_what_another_process_writes_is_left_alone(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout.readline() == 'writing\n'
    remove_leftovers(tmp_path)
    writer.communicate('go on\n', timeout=60)
    assert writer.returncode == 0
    assert (tmp_path / 'a').read_bytes() == b'half, all'


def test_what_this_process_writes_is_left_alone(tmp_path):
    with atomic_file(tmp_path / 'a') as stream:
        stream.write(b'all')
        remove_leftovers(tmp_path)
    assert names(tmp_path) == ['a']


def test_a_process_before_this_one_may_have_had_its_number(tmp_path):
    # In a container, it is 1 each time.
    (tmp_path / temporary_name()).touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == []


def temporary_name(machine=None, pid=None):
    machine = machine or module._MACHINE
    return f'.{machine}-{pid or os.getpid()}-{"a" * 32}.mmstable-tmp'


@pytest.mark.parametrize('name', [temporary_name('0' * 8, 1), '.strange'])
def test_of_other_machines_only_old_files_are_removed(tmp_path, name):
    path = tmp_path / f'{name.replace(".mmstable-tmp", "")}.mmstable-tmp'
    path.touch()
    remove_leftovers(tmp_path)
    assert path.exists()
    yesterday = time.time() - 25 * 3600
    os.utime(path, (yesterday, yesterday))
    remove_leftovers(tmp_path)
    assert not path.exists()


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / 'elsewhere' / 'victim'
    path.parent.mkdir()
    path.write_text('precious')
    yield path
    assert path.read_text() == 'precious'


def test_links_among_leftovers_are_not_followed(tmp_path, victim):
    link = tmp_path / temporary_name()
    link.symlink_to(victim)
    os.utime(link, (0, 0), follow_symlinks=False)
    (tmp_path / f'x{temporary_name()}').symlink_to(victim.parent)
    remove_leftovers(tmp_path)
    assert not link.is_symlink()


def test_a_link_under_the_final_name_is_replaced(tmp_path, victim):
    for name in ('a', 'b'):
        (tmp_path / name).symlink_to(victim)
    with atomic_file(tmp_path / 'a') as stream:
        stream.write(b'new')
    replace_text(tmp_path / 'b', 'new')
    for name in ('a', 'b'):
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_text() == 'new'


def write_whole(path):
    with atomic_file(path) as stream:
        stream.write(b'new')


@pytest.mark.parametrize(
    'write', [write_whole, lambda path: replace_text(path, 'new')]
)
def test_a_link_under_a_temporary_name_is_not_followed(
    tmp_path, victim, monkeypatch, write
):
    # Somebody guessed the name, which takes luck.
    monkeypatch.setattr(module.secrets, 'token_hex', lambda size: 'a' * 32)
    (tmp_path / temporary_name()).symlink_to(victim)
    with pytest.raises(FileExistsError, match='mmstable-tmp'):
        write(tmp_path / 'a')
    assert names(tmp_path) == ['elsewhere']


def test_temporary_names_cannot_be_foreseen(tmp_path):
    seen = []
    for _ in range(2):
        with atomic_file(
            tmp_path / 'a', lambda path: seen.append(path.name)
        ) as stream:
            stream.write(b'')
    assert len(set(seen)) == 2
    # It was that once: anybody could put a link there.
    assert '.a.mmstable-tmp' not in seen


@pytest.mark.parametrize('mask', [0o022, 0o077])
def test_the_umask_is_respected(tmp_path, mask):
    before = os.umask(mask)
    try:
        replace_text(tmp_path / 'a', 'new')
    finally:
        os.umask(before)
    assert (tmp_path / 'a').stat().st_mode & 0o777 == 0o666 & ~mask
