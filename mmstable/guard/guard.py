"""Act on incidents: warn, lower the rate, roll back, stop.

A step that looks wrong is not enough for that, see
:mod:`mmstable.guard.evidence`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
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
from mmstable.events.saved import Saved
from mmstable.guard.detector import DivergenceDetector, Incident, Policy
from mmstable.guard.evidence import BadSamples, StepJudge, old_is_better
from mmstable.guard.report import (
    describe_held,
    describe_intervention,
    diagnose,
    why_dead,
)
from mmstable.guard.rollback import LearningRateFactor, Rollback
from mmstable.io.schema import count
from mmstable.loops.question import CannotAsk
from mmstable.loops.train_step import StepRecord
from mmstable.messages import N_, RateLimit, _
from mmstable.optim.pending_step import Peak, StepHold
from mmstable.state.snapshot import Snapshot

# Newest bad batches that old weights are tried on.
_MOST_BATCHES = 4
# Iterations until old weights are tried again, which doubles each time, and
# between two votes of the ranks about their losses.
_FIRST_PAUSE, _VOTE_INTERVAL = 10, 10


class DivergenceGuard(Saved):
    """Collects incidents, and acts on the gravest between two steps.

    Args:
        policy (Policy): The action for each fault.
        detector (DivergenceDetector): Judges losses and steps.
        rates (LearningRateFactor): Lowers the learning rate.
        rollback (Rollback): Restores an earlier state.
    """

    state = dict(
        detector=DivergenceDetector,
        rates=LearningRateFactor,
        rollback=Rollback,
        rollbacks=count,
        transients=count,
    )

    def __init__(
        self,
        policy: Policy,
        detector: DivergenceDetector,
        rates: LearningRateFactor,
        rollback: Rollback,
    ) -> None:
        self.policy, self.detector = policy, detector
        self.rates, self.rollback = rates, rollback
        self.incidents: list[Incident] = []
        self.samples = BadSamples()
        # Over all processes of the run.
        self.rollbacks = self.transients = 0
        # Whether ranks, which have losses of their own, have to vote.
        self.votes = False
        self.explained: FaultExplained | None = None
        self.judge: StepJudge
        self._audit: RunAudit
        self._runner: Runner
        self._monitor: RunMonitor
        self._recent: deque[StepRecord] = deque(maxlen=_MOST_BATCHES)
        # The iteration from which old weights may be tried again.
        self._next_proof, self._pause = 0, _FIRST_PAUSE
        self._lines = RateLimit(10, per=100)
        self._warned: set[str] = set()
        # Of this process.
        self._done: list[Intervention] = []

    def bind_model(self, model: Module) -> None:
        """Look at the model before anything is loaded into it."""
        self._audit = RunAudit(model)

    def start(self, runner: Runner, monitor: RunMonitor) -> None:
        """Follow the steps of a run, and take the first snapshot."""
        self._runner, self._monitor = runner, monitor
        self.detector.follow(monitor.sources)
        policy = self.policy
        self.votes = get_world_size() > 1 and policy.can_roll_back
        self.judge = StepJudge(runner, policy.skips_spikes)
        for name, source in monitor.sources.items():
            # Peaks without a number hold nothing, but have losses reported.
            hold = StepHold(Peak(), Peak(), lambda *args: None)
            if policy.holds_spikes:
                history = self.detector.histories[name]
                hold.loss, hold.norm = history.loss, history.norm
                hold.judge = partial(self.judge.judge, name, hold)
            if hasattr(source, 'hold_steps'):
                source.hold_steps(hold)
        if policy.can_roll_back:
            line = self.rollback.prepare(runner)
            runner.logger.info(f'DivergenceGuardHook: {line}')
            self._take_snapshot(runner.iter)

    def take_snapshot_if_due(self, iteration: int) -> Snapshot | None:
        """Take a snapshot of a healthy state, now and then.

        Args:
            iteration (int): Iterations done.
        """
        if (
            not self.rollback.is_due(iteration)
            or not self.policy.can_roll_back
            or self.incidents
            or not self.detector.is_calm
            or runner_view.window_is_open(self._runner, iteration)
        ):
            return None
        snapshot = self._take_snapshot(iteration)
        self.judge.train_step.find_counters()
        return snapshot

    def _take_snapshot(self, iteration: int) -> Snapshot | None:
        harmless = set(self._audit.harmless)
        self._audit_state(iteration)
        # A buffer that has just become NaN has to prove harmless: the next
        # step shows whether it reaches the loss.
        is_new = dist.any_rank(self._audit.harmless != harmless)
        if self.incidents or is_new:
            return None
        return self.rollback.take_snapshot(self._runner, iteration)

    def _audit_state(self, iteration: int, blames_lr: bool = False) -> None:
        culprits = self._audit.find(self._runner)
        # Running statistics are each rank's own.
        if dist.any_rank(bool(culprits)):
            found = dist.lists_of_ranks(culprits)
            self.note_poison(found, iteration, blames_lr)

    def judge_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step; after a bad one, look through the state as well."""
        if self.judge.held:
            self._report_held()
        detector, steps = self.detector, self._monitor.sources[name].steps
        incident = detector.judge_step(name, report, steps.tally.applied)
        if incident is not None and not (
            self.votes and incident.fault is Fault.DIVERGED
        ):
            self.incidents.append(incident)
        if report.fault is None or not report.bad_share:
            # Healthy, or a loss of this rank that did not reach gradients.
            if self.rollback.spent:
                self.rollback.note_good_step()
            self.judge.skipped_in_a_row = 0
            history = detector.histories[name]
            if history.level.in_a_row:
                self._keep_batch(report)
            if history.learning.is_flat:
                self._report_if_dead(name, report)
        elif report.fault not in (Fault.TRANSIENT, Fault.OOM):
            self._keep_batch(report)
            self.samples.note(runner, self.judge.train_step, report)
            # Only mmengine's wrappers update with what is not finite.
            self._audit_state(report.iteration, report.applied)

    def _keep_batch(self, report: StepReport) -> None:
        newest = self.judge.train_step.last
        if newest is not None and newest.iteration == report.iteration:
            self._recent.append(newest)

    def _report_held(self) -> None:
        """Publish steps that were held, with the evidence."""
        held, self.judge.held = self.judge.held, []
        for one in held:
            self._monitor.emit(self._runner, one)
            if self._lines.allows(one.iteration):
                subject = self.detector.subject(one.wrapper, one.quantity)
                self._warn(describe_held(one, subject))
            if one.verdict is HeldVerdict.TRANSIENT:
                self.transients += 1
                if self.transients == 2:
                    text = N_(
                        'this is the second transient fault of the run: test '
                        'the machine with `mmstable doctor`'
                    )
                    self._warn(_(text))

    def _report_if_dead(self, name: str, report: StepReport) -> None:
        """Report a run whose gradients are gone, or are mostly exactly 0."""
        norms = self._monitor.sources[name].steps.norms
        values = [] if norms is None else norms[2].tolist()
        zeros = sum(value == 0 for value in values)
        is_dying = zeros < len(values) <= 2 * zeros
        if is_dying or self.detector.histories[name].learning.is_gone:
            reason = _(
                '{subject} is where it was at the start, {loss:.4g} '
                '(gradient norm {norm:.3g})',
                subject=self.detector.subject(name, 'loss'),
                loss=report.loss or 0.0,
                norm=report.grad_norm or 0.0,
            )
            incident = Incident(Fault.DEAD, reason, report.iteration, name)
            why = why_dead(zeros, len(values))
            self._warn_once(report.iteration, incident, why)

    def vote(self, iteration: int) -> None:
        """Let all ranks know if losses explode on one. A collective call."""
        if iteration % _VOTE_INTERVAL:
            return
        if dist.any_rank(self.detector.is_exploded):
            reason = _('losses are far above those of the start')
            since = self.detector.since(iteration)
            self.incidents.append(
                Incident(Fault.DIVERGED, reason, since, needs_proof=True)
            )

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

    def act(self, iteration: int) -> None:
        """Do what the gravest of all incidents calls for."""
        if runner_view.window_is_open(self._runner, iteration):
            # It would lose the half that it has.
            return
        incidents, self.incidents = self.incidents, []
        incident = self.policy.gravest(incidents)
        if incident is None:
            return
        action = self.policy.action(incident)
        if action is Action.ROLLBACK:
            is_proven = not incident.needs_proof or self._is_proven(
                iteration, incident
            )
            if is_proven:
                if not self._roll_back(iteration, incident):
                    self._stop(iteration, incident)
            elif any(
                one.stats.is_hopeless
                for one in self.detector.histories.values()
            ):
                self._stop(iteration, incident)
            return
        if action is Action.STOP:
            self._stop(iteration, incident)
        if action is Action.LOWER_LR or incident.is_series:
            self.detector.start_over()
        if action is Action.LOWER_LR:
            self.rates.cut(iteration)
        done = self._emit(iteration, incident, action)
        if self._lines.allows(iteration):
            self._log(done)

    def _is_proven(
        self, iteration: int, incident: Incident, warns: bool = True
    ) -> bool | None:
        """Whether old weights are better; None if that cannot be known.

        A collective call.

        Args:
            iteration (int): Iterations done.
            incident (Incident): The suspicion.
            warns (bool): Whether to report that nothing is done about it.
                Defaults to True.
        """
        if iteration < self._next_proof:
            return False
        self._next_proof = iteration + self._pause
        self._pause *= 2
        proven: bool | None = False
        try:
            is_better = partial(
                old_is_better,
                self.judge.train_step,
                list(self._recent),
                # About gradients the loss alone shows nothing.
                incident.fault in (Fault.NAN_GRAD, Fault.OVERFLOW),
            )
            if self.rollback.find_better(
                self._runner, incident.since, is_better
            ):
                self._next_proof, self._pause = 0, _FIRST_PAUSE
                return True
            why = _(
                'the weights from before are no better on these batches, so '
                'the data or the objective is the cause: nothing is changed'
            )
            for history in self.detector.histories.values():
                history.level.accept()
        except CannotAsk as error:
            proven = None
            why = _(
                'whether earlier weights are better cannot be tried '
                '({reason}): nothing is changed',
                reason=error,
            )
        if warns:
            self._warn_once(iteration, incident, why)
        return proven

    def _roll_back(self, iteration: int, incident: Incident) -> bool:
        """Roll back; False if there is nothing left to restore."""
        runner = self._runner
        back = self.rollback.run(runner, iteration, incident.since)
        if back is None:
            return False
        if incident.blames_lr:
            self.rates.cut(iteration)
        self.rollbacks += 1
        key = 'train/stable/rollbacks'
        runner.message_hub.update_scalar(key, self.rollbacks)
        facts = dict(zip(('restored', 'source'), back))
        done = self._emit(iteration, incident, Action.ROLLBACK, **facts)
        self._done.append(done)
        self._log(done)
        self._audit.heal(runner)
        self.detector.start_over()
        self._recent.clear()
        return True

    def finish(self, iteration: int) -> None:
        """Let no run end as a success that old weights would end better.

        A collective call.
        """
        histories = self.detector.histories
        if len(histories) == 1:
            ((name, one),) = histories.items()
            why = one.learning.why_useless()
            if why:
                reason = _('loss is no lower than at the start')
                incident = Incident(Fault.DEAD, reason, iteration, name)
                self._warn_once(iteration, incident, why)
        if not self.policy.can_roll_back:
            return
        # Before old weights are tried: losses may be accepted then.
        each = histories.values()
        is_bad, is_stuck, is_exploded = dist.any_rank_each(
            any(h.since is not None or h.level.in_a_row for h in each),
            any(h.stats.are_too_many_in_a_row for h in each),
            self.detector.is_exploded,
        )
        if not is_bad:
            return
        faults = [h.stats.commonest_fault() for h in each if h.stats.in_a_row]
        incident = Incident(
            faults[0] if faults else Fault.DIVERGED,
            _('the last losses are not finite, or far above the start'),
            self.detector.since(iteration),
            needs_proof=True,
        )
        self._next_proof = 0
        # A single high loss at the end of a healthy run is no news.
        is_lasting = is_stuck or is_exploded
        proven = self._is_proven(iteration, incident, warns=is_lasting)
        if proven or is_stuck or (proven is None and is_exploded):
            self._stop(iteration, incident)

    def _stop(self, iteration: int, incident: Incident) -> NoReturn:
        """End the run with a diagnosis. A collective call."""
        sources = self._monitor.sources
        text, path = diagnose(
            self._runner,
            self._emit(iteration, incident, Action.STOP),
            self._done,
            self.rollbacks,
            {name: one.steps.tally for name, one in sources.items()},
            self.explained,
        )
        if is_main_process():
            self._runner.logger.error(f'DivergenceGuardHook: {text}')
        raise TrainingDiverged(text, str(path))

    def _warn_once(self, iteration: int, incident: Incident, why: str) -> None:
        if why in self._warned:
            return
        self._warned.add(why)
        done = self._emit(iteration, incident, Action.WARN)
        text = N_('Iter {iteration}: {fault}: {reason}; {why}')
        self._warn(_(text, why=why, **vars(done)))

    def _emit(
        self, iteration: int, incident: Incident, action: Action, **facts: Any
    ) -> Intervention:
        for name in ('fault', 'reason', 'since', 'subject', 'culprits'):
            facts[name] = getattr(incident, name)
        rate = self.rates.at(iteration)
        done = Intervention.now(
            iteration, action=action, lr_factor=rate, **facts
        )
        self._monitor.emit(self._runner, done)
        return done

    def _log(self, done: Intervention) -> None:
        spent, most = self.rollback.spent, self.rollback.most
        recovery = self.rates.recovery
        self._warn(describe_intervention(done, spent, most, recovery))

    def _warn(self, text: str) -> None:
        self._runner.logger.warning(f'DivergenceGuardHook: {text}')
