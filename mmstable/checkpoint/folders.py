"""The folders of checkpoints: local, behind a back-end, or not shared."""

from __future__ import annotations

import os
import platform
import secrets
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Callable, Union

from mmengine.dist import (
    all_gather_object,
    broadcast_object_list,
    get_rank,
    get_world_size,
)
from mmengine.fileio import get_file_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.errors import CheckpointError
from mmstable.io.files import atomic_file, replace_text
from mmstable.messages import _, printable

EMERGENCY = 'emergency_iter_{}.pth'
# Bytes that ranks send to each other at a time.
_PIECE = 16 << 20


@dataclass(frozen=True)
class RemotePath:
    """A file or a folder of one of mmengine's back-ends, as ``s3://...``.

    Args:
        address (str): Its address.
        backend_args (dict, optional): As in mmengine's ``CheckpointHook``.
            Defaults to None.
    """

    address: str
    backend_args: dict[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f'{self.address}/{name}', self.backend_args)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return self.address.rpartition('/')[2]

    @property
    def parent(self) -> RemotePath:
        """The folder."""
        return RemotePath(self.address.rpartition('/')[0], self.backend_args)

    def absolute(self) -> RemotePath:
        """Return the path itself, as a local path returns its full name."""
        return self

    @property
    def backend(self) -> Any:
        """The back-end.

        Raises:
            CheckpointError: If mmengine has none for this address.
        """
        try:
            return get_file_backend(
                self.address, backend_args=self.backend_args
            )
        except KeyError:
            scheme, mark, __ = self.address.partition('://')
            raise CheckpointError(
                _(
                    "mmengine has no file backend for '{address}'.",
                    address=printable(scheme + mark),
                )
            ) from None

    def read(self) -> bytes:
        """Download the file.

        Raises:
            OSError: If that fails, whatever the client of the back-end raises.
        """
        try:
            return self.backend.get(self.address)
        except CheckpointError:
            raise
        except Exception as error:
            raise OSError(f'{type(error).__name__}: {error}') from error


AnyPath = Union[Path, RemotePath]


def path_of(
    address: str, backend_args: dict[str, Any] | None = None
) -> AnyPath:
    """Return a path on a local disk, or behind a back-end."""
    if '://' in address:
        return RemotePath(address, backend_args)
    return Path(address)


def list_folder(folder: AnyPath) -> list[str]:
    """List the names in a folder; empty if there is none.

    Raises:
        CheckpointError: If a back-end does not answer: a run that seems to
            have no checkpoint would start again.
    """
    if isinstance(folder, Path):
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []
    backend = folder.backend
    try:
        if not backend.isdir(folder.address):
            return []
        return sorted(backend.list_dir_or_file(folder.address, list_dir=False))
    except Exception as error:
        raise CheckpointError(
            _(
                "'{address}' cannot be listed: {error}",
                address=printable(folder.address),
                error=f'{type(error).__name__}: {printable(error)}',
            )
        ) from error


def checkpoint_folder(out_dir: str | None, work_dir: str) -> str:
    """Where a ``CheckpointHook`` is going to save, by mmengine's rule."""
    if out_dir is None or out_dir == work_dir:
        return work_dir
    return os.path.join(out_dir, os.path.basename(work_dir.rstrip(os.sep)))


def checkpoint_folders(runner: Runner) -> list[AnyPath]:
    """Where a run that is training keeps checkpoints: its work dir first."""
    folders: list[AnyPath] = [Path(runner.work_dir)]
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.out_dir is not None:
            folders.append(path_of(str(hook.out_dir), hook.backend_args))
    return list(dict.fromkeys(folders))


def finish_saves(runner: Runner) -> None:
    """Wait for the checkpoints that this rank is writing in the background."""
    for hook in runner.hooks:
        if hasattr(hook, 'finish_save'):
            hook.finish_save()


def point_to(runner: Runner, path: str | None) -> bool:
    """Write the file that mmengine resumes by; False if that fails."""
    try:
        pointer = Path(runner.work_dir, 'last_checkpoint')
        replace_text(pointer, str(path), sync=False)
    except OSError as error:
        runner.logger.warning(
            _(
                'mmstable: last_checkpoint does not name {path}: {error}. '
                'Nothing is removed.',
                path=path,
                error=error,
            )
        )
        return False
    return True


def hook_arguments(save_checkpoint: Callable[..., Any]) -> set[str]:
    """The arguments of mmengine's ``CheckpointHook``, and of saving.

    The hook keeps what it does not know for ``runner.save_checkpoint``, which
    refuses it hours later.

    Args:
        save_checkpoint (Callable): The method of the runner.
    """
    saving = signature(save_checkpoint).parameters
    # What the hook itself gives when it saves.
    given = {'self', 'filename', 'meta', 'kwargs'}
    return {*signature(CheckpointHook).parameters, *saving} - given


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
    # Listing a folder makes NFS look at it again.
    list_folder(folder)
    blind = '' if path.exists() else platform.node()
    nodes = sorted({*all_gather_object(blind)} - {''})
    if get_rank() > 0:
        return
    path.unlink(missing_ok=True)
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
