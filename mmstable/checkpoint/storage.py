"""Where the checkpoints of a run are, on a local disk or elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.checkpoint.atomic_file import remove_leftovers, replace_text
from mmstable.checkpoint.loading import BadCheckpoint, inspect_checkpoint
from mmstable.checkpoint.manifest import remove_manifest
from mmstable.checkpoint.saver import CheckpointSaver
from mmstable.checkpoint.shards import SHARDS, folders_in, remove_shards
from mmstable.messages import _

EMERGENCY = 'emergency_iter_{}.pth'


def checkpoint_folder(out_dir: str | None, work_dir: str) -> str:
    """Where a ``CheckpointHook`` is going to save, by mmengine's rule."""
    if out_dir is None or out_dir == work_dir:
        return work_dir
    return os.path.join(out_dir, os.path.basename(work_dir.rstrip(os.sep)))


def checkpoint_folders(runner: Runner) -> list[Path]:
    """Where a run that is training keeps checkpoints: its work dir first."""
    folders = [runner.work_dir]
    for hook in runner.hooks:
        if isinstance(hook, CheckpointHook) and hook.out_dir is not None:
            folders.append(str(hook.out_dir))
    local = [one for one in folders if '://' not in one]
    return [Path(one) for one in dict.fromkeys(local)]


def kind_of(name: str, is_limited: bool) -> str:
    """What a checkpoint is, by its name: what may become of it?

    Args:
        name (str): The name.
        is_limited (bool): Whether the number of checkpoints is.
    """
    if name.startswith(EMERGENCY.partition('{')[0]):
        return 'emergency'
    if name.startswith('best_'):
        return 'best'
    return 'rolling' if is_limited else 'kept'


def point_to(runner: Runner, path: str | None) -> bool:
    """Write the file that mmengine resumes by; False if that fails."""
    try:
        replace_text(Path(runner.work_dir, 'last_checkpoint'), str(path))
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


class CheckpointStorage:
    """The folder that a ``CheckpointHook`` saves to.

    Args:
        hook (CheckpointHook): The hook, after it has found its backend.
    """

    def __init__(self, hook: CheckpointHook) -> None:
        self._folder = hook.out_dir
        self._backend = hook.file_backend
        self._backend_args = dict(
            file_client_args=hook.file_client_args,
            backend_args=hook.backend_args,
        )
        self.is_local = hook.file_client_args is None and isinstance(
            hook.file_backend, LocalBackend
        )

    def path(self, name: str) -> str:
        """The full name of a checkpoint."""
        return self._backend.join_path(self._folder, name)

    def save(
        self,
        saver: CheckpointSaver,
        runner: Runner,
        name: str,
        extra: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """Save in the safest way that there is for this place.

        Args:
            saver (CheckpointSaver): Saves.
            runner (Runner): The runner.
            name (str): The name of the checkpoint.
            extra (Mapping): What to add below ``checkpoint['mmstable']``.
            **kwargs: For ``runner.save_checkpoint``.
        """
        kwargs.update(self._backend_args)
        if self.is_local:
            for key in self._backend_args:
                del kwargs[key]
            saver.save(runner, Path(self._folder, name), extra, **kwargs)
        else:
            saver.save_remotely(runner, self._folder, name, extra, **kwargs)

    def remove(self, path: str) -> None:
        """Remove a checkpoint, if it is there; never a directory.

        The main process does it; others need not ask.
        """
        if is_main_process() and self._backend.isfile(path):
            self._backend.remove(path)
            if self.is_local:
                remove_manifest(Path(path))
                remove_shards(Path(path))

    def clear_up(self) -> None:
        """Remove what a killed process has left half done."""
        if not self.is_local:
            return
        remove_leftovers(Path(self._folder))
        for path in folders_in(Path(self._folder)):
            try:
                record = inspect_checkpoint(path)['mmstable'][SHARDS]
                remove_shards(path, but=record['folder'])
            except (BadCheckpoint, KeyError, TypeError):
                # One that cannot be read is left to the user.
                if not path.exists():
                    remove_shards(path)
