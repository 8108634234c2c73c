"""Checkpoints behind one of mmengine's file back-ends, as ``s3://...``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from mmengine.fileio import get_file_backend

from mmstable.errors import CheckpointError
from mmstable.messages import _, printable


@dataclass(frozen=True)
class RemotePath:
    """A file or a folder of a back-end.

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
