"""The memory of tensors: described in the pickle, kept beside it."""

from __future__ import annotations

from typing import Any

import torch

from mmstable.checkpoint.guarded.checks import exact, size
from mmstable.checkpoint.guarded.errors import Refused
from mmstable.checkpoint.guarded.nodes import Name, StorageNode
from mmstable.checkpoint.guarded.torch_names import STORAGES, check_location


def describe_storage(persistent_id: Any, length: int) -> StorageNode:
    """What the persistent id of a storage says.

    Args:
        persistent_id (Any): The id: a tuple of 'storage', type, key, device
            and number of elements; the old format has None behind these.
        length (int): Of the tuple.

    Raises:
        Refused: If it is something else.
    """
    parts = exact(persistent_id, tuple, 'a persistent id')
    is_storage = len(parts) == length and parts[0] == 'storage'
    if not is_storage or any(part is not None for part in parts[5:]):
        raise Refused('an object from outside of the file')
    dtype = STORAGES.get(exact(parts[1], Name, 'a type of storage').text)
    if dtype is None:
        raise Refused('a storage of an unknown type')
    count = size(parts[4], 'the length of a storage')
    return StorageNode(
        dtype,
        exact(parts[2], str, 'the key of a storage'),
        check_location(parts[3]),
        count * dtype.itemsize,
    )


def remember_storage(
    described: StorageNode, known: dict[str, StorageNode]
) -> StorageNode:
    """The one node for a storage, however often it is described."""
    node = known.setdefault(described.key, described)
    if node.dtype != described.dtype or node.nbytes != described.nbytes:
        raise Refused('a storage with two descriptions')
    return node


def allocate(node: StorageNode) -> memoryview:
    """Give a storage its memory, which is still to be filled."""
    memory = torch.empty(node.nbytes, dtype=torch.uint8)
    node.data = memory.untyped_storage()
    return memory.numpy().data if node.nbytes else memoryview(b'')
