"""The hook that saves a run which is told to stop, or fails."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sized
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import (
    SAVE,
    SIGNALS,
    Request,
    StopSignal,
    resume_hint,
)
from mmstable.dist import collectives as dist
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import (
    RestartNeeded,
    StoppedBySignal,
    TimeLimitReached,
    TrainingDiverged,
    TrainingHangs,
    WorkDirInUse,
    add_note,
    exit_now,
    is_device_lost,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.safe_checkpoint_hook import (
    SafeCheckpointHook,
    resume_from_last,
)
from mmstable.io.lock import check_owned
from mmstable.loops.failure import is_half_updated, why_inexact
from mmstable.loops.workers import (
    WorkerDeaths,
    restart_signal_safe,
    use_signal_safe_workers,
)
from mmstable.messages import N_, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer
from mmstable.state.rng import own_rng

if TYPE_CHECKING:
    from mmstable.dist.store import AgreedRequests
    from mmstable.hang.stop_watch import StopWatch

_NAME = 'EmergencyCheckpointHook'
# Seconds that training has to obey a signal before a thread saves a snapshot.
# LSF kills 20 s after its first signal, Slurm and Kubernetes after 30 s.
_PATIENCE_S = 12.0
# When the run must be over, in seconds since 1970.
DEADLINES = ('MMSTABLE_DEADLINE', 'SLURM_JOB_END_TIME')
# What is left of that time for the last save: a share, and seconds at most.
_RESERVE, _LONGEST_RESERVE_S = 0.05, 60.0
# Phases in which a snapshot cannot be written over a save or an update.
_BUSY_PHASES = ('step', 'hook', 'checkpoint')

# By whether the signal ends the run, and whether a checkpoint was saved.
_OBEYED = {
    (False, False): N_(
        'mmstable: {signal}: nothing could be saved. Training continues.'
    ),
    (False, True): N_('mmstable: {signal}: saved {path}. Training continues.'),
    (True, False): N_(
        'mmstable: stopped by {signal}: no state that could be saved.'
    ),
    (True, True): N_('mmstable: stopped by {signal}: saved {path}. {resume}'),
}


@register_globally(HOOKS)
class EmergencyCheckpointHook(Hook):
    """Save what there is before a run ends ahead of time, or when asked to.

    On SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 or SIGXCPU the iteration that
    is on, of training or of validation, is finished first, and so is a window
    of gradient accumulation; all ranks agree. Then ``emergency_iter_N.pth``
    is saved. After SIGUSR1 training continues. After the others the command
    to resume is printed, and the run ends with exit code 128 + the signal's
    number. Further signals do not cut the save short; only Ctrl-C pressed
    twice on a terminal ends the run at once. If training does not get there
    within 12 seconds, a thread saves the newest snapshot in host memory, and
    ends the run. Workers of data loaders leave signals to the main process.

    Before a time limit (``mmstable train --max-time``, or that of a Slurm
    job) the run is saved and ends with exit code 25.

    On an exception the state after the last complete step is saved; with
    several processes by :class:`RankFailureHook`. If it cannot be brought
    back exactly, that is said; half-updated weights are not saved. This
    needs one of mmstable's loops, which tell hooks of exceptions. In all
    cases it needs :class:`SafeCheckpointHook`, which does the saving: a
    state with NaN in it is not saved.

    If the device is lost, nothing on it can be read. Then the newest snapshot
    in host memory is saved, with its own iteration in its name. If another
    run has taken over the work dir, nothing is saved.

    Args:
        interval (int): With several ranks, iterations between two checks
            whether one of them got a signal, where that takes a collective
            call: in validation, and in training if the ranks do not share
            gradients. Else they look after every step. Defaults to 10.
    """

    # After the checkpoint of this iteration, if there is one (VERY_LOW).
    priority = 'LOWEST'

    def __init__(self, interval: int = 10) -> None:
        self._signal = StopSignal(SIGNALS)
        self._deaths = WorkerDeaths()
        self._interval = integer(_NAME, 'interval', interval)
        self._is_training = False
        self._is_alone = True
        self._common_val_iters = 0
        self._last_look = 0
        self._coordinated_stop: AgreedRequests | None = None
        # Who has asked, if it was no signal.
        self._asker: str | None = None
        self._watch: StopWatch | None = None
        # Held while the training, or a thread, saves for the last time.
        self._ending = threading.Lock()
        self._stop_at = float('inf')
        self._last_iter_at = 0.0

    def request(self, asker: str, request: Request = SAVE) -> None:
        """Save on all ranks at the end of the window, as on a signal.

        Args:
            asker (str): Who wants it, for the log.
            request (Request): ``RESTART`` ends the run, too, with the exit
                code that asks for another start; others but ``SAVE`` just
                end it. Defaults to ``SAVE``.
        """
        if self._signal.pending in (None, SAVE):
            self._asker = asker
            self._signal.request(request)

    def before_train(self, runner: Runner) -> None:
        """Listen to signals from now on."""
        self._is_training = True
        self._is_alone = get_world_size() == 1
        if self._is_alone:
            # An iteration that fails has drawn random numbers.
            runner.train_loop.keeps_rng = True
        self._last_look = runner.iter
        self._coordinated_stop = None
        self._asker = None
        self._stop_at, self._last_iter_at = _stop_time(), time.time()
        if find_sharing(runner.model) in (Sharing.REDUCED, Sharing.SHARDED):
            from mmstable.dist.store import AgreedRequests
            from mmstable.io import schema

            self._coordinated_stop = AgreedRequests(
                'coordinated_stop', signal=schema.one_of(*Request.__members__)
            )
        if not self._signal.install():
            runner.logger.warning(
                _(
                    'EmergencyCheckpointHook: training runs outside the main '
                    'thread, and only that one receives signals.'
                )
            )
            return
        self._deaths.install()
        restart_signal_safe(runner.train_loop)
        from mmstable.hang.stop_watch import StopWatch

        self._watch = StopWatch(
            [Request[name] for name in SIGNALS if name != SAVE.name],
            _PATIENCE_S,
            partial(self._end_late, runner),
        )
        self._watch.start()

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Raise here, between two steps, if a worker has died."""
        if self._deaths.is_pending:
            self._deaths.raise_pending()

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: dict | None = None,
    ) -> None:
        """Obey a signal, if no accumulation window is open."""
        check_owned()
        now = time.time()
        if now + 2 * (now - self._last_iter_at) > self._stop_at:
            self.request(_('the time limit'), Request.DEADLINE)
        self._last_iter_at = now
        if self._is_alone:
            if self._signal.pending is not None and (
                not runner_view.window_is_open(runner, runner.iter + 1)
            ):
                self._obey(runner, self._signal.pending)
            return
        iteration, stop = runner.iter + 1, self._coordinated_stop
        if stop is not None and self._signal.pending is not None:
            # Before the others average, or they have to do it once more.
            stop.post(iteration, signal=self._signal.pending.name)
        if runner_view.window_is_open(runner, iteration):
            return
        if stop is None:
            self._look_together(runner, iteration)
            return
        request = stop.due(iteration)
        if request is not None:
            self._obey(runner, Request[request['signal']])

    def before_val(self, runner: Runner) -> None:
        """Agree on how many iterations all ranks are going to have."""
        if self._is_training:
            # A loop may have data without a length.
            loader = getattr(runner.val_loop, 'dataloader', None)
            length = len(loader) if isinstance(loader, Sized) else 2**31
            self._common_val_iters = dist.least_of_ranks(length)
            self._last_look = 0
            use_signal_safe_workers(loader)

    before_val_iter = before_train_iter

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: DATA_BATCH = None,
        outputs: Any = None,
    ) -> None:
        """Obey a signal; half of them arrive here."""
        if not self._is_training:
            return
        if runner_view.window_is_open(runner, runner.iter):
            return
        # Nobody would answer a rank that has more to validate than others.
        if batch_idx < self._common_val_iters:
            self._look_together(runner, batch_idx + 1)

    def after_val(self, runner: Runner) -> None:
        """Count iterations of training again."""
        self._last_look = runner.iter

    def after_train(self, runner: Runner) -> None:
        """Leave the signals to others."""
        self._leave()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Save the last complete state, unless that was done already."""
        try:
            # Saved already, not worth saving, or not to be written any more.
            is_done = (StoppedBySignal, TrainingDiverged, WorkDirInUse)
            if not isinstance(exception, is_done):
                self._save_what_is_left(runner, exception)
        finally:
            self._leave()

    def save_hanging(self, runner: Runner) -> str | None:
        """Save the last complete state of a run that hangs, if it is exact.

        To be called from another thread, after
        :meth:`~mmstable.loops.train_step.TrainStep.freeze`.
        """
        runner.train_loop.train_step.undo_failed()
        rng = own_rng(runner, runner_view.iterations_done(runner))
        if not rng or is_half_updated(runner):
            return None
        if why_inexact(runner, TrainingHangs()) is not None:
            return None
        return self._save(runner, rng)

    def _end_late(self, runner: Runner, number: int) -> None:
        """Save a snapshot, and end a run that does not get to obey a signal.

        Called from another thread: an iteration takes long, or the device
        does not respond. The ranks of a run would write the same file: the
        main process does.
        """
        from mmstable.dist.failure import report_failure
        from mmstable.hang.watchdog import TrainingThread

        if not is_main_process() or unsaved_snapshot(runner) is None:
            return
        step = getattr(runner.train_loop, 'train_step', None)
        if step is None or not self._ending.acquire(blocking=False):
            # It is being saved.
            return
        step.freeze()
        # Nor may a hook of the training save at the same time.
        runner.call_hook = partial(_call_hook, runner.call_hook)
        training = TrainingThread(threading.main_thread().ident)
        while training.phase().name in _BUSY_PHASES:
            time.sleep(0.05)
        error = _error_of(Request(number))
        try:
            log = runner_view.find_hook(runner, EventLogHook)
            if log is not None:
                log.on_exception(runner, error)
            save_newest_snapshot(
                runner, _('the iteration does not end in time')
            )
            report_failure(error)
        finally:
            exit_now(error.exit_code)

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
        self._is_training = False
        self._deaths.uninstall()
        self._signal.uninstall()

    def _look_together(self, runner: Runner, iteration: int) -> None:
        """Obey a signal to any rank. A collective call, now and then."""
        if not self._is_alone and (
            iteration - self._last_look < self._interval
        ):
            return
        self._last_look = iteration
        number = dist.most_of_ranks(self._signal.pending or 0)
        if number:
            self._obey(runner, Request(number))

    def _obey(self, runner: Runner, request: Request) -> None:
        """Save; stop if the request is to stop. A collective call."""
        with self._ending:
            path = self._save(runner)
        asker, self._asker = self._asker or request.name, None
        ends, is_saved = request is not SAVE, path is not None
        facts = dict(signal=asker, path=path, resume=resume_hint(runner, path))
        if is_main_process():
            log = runner.logger.warning if ends else runner.logger.info
            log(_(_OBEYED[ends, is_saved], **facts))
        if ends:
            raise _error_of(request)
        self._signal.saved()

    def _save_what_is_left(
        self, runner: Runner, exception: BaseException
    ) -> None:
        error = type(exception).__name__
        if isinstance(exception, SystemExit):
            error = f'sys.exit({exception.code})'
        if self._is_alone and is_device_lost(exception):
            __, resume = save_newest_snapshot(runner, describe_lost(exception))
            add_note(exception, resume)
            return
        if not self._is_alone:
            if not any(hasattr(h, 'saves_on_exception') for h in runner.hooks):
                runner.logger.error(
                    _(
                        '{error} on this rank: no emergency checkpoint '
                        'without RankFailureHook, because the other ranks '
                        'may be waiting.',
                        error=error,
                    )
                )
            return
        if is_half_updated(runner):
            resume = resume_from_last(runner)
            line = N_(
                'mmstable: training failed with {error} while the weights '
                'were being updated, so no emergency checkpoint is saved. '
                '{resume}'
            )
            runner.logger.error(_(line, error=error, resume=resume))
            add_note(exception, resume)
            return
        done = runner_view.iterations_done(runner)
        reason = why_inexact(runner, exception)
        path = self._save(runner, own_rng(runner, done), reason)
        if path is None:
            return
        line = N_(
            'mmstable: training failed with {error}. The state before it '
            'is saved in {path}. {resume}'
        )
        if reason is not None:
            line = N_(
                'mmstable: training failed with {error}. The state is saved '
                'in {path}, but it is not exactly the one before: {reason}. '
                '{resume}'
            )
        resume = resume_hint(runner, path)
        facts = dict(error=error, path=path, resume=resume, reason=reason)
        runner.logger.error(_(line, **facts))
        add_note(exception, resume)
        number = self._signal.pending
        if number is not None and number is not SAVE:
            # It was about to stop, which may be what the exception is about.
            raise _error_of(number)

    def _save(
        self,
        runner: Runner,
        rng: Mapping[int, Any] | None = None,
        inexact: str | None = None,
    ) -> str | None:
        saver = runner_view.find_hook(runner, SafeCheckpointHook)
        if saver is None and not isinstance(runner, Runner):
            from mmstable.hooks.engine_hook import save_by_strategy

            return save_by_strategy(runner)
        if saver is None:
            runner.logger.warning(
                _(
                    'EmergencyCheckpointHook: nothing is saved without '
                    'SafeCheckpointHook (default_hooks.checkpoint).'
                )
            )
            return None
        if rng:
            return saver.save_alone(runner, rng, inexact)
        return saver.save_emergency(runner, inexact)


def describe_lost(error: BaseException) -> str:
    """Describe why a device cannot be read after a sticky error."""
    line = str(error).partition('\n')[0]
    return _('the device is lost ({error})', error=line)


def unsaved_snapshot(runner: Runner) -> Any:
    """Return the newest snapshot in host memory; None if it is saved."""
    owner = next(
        (one for one in runner.hooks if hasattr(one, 'newest_snapshot')), None
    )
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    snapshot = None if owner is None else owner.newest_snapshot()
    if snapshot is None or saver is None:
        return None
    is_newer = snapshot.meta['iter'] > (saver.last_iteration or 0)
    return snapshot if is_newer else None


def save_newest_snapshot(
    runner: Runner, reason: str | None = None
) -> tuple[str | None, str]:
    """Save the newest state in host memory: the live one cannot be read.

    Args:
        runner (Runner): The runner.
        reason (str, optional): Why it cannot be read; None if the device
            does not respond. Defaults to None.

    Returns:
        tuple: The checkpoint, if there is one, and what to do now.
    """
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    snapshot, path = unsaved_snapshot(runner), None
    if snapshot is not None and saver is not None:
        path = saver.save_snapshot(runner, snapshot)
    reason = reason or _('the device does not answer')
    if snapshot is None or path is None:
        resume = resume_from_last(runner)
        text = _(
            'mmstable: {reason}: its state cannot be read, and no snapshot '
            'is newer than the last checkpoint. {resume}',
            reason=reason,
            resume=resume,
        )
    else:
        done = runner_view.iterations_done(runner)
        resume = resume_hint(runner, path)
        text = _(
            'mmstable: {reason}: its state after iteration {done} cannot be '
            'read. The newest snapshot in host memory, of iteration '
            '{iteration}, is saved in {path}. {resume}',
            reason=reason,
            done=done,
            iteration=snapshot.meta['iter'],
            path=path,
            resume=resume,
        )
    runner.logger.error(text)
    return path, resume


def _stop_time() -> float:
    """Return when the run has to begin its last save."""
    ends = [os.environ.get(name, '') for name in DEADLINES]
    left = [float(end) - time.time() for end in ends if end.isdigit()]
    if not left:
        return float('inf')
    reserve = min(_LONGEST_RESERVE_S, _RESERVE * min(left))
    return time.time() + min(left) - reserve


def _call_hook(call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Call hooks, but let the training thread wait for the end."""
    if threading.current_thread() is threading.main_thread():
        threading.Event().wait()
    call(*args, **kwargs)


def _error_of(request: Request) -> StoppedBySignal:
    if request is Request.RESTART:
        return RestartNeeded()
    if request is Request.DEADLINE:
        return TimeLimitReached()
    return StoppedBySignal(request.name, request)
