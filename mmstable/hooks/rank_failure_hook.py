"""The hook that ends all ranks when one of them has failed."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.folders import EMERGENCY
from mmstable.checkpoint.signals import RESUME_FROM_NEWEST, resume_hint
from mmstable.errors import (
    MMStableError,
    PeerFailedError,
    StoppedBySignal,
    add_note,
    exit_now,
    is_device_lost,
)
from mmstable.hooks.emergency_checkpoint_hook import (
    describe_lost,
    save_newest_snapshot,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.hooks.step_hook import QuietHook
from mmstable.io.heartbeat import write_failure, write_heartbeat
from mmstable.io.schema import text
from mmstable.loops.failure import (
    why_inexact,
    why_not_for_all,
    why_own_buffers,
)
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import number
from mmstable.state.rng import collect_rng, kept_rng, pack, unpack

if TYPE_CHECKING:
    from mmstable.dist.failure import PeerFailure, PeerWatch

_NAME = 'RankFailureHook'
# What the store raises once it is gone; then each rank ends on its own.
_STORE_GONE = RuntimeError
# Seconds that saving may take, and that ranks wait for a sign of the one that
# saves, and that one for their answers.
_SAVING_S, _GRACE_S = 1800.0, 10.0


@register_globally(HOOKS)
class RankFailureHook(QuietHook):
    """Let a failure of one rank end all others within seconds.

    Without it they wait in a collective for the one that never comes, until
    torch's timeout of 10 or 30 minutes. The failure goes through the store,
    not through a collective. Every rank writes its stack to
    ``stability/stacks.rankN.txt`` and logs the same reason: the first
    failure. The others end with exit code 21.

    One rank saves ``emergency_iter_N.pth``, if all ranks hold the same
    state: the one that failed; another one if its device is lost; the one
    that noticed it if it was killed, stopped, or its machine or link is
    down. The random state of a lost rank is lost with it: then the weights
    are exact, and the log says what is not. Without a store to agree by, the
    first rank to lock the folder saves.

    mmstable's loops report exceptions to it. Saving takes
    :class:`SafeCheckpointHook`. With one process it does nothing.

    Args:
        lost_after (float): Seconds without a heartbeat until a rank counts
            as lost, and without a response until the store does. It is
            quicker when a collective fails. Defaults to 60.0.
    """

    # Ahead of the hooks that record why a run has ended.
    priority = 'VERY_HIGH'
    saves_on_exception = True

    def __init__(self, lost_after: float = 60.0) -> None:
        self._lost_after = number(_NAME, 'lost_after', lost_after, above=0)
        self._watch: PeerWatch | None = None
        self._failure: PeerFailure | None = None
        # The training thread and the one that watches both may save.
        self._saving = threading.Lock()
        self._rescue: _Rescue | None = None

    def before_train(self, runner: Runner) -> None:
        """Start to watch."""
        if get_world_size() == 1:
            return
        from mmstable.dist.failure import watch_ranks

        self._failure = self._rescue = None
        self._watch = watch_ranks()
        self._watch.configure(partial(self._leave, runner), self._lost_after)
        runner.train_loop.keeps_rng = True
        self.before_train_iter = self.after_val_iter  # type: ignore[method-assign]
        self.after_train_iter = self.after_val_iter  # type: ignore[method-assign]

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: Any = None,
    ) -> None:
        """End this rank if another one has failed."""
        if self._failure is not None:
            self._stop()
            raise _error(self._failure)

    def after_train(self, runner: Runner) -> None:
        """Stop watching."""
        self._stop()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Report it to the others, save, and wait until they know."""
        watch = self._watch
        if watch is None:
            return
        if isinstance(exception, MMStableError):
            if not isinstance(exception, (StoppedBySignal, PeerFailedError)):
                # Most likely all ranks have it, and each reports it.
                with suppress(_STORE_GONE):
                    _find_reason(watch, runner, exception)
                    watch.leave('result', '')
            self._stop()
            return
        from mmstable.hang.report import write_exception

        folder = runner_view.stability_folder(runner)
        write_exception(folder, get_rank(), exception)
        failure = _find_reason(watch, runner, exception)
        path = self._settle(_Rescue(runner, watch, failure, exception))
        self._end(watch)
        if failure.rank != get_rank():
            raise _error(failure) from exception
        resume = _describe(runner, path)
        runner.logger.error(
            _(
                'mmstable: {failure}. All ranks stop. {resume}',
                failure=failure,
                resume=resume,
            )
        )
        add_note(exception, resume)

    def end_hanging(
        self,
        runner: Runner,
        error: BaseException,
        may_save: bool,
        is_readable: bool,
    ) -> str | None:
        """End all ranks, from another thread of one that hangs.

        Args:
            runner (Runner): The runner.
            error (BaseException): The reason for the others.
            may_save (bool): Whether the state is that after an iteration.
            is_readable (bool): Whether the device responds.

        Returns:
            str or None: The checkpoint, if one was saved.
        """
        watch, path = self._watch, None
        if watch is None:
            return None
        failure = _find_reason(watch, runner, error)
        write_failure(failure)
        if may_save or not is_readable or failure.saver != get_rank():
            path = self._settle(
                _Rescue(runner, watch, failure, error, is_readable)
            )
        else:
            with suppress(_STORE_GONE):
                watch.leave('result', '')
        self._end(watch)
        return path

    def _settle(self, rescue: _Rescue) -> str | None:
        """Save, or let another rank save; return the checkpoint.

        The training thread and the one that watches may both come here: the
        second one waits for the first.
        """
        write_failure(rescue.failure)
        with self._saving:
            if self._rescue is None:
                self._rescue = rescue
                with suppress(_STORE_GONE):
                    rescue.saved = rescue.run()
            return self._rescue.saved

    def _leave(self, runner: Runner, failure: PeerFailure) -> None:
        """End this rank, from the thread that watches the others."""
        watch = self._watch
        if watch is None:
            return
        from mmstable.hang.report import write_stacks

        write_stacks(runner_view.stability_folder(runner), get_rank(), failure)
        path, patience_s = None, _GRACE_S
        if failure.decided:
            # What all ranks decide, the training of this one decides, too.
            write_failure(failure)
        else:
            path = self._settle(_Rescue(runner, watch, failure))
            # The training itself can end in better order, unless it waits.
            self._failure, patience_s = failure, 2 * watch.interval
        if watch.wait_for_stop(patience_s):
            return
        try:
            error = _error(failure)
            log = runner_view.find_hook(runner, EventLogHook)
            if log is not None:
                log.on_exception(runner, error)
            runner.logger.error(
                _(
                    'mmstable: {error} {resume} Its stack is in {folder}.',
                    error=error,
                    resume=_describe(runner, path),
                    folder=runner_view.stability_folder(runner),
                )
            )
            self._end(watch)
        finally:
            # The training waits for a rank that never comes.
            exit_now(PeerFailedError.exit_code)

    def _end(self, watch: PeerWatch) -> None:
        """Stop watching, on rank 0 after the others if it has the store."""
        keeps_store = os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != 'True'
        if get_rank() == 0 and keeps_store:
            watch.await_others(_GRACE_S)
        self._stop()

    def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()


