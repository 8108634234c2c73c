"""Checkpoints behind one of mmengine's file back-ends, as ``s3://...``."""

from __future__ import annotations

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
            raise CheckpointError(
                _(
                    "mmengine has no file backend for '{address}'.",
                    address=printable(self.address),
                )
            ) from None

    def joined(self, name: str) -> RemotePath:
        """Return the path of a file in this folder."""
        address = self.backend.join_path(self.address, name)
        return RemotePath(address, self.backend_args)

    def read(self, suffix: str = '') -> bytes:
        """Download the file, or one that has its name and a suffix.

        Args:
            suffix (str): The suffix. Defaults to ''.

        Raises:
            OSError: If that fails, whatever the client of the back-end says.
        """
        try:
            return self.backend.get(self.address + suffix)
        except CheckpointError:
            raise
        except Exception as error:
            raise OSError(f'{type(error).__name__}: {error}') from error

    def names(self) -> list[str]:
        """List the files of the folder; empty if there is no folder.

        Raises:
            CheckpointError: If the back-end does not answer: a run that seems
                to have no checkpoint would start anew.
        """
        backend = self.backend
        try:
            if not backend.isdir(self.address):
                return []
            return sorted(
                backend.list_dir_or_file(self.address, list_dir=False)
            )
        except Exception as error:
            raise CheckpointError(
                _(
                    "'{address}' cannot be listed: {error}",
                    address=printable(self.address),
                    error=f'{type(error).__name__}: {printable(error)}',
                )
            ) from error


AnyPath = Union[Path, RemotePath]


def path_of(
    address: str, backend_args: dict[str, Any] | None = None
) -> AnyPath:
    """Return a path on a local disk, or behind a back-end."""
    if '://' in address:
        return RemotePath(address, backend_args)
    return Path(address)
