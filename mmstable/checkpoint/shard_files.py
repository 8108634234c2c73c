"""Weights and optimizer of a sharded model, by torch.distributed.checkpoint.

Imported only by runs that need it: torch has all of it from 2.4 on.
"""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    get_rank,
    get_world_size,
)
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from mmstable.checkpoint.atomic_file import sync_folder
from mmstable.checkpoint.loading import BadCheckpoint
from mmstable.checkpoint.shards import MARK, check_shards, digest
from mmstable.errors import CheckpointError

_INDEX = '.metadata'
# What the index of such a folder is made of, and nothing that acts.
_PLAIN = {
    'torch.distributed.checkpoint.metadata': {
        'BytesStorageMetadata',
        'ChunkStorageMetadata',
        'Metadata',
        'MetadataIndex',
        'StorageMeta',
        'TensorProperties',
        'TensorStorageMetadata',
        '_MEM_FORMAT_ENCODING',
    },
    'torch.distributed.checkpoint.filesystem': {'_StorageInfo'},
    'torch.serialization': {'_get_layout'},
    'torch': {
        'Size',
        'bfloat16',
        'bool',
        'float16',
        'float32',
        'float64',
        'int16',
        'int32',
        'int64',
        'int8',
        'strided',
        'uint8',
    },
    'collections': {'OrderedDict'},
    'pathlib': {'Path', 'PosixPath', 'WindowsPath'},
    'pathlib._local': {'Path', 'PosixPath', 'WindowsPath'},
}


def new_folder(checkpoint: Path) -> Path:
    """A folder for a checkpoint, of a name that was never used; collective."""
    token = [secrets.token_hex(4)]
    broadcast_object_list(token)
    return checkpoint.with_name(f'{checkpoint.name}{MARK}{token[0]}')


def write_shards(
    tensors: dict[str, Any], folder: Path
) -> tuple[dict[str, Any], Exception | None]:
    """Write all parts, and give what the checkpoint has to say of them.

    A collective call. All files are on disk when it returns.

    Args:
        tensors (dict): This rank's part, by name, in dicts of dicts.
        folder (Path): Where; it does not exist yet.

    Returns:
        tuple: The record, and what went wrong on any rank, if something did.
    """
    try:
        writer = FileSystemWriter(str(folder), sync_files=True)
        dcp.save(tensors, storage_writer=writer)
    except dcp.api.CheckpointException as error:
        # torch raises it on all ranks.
        first = next(iter(error.failures.values()), (error,))[0]
        return {}, OSError(f'{type(first).__name__}: {first}')
    # All ranks are done here: the index is written when they are.
    names = sorted(path.name for path in folder.iterdir())
    mine = names[get_rank() :: get_world_size()]
    own = {name: digest(folder / name) for name in mine}
    files: dict[str, Any] = {}
    for part in all_gather_object(own):
        files.update(part)
    sync_folder(folder)
    return {'folder': folder.name, 'files': files}, None


def read_shards(
    tensors: dict[str, Any],
    checkpoint: Path,
    record: Mapping[str, Any],
    verify: bool = True,
) -> None:
    """Fill this rank's part of all tensors, with any number of ranks.

    A collective call.

    Args:
        tensors (dict): What to fill, named as it was when it was written.
        checkpoint (Path): The checkpoint.
        record (Mapping): What :func:`write_shards` gave.
        verify (bool): Whether to look at the digests. Defaults to True.

    Raises:
        BadCheckpoint: On all ranks, if a file is not as it was saved.
    """
    if verify:
        _check_together(checkpoint, record)
    folder = checkpoint.with_name(record['folder'])
    dcp.load(tensors, storage_reader=_Reader(str(folder)))


def _check_together(checkpoint: Path, record: Mapping[str, Any]) -> None:
    share = slice(get_rank(), None, get_world_size())
    failure = None
    try:
        check_shards(checkpoint, record, share)
    except BadCheckpoint as error:
        failure = error.reason
    for one in all_gather_object(failure):
        if one is not None:
            raise BadCheckpoint(checkpoint, one)


class _Unpickler(pickle.Unpickler):
    """Builds what an index is made of, and refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(
            f'The index of the shards asks for {module}.{name}, which is '
            'refused.'
        )


class _Reader(FileSystemReader):
    """Looks through the index before torch does."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """The index."""
        with open(os.path.join(self.path, _INDEX), 'rb') as stream:
            _Unpickler(stream).load()
        return super().read_metadata(*args, **kwargs)
