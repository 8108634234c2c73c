"""Hand-written files that try to be more than data."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader

import mmstable  # noqa: F401  (guards mmengine's loader)
from mmstable.checkpoint.loading import BadCheckpoint, load_file
from tests.checkpoint.pickles import (
    call,
    checkpoint,
    fill,
    mapping,
    name,
    new,
    pickled,
    save,
    storage,
    text,
    write_archive,
)

HISTORY = name('mmengine.logging.history_buffer', 'HistoryBuffer')
GETATTR = name('__builtin__', 'getattr')
REBUILD = name('torch._utils', '_rebuild_tensor_v2')
FROM_TYPE = name('torch._tensor', '_rebuild_from_type_v2')
TENSOR = name('torch', 'Tensor')
ORDERED = name('collections', 'OrderedDict') + b')R'
DTYPE = name('numpy', 'dtype')
RECONSTRUCT = name('numpy._core.multiarray', '_reconstruct')
SCALAR = name('numpy._core.multiarray', 'scalar')
ARRAY = name('numpy', 'ndarray')
F8 = call(DTYPE, text('f8'), b'\x89', b'\x88')


def number(value: int) -> bytes:
    return b'J' + struct.pack('<i', value)


def sizes(*values: int) -> bytes:
    return b'(' + b''.join(map(number, values)) + b't'


def tensor(source: bytes, offset: bytes, shape: bytes, stride: bytes) -> bytes:
    return call(REBUILD, source, offset, shape, stride, b'\x89', ORDERED)


def attempts(marker: str) -> dict[str, bytes]:
    mkdir = name('posix', 'mkdir')
    current = call(GETATTR, HISTORY, text('current'))
    empty = call(RECONSTRUCT, ARRAY, sizes(0), b'U\x01b')
    return {
        'call of a function': call(mkdir, text(marker)),
        'eval': call(name('__builtin__', 'eval'), text(f'mkdir({marker!r})')),
        'getattr of anything': call(GETATTR, HISTORY, text('__init__')),
        'getattr of a built-in': call(
            GETATTR, name('_codecs', 'encode'), text('__self__')
        ),
        'call of what getattr gave': call(current, text(marker)),
        'a callable for _rebuild_from_type_v2': call(
            FROM_TYPE, current, TENSOR, b'(' + text(marker) + b't', b'}'
        ),
        'a state for a function': fill(current, mapping(a=b'N')),
        'a state for a class': fill(HISTORY, mapping(a=b'N')),
        'a state for a tensor': fill(
            tensor(storage(2), number(0), sizes(2), sizes(1)), mapping(a=b'N')
        ),
        'a state for a list': fill(b']', mapping(a=b'N')),
        'statistics of the file': fill(
            new(HISTORY),
            mapping(
                max_length=number(5),
                _log_history=b']',
                _count_history=b']',
                statistics_methods=mapping(mean=mkdir),
            ),
        ),
        'a forged array interface': fill(
            new(HISTORY),
            mapping(
                max_length=number(5),
                _log_history=mapping(__array_interface__=b'}'),
                _count_history=b']',
            ),
        ),
        'a history with arguments': new(HISTORY, b']', b']', number(5)),
        'a call of the history': call(HISTORY, b']', b']', number(5)),
        'an instance of a class of the user': new(name('tests.toys', 'Toy')),
        'a nested load': call(
            name('torch.storage', '_load_from_bytes'), text('x')
        ),
        'another module': call(name('torch', 'load'), text(marker)),
        'an array of pointers': fill(
            empty,
            b'('
            + number(1)
            + sizes(1)
            + call(DTYPE, text('O8'), b'\x89', b'\x88')
            + b'\x89U\x08'
            + bytes(8)
            + b't',
        ),
        'an array longer than its bytes': fill(
            empty,
            b'(' + number(1) + sizes(9) + F8 + b'\x89U\x08' + bytes(8) + b't',
        ),
        'a structured dtype': fill(
            F8, b'(' + number(3) + text('<') + b'NNN}t'
        )
        + b'0'
        + fill(F8, b'(' + number(3) + text('<') + b'N}Nt'),
        'a number of pointers': call(
            SCALAR, call(DTYPE, text('O'), b'\x89', b'\x88'), b'U\x01x'
        ),
        'numpy.ndarray called': call(ARRAY, sizes(1), text('O')),
        'a tensor beyond its storage': tensor(
            storage(2), number(0), sizes(3), sizes(1)
        ),
        'a tensor before its storage': tensor(
            storage(2), number(-1), sizes(2), sizes(1)
        ),
        'a tensor with wild strides': tensor(
            storage(2), number(0), sizes(2, 2), sizes(1, 2**30)
        ),
        'a negative view of quantized numbers': call(
            REBUILD, storage(2, kind='QInt8Storage'), number(0), sizes(4),
            sizes(1), b'\x89', ORDERED, mapping(neg=b'\x88'),
        ),
        'a plain tensor of quantized numbers': tensor(
            storage(2, kind='QInt8Storage'), number(0), sizes(4), sizes(1)
        ),
        'a negative view of integers': call(
            REBUILD, storage(1, kind='LongStorage'), number(0), sizes(1),
            sizes(1), b'\x89', ORDERED, mapping(neg=b'\x88'),
        ),
        'elements of less than a byte': call(
            name('torch._utils', '_rebuild_tensor_v3'), storage(2), number(0),
            sizes(4), sizes(1), b'\x89', ORDERED, name('torch', 'quint4x2'),
        ),
        'a storage that is not there': tensor(
            storage(2, key='1'), number(0), sizes(2), sizes(1)
        ),
        'a storage outside of the archive': tensor(
            storage(2, key='../../0'), number(0), sizes(2), sizes(1)
        ),
        'hooks of a tensor': call(
            REBUILD,
            storage(2),
            number(0),
            sizes(2),
            sizes(1),
            b'\x89',
            name('collections', 'OrderedDict') + b'](' + number(0) + mkdir
            + b'\x86e\x85R',
        ),
        'an unknown type of storage': tensor(
            storage(2, kind='load'), number(0), sizes(2), sizes(1)
        ),
        'a device that is a text': call(name('torch', 'device'), text('a\nb')),
        'a counter of bytes': call(
            name('collections', 'Counter'),
            call(name('__builtin__', 'bytearray'), number(2**31 - 1)),
        ),
        'many bytes of nothing': call(
            name('__builtin__', 'bytearray'), number(2**31 - 1)
        ),
        'a set of itself': b']q\x00h\x00a'
        + call(name('__builtin__', 'set'), b'h\x00'),
        'an encoding that runs code': call(
            name('_codecs', 'encode'), text('x'), text('zlib_codec')
        ),
        'a sparse tensor out of range': call(
            name('torch._utils', '_rebuild_sparse_tensor'),
            name('torch', 'sparse_coo'),
            b'('
            + tensor(
                storage(2, key='i', kind='LongStorage'),
                number(0),
                sizes(1, 2),
                sizes(2, 1),
            )
            + tensor(storage(2), number(0), sizes(2), sizes(1))
            + sizes(2)
            + b't',
        ),
        'an instance by INST': b'(' + text(marker) + b'iposix\nmkdir\n',
        'an instance by OBJ': b'(' + mkdir + text(marker) + b'o',
        'an extension': b'\x82\x01',
        'a persistent id by text': b'Pstorage\n',
        'a persistent id of a module': b'(' + text('module') + b'NNtQ',
        'NEWOBJ_EX': mkdir + b')}\x92',
        'reduce of a text': text('posix.mkdir') + b')R',
        'a function as a value': mkdir,
        'a class as a value': HISTORY,
        'a statistic outside of a history': current,
        'a list that contains itself': b']q\x00h\x00a',
        'a dict that contains itself': b'}q\x00' + text('a') + b'h\x00s',
        'a deep list': b']' * 5000 + b'a' * 4999,
        'a deep tuple': b')' + b'\x85' * 100_000,
        'a deep key': b'}' + b')' + b'\x85' * 100_000 + b'Ns',
        'an unhashable key': b'}]Ns',
        'a text opcode': b"I1\n",
        'an empty stack': b'00',
        'no mark': b't',
        'an unknown memo': b'h\x07',
        'a long integer': b'\x8b' + struct.pack('<i', 1 << 20) + bytes(9),
        'a text that is too long': b'X' + struct.pack('<I', 2**32 - 1) + b'a',
        'a text of no end': b'\x8d' + struct.pack('<Q', 2**63) + b'a',
        'no end': b'',
        'a long name': b'c' + b'a' * 100_000 + b'\nb\n',
    }  # fmt: skip


ATTEMPTS = list(attempts(''))


def bomb(levels: int) -> bytes:
    """Lists of ten times the same list, so many levels deep."""
    body = b']q\x00(' + b'N' * 10 + b'e0'
    for level in range(1, levels):
        body += b']q' + bytes([level]) + b'('
        body += (b'h' + bytes([level - 1])) * 10 + b'e0'
    return body + b'h' + bytes([levels - 1])


@pytest.mark.parametrize('attempt', ATTEMPTS)
def test_nothing_is_run(tmp_path, monkeypatch, attempt):
    monkeypatch.chdir(tmp_path)
    marker = str(tmp_path / 'marker')
    path = tmp_path / 'a.pth'
    records = {'0': bytes(8), 'i': struct.pack('<qq', 0, 9)}
    statistics = dict(HistoryBuffer._statistics_methods)
    builtins = dict(vars(OrderedDict))
    body = attempts(marker)[attempt]
    for data in (checkpoint(extra=body), pickled(body)):
        write_archive(path, data, records)
        start = time.thread_time()
        for load in (load_file, CheckpointLoader.load_checkpoint):
            with pytest.raises(BadCheckpoint, match='refused|corrupt'):
                load(str(path))
        assert time.thread_time() - start < 1
    assert [one.name for one in tmp_path.iterdir()] == ['a.pth']
    assert HistoryBuffer._statistics_methods == statistics
    assert dict(vars(OrderedDict)) == builtins


def test_content_that_grows(tmp_path):
    path = tmp_path / 'a.pth'
    write_archive(path, pickled(bomb(3)))
    assert len(load_file(path)) == 10
    write_archive(path, pickled(bomb(12)))
    with pytest.raises(BadCheckpoint, match='more content than the file can'):
        load_file(path)


def test_tensors_that_grow(tmp_path):
    path = tmp_path / 'a.pth'
    huge = tensor(storage(2), number(0), sizes(2**20, 2**20), sizes(0, 0))
    write_archive(path, pickled(huge), {'0': bytes(8)})
    with pytest.raises(
        BadCheckpoint, match='objects far larger than the file'
    ):
        load_file(path)


def test_attributes_of_an_ordered_dict_are_not_set(tmp_path):
    """A `pop` of its own made `meta.pop('config')` do nothing."""
    path = tmp_path / 'a.pth'
    forged = fill(ORDERED, mapping(pop=name('torch', 'float32'), items=b'N'))
    write_archive(path, checkpoint(extra=forged))
    extra = load_file(path)['meta']['extra']
    assert type(extra) is OrderedDict
    assert vars(extra) == {}


def test_config_text_never_reaches_mmengine(tmp_path):
    path, marker = tmp_path / 'a.pth', tmp_path / 'marker'
    program = f'import os; os.mkdir({str(marker)!r}); gpu_ids = [0, 1]'
    meta = OrderedDict(iter=1, epoch=0, config=program)
    save(dict(meta=meta, state_dict={}), path)
    loaded = CheckpointLoader.load_checkpoint(str(path))
    assert loaded['meta'] == dict(iter=1, epoch=0)


def test_compressed_archive_is_refused(tmp_path):
    path = tmp_path / 'a.pth'
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('archive/data.pkl', checkpoint())
    with pytest.raises(BadCheckpoint, match='corrupt: compressed'):
        load_file(path)


def test_two_records_of_one_name(tmp_path):
    path = tmp_path / 'a.pth'
    with (
        pytest.warns(UserWarning, match='Duplicate'),
        zipfile.ZipFile(path, 'w') as archive,
    ):
        archive.writestr('archive/data.pkl', checkpoint())
        archive.writestr('archive/data.pkl', pickled(b'N'))
    with pytest.raises(BadCheckpoint, match='corrupt: two records'):
        load_file(path)


def test_a_program_is_no_checkpoint(tmp_path):
    path = tmp_path / 'a.pt'
    torch.jit.script(torch.nn.Linear(1, 1)).save(str(path))
    with pytest.raises(BadCheckpoint, match='TorchScript'):
        load_file(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / 'iter_9.pth'
    os.mkfifo(path)
    with pytest.raises(BadCheckpoint, match='foreign: not a regular file'):
        load_file(path)


@pytest.mark.parametrize('is_zip', [True, False])
def test_a_payload_in_either_format(tmp_path, is_zip):
    marker = tmp_path / 'marker'

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    path = save(dict(state_dict=Payload()), tmp_path / 'a.pth', is_zip)
    with pytest.raises(BadCheckpoint, match=r'asks for posix\.mkdir,'):
        load_file(path)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()


def test_objects_of_numpy_are_refused(tmp_path):
    for value in (np.array([{}], object), np.zeros(1, 'i4, O'), np.array('a')):
        path = save(value, tmp_path / 'a.pth')
        with pytest.raises(BadCheckpoint, match='numpy.dtype of other than'):
            load_file(path)


@pytest.mark.skipif(
    not hasattr(torch.serialization, 'get_safe_globals'),
    reason='this torch has no allow-list to ask for',
)
def test_torch_itself_is_as_it_was(tmp_path):
    """Importing mmstable must not weaken what others load."""
    program = (
        'import mmengine.runner\n'
        'from torch.serialization import get_safe_globals\n'
        'before = get_safe_globals()\n'
        'import mmstable, mmstable.cli.main\n'
        'assert set(get_safe_globals()) == set(before)\n'
    )
    subprocess.run([sys.executable, '-c', program], check=True, timeout=60)
    path = save(HistoryBuffer([1.0], [1]), tmp_path / 'a.pth')
    with pytest.raises(pickle.UnpicklingError, match='HistoryBuffer|getattr'):
        torch.load(path, weights_only=True)


def test_reasons_can_be_printed(tmp_path):
    path = tmp_path / 'a\x1b[31m.pth'
    write_archive(path, pickled(name('o\x1b[2Js', 'x' * 400)))
    with pytest.raises(BadCheckpoint, match='refused') as caught:
        load_file(path)
    assert str(caught.value).isprintable()
