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
    checkpoint/storage.py: _read_back      read back
    checkpoint/reader/formats.py: archive  as a resume would
    io/files.py: sync_folder               renamed, and on disk
    checkpoint/manifest.py: write          noted in the manifest
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable

from mmengine.dist import (
    broadcast_object_list,
    get_world_size,
    is_main_process,
)
from mmengine.hooks import CheckpointHook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.audit import (
    Placeholders,
    list_culprits,
    steps_are_good,
)
from mmstable.checkpoint.content import build, capture, content_size
from mmstable.checkpoint.folders import EMERGENCY
from mmstable.checkpoint.manifest import LABEL, Lineage
from mmstable.checkpoint.shards import (
    SHARDS,
    find_poison_on_all,
    is_sharded_run,
    local_parts,
    remove_shards,
)
from mmstable.checkpoint.storage import CheckpointStorage, warn
from mmstable.errors import ConfigError, ResultNotSaved
from mmstable.events import Culprit, records
from mmstable.messages import N_, _
from mmstable.optim.observer import monitor_of
from mmstable.state.run_state import RunState, name_saved_states
from mmstable.state.snapshot import Snapshot

_NOT_SAVED = N_('mmstable: {name} is not saved: {reason}.{last_good}')


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
        return _('not finite: {names}', names=list_culprits(self.culprits))


@dataclass
class PendingSave:
    """A checkpoint on its way to the disk.

    Args:
        name (str): The name of the file.
        meta (Mapping): Epochs and iterations done.
        state (Mapping, optional): State of the run for a resume; without it,
            only the weights are saved. Defaults to None.
        then (Callable): Called on the main process after it was saved.
        undo (Callable): Takes back, on all ranks, the announcement of a
            checkpoint that was not saved.
    """

    name: str
    meta: Mapping[str, int]
    state: Mapping[str, Any] | None = None
    then: Callable[[], object] = int
    undo: Callable[[], object] = int
    failure: BaseException | None = None
    # Whether nothing in it that is not finite has reached a step.
    steps_are_good: bool = False
    # Whether all ranks know the verdict of the audit.
    is_agreed: bool = False
    is_reported: bool = False
    # Whether the run was rolled back since: no poison is left in it.
    is_superseded: bool = False
    audited: threading.Event = field(default_factory=threading.Event)
    # Writes it in the background; the process waits for its end.
    thread: threading.Thread | None = None

    def wait(self) -> bool:
        """Wait for the thread; whether the checkpoint is known to be saved."""
        if self.thread is not None:
            self.thread.join()
        return self.failure is None and is_main_process()


