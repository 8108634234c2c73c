"""The hook that rolls back, warns or stops when a run diverges."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmengine.hooks.hook import DATA_BATCH
from mmengine.runner import Runner

from mmstable import runner_view
from mmstable.errors import TrainingDiverged
from mmstable.events import Event, StepReport
from mmstable.events.records import FaultExplained, Poisoned
from mmstable.hooks.step_hook import StepHook
from mmstable.optim.grad_health import unwrap
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import (
    integer,
    known_settings,
    language,
    mapping,
    number,
)

if TYPE_CHECKING:
    from mmstable.state.snapshot import Snapshot

_NAME = 'DivergenceGuardHook'


@register_globally(HOOKS)
class DivergenceGuardHook(StepHook):
    """Keep a run from being lost when bad steps do not stay single.

    The optimizer wrapper skips a bad step; this looks at the run, and acts on
    evidence. A step whose loss or norm is far above all before (a spike) is
    held and repeated before its update: the same again is applied, as without
    this hook; not the same is a fault of the machine, and is skipped. Too
    many bad steps, exploded losses, or a state that is not finite lead to the
    action that is chosen for that fault: 'warn', 'lower_lr', 'rollback' or
    'stop', for spikes 'ask', 'skip' or 'warn'. A rollback needs proof: a state
    that is not finite, or earlier weights that are at least 10 times better
    on the newest batches.

    A rollback restores weights, buffers, their average, optimizers, loss
    scale and schedule from a snapshot in host memory, or from the newest good
    checkpoint; training continues with the next data, and with a lower
    learning rate for a while. When rollbacks are used up, the run stops
    before anything is validated or saved, with a diagnosis and exit code 4.

    Args:
        actions (dict, optional): Fault to action. 'overflow', 'nan_loss' and
            'nan_grad' are about too many such steps, 'diverged' about losses
            1000 times those of the start: both have 'rollback' by default,
            if earlier weights are better; 'poisoned' has it in any case.
            'spike' has 'ask'. Defaults to None.
        max_consecutive_bad (int): So many bad steps in a row are too many.
            Defaults to 10.
        max_bad_rate (float): The share of bad steps that is too high.
            Defaults to 0.05.
        window (int): Steps that the share is taken over; it counts from half
            of them on. Defaults to 200.
        spike (dict, optional): ``factor`` (10.0) and ``warmup`` (50): from so
            many steps on, a loss or norm above so many times the largest
            one before is a spike. Defaults to None.
        lr_factor (float): What a rollback, or 'lower_lr', multiplies the
            learning rate by. Defaults to 0.5.
        lr_recovery (int): Iterations until the learning rate is back at that
            of the schedule; 0 for never. Defaults to 1000.
        warmup (dict, optional): ``iters`` and ``start_factor`` (0.1) of a
            warm-up on top of the schedule's own. Defaults to None.
        snapshot_interval (int, optional): Iterations between two snapshots,
            of which the newest and an older one are kept. Defaults to None,
            which means 50 at first, and then between 10 and 1000: as few as
            keep the measured cost below 0.5 % of the time.
        max_snapshot_memory (float): GiB that those of all ranks of a host may
            take, and never more than a quarter of its free memory; above it
            one is kept, or rollbacks use checkpoints. Defaults to 8.0.
        max_rollbacks (int): After so many the run is stopped. Defaults to 3.
        renew_rollbacks (int): Good steps after the last one that make them
            all available again. Defaults to 10000.
        lang (str, optional): The language of all lines of the run, 'en' or
            'zh_cn'. Defaults to None, which means that of another hook, or
            of the environment variable ``MMSTABLE_LANG``, or English.
    """

    # After those that record a step, ahead of EMAHook (NORMAL), so that a bad
    # state does not get into the average, and of the schedules (LOW).
    priority = 'ABOVE_NORMAL'

    @staticmethod
    def saved(state: Any) -> Any:
        """Check what :meth:`state_dict` gave."""
        from mmstable.guard.guard import DivergenceGuard

        return DivergenceGuard.saved(state)

    def __init__(
        self,
        actions: Mapping[str, str] | None = None,
        max_consecutive_bad: int = 10,
        max_bad_rate: float = 0.05,
        window: int = 200,
        spike: Mapping[str, Any] | None = None,
        lr_factor: float = 0.5,
        lr_recovery: int = 1000,
        warmup: Mapping[str, Any] | None = None,
        snapshot_interval: int | None = None,
        max_snapshot_memory: float = 8.0,
        max_rollbacks: int = 3,
        renew_rollbacks: int = 10000,
        lang: str | None = None,
    ) -> None:
        # Only a run that has this hook pays for the import.
        from mmstable.guard.detector import DivergenceDetector, Policy
        from mmstable.guard.guard import DivergenceGuard
        from mmstable.guard.rollback import LearningRateFactor, Rollback

        super().__init__()
        self.lang = language(_NAME, lang)
        whole = partial(integer, _NAME)
        share = partial(number, _NAME, above=0, at_most=1)
        window = whole('window', window, 20)
        if snapshot_interval is not None:
            snapshot_interval = whole('snapshot_interval', snapshot_interval)
        policy = Policy(_NAME, actions)
        limits = dict(
            window=window,
            max_rate=share('max_bad_rate', max_bad_rate),
            max_consecutive_bad=whole(
                'max_consecutive_bad', max_consecutive_bad
            ),
            calibration_steps=20,
            least=window // 2,
        )
        checks = dict(
            factor=partial(number, above=1),
            warmup=partial(integer, at_least=2),
        )
        ramp: dict[str, Any] = {}
        if warmup is not None:
            # Without a number of iterations the settings are refused.
            if isinstance(warmup, dict):
                warmup = {'iters': None, 'start_factor': 0.1, **warmup}
            factor = partial(number, above=0, at_most=1)
            ramp = _parse('warmup', warmup, iters=integer, start_factor=factor)
        memory = number(
            _NAME, 'max_snapshot_memory', max_snapshot_memory, at_least=0
        )
        self._guard = DivergenceGuard(
            policy,
            DivergenceDetector(
                limits,
                _parse('spike', spike, **checks),
                reports_spikes=not policy.holds_spikes,
            ),
            LearningRateFactor(
                whole('lr_recovery', lr_recovery, 0),
                share('lr_factor', lr_factor),
                ramp.get('start_factor', 1.0),
                ramp.get('iters', 0),
            ),
            Rollback(
                snapshot_interval,
                memory,
                whole('max_rollbacks', max_rollbacks, 0),
                whole('renew_rollbacks', renew_rollbacks),
            ),
        )
        self._last_iteration = 0

    def before_run(self, runner: Runner) -> None:
        """Look at the model before anything is loaded into it."""
        super().before_run(runner)
        self._guard.bind_model(unwrap(runner.model))

    def before_train(self, runner: Runner) -> None:
        """Be able to roll back from the very first iteration on."""
        super().before_train(runner)
        self._guard.start(runner, self.monitor)
        self._last_iteration = runner.max_iters

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: DATA_BATCH = None
    ) -> None:
        """Take a snapshot if it is time, and lower the learning rate."""
        guard, done = self._guard, self.monitor.iteration - 1
        # Only now the last iteration is over for all hooks.
        if done >= guard.rollback.wakes_at:
            guard.take_snapshot_if_due(done)
        if guard.incidents:
            guard.act(done)
        if not guard.rates.is_idle:
            guard.rates.put_on(runner, done)
        if guard.judge.is_beside:
            # Another loop does not keep its newest batch.
            guard.judge.train_step.note(data_batch, done + 1)

    def after_train_iter(
        self, runner: Runner, *args: Any, **kwargs: Any
    ) -> None:
        """Act on what the steps of this iteration were like."""
        guard, iteration = self._guard, self.monitor.iteration
        if not guard.rates.is_idle:
            # Before schedules step, and before anything is saved.
            guard.rates.take_off()
        if guard.votes:
            guard.vote(iteration)
        if guard.incidents:
            guard.act(iteration)
        if iteration == self._last_iteration:
            # Before the last checkpoint is saved.
            guard.finish(iteration)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step."""
        self._guard.judge_step(runner, name, report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Take note of a state that SafeCheckpointHook has not saved."""
        if isinstance(event, Poisoned):
            self._guard.note_poison(event.culprits, event.iteration)
        elif isinstance(event, FaultExplained):
            self._guard.explained = event

    def before_val(self, runner: Runner) -> None:
        """Let EMAHook swap weights after a snapshot of them is copied."""
        from mmstable.state.device import copy_stream

        copy_stream(runner_view.device_of(runner.model)).wait()

    def after_train(self, runner: Runner) -> None:
        """List the samples that have spoiled steps, with how to skip them."""
        super().after_train(runner)
        self._guard.samples.report(runner, _write_skip_list)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Let checkpoints have the learning rate of the schedule."""
        self._guard.rates.take_off()
        if isinstance(exception, TrainingDiverged):
            # On all ranks.
            self._guard.samples.report(runner, _write_skip_list)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the state of this hook, and the rates of the schedule."""
        super().before_save_checkpoint(runner, checkpoint)
        self._guard.rates.take_off_saved(runner, checkpoint)

    def take_snapshot_if_due(self, iteration: int) -> Snapshot | None:
        """Take a snapshot if it is time. A collective call.

        A checkpoint of the same iteration is written from it.

        Args:
            iteration (int): Iterations done.
        """
        return self._guard.take_snapshot_if_due(iteration)

    def newest_snapshot(self) -> Snapshot | None:
        """The newest state of the run in host memory, if there is one."""
        snapshots = self._guard.rollback.snapshots
        return None if snapshots is None else snapshots.newest()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return self._guard.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._guard.load_state_dict(state)


def _write_skip_list(runner: Runner, indices: list[int]) -> Path:
    from mmstable.check.dataset import skip_samples

    path = runner_view.stability_folder(runner) / 'skip_list.json'
    dataset = runner.train_dataloader.dataset
    return skip_samples(dataset, path, indices, 'NaN or Inf')


def _parse(
    name: str, given: Mapping[str, Any] | None, **checks: Any
) -> dict[str, Any]:
    """Check the settings of an argument that is a dict."""
    settings = mapping(_NAME, name, given)
    known_settings(f'{_NAME}: `{name}`', settings, checks)
    return {
        key: checks[key](_NAME, f'{name}.{key}', value)
        for key, value in settings.items()
    }
