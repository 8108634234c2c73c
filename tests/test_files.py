"""Files that are opened where others may have put something in the way."""

from __future__ import annotations

import os

import pytest

from mmstable.io.files import append, create, read_bounded


@pytest.fixture
def victim(tmp_path):
    """A file of somebody, which must not change."""
    path = tmp_path / 'victim'
    path.write_text('precious')
    yield path
    assert path.read_text() == 'precious'


def test_a_new_file_is_no_link(tmp_path, victim):
    path = tmp_path / 'new'
    with open(path, 'w', opener=create) as file:
        file.write('text')
    assert path.read_text() == 'text'
    for target in (victim, tmp_path / 'not_there'):
        link = tmp_path / f'link_to_{target.name}'
        link.symlink_to(target)
        with pytest.raises(FileExistsError, match='link_to'):
            create(str(link), os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / 'not_there').exists()


def test_append_adds_to_a_file(tmp_path):
    for _ in range(2):
        with open(tmp_path / 'log', 'a', opener=append) as file:
            file.write('line\n')
    assert (tmp_path / 'log').read_text() == 'line\nline\n'


@pytest.mark.parametrize('plant', ['link', 'pipe', 'pipe with a reader'])
def test_append_makes_its_own_file_instead_of(tmp_path, victim, plant):
    path = tmp_path / 'log'
    if plant == 'link':
        path.symlink_to(victim)
    else:
        os.mkfifo(path)
    reader = None
    if plant == 'pipe with a reader':
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(path, 'a', opener=append) as file:
        file.write('line\n')
    if reader is not None:
        os.close(reader)
    assert path.is_file()
    assert not path.is_symlink()
    assert path.read_text() == 'line\n'


def test_append_reports_what_it_cannot_open(tmp_path):
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with pytest.raises(FileNotFoundError, match='nowhere'):
        append(str(tmp_path / 'nowhere' / 'log'), flags)
    (tmp_path / 'folder').mkdir()
    with pytest.raises(OSError, match='folder'):
        append(str(tmp_path / 'folder'), flags)


def test_only_small_regular_files_are_read(tmp_path):
    path = tmp_path / 'small'
    path.write_bytes(b'12345')
    assert read_bounded(path, 5) == b'12345'
    with pytest.raises(OSError, match='longer than 4 bytes: .*small'):
        read_bounded(path, 4)
    os.mkfifo(tmp_path / 'pipe')
    # Opening it in the usual way would wait for a writer.
    with pytest.raises(OSError, match='not a regular file: .*pipe'):
        read_bounded(tmp_path / 'pipe', 5)
    (tmp_path / 'endless').symlink_to('/dev/zero')
    with pytest.raises(OSError, match='not a regular file: .*endless'):
        read_bounded(tmp_path / 'endless', 5)
    with pytest.raises(FileNotFoundError, match='nowhere'):
        read_bounded(tmp_path / 'nowhere', 5)