class CheckpointWriter:
    """Saves on the main process, or the part of each rank of a sharded run.

    Only one checkpoint is on its way at a time. A checkpoint that cannot be
    saved, because it is poisoned or because the disk fails twice, is
    reported, and the run goes on. Any other error is raised on all ranks.

    Args:
        hook (CheckpointHook): Whose checkpoints these are, after it has found
            its back-end.
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
        self.storage = CheckpointStorage(hook, lineage)
        self._placeholders = placeholders
        self._max_unsaved = max_unsaved
        self._free_memory = free_memory
        # When and how often storage failed before anything was saved.
        self._first_failure: float | None = None
        self._failures = 0
        # The one on its way.
        self.pending: PendingSave | None = None
        # The newest checkpoint to resume from.
        self.last_good: str | None = None
        # Why the newest checkpoint was not saved.
        self.failure: BaseException | None = None

    def save(
        self,
        runner: Any,
        name: str,
        meta: Mapping[str, int],
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
            meta (Mapping): Epochs and iterations done.
            state (Mapping, optional): State of the run for a resume; without
                it, only the weights are saved. Defaults to None.
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
        pending = PendingSave(name, meta, state, then, undo)
        if is_sharded_run(runner):
            self._save_shards(runner, pending)
        elif is_main_process():
            waits = self._free_memory is None
            self._write(runner, pending, snapshot, waits=waits)
        self.pending = pending
        # Not whether it is still running: ranks and runs would differ.
        in_background = [pending.thread is not None]
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
            _named(runner, pending.failure),
            self._is_overdue(pending.failure),
        ]
        broadcast_object_list(outcome)
        self.pending, self.failure = None, outcome[0]
        if self.failure is None:
            self.last_good = self.storage.path(pending.name)
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
                    free=self.storage.free_space(),
                    folder=self.storage.folder,
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
        elif pending.thread is not None and not pending.thread.is_alive():
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

    def save_alone(
        self,
        runner: Any,
        name: str,
        meta: Mapping[str, int],
        state: Mapping[str, Any],
    ) -> bool:
        """Save on this rank at once, without the other ranks.

        Args:
            runner (Runner or FlexibleRunner): The runner.
            name (str): The name of the file.
            meta (Mapping): As for :meth:`save`.
            state (Mapping): As for :meth:`save`.

        Returns:
            bool: Whether it was saved; if not, the reason is logged.
        """
        pending = PendingSave(name, meta, state)
        self._write(runner, pending)
        failure = _named(runner, pending.failure)
        if failure is not None:
            runner.logger.error(
                _(_NOT_SAVED, name=name, reason=failure, last_good='')
            )
        return failure is None

    def probe(self, runner: Runner) -> None:
        """Report at the start if checkpoints will not be saved."""
        is_built = isinstance(runner.optim_wrapper, OptimWrapper)
        if not self.storage.is_local or not is_built or is_sharded_run(runner):
            return
        try:
            self.storage.check_space(RunState(runner).size())
        except OSError as error:
            runner.logger.error(
                _(
                    'mmstable: no checkpoint can be saved in {folder}: '
                    '{reason}. Make room while it trains.',
                    folder=self.storage.folder,
                    reason=error,
                )
            )

    def _write(
        self,
        runner: Any,
        pending: PendingSave,
        snapshot: Snapshot | None = None,
        shards: dict[str, Any] | None = None,
        groups: Any = None,
        waits: bool = True,
    ) -> None:
        """Build a checkpoint; capture it for a thread, or write it at once."""
        pending.steps_are_good = steps_are_good(runner)
        kept = {} if snapshot is None else snapshot.memory.storages()
        try:
            checkpoint = build(
                runner, pending.meta, *self._parts(pending), groups, kept
            )
            own = checkpoint.setdefault('mmstable', {})
            own[type(self._hook).__name__] = dict(pending.state or {})
            own[LABEL] = {
                'kind': self._kind(pending.name),
                'lineage': self.storage.lineage.as_dict(),
            }
            if shards is not None:
                own[SHARDS] = shards
            captured = None if waits else self._capture(checkpoint, kept)
        except Exception as error:
            pending.failure = error
            return
        work = partial(self._work, pending, captured or checkpoint, snapshot)
        if captured is None:
            work()
            return
        if snapshot is not None:
            snapshot.memory.is_lent = True
        pending.thread = threading.Thread(target=work, name='mmstable-save')
        pending.thread.start()

    def _parts(self, pending: PendingSave) -> tuple[bool, bool]:
        """Whether to save the optimizer, and the schedules."""
        is_whole = pending.state is not None
        hook = self._hook
        return (
            is_whole and hook.save_optimizer,
            is_whole and hook.save_param_scheduler,
        )

    def _kind(self, name: str) -> str:
        """Why a checkpoint is saved, which decides what may remove it."""
        for kind, begin in ('emergency', EMERGENCY[:10]), ('best', 'best_'):
            if name.startswith(begin):
                return kind
        return 'rolling' if self._hook.max_keep_ckpts > 0 else 'kept'

    def _capture(
        self, checkpoint: dict[str, Any], kept: Mapping[int, Any]
    ) -> dict[str, Any] | None:
        """Copy a checkpoint; None if training has to wait for the writer."""
        needed = content_size(checkpoint, kept)
        if not self.storage.is_local:
            # Serialized, and read back.
            needed += 2 * content_size(checkpoint)
        try:
            free = self._free_memory() if self._free_memory else 0
        except OSError:
            # Containers may hide it: nothing is known to be free.
            return None
        try:
            if needed <= free:
                return capture(checkpoint, kept)
            reason = _(
                '{needed} MiB of host memory are needed to copy it, {free} '
                'MiB are free',
                needed=needed >> 20,
                free=free >> 20,
            )
        except Exception as error:
            # A hook has added an object that cannot be copied.
            text = f'{type(error).__name__}: {error}'
            reason = _('it cannot be copied: {error}', error=text)
        warn(
            _(
                'mmstable: training waits for this checkpoint to be written: '
                '{reason}.',
                reason=reason,
            )
        )
        return None

    def _work(
        self,
        pending: PendingSave,
        checkpoint: dict[str, Any],
        snapshot: Snapshot | None,
    ) -> None:
        """Audit and write; on the main thread or in the background."""
        try:
            if snapshot is not None:
                snapshot.wait()
            poison, known = self._placeholders.audit(
                checkpoint, pending.steps_are_good
            )
            if poison:
                raise Poisoned(poison)
            own = checkpoint['mmstable'][type(self._hook).__name__]
            own['placeholders'] = known
            pending.audited.set()
            self.storage.write(pending.name, checkpoint)
        except BaseException as error:
            pending.failure = error
            if not threading.main_thread().is_alive():
                # The training has ended: nothing polls.
                warn(
                    _(
                        _NOT_SAVED,
                        name=pending.name,
                        reason=error,
                        last_good='',
                    )
                )
            return
        finally:
            pending.audited.set()
            if snapshot is not None:
                snapshot.memory.is_lent = False
        try:
            pending.then()
        except Exception as error:
            warn(
                _(
                    'mmstable: {name} is saved, but older checkpoints could '
                    'not be removed: {error}.',
                    name=pending.name,
                    error=f'{type(error).__name__}: {error}',
                )
            )

    def _save_shards(self, runner: Any, pending: PendingSave) -> None:
        """Save the shards of all ranks, then the file that names them."""
        if not self.storage.is_local:
            pending.failure = ConfigError(
                'SafeCheckpointHook saves shards to a local or shared disk '
                f'only, not to {self.storage.folder}.'
            )
            return
        parts, groups = local_parts(runner, self._parts(pending)[0])
        poison = find_poison_on_all(parts)
        if poison:
            pending.failure = Poisoned(poison)
            return
        from mmstable.checkpoint.shard_files import new_folder, write_shards

        path = Path(self.storage.path(pending.name))
        folder = new_folder(path)
        record, pending.failure = write_shards(parts, folder)
        if not is_main_process():
            pending.failure = None
            return
        if pending.failure is None:
            self._write(runner, pending, shards=record, groups=groups)
        if pending.failure is None:
            remove_shards(path, but=folder.name)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_overdue(self, failure: BaseException | None) -> bool:
        """Whether a run of which nothing was ever saved has to stop."""
        if self.last_good is not None or not isinstance(failure, OSError):
            return False
        now = time.monotonic()
        self._first_failure = self._first_failure or now
        return now - self._first_failure > 60 * self._max_unsaved

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
        level = logging.ERROR
        event: Any
        if isinstance(failure, Poisoned):
            text = _(
                'mmstable: poisoned: {name} is not saved, because the state '
                'of the run is {reason}.{last_good}',
                **facts,
            )
            event = records.Poisoned.now(
                pending.meta['iter'], culprits=tuple(failure.culprits)
            )
        else:
            text = _(_NOT_SAVED, **facts)
            if pending.meta['iter'] < runner.max_iters:
                text = _(
                    'mmstable: {name} is not saved: {reason}. Training '
                    'continues.{last_good}',
                    **facts,
                )
            event = records.CheckpointFailed.now(
                pending.meta['iter'], name=pending.name, reason=str(failure)
            )
            self._failures += 1
            if self.last_good is not None or self._failures == 1:
                level = logging.WARNING
            else:
                text += _(
                    ' NOTHING of this run is saved yet: it would be lost. '
                    '{free} are free in {folder}.',
                    free=self.storage.free_space(),
                    folder=self.storage.folder,
                )
        if is_main_process():
            runner.logger.log(level, text)
        if not (isinstance(failure, Poisoned) and pending.is_superseded):
            monitor_of(runner).emit(runner, event)


def _named(runner: Any, failure: BaseException | None) -> BaseException | None:
    """Return why a checkpoint was not saved, with names of parameters."""
    if isinstance(failure, Poisoned) and not is_sharded_run(runner):
        return Poisoned(name_saved_states(failure.culprits, runner))
    return failure