@dataclass
class _Rescue:
    """The last save of a run that ends: by this rank or by another one.

    Args:
        runner (Runner): The runner.
        watch (PeerWatch): The connection to the other ranks.
        failure (PeerFailure): Why the run ends.
        exception (BaseException, optional): What this rank raised; None if
            the thread that watches the others saves. Defaults to None.
        is_readable (bool): Whether the device responds. Defaults to True.
        saved (str, optional): The checkpoint. Defaults to None.
    """

    runner: Runner
    watch: PeerWatch
    failure: PeerFailure
    exception: BaseException | None = None
    is_readable: bool = True
    saved: str | None = None

    def run(self) -> str | None:
        """Save, or wait for the rank that saves; return the checkpoint."""
        saver, error = self.failure.saver, self.exception
        lost = None
        if error is not None and is_device_lost(error):
            lost = describe_lost(error)
        if saver not in (get_rank(), -1):
            self.watch.leave('state', pack(*kept_rng(self.runner)))
            name = self._await_result()
            if name is None and lost is not None:
                return save_newest_snapshot(self.runner, lost)[0]
            return _in_folder(self.runner, name)
        write_heartbeat(_SAVING_S, 'checkpoint')
        is_readable, path = self.is_readable and lost is None, None
        if error is None:
            is_readable = _freeze(self.runner)
        if not is_readable:
            path, __ = save_newest_snapshot(self.runner, lost)
        elif saver >= 0:
            path = self._save()
        else:
            with _first_in(self.runner) as is_first:
                path = self._save() if is_first else None
        if saver >= 0:
            self.watch.leave('result', os.path.basename(path or ''))
        return path

    def _save(self) -> str | None:
        runner, failure = self.runner, self.failure
        reason = why_not_for_all(runner)
        if reason is not None:
            runner.logger.error(
                _(
                    'mmstable: no emergency checkpoint, because {reason}.',
                    reason=reason,
                )
            )
            return None
        patience_s = 0.0 if failure.saver < 0 else _GRACE_S
        if failure.saver >= 0 and failure.is_silent:
            patience_s = 2 * self.watch.interval
        done = runner_view.iterations_done(runner)
        rng = collect_rng(runner, self._read_state, done, patience_s)
        error = self.exception or _error(failure)
        missing = sorted({*range(get_world_size())} - {*rng, get_rank()})
        reason = why_inexact(runner, error) or why_own_buffers(runner)
        if missing and reason is None:
            reason = _(
                'the random state of rank {ranks} is lost', ranks=missing
            )
        if reason is not None:
            runner.logger.error(
                _(
                    'mmstable: what is saved is not exactly the state '
                    'before: {reason}.',
                    reason=reason,
                )
            )
        saver = runner_view.find_hook(runner, SafeCheckpointHook)
        return None if saver is None else saver.save_alone(runner, rng, reason)

    def _read_state(self, rank: int) -> Any:
        with suppress(_STORE_GONE):
            return self.watch.read('state', rank, unpack)
        return None

    def _await_result(self) -> str | None:
        """Wait for the name of the checkpoint that another rank saves."""
        watch, saver = self.watch, self.failure.saver
        beat, seen_at = None, time.monotonic()
        # It may take its time to save, as long as it sends heartbeats.
        while time.monotonic() - seen_at < _GRACE_S:
            result = watch.read('result', saver, _read_name)
            if result is not None or watch.is_stopped:
                return result or None
            now = watch.last_beat(saver)
            if now != beat:
                beat, seen_at = now, time.monotonic()
            time.sleep(0.1)
        return None


