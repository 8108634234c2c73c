"""The hook that ends all ranks when one of them has failed."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_rank, get_world_size
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import RESUME_FROM_NEWEST, resume_hint
from mmstable.errors import (
    MMStableError,
    PeerFailedError,
    StoppedBySignal,
    add_note,
    is_device_lost,
)
from mmstable.hooks.emergency_checkpoint_hook import (
    describe_lost,
    save_newest_snapshot,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.hooks.step_hook import QuietHook
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
# Words of torch's backends for a rank that does not answer any more.
_SECOND_HAND = ('gloo', 'nccl', 'connection', 'broken pipe', 'timed out')


@register_globally(HOOKS)
class RankFailureHook(QuietHook):
    """Let an exception on one rank reach all others within seconds.

    Without it they wait in a collective for the one that never comes, until
    torch's timeout of 10 or 30 minutes. The failure goes through the store,
    not through a collective. Every rank writes its stack to
    ``stability/stacks.rankN.txt``; the one that failed saves
    ``emergency_iter_N.pth``, if all ranks hold the same state; the others
    say why, and end with exit code 21. If its device is lost, another rank
    saves. A rank that was killed is noticed too; then the newest regular
    checkpoint is the one to resume from.

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
        # Held by the thread that saves, to the end of the process.
        self._saving = threading.Lock()

    def before_train(self, runner: Runner) -> None:
        """Start to watch."""
        if get_world_size() == 1:
            return
        from mmstable.dist.failure import PeerWatch

        self._failure = None
        self._watch = PeerWatch(
            lambda failure: self._leave(runner, failure),
            self._interval,
            self._lost_after,
        )
        self._watch.start()
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
            self._raise_failure(self._failure)

    def after_train(self, runner: Runner) -> None:
        """All went well."""
        self._stop()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Tell the others, save, and wait until they know."""
        watch = self._watch
        if watch is None:
            return
        if isinstance(exception, MMStableError):
            if not isinstance(exception, StoppedBySignal):
                # Most likely all ranks have it, and each says it by itself.
                watch.report(
                    runner_view.iterations_done(runner),
                    _name(exception),
                    decided=True,
                )
                watch.leave('result', '')
            self._stop()
            return
        from mmstable.hang.report import write_exception

        write_exception(
            runner_view.stability_folder(runner), get_rank(), exception
        )
        failure = self._find_reason(watch, runner, exception)
        if failure.rank != get_rank():
            self._help(runner, watch, failure, exception)
            self._leave_last(watch)
            self._stop()
            raise _error(failure) from exception
        if failure.saver < 0:
            path = self._save_for_all(watch, runner, exception)
        else:
            path = self._let_save(watch, runner, failure, exception)
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
        self,
        runner: Runner,
        error: BaseException,
        may_save: bool,
        is_readable: bool,
    ) -> str | None:
        """End all ranks, from another thread of one that hangs.

        Args:
            runner (Runner): The runner.
            error (BaseException): What the others are told.
            may_save (bool): Whether the state is that after an iteration.
            is_readable (bool): Whether the device answers.

        Returns:
            str or None: The checkpoint, if one was saved.
        """
        watch = self._watch
        if watch is None:
            return None
        path = None
        with suppress(_STORE_GONE):
            failure = self._find_reason(watch, runner, error)
            if failure.rank != get_rank():
                self._help(runner, watch, failure, error)
            elif not is_readable:
                path = self._save_snapshot(watch, runner)
            elif may_save:
                path = self._save_for_all(watch, runner, error)
            else:
                watch.leave('result', '')
            self._leave_last(watch)
        return path

    def _save_for_all(
        self, watch: PeerWatch, runner: Runner, exception: BaseException
    ) -> str | None:
        """Save, and tell the others what."""
        if is_device_lost(exception):
            return self._save_snapshot(watch, runner, describe_lost(exception))
        path = self._save(watch, runner, exception)
        watch.leave('result', os.path.basename(path or ''))
        return path

    def _save_snapshot(
        self, watch: PeerWatch, runner: Runner, reason: str | None = None
    ) -> str | None:
        """Save what is in host memory, and tell the others."""
        path, __ = save_newest_snapshot(runner, reason)
        watch.leave('result', os.path.basename(path or ''))
        return path

    def _let_save(
        self,
        watch: PeerWatch,
        runner: Runner,
        failure: PeerFailure,
        exception: BaseException,
    ) -> str | None:
        """Let another rank save; this one can only save a snapshot."""
        name = None
        with suppress(_STORE_GONE):
            watch.leave('state', pack(*kept_rng(runner)))
            name = self._await_result(watch, failure)
        if name is None:
            return save_newest_snapshot(runner, describe_lost(exception))[0]
        return _in_folder(runner, name)

    def _save_instead(
        self, watch: PeerWatch, runner: Runner, failure: PeerFailure
    ) -> str | None:
        """Save for a rank that cannot, from the thread that watches it."""
        from mmstable.hang.stop_watch import await_standstill
        from mmstable.state.device import answers

        if not self._saving.acquire(blocking=False):
            # The training has noticed the failure, and saves.
            return None
        step = getattr(runner.train_loop, 'train_step', None)
        if step is None:
            watch.leave('result', '')
            return None

        step.freeze()
        await_standstill(self._grace)
        if not answers(runner_view.device_of(runner.model), self._grace):
            return self._save_snapshot(watch, runner)
        step.undo_failed()
        return self._save_for_all(watch, runner, _error(failure))

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
        saver = -1
        if is_device_lost(exception):
            saver = 0 if get_rank() else 1
        return watch.report(
            runner_view.iterations_done(runner), _name(exception), saver=saver
        )

    def _help(
        self,
        runner: Runner,
        watch: PeerWatch,
        failure: PeerFailure,
        exception: BaseException,
    ) -> None:
        """Give the rank that saves what it needs, and time.

        This rank has failed as well. If it left now, a launcher would end
        the others, and the store could be gone.
        """
        with suppress(_STORE_GONE):
            if failure.saver != get_rank():
                watch.leave('state', pack(*kept_rng(runner)))
                self._await_result(watch, failure)
                return
            # The thread that watches may be at it.
            with self._saving:
                self._save_for_all(watch, runner, exception)

    def _leave_last(self, watch: PeerWatch) -> None:
        """Wait for all others on rank 0, which may hold the store."""
        if get_rank() != 0:
            return
        deadline = time.monotonic() + self._grace
        others = range(1, get_world_size())
        with suppress(_STORE_GONE):
            while time.monotonic() < deadline and not all(
                watch.has_left(rank) for rank in others
            ):
                time.sleep(0.05)

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
        rng = collect_rng(
            runner,
            lambda rank: watch.read('state', rank, unpack),
            runner_view.iterations_done(runner),
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
        saver = runner_view.find_hook(runner, SafeCheckpointHook)
        return None if saver is None else saver.save_alone(runner, rng, reason)

    def _leave(self, runner: Runner, failure: PeerFailure) -> None:
        """End this rank, from the thread that watches the others."""
        watch = self._watch
        if watch is None:
            return
        from mmstable.hang.report import write_stacks

        write_stacks(runner_view.stability_folder(runner), get_rank(), failure)
        path = None
        with suppress(_STORE_GONE):
            if failure.saver == get_rank():
                path = self._save_instead(watch, runner, failure)
            else:
                watch.leave('state', pack(*kept_rng(runner)))
                path = _in_folder(runner, self._await_result(watch, failure))
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
        """The name of the checkpoint that a rank has saved for all."""
        if failure.iteration < 0:
            # It is gone without a word.
            return None
        saver = failure.rank if failure.saver < 0 else failure.saver
        beat, seen_at = None, time.monotonic()
        # It may take its time to save, as long as it is alive.
        while time.monotonic() - seen_at < self._grace:
            result = watch.read('result', saver, _read_name)
            if result is not None or self._watch is not watch:
                return result or None
            now = watch.last_beat(saver)
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


def _say_goodbye(
    runner: Runner, failure: PeerFailure, path: str | None
) -> None:
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
