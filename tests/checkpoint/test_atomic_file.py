from __future__ import annotations

import errno
import hashlib
import os

import pytest
import torch

from mmstable.checkpoint import atomic_file as module
from mmstable.checkpoint.atomic_file import (
    atomic_file,
    remove_leftovers,
    replace_text,
)
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
    with atomic_file(tmp_path / 'a') as stream:
        stream.write(b'half')
        (leftover,) = set(tmp_path.iterdir()) - {tmp_path / '.mine.tmp'}
    # As if the process had been killed in there.
    (tmp_path / 'a').rename(leftover)
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ['.mine.tmp']
