"""Save a checkpoint: audited, complete or not at all, without a copy."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Callable, cast

import mmengine
import torch
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmstable.checkpoint.atomic_file import atomic_file
from mmstable.checkpoint.audit import list_culprits
from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
    inspect_checkpoint,
)
from mmstable.checkpoint.manifest import Manifest, remove_manifest
from mmstable.checkpoint.placeholders import Placeholders
from mmstable.checkpoint.sharded_run import is_sharded_run, rest_of
from mmstable.events import Culprit
from mmstable.messages import _
from mmstable.version import __version__

# Where a checkpoint says, below 'mmstable', what its manifest says of it.
LABEL = 'label'
# What a zip archive and small objects need besides the tensors.
_RESERVE = 1 << 20


class Poisoned(Exception):
    """The state to be saved is not finite.

    Args:
        culprits (list[Culprit]): Where.
    """

    def __init__(self, culprits: list[Culprit]) -> None:
        # As the argument of the base, so that it survives being pickled.
        super().__init__(culprits)
        self.culprits = culprits

    def __str__(self) -> str:
        names = list_culprits(self.culprits)
        return _('not finite: {names}', names=names)


class CheckpointSaver:
    """Saves what ``runner.save_checkpoint`` would save.

    Args:
        placeholders (Placeholders): What is not finite for a reason.
    """

    def __init__(self, placeholders: Placeholders) -> None:
        self.placeholders = placeholders
        self._loads = False

    def save(
        self,
        runner: Runner,
        path: Path,
        extra: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """Save to a local disk, on the rank that calls this.

        Args:
            runner (Runner): The runner.
            path (Path): The checkpoint.
            extra (Mapping): What to add below ``checkpoint['mmstable']``.
            **kwargs: For ``runner.save_checkpoint``.

        Raises:
            Poisoned: If the state is not finite. Nothing is written.
            OSError: If the disk is full or fails. A file of this name is
                left as it was.
        """

        def write(checkpoint: dict[str, Any]) -> None:
            self._complete(checkpoint, extra)
            self._write(checkpoint, path)
            # Nothing is left for mmengine to make a copy of.
            checkpoint.clear()

        if is_sharded_run(runner):
            write(rest_of(runner, **kwargs))
            return
        with _last_word(runner, write):
            _save_on_any_rank(runner, '', os.devnull, **kwargs)

    def save_remotely(
        self,
        runner: Runner,
        folder: str,
        name: str,
        extra: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """Audit the state, and let mmengine save it in its own way.

        Args:
            runner (Runner): The runner.
            folder (str): Where, for ``runner.save_checkpoint``.
            name (str): The name of the checkpoint.
            extra (Mapping): What to add below ``checkpoint['mmstable']``.
            **kwargs: For ``runner.save_checkpoint``.

        Raises:
            Poisoned: If the state is not finite. Nothing is written.
        """

        def complete(checkpoint: dict[str, Any]) -> None:
            self._complete(checkpoint, extra)

        with _last_word(runner, complete):
            runner.save_checkpoint(folder, name, **kwargs)

    def _complete(
        self, checkpoint: dict[str, Any], extra: Mapping[str, Any]
    ) -> None:
        poison = self.placeholders.find_poison(checkpoint)
        if poison:
            raise Poisoned(poison)
        checkpoint.setdefault('mmstable', {}).update(extra)

    def _write(self, checkpoint: dict[str, Any], path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_space(checkpoint, path.parent)

        def verify(temporary: Path) -> None:
            self._read_back(temporary)
            # A file without a side file is looked through; one with the side
            # file of its predecessor would be taken for damaged.
            remove_manifest(path)

        with atomic_file(path, verify) as stream:
            torch.save(checkpoint, cast(BinaryIO, stream))
        side = describe(checkpoint, stream.size, stream.sha256())
        try:
            side.write(path)
        except OSError as error:
            name = path.name
            _warn(
                _(
                    'mmstable: {name} is saved, but not its manifest: '
                    '{error}.',
                    name=name,
                    error=error,
                )
            )

    def _read_back(self, path: Path) -> None:
        check_container(path)
        if self._loads:
            return
        # All checkpoints of a run are made alike: one is enough to learn
        # whether the guard lets them pass.
        self._loads = True
        try:
            inspect_checkpoint(path)
        except BadCheckpoint as error:
            # It is what the user's hooks want saved, and all that there is.
            _warn(
                _(
                    'mmstable: resuming will need --trust-checkpoint: '
                    '{error}.',
                    error=error,
                )
            )


class _LastWord(Hook):
    """Sees a checkpoint after all other hooks have added their part."""

    def __init__(self, action: Callable[[dict[str, Any]], None]) -> None:
        self._action = action

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Act on the complete checkpoint."""
        self._action(checkpoint)


@contextmanager
def _last_word(
    runner: Runner, action: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    hook = _LastWord(action)
    runner.register_hook(hook, priority='LOWEST')
    try:
        yield
    finally:
        runner.hooks.remove(hook)


def _save_on_any_rank(runner: Runner, *args: Any, **kwargs: Any) -> None:
    """Call mmengine's method, without its own rule that only rank 0 saves."""
    save = type(runner).save_checkpoint
    getattr(save, '__wrapped__', save)(runner, *args, **kwargs)


def describe(
    checkpoint: Mapping[str, Any], size: int, sha256: str
) -> Manifest:
    """The manifest of a checkpoint that was found free of NaN and Inf.

    Args:
        checkpoint (Mapping): Its content.
        size (int): Bytes of its file.
        sha256 (str): Their digest.
    """
    meta = checkpoint['meta']
    label = checkpoint['mmstable'].get(LABEL, {})
    return Manifest(
        size=size,
        sha256=sha256,
        iteration=meta['iter'],
        epoch=meta['epoch'],
        finite=True,
        time=time.time(),
        versions={
            'mmstable': __version__,
            'mmengine': mmengine.__version__,
            'torch': torch.__version__,
            'python': platform.python_version(),
        },
        kind=label.get('kind', ''),
        lineage=Lineage.read(label.get('lineage')),
    )


def _warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def _check_space(checkpoint: Mapping[str, Any], folder: Path) -> None:
    needed = sum(_storage_sizes(checkpoint, {}).values()) + _RESERVE
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(
            _(
                'no space: {needed} MiB needed, {free} MiB free',
                needed=needed >> 20,
                free=free >> 20,
            )
        )


def _storage_sizes(content: Any, sizes: dict[int, int]) -> dict[int, int]:
    """Bytes of each piece of memory; tensors may share one."""
    if isinstance(content, torch.Tensor):
        storage = content.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    elif isinstance(content, Mapping):
        for value in content.values():
            _storage_sizes(value, sizes)
    elif isinstance(content, (list, tuple)):
        for value in content:
            _storage_sizes(value, sizes)
    return sizes
