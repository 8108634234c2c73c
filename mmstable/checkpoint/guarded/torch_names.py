"""Tensors of every plain kind that torch writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from mmstable.checkpoint.guarded.checks import exact, size, sizes
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import (
    Name,
    OrderedNode,
    ParameterNode,
    SparseNode,
    StorageNode,
    TensorNode,
)

_DEVICE = re.compile(r'[a-z][a-z0-9_]{0,31}(:[0-9]{1,4})?\Z')
_TYPES = ('torch.Tensor', 'torch.nn.parameter.Parameter')
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)
_STORAGES = {
    'DoubleStorage': torch.float64,
    'FloatStorage': torch.float32,
    'HalfStorage': torch.float16,
    'BFloat16Storage': torch.bfloat16,
    'LongStorage': torch.int64,
    'IntStorage': torch.int32,
    'ShortStorage': torch.int16,
    'CharStorage': torch.int8,
    'ByteStorage': torch.uint8,
    'BoolStorage': torch.bool,
    'ComplexFloatStorage': torch.complex64,
    'ComplexDoubleStorage': torch.complex128,
    'QInt8Storage': torch.qint8,
    'QUInt8Storage': torch.quint8,
    'QInt32Storage': torch.qint32,
    'UntypedStorage': torch.uint8,
}
STORAGES = {
    f'{module}.{name}': dtype
    for name, dtype in _STORAGES.items()
    for module in ('torch', 'torch.cuda', 'torch.storage')
}


def check_location(location: Any) -> str:
    """The name of a device that a storage was saved from."""
    if type(location) is not str or not _DEVICE.match(location):
        raise Refused('a storage of an unknown device')
    return location


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any = False,
    hooks: Any = None,
    bits: Any = None,
) -> TensorNode:
    node = exact(storage, StorageNode, 'a storage')
    return _dense(
        node, node.dtype, offset, shape, stride, requires_grad, hooks, bits
    )


def _tensor_of_type(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    dtype: Any,
    bits: Any = None,
) -> TensorNode:
    node = exact(storage, StorageNode, 'a storage')
    kind = exact(dtype, torch.dtype, 'a dtype')
    return _dense(
        node, kind, offset, shape, stride, requires_grad, hooks, bits
    )


def _quantized(
    storage: Any,
    offset: Any,
    shape: Any,
    stride: Any,
    quantizer: Any,
    requires_grad: Any,
    hooks: Any,
) -> TensorNode:
    node = _tensor(storage, offset, shape, stride, requires_grad, hooks)
    if node.dtype not in _QUANTIZED:
        raise Refused('a quantized tensor of another type')
    node.quantizer = _check_quantizer(quantizer, node.size)
    return node


def _check_quantizer(
    quantizer: Any, shape: tuple[int, ...]
) -> tuple[Any, ...]:
    parts = exact(quantizer, tuple, 'a quantizer')
    if len(parts) == 3 and parts[0] is torch.per_tensor_affine:
        exact(parts[1], float, 'a scale')
        exact(parts[2], int, 'a zero point')
        return parts
    if len(parts) != 4 or parts[0] is not torch.per_channel_affine:
        raise Refused('an unknown quantizer')
    axis = size(parts[3], 'an axis')
    for part in parts[1:3]:
        node = exact(part, TensorNode, 'parameters of a quantizer')
        if axis >= len(shape) or node.size != (shape[axis],):
            raise Refused('parameters of a quantizer that do not fit')
    return parts


def _dense(
    storage: StorageNode,
    dtype: torch.dtype,
    offset: Any,
    shape: Any,
    stride: Any,
    requires_grad: Any,
    hooks: Any,
    bits: Any,
) -> TensorNode:
    _check_hooks(hooks)
    node = TensorNode(
        storage,
        dtype,
        size(offset, 'an offset'),
        sizes(shape, 'a shape'),
        sizes(stride, 'strides'),
        exact(requires_grad, bool, 'requires_grad'),
        _check_bits(bits),
    )
    if len(node.size) != len(node.stride):
        raise Refused('a tensor whose strides do not fit its shape')
    if 0 not in node.size:
        last = node.offset + sum(
            (length - 1) * step for length, step in zip(node.size, node.stride)
        )
        if (last + 1) * dtype.itemsize > storage.nbytes:
            raise Refused('a tensor beyond its storage')
    return node


def _check_hooks(hooks: Any) -> None:
    if hooks is not None and (type(hooks) is not OrderedNode or hooks):
        raise Refused('a tensor with hooks')


def _check_bits(bits: Any) -> dict[str, bool]:
    if bits is None:
        return {}
    for key, value in exact(bits, dict, 'metadata of a tensor').items():
        if key not in ('conj', 'neg') or type(value) is not bool:
            raise Refused('unknown metadata of a tensor')
    return dict(bits)


def _sparse(layout: Any, data: Any) -> SparseNode:
    kind = exact(layout, torch.layout, 'a layout')
    parts = exact(data, tuple, 'a sparse tensor')
    is_coalesced = None
    if kind is torch.sparse_coo:
        if len(parts) == 4:
            is_coalesced = parts[3]
            if is_coalesced not in (None, True, False):
                raise Refused('a sparse tensor with an unknown flag')
            parts = parts[:3]
        expected = 3
    else:
        expected = 4
    if kind is torch.strided or len(parts) != expected:
        raise Refused('an unknown sparse tensor')
    for part in parts[:-1]:
        exact(part, TensorNode, 'a part of a sparse tensor')
    shape = sizes(parts[-1], 'a shape')
    return SparseNode(kind, parts[:-1], shape, is_coalesced)


def _parameter(
    data: Any, requires_grad: Any = True, hooks: Any = None, state: Any = None
) -> ParameterNode:
    # Attributes of a parameter (`state`) are no weights.
    _check_hooks(hooks)
    if type(data) is not SparseNode:
        exact(data, TensorNode, 'the data of a parameter')
    return ParameterNode(data, exact(requires_grad, bool, 'requires_grad'))


def _tensor_with_attributes(
    function: Any, kind: Any, args: Any, state: Any
) -> Any:
    """A tensor that had attributes; those are left in the file."""
    name = exact(function, Name, 'a function').text
    if name not in _TENSORS or exact(kind, Name, 'a type').text not in _TYPES:
        raise Refused(f'a tensor made by {name}')
    return _TENSORS[name](*exact(args, tuple, 'arguments'))


def _size(shape: Any) -> torch.Size:
    return torch.Size(sizes(shape, 'a shape'))


def _device(kind: Any, index: Any = None) -> torch.device:
    name = check_location(kind)
    if index is not None:
        name = check_location(f'{name}:{size(index, "an index")}')
    try:
        return torch.device(name)
    except RuntimeError:
        raise Refused('an unknown device') from None


def _layout(name: Any) -> Any:
    found = CONSTANTS.get(exact(name, str, 'a layout'))
    return exact(found, torch.layout, 'a layout')


CONSTANTS: dict[str, Any] = {
    f'torch.{name}': value
    for name, value in vars(torch).items()
    if isinstance(value, (torch.dtype, torch.layout, torch.qscheme))
}
_TENSORS: dict[str, Callable[..., Any]] = {
    'torch._utils._rebuild_tensor': _tensor,
    'torch._utils._rebuild_tensor_v2': _tensor,
    'torch._utils._rebuild_tensor_v3': _tensor_of_type,
    'torch._utils._rebuild_qtensor': _quantized,
    'torch._utils._rebuild_sparse_tensor': _sparse,
    'torch._utils._rebuild_parameter': _parameter,
    'torch._utils._rebuild_parameter_with_state': _parameter,
}
CALLED: dict[str, Callable[..., Any]] = {
    **_TENSORS,
    'torch._tensor._rebuild_from_type_v2': _tensor_with_attributes,
    'torch.Size': _size,
    'torch.device': _device,
    'torch.serialization._get_layout': _layout,
}
NEW: dict[str, Callable[..., Any]] = {
    'torch.nn.parameter.Parameter': _parameter
}
MENTIONED = (*_TYPES, *STORAGES)
FILLED: dict[type, Callable[[Any, Any], None]] = {}
