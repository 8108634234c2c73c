"""Shards that somebody else may have written: nothing in them is run."""

from __future__ import annotations

import copy
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from mmstable.checkpoint.loading import BadCheckpoint, load_file
from mmstable.checkpoint.shards import check_shards, digest
from tests.checkpoint.pickles import save

pytest.importorskip('torch.distributed.checkpoint.state_dict')
shard_files = pytest.importorskip('mmstable.checkpoint.shard_files')
pytestmark = pytest.mark.filterwarnings('ignore:torch.distributed is unav')


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def state() -> dict[str, Any]:
    moments = dict(exp_avg=torch.rand(2, 4), step=3, kind='adam', none=None)
    return dict(
        model={'head.weight': torch.rand(2, 4), 'head.bias': torch.rand(2)},
        optimizer={'head.weight': moments},
    )


def empty() -> dict[str, Any]:
    target = state()
    for one in (*target['model'].values(),):
        one.zero_()
    target['optimizer']['head.weight'] = dict(
        exp_avg=torch.zeros(2, 4), step=0, kind='', none=0
    )
    return target


@pytest.fixture
def saved(tmp_path):
    path, content = tmp_path / 'iter_1.pth', state()
    folder = shard_files.new_folder(path)
    record, error = shard_files.write_shards(content, folder)
    assert error is None
    # As it comes out of the checkpoint.
    record = load_file(save(record, tmp_path / 'record.pth'))
    return path, folder, record, content


def read(path: Path, record: Any) -> dict[str, Any]:
    target = empty()
    shard_files.read_shards(target, path, record)
    return target


def with_digests(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The record of somebody who has changed the files, and says so."""
    files = {one.name: digest(one) for one in folder.iterdir()}
    return {**record, 'files': files}


def test_everything_comes_back(saved):
    path, _, record, content = saved
    target = read(path, record)
    for name, weight in content['model'].items():
        assert torch.equal(target['model'][name], weight)
    found = target['optimizer']['head.weight']
    expected = content['optimizer']['head.weight']
    assert torch.equal(found.pop('exp_avg'), expected.pop('exp_avg'))
    assert found == expected


def test_what_could_not_be_read_back_is_not_written(tmp_path):
    folder = shard_files.new_folder(tmp_path / 'iter_1.pth')
    content = dict(model=dict(weight=torch.ones(2), extra=[1]))
    record, error = shard_files.write_shards(content, folder)
    assert record == {}
    assert str(error) == 'shards hold no list, but model/extra is one'


@pytest.mark.parametrize('name', ['.metadata', '__0.metadata'])
def test_an_index_of_torch_is_not_read(tmp_path, saved, name):
    path, folder, record, content = saved
    marker = tmp_path / 'marker'
    (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    target = read(path, with_digests(folder, record))
    assert torch.equal(
        target['model']['head.bias'], content['model']['head.bias']
    )
    assert not marker.exists()


def test_an_index_that_says_bytes(tmp_path, saved):
    """Torch would unpickle what the index calls bytes."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        MetadataIndex,
    )

    path, folder, record, _ = saved
    marker = tmp_path / 'marker'
    torch.save(Payload(marker), folder / 'evil.distcp')
    size = (folder / 'evil.distcp').stat().st_size
    index = pickle.loads((folder / '.metadata').read_bytes())
    for name in list(index.state_dict_metadata):
        index.state_dict_metadata[name] = BytesStorageMetadata()
        index.storage_data[MetadataIndex(name)] = _StorageInfo(
            'evil.distcp', 0, size
        )
    (folder / '.metadata').write_bytes(pickle.dumps(index))
    read(path, with_digests(folder, record))
    assert not marker.exists()


def test_a_shard_with_a_payload(tmp_path, saved):
    path, folder, record, _ = saved
    marker, buffer = tmp_path / 'marker', io.BytesIO()
    torch.save(Payload(marker), buffer)
    (folder / 'evil.distcp').write_bytes(buffer.getvalue())
    record = with_digests(folder, record)
    dtype, size, (chunk,) = record['tensors']['model/head.bias']
    chunk = (*chunk[:2], 'evil.distcp', 0, len(buffer.getvalue()))
    record['tensors']['model/head.bias'] = [dtype, size, [chunk]]
    with pytest.raises(BadCheckpoint, match='asks for posix.mkdir,'):
        read(path, record)
    assert not marker.exists()


def test_one_place_for_two_chunks(saved):
    """A pickle that takes a second to read is not read for each element."""
    path, _, record, _ = saved
    dtype, size, (chunk,) = record['tensors']['model/head.bias']
    halves = [((at,), (1,), *chunk[2:]) for at in range(2)]
    record['tensors']['model/head.bias'] = [dtype, size, halves]
    with pytest.raises(BadCheckpoint, match='record of shards makes no sense'):
        read(path, record)


