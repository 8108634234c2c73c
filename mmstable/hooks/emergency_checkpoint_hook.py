"""The hook that saves a run which is told to stop, or fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from mmengine.dist import get_world_size, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checkpoint.resume_hint import resume_hint
from mmstable.checkpoint.stop_signal import StopSignal
from mmstable.distributed import collectives as dist
from mmstable.distributed.coordinated_stop import CoordinatedStop
from mmstable.distributed.parallelism import Sharing, find_sharing
from mmstable.errors import StoppedBySignal, TrainingDiverged
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.messages import say
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.rng_keeper import RngKeeper
from mmstable.settings import integer, names, one_of

_NAME = 'EmergencyCheckpointHook'
_SIGNALS = ('SIGTERM', 'SIGUSR1', 'SIGINT')


@register_globally(HOOKS)
class EmergencyCheckpointHook(Hook):
    """Save what there is before a run ends ahead of time.

    On a signal the iteration that is on, of training or of validation, is
    finished first, and all ranks agree. Then ``emergency_iter_N.pth`` is
    saved, the command to resume is printed, and the run ends with exit code
    128 + the signal's number. A second signal ends it at once.

    On an exception the state after the last complete step is saved; with
    several processes by :class:`RankFailureHook`. It is exact if the
    exception came from the data or from the model, outside an accumulation
    window. This needs one of mmstable's loops, which tell hooks of
    exceptions. In both cases it needs :class:`SafeCheckpointHook`, which
    does the saving: a state with NaN in it is not saved.

    Args:
        signals (Sequence[str]): What to listen to. Defaults to
            ('SIGTERM', 'SIGUSR1', 'SIGINT').
        interval (int): With several ranks, iterations between two checks
            whether one of them got a signal. Defaults to 10.
    """

    # After the checkpoint of this iteration, if there is one (VERY_LOW).
    priority = 'LOWEST'

    def __init__(
        self, signals: Sequence[str] = _SIGNALS, interval: int = 10
    ) -> None:
        for name in names(_NAME, 'signals', signals):
            one_of(_NAME, 'signals', name, _SIGNALS)
        self._signal = StopSignal(names(_NAME, 'signals', signals))
        self._interval = integer(_NAME, 'interval', interval)
        self._is_training = False
        self._is_alone = True
        self._common_val_iters = 0
        self._coordinated_stop: CoordinatedStop | None = None
        self._keeper = RngKeeper()

    def before_train(self, runner: Runner) -> None:
        """Listen to signals from now on."""
        self._is_training = True
        self._is_alone = get_world_size() == 1
        self._coordinated_stop = self._prepare_stop(runner)
        if not self._signal.install():
            runner.logger.warning(say('emergency.no_signals'))

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Stop if asked to, and no accumulation window is open."""
        if self._is_alone:
            # An iteration that fails has drawn random numbers.
            self._keeper.after_train_iter(runner, batch_idx)
            if self._signal.received is None:
                return
        iteration, stop = runner.iter + 1, self._coordinated_stop
        if run_view.window_is_open(runner, iteration):
            return
        if stop is None:
            self._stop_if_asked(runner, iteration)
            return
        if self._signal.received is not None:
            stop.request(iteration)
        if stop.is_due(iteration):
            self._stop(runner)

    def before_val(self, runner: Runner) -> None:
        """Agree on how many iterations all ranks are going to have."""
        if self._is_training:
            # A loop may have data without a length.
            loader = getattr(runner.val_loop, 'dataloader', None)
            length = len(loader) if isinstance(loader, Sized) else 2**31
            self._common_val_iters = dist.least_of_ranks(length)

    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: Any = None,
    ) -> None:
        """Stop if asked to; half of all signals arrive here."""
        if not self._is_training:
            return
        if run_view.window_is_open(runner, runner.iter):
            return
        # Nobody would answer a rank that has more to validate than others.
        if batch_idx < self._common_val_iters:
            self._stop_if_asked(runner, batch_idx + 1)

    def after_train(self, runner: Runner) -> None:
        """Leave the signals to others."""
        self._is_training = False
        self._signal.uninstall()

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Save the last complete state, unless that was done already."""
        self._is_training = False
        self._signal.uninstall()
        if isinstance(exception, (StoppedBySignal, TrainingDiverged)):
            # Saved already, or not worth saving.
            return
        if self._signal.received is not None and get_world_size() == 1:
            # A signal to the whole group: it has killed dataloader workers,
            # and that is what the exception is about.
            self._stop(runner)
        if get_world_size() > 1:
            if any(hasattr(h, 'saves_on_exception') for h in runner.hooks):
                return
            error = type(exception).__name__
            runner.logger.error(
                say('emergency.needs_rank_failure_hook', error=error)
            )
            return
        path = self._save(runner, self._keeper.of(runner))
        if path is not None:
            runner.logger.error(
                say(
                    'emergency.failed',
                    error=type(exception).__name__,
                    path=path,
                    resume=resume_hint(runner, path),
                )
            )

    def _prepare_stop(self, runner: Runner) -> CoordinatedStop | None:
        """A way to agree without a collective, if gradients are shared."""
        sharing = find_sharing(runner.model)
        if sharing not in (Sharing.REDUCED, Sharing.SHARDED):
            return None
        wrappers = run_view.wrappers(runner).values()
        windows = [run_view.accumulative_counts(w) for w in wrappers]
        return CoordinatedStop(self._interval, max(windows))

    def _stop_if_asked(self, runner: Runner, count: int) -> None:
        if get_world_size() > 1 and count % self._interval:
            return
        if dist.any_rank(self._signal.received is not None):
            self._stop(runner)

    def _stop(self, runner: Runner) -> None:
        received = self._signal.received
        name = say('emergency.other_rank')
        if received is not None:
            name = received.name
        path = self._save(runner)
        text = say('emergency.stopped_unsaved', signal=name)
        if path is not None:
            resume = resume_hint(runner, path)
            text = say(
                'emergency.stopped', signal=name, path=path, resume=resume
            )
        if is_main_process():
            runner.logger.warning(text)
        raise StoppedBySignal(name, received or 15)

    def _save(
        self, runner: Runner, rng: Mapping[int, Any] | None = None
    ) -> str | None:
        for hook in runner.hooks:
            if isinstance(hook, SafeCheckpointHook):
                if rng:
                    return hook.save_alone(runner, rng)
                return hook.save_emergency(runner)
        runner.logger.warning(say('emergency.needs_checkpoint_hook'))
        return None
