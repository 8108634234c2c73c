"""A back-end of mmengine that keeps remote files in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mmengine.fileio import (
    BaseStorageBackend,
    FileClient,
    register_backend,
)

VARIABLE = 'MMSTABLE_STANDIN'
PREFIX = 'standin'


class StandInBackend(BaseStorageBackend):
    """Objects by their names: no folders, no renames, no partial writes."""

    # Names of files whose next uploads arrive damaged.
    damaged: list[str] = []
    is_down = False

    def __init__(self, root: str | None = None) -> None:
        self._root = Path(root or os.environ[VARIABLE])

    def _path(self, address: str) -> Path:
        if self.is_down:
            raise RuntimeError('the network is down')
        scheme, _, rest = address.partition('://')
        assert scheme == PREFIX, address
        return self._root / rest

    def get(self, address: str) -> bytes:
        return self._path(address).read_bytes()

    def get_text(self, address: str) -> str:
        return self.get(address).decode()

    def put(self, data: bytes, address: str) -> None:
        path = self._path(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name in self.damaged:
            self.damaged.remove(path.name)
            data = data[: len(data) // 2]
        path.write_bytes(data)

    def put_text(self, text: str, address: str) -> None:
        self.put(text.encode(), address)

    def isfile(self, address: str) -> bool:
        return self._path(address).is_file()

    def isdir(self, address: str) -> bool:
        return self._path(address).is_dir()

    def remove(self, address: str) -> None:
        self._path(address).unlink()

    def join_path(self, address: str, *more: str) -> str:
        return '/'.join([address.rstrip('/'), *more])

    def list_dir_or_file(
        self, address: str, list_dir: bool = True, **kwargs: object
    ) -> Iterator[str]:
        return (one.name for one in self._path(address).iterdir())


# `CheckpointHook` asks for this one, too.
FileClient.register_backend(
    PREFIX, StandInBackend, prefixes=PREFIX, force=True
)
register_backend(PREFIX, StandInBackend, prefixes=PREFIX, force=True)