def test_another_tensor_than_the_record_says(saved):
    path, _, record, _ = saved
    names = ['model/head.weight', 'model/head.bias']
    wholes = [record['tensors'][name] for name in names]
    places = [chunk[2:] for _, _, (chunk,) in wholes]
    for name, (dtype, size, (chunk,)), place in zip(
        names, wholes, reversed(places)
    ):
        chunks = [(*chunk[:2], *place)]
        record['tensors'][name] = [dtype, size, chunks]
    with pytest.raises(BadCheckpoint, match='corrupt: .*is not as saved'):
        read(path, record)


def test_a_value_in_the_place_of_a_tensor(saved):
    path, _, record, _ = saved
    del record['tensors']['model/head.bias']
    record['values']['model/head.bias'] = 5
    with pytest.raises(BadCheckpoint, match='corrupt: .*head.bias'):
        read(path, record)
    del record['values']['optimizer/head.weight/step']
    with pytest.raises(BadCheckpoint, match='incomplete: .*step is missing'):
        read(path, record)


def first_shard(folder: Path) -> Path:
    return next(folder.glob('*.distcp'))


def test_a_pipe_is_not_waited_for(saved):
    path, folder, record, _ = saved
    shard = first_shard(folder)
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(BadCheckpoint, match='its shard .*not a regular file'):
        check_shards(path, record)


def test_a_device_is_not_read(saved):
    path, folder, record, _ = saved
    shard = first_shard(folder)
    shard.unlink()
    shard.symlink_to('/dev/zero')
    with pytest.raises(BadCheckpoint, match='its shard .*not a regular file'):
        check_shards(path, record)


def test_sizes_are_compared_before_digests(saved):
    path, folder, record, _ = saved
    for one in folder.iterdir():
        with one.open('ab') as stream:
            stream.truncate(1 << 40)
    # A hole of a terabyte, which would take an hour to read.
    with pytest.raises(BadCheckpoint, match='corrupt: its shard .* as saved'):
        check_shards(path, record)


NAME = 'model/head.bias'


def changed(record: dict[str, Any], what: str) -> Any:
    dtype, size, (chunk,) = record['tensors'][NAME]
    chunks = {
        'a chunk of another file': (*chunk[:2], 'other', *chunk[3:]),
        'a chunk outside of the folder': (*chunk[:2], '../x', *chunk[3:]),
        'a chunk beyond its file': (*chunk[:4], 1 << 40),
        'a chunk before its file': (*chunk[:3], -1, 1),
        'a chunk beyond its tensor': ((1,), *chunk[1:]),
        'a chunk of other dimensions': ((0, 0), (1, 2), *chunk[2:]),
        'a chunk of texts': ('ab', *chunk[1:]),
        'a short chunk': chunk[:3],
    }
    if what == 'a tensor without chunks':
        record['tensors'][NAME] = [dtype, size, []]
        return record
    if what == 'a size that is a text':
        record['tensors'][NAME] = [dtype, 'junk', []]
        return record
    if what in chunks:
        record['tensors'][NAME] = [dtype, size, [chunks[what]]]
        return record
    files = record['files']
    return {
        'no dict': [1],
        'no folder': {k: v for k, v in record.items() if k != 'folder'},
        'no tensors': {**record, 'tensors': 5},
        'another folder': {**record, 'folder': 'iter_2.pth.shards-0'},
        'a folder above': {**record, 'folder': '../iter_1.pth.shards-0'},
        'a file above': {**record, 'files': {**files, '../x': (1, 'a')}},
        'a file of no name': {
            **record, 'files': {**files, '\ud800': (1, 'a')}
        },
        'a folder of no name': {
            **record, 'folder': 'iter_1.pth.shards-\x00'
        },
        'a file of no size': {**record, 'files': {**files, 'x': ('1', 'a')}},
        'a dtype by name': {
            **record, 'tensors': {NAME: ['float32', size, [chunk]]}
        },
        'a value that is a list': {**record, 'values': {'a': []}},
    }[what]  # fmt: skip


@pytest.mark.parametrize(
    'what',
    [
        'no dict', 'no folder', 'no tensors', 'another folder',
        'a folder above', 'a file above', 'a file of no size',
        'a dtype by name', 'a value that is a list',
        'a chunk of another file', 'a chunk outside of the folder',
        'a chunk beyond its file', 'a chunk before its file',
        'a chunk beyond its tensor', 'a chunk of other dimensions',
        'a chunk of texts', 'a short chunk', 'a tensor without chunks',
        'a size that is a text', 'a file of no name', 'a folder of no name',
    ],
)  # fmt: skip
def test_records_that_make_no_sense(saved, what):
    path, _, record, _ = saved
    wrong = changed(copy.deepcopy(record), what)
    for look in (check_shards, lambda *a: shard_files.read_shards({}, *a)):
        with pytest.raises(BadCheckpoint, match='makes no sense|another fold'):
            look(path, wrong)
