"""What stands for an object while a file is read: inert records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Name:
    """A function or a class that the file has named.

    Args:
        text (str): Module and name, joined by a dot.
    """

    text: str


@dataclass(eq=False)
class StorageNode:
    """The memory of one or several tensors.

    Args:
        dtype (torch.dtype): Of its elements.
        key (str): Its name in the file.
        location (str): The device that it was saved from.
        nbytes (int): Its size.
        data (torch.UntypedStorage, optional): Its content, once it is read.
            Defaults to None.
    """

    dtype: torch.dtype
    key: str
    location: str
    nbytes: int
    data: torch.UntypedStorage | None = None


@dataclass(eq=False)
class TensorNode:
    """A dense tensor.

    Args:
        storage (StorageNode): Its memory.
        dtype (torch.dtype): Of its elements.
        offset (int): Its first element in the storage.
        size (tuple[int]): Its shape.
        stride (tuple[int]): Its strides.
        requires_grad (bool): As in torch.
        bits (dict): Whether it is a conjugate or negative view.
        quantizer (tuple): Parameters of a quantized tensor; () for others.
            Defaults to ().
    """

    storage: StorageNode
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    bits: dict[str, bool]
    quantizer: tuple[Any, ...] = ()


@dataclass(eq=False)
class SparseNode:
    """A sparse tensor.

    Args:
        layout (torch.layout): Its layout.
        parts (tuple): Indices and values.
        size (tuple[int]): Its shape.
        is_coalesced (bool, optional): As in torch.
    """

    layout: torch.layout
    parts: tuple[Any, ...]
    size: tuple[int, ...]
    is_coalesced: bool | None


@dataclass(eq=False)
class ParameterNode:
    """A tensor that is a parameter."""

    data: TensorNode | SparseNode
    requires_grad: bool


@dataclass(eq=False)
class DtypeNode:
    """A number type of numpy; ``BUILD`` tells its byte order."""

    code: str
    order: str = '='


@dataclass(eq=False)
class ArrayNode:
    """An array of numpy; ``BUILD`` gives its content."""

    content: tuple[Any, ...] | None = None


@dataclass(eq=False)
class HistoryNode:
    """A ``HistoryBuffer`` of mmengine; ``BUILD`` gives its content."""

    state: dict[Any, Any] | None = None


@dataclass(frozen=True)
class FunctionNode:
    """A function of mmengine that genuine checkpoints refer to.

    Args:
        owner (str): The full name of its class.
        name (str): Its name.
    """

    owner: str
    name: str


class OrderedNode(dict):
    """An ``OrderedDict``; ``BUILD`` gives its ``_metadata``."""

    __slots__ = ('metadata',)

    def __init__(self) -> None:
        super().__init__()
        self.metadata: Any = None


class CounterNode(dict):
    """A ``Counter``."""

    __slots__ = ()


class ConfigNode(dict):
    """A ``ConfigDict`` of mmengine, or its like of mmcv."""

    __slots__ = ()


@dataclass
class Tally:
    """What reading a pickle took, to judge the result by.

    Args:
        operations (int): Opcodes that were executed. Defaults to 0.
        storages (dict): All storages, by key. Defaults to {}.
    """

    operations: int = 0
    storages: dict[str, StorageNode] = field(default_factory=dict)
