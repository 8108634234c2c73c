"""Write the files of checkpoints, and remove those that are not needed.

A file is complete and was read back, or does not get its name. A process can
be killed between any two steps: a checkpoint without its manifest, a manifest
without its checkpoint, and an old checkpoint beside the new one can be left.
The next start or save removes the leftovers of this run, known by their
manifests. Files of other runs are never touched.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

import torch
from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log

from mmstable.checkpoint.content import content_size
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
    inspect_checkpoint,
    read_content,
)
from mmstable.checkpoint.manifest import (
    MANIFEST,
    Lineage,
    Manifest,
    manifests_in,
    remove_manifest,
)
from mmstable.checkpoint.shards import SHARDS, folders_in, remove_shards
from mmstable.io.files import atomic_file, remove_leftovers
from mmstable.messages import _

# Bytes that a zip archive and small objects need besides the tensors.
_RESERVE = 1 << 20


def warn(text: str) -> None:
    """Log a warning, also from a thread."""
    print_log(text, logger='current', level=logging.WARNING)


class CheckpointStorage:
    """The folder of a hook, on a local disk or behind a back-end.

    Args:
        hook (CheckpointHook): The hook, after it has found its back-end.
        lineage (Lineage): The place of this start among all starts.
    """

    def __init__(self, hook: CheckpointHook, lineage: Lineage) -> None:
        self.lineage = lineage
        self.folder = str(hook.out_dir)
        self._backend = hook.file_backend
        self.is_local = hook.file_client_args is None and isinstance(
            hook.file_backend, LocalBackend
        )
        self._was_read_back = False

    def path(self, name: str) -> str:
        """Return the full name of a checkpoint."""
        return self._backend.join_path(self.folder, name)

    def write(self, name: str, checkpoint: dict[str, Any]) -> None:
        """Write a checkpoint, and once more if the storage fails.

        Raises:
            OSError: If it fails again; an older file of this name stays.
        """
        if self.is_local:
            self.check_space(content_size(checkpoint))
        write = self._write_local if self.is_local else self._upload
        try:
            write(checkpoint, self.path(name))
        except OSError as error:
            warn(
                _(
                    'mmstable: writing {name} failed and is tried once more: '
                    '{error}.',
                    name=name,
                    error=error,
                )
            )
            write(checkpoint, self.path(name))

    def _write_local(self, checkpoint: dict[str, Any], target: str) -> None:
        path = Path(target)

        def verify(temporary: Path) -> None:
            self._read_back(temporary)
            # A file without a manifest is looked through; one with the
            # manifest of its predecessor would be taken for damaged.
            remove_manifest(path)

        with atomic_file(path, verify) as stream:
            torch.save(checkpoint, cast(BinaryIO, stream))
        try:
            # Without an fsync: a file without a sound manifest is looked
            # through, and gets one at the next start.
            manifest = Manifest.of(checkpoint, stream.size, stream.sha256())
            manifest.write(path)
        except OSError as error:
            warn(
                _(
                    'mmstable: {name} is saved, but not its manifest: '
                    '{error}.',
                    name=path.name,
                    error=error,
                )
            )

    def _upload(self, checkpoint: dict[str, Any], target: str) -> None:
        stream = io.BytesIO()
        torch.save(checkpoint, stream)
        data = stream.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        text = Manifest.of(checkpoint, len(data), sha256).as_text()
        try:
            self._backend.put(data, target)
            if hashlib.sha256(self._backend.get(target)).hexdigest() != sha256:
                raise OSError('its content is not as uploaded')
            self._backend.put_text(text, target + MANIFEST)
        except Exception as error:
            # Back-ends raise the errors of their clients.
            kind = '' if isinstance(error, OSError) else type(error).__name__
            raise OSError(f'{kind}: {error}'.strip(': ')) from error

    def _read_back(self, path: Path) -> None:
        try:
            check_container(path)
            if not self._was_read_back:
                # All checkpoints of a run are made alike: one is enough to
                # learn whether the reader accepts them.
                inspect_checkpoint(path)
        except BadCheckpoint as error:
            if not error.is_refused:
                raise OSError(
                    _('it was damaged on its way: {error}', error=error.reason)
                ) from error
            # It is what the user's hooks want saved, and all that there is.
            warn(
                _(
                    'mmstable: resuming will need --trust-checkpoint: '
                    '{error}.',
                    error=error,
                )
            )
        self._was_read_back = True

    def remove(self, path: str) -> None:
        """Remove a checkpoint, if it is there; never a directory.

        The main process removes; on other ranks this does nothing.
        """
        if not is_main_process() or not self._backend.isfile(path):
            return
        self._backend.remove(path)
        if self.is_local:
            remove_manifest(Path(path))
            remove_shards(Path(path))
        elif self._backend.isfile(path + MANIFEST):
            self._backend.remove(path + MANIFEST)

    def is_foreign(self, path: str) -> bool:
        """Whether a checkpoint says that it is not of this run's past."""
        manifest = Manifest.read(Path(path)) if self.is_local else None
        return (
            manifest is not None
            and manifest.lineage is not None
            and not self._is_own(manifest)
        )

    def _is_own(self, manifest: Manifest) -> bool:
        return manifest.lineage is not None and self.lineage.includes(
            manifest.lineage, manifest.iteration
        )

    def remove_outdated(
        self,
        kind: str,
        template: str,
        before: int,
        kept: Collection[str] = (),
    ) -> None:
        """Remove checkpoints on a local disk that newer ones have replaced.

        Args:
            kind (str): Of the checkpoints, as their manifests have it.
            template (str): How they are named, with '{}' for a number.
            before (int): Only those with fewer iterations done.
            kept (Collection[str]): Names of those that stay. Defaults to ().
        """
        if not self.is_local:
            return
        begin, __, end = template.partition('{')
        end = end.partition('}')[2]
        pattern = re.compile(rf'{re.escape(begin)}\d+{re.escape(end)}')
        for path, manifest in manifests_in(Path(self.folder)).items():
            if (
                manifest.kind == kind
                and self._is_own(manifest)
                and manifest.iteration < before
                and path.name not in kept
                and pattern.fullmatch(path.name)
            ):
                self.remove(str(path))

    def clear_up(self) -> None:
        """Remove and complete what a process that was killed has left."""
        if not self.is_local:
            return
        folder = Path(self.folder)
        remove_leftovers(folder)
        for path in folders_in(folder):
            try:
                record = inspect_checkpoint(path)['mmstable'][SHARDS]
                remove_shards(path, but=record['folder'])
            except (BadCheckpoint, KeyError, TypeError):
                # One that cannot be read is left to the user.
                if not path.exists():
                    remove_shards(path)
        for path, manifest in manifests_in(folder).items():
            if not path.exists() and self._is_own(manifest):
                remove_manifest(path)
        for path in folder.glob('*.pth'):
            if Manifest.read(path) is None:
                # Whatever is wrong with it, it is not ours.
                with suppress(Exception):
                    self._complete(path)

    def _complete(self, path: Path) -> None:
        """Write the manifest of a checkpoint of this run."""
        checkpoint = inspect_checkpoint(path)
        manifest = Manifest.of(checkpoint, path.stat().st_size, '')
        if self._is_own(manifest):
            # It was looked through before it was saved.
            content = read_content(path, values_up_to=0, with_digest=True)
            replace(manifest, sha256=content.sha256).write(path)

    def check_space(self, size: int) -> None:
        """Make sure that a checkpoint of so many bytes can be saved.

        Raises:
            OSError: If it cannot.
        """
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=self.folder):
            needed = size + _RESERVE
            free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(
                _(
                    'no space: {needed} MiB needed, {free} MiB free',
                    needed=needed >> 20,
                    free=free >> 20,
                )
            )

    def free_space(self) -> str:
        """Describe the free space of the folder."""
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            return f'({error})'
        return f'{free / 2**20:.1f} MiB'
