"""The hook that rolls back, warns or stops when a run diverges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmengine.runner import Runner

from mmstable.events import Event, StepReport
from mmstable.events.records import Poisoned
from mmstable.hooks.step_hook import StepHook
from mmstable.optim.parameter_names import unwrap
from mmstable.recovery.budget import RollbackBudget
from mmstable.recovery.detector import DivergenceDetector
from mmstable.recovery.guard import DivergenceGuard
from mmstable.recovery.guard_settings import parse_ramp, parse_spike
from mmstable.recovery.interventions import NAME, Interventions
from mmstable.recovery.lr_factor import LearningRateFactor
from mmstable.recovery.policy import Policy, parse_actions
from mmstable.recovery.rollback import Rollback
from mmstable.registry import HOOKS, register_globally
from mmstable.settings import integer, language, number


@register_globally(HOOKS)
class DivergenceGuardHook(StepHook):
    """Keep a run from being lost when bad steps do not stay single.

    The optimizer wrapper skips a bad step; this looks at the run. Too many
    bad steps, a state that is not finite, or a spike lead to the action that
    is chosen for that fault: 'warn', 'skip' (spikes only: a step is skipped
    before it is made), 'lower_lr', 'rollback' or 'stop'.

    A rollback restores weights, buffers, their average, optimizers, loss
    scale and schedule from a snapshot in host memory, or from the newest good
    checkpoint; training continues with the next data, and with a lower
    learning rate for a while. When rollbacks are used up, the run stops
    before anything is validated or saved, with a diagnosis and exit code 4.

    Args:
        actions (dict, optional): Fault to action. 'overflow', 'nan_loss' and
            'nan_grad' are about too many such steps and have 'rollback' by
            default, as 'poisoned' has; 'spike' has 'skip'. Defaults to None.
        max_consecutive_bad (int): So many bad steps in a row are too many.
            Defaults to 10.
        max_bad_rate (float): The share of bad steps that is too high.
            Defaults to 0.05.
        window (int): Steps that the share is taken over; it counts from half
            of them on. Defaults to 200.
        calibration_steps (int): Overflows before so many steps were applied
            are the loss scale finding its level. Defaults to 20.
        spike (dict, optional): Settings of
            :class:`~mmstable.numerics.spike.SpikeDetector`. Defaults to None.
        lr_factor (float): What a rollback, or 'lower_lr', multiplies the
            learning rate by. Defaults to 0.5.
        lr_recovery (int): Iterations until the learning rate is back at that
            of the schedule; 0 for never. Defaults to 1000.
        warmup (dict, optional): ``iters`` and ``start_factor`` (0.1) of a
            warm-up on top of the schedule's own. Defaults to None.
        snapshot_interval (int): Iterations between two snapshots, of which
            the newest and an older one are kept. Defaults to 50.
        max_snapshot_memory (float): GiB that both may take; above it
            rollbacks use checkpoints. Defaults to 8.0.
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
    saved = staticmethod(DivergenceGuard.saved)

    def __init__(
        self,
        actions: Mapping[str, str] | None = None,
        max_consecutive_bad: int = 10,
        max_bad_rate: float = 0.05,
        window: int = 200,
        calibration_steps: int = 20,
        spike: Mapping[str, Any] | None = None,
        lr_factor: float = 0.5,
        lr_recovery: int = 1000,
        warmup: Mapping[str, Any] | None = None,
        snapshot_interval: int = 50,
        max_snapshot_memory: float = 8.0,
        max_rollbacks: int = 3,
        renew_rollbacks: int = 10000,
        lang: str | None = None,
    ) -> None:
        super().__init__()
        self.lang = language(NAME, lang)
        policy = Policy(parse_actions(NAME, actions))
        window = integer(NAME, 'window', window, 20)
        limits = dict(
            window=window,
            max_rate=_share('max_bad_rate', max_bad_rate),
            max_consecutive_bad=integer(
                NAME, 'max_consecutive_bad', max_consecutive_bad
            ),
            calibration_steps=integer(
                NAME, 'calibration_steps', calibration_steps, 0
            ),
            least=window // 2,
        )
        self._guard = DivergenceGuard(
            policy,
            DivergenceDetector(limits, parse_spike(NAME, spike)),
            Interventions(
                LearningRateFactor(
                    parse_ramp(NAME, lr_recovery, warmup),
                    _share('lr_factor', lr_factor),
                ),
                RollbackBudget(
                    integer(NAME, 'max_rollbacks', max_rollbacks, 0),
                    integer(NAME, 'renew_rollbacks', renew_rollbacks),
                ),
                Rollback(
                    integer(NAME, 'snapshot_interval', snapshot_interval),
                    number(
                        NAME,
                        'max_snapshot_memory',
                        max_snapshot_memory,
                        at_least=0,
                    ),
                ),
            ),
        )
        self._rates = self._guard.interventions.rates

    def before_run(self, runner: Runner) -> None:
        """Look at the model before anything is loaded into it."""
        super().before_run(runner)
        self._guard.learn(unwrap(runner.model))

    def before_train(self, runner: Runner) -> None:
        """Be able to roll back from the very first iteration on."""
        super().before_train(runner)
        self._guard.bind(self.monitor)
        self._guard.start(runner)

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Take a snapshot if it is time, and lower the learning rate."""
        # Only now the last iteration is over for all hooks.
        done = self.monitor.iteration - 1
        self._guard.take_snapshot_if_due(runner, done)
        if self._guard.incidents:
            self._guard.act(runner, done)
        self._rates.put_on(runner, done)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Act on what the steps of this iteration were like."""
        # Before schedules step, and before anything is saved.
        self._rates.take_off()
        if self._guard.incidents:
            self._guard.act(runner, self.monitor.iteration)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step."""
        self._guard.judge_step(runner, name, report)

    def after_event(self, runner: Runner, event: Event) -> None:
        """Take note of a state that SafeCheckpointHook has not saved."""
        if isinstance(event, Poisoned):
            self._guard.note_poison(event.culprits, event.iteration)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Let checkpoints have the learning rate of the schedule."""
        self._rates.take_off()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Save the state of this hook, and the rates of the schedule."""
        super().before_save_checkpoint(runner, checkpoint)
        self._rates.take_off_saved(runner, checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return self._guard.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._guard.load_state_dict(state)


def _share(name: str, value: float) -> float:
    return number(NAME, name, value, above=0, at_most=1)
