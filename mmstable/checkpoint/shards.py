"""Checkpoints of a sharded model: a file for the rest, a folder for tensors.

Every rank writes its part to a folder next to the checkpoint. The checkpoint
itself is a small file, written last, whose record names the folder, the
digest of each file in it and the place of each tensor. Without that record
the folder does not count, and nothing else says what is in it: the index that
torch writes there is for other tools, and is never read.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_gather_object
from mmengine.utils import digit_version

from mmstable.checkpoint.audit import find_poison
from mmstable.checkpoint.loading import BadCheckpoint
from mmstable.errors import ConfigError
from mmstable.io.files import OpenFile, read_ranges, size_of

# Where a checkpoint names its folder, below 'mmstable'.
SHARDS = 'shards'
MARK = '.shards-'
_FILE = re.compile(r'[\w.-]{1,255}', re.ASCII)
SCALARS = (type(None), bool, int, float, str)


class Chunk(NamedTuple):
    """A part of a tensor, and where it is."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class Whole(NamedTuple):
    """A tensor that consists of chunks."""

    dtype: torch.dtype
    size: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class ShardRecord:
    """What a checkpoint says of its shards.

    Args:
        folder (str): The name of the folder next to it.
        files (dict): Size and SHA-256 of each file, by name.
        tensors (dict): All tensors, by name.
        values (dict): Numbers and texts among the tensors, by name.
    """

    folder: str
    files: Mapping[str, tuple[int, str]]
    tensors: Mapping[str, Whole]
    values: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The same in plain types, to be saved."""
        tensors = {
            name: [whole.dtype, whole.size, [tuple(c) for c in whole.chunks]]
            for name, whole in self.tensors.items()
        }
        return {**vars(self), 'tensors': tensors}

    @classmethod
    def read(cls, checkpoint: Path, saved: Any) -> ShardRecord:
        """The record in a checkpoint.

        Raises:
            BadCheckpoint: If it is not one, or of another checkpoint.
        """
        try:
            record = cls(
                saved['folder'],
                {name: tuple(one) for name, one in saved['files'].items()},
                {
                    name: Whole(dtype, size, tuple(Chunk(*c) for c in chunks))
                    for name, (dtype, size, chunks) in saved['tensors'].items()
                },
                dict(saved['values']),
            )
            makes_sense = record._makes_sense()
        except (AttributeError, KeyError, TypeError, ValueError):
            makes_sense = False
        if not makes_sense:
            raise BadCheckpoint(
                checkpoint, 'foreign: its record of shards makes no sense'
            )
        if not _is_own(checkpoint, record.folder):
            raise BadCheckpoint(
                checkpoint, 'foreign: its shards are in another folder'
            )
        return record

    def _makes_sense(self) -> bool:
        return (
            all(
                _FILE.fullmatch(name)
                and name not in ('.', '..')
                and _are_sizes((size,))
                and type(sha256) is str
                for name, (size, sha256) in self.files.items()
            )
            and all(
                type(name) is str
                and type(whole.dtype) is torch.dtype
                and _are_sizes(whole.size)
                and all(self._has(whole, chunk) for chunk in whole.chunks)
                and sum(math.prod(chunk.sizes) for chunk in whole.chunks)
                == math.prod(whole.size)
                for name, whole in self.tensors.items()
            )
            and self._are_apart()
            and all(type(name) is str for name in self.values)
            and all(type(one) in SCALARS for one in self.values.values())
        )

    def _has(self, whole: Whole, chunk: Chunk) -> bool:
        inside = zip(chunk.offsets, chunk.sizes, whole.size)
        return (
            _are_sizes((*chunk.offsets, *chunk.sizes))
            and len(chunk.offsets) == len(chunk.sizes) == len(whole.size)
            and all(offset + size <= most for offset, size, most in inside)
            and _are_sizes((chunk.start, chunk.length))
            and chunk.start + chunk.length <= self.files[chunk.file][0]
        )

    def _are_apart(self) -> bool:
        # Reading takes time for every chunk: no bytes count for two of them.
        places = sorted(
            (chunk.file, chunk.start, chunk.start + chunk.length)
            for whole in self.tensors.values()
            for chunk in whole.chunks
        )
        return all(
            file != other or start >= end
            for (other, _, end), (file, start, _) in zip(places, places[1:])
        )


def _are_sizes(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int and 0 <= n < 2**62 for n in numbers)


def check_shards(
    checkpoint: Path, saved: Any, share: slice = slice(None)
) -> None:
    """Compare the files of a checkpoint with its record of them.

    Args:
        checkpoint (Path): The checkpoint.
        saved (Any): The record.
        share (slice): Which of the files. Defaults to all.

    Raises:
        BadCheckpoint: If one is missing or has changed.
    """
    record = ShardRecord.read(checkpoint, saved)
    folder = checkpoint.with_name(record.folder)
    for name in sorted(record.files)[share]:
        size, sha256 = record.files[name]
        try:
            with OpenFile(folder / name) as file:
                # The size first: a sparse file can take hours to digest.
                is_same = size_of(file) == size and (
                    read_ranges(file, [], True).sha256 == sha256
                )
        except OSError as error:
            raise BadCheckpoint(
                checkpoint,
                f'incomplete: its shard {name} is missing ({error.strerror})',
            ) from None
        if not is_same:
            raise BadCheckpoint(
                checkpoint, f'corrupt: its shard {name} is not as saved'
            )


def digest(path: Path) -> tuple[int, str]:
    """The size of a file and its SHA-256."""
    with OpenFile(path) as file:
        return size_of(file), read_ranges(file, [], True).sha256


def remove_shards(checkpoint: Path, but: str | None = None) -> None:
    """Remove the folders of a checkpoint.

    Args:
        checkpoint (Path): The checkpoint; it may be gone.
        but (str, optional): The name of one to keep. Defaults to None.
    """
    for path in checkpoint.parent.glob(f'{_escape(checkpoint.name)}{MARK}*'):
        if path.name != but and _is_own(checkpoint, path.name):
            shutil.rmtree(path, ignore_errors=True)


def folders_in(folder: Path) -> dict[Path, list[str]]:
    """The folders of shards, by the path of their checkpoint."""
    found: dict[Path, list[str]] = {}
    for path in folder.glob(f'*{MARK}*'):
        if path.is_dir() and not path.is_symlink():
            owner = path.with_name(path.name.rpartition(MARK)[0])
            found.setdefault(owner, []).append(path.name)
    return found


def _is_own(checkpoint: Path, name: Any) -> bool:
    return (
        isinstance(name, str)
        and name.rpartition(MARK)[0] == checkpoint.name
        and _FILE.fullmatch(name.rpartition(MARK)[2]) is not None
    )


def _escape(name: str) -> str:
    return ''.join(f'[{char}]' if char in '*?[' else char for char in name)


_OF_THE_OPTIMIZER = ('state', 'param_groups')


def is_sharded_run(runner: Any) -> bool:
    """Whether the strategy of a runner saves and loads by shards."""
    return getattr(getattr(runner, 'strategy', None), 'keeps_shards', False)


def check_sharded(runner: Any) -> None:
    """Refuse runners that are none of mmengine's usual ones."""
    if not is_sharded_run(runner):
        raise ConfigError(
            'SafeCheckpointHook saves with mmengine.runner.Runner, or with '
            'FlexibleRunner and mmstable.SafeFSDPStrategy or '
            f'mmstable.SafeFSDP2Strategy, got {type(runner).__name__} without '
            'them. Use CheckpointHook with it.'
        )


