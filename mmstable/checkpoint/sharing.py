"""Folders that not all machines of a run see."""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path

from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    get_rank,
    get_world_size,
)
from mmengine.runner import Runner

from mmstable.io.files import atomic_file
from mmstable.messages import _

# What ranks send to each other at a time.
_PIECE = 16 << 20


def warn_if_not_shared(runner: Runner, folder: Path) -> None:
    """Warn once if machines do not share a folder. A collective call.

    Args:
        runner (Runner): The runner.
        folder (Path): Where rank 0 saves checkpoints.
    """
    if get_world_size() == 1:
        return
    if len(set(all_gather_object(platform.node()))) == 1:
        return
    name = [f'.{secrets.token_hex(8)}.mmstable-shared']
    broadcast_object_list(name)
    path = folder / name[0]
    if get_rank() == 0:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            path.touch()
    # The file is there before any rank looks, and until all have looked.
    is_written = [path.exists()]
    broadcast_object_list(is_written)
    with suppress(OSError):
        # Listing a folder makes NFS look at it again.
        os.listdir(folder)
    blind = '' if path.exists() else platform.node()
    nodes = sorted({node for node in all_gather_object(blind) if node})
    if get_rank() > 0:
        return
    with suppress(OSError):
        path.unlink()
    if nodes and is_written[0]:
        runner.logger.warning(
            _(
                'mmstable: {nodes} do not see {folder} of rank 0. A run '
                'resumes if rank 0 starts on the same machine; its checkpoint '
                'is sent to the others. An emergency checkpoint of another '
                'machine is left there. A folder that all machines share '
                'avoids this.',
                nodes=nodes,
                folder=folder,
            )
        )


def send_file(path: Path, is_missing: bool) -> None:
    """Send a file of rank 0 to machines that miss it. A collective call.

    Args:
        path (Path): The file, which gets the same name there.
        is_missing (bool): Whether this rank does not see it.

    Raises:
        OSError: If this rank cannot write it.
    """
    node = platform.node() if is_missing else ''
    nodes = all_gather_object(node)
    # One rank of each machine writes.
    writes = is_missing and nodes.index(node) == get_rank()
    with ExitStack() as stack:
        if get_rank() == 0:
            source = stack.enter_context(open(path, 'rb'))
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            target = stack.enter_context(atomic_file(path))
        while True:
            piece = [source.read(_PIECE) if get_rank() == 0 else b'']
            broadcast_object_list(piece)
            if not piece[0]:
                break
            if writes:
                target.write(piece[0])
    # The others of the machine read it.
    all_gather_object(None)
