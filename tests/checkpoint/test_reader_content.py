"""Everything that genuine checkpoints hold comes back as it was."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim import OneCycleLR
from torch import nn

from mmstable.checkpoint.loading import load_file, read_content
from mmstable.checkpoint.reader.formats import read
from mmstable.io.files import OpenFile
from tests.checkpoint.pickles import save

FORMATS = pytest.mark.parametrize('is_zip', [True, False])
NUMBERS = ('?', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4',
           'f8', 'c8', 'c16', '>f4', '>i8')  # fmt: skip


def save_and_load(value: Any, path: Any, is_zip: bool = True) -> Any:
    return load_file(save(value, path, is_zip))


@FORMATS
@pytest.mark.parametrize(
    'value',
    [
        None,
        True,
        -1,
        2**70,
        1.5,
        1 + 2j,
        'text \u4e2d',
        b'bytes\xff',
        b'',
        bytearray(b'\x00\xff'),
        (1, (2, 3)),
        [1, [2]],
        {1, 2},
        frozenset({('a', 1)}),
        {1: 'a', ('b', None): 2.0},
        OrderedDict(b=1, a=2),
        Counter({3: 2, 5: 1}),
        ConfigDict(a=ConfigDict(b=[ConfigDict(c=1)])),
        torch.Size([2, 3]),
        torch.float16,
        torch.device('cuda:1'),
        torch.sparse_coo,
    ],
    ids=repr,
)
def test_plain_values(tmp_path, value, is_zip):
    loaded = save_and_load(value, tmp_path / 'a.pth', is_zip)
    assert loaded == value
    assert type(loaded) is type(value)


def test_default_dict_becomes_a_dict(tmp_path):
    value = defaultdict(list, a=[1])
    loaded = save_and_load(value, tmp_path / 'a.pth')
    assert type(loaded) is dict
    assert loaded == {'a': [1]}


TENSORS = {
    **{
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (
            torch.float64, torch.float32, torch.float16, torch.bfloat16,
            torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
            torch.bool, torch.complex64, torch.complex128,
        )
    },
    'empty': torch.empty(0, 3),
    'scalar': torch.tensor(2.5),
    'view': torch.arange(12.0).reshape(3, 4)[1:, ::2],
    'expanded': torch.ones(1).expand(5),
    'conjugate': torch.tensor([1 + 2j]).conj(),
    'leaf': torch.ones(2, requires_grad=True),
    'parameter': nn.Parameter(torch.ones(2)),
    'frozen': nn.Parameter(torch.ones(2), requires_grad=False),
    'channels_last': torch.rand(2, 3, 4, 5).to(
        memory_format=torch.channels_last
    ),
}  # fmt: skip


@FORMATS
@pytest.mark.parametrize('key', TENSORS)
def test_tensors(tmp_path, key, is_zip):
    value = TENSORS[key]
    loaded = save_and_load(value, tmp_path / 'a.pth', is_zip)
    assert type(loaded) is type(value)
    assert torch.equal(loaded, value)
    for what in ('dtype', 'requires_grad', 'device'):
        assert getattr(loaded, what) == getattr(value, what)
    assert loaded.stride() == value.stride()
    assert loaded.is_conj() == value.is_conj()


@FORMATS
def test_sparse_and_quantized_tensors(tmp_path, is_zip):
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for sparse in (dense.to_sparse(), dense.to_sparse_csr()):
        loaded = save_and_load(sparse, tmp_path / 'a.pth', is_zip)
        assert loaded.layout == sparse.layout
        assert torch.equal(loaded.to_dense(), dense)
    points = torch.tensor([0, 1])
    for quantized in (
        torch.quantize_per_tensor(dense, 0.1, 3, torch.quint8),
        torch.quantize_per_channel(
            dense, torch.tensor([0.1, 0.2]), points, 0, torch.qint8
        ),
    ):
        loaded = save_and_load(quantized, tmp_path / 'a.pth', is_zip)
        assert torch.equal(loaded.int_repr(), quantized.int_repr())
        assert torch.equal(loaded.dequantize(), quantized.dequantize())


@FORMATS
def test_shared_memory_stays_shared(tmp_path, is_zip):
    weight = torch.zeros(4)
    value = dict(a=weight, b=weight[1:], c=weight, d=[1], e=None)
    value['e'] = value['d']
    loaded = save_and_load(value, tmp_path / 'a.pth', is_zip)
    loaded['a'][2] = 5
    assert loaded['b'][1] == 5
    assert loaded['c'] is loaded['a']
    assert loaded['d'] is loaded['e']


@pytest.mark.parametrize('code', NUMBERS)
def test_numbers_of_numpy(tmp_path, code):
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(code))
    for value in (array, array[1, 2], np.array(array[1, 2]), array[:0]):
        loaded = save_and_load(value, tmp_path / 'a.pth')
        assert type(loaded) is type(value)
        assert loaded.dtype == value.dtype.newbyteorder('=')
        np.testing.assert_array_equal(loaded, value)
        if isinstance(loaded, np.ndarray):
            assert loaded.flags.writeable


def test_history(tmp_path):
    history = HistoryBuffer([1.0, 2.0], [1, 1], max_length=5)
    loaded = save_and_load(history, tmp_path / 'a.pth')
    statistics = [
        loaded.statistics(name) for name in ('min', 'max', 'current', 'mean')
    ]
    assert statistics == [1.0, 2.0, 2.0, 1.5]
    assert loaded.max_length == 5
    for value in range(9):
        loaded.update(value)
    assert len(loaded.data[0]) == 5


def own_statistic(history):
    return 5


def test_statistics_of_others_stay_out(tmp_path, monkeypatch):
    methods = dict(HistoryBuffer._statistics_methods)
    monkeypatch.setattr(HistoryBuffer, '_statistics_methods', methods)
    HistoryBuffer.register_statistics(own_statistic)
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    monkeypatch.undo()
    loaded = save_and_load(history, tmp_path / 'a.pth')
    assert loaded.statistics('mean') == 1.5


def test_files_without_check_sums(tmp_path):
    if not hasattr(torch.serialization, 'set_crc32_options'):
        pytest.skip('this torch always writes check sums')
    torch.serialization.set_crc32_options(False)
    try:
        path = save(dict(w=torch.ones(3)), tmp_path / 'a.pth')
    finally:
        torch.serialization.set_crc32_options(True)
    found = read_content(path, check_sums=True).value
    assert torch.equal(found['w'], torch.ones(3))


@pytest.mark.parametrize('strategy', ['cos', 'linear'])
def test_one_cycle_schedule(tmp_path, strategy):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    scheduler = OneCycleLR(
        optimizer, 0.1, total_steps=9, anneal_strategy=strategy
    )
    state = scheduler.state_dict()
    assert save_and_load(state, tmp_path / 'a.pth') == state


def test_versions_of_modules(tmp_path):
    state = nn.BatchNorm1d(2).state_dict()
    loaded = save_and_load(state, tmp_path / 'a.pth')
    assert type(loaded) is OrderedDict
    assert loaded._metadata == state._metadata
    assert loaded._metadata['']['version'] == 2


def test_attributes_of_a_parameter_are_no_weights(tmp_path):
    weight = nn.Parameter(torch.ones(2))
    weight.no_decay = True
    loaded = save_and_load(weight, tmp_path / 'a.pth')
    assert torch.equal(loaded, weight)
    assert not hasattr(loaded, 'no_decay')


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_protocols(tmp_path, protocol):
    path = tmp_path / 'a.pth'
    value = dict(
        h=HistoryBuffer([1.0], [1]),
        n=np.float64(2),
        s={1},
        b=b'x',
        t='y' * 300,
    )
    torch.save(value, path, pickle_protocol=protocol)
    loaded = load_file(path)
    assert loaded['h'].mean() == 1
    assert {k: loaded[k] for k in 'nsbt'} == {k: value[k] for k in 'nsbt'}


@FORMATS
def test_digest_is_that_of_the_file(tmp_path, is_zip):
    path = save(dict(w=torch.rand(3_000_000)), tmp_path / 'a.pth', is_zip)
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    for size in (0, float('inf')):
        found = read_content(path, with_digest=True, values_up_to=size)
        assert found.sha256 == expected


@FORMATS
def test_small_values_only(tmp_path, is_zip):
    small, large = torch.arange(3), torch.rand(100)
    value = dict(s=small, l=large, p=large.to_sparse(), q=small.to_sparse())
    path = save(value, tmp_path / 'a.pth', is_zip)
    found = read_content(path, values_up_to=100).value
    assert torch.equal(found['s'], small)
    assert torch.equal(found['q'].to_dense(), small)
    assert found['l'].is_meta and found['p'].is_meta
    assert found['l'].shape == (100,)


@FORMATS
def test_a_swap_while_reading_is_not_seen(tmp_path, is_zip):
    """The open file is read, whatever gets its name in between."""
    path = save(dict(w=torch.zeros(3)), tmp_path / 'a.pth', is_zip)
    with OpenFile(path) as file:
        save(dict(w=torch.ones(3)), tmp_path / 'b.pth').replace(path)
        assert torch.equal(read(file).value['w'], torch.zeros(3))


@pytest.mark.parametrize(
    ('location', 'expected'),
    [
        ('cpu', 'cpu'),
        (None, 'cpu'),
        (torch.device('cpu'), 'cpu'),
        ({'cpu': 'meta'}, 'meta'),
        ('meta', 'meta'),
        (lambda storage, location: storage, 'cpu'),
        (lambda storage, location: None, 'cpu'),
    ],
)
def test_map_location(tmp_path, location, expected):
    path = save(dict(w=torch.ones(3)), tmp_path / 'a.pth')
    loaded = load_file(path, map_location=location)
    assert loaded['w'].device.type == expected