def state_dicts() -> Any:
    """Torch's module that takes the state of sharded models apart."""
    if digit_version(torch.__version__) < digit_version('2.4'):
        # Before, torch reads shards by a pickle that may run anything.
        raise ConfigError(
            'SafeCheckpointHook saves shards with torch 2.4 or newer, this '
            f'is {torch.__version__}. Use CheckpointHook.'
        )
    from torch.distributed.checkpoint import state_dict

    return state_dict


def local_parts(
    runner: Any, save_optimizer: bool
) -> tuple[dict[str, Any], Any]:
    """This rank's tensors, and the optimizer's groups. A collective call."""
    sharded = state_dicts()
    parts = {'model': sharded.get_model_state_dict(runner.model)}
    if not save_optimizer:
        return parts, None
    state = sharded.get_optimizer_state_dict(
        runner.model, runner.optim_wrapper.optimizer
    )
    return {**parts, 'optimizer': state['state']}, state['param_groups']


def find_poison_on_all(parts: Mapping[str, Any]) -> list[Any]:
    """Where a part of any rank is not finite. A collective call."""
    mine = find_poison(
        {
            'state_dict': _local(parts['model']),
            'optimizer': {'state': _local(parts.get('optimizer', {}))},
        }
    )
    found = {one for ours in all_gather_object(mine) for one in ours}
    return sorted(found, key=str)


def besides(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a wrapper knows besides the optimizer."""
    return {k: v for k, v in state.items() if k not in _OF_THE_OPTIMIZER}


def _local(content: Any) -> Any:
    """The same, with the part that this rank holds of each tensor."""
    if isinstance(content, Mapping):
        return {key: _local(value) for key, value in content.items()}
    if hasattr(content, 'local_shards'):
        return {
            str(number): shard.tensor.detach()
            for number, shard in enumerate(content.local_shards())
        }
    if hasattr(content, 'to_local'):
        return content.to_local().detach()
    return content
