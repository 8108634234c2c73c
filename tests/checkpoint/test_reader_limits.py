"""A small file cannot ask for much time or memory, nor slip past a check."""

from __future__ import annotations

import io
import json
import pickle
import resource
import struct
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.runner import CheckpointLoader

from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from mmstable.checkpoint.reader.formats import read
from mmstable.checkpoint.reader.unpickler import Unpickler
from mmstable.errors import CheckpointError
from mmstable.io.files import Malformed, OpenFile
from tests.checkpoint.pickles import (
    call,
    mapping,
    name,
    pickled,
    save,
    storage,
    text,
    write_archive,
)

REPO = Path(__file__).resolve().parents[2]
MEGABYTE = b'B' + struct.pack('<I', 1 << 20) + bytes(1 << 20)
F8 = call(name('numpy', 'dtype'), text('f8'), b'\x89', b'\x88')
TIMES = 5000


def number(value: int) -> bytes:
    return b'J' + struct.pack('<i', value)


def weights(body: bytes) -> bytes:
    """A checkpoint with something as a weight."""
    facts = mapping(iter=b'K\x04', epoch=b'K\x00')
    return pickled(mapping(meta=facts, state_dict=mapping(a=body)))


def repeated(function: bytes, argument: bytes, result: bytes = b'') -> bytes:
    """A list of many results of one call, which are not the same."""
    once = function + b'q\x00' + argument + b'q\x01' + b'00'
    return once + b'](' + (b'h\x00h\x01R' + result) * TIMES + b'e'


def numbered(count: int, value: bytes) -> bytes:
    entries = b''.join(number(index) + value for index in range(count))
    return b'}(' + entries + b'u\x85'


def tensor(count: int, stride: int) -> bytes:
    return call(
        name('torch._utils', '_rebuild_tensor_v2'),
        storage(2),
        b'K\x00',
        number(count) + b'\x85',
        number(stride) + b'\x85',
        b'\x89',
        b'N',
    )


def array() -> bytes:
    return repeated(
        name('numpy._core.multiarray', '_reconstruct'),
        name('numpy', 'ndarray') + b'K\x00\x85U\x01b\x87',
        b'h\x02b',
    )


def array_state() -> bytes:
    shape = number(1 << 17) + b'\x85'
    return b'(K\x01' + shape + F8 + b'\x89' + MEGABYTE + b'tq\x020'


def histories() -> bytes:
    state = b'}(' + text('max_length') + number(10**6)
    for series in ('_log_history', '_count_history'):
        state += text(series) + b'h\x03'
    make = call(
        name('numpy._core.multiarray', '_reconstruct'),
        name('numpy', 'ndarray'), b'K\x00\x85', b'U\x01b',
    )  # fmt: skip
    kind = name('mmengine.logging.history_buffer', 'HistoryBuffer')
    head = array_state() + make + b'h\x02bq\x030' + state + b'uq\x040'
    head += kind + b'q\x050'
    return head + b'](' + b'h\x05)\x81h\x04b' * TIMES + b'e'


def equal_hashes() -> bytes:
    keys = (
        ((i + 1) * (2**61 - 1)).to_bytes(12, 'little') for i in range(TIMES)
    )
    return b'}(' + b''.join(b'\x8a\x0c' + key + b'N' for key in keys) + b'u'


def bomb(levels: int) -> bytes:
    body = b']q\x00(' + b'N' * 10 + b'e0'
    for level in range(1, levels):
        body += b']q' + bytes([level]) + b'('
        body += (b'h' + bytes([level - 1])) * 10 + b'e0'
    return body + b'h' + bytes([levels - 1])


