"""Act on what the detector finds: warn, lower the rate, roll back, stop.

What looks wrong is not enough for that: see :mod:`mmstable.guard.evidence`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from mmengine.dist import get_world_size, is_main_process
from mmengine.runner import Runner
from torch.nn import Module

from mmstable import runner_view
from mmstable.checkpoint.audit import RunAudit, list_culprits
from mmstable.dist import collectives as dist
from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Culprit, Fault, Intervention, StepReport
from mmstable.events.monitor import RunMonitor
from mmstable.events.records import FaultExplained, HeldVerdict
from mmstable.guard.detector import DivergenceDetector, Incident, Policy
from mmstable.guard.evidence import BadSamples, StepJudge, old_is_better
from mmstable.guard.report import (
    FILE_NAME,
    describe_dead,
    describe_held,
    describe_intervention,
    diagnose,
)
from mmstable.guard.rollback import (
    LearningRateFactor,
    LearningRateRamp,
    Rollback,
)
from mmstable.io.schema import count, record
from mmstable.loops.question import CannotAsk
from mmstable.loops.train_step import StepRecord
from mmstable.messages import _
from mmstable.messages.shell import RateLimit
from mmstable.optim.spike import Peak, StepHold
from mmstable.state.snapshot import Snapshot

NAME = 'DivergenceGuardHook'
# Newest bad batches that old weights are tried on.
_MOST_BATCHES = 4
# Iterations until old weights are tried again, which doubles each time, and
# between two votes of the ranks about their losses.
_FIRST_PAUSE, _VOTE_INTERVAL = 10, 10
# About gradients: the loss alone shows nothing.
_OF_GRADIENTS = (Fault.NAN_GRAD, Fault.OVERFLOW)


class DivergenceGuard:
    """Collects incidents, and acts on the gravest between two steps.

    Args:
        policy (Policy): The action for each fault.
        detector (DivergenceDetector): Judges losses and steps.
        rates (LearningRateFactor): Lowers the learning rate.
        rollback (Rollback): Restores an earlier state.
    """

    saved = staticmethod(
        record(
            watch=DivergenceDetector.saved,
            ramp=LearningRateRamp.saved,
            budget=Rollback.saved,
            rollbacks=count,
            transients=count,
        )
    )

    def __init__(
        self,
        policy: Policy,
        detector: DivergenceDetector,
        rates: LearningRateFactor,
        rollback: Rollback,
    ) -> None:
        self.policy = policy
        self.detector = detector
        self.rates = rates
        self.rollback = rollback
        self._audit: RunAudit
        self._monitor: RunMonitor
        self.incidents: list[Incident] = []
        self.samples = BadSamples()
        self._judge: StepJudge
        self._recent: deque[StepRecord] = deque(maxlen=_MOST_BATCHES)
        # The iteration from which old weights may be tried again.
        self._next_proof, self._pause = 0, _FIRST_PAUSE
        # Whether ranks, which have losses of their own, have to vote.
        self.votes = False
        self._explained: FaultExplained | None = None
        self._lines = RateLimit(10, per=100)
        self._told: set[str] = set()
        self._rollbacks: list[Intervention] = []
        # Over all processes of the run.
        self._rollback_count = 0
        self._transients = 0

    def learn(self, model: Module) -> None:
        """Look at the model before anything is loaded into it."""
        self._audit = RunAudit(model)

    def bind(self, runner: Runner, monitor: RunMonitor) -> None:
        """Follow the steps that a monitor publishes."""
        self._monitor = monitor
        self.detector.follow(monitor.sources)
        self.votes = get_world_size() > 1 and self.policy.can_roll_back
        self._judge = StepJudge(runner, self.policy.skips_spikes)
        for name, source in monitor.sources.items():
            hold_steps = getattr(source, 'hold_steps', None)
            if hold_steps is not None:
                hold_steps(self._hold(name))

    def _hold(self, name: str) -> StepHold:
        if not self.policy.holds_spikes:
            # Peaks without a number hold nothing, but losses are told.
            return StepHold(Peak(), Peak(), lambda *args: None)
        history = self.detector.histories[name]
        hold = StepHold(history.loss, history.norm, lambda *args: None)
        hold.judge = partial(self._judge.judge, name, hold)
        return hold

    def start(self, runner: Runner) -> None:
        """Take the first snapshot, if a rollback may need it."""
        if not self.policy.can_roll_back:
            return
        rollback, size = self.rollback, self.rollback.prepare(runner)
        if rollback.uses_memory:
            line = _(
                'a snapshot every {interval} iterations; the newest {count} '
                'take {mebibytes:.3g} MiB of host memory',
                interval=rollback.interval,
                count=rollback.kept,
                mebibytes=rollback.kept * size / 2**20,
            )
        else:
            line = _(
                'a snapshot would take {gibibytes:.1f} GiB of host memory, '
                'more than max_snapshot_memory={limit:g}, or than a quarter '
                'of the free memory, allows: rollbacks use the newest good '
                'checkpoint instead',
                gibibytes=size / 2**30,
                limit=rollback.max_memory,
            )
        runner.logger.info(f'{NAME}: {line}')
        self._take_snapshot(runner, runner.iter)

    def take_snapshot_if_due(
        self, runner: Runner, iteration: int
    ) -> Snapshot | None:
        """Take a snapshot of a healthy state, now and then.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        if (
            not self.rollback.is_due(iteration)
            or not self.policy.can_roll_back
            or self.incidents
            or not self.detector.is_calm
            or runner_view.window_is_open(runner, iteration)
        ):
            return None
        snapshot = self._take_snapshot(runner, iteration)
        self._judge.train_step.find_counters()
        return snapshot

    def judge_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step; after a bad one, look through the state as well."""
        source = self._monitor.sources[name]
        tally = source.steps.tally
        if self._judge.held:
            self._report_held(runner)
        detector = self.detector
        incident = detector.judge_step(name, report, tally.applied)
        if self.policy.spikes_change_the_run:
            incident = self._share_spike(name, report.iteration, incident)
        if incident is not None and not (
            self.votes and incident.fault is Fault.DIVERGED
        ):
            self.incidents.append(incident)
        if report.fault is None or not report.bad_share:
            # Healthy, or a loss of this rank that did not reach gradients.
            self.rollback.note_good_step()
            self._judge.note_applied()
            history = detector.histories[name]
            if history.level.in_a_row:
                self._keep_batch(report)
            if history.learning.is_dead:
                self._report_dead(runner, name, report)
        elif report.fault not in (Fault.TRANSIENT, Fault.OOM):
            self._keep_batch(report)
            self.samples.note(runner, self._judge.train_step, report)
            # Only mmengine's wrappers update with what is not finite.
            self._audit_state(runner, report.iteration, report.applied)

    def _report_dead(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        self.detector.histories[name].learning.is_dead = False
        norms = self._monitor.sources[name].steps.norms
        why = describe_dead(None if norms is None else norms[2])
        reason = _(
            '{subject} is where it was at the start, {loss:.4g}, and '
            'gradients are gone (norm {norm:.3g})',
            subject=self.detector.subject(name, 'loss'),
            loss=report.loss or 0.0,
            norm=report.grad_norm or 0.0,
        )
        incident = Incident(Fault.DEAD, reason, report.iteration, name)
        self._warn_once(runner, report.iteration, incident, why)

    def _keep_batch(self, report: StepReport) -> None:
        newest = self._judge.train_step.last
        if newest is not None and newest.iteration == report.iteration:
            self._recent.append(newest)

    def _report_held(self, runner: Runner) -> None:
        """Publish steps that were held, with the evidence."""
        held, self._judge.held = self._judge.held, []
        for one in held:
            self._monitor.emit(runner, one)
            subject = self.detector.subject(one.wrapper, one.quantity)
            if self._lines.allows(one.iteration):
                line = describe_held(one, subject)
                runner.logger.warning(f'{NAME}: {line}')
            if one.verdict is HeldVerdict.TRANSIENT:
                self._transients += 1
                if self._transients == 2:
                    text = _(
                        'this is the second transient fault of the run: test '
                        'the machine with `mmstable doctor`'
                    )
                    runner.logger.warning(f'{NAME}: {text}')

    @property
    def notes_batches(self) -> bool:
        """Whether the loop does not keep its newest batch."""
        return self._judge.is_beside

    def note_batch(self, batch: Any, iteration: int) -> None:
        """Keep the newest batch."""
        self._judge.train_step.note(batch, iteration)

    def note_explained(self, event: FaultExplained) -> None:
        """Keep why a step was bad, for the text of a stop."""
        self._explained = event

    def vote(self, iteration: int) -> None:
        """Let all ranks know if losses explode on one. A collective call."""
        if iteration % _VOTE_INTERVAL:
            return
        histories = self.detector.histories
        exploded = any(one.level.is_exploded for one in histories.values())
        if dist.any_rank(exploded):
            reason = _('losses are far above those of the start')
            since = self.detector.since(iteration)
            self.incidents.append(
                Incident(Fault.DIVERGED, reason, since, needs_proof=True)
            )

    def _share_spike(
        self, name: str, iteration: int, incident: Incident | None
    ) -> Incident | None:
        # A loss is each rank's own; a warning needs no agreement.
        if dist.any_rank(incident is not None) and incident is None:
            subject = self.detector.subject(name, 'loss')
            reason = _('{subject} jumped on another rank', subject=subject)
            return Incident(Fault.SPIKE, reason, iteration, subject)
        return incident

    def note_poison(
        self,
        culprits: Sequence[Culprit],
        iteration: int,
        blames_lr: bool = False,
    ) -> None:
        """Take note of a state that is not finite.

        Args:
            culprits (Sequence[Culprit]): What is not finite.
            iteration (int): Iterations done.
            blames_lr (bool): Whether an update has done it. Defaults to
                False.
        """
        reason = _(
            'the state of the run is not finite: {names}',
            names=list_culprits(culprits),
        )
        self.incidents.append(
            Incident(
                Fault.POISONED,
                reason,
                self.detector.since(iteration),
                culprits=tuple(culprits),
                blames_lr=blames_lr,
            )
        )

    def act(self, runner: Runner, iteration: int) -> None:
        """Do what the gravest of all incidents calls for."""
        if runner_view.window_is_open(runner, iteration):
            # It would lose the half that it has.
            return
        incidents, self.incidents = self.incidents, []
        incident = self.policy.gravest(incidents)
        if incident is None:
            return
        action = self.policy.action(incident)
        if (
            action is Action.ROLLBACK
            and incident.needs_proof
            and not self._is_proven(runner, iteration, incident)
        ):
            if self.detector.is_hopeless:
                self._stop(runner, iteration, incident)
            return
        if action is Action.ROLLBACK:
            if self._roll_back(runner, iteration, incident):
                self._audit.heal(runner)
                self.detector.start_over()
                self._recent.clear()
                return
            action = Action.STOP
        if action is Action.STOP:
            self._stop(runner, iteration, incident)
        if action is Action.LOWER_LR or incident.is_series:
            self.detector.start_over()
        if action is Action.LOWER_LR:
            self.rates.cut(iteration)
        done = self._emit(runner, iteration, incident, action)
        if self._lines.allows(iteration):
            self._log(runner, done)

    def _is_proven(
        self, runner: Runner, iteration: int, incident: Incident
    ) -> bool | None:
        """Whether old weights are better; None if that cannot be known.

        A collective call.
        """
        if iteration < self._next_proof:
            return False
        self._next_proof = iteration + self._pause
        self._pause *= 2
        try:
            is_better = partial(
                old_is_better,
                self._judge.train_step,
                list(self._recent),
                incident.fault in _OF_GRADIENTS,
            )
            if self.rollback.find_better(runner, incident.since, is_better):
                self._next_proof, self._pause = 0, _FIRST_PAUSE
                return True
            why = _(
                'the weights from before are no better on these batches, so '
                'the data or the objective is the cause: nothing is changed'
            )
            self.detector.accept()
        except CannotAsk as error:
            why = _(
                'whether earlier weights are better cannot be tried '
                '({reason}): nothing is changed',
                reason=error,
            )
            self._warn_once(runner, iteration, incident, why)
            return None
        self._warn_once(runner, iteration, incident, why)
        return False

    def _warn_once(
        self, runner: Runner, iteration: int, incident: Incident, why: str
    ) -> None:
        if why in self._told:
            return
        self._told.add(why)
        done = self._emit(runner, iteration, incident, Action.WARN)
        text = _(
            'Iter {iteration}: {fault}: {reason}; {why}',
            iteration=done.iteration,
            fault=done.fault.value,
            reason=done.reason,
            why=why,
        )
        runner.logger.warning(f'{NAME}: {text}')

    def finish(self, runner: Runner, iteration: int) -> None:
        """Let no run end as a success that old weights would end better.

        A collective call.
        """
        if not self.policy.can_roll_back:
            return
        if not dist.any_rank(self.detector.ends_badly):
            return
        since = self.detector.since(iteration)
        incident = Incident(
            self.detector.newest_fault(),
            _('the last losses are not finite, or far above the start'),
            since,
            needs_proof=True,
        )
        self._next_proof = 0
        # Before it is accepted, where old weights are no better.
        is_stuck, is_exploded = dist.any_rank_each(
            self.detector.ends_in_bad_steps, self.detector.ends_exploded
        )
        proven = self._is_proven(runner, iteration, incident)
        if proven or is_stuck or (proven is None and is_exploded):
            self._stop(runner, iteration, incident)

    def _roll_back(
        self, runner: Runner, iteration: int, incident: Incident
    ) -> bool:
        """Roll back; False if there is nothing left to restore."""
        back = self.rollback.run(runner, iteration, incident.since)
        if back is None:
            return False
        if incident.blames_lr:
            self.rates.cut(iteration)
        self._rollback_count += 1
        runner.message_hub.update_scalar(
            'train/stable/rollbacks', self._rollback_count
        )
        done = self._emit(
            runner,
            iteration,
            incident,
            Action.ROLLBACK,
            restored=back.iteration,
            source=back.source,
        )
        self._rollbacks.append(done)
        self._log(runner, done)
        return True

    def _stop(
        self, runner: Runner, iteration: int, incident: Incident
    ) -> NoReturn:
        """End the run with a diagnosis. A collective call."""
        tallies = {
            name: source.steps.tally
            for name, source in self._monitor.sources.items()
        }
        diagnosis = diagnose(
            runner,
            self._emit(runner, iteration, incident, Action.STOP),
            self._rollbacks,
            self._rollback_count,
            {
                name: {'applied': tally.applied, 'skipped': tally.skipped}
                for name, tally in tallies.items()
            },
            self._explained,
        )
        folder = runner_view.stability_folder(runner)
        if is_main_process():
            diagnosis.write(folder)
            runner.logger.error(f'{NAME}: {diagnosis.text}')
        raise TrainingDiverged(diagnosis.text, str(folder / FILE_NAME))

    def _emit(
        self,
        runner: Runner,
        iteration: int,
        incident: Incident,
        action: Action,
        **facts: Any,
    ) -> Intervention:
        done = Intervention.now(
            iteration,
            action=action,
            lr_factor=self.rates.ramp.factor(iteration),
            fault=incident.fault,
            reason=incident.reason,
            since=incident.since,
            subject=incident.subject,
            culprits=incident.culprits,
            **facts,
        )
        self._monitor.emit(runner, done)
        return done

    def _log(self, runner: Runner, done: Intervention) -> None:
        rollback, recovery = self.rollback, self.rates.ramp.length
        line = describe_intervention(
            done, rollback.spent, rollback.most, recovery
        )
        runner.logger.warning(f'{NAME}: {line}')

    def _take_snapshot(
        self, runner: Runner, iteration: int
    ) -> Snapshot | None:
        harmless = set(self._audit.harmless)
        self._audit_state(runner, iteration)
        # A buffer that has just become NaN has to prove harmless: the next
        # step shows whether it reaches the loss.
        is_new = dist.any_rank(self._audit.harmless != harmless)
        if self.incidents or is_new:
            return None
        return self.rollback.take_snapshot(runner, iteration)

    def _audit_state(
        self, runner: Runner, iteration: int, blames_lr: bool = False
    ) -> None:
        culprits = self._audit.find(runner)
        # Running statistics are each rank's own.
        if dist.any_rank(bool(culprits)):
            found = dist.lists_of_ranks(culprits)
            self.note_poison(found, iteration, blames_lr)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'watch': self.detector.state_dict(),
            'ramp': self.rates.ramp.state_dict(),
            'budget': self.rollback.state_dict(),
            'rollbacks': self._rollback_count,
            'transients': self._transients,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.detector.load_state_dict(state['watch'])
        self.rates.ramp.load_state_dict(state['ramp'])
        self.rollback.load_state_dict(state['budget'])
        self._rollback_count = state['rollbacks']
        self._transients = state['transients']
