"""What a checkpoint may name, and what it gets for it.

Each allowed global stands for a function of this file that checks the exact
type of every argument and returns plain data. Nothing else can be named,
called or given a state. The names are those that torch, numpy and mmengine
write.
"""

from __future__ import annotations

import math
import re
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Callable, TypeVar

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler.param_scheduler import OneCycleParamScheduler
from torch import Tensor
from torch.nn import Parameter

_Kind = TypeVar('_Kind')
Array = np.ndarray[Any, Any]
_LARGEST_SIZE = 2**62
_MOST_DIMENSIONS = 64
# The beginning of torch's functions, and a class that is one.
_BY, _PARAMETER = 'torch._utils._rebuild_', 'torch.nn.parameter.Parameter'
# Quantized, and of less than a byte: torch has crashed on these.
_ODD_TYPE = re.compile(r'torch\.(q|bits|u?int[1-7]$|float4)')
_DEVICE = re.compile(r'[a-z][a-z0-9_]{0,31}(:[0-9]{1,4})?\Z')


class Refused(ValueError):
    """The file asks for something that plain data does not need.

    Args:
        what (str): What it asks for.
    """


class Name(str):
    """A function or class that the file has named; it cannot be called."""

    __slots__ = ()


class Unknown(str):
    """A name that is not allowed; it may stand among statistics only."""

    __slots__ = ()


class DType(list):
    """A number type of numpy: its code, and the byte order from BUILD."""


@dataclass(eq=False)
class Storage:
    """The memory of one or several tensors.

    Args:
        dtype (torch.dtype): Of its elements.
        nbytes (int): Its size.
        data (torch.UntypedStorage, optional): Its content; None if it is
            not read.
    """

    dtype: torch.dtype
    nbytes: int
    data: torch.UntypedStorage | None


# Called by REDUCE or NEWOBJ, by the full name.
CALLED: dict[str, Callable[..., Any]] = {}
# Values that are a name and nothing else.
CONSTANTS: dict[str, Any] = {
    f'torch.{name}': value
    for name, value in vars(torch).items()
    if isinstance(value, (torch.dtype, torch.layout, torch.qscheme))
}
LEAVES = {
    type(None), bool, int, float, complex, str, bytes, bytearray, Tensor,
    Parameter, torch.Size, torch.dtype, torch.device, torch.layout,
    torch.qscheme, np.ndarray, HistoryBuffer, FunctionType,
}  # fmt: skip


def _allow(*names: str) -> Callable[[_Kind], _Kind]:
    """Let a file call a function of ours by these names."""

    def register(function: Any) -> Any:
        CALLED.update(dict.fromkeys(names, function))
        return function

    return register


def exact(value: Any, kind: type[_Kind], what: str) -> _Kind:
    """Return ``value`` if it is exactly of type ``kind``."""
    if type(value) is not kind:
        raise Refused(f'{what} that is a {type(value).__name__}')
    return value


def size(value: Any, what: str) -> int:
    """Return ``value`` if it is an integer that can be a size or an index."""
    if not 0 <= exact(value, int, what) < _LARGEST_SIZE:
        raise Refused(f'{what} out of range')
    return value


def sizes(value: Any, what: str) -> tuple[int, ...]:
    """Return ``value`` if it is a tuple of sizes, or a torch.Size."""
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise Refused(f'{what} that is a {type(value).__name__}')
    return tuple(size(number, what) for number in value)


# Built-in types.


def members(values: Any) -> Iterable[Any]:
    """Return ``values`` if they are a list or a tuple."""
    return values if type(values) is list else exact(values, tuple, 'members')


def flatten(content: Any) -> list[Any]:
    """Keys and values of a dict, in turn."""
    return [x for item in exact(content, dict, 'items').items() for x in item]


def _pairs(pairs: Any) -> list[Any]:
    found = list(members(pairs))
    if any(type(p) not in (list, tuple) or len(p) != 2 for p in found):
        raise Refused('an OrderedDict of other than pairs')
    return [part for pair in found for part in pair]


def _counts(counts: Any) -> list[Any]:
    flat = flatten(counts)
    for count in flat[1::2]:
        exact(count, int, 'a count')
    return flat


@_allow('collections.defaultdict')
def _default_dict(factory: Any = None) -> dict[Any, Any]:
    return {}


@_allow('builtins.bytearray')
def _bytearray(data: Any = b'', encoding: Any = 'latin-1') -> bytearray:
    if type(data) is str:
        data = _encode(data, encoding)
    return bytearray(exact(data, bytes, 'a bytearray'))


