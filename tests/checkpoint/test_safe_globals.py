from __future__ import annotations

import copyreg
import io
import pickle
from _codecs import encode
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any, Callable

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim import OneCycleLR
from torch import _weights_only_unpickler as unpickler
from torch.serialization import add_safe_globals, get_safe_globals

import mmstable  # noqa: F401  (fills the allow-list)
from mmstable.checkpoint import allow_mmengine_checkpoints

RECONSTRUCT = np.zeros(1).__reduce__()[0]
SCALAR = np.float64(1).__reduce__()[0]
NUMBERS = ('?', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4',
           'f8', 'c8', 'c16')  # fmt: skip


class Call:
    """Pickles as a call of ``func``, with ``state`` to fill in."""

    def __init__(self, func: Any, *args: Any, state: Any = None) -> None:
        self.reduced = (func, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


class NewArray:
    """Pickles as ``numpy.ndarray.__new__`` of object pointers."""

    __class__ = property(lambda self: np.ndarray)  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        args = (np.ndarray, (1,), 'O', bytearray(8))
        return copyreg.__newobj__, args  # type: ignore[attr-defined]


class Point:
    """A class of the user."""


def save_and_load(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.fixture(autouse=True)
def same_allow_list_afterwards() -> Iterator[None]:
    before = get_safe_globals()
    yield
    torch.serialization.clear_safe_globals()
    add_safe_globals(before)


@pytest.mark.parametrize('code', NUMBERS)
def test_numbers_of_numpy_are_loaded(code: str) -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(code))
    for value in (array, array[1, 2], np.array(array[1, 2]), array[:0]):
        loaded = save_and_load(value)
        assert type(loaded) is type(value)
        assert loaded.dtype == value.dtype
        np.testing.assert_array_equal(loaded, value)


def test_history_and_nested_config_are_loaded() -> None:
    meta = {'palette': ConfigDict(a=ConfigDict(b=[ConfigDict(c=1)]))}
    history = HistoryBuffer([1.0, 2.0], [1, 1])

    loaded_meta, loaded = save_and_load((meta, history))

    assert loaded_meta == meta
    assert type(loaded_meta['palette'].a.b[0]) is ConfigDict
    assert [loaded.statistics(n) for n in ('min', 'max', 'current', 'mean')
            ] == [1.0, 2.0, 2.0, 1.5]  # fmt: skip


@pytest.mark.parametrize('strategy', ['cos', 'linear'])
def test_one_cycle_schedule_is_loaded(strategy: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    scheduler = OneCycleLR(
        optimizer, 0.1, total_steps=9, anneal_strategy=strategy
    )
    state = scheduler.state_dict()
    assert save_and_load(state) == state


@pytest.mark.parametrize(
    'owner, name',
    [
        (HistoryBuffer, '__init__'),
        (HistoryBuffer, '_statistics_methods'),
        (OneCycleLR.__mro__[2], '__init__'),
        (torch.Tensor, 'min'),
        (encode, '__self__'),
        (HistoryBuffer, ['min']),
    ],
)
def test_getattr_answers_nothing_else(owner: Any, name: Any) -> None:
    with pytest.raises(UnpicklingError, match='may use getattr only for'):
        save_and_load(Call(getattr, owner, name))


def getattr_gadget(marker: str) -> Call:
    """Reaches ``os.mkdir`` from globals that torch allows by default."""

    def attribute(owner: Any, name: str) -> Call:
        return Call(getattr, owner, name)

    rebuild = torch._tensor._rebuild_from_type_v2
    module = attribute(attribute(encode, '__self__'), '__class__')
    names = attribute(torch.serialization._get_layout, '__globals__')
    get = attribute(names, '__getitem__')
    os_module = Call(rebuild, get, module, ('os',), {})
    return Call(rebuild, attribute(os_module, 'mkdir'), module, (marker,), {})


def test_getattr_gadget_is_refused(tmp_path: Any) -> None:
    with pytest.raises(UnpicklingError, match='may use getattr only for'):
        save_and_load(getattr_gadget(f'{tmp_path}/marker'))
    assert not list(tmp_path.iterdir())


def test_getattr_gadget_would_run(tmp_path: Any) -> None:
    add_safe_globals([getattr])
    with pytest.raises(AttributeError, match='as_subclass'):
        save_and_load(getattr_gadget(f'{tmp_path}/marker'))
    assert [path.name for path in tmp_path.iterdir()] == ['marker']


@pytest.mark.parametrize(
    'forged, message',
    [
        (np.array([{}], dtype=object), 'may use numpy.dtype only for b1, i1'),
        (np.zeros(1, dtype='i4, O'), 'may use numpy.dtype only for b1, i1'),
        (Call(np.dtype, [('a', 'O')]), 'may use numpy.dtype only for b1, i1'),
        (
            Call(SCALAR, np.dtype('O'), pickle.dumps(1)),
            'may use numpy.dtype only for b1, i1',
        ),
        (Call(SCALAR, 'O', b'1'), 'may use numpy scalar only for numbers'),
        (
            Call(SCALAR, np.dtype('f8'), 1.0),
            'may use numpy scalar only for numbers',
        ),
        (
            Call(SCALAR, np.dtype('f8'), b'1234'),
            'may use numpy scalar only with 8 bytes for float64',
        ),
        (
            Call(RECONSTRUCT, HistoryBuffer, (0,), b'b'),
            'may use numpy _reconstruct only for numpy.ndarray',
        ),
        (
            Call(np.ndarray, (1,), 'O', bytearray(8)),
            'may use numpy.ndarray only as an argument',
        ),
        (Call(bytes, 1 << 40), 'may use bytes only for an empty string'),
        (NewArray(), 'may use numpy.ndarray only as an argument'),
    ],
)
def test_forged_numpy_content_is_refused(forged: Any, message: str) -> None:
    with pytest.raises(UnpicklingError, match=message):
        save_and_load(forged)


def test_forged_state_of_a_dtype_has_no_effect() -> None:
    # Flags 63 declare the eight bytes a pointer to an object.
    state = (3, '>', None, None, None, -1, -1, 63)
    dtype = Call(np.dtype, 'f8', False, True, state=state)
    data = np.float64(1.5).tobytes()
    array = Call(
        RECONSTRUCT, np.ndarray, (0,), b'b', state=(1, (1,), dtype, 0, data)
    )
    loaded = save_and_load(array)
    assert loaded.tolist() == [1.5]
    assert not loaded.dtype.hasobject
    assert np.dtype('f8').isnative


def test_no_file_can_name_the_originals() -> None:
    originals = (getattr, np.ndarray, np.dtype, RECONSTRUCT, SCALAR)
    for entry in get_safe_globals():
        obj, name = entry if isinstance(entry, tuple) else (entry, '.')
        # torch looks up f'{module}.{name}', which has a dot.
        assert '.' not in name or obj not in originals


def test_second_call_changes_nothing() -> None:
    before = set(get_safe_globals())
    assert before
    allow_mmengine_checkpoints()
    assert set(get_safe_globals()) == before


def test_entries_come_back_after_clearing() -> None:
    torch.serialization.clear_safe_globals()
    allow_mmengine_checkpoints()
    assert save_and_load(np.float32(2)) == 2


def test_older_torch_is_left_alone(monkeypatch: Any) -> None:
    torch.serialization.clear_safe_globals()
    monkeypatch.setattr(torch, '__version__', '2.5.1')
    allow_mmengine_checkpoints()
    assert get_safe_globals() == []


def test_plain_getattr_of_the_user_is_reported() -> None:
    add_safe_globals([getattr])
    with pytest.warns(UserWarning, match='run any code through it'):
        allow_mmengine_checkpoints()
    assert getattr in get_safe_globals()


def test_own_context_of_the_user_takes_nothing_away() -> None:
    with torch.serialization.safe_globals([HistoryBuffer, np.ndarray, Point]):
        assert type(save_and_load(Point())) is Point
    assert type(save_and_load(HistoryBuffer())) is HistoryBuffer


USER_ENTRIES: list[Any] = [
    Point,
    np.dtype,
    np.ndarray,
    RECONSTRUCT,
    type(np.dtype('U2')),
    (getattr, 'builtins.getattr'),
]


# torch lets the last of two entries with one name win.
@pytest.mark.parametrize('first', ['mmstable', 'user'])
@pytest.mark.parametrize('count', range(1, len(USER_ENTRIES) + 1))
def test_user_entries_work_in_any_order(
    monkeypatch: Any, first: str, count: int
) -> None:
    ours, users = get_safe_globals(), USER_ENTRIES[:count]
    merged = ours + users if first == 'mmstable' else users + ours
    monkeypatch.setattr(unpickler, '_marked_safe_globals_set', merged)

    assert type(save_and_load(Point())) is Point
    history = save_and_load(HistoryBuffer([1.0, 3.0], [1, 1]))
    assert history.mean() == 2
    if count >= 5:
        loaded = save_and_load(np.array(['ab']))
        assert loaded.tolist() == ['ab']
        assert pickle.dumps(loaded) == pickle.dumps(np.array(['ab']))
    if count == 6:
        assert save_and_load(Call(getattr, Point, '__doc__')) == Point.__doc__


def test_single_user_entry_among_numpy_names(monkeypatch: Any) -> None:
    expected = np.arange(3.0)
    build: list[Callable[[list[Any], list[Any]], list[Any]]] = [
        lambda ours, user: ours + user,
        lambda ours, user: user + ours,
    ]
    ours = get_safe_globals()
    for merge in build:
        for user in (np.dtype, np.ndarray, RECONSTRUCT, SCALAR):
            merged = merge(ours, [user])
            monkeypatch.setattr(unpickler, '_marked_safe_globals_set', merged)
            assert save_and_load(expected).tolist() == [0.0, 1.0, 2.0]
            assert save_and_load(np.float32(3)) == 3