COSTLY = {
    'configs of one dict': repeated(
        name('mmengine.config.config', 'ConfigDict'), numbered(20_000, b'N')
    ),
    'counters of one dict': repeated(
        name('collections', 'Counter'), numbered(20_000, b'K\x01')
    ),
    'copies of bytes': repeated(
        name('__builtin__', 'bytearray'), MEGABYTE + b'\x85'
    ),
    'encoded texts': repeated(
        name('_codecs', 'encode'), text('a' * (1 << 20)) + b'\x85'
    ),
    'arrays of the same bytes': array_state() + array(),
    'histories of one array': histories(),
    'keys of equal hash': equal_hashes(),
    'long tuples as keys': b'(' + b'N' * 20_000 + b'tq\x000}('
    + b'h\x00N' * 20_000 + b'u',
    'a counter filled with lists': call(name('collections', 'Counter'), b'}')
    + text('a') + bomb(8) + b's',
    'very many lists': b'](' + b']' * 400_000 + b'e',
    'very many sets': b'](' + b'\x8f' * 400_000 + b'e',
    'very many frozensets': b'](' + b'(\x91' * 400_000 + b'e',
    'very many marks': b'(' * 100_000,
    'chosen numbers as keys': b'}(' + b''.join(
        number(7919 * index + 10**6) + b'N' for index in range(20_000)
    ) + b'u',
    'chosen numbers of objects': b''.join(
        b'Nr' + struct.pack('<I', 7919 * index) + b'0' for index in range(100)
    ) + b'N',
    'a bytearray of no end': b'\x96' + struct.pack('<Q', 1 << 40) + b'a',
}  # fmt: skip


@pytest.mark.parametrize('what', COSTLY)
def test_costly_files_are_given_up_early(tmp_path, what):
    path = write_archive(tmp_path / 'a.pth', weights(COSTLY[what]))
    start = time.thread_time()
    with pytest.raises(BadCheckpoint, match='refused|corrupt'):
        load_file(path)
    assert time.thread_time() - start < 4


@pytest.mark.parametrize('operation', [b'\x85', b'N\x86', b'(Nt'])
def test_tuples_are_counted_while_they_are_made(operation):
    data = b')' + operation * 2_000_000 + b'.'
    source = io.BytesIO(data)
    with pytest.raises(Malformed, match='objects far larger than the file'):
        Unpickler(source, len(data), lambda _: None).load()
    # As many as fit, by their size, and not one more.
    most = ((64 << 20) + 4 * len(data)) // 64
    assert source.tell() <= (most + 1) * len(operation) + 1


def test_keys_of_genuine_files(tmp_path):
    value = dict(
        state=dict.fromkeys(range(50000), 'a'),
        later=dict.fromkeys(range(2000, 4000), 'a'),
        ids={7919 * index: 'a' for index in range(3000)},
        pairs={('a', index): 'b' for index in range(300)},
    )
    assert load_file(save(value, tmp_path / 'a.pth')) == value


def test_memory_follows_the_size_of_the_file(tmp_path):
    names = ['arrays of the same bytes', 'histories of one array']
    for index, what in enumerate(names + ['copies of bytes']):
        data = weights(COSTLY[what])
        write_archive(tmp_path / f'{index}.pth', data)
    program = (
        'import sys, resource\n'
        'from mmstable.checkpoint.loading import BadCheckpoint, load_file\n'
        'def peak():\n'
        '    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n'
        'before = peak()\n'
        'for path in sys.argv[1:]:\n'
        '    try:\n'
        '        load_file(path)\n'
        '    except BadCheckpoint:\n'
        '        print((peak() - before) // 1024)\n'
    )
    done = subprocess.run(
        [sys.executable, '-c', program, *sorted(tmp_path.glob('*.pth'))],
        cwd=REPO, stdout=subprocess.PIPE, text=True, check=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_CPU, (60, 60)
        ),
    )  # fmt: skip
    megabytes = [int(line) for line in done.stdout.split()]
    assert len(megabytes) == 3
    assert megabytes[-1] < 110


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        # Read once, however often it is referred to.
        (tensor(1 << 24, 0) + b'q\x000](', b'h\x00' * 2000 + b'e'),
        # A name that is not copied for each of its tensors.
        (
            b'}' + text('k' * (1 << 20)) + tensor(2, 1) + b'q\x000](',
            b'h\x00' * 20_000 + b'es',
        ),
    ],
    ids=['tensor', 'name'],
)
def test_verifying_is_not_multiplied_by_references(tmp_path, before, after):
    path = tmp_path / 'a.pth'
    write_archive(path, weights(before + after), {'0': bytes(8)})
    start = time.thread_time()
    assert verify_checkpoint(path).iteration == 4
    assert time.thread_time() - start < 2


def legacy(*bodies: bytes) -> bytes:
    head = (0x1950A86A20F9469CFC6C, 1001, dict(little_endian=True))
    return b''.join(
        [*(pickle.dumps(one, 2) for one in head), *map(pickled, bodies)]
    )


