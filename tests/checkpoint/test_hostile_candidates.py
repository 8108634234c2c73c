"""Whatever is wrong with one file, the search for a good one goes past it."""

from __future__ import annotations

import json
import os
import struct
import time

import pytest
import torch

from mmstable.checkpoint.catalog import find_checkpoint
from tests.checkpoint.pickles import (
    checkpoint,
    mapping,
    name,
    pickled,
    text,
    write_archive,
)

INF = b'G' + struct.pack('>d', float('inf'))
SECTIONS = dict(meta=mapping(iter=b'K\x09', epoch=b'K\x00'), state_dict=b'}')


def sections(**changed: bytes) -> bytes:
    return pickled(mapping(**{**SECTIONS, **changed}))


PICKLES = {
    'a text as iteration': checkpoint(iter=text('abc')),
    'an infinite iteration': checkpoint(iter=INF),
    'a list as iteration': checkpoint(iter=b']'),
    'a negative iteration': checkpoint(iter=b'J\xff\xff\xff\xff'),
    'a huge iteration': checkpoint(iter=b'\x8a\x20' + b'\x7f' * 32),
    'a truth value as iteration': checkpoint(iter=b'\x88'),
    'a text as epoch': checkpoint(iter=b'K\x09', epoch=text('x')),
    'no iteration': sections(meta=b'}'),
    'a list as meta': sections(meta=b']'),
    'a number as mmstable': sections(mmstable=b'K\x05'),
    'a list as message hub': sections(message_hub=b']'),
    'a list as optimizer': sections(optimizer=b']'),
    'a text as weights': sections(state_dict=text('none')),
    'a cycle': sections(extra=b']q\x00h\x00a'),
    'deep lists': sections(extra=b']' * 9999 + b'a' * 9998),
    'deep tuples': sections(extra=b')' + b'\x85' * 99_999),
    'a call': sections(extra=name('os', 'system') + text('true') + b'\x85R'),
}
MANIFESTS = {
    'deep': b'[' * 100_000,
    'huge': b' ' * 10_000_000,
    'no text': b'\xff\xfe\x00',
    'wrong types': json.dumps(
        dict(size='1', sha256=2, iteration=[], epoch=None, finite=1, time='x')
    ).encode(),
    'infinite': b'{"size": 1e999, "iteration": 1e999}',
    'many digits': b'{"size": ' + b'9' * 10_000 + b'}',
}


@pytest.fixture
def good(tmp_path):
    path = tmp_path / 'iter_4.pth'
    torch.save(
        dict(meta=dict(epoch=0, iter=4), state_dict=dict(w=torch.ones(3))),
        path,
    )
    return path


def search(folder):
    start = time.thread_time()
    found = find_checkpoint(folder)
    assert time.thread_time() - start < 1
    for reason in found.skipped:
        assert reason.isprintable()
        assert len(reason) < 700
    return found


@pytest.mark.parametrize('kind', PICKLES)
def test_bad_content_is_skipped(good, kind):
    write_archive(good.with_name('iter_9.pth'), PICKLES[kind])
    found = search(good.parent)
    assert found.found.path == good.resolve()
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith('iter_9.pth: ')


@pytest.mark.parametrize('kind', MANIFESTS)
def test_bad_manifest_is_as_none(good, kind):
    good.with_name('iter_4.pth.json').write_bytes(MANIFESTS[kind])
    found = search(good.parent)
    assert found.found.path == good.resolve()
    assert found.skipped == ()


@pytest.mark.parametrize(
    'pointer', [b'x' * 100_000, b'\xff\xfe', b'a\x00b', b'', b'/' * 4000]
)
def test_bad_pointer_is_as_none(good, pointer):
    (good.parent / 'last_checkpoint').write_bytes(pointer)
    assert search(good.parent).found.path == good.resolve()


def test_odd_files_are_not_opened(good):
    folder = good.parent
    os.mkfifo(folder / 'iter_9.pth')
    os.mkfifo(folder / 'iter_4.pth.json')
    (folder / 'iter_8.pth').symlink_to('iter_8.pth')
    (folder / 'iter_7.pth').symlink_to('/dev/zero')
    (folder / 'iter_6.pth').mkdir()
    os.mkfifo(folder / 'last_checkpoint')
    found = search(folder)
    assert found.found.path == good.resolve()
    # The link to a device has no number of its own.
    assert len(found.skipped) == 3


def test_names_with_terminal_codes(good):
    (good.parent / 'iter_\x1b[J9.pth').write_bytes(b'')
    found = search(good.parent)
    assert found.skipped == (r'iter_\x1b[J9.pth: empty',)


def test_numbers_in_names_are_bounded(good):
    (good.parent / f'iter_{"9" * 200}.pth').write_bytes(b'')
    assert search(good.parent).found.path == good.resolve()
