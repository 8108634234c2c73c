"""Weights and optimizer of a sharded model, by torch.distributed.checkpoint.

Imported only by runs that need it: torch has all of it from 2.4 on.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    get_rank,
    get_world_size,
)
from torch import Size, Tensor
from torch.distributed.checkpoint import FileSystemWriter, StorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from mmstable.checkpoint.loading import BadCheckpoint, read_content
from mmstable.checkpoint.shards import (
    MARK,
    SCALARS,
    Chunk,
    ShardRecord,
    Whole,
    check_shards,
    digest,
)
from mmstable.io.files import OpenFile, read_at, sync_folder


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
    leaves = {name: parent[key] for name, parent, key in _leaves(tensors)}
    parts = {k: one for k, one in leaves.items() if isinstance(one, Tensor)}
    values = {k: one for k, one in leaves.items() if k not in parts}
    try:
        writer = FileSystemWriter(str(folder), sync_files=True)
        metadata = dcp.save(parts, storage_writer=writer)
    except dcp.api.CheckpointException as error:
        return {}, OSError(_first_failure(error))
    # All ranks are done here: the index is written when they are.
    names = sorted(path.name for path in folder.iterdir())
    mine = names[get_rank() :: get_world_size()]
    own = {name: digest(folder / name) for name in mine}
    files: dict[str, Any] = {}
    for part in all_gather_object(own):
        files.update(part)
    sync_folder(folder)
    for name, value in values.items():
        if type(value) not in SCALARS:
            what = f'shards hold no {type(value).__name__}, but {name} is one'
            return {}, TypeError(what)
    tensors = {name: _describe(metadata, name) for name in parts}
    return ShardRecord(folder.name, files, tensors, values).as_dict(), None


def read_shards(
    tensors: dict[str, Any],
    checkpoint: Path,
    saved: Any,
    verify: bool = True,
) -> None:
    """Fill this rank's part of all tensors, with any number of ranks.

    A collective call.

    Args:
        tensors (dict): What to fill, named as it was when it was written.
        checkpoint (Path): The checkpoint.
        saved (Any): The record that it has of its shards.
        verify (bool): Whether to compare the digests. Defaults to True.

    Raises:
        BadCheckpoint: On all ranks, if a file is not as it was saved, or
            does not have what is to be filled.
    """
    if verify:
        _check_together(checkpoint, saved)
    record = ShardRecord.read(checkpoint, saved)
    parts: dict[str, Tensor] = {}
    for name, parent, key in _leaves(tensors):
        if isinstance(parent[key], Tensor):
            parts[name] = parent[key]
        elif name not in record.values:
            raise BadCheckpoint(checkpoint, f'incomplete: {name} is missing')
        else:
            parent[key] = record.values[name]
    reader = _Reader(checkpoint.with_name(record.folder), record)
    try:
        dcp.load(parts, storage_reader=reader)
    except dcp.api.CheckpointException as error:
        reason = f'corrupt: {_first_failure(error)}'
        raise BadCheckpoint(checkpoint, reason) from error


def _leaves(
    tree: dict[str, Any], prefix: str = ''
) -> Iterator[tuple[str, dict[str, Any], str]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f'{prefix}{key}/')
        else:
            yield f'{prefix}{key}', tree, key


def _first_failure(error: Any) -> str:
    # torch raises the same on all ranks.
    first = next(iter(error.failures.values()), (error,))[0]
    return f'{type(first).__name__}: {first}'


def _describe(metadata: Metadata, name: str) -> Whole:
    whole: Any = metadata.state_dict_metadata[name]
    chunks = []
    for chunk in whole.chunks:
        at = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
        place = at.relative_path, at.offset, at.length
        chunks.append(Chunk(tuple(chunk.offsets), tuple(chunk.sizes), *place))
    return Whole(whole.properties.dtype, tuple(whole.size), tuple(chunks))


def _check_together(checkpoint: Path, saved: Mapping[str, Any]) -> None:
    share = slice(get_rank(), None, get_world_size())
    failure = None
    try:
        check_shards(checkpoint, saved, share)
    except Exception as error:
        # Whatever it is: the other ranks wait for the verdict.
        failure = getattr(error, 'reason', f'foreign: {error}')
    for one in all_gather_object(failure):
        if one is not None:
            raise BadCheckpoint(checkpoint, one)


class _Reader(StorageReader):
    """Lets torch read by our record and our reader, and by nothing else.

    Args:
        folder (Path): The folder of the shards.
        record (ShardRecord): What is in it.
    """

    def __init__(self, folder: Path, record: ShardRecord) -> None:
        self._folder = folder
        self._record = record
        self._places = {
            MetadataIndex(name, chunk.offsets): (whole, chunk)
            for name, whole in record.tensors.items()
            for chunk in whole.chunks
        }

    # Without `kwargs` torch does not look for an index of each rank.
    def read_metadata(self) -> Metadata:  # type: ignore[override]
        """The index of all tensors; there are no other objects."""
        return Metadata(
            {
                name: TensorStorageMetadata(
                    TensorProperties(whole.dtype),
                    Size(whole.size),
                    [
                        ChunkStorageMetadata(Size(c.offsets), Size(c.sizes))
                        for c in whole.chunks
                    ],
                )
                for name, whole in self._record.tensors.items()
            }
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read chunks of tensors into their places."""
        for item in plan.items:
            whole, chunk = self._places[item.storage_index]
            with OpenFile(self._folder / chunk.file) as file:
                data = read_at(file, chunk.start, chunk.length)
            saved = read_content(io.BytesIO(data)).value
            found = getattr(saved, 'dtype', None), getattr(saved, 'shape', ())
            if found != (whole.dtype, Size(chunk.sizes)):
                raise ValueError(f'{item.storage_index.fqn} is not as saved')
            lengths = zip(item.storage_offsets, item.lengths)
            for dimension, (offset, length) in enumerate(lengths):
                saved = saved.narrow(dimension, offset, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(saved.reshape(target.shape))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def set_up_storage_reader(  # type: ignore[override]
        self, metadata: Metadata, is_coordinator: bool
    ) -> None:
        """Nothing: the record is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """What torch has planned."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """What torch has planned."""
        return plans

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing: it is used once."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """None is asked for."""
        return False