def test_keys_of_the_old_format(tmp_path):
    path = tmp_path / 'a.pth'
    path.write_bytes(legacy(mapping(state_dict=b'}'), bomb(8)))
    start = time.thread_time()
    with pytest.raises(BadCheckpoint, match='storage that|more content'):
        load_file(path)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize(
    'saved', [dict(SafeCheckpointHook=[1]),
              dict(SafeCheckpointHook=dict(placeholders=5)),
              dict(SafeCheckpointHook=dict(placeholders={'a': 'x'}))]
)  # fmt: skip
def test_whatever_is_wrong_a_candidate_is_skipped(tmp_path, saved):
    state = dict(a=torch.tensor([1.0, 2.0, float('inf')]))
    meta = dict(iter=9, epoch=0)
    content = dict(state_dict=state, meta=meta, mmstable=saved)
    save(content, tmp_path / 'iter_9.pth')
    content = dict(state_dict={}, meta=dict(iter=3, epoch=0))
    save(content, tmp_path / 'iter_3.pth')
    search = find_checkpoint(tmp_path)
    assert search.found.iteration == 3
    assert search.skipped[0].startswith('iter_9.pth: ')


@pytest.mark.parametrize('time', ['1' + '0' * 400, '1e999', '-1', 'NaN', '{}'])
def test_manifest_with_a_strange_time(tmp_path, time):
    path = save(
        dict(state_dict={}, meta=dict(iter=9, epoch=0)),
        tmp_path / 'iter_9.pth',
    )
    facts = dict(size=1, sha256='x', iteration=3, epoch=0, finite=True)
    content = json.dumps(dict(facts, versions={}))
    Path(f'{path}.json').write_text(content[:-1] + f', "time": {time}}}')
    assert find_checkpoint(tmp_path).found.iteration == 9


@pytest.mark.parametrize('kind', [dict, OrderedDict, ConfigDict])
def test_references_are_checked_in_dicts_of_any_kind(tmp_path, kind):
    victim = tmp_path / 'other' / 'victim.pth'
    victim.parent.mkdir()
    victim.touch()
    info = kind(best_ckpt=str(victim), keep_ckpt_ids=['../x'])
    content = kind(state_dict={}, message_hub=kind(runtime_info=info))
    path = save(content, tmp_path / 'a.pth')
    loaded = CheckpointLoader.load_checkpoint(str(path))
    assert loaded['message_hub']['runtime_info'] == {}


@pytest.mark.parametrize('name', ['a\x00b', '\ud800', 'x' * 5000])
def test_names_that_no_file_can_have(name):
    for load in (load_file, CheckpointLoader.load_checkpoint):
        with pytest.raises(BadCheckpoint, match='is (missing|foreign): '):
            load(name)


def test_a_scheme_that_mmengine_does_not_know():
    with pytest.raises(CheckpointError, match="no file backend for 'foo://'"):
        CheckpointLoader.load_checkpoint('foo://a')


def test_a_file_that_is_written_to_while_it_is_read(tmp_path):
    path = save(dict(w=torch.zeros(3)), tmp_path / 'a.pth')
    with OpenFile(path) as file:
        time.sleep(0.05)
        with path.open('r+b') as other:
            other.seek(-1, io.SEEK_END)
            other.write(b'\x00')
        with pytest.raises(Malformed, match='changed while it was read'):
            read(file)


def test_configs_and_dicts_with_keys_of_other_types(tmp_path):
    config = ConfigDict(label_map={0: 1, 255: 0})
    value = dict(config=config, numbers={np.int64(3): 'a', 2.5: 'b'})
    loaded = load_file(save(value, tmp_path / 'a.pth'))
    assert loaded == value
    assert type(loaded['config'].label_map) is ConfigDict


def test_compressed_sparse_weights_are_verified(tmp_path):
    weight = torch.eye(3).to_sparse_csr()
    meta = dict(iter=1, epoch=0)
    for factor, reason in ((1.0, None), (float('nan'), 'non-finite')):
        state = dict(w=torch.sparse_csr_tensor(
            weight.crow_indices(), weight.col_indices(),
            factor * weight.values(), (3, 3),
        ))  # fmt: skip
        save(dict(state_dict=state, meta=meta), tmp_path / 'iter_1.pth')
        search = find_checkpoint(tmp_path)
        assert (search.found is None) is (reason is not None)
        assert all(reason in line for line in search.skipped)
