"""Save the checkpoints of a run: audited, complete or not at all.

The state is captured, training continues, and a thread does the rest. A
sharded run writes the shards of all ranks first, then the file that names
them. One save, station by station::

    hooks/safe_checkpoint_hook.py: after_train_iter  is it due?
    state/progress.py: capture_progress    generators and data position
    checkpoint/writer.py: save             on the main process
    checkpoint/content.py: build           mmengine's sections
    events/monitor.py: before_save_checkpoint  states of hooks
    checkpoint/content.py: capture         copied; training continues
    checkpoint/writer.py: _work            in the background
    checkpoint/audit.py: find_poison       all finite?
    io/files.py: atomic_file               written under another name
    checkpoint/writer.py: _read_back       read back
    checkpoint/reader/formats.py: archive  as a resume would
    io/files.py: sync_folder               renamed, and on disk
    checkpoint/manifest.py: write          noted in the manifest
"""

from __future__ import annotations

import hashlib
import io
import logging
import math
import shutil
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Callable, cast

import torch
from mmengine.dist import (
    broadcast_object_list,
    get_world_size,
    is_main_process,
)
from mmengine.fileio import LocalBackend
from mmengine.hooks import CheckpointHook
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.audit import Placeholders, steps_are_good
from mmstable.checkpoint.content import (
    Storages,
    build,
    capture,
    content_size,
)
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
    inspect_checkpoint,
)
from mmstable.checkpoint.manifest import MANIFEST, Lineage, remove_manifest
from mmstable.checkpoint.save import (
    LABEL,
    Poisoned,
    check_space,
    describe,
    kind_of,
)
from mmstable.checkpoint.shards import (
    SHARDS,
    find_poison_on_all,
    folders_in,
    is_sharded_run,
    local_parts,
    remove_shards,
)
from mmstable.errors import ConfigError, ResultNotSaved
from mmstable.events import records
from mmstable.events.records import CheckpointFailed
from mmstable.io.files import atomic_file, remove_leftovers
from mmstable.messages import N_, _
from mmstable.optim.observer import monitor_of
from mmstable.state.run_state import RunState, Snapshot, name_saved_states

NOT_SAVED = N_('mmstable: {name} is not saved: {reason}.{last_good}')


class PendingSave:
    """A checkpoint on its way to the disk.

    Args:
        name (str): The name of the file.
        iteration (int): Iterations done in it.
        undo (Callable): Takes back, on all ranks, the announcement of a
            checkpoint that was not saved.
    """

    def __init__(
        self, name: str, iteration: int, undo: Callable[[], object]
    ) -> None:
        self.name = name
        self.iteration = iteration
        self.undo = undo
        self.failure: BaseException | None = None
        # Whether nothing in it that is not finite has reached a step.
        self.steps_are_good = False
        # Whether all ranks know the verdict of the audit.
        self.is_agreed = False
        self.is_reported = False
        # Whether the run was rolled back since: no poison is left in it.
        self.is_superseded = False
        self.audited = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_background(self) -> bool:
        """Whether a thread of this process writes it, or has written it."""
        return self._thread is not None

    @property
    def is_running(self) -> bool:
        """Whether a thread of this process is writing it now."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Write it in the background; the process waits for that to end."""
        self._thread = threading.Thread(target=work, name='mmstable-save')
        self._thread.start()

    def wait(self) -> bool:
        """Wait for the thread; whether the checkpoint is known to be saved."""
        if self._thread is not None:
            self._thread.join()
        return self.failure is None and is_main_process()


