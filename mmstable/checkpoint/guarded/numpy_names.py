"""Arrays and numbers of numpy, rebuilt from their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mmstable.checkpoint.guarded.checks import exact, sizes
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import ArrayNode, DtypeNode, Name

_CODES = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4',
          'f8', 'c8', 'c16')  # fmt: skip
_ARRAY = 'numpy.ndarray'


def _dtype(code: Any, align: Any = False, copy: Any = True) -> DtypeNode:
    if code not in _CODES:
        raise Refused('numpy.dtype of other than numbers')
    return DtypeNode(code)


def _fill_dtype(node: DtypeNode, state: Any) -> None:
    parts = exact(state, tuple, 'a state of numpy.dtype')
    order = parts[1] if len(parts) > 1 else None
    if order not in ('<', '>', '=', '|') or any(
        part is not None for part in parts[2:5]
    ):
        raise Refused('numpy.dtype of other than numbers')
    node.order = order


def _scalar(dtype: Any, data: Any) -> Any:
    return _read_numbers(dtype, (), data)[()]


def _reconstruct(kind: Any, shape: Any, code: Any) -> ArrayNode:
    if exact(kind, Name, 'a type').text != _ARRAY:
        raise Refused('an array of another class')
    return ArrayNode()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> ArrayNode:
    # How protocol 5 writes an array.
    content = bytes(exact(data, bytearray, 'numbers'))
    return ArrayNode((1, shape, dtype, order == 'F', content))


def _fill_array(node: ArrayNode, state: Any) -> None:
    if node.content is not None or len(exact(state, tuple, 'an array')) != 5:
        raise Refused('an array with an unknown state')
    node.content = state


def build_array(node: ArrayNode) -> np.ndarray[Any, Any]:
    """The real array."""
    if node.content is None:
        raise Refused('an array without content')
    _, shape, dtype, is_fortran, data = node.content
    flat = _read_numbers(dtype, sizes(shape, 'a shape'), data)
    lengths = sizes(shape, 'a shape')
    if is_fortran in (1, True):
        return flat.reshape(lengths, order='F')
    return flat.reshape(lengths)


def _read_numbers(
    dtype: Any, shape: tuple[int, ...], data: Any
) -> np.ndarray[Any, Any]:
    node = exact(dtype, DtypeNode, 'a dtype')
    saved = np.dtype(node.order + node.code)
    if type(data) is str:
        # Python 2 wrote bytes as a text.
        data = data.encode('latin1', 'replace')
    if len(exact(data, bytes, 'numbers')) != math.prod(shape) * saved.itemsize:
        raise Refused('numbers of another length')
    if node.code == 'b1' and data.strip(b'\x00\x01'):
        raise Refused('truth values other than 0 and 1')
    # A copy in this machine's byte order, which can be written to.
    numbers = np.frombuffer(data, saved).astype(np.dtype(node.code))
    return numbers if shape else numbers.reshape(())


CALLED: dict[str, Callable[..., Any]] = {
    'numpy.dtype': _dtype,
    # numpy 1.x writes the name without the underscore.
    'numpy.core.multiarray.scalar': _scalar,
    'numpy._core.multiarray.scalar': _scalar,
    'numpy.core.multiarray._reconstruct': _reconstruct,
    'numpy._core.multiarray._reconstruct': _reconstruct,
    'numpy.core.numeric._frombuffer': _from_buffer,
    'numpy._core.numeric._frombuffer': _from_buffer,
}
NEW: dict[str, Callable[..., Any]] = {}
MENTIONED = (_ARRAY,)
FILLED: dict[type, Callable[[Any, Any], None]] = {
    DtypeNode: _fill_dtype,
    ArrayNode: _fill_array,
}
