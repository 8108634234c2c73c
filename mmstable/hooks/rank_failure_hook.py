"""The hook that ends all ranks when one of them has failed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import text
from mmstable.checkpoint.resume_hint import RESUME_FROM_NEWEST, resume_hint
from mmstable.distributed.heartbeat import PeerFailure, PeerWatch
from mmstable.errors import (
    MMStableError,
    PeerFailedError,
    StoppedBySignal,
    add_note,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.liveness.stacks import write_exception, write_stacks
from mmstable.loops.after_failure import (
    why_inexact,
    why_not_for_all,
    why_own_buffers,
)
from mmstable.messages import _
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.rng_keeper import RngKeeper, unpack
from mmstable.settings import number

_NAME = 'RankFailureHook'
# Words of torch's backends for a rank that does not answer any more.
_SECOND_HAND = ('gloo', 'nccl', 'connection', 'broken pipe', 'timed out')


@register_globally(HOOKS)
class RankFailureHook(Hook):
    """Let an exception on one rank reach all others within seconds.

    Without it they wait in a collective for the one that never comes, until
    torch's timeout of 10 or 30 minutes. The failure goes through the store,
    not through a collective. Every rank writes its stack to
    ``stability/stacks.rankN.txt``; the one that failed saves
    ``emergency_iter_N.pth``, if all ranks hold the same state; the others
    say why, and end with exit code 21. A rank that was killed is noticed
    too; then the newest regular checkpoint is the one to resume from.

    mmstable's loops tell it of exceptions. Saving takes
    :class:`SafeCheckpointHook`. With one process it does nothing.

    Args:
        interval (float): Seconds between two looks at the store. Defaults
            to 1.0.
        lost_after (float): Seconds without a sign of life until a rank
            counts as gone. Ranks are quicker when a collective fails.
            Defaults to 120.0.
        grace (float): Seconds that the others wait for the failed rank to
            save, and that this one waits for their answers. Defaults to
            10.0.
    """

    # Ahead of the hooks that record why a run has ended.
    priority = 'VERY_HIGH'
    saves_on_exception = True

    def __init__(
        self,
        interval: float = 1.0,
        lost_after: float = 120.0,
        grace: float = 10.0,
    ) -> None:
        self._interval = number(_NAME, 'interval', interval, above=0)
        self._lost_after = number(_NAME, 'lost_after', lost_after, above=0)
        self._grace = number(_NAME, 'grace', grace, above=0)
        self._watch: PeerWatch | None = None
        self._failure: PeerFailure | None = None
        self._keeper = RngKeeper()

    def before_train(self, runner: Runner) -> None:
        """Start to watch."""
        if get_world_size() == 1:
            return
        self._failure = None
        self._watch = PeerWatch(
            lambda failure: self._leave(runner, failure),
            self._interval,
            self._lost_after,
        )
        self._watch.start()
        if self._keeper not in runner.hooks:
            runner.register_hook(self._keeper, priority='LOWEST')

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """End this rank if another one has failed."""
        if self._failure is not None:
            self._raise_failure(self._failure)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """End this rank if another one has failed."""
        if self._failure is not None:
            self._raise_failure(self._failure)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Any = None,
    ) -> None:
        """End this rank if another one has failed."""
        if self._failure is not None:
            self._raise_failure(self._failure)

    def after_train(self, runner: Runner) -> None:
        """All went well."""
        self._stop()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Tell the others, save, and wait until they know."""
        watch = self._watch
        if watch is None:
            return
        if isinstance(exception, StoppedBySignal):
            self._stop()
            return
        if isinstance(exception, MMStableError):
            # Most likely all ranks have it, and each says it by itself.
            watch.report(
                run_view.iterations_done(runner),
                _name(exception),
                decided=True,
            )
            watch.leave('result', '')
            self._stop()
            return
        write_exception(_folder(runner), get_rank(), exception)
        failure = self._find_reason(watch, runner, exception)
        if failure.rank != get_rank():
            self._help(watch, failure)
            self._leave_last(watch)
            self._stop()
            raise _error(failure) from exception
        path = self._save_for_all(watch, runner, exception)
        resume = _describe(runner, path)
        runner.logger.error(
            _(
                'mmstable: {failure}. All ranks stop. {resume}',
                failure=failure,
                resume=resume,
            )
        )
        add_note(exception, resume)
        self._leave_last(watch)
        self._stop()

    def end_hanging(
        self, runner: Runner, error: BaseException, may_save: bool
    ) -> str | None:
        """End all ranks, from another thread of one that hangs.

        Args:
            runner (Runner): The runner.
            error (BaseException): What the others are told.
            may_save (bool): Whether the state is that after an iteration.

        Returns:
            str or None: The checkpoint, if one was saved.
        """
        watch = self._watch
        if watch is None:
            return None
        path = None
        try:
            failure = self._find_reason(watch, runner, error)
            if failure.rank != get_rank():
                self._help(watch, failure)
            elif may_save:
                path = self._save_for_all(watch, runner, error)
            else:
                watch.leave('result', '')
            self._leave_last(watch)
        except RuntimeError:
            # The store is gone.
            return path
        return path

    def _save_for_all(
        self, watch: PeerWatch, runner: Runner, exception: BaseException
    ) -> str | None:
        """Save, and tell the others what."""
        path = self._save(watch, runner, exception)
        watch.leave('result', os.path.basename(path or ''))
        return path

    def _raise_failure(self, failure: PeerFailure) -> None:
        self._stop()
        raise _error(failure)

    def _stop(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    def _find_reason(
        self, watch: PeerWatch, runner: Runner, exception: BaseException
    ) -> PeerFailure:
        """The failure that counts: this one, or what it comes from."""
        found = watch.failure()
        said = str(exception).lower()
        if found is None and any(word in said for word in _SECOND_HAND):
            found = watch.await_failure(self._grace)
        if found is not None:
            return found
        return watch.report(run_view.iterations_done(runner), _name(exception))

    def _help(self, watch: PeerWatch, failure: PeerFailure) -> None:
        """Give the rank that saves what it needs, and time.

        This rank has failed as well. If it left now, a launcher would end
        the others, and the store could be gone.
        """
        try:
            watch.leave('state', self._keeper.pack())
            self._await_result(watch, failure)
        except RuntimeError:
            # The store is gone.
            return

    def _leave_last(self, watch: PeerWatch) -> None:
        """Wait for all others on rank 0, which may hold the store."""
        if get_rank() != 0:
            return
        deadline = time.monotonic() + self._grace
        try:
            while time.monotonic() < deadline:
                others = range(1, get_world_size())
                if all(watch.has_left(rank) for rank in others):
                    return
                time.sleep(0.05)
        except RuntimeError:
            # It was elsewhere, and is gone.
            return

    def _save(
        self, watch: PeerWatch, runner: Runner, exception: BaseException
    ) -> str | None:
        reason = why_not_for_all(runner)
        if reason is not None:
            runner.logger.error(
                _(
                    'mmstable: no emergency checkpoint, because {reason}.',
                    reason=reason,
                )
            )
            return None
        rng = self._keeper.collect(
            lambda rank: watch.read('state', rank, unpack),
            run_view.iterations_done(runner),
            self._grace,
        )
        reason = why_inexact(runner, exception) or why_own_buffers(runner)
        if reason is not None:
            runner.logger.error(
                _(
                    'mmstable: what is saved is not exactly the state '
                    'before: {reason}.',
                    reason=reason,
                )
            )
        saver = run_view.find_hook(runner, SafeCheckpointHook)
        return None if saver is None else saver.save_alone(runner, rng)

    def _leave(self, runner: Runner, failure: PeerFailure) -> None:
        """End this rank, from the thread that watches the others."""
        watch = self._watch
        if watch is None:
            return
        write_stacks(_folder(runner), get_rank(), failure)
        try:
            watch.leave('state', self._keeper.pack())
            path = _in_folder(runner, self._await_result(watch, failure))
        except RuntimeError:
            # The store is gone, too.
            path = None
        # The training itself can end in better order, unless it waits.
        patience = self._grace
        if not failure.decided:
            self._failure = failure
            patience = 2 * self._interval
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self._watch is not watch or watch.is_stopped:
                return
            time.sleep(0.05)
        try:
            _say_goodbye(runner, failure, path)
            self._leave_last(watch)
            watch.stop()
        finally:
            # The training waits for a rank that never comes.
            os._exit(PeerFailedError.exit_code)

    def _await_result(
        self, watch: PeerWatch, failure: PeerFailure
    ) -> str | None:
        """The name of the checkpoint that the failed rank has saved."""
        if failure.iteration < 0:
            # It is gone without a word.
            return None
        beat, seen_at = None, time.monotonic()
        # It may take its time to save, as long as it is alive.
        while time.monotonic() - seen_at < self._grace:
            result = watch.read('result', failure.rank, _read_name)
            if result is not None or self._watch is not watch:
                return result or None
            now = watch.last_beat(failure.rank)
            if now != beat:
                beat, seen_at = now, time.monotonic()
            time.sleep(0.1)
        return None


def _name(exception: BaseException) -> str:
    return f'{type(exception).__name__}: {exception}'


def _read_name(value: Any) -> str:
    """A file name that came out of the store."""
    name = text(255)(value)
    if name != os.path.basename(name) or name in ('.', '..'):
        raise ValueError('must be the name of a file, without a folder')
    return name


def _in_folder(runner: Runner, name: str | None) -> str | None:
    """A checkpoint in the folder of this run."""
    saver = run_view.find_hook(runner, SafeCheckpointHook)
    if saver is None or not saver.out_dir or not name:
        return None
    return os.path.join(saver.out_dir, name)


def _folder(runner: Runner) -> Path:
    return run_view.stability_folder(runner)


def _describe(runner: Runner, path: str | None) -> str:
    if path is None:
        return _(RESUME_FROM_NEWEST)
    return _(
        'Saved {path}. {resume}', path=path, resume=resume_hint(runner, path)
    )


def _error(failure: PeerFailure) -> PeerFailedError:
    return PeerFailedError(_('{failure}. This rank stops.', failure=failure))


def _say_goodbye(
    runner: Runner, failure: PeerFailure, path: str | None
) -> None:
    error = _error(failure)
    log = run_view.find_hook(runner, EventLogHook)
    if log is not None:
        log.on_exception(runner, error)
    resume, folder = _describe(runner, path), _folder(runner)
    runner.logger.error(
        _(
            'mmstable: {error} {resume} Its stack is in {folder}.',
            error=error,
            resume=resume,
            folder=folder,
        )
    )
