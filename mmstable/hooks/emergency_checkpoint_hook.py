"""The hook that saves a run which is told to stop, or fails."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Sized
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any

from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.checkpoint.signals import (
    RESTART,
    SAVE,
    SIGNALS,
    StopSignal,
    resume_hint,
)
from mmstable.dist import collectives as dist
from mmstable.dist.collectives import Sharing, find_sharing
from mmstable.errors import (
    RestartNeeded,
    StoppedBySignal,
    TrainingDiverged,
    TrainingHangs,
    add_note,
    is_device_lost,
)
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.safe_checkpoint_hook import (
    SafeCheckpointHook,
    resume_from_last,
)
from mmstable.loops.failure import is_half_updated, why_inexact
from mmstable.loops.workers import (
    WorkerDeaths,
    restart_signal_safe,
    use_signal_safe_workers,
)
from mmstable.messages import N_, _
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, names, one_of
from mmstable.state.rng import own_rng

if TYPE_CHECKING:
    from mmstable.dist.failure import CoordinatedStop
    from mmstable.hang.stop_watch import StopWatch

_NAME = 'EmergencyCheckpointHook'
# Seconds without an instruction of Python until a device is asked whether it
# works: less than schedulers wait between two signals.
_STANDSTILL_S = 4.0


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

    On a signal the iteration that is on, of training or of validation, is
    finished first, and so is a window of gradient accumulation; all ranks
    agree. Then ``emergency_iter_N.pth`` is saved. After SIGUSR1 training
    continues. After the others the command to resume is printed, and the run
    ends with exit code 128 + the signal's number. Another one ends it at
    once, but not within 5 seconds: then it is the same one. Workers of data
    loaders leave signals to the main process.

    On an exception the state after the last complete step is saved; with
    several processes by :class:`RankFailureHook`. If it cannot be brought
    back exactly, that is said; half-updated weights are not saved. This
    needs one of mmstable's loops, which tell hooks of exceptions. In all
    cases it needs :class:`SafeCheckpointHook`, which does the saving: a
    state with NaN in it is not saved.

    If the device is lost, or does not answer after a signal, nothing on it
    can be read. Then the newest snapshot in host memory is saved, with its
    own iteration in its name.

    Args:
        signals (Sequence[str]): What to listen to. Defaults to
            ('SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1').
        interval (int): With several ranks, iterations between two checks
            whether one of them got a signal, where that takes a collective
            call: in validation, and in training if the ranks do not share
            gradients. Else they look after every step. Defaults to 10.
    """

    # After the checkpoint of this iteration, if there is one (VERY_LOW).
    priority = 'LOWEST'

    def __init__(
        self, signals: Sequence[str] = SIGNALS, interval: int = 10
    ) -> None:
        for name in names(_NAME, 'signals', signals):
            one_of(_NAME, 'signals', name, SIGNALS)
        self._signal = StopSignal(names(_NAME, 'signals', signals))
        self._deaths = WorkerDeaths()
        self._interval = integer(_NAME, 'interval', interval)
        self._is_training = False
        self._is_alone = True
        self._common_val_iters = 0
        self._last_look = 0
        self._coordinated_stop: CoordinatedStop | None = None
        # Who has asked, if it was no signal.
        self._asker: str | None = None
        self._watch: StopWatch | None = None

    def request(self, asker: str, number: Signals = SAVE) -> None:
        """Save on all ranks at the end of the window, as on a signal.

        Args:
            asker (str): Who wants it, for the log.
            number (Signals): The signal: ``RESTART`` ends the run, too, with
                the exit code that asks for another start; others but
                ``SAVE`` just end it. Defaults to ``SAVE``.
        """
        # A second request to stop would end the process at once.
        if self._signal.pending in (None, SAVE):
            self._asker = asker
            self._signal.request(number)

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
        if find_sharing(runner.model) in (Sharing.REDUCED, Sharing.SHARDED):
            from mmstable.dist.failure import CoordinatedStop

            self._coordinated_stop = CoordinatedStop([*SIGNALS, RESTART.name])
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
        if runner_view.device_of(runner.model).type != 'cpu':
            from mmstable.hang.stop_watch import StopWatch

            self._watch = StopWatch(
                [Signals[name] for name in SIGNALS if name != SAVE.name],
                lambda: max(
                    _STANDSTILL_S, 3 * runner_view.iteration_time(runner)
                ),
                partial(self._end_stuck, runner),
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
        if self._is_alone:
            if self._signal.pending is not None and (
                not runner_view.window_is_open(runner, runner.iter + 1)
            ):
                self._obey(runner, self._signal.pending)
            return
        iteration, stop = runner.iter + 1, self._coordinated_stop
        if stop is not None and self._signal.pending is not None:
            # Before the others average, or they have to do it once more.
            stop.request(iteration, self._signal.pending)
        if runner_view.window_is_open(runner, iteration):
            return
        if stop is None:
            self._look_together(runner, iteration)
            return
        number = stop.due(iteration)
        if number is not None:
            self._obey(runner, number)

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
            # The first is saved already, the other not worth saving.
            if not isinstance(exception, (StoppedBySignal, TrainingDiverged)):
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

    def _end_stuck(self, runner: Runner, number: Signals) -> None:
        """End a run that cannot obey, because its device does not answer.

        Called from another thread. The ranks of a run would write the same
        file: the main process does.
        """
        from mmstable.state.device import answers

        if not is_main_process() or answers(
            runner_view.device_of(runner.model)
        ):
            return
        step = getattr(runner.train_loop, 'train_step', None)
        if step is not None:
            step.freeze()
        error = _error_of(number)
        try:
            for hook in runner.hooks:
                if isinstance(hook, EventLogHook):
                    hook.on_exception(runner, error)
            save_newest_snapshot(runner)
        finally:
            os._exit(error.exit_code)

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
            self._obey(runner, Signals(number))

    def _obey(self, runner: Runner, number: Signals) -> None:
        """Save; stop if the signal asks for that. A collective call."""
        path = self._save(runner)
        asker, self._asker = self._asker or number.name, None
        ends, is_saved = number is not SAVE, path is not None
        facts = dict(signal=asker, path=path, resume=resume_hint(runner, path))
        if is_main_process():
            log = runner.logger.warning if ends else runner.logger.info
            log(_(_OBEYED[ends, is_saved], **facts))
        if ends:
            raise _error_of(number)
        self._signal.saved()

    def _save_what_is_left(
        self, runner: Runner, exception: BaseException
    ) -> None:
        error = type(exception).__name__
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
            runner.logger.error(
                _(
                    'mmstable: training failed with {error} while the '
                    'weights were being updated, so no emergency checkpoint '
                    'is saved. {resume}',
                    error=error,
                    resume=resume,
                )
            )
            add_note(exception, resume)
            return
        done = runner_view.iterations_done(runner)
        reason = why_inexact(runner, exception)
        path = self._save(runner, own_rng(runner, done), reason)
        if path is None:
            return
        facts = dict(error=error, path=path, resume=resume_hint(runner, path))
        runner.logger.error(
            _(
                'mmstable: training failed with {error}. The state before it '
                'is saved in {path}. {resume}',
                **facts,
            )
            if reason is None
            else _(
                'mmstable: training failed with {error}. The state is saved '
                'in {path}, but it is not exactly the one before: {reason}. '
                '{resume}',
                **facts,
                reason=reason,
            )
        )
        add_note(exception, facts['resume'])
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
    """Why a device cannot be read after a sticky error."""
    line = str(error).partition('\n')[0]
    return _('the device is lost ({error})', error=line)


def save_newest_snapshot(
    runner: Runner, reason: str | None = None
) -> tuple[str | None, str]:
    """Save the newest state in host memory: the device cannot be read.

    Args:
        runner (Runner): The runner.
        reason (str, optional): Why the device cannot be read; None if it
            does not answer. Defaults to None.

    Returns:
        tuple: The checkpoint, if there is one, and what to do now.
    """
    owner = next(
        (one for one in runner.hooks if hasattr(one, 'newest_snapshot')), None
    )
    saver = runner_view.find_hook(runner, SafeCheckpointHook)
    snapshot = None if owner is None else owner.newest_snapshot()
    path = None
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


def _error_of(number: Signals) -> StoppedBySignal:
    if number is RESTART:
        return RestartNeeded()
    return StoppedBySignal(number.name, number)
