"""From what is seen of a run to what is done about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from mmengine.runner import Runner
from torch.nn import Module

from mmstable import run_view
from mmstable.checked_json import record
from mmstable.checkpoint.audit import list_culprits
from mmstable.distributed import collectives as dist
from mmstable.events import Action, Culprit, Fault, StepReport
from mmstable.events.run_monitor import RunMonitor
from mmstable.messages import _
from mmstable.recovery.detector import DivergenceDetector
from mmstable.recovery.incident import Incident
from mmstable.recovery.interventions import Interventions
from mmstable.recovery.policy import Policy
from mmstable.recovery.run_audit import RunAudit


class DivergenceGuard:
    """Collects incidents, and acts on the gravest between two steps.

    Args:
        policy (Policy): The action for each fault.
        detector (DivergenceDetector): Judges losses and steps.
        interventions (Interventions): Takes the actions.
    """

    saved = staticmethod(
        record(watch=DivergenceDetector.saved, **Interventions.checks)
    )

    def __init__(
        self,
        policy: Policy,
        detector: DivergenceDetector,
        interventions: Interventions,
    ) -> None:
        self.policy = policy
        self.detector = detector
        self.interventions = interventions
        self._audit: RunAudit
        self._monitor: RunMonitor
        self.incidents: list[Incident] = []
        # Of the wrappers that can skip spikes.
        self._limit_steps: dict[str, Callable[[float, float], None]] = {}

    def learn(self, model: Module) -> None:
        """Look at the model before anything is loaded into it."""
        self._audit = RunAudit(model)

    def bind(self, monitor: RunMonitor) -> None:
        """Follow the steps that a monitor publishes."""
        self._monitor = monitor
        self.interventions.monitor = monitor
        self.detector.follow(monitor.sources)
        self._limit_steps = {}
        for name, source in monitor.sources.items():
            limit_steps = getattr(source, 'limit_steps', None)
            if limit_steps is None:
                continue
            if self.policy.skips_spikes:
                self._limit_steps[name] = limit_steps
                limit_steps(*self.detector.step_limits(name))
            else:
                limit_steps(math.inf, math.inf)

    def start(self, runner: Runner) -> None:
        """Take the first snapshot, if a rollback may need it."""
        if self.policy.can_roll_back:
            self.interventions.prepare(runner)
            self._take_snapshot(runner)

    def take_snapshot_if_due(self, runner: Runner, iteration: int) -> None:
        """Take a snapshot of a healthy state, now and then.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
        """
        if (
            self.interventions.rollback.is_due(iteration)
            and self.policy.can_roll_back
            and not self.incidents
            and self.detector.is_calm
            and not run_view.window_is_open(runner, iteration)
        ):
            self._take_snapshot(runner)

    def judge_step(
        self, runner: Runner, name: str, report: StepReport
    ) -> None:
        """Judge a step; after a bad one, look through the state as well."""
        source = self._monitor.sources[name]
        tally = source.steps.tally
        incident = self.detector.judge_step(name, report, tally.applied)
        if self.detector.news:
            self.interventions.tell(runner, self.detector.news)
        if self.policy.spikes_change_the_run:
            incident = self._share_spike(name, report.iteration, incident)
        if incident is not None:
            self.incidents.append(incident)
        limit_steps = self._limit_steps.get(name)
        if limit_steps is not None:
            limit_steps(*self.detector.step_limits(name))
        if report.fault is None:
            self.interventions.budget.note_good_step()
        else:
            # Only mmengine's wrappers update with what is not finite.
            self._audit_state(runner, report.iteration, report.applied)

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
        since = self.detector.since(iteration)
        found = tuple(culprits)
        self.incidents.append(
            Incident(
                Fault.POISONED,
                reason,
                since,
                culprits=found,
                blames_lr=blames_lr,
            )
        )

    def act(self, runner: Runner, iteration: int) -> None:
        """Do what the gravest of all incidents calls for."""
        if run_view.window_is_open(runner, iteration):
            # It would lose the half that it has.
            return
        incidents, self.incidents = self.incidents, []
        incident = self.policy.gravest(incidents)
        if incident is None:
            return
        action = self.policy.action(incident)
        if action is Action.ROLLBACK:
            if self.interventions.roll_back(runner, iteration, incident):
                self._audit.heal(runner)
                self.detector.start_over()
                return
            action = Action.STOP
        if action is Action.STOP:
            self.interventions.stop(runner, iteration, incident)
        if action is Action.LOWER_LR or incident.is_series:
            self.detector.start_over()
        self.interventions.warn(runner, iteration, incident, action)

    def _take_snapshot(self, runner: Runner) -> None:
        self._audit_state(runner, runner.iter)
        if not self.incidents:
            self.interventions.rollback.take_snapshot(runner, runner.iter)

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
            **self.interventions.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.detector.load_state_dict(state['watch'])
        self.interventions.load_state_dict(state)
