"""Make real objects of what was read, within limits."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from mmengine.config import ConfigDict

from mmstable.checkpoint.guarded.errors import Malformed, Refused
from mmstable.checkpoint.guarded.mmengine_names import (
    build_function,
    build_history,
)
from mmstable.checkpoint.guarded.nodes import (
    ArrayNode,
    ConfigNode,
    CounterNode,
    FunctionNode,
    HistoryNode,
    OrderedNode,
    ParameterNode,
    SparseNode,
    TensorNode,
)
from mmstable.checkpoint.guarded.numpy_names import build_array
from mmstable.checkpoint.guarded.tensors import build_sparse, build_tensor

_DEEPEST = 100
# Elements of all containers, counted wherever they are referred to.
_MOST_ELEMENTS_PER_OPERATION = 8
# Bytes of all tensors, which may share storages.
_MOST_BYTES_PER_BYTE, _MOST_BYTES = 4, 64 << 20
_LEAVES = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.qscheme,
)


class Builder:
    """Makes one tree of real objects.

    Args:
        operations (int): What it took to read the tree. A file cannot ask
            for much more than that.
        file_size (int): The same for the bytes of all tensors.
        with_values (bool): Whether tensors get their content; otherwise they
            have none, on the device 'meta'.
    """

    def __init__(
        self, operations: int, file_size: int, with_values: bool
    ) -> None:
        self._elements_left = 1000 + _MOST_ELEMENTS_PER_OPERATION * operations
        self._bytes_left = _MOST_BYTES + _MOST_BYTES_PER_BYTE * file_size
        self._with_values = with_values
        # What was made of a node or a container, how many elements it has,
        # and the original, which keeps its id.
        self._made: dict[int, tuple[Any, int, Any]] = {}
        self._open: set[int] = set()
        self._depth = 0

    def build(self, value: Any) -> Any:
        """The real object for a value or a node.

        Raises:
            Malformed: If the tree has cycles, is too deep or too large.
            Refused: If a part of it is not what it has to be.
        """
        if type(value) in _LEAVES or isinstance(value, np.generic):
            self._count(1)
            return value
        known = self._made.get(id(value))
        if known is not None:
            self._count(known[1])
            return known[0]
        make = _MAKERS.get(type(value))
        if make is None:
            raise Refused(f'a {type(value).__name__} as a value')
        before = self._elements_left
        self._count(1)
        self._enter(value)
        made = make(self, value)
        self._leave(value)
        elements = before - self._elements_left
        self._made[id(value)] = made, elements, value
        return made

    def _count(self, elements: int) -> None:
        self._elements_left -= elements
        if self._elements_left < 0:
            raise Malformed('more content than the file can hold')

    def _enter(self, value: Any) -> None:
        if id(value) in self._open:
            raise Malformed('an object that contains itself')
        if self._depth >= _DEEPEST:
            raise Malformed(f'more than {_DEEPEST} levels')
        self._open.add(id(value))
        self._depth += 1

    def _leave(self, value: Any) -> None:
        self._open.discard(id(value))
        self._depth -= 1

    def _items(self, value: dict[Any, Any]) -> dict[Any, Any]:
        return {key: self.build(item) for key, item in value.items()}

    def _ordered(self, value: OrderedNode) -> OrderedDict[Any, Any]:
        made = OrderedDict(self._items(value))
        metadata = self.build(value.metadata)
        if isinstance(metadata, dict):
            # Versions of modules, for `load_state_dict`.
            made._metadata = metadata  # type: ignore[attr-defined]
        return made

    def _counter(self, value: CounterNode) -> Counter[Any]:
        made: Counter[Any] = Counter()
        dict.update(made, value)
        return made

    def _config(self, value: ConfigNode) -> ConfigDict:
        if not all(type(key) is str for key in value):
            raise Refused('a config with keys that are no text')
        return ConfigDict(self._items(value))

    def _tensor(self, value: TensorNode) -> torch.Tensor:
        self._claim(value.size, value.dtype)
        quantizer = tuple(map(self.build, value.quantizer))
        return build_tensor(value, quantizer, self._with_values)

    def _sparse(self, value: SparseNode) -> torch.Tensor:
        parts = [self.build(part) for part in value.parts]
        return build_sparse(value, parts, self._with_values)

    def _parameter(self, value: ParameterNode) -> torch.nn.Parameter:
        data = self.build(value.data)
        try:
            return torch.nn.Parameter(data, value.requires_grad)
        except RuntimeError as error:
            raise Refused('a parameter of integers with gradients') from error

    def _claim(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        count = 1
        for length in shape:
            count *= length
        self._bytes_left -= count * dtype.itemsize
        if self._bytes_left < 0:
            raise Malformed('tensors far larger than the file')

    def _history(self, value: HistoryNode) -> Any:
        return build_history(value, self.build)


_MAKERS: dict[type, Callable[[Builder, Any], Any]] = {
    dict: Builder._items,
    OrderedNode: Builder._ordered,
    CounterNode: Builder._counter,
    ConfigNode: Builder._config,
    list: lambda self, value: [self.build(item) for item in value],
    tuple: lambda self, value: tuple([self.build(item) for item in value]),
    # Their members are scalars, or tuples of them.
    set: lambda self, value: set(value),
    frozenset: lambda self, value: value,
    TensorNode: Builder._tensor,
    SparseNode: Builder._sparse,
    ParameterNode: Builder._parameter,
    ArrayNode: lambda self, value: build_array(value),
    HistoryNode: Builder._history,
    FunctionNode: lambda self, value: build_function(value),
}
