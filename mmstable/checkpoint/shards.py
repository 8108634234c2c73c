"""Files of a checkpoint whose tensors are spread over the ranks.

Every rank writes its part to a folder next to the checkpoint. The checkpoint
itself is a small file that names the folder with the digests of all files in
it, and is written last: without it the folder does not count.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from mmstable.checkpoint.loading import BadCheckpoint

# Where a checkpoint names its folder, below 'mmstable'.
SHARDS = 'shards'
MARK = '.shards-'


def check_shards(
    checkpoint: Path, record: Any, share: slice = slice(None)
) -> None:
    """Compare the files of a checkpoint with what it says of them.

    Args:
        checkpoint (Path): The checkpoint.
        record (Any): What it says.
        share (slice): Which of the files. Defaults to all.

    Raises:
        BadCheckpoint: If one is missing or has changed.
    """
    try:
        name, files = record['folder'], dict(record['files'])
        expected = {key: (int(n), str(sha)) for key, (n, sha) in files.items()}
    except (KeyError, TypeError, ValueError):
        raise BadCheckpoint(
            checkpoint, 'foreign: what it says of its shards makes no sense'
        ) from None
    if not _is_own(checkpoint, name) or any('/' in key for key in expected):
        raise BadCheckpoint(
            checkpoint, 'foreign: its shards are in another folder'
        )
    folder = checkpoint.with_name(name)
    for key in sorted(expected)[share]:
        try:
            found = digest(folder / key)
        except OSError:
            raise BadCheckpoint(
                checkpoint, f'incomplete: its shard {key} is missing'
            ) from None
        if tuple(found) != expected[key]:
            raise BadCheckpoint(
                checkpoint, f'corrupt: its shard {key} is not as saved'
            )


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
        and '/' not in name
        and name.rpartition(MARK)[0] == checkpoint.name
    )


def _escape(name: str) -> str:
    return ''.join(f'[{char}]' if char in '*?[' else char for char in name)


def digest(path: Path) -> list[Any]:
    """The size of a file and its SHA-256."""
    found, size = hashlib.sha256(), 0
    with open(path, 'rb') as stream:
        while part := stream.read(1 << 20):
            found.update(part)
            size += len(part)
    return [size, found.hexdigest()]