@_allow('_codecs.encode', 'builtins.bytes')
def _encode(text: Any = '', encoding: Any = 'latin1') -> bytes:
    if encoding not in ('latin1', 'latin-1'):
        raise Refused('_codecs.encode of another encoding')
    return exact(text, str, 'a text').encode('latin1')


@_allow('builtins.complex')
def _complex(*parts: Any) -> complex:
    real, imaginary = (exact(part, float, 'a part') for part in parts)
    return complex(real, imaginary)


# torch


def check_location(location: Any) -> str:
    """Return the name of a device that a storage was saved from."""
    if type(location) is not str or not _DEVICE.match(location):
        raise Refused('a storage of an unknown device')
    return location


@_allow(f'{_BY}tensor', f'{_BY}tensor_v2', f'{_BY}tensor_v3')
def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    dtype: Any = None,
    bits: Any = None,
) -> Tensor:
    memory = exact(storage, Storage, 'a storage')
    if type(dtype) is not torch.dtype:
        # Only the third version has a type of its own.
        dtype, bits = memory.dtype, dtype
    if _ODD_TYPE.match(str(dtype)):
        raise Refused(f'a plain tensor of {dtype}')
    at = size(offset, 'an offset')
    lengths, steps = sizes(shape, 'a shape'), sizes(stride, 'strides')
    if len(lengths) != len(steps):
        raise Refused('a tensor whose strides do not fit its shape')
    last = at + sum((n - 1) * step for n, step in zip(lengths, steps))
    if 0 not in lengths and (last + 1) * dtype.itemsize > memory.nbytes:
        raise Refused('a tensor beyond its storage')
    _check_hooks(hooks)
    flags = exact(bits or {}, dict, 'metadata of a tensor')
    if flags and not (dtype.is_floating_point or dtype.is_complex):
        raise Refused(f'a view of {dtype} as of other numbers')
    if {*flags} - {'conj', 'neg'} or {*map(type, flags.values())} - {bool}:
        raise Refused('unknown metadata of a tensor')
    if memory.data is None:
        return torch.empty_strided(lengths, steps, dtype=dtype, device='meta')
    tensor = torch.empty(0, dtype=dtype, device=memory.data.device)
    tensor.set_(memory.data, at, lengths, steps)  # type: ignore[call-overload]
    torch._utils.set_tensor_metadata(tensor, flags)
    return tensor.requires_grad_(exact(requires_grad, bool, 'requires_grad'))


@_allow(f'{_BY}qtensor')
def _quantized(storage: Any, *args: Any) -> Tensor:
    offset, shape, stride, quantizer, _, hooks = args
    memory = exact(storage, Storage, 'a storage')
    dtype = _PLAIN_TYPES[memory.dtype]
    plain = _tensor(memory, offset, shape, stride, False, hooks, dtype)
    if memory.data is None:
        return plain
    where: Any = dict(dtype=memory.dtype, device=memory.data.device)
    kind, *parts = exact(quantizer, tuple, 'a quantizer')
    if kind is torch.per_tensor_affine and len(parts) == 2:
        scale = exact(parts[0], float, 'a scale')
        zero = exact(parts[1], int, 'a zero point')
        tensor = torch._empty_affine_quantized(
            [0], scale=scale, zero_point=zero, **where
        )
    elif kind is torch.per_channel_affine and len(parts) == 3:
        scales, zeros, axis = parts
        # As long as the scales along their axis, and no larger than needed.
        thin = [n if i == axis else 1 for i, n in enumerate(plain.shape)]
        for part in (scales, zeros):
            length = exact(part, Tensor, 'parameters of a quantizer').shape
            if length != plain.shape[size(axis, 'an axis') :][:1]:
                raise Refused('parameters of a quantizer that do not fit')
        tensor = torch._empty_per_channel_affine_quantized(
            thin, scales=scales, zero_points=zeros, axis=axis, **where
        )
    else:
        raise Refused('an unknown quantizer')
    place = plain.storage_offset(), plain.shape, plain.stride()
    return tensor.set_(memory.data, *place)  # type: ignore[call-overload]


def _check_hooks(hooks: Any) -> None:
    if hooks is not None and (type(hooks) is not OrderedDict or hooks):
        raise Refused('a tensor with hooks')