def _find_reason(
    watch: PeerWatch, runner: Runner, exception: BaseException
) -> PeerFailure:
    saver = int(get_rank() == 0) if is_device_lost(exception) else None
    done = runner_view.iterations_done(runner)
    return watch.find_reason(done, exception, saver)


def _freeze(runner: Runner) -> bool:
    """Stop the training thread; return whether the device responds."""
    from mmstable.hang.stop_watch import await_standstill
    from mmstable.state.device import answers

    step = getattr(runner.train_loop, 'train_step', None)
    if step is not None:
        step.freeze()
    await_standstill(_GRACE_S)
    if not answers(runner_view.device_of(runner.model), _GRACE_S):
        return False
    if step is not None:
        step.undo_failed()
    return True


@contextmanager
def _first_in(runner: Runner) -> Iterator[bool]:
    """Lock the folder of the checkpoints, which ranks may share.

    Yields:
        bool: Whether this rank is the first to save its iteration there.
    """
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    folder = saver.out_dir if saver and saver.out_dir else runner.work_dir
    path = Path(folder, EMERGENCY.format(runner_view.iterations_done(runner)))
    file, deadline = os.open(folder, os.O_RDONLY), time.monotonic() + _GRACE_S
    try:
        while time.monotonic() < deadline and not path.exists():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                # A network file system without locks: each rank saves.
                break
        yield time.monotonic() < deadline and not path.exists()
    finally:
        os.close(file)


def _read_name(value: Any) -> str:
    """Check a file name that came out of the store."""
    name = text(255)(value)
    if name != os.path.basename(name) or name in ('.', '..'):
        raise ValueError('must be the name of a file, without a folder')
    return name


def _in_folder(runner: Runner, name: str | None) -> str | None:
    """A checkpoint in the folder of this run."""
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    if saver is None or not saver.out_dir or not name:
        return None
    return os.path.join(saver.out_dir, name)


def _describe(runner: Runner, path: str | None) -> str:
    if path is None:
        return _(RESUME_FROM_NEWEST)
    return _(
        'Saved {path}. {resume}', path=path, resume=resume_hint(runner, path)
    )


def _error(failure: PeerFailure) -> PeerFailedError:
    return PeerFailedError(_('{failure}. This rank stops.', failure=failure))