class CheckpointWriter:
    """Saves on the main process, or the part of each rank of a sharded run.

    Only one checkpoint is on its way at a time. A checkpoint that cannot be
    saved, because it is poisoned or because the disk fails twice, is
    reported, and the run goes on. Any other error is raised on all ranks.

    Args:
        hook (CheckpointHook): Whose checkpoints these are, after it has found
            its backend.
        placeholders (Placeholders): NaN and Inf that belong to the model.
        lineage (Lineage): The place of this start among all starts.
        max_unsaved (float): Minutes after the first failure until a run of
            which nothing could ever be saved is stopped. Defaults to inf.
        free_memory (Callable, optional): Returns the bytes that the host has
            left to copy a checkpoint to. Without it, training waits for
            every checkpoint to be written. Defaults to None.
    """

    def __init__(
        self,
        hook: CheckpointHook,
        placeholders: Placeholders,
        lineage: Lineage,
        max_unsaved: float = math.inf,
        free_memory: Callable[[], int] | None = None,
    ) -> None:
        self._hook = hook
        self._placeholders = placeholders
        self._lineage = lineage
        self._max_unsaved = max_unsaved
        self._free_memory = free_memory
        # When and how often storage failed before anything was saved.
        self._first_failure: float | None = None
        self._failures = 0
        self._was_read_back = False
        self.is_local = hook.file_client_args is None and isinstance(
            hook.file_backend, LocalBackend
        )
        # The one on its way.
        self.pending: PendingSave | None = None
        # The newest checkpoint to resume from.
        self.last_good: str | None = None
        # Why the newest checkpoint was not saved.
        self.failure: BaseException | None = None

    def path(self, name: str) -> str:
        """Return the full name of a checkpoint."""
        return self._hook.file_backend.join_path(self._hook.out_dir, name)

    def save(
        self,
        runner: Any,
        name: str,
        settings: Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        then: Callable[[], object] = int,
        undo: Callable[[], object] = int,
        wait: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        """Save, in the background if possible. A collective call.

        Args:
            runner (Runner or FlexibleRunner): The runner.
            name (str): The name of the file.
            settings (Mapping): For :func:`~mmstable.checkpoint.content.build`.
            state (Mapping, optional): State of the run for a resume. Defaults
                to None.
            then (Callable): Called on the main process, perhaps in the
                background, after the checkpoint was saved.
            undo (Callable): Called on all ranks by :meth:`settle` if it was
                not saved.
            wait (bool): Whether to wait for it. Defaults to False.
            snapshot (Snapshot, optional): Of this very state, in host memory:
                its tensors are not copied again. Defaults to None.
        """
        self.settle(runner)
        # Reading a verdict may take an agreement of all ranks; the main
        # process alone would wait for it in vain.
        runner_view.resolve_steps(runner)
        pending = PendingSave(name, settings['meta']['iter'], undo)
        if is_sharded_run(runner):
            failure = self._save_shards(runner, name, settings, state or {})
            pending.failure = failure
            if failure is None and is_main_process():
                then()
        elif is_main_process():
            self._start(runner, pending, settings, state or {}, then, snapshot)
        self.pending = pending
        # Not whether it is still running: ranks and runs would differ.
        in_background = [pending.is_background]
        broadcast_object_list(in_background)
        if wait or not in_background[0]:
            self.settle(runner)

    def settle(self, runner: Any) -> bool:
        """Wait for the pending checkpoint, and agree on what became of it.

        A collective call.

        Returns:
            bool: Whether the newest checkpoint was saved.
        """
        pending = self.pending
        if pending is None:
            return self.failure is None
        pending.wait()
        outcome: list[Any] = [
            self._failure_of(runner, pending),
            self._is_overdue(pending.failure),
        ]
        broadcast_object_list(outcome)
        self.pending, self.failure = None, outcome[0]
        if self.failure is None:
            self.last_good = self.path(pending.name)
            return True
        pending.undo()
        if not isinstance(self.failure, (Poisoned, OSError)):
            # On all ranks: the others must not be left waiting.
            raise self.failure
        self._report(runner, pending, self.failure)
        if outcome[1]:
            raise ResultNotSaved(
                _(
                    'nothing of this run could be saved within {minutes:g} '
                    'minutes, and it would be lost in the end: {reason}. '
                    '{free} are free in {folder}. Make room, and start again',
                    minutes=self._max_unsaved,
                    reason=self.failure,
                    free=self._free_space(),
                    folder=self._hook.out_dir,
                )
            )
        return False

    def poll(self, runner: Runner) -> None:
        """Report a failure in the background. Called after each iteration.

        A collective call after the first iteration: a poisoned state is known
        to all ranks by then. The disk fails on the main process only, and the
        others learn of it at the next checkpoint.
        """
        pending = self.pending
        if pending is None:
            return
        if not pending.is_agreed:
            pending.is_agreed = True
            if is_main_process():
                pending.audited.wait()
            poisoned = [isinstance(pending.failure, Poisoned)]
            broadcast_object_list(poisoned)
            if poisoned[0]:
                self.settle(runner)
        elif is_main_process() and not pending.is_running:
            if get_world_size() == 1:
                self.settle(runner)
            elif isinstance(pending.failure, OSError):
                self._report(runner, pending, pending.failure)

    def wait(self) -> bool:
        """Wait for the pending checkpoint, without the other ranks.

        Returns:
            bool: Whether this rank knows that the newest one was saved.
        """
        pending = self.pending
        return self.failure is None if pending is None else pending.wait()

    def save_here(
        self,
        runner: Any,
        name: str,
        settings: Mapping[str, Any],
        state: Mapping[str, Any],
        shards: dict | None = None,
    ) -> BaseException | None:
        """Save on this rank at once, without the other ranks.

        Args:
            runner (Runner or FlexibleRunner): The runner.
            name (str): The name of the file.
            settings (Mapping): As for :meth:`save`.
            state (Mapping): As for :meth:`save`.
            shards (dict, optional): The files of all ranks. Defaults to
                None.

        Returns:
            BaseException or None: Why it could not be saved.
        """
        pending = PendingSave(name, settings['meta']['iter'], int)
        pending.steps_are_good = steps_are_good(runner)
        try:
            checkpoint = self._build(runner, name, settings, state)
            if shards is not None:
                checkpoint['mmstable'][SHARDS] = shards
            self._work(pending, checkpoint, int)
        except Exception as error:
            pending.failure = error
        return self._failure_of(runner, pending)

    def remove(self, path: str) -> None:
        """Remove a checkpoint, if it is there; never a directory.

        The main process removes; on other ranks this does nothing.
        """
        backend = self._hook.file_backend
        if not is_main_process() or not backend.isfile(path):
            return
        backend.remove(path)
        if self.is_local:
            remove_manifest(Path(path))
            remove_shards(Path(path))
        elif backend.isfile(path + MANIFEST):
            backend.remove(path + MANIFEST)

    def clear_up(self) -> None:
        """Remove the unfinished files of a process that was killed."""
        if not self.is_local:
            return
        folder = Path(self._hook.out_dir)
        remove_leftovers(folder)
        for path in folders_in(folder):
            try:
                record = inspect_checkpoint(path)['mmstable'][SHARDS]
                remove_shards(path, but=record['folder'])
            except (BadCheckpoint, KeyError, TypeError):
                # One that cannot be read is left to the user.
                if not path.exists():
                    remove_shards(path)

    def probe(self, runner: Runner) -> None:
        """Report at the start if checkpoints will not be saved."""
        is_built = isinstance(runner.optim_wrapper, OptimWrapper)
        if not self.is_local or not is_built or is_sharded_run(runner):
            return
        folder = Path(self._hook.out_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                check_space(RunState(runner).size(), folder)
        except OSError as error:
            runner.logger.error(
                _(
                    'mmstable: no checkpoint can be saved in {folder}: '
                    '{reason}. Make room while it trains.',
                    folder=folder,
                    reason=error,
                )
            )

    def _start(
        self,
        runner: Runner,
        pending: PendingSave,
        settings: Mapping[str, Any],
        state: Mapping[str, Any],
        then: Callable[[], object],
        snapshot: Snapshot | None,
    ) -> None:
        """Capture and let a thread write; write at once if that cannot be."""
        pending.steps_are_good = steps_are_good(runner)
        kept = {} if snapshot is None else snapshot.memory.storages()
        try:
            checkpoint = self._build(
                runner, pending.name, {**settings, 'kept': kept}, state
            )
            captured = self._capture(checkpoint, kept)
        except Exception as error:
            pending.failure = error
            return
        if captured is None:
            self._work(pending, checkpoint, then, snapshot)
            return
        if snapshot is not None:
            snapshot.memory.is_lent = True
        pending.start(lambda: self._work(pending, captured, then, snapshot))

    def _build(
        self,
        runner: Any,
        name: str,
        settings: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> dict[str, Any]:
        checkpoint = build(runner, **settings)
        checkpoint.setdefault('mmstable', {}).update(
            {
                type(self._hook).__name__: dict(state),
                LABEL: {
                    'kind': kind_of(name, self._hook.max_keep_ckpts > 0),
                    'lineage': self._lineage.as_dict(),
                },
            }
        )
        return checkpoint

    def _capture(
        self, checkpoint: dict[str, Any], kept: Storages
    ) -> dict[str, Any] | None:
        """Copy a checkpoint; None if training has to wait for the writer."""
        if self._free_memory is None:
            return None
        needed = content_size(checkpoint, kept)
        if not self.is_local:
            # Serialized, and read back.
            needed += 2 * content_size(checkpoint)
        try:
            free = self._free_memory()
        except OSError:
            # Containers may hide it: nothing is known to be free.
            return None
        if needed > free:
            _warn(
                _(
                    'mmstable: training waits for this checkpoint to be '
                    'written: {needed} MiB of host memory are needed to copy '
                    'it, {free} MiB are free.',
                    needed=needed >> 20,
                    free=free >> 20,
                )
            )
            return None
        try:
            return capture(checkpoint, kept)
        except Exception as error:
            # A hook has added an object that cannot be copied.
            _warn(
                _(
                    'mmstable: training waits for this checkpoint to be '
                    'written, because it cannot be copied: {error}.',
                    error=f'{type(error).__name__}: {error}',
                )
            )
            return None

    def _work(
        self,
        pending: PendingSave,
        checkpoint: dict[str, Any],
        then: Callable[[], object],
        snapshot: Snapshot | None = None,
    ) -> None:
        """Audit and write; on the main thread or in the background."""
        try:
            if snapshot is not None:
                snapshot.wait()
            self._audit(checkpoint, pending.steps_are_good)
            pending.audited.set()
            self._write(pending.name, checkpoint)
        except BaseException as error:
            pending.failure = error
            if not threading.main_thread().is_alive():
                # The training has ended: nothing polls.
                _warn(
                    _(NOT_SAVED, name=pending.name, reason=error, last_good='')
                )
            return
        finally:
            pending.audited.set()
            if snapshot is not None:
                snapshot.memory.is_lent = False
        try:
            then()
        except Exception as error:
            _warn(
                _(
                    'mmstable: {name} is saved, but older checkpoints could '
                    'not be removed: {error}.',
                    name=pending.name,
                    error=f'{type(error).__name__}: {error}',
                )
            )

    def _audit(self, checkpoint: dict[str, Any], are_good: bool) -> None:
        poison, known = self._placeholders.audit(checkpoint, are_good)
        if poison:
            raise Poisoned(poison)
        own = checkpoint['mmstable'][type(self._hook).__name__]
        own['placeholders'] = known

    def _write(self, name: str, checkpoint: dict[str, Any]) -> None:
        """Write a file, and once more if the storage fails."""
        write = self._write_local if self.is_local else self._upload
        if self.is_local:
            folder = Path(self._hook.out_dir)
            folder.mkdir(parents=True, exist_ok=True)
            check_space(content_size(checkpoint), folder)
        try:
            write(checkpoint, self.path(name))
        except OSError as error:
            _warn(
                _(
                    'mmstable: writing {name} failed and is tried once more: '
                    '{error}.',
                    name=name,
                    error=error,
                )
            )
            write(checkpoint, self.path(name))

    def _write_local(self, checkpoint: dict[str, Any], target: str) -> None:
        """Write a local file; one of this name stays if that fails."""
        path = Path(target)

        def verify(temporary: Path) -> None:
            self._read_back(temporary)
            # A file without a side file is looked through; one with the side
            # file of its predecessor would be taken for damaged.
            remove_manifest(path)

        with atomic_file(path, verify) as stream:
            torch.save(checkpoint, cast(BinaryIO, stream))
        try:
            # Without an fsync: a file without a sound manifest is looked
            # through, and gets one at the next start.
            describe(checkpoint, stream.size, stream.sha256()).write(path)
        except OSError as error:
            _warn(
                _(
                    'mmstable: {name} is saved, but not its manifest: '
                    '{error}.',
                    name=path.name,
                    error=error,
                )
            )

    def _upload(self, checkpoint: dict[str, Any], target: str) -> None:
        """Put a file into a remote folder, and read it back."""
        stream = io.BytesIO()
        torch.save(checkpoint, stream)
        data = stream.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        text = describe(checkpoint, len(data), sha256).as_text()
        backend = self._hook.file_backend
        try:
            backend.put(data, target)
            if hashlib.sha256(backend.get(target)).hexdigest() != sha256:
                raise OSError('its content is not as uploaded')
            backend.put_text(text, target + MANIFEST)
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
                self._was_read_back = True
        except BadCheckpoint as error:
            from mmstable.checkpoint.reader.rebuild import Refused

            if not isinstance(error.__cause__, Refused):
                raise OSError(
                    _('it was damaged on its way: {error}', error=error.reason)
                ) from error
            # It is what the user's hooks want saved, and all that there is.
            self._was_read_back = True
            _warn(
                _(
                    'mmstable: resuming will need --trust-checkpoint: '
                    '{error}.',
                    error=error,
                )
            )

    def _save_shards(
        self,
        runner: Any,
        name: str,
        settings: Mapping[str, Any],
        state: Mapping[str, Any],
    ) -> BaseException | None:
        """Save the shards of all ranks, then the file that names them."""
        if not self.is_local:
            return ConfigError(
                'SafeCheckpointHook saves shards to a local or shared disk '
                f'only, not to {self._hook.out_dir}.'
            )
        parts, groups = local_parts(runner, settings['save_optimizer'])
        poison = find_poison_on_all(parts)
        if poison:
            return Poisoned(poison)
        from mmstable.checkpoint.shard_files import new_folder, write_shards

        path = Path(self.path(name))
        folder = new_folder(path)
        failure: BaseException | None
        record, failure = write_shards(parts, folder)
        if not is_main_process():
            return None
        if failure is None:
            settings = {**settings, 'groups': groups}
            failure = self.save_here(runner, name, settings, state, record)
        if failure is None:
            remove_shards(path, but=folder.name)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return failure

    def _is_overdue(self, failure: BaseException | None) -> bool:
        """Whether a run of which nothing was ever saved has to stop."""
        if self.last_good is not None or not isinstance(failure, OSError):
            return False
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        return now - self._first_failure > 60 * self._max_unsaved

    def _free_space(self) -> str:
        if not self.is_local:
            return _('an unknown number of bytes')
        try:
            free = shutil.disk_usage(self._hook.out_dir).free
        except OSError as error:
            return f'({error})'
        return f'{free / 2**20:.1f} MiB'

    def _failure_of(
        self, runner: Any, pending: PendingSave
    ) -> BaseException | None:
        """Return why a checkpoint was not saved, with names of parameters."""
        failure = pending.failure
        if isinstance(failure, Poisoned) and not is_sharded_run(runner):
            return Poisoned(name_saved_states(failure.culprits, runner))
        return failure

    def _report(
        self, runner: Any, pending: PendingSave, failure: BaseException
    ) -> None:
        if pending.is_reported:
            return
        pending.is_reported = True
        facts = {'name': pending.name, 'reason': failure, 'last_good': ''}
        if self.last_good is not None:
            facts['last_good'] = _(
                ' The last good checkpoint is {path}.', path=self.last_good
            )
        event: Any
        if isinstance(failure, Poisoned):
            level, text = (
                logging.ERROR,
                _(
                    'mmstable: poisoned: {name} is not saved, because the '
                    'state of the run is {reason}.{last_good}',
                    **facts,
                ),
            )
            event = records.Poisoned.now(
                pending.iteration, culprits=tuple(failure.culprits)
            )
        else:
            level, text = logging.WARNING, _(NOT_SAVED, **facts)
            if pending.iteration < runner.max_iters:
                text = _(
                    'mmstable: {name} is not saved: {reason}. Training '
                    'continues.{last_good}',
                    **facts,
                )
            event = CheckpointFailed.now(
                pending.iteration, name=pending.name, reason=str(failure)
            )
            self._failures += 1
            if self.last_good is None and self._failures > 1:
                level = logging.ERROR
                text += _(
                    ' NOTHING of this run is saved yet: it would be lost. '
                    '{free} are free in {folder}.',
                    free=self._free_space(),
                    folder=self._hook.out_dir,
                )
        if is_main_process():
            runner.logger.log(level, text)
        if not (isinstance(failure, Poisoned) and pending.is_superseded):
            monitor_of(runner).emit(runner, event)


def _warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def save_best(
    hook: CheckpointHook,
    runner: Runner,
    metrics: dict[str, Any],
    writer: CheckpointWriter,
) -> bool:
    """Save a checkpoint for each metric that is better than ever before.

    mmengine's method removes the old best file, then writes the new one. This
    one writes first, and if that fails, the old one remains the best.

    Args:
        hook (CheckpointHook): The hook, with its ``key_indicators``.
        runner (Runner): The runner.
        metrics (dict): Of the validation; None for those that are missing.
        writer (CheckpointWriter): Saves and removes.

    Returns:
        bool: Whether a checkpoint was to be saved.
    """
    kind = 'epoch' if hook.by_epoch else 'iter'
    step = getattr(runner, kind)
    if 'auto' in hook.key_indicators:
        hook._init_rule(hook.rules, [next(iter(metrics))])
    is_single = len(hook.key_indicators) == 1
    is_updated = False
    for key, rule in zip(hook.key_indicators, hook.rules):
        # The best one of another metric may be on its way.
        writer.settle(runner)
        suffix = '' if is_single else f'_{key}'
        info = runner.message_hub.runtime_info
        best = info.get(f'best_score{suffix}', hook.init_value_map[rule])
        score = metrics[key]
        if score is None or not hook.is_better_than[key](score, best):
            continue
        name = f'best_{key}_{hook.filename_tmpl.format(step)}'
        name = name.replace('/', '_')
        # Part of the checkpoint.
        before = _set_best(hook, runner, suffix, (score, writer.path(name)))
        text = (
            f'The best checkpoint with {score:0.4f} {key} at {step} {kind} '
            f'is saved to {name}.'
        )
        old = before[1] if before[1] != writer.path(name) else None
        writer.save(
            runner,
            name,
            dict(
                meta=dict(epoch=runner.epoch, iter=runner.iter),
                save_optimizer=False,
                save_param_scheduler=False,
            ),
            then=partial(_replace_best, runner, writer, text, old),
            undo=partial(_set_best, hook, runner, suffix, before),
        )
        is_updated = True
    return is_updated


def _replace_best(
    runner: Runner, writer: CheckpointWriter, text: str, old: str | None
) -> None:
    runner.logger.info(text)
    if old:
        writer.remove(old)
        runner.logger.info(f'The previous best checkpoint {old} is removed')


def _set_best(
    hook: CheckpointHook, runner: Runner, suffix: str, best: tuple[Any, Any]
) -> tuple[Any, Any]:
    """Note score and path of the best checkpoint; return the old ones."""
    hub = runner.message_hub
    old_score = hub.runtime_info.get(f'best_score{suffix}')
    if suffix:
        paths, key = hook.best_ckpt_path_dict, suffix[1:]
    else:
        paths, key = vars(hook), 'best_ckpt_path'
    old_path, paths[key] = paths.get(key), best[1]
    for name, value in zip(('best_score', 'best_ckpt'), best):
        if value is not None:
            hub.update_info(name + suffix, value)
        elif name + suffix in hub.runtime_info:
            hub.pop_info(name + suffix)
    return old_score, old_path
