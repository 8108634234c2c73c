"""The hook that does something about a run in trouble."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from mmstable.checkpoint.audit import list_culprits
from mmstable.distributed import collectives as dist
from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Culprit, Fault, Intervention, StepReport
from mmstable.events.samples import read_losses
from mmstable.hooks.step_hook import StepHook
from mmstable.messages import say
from mmstable.messages.language import check_language
from mmstable.messages.rate_limit import RateLimit
from mmstable.optim.new_steps import window_is_open, wrappers_of
from mmstable.optim.parameter_names import unwrap
from mmstable.optim.stock_steps import StockSteps
from mmstable.recovery.budget import RollbackBudget
from mmstable.recovery.detector import DivergenceDetector
from mmstable.recovery.diagnose import diagnose, diagnosis_folder
from mmstable.recovery.diagnosis import FILE_NAME
from mmstable.recovery.guard_settings import parse_ramp, parse_spike
from mmstable.recovery.guard_text import describe_intervention
from mmstable.recovery.incident import Incident
from mmstable.recovery.lr_factor import LearningRateFactor
from mmstable.recovery.policy import parse_actions
from mmstable.recovery.rollback import Rollback
from mmstable.recovery.run_audit import RunAudit
from mmstable.registry import HOOKS, register_globally
from mmstable.run_state.snapshot import snapshot_bytes
from mmstable.settings import integer, number

_NAME = 'DivergenceGuardHook'


@register_globally(HOOKS)
class DivergenceGuardHook(StepHook):
    """Keep a run from being lost when bad steps do not stay single.

    The optimizer wrapper leaves out a bad step; this looks at the run. Too
    many bad steps, a state that is not finite, or a spike lead to the action
    that is chosen for that fault: 'warn', 'skip' (spikes only: a step is
    left out before it is made), 'lower_lr', 'rollback' or 'stop'.

    A rollback restores weights, buffers, their average, optimizers, loss
    scale and schedule from a snapshot in host memory, or from the newest good
    checkpoint; goes on with the next data; and lowers the learning rate for
    a while. When rollbacks are used up, the run stops before anything is
    validated or saved, with a diagnosis and exit code 4.

    Args:
        actions (dict, optional): Fault to action. 'overflow', 'nan_loss' and
            'nan_grad' are about too many such steps and have 'rollback' by
            default, as 'poisoned' has; 'spike' has 'warn'. Defaults to None.
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
            two are kept. Defaults to 200.
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
        snapshot_interval: int = 200,
        max_snapshot_memory: float = 8.0,
        max_rollbacks: int = 3,
        renew_rollbacks: int = 10000,
        lang: str | None = None,
    ) -> None:
        super().__init__()
        self._actions = parse_actions(_NAME, actions)
        self.lang = check_language(_NAME, lang)
        self._watch = DivergenceDetector(
            dict(
                window=integer(_NAME, 'window', window, 20),
                max_rate=number(
                    _NAME, 'max_bad_rate', max_bad_rate, above=0, at_most=1
                ),
                max_consecutive_bad=integer(
                    _NAME, 'max_consecutive_bad', max_consecutive_bad
                ),
                calibration_steps=integer(
                    _NAME, 'calibration_steps', calibration_steps, 0
                ),
                least=int(window) // 2,
            ),
            parse_spike(_NAME, spike),
        )
        self._lr_factor = number(
            _NAME, 'lr_factor', lr_factor, above=0, at_most=1
        )
        self._lr_recovery = lr_recovery
        self._rates = LearningRateFactor(
            parse_ramp(_NAME, lr_recovery, warmup)
        )
        self._interval = integer(_NAME, 'snapshot_interval', snapshot_interval)
        self._max_memory = number(
            _NAME, 'max_snapshot_memory', max_snapshot_memory, at_least=0
        )
        self._budget = RollbackBudget(
            integer(_NAME, 'max_rollbacks', max_rollbacks, 0),
            integer(_NAME, 'renew_rollbacks', renew_rollbacks),
        )
        self._way_back = Rollback(self._interval)
        self._lines = RateLimit(10, per=100)
        self._audit: RunAudit
        self._troubles: list[Incident] = []
        self._rollbacks: list[Intervention] = []
        # Over all processes of the run.
        self._rollback_count = 0

    def before_run(self, runner: Runner) -> None:
        """Look at the model before anything is loaded into it."""
        super().before_run(runner)
        self._audit = RunAudit(unwrap(runner.model))

    def before_train(self, runner: Runner) -> None:
        """Get ready to go back, from the very first iteration on."""
        super().before_train(runner)
        if self._actions[Fault.SPIKE] is Action.SKIP:
            for name, wrapper in wrappers_of(runner.optim_wrapper).items():
                if hasattr(wrapper, 'reject_steps'):
                    wrapper.reject_steps(partial(self._watch.is_spike, name))
        if Action.ROLLBACK in self._actions.values():
            self._prepare_snapshots(runner)
            self._take_snapshot(runner)

    def before_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
    ) -> None:
        """Take a snapshot if it is time, and lower the learning rate."""
        # Only now the last iteration is over for all hooks.
        if self._is_time_for_snapshot(runner):
            self._take_snapshot(runner)
        self._act(runner, runner.iter)
        self._rates.put_on(runner)

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | tuple | list | None = None,
        outputs: dict | None = None,
    ) -> None:
        """Look at loss and steps, and act."""
        # Before schedules step, and before anything is saved.
        self._rates.take_off()
        iteration = runner.iter + 1
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        self._hear_loss(iteration, read_losses(outputs).get('loss'))
        self._act(runner, iteration)

    def after_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step."""
        self._note(self._watch.hear_step(name, report))
        if report.fault is None:
            self._budget.note_good_step()
        else:
            runner.call_hook('after_bad_step', report=report)
            self._look_for_poison(runner, report.iteration)

    def after_poisoned(
        self, runner: Runner, culprits: tuple[Culprit, ...]
    ) -> None:
        """Hear of a state that SafeCheckpointHook has refused to save."""
        self._note_poison(list(culprits), runner.iter + 1)

    def on_exception(self, runner: Runner, exception: BaseException) -> None:
        """Let checkpoints have the learning rate of the schedule."""
        self._rates.take_off()

    def step_sources(self, runner: Runner) -> dict[str, Any]:
        """All wrappers; those of mmengine are watched from outside."""
        sources = {
            name: wrapper
            if hasattr(wrapper, 'last_step')
            else StockSteps(wrapper, runner.model)
            for name, wrapper in wrappers_of(runner.optim_wrapper).items()
        }
        self._watch.follow(sources)
        return sources

    def _prepare_snapshots(self, runner: Runner) -> None:
        size = 2 * snapshot_bytes(runner)
        if size > self._max_memory * 2**30:
            self._way_back.snapshots = None
            line = say(
                'guard.no_snapshots',
                gibibytes=size / 2**30,
                limit=self._max_memory,
            )
        else:
            line = say(
                'guard.snapshots',
                interval=self._interval,
                mebibytes=size / 2**20,
            )
        runner.logger.info(f'{_NAME}: {line}')

    def _is_time_for_snapshot(self, runner: Runner) -> bool:
        return (
            Action.ROLLBACK in self._actions.values()
            and not self._troubles
            and self._watch.is_calm
            and self._way_back.is_due(runner.iter)
            and not window_is_open(runner.optim_wrapper)
        )

    def _take_snapshot(self, runner: Runner) -> None:
        self._look_for_poison(runner, runner.iter)
        if not self._troubles:
            self._way_back.take(runner, runner.iter)

    def _hear_loss(self, iteration: int, loss: float | None) -> None:
        trouble = self._watch.hear_loss(iteration, loss)
        # A loss is each rank's own; words need no agreement.
        if self._actions[Fault.SPIKE] not in (Action.WARN, Action.SKIP):
            anywhere = dist.any_rank(trouble is not None)
            if anywhere and trouble is None:
                reason = say('guard.spike_on_other_rank', subject='loss')
                trouble = Incident(Fault.SPIKE, reason, iteration, 'loss')
        self._note(trouble)

    def _look_for_poison(self, runner: Runner, iteration: int) -> None:
        culprits = self._audit.find(runner)
        # Running statistics are each rank's own.
        if dist.any_rank(bool(culprits)):
            self._note_poison(dist.lists_of_ranks(culprits), iteration)

    def _note_poison(self, culprits: list[Culprit], iteration: int) -> None:
        self._note(
            Incident(
                Fault.POISONED,
                say('guard.poisoned', names=list_culprits(culprits)),
                self._watch.since(iteration),
                culprits=tuple(culprits),
            )
        )

    def _note(self, trouble: Incident | None) -> None:
        if trouble is not None:
            self._troubles.append(trouble)

    def _act(self, runner: Runner, iteration: int) -> None:
        """Do what the gravest of all troubles calls for."""
        if window_is_open(runner.optim_wrapper):
            # Half of a window cannot be taken back.
            return
        troubles, self._troubles = self._troubles, []
        gravest: Incident | None = None
        for trouble in troubles:
            if gravest is None or self._rank(trouble) > self._rank(gravest):
                gravest = trouble
        if gravest is None:
            return
        action = self._actions[gravest.fault]
        if action is Action.ROLLBACK:
            self._roll_back(runner, iteration, gravest)
        elif action is Action.STOP:
            self._stop(runner, iteration, gravest)
        elif action is Action.LOWER_LR:
            self._watch.start_over()
            self._rates.ramp.cut(iteration, self._lr_factor)
            self._tell(runner, self._record(action, iteration, gravest))
        else:
            if gravest.fault not in (Fault.SPIKE, Fault.POISONED):
                self._watch.start_over()
            self._tell(runner, self._record(action, iteration, gravest))

    def _rank(self, trouble: Incident) -> tuple[int, bool]:
        order = list(Action).index(self._actions[trouble.fault])
        return order, trouble.fault is Fault.POISONED

    def _roll_back(
        self, runner: Runner, iteration: int, trouble: Incident
    ) -> None:
        gone = None
        if not self._budget.is_spent:
            gone = self._way_back.go(runner, iteration, trouble.since)
        if gone is None:
            self._stop(runner, iteration, trouble)
            return
        self._budget.spend()
        self._watch.start_over()
        self._rates.ramp.cut(iteration, self._lr_factor)
        done = self._record(
            Action.ROLLBACK,
            iteration,
            trouble,
            restored=gone.iteration,
            source=gone.source,
        )
        self._rollbacks.append(done)
        self._rollback_count += 1
        runner.message_hub.update_scalar(
            'train/stable/rollbacks', self._rollback_count
        )
        self._tell(runner, done)

    def _record(
        self, action: Action, iteration: int, trouble: Incident, **facts: Any
    ) -> Intervention:
        return Intervention(
            iteration=iteration,
            action=action,
            lr_factor=self._rates.ramp.factor(iteration),
            **asdict(trouble),
            **facts,
        )

    def _tell(self, runner: Runner, done: Intervention) -> None:
        runner.call_hook('after_intervention', intervention=done)
        grave = done.action in (Action.ROLLBACK, Action.STOP)
        if grave or self._lines.allows(done.iteration):
            line = describe_intervention(
                done, self._budget.spent, self._budget.most, self._lr_recovery
            )
            runner.logger.warning(f'{_NAME}: {line}')

    def _stop(self, runner: Runner, iteration: int, trouble: Incident) -> None:
        done = self._record(Action.STOP, iteration, trouble)
        runner.call_hook('after_intervention', intervention=done)
        diagnosis = diagnose(
            runner,
            done,
            self._rollbacks,
            self._rollback_count,
            self._watch.counts(),
        )
        folder = diagnosis_folder(runner)
        if is_main_process():
            diagnosis.write(folder)
            runner.logger.error(f'{_NAME}: {diagnosis.text}')
        raise TrainingDiverged(diagnosis.text, str(folder / FILE_NAME))

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'watch': self._watch.state_dict(),
            'ramp': self._rates.ramp.state_dict(),
            'budget': self._budget.state_dict(),
            'rollbacks': self._rollback_count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._watch.load_state_dict(state['watch'])
        self._rates.ramp.load_state_dict(state['ramp'])
        self._budget.load_state_dict(state['budget'])
        self._rollback_count = state['rollbacks']