@_allow(f'{_BY}sparse_tensor')
def _sparse(layout: Any, data: Any) -> Tensor:
    kind = exact(layout, torch.layout, 'a layout')
    is_coo = kind is torch.sparse_coo
    *parts, shape = exact(data, tuple, 'a sparse tensor')[: 4 - is_coo]
    for part in parts:
        exact(part, Tensor, 'a part of a sparse tensor')
    if any(part.is_meta for part in parts):
        return torch.empty(0, dtype=parts[-1].dtype, device='meta')
    # torch looks at the indices, and at the number of parts.
    make: Any = torch.sparse_compressed_tensor
    how: dict[str, Any] = dict(check_invariants=True, layout=kind)
    if is_coo:
        make = torch.sparse_coo_tensor
        flag = exact(data[3], bool, 'a flag') if len(data) == 4 else None
        how = dict(check_invariants=True, is_coalesced=flag)
    return make(*parts, sizes(shape, 'a shape'), **how)


@_allow(f'{_BY}parameter', f'{_BY}parameter_with_state', _PARAMETER)
def _parameter(
    data: Any, requires_grad: Any = True, hooks: Any = None, state: Any = None
) -> Parameter:
    # Attributes of a parameter (`state`) are no weights.
    _check_hooks(hooks)
    tensor = exact(data, Tensor, 'the data of a parameter')
    return Parameter(tensor, exact(requires_grad, bool, 'requires_grad'))


@_allow('torch._tensor._rebuild_from_type_v2')
def _typed(function: Any, kind: Any, args: Any, state: Any) -> Any:
    # The attributes stay in the file.
    name = exact(function, Name, 'a function')
    if not name.startswith(_BY) or kind not in ('torch.Tensor', _PARAMETER):
        raise Refused(f'a tensor made by {name}')
    return CALLED[name](*exact(args, tuple, 'arguments'))


@_allow('torch.Size')
def _size(shape: Any) -> torch.Size:
    return torch.Size(sizes(shape, 'a shape'))


@_allow('torch.device')
def _device(kind: Any, *index: Any) -> torch.device:
    name = exact(kind, str, 'a device')
    numbers = [str(size(one, 'an index')) for one in index]
    return torch.device(check_location(':'.join([name, *numbers])))


@_allow('torch.serialization._get_layout')
def _layout(name: Any) -> torch.layout:
    found = CONSTANTS.get(exact(name, str, 'a layout'))
    return exact(found, torch.layout, 'a layout')


# numpy


@_allow('numpy.dtype')
def _dtype(code: Any, align: Any = False, copy: Any = True) -> DType:
    if code not in _NUMBERS:
        raise Refused('numpy.dtype of other than numbers')
    return DType([code, '='])


def _fill_dtype(dtype: DType, state: Any) -> None:
    _, order, *fields = exact(state, tuple, 'a state of numpy.dtype')
    if order not in ('<', '>', '=', '|') or fields[:3] != [None] * 3:
        raise Refused('numpy.dtype of other than numbers')
    dtype[1] = order


@_allow('numpy._core.multiarray.scalar')
def _scalar(dtype: Any, data: Any) -> Any:
    return _read_numbers(dtype, (), data)[0]


@_allow('numpy._core.multiarray._reconstruct')
def _reconstruct(kind: Any, shape: Any, code: Any) -> Array:
    if exact(kind, Name, 'a type') != 'numpy.ndarray':
        raise Refused('an array of another class')
    return np.empty(0, np.int8)


@_allow('numpy._core.numeric._frombuffer')
def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> Array:
    # How protocol 5 writes an array.
    lengths = sizes(shape, 'a shape')
    content = bytes(exact(data, bytearray, 'numbers'))
    numbers = _read_numbers(dtype, lengths, content)
    return numbers.reshape(lengths, order='F' if order == 'F' else 'C')


def _fill_array(array: Array, state: Any) -> None:
    _, shape, dtype, is_fortran, data = exact(state, tuple, 'an array')
    lengths = sizes(shape, 'a shape')
    numbers = _read_numbers(dtype, lengths, data)
    # numpy's own way to fill an array in place, with values that are known
    # to be of the right type and length.
    filled: Any = 1, lengths, numbers.dtype, is_fortran in (1, True)
    array.__setstate__((*filled, numbers.tobytes()))


def _read_numbers(dtype: Any, shape: tuple[int, ...], data: Any) -> Array:
    """Flat numbers in this machine's byte order."""
    code, order = exact(dtype, DType, 'a dtype')
    saved = np.dtype(order + code)
    if type(data) is str:
        # Python 2 wrote bytes as a text.
        data = data.encode('latin1', 'replace')
    if len(exact(data, bytes, 'numbers')) != math.prod(shape) * saved.itemsize:
        raise Refused('numbers of another length')
    if code == 'b1' and data.strip(b'\x00\x01'):
        raise Refused('truth values other than 0 and 1')
    return np.frombuffer(data, saved).astype(np.dtype(code))


# mmengine and mmcv

_HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
_ONE_CYCLE = 'mmengine.optim.scheduler.param_scheduler.OneCycleParamScheduler'
# A history has its statistics anyway: their names may stand in its state.
_STATISTICS = [f'{_HISTORY}.{n}' for n in ('min', 'max', 'current', 'mean')]
_STATE = {'max_length', '_log_history', '_count_history'}
CONSTANTS.update({name: Name(name) for name in _STATISTICS})
for _name in ('_annealing_cos', '_annealing_linear'):
    CONSTANTS[f'{_ONE_CYCLE}.{_name}'] = getattr(OneCycleParamScheduler, _name)


@_allow('builtins.getattr')
def _getattr(owner: Any, name: Any) -> Any:
    text = f'{exact(owner, Name, "an owner")}.{exact(name, str, "a name")}'
    if owner not in (_HISTORY, _ONE_CYCLE) or text not in CONSTANTS:
        raise Refused(f'builtins.getattr of {owner}, {name}')
    return CONSTANTS[text]


@_allow(_HISTORY)
def _history() -> HistoryBuffer:
    return HistoryBuffer.__new__(HistoryBuffer)


def _fill_history(history: HistoryBuffer, state: Any) -> None:
    content = dict(exact(state, dict, 'a history'))
    methods = exact(content.pop('statistics_methods', {}), dict, 'statistics')
    for method in methods.values():
        # Those of others, by `HistoryBuffer.register_statistics`, stay out.
        if type(method) is not Unknown and method not in _STATISTICS:
            raise Refused('a statistic that is no function')
    if content.keys() != _STATE:
        raise Refused('a history with an unknown state')
    values, counts = content['_log_history'], content['_count_history']
    longest = exact(content['max_length'], int, 'max_length')
    for series in (values, counts):
        if exact(series, np.ndarray, 'a history').ndim != 1:
            raise Refused('a history of other than numbers')
    if longest < 1 or len(values) != len(counts):
        raise Refused('a history whose parts do not fit')
    made = HistoryBuffer(values[-longest:], counts[-longest:], longest)
    vars(history).update(vars(made))


def _fill_ordered_dict(target: OrderedDict[Any, Any], state: Any) -> None:
    # Versions of modules, for `load_state_dict`. Other attributes are not
    # needed, and could hide the dict's methods.
    metadata = exact(state, dict, 'attributes').get('_metadata')
    if isinstance(metadata, dict):
        target._metadata = metadata  # type: ignore[attr-defined]


_PLAIN_TYPES = {
    torch.qint8: torch.int8, torch.quint8: torch.uint8,
    torch.qint32: torch.int32,
}  # fmt: skip
_NUMBERS = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4',
            'f8', 'c8', 'c16')  # fmt: skip
_STORAGES = {
    **torch.storage._storage_type_to_dtype_map(),
    'UntypedStorage': torch.uint8,
}
STORAGES: dict[str, torch.dtype] = {
    f'{module}.{name}': dtype
    for name, dtype in _STORAGES.items()
    for module in ('torch', 'torch.cuda', 'torch.storage')
    # Elements of less than a byte.
    if not name.startswith(('QUInt4', 'QUInt2'))
}
# Containers, and how an argument becomes keys and values in turn, or members.
# The unpickler fills them, because it checks keys.
CONTAINERS: dict[str, tuple[type, Callable[[Any], Any]]] = {
    'builtins.set': (set, members),
    'builtins.frozenset': (frozenset, members),
    'collections.OrderedDict': (OrderedDict, _pairs),
    'collections.Counter': (Counter, _counts),
    'mmengine.config.config.ConfigDict': (ConfigDict, flatten),
    'mmcv.utils.config.ConfigDict': (ConfigDict, flatten),
    'addict.addict.Dict': (ConfigDict, flatten),
}
# Never called: arguments of others.
MENTIONED = {
    *STORAGES, 'torch.Tensor', _PARAMETER, 'numpy.ndarray', _ONE_CYCLE,
    'builtins.list', 'builtins.dict', 'builtins.int', 'builtins.float',
}  # fmt: skip
# Objects that BUILD completes, in place.
FILLED: dict[type, Callable[[Any, Any], None]] = {
    OrderedDict: _fill_ordered_dict,
    DType: _fill_dtype,
    np.ndarray: _fill_array,
    HistoryBuffer: _fill_history,
}
# Calls whose result is nothing until BUILD has completed it, once.
UNFINISHED = (_reconstruct, _history)
# numpy 1.x writes its modules without the underscore.
CALLED.update({k.replace('._core.', '.core.'): v for k, v in CALLED.items()})
