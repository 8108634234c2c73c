"""From what is seen of a run to what is done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.runner import Runner
from torch.nn import Module

from mmstable import run_view
from mmstable.checkpoint.audit import list_culprits
from mmstable.distributed import collectives as dist
from mmstable.events import Action, Culprit, Fault, StepReport
from mmstable.events.run_monitor import RunMonitor
from mmstable.messages import say
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

    def learn(self, model: Module) -> None:
        """Look at the model before anything is loaded into it."""
        self._audit = RunAudit(model)

    def bind(self, monitor: RunMonitor) -> None:
        """Follow the steps that a monitor publishes."""
        self._monitor = monitor
        self.interventions.monitor = monitor
        self.detector.follow(monitor.sources)

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
        tally = self._monitor.sources[name].steps.tally
        self._note(self.detector.judge_step(name, report, tally.applied))
        if report.fault is None:
            self.interventions.budget.note_good_step()
        else:
            self._audit_state(runner, report.iteration)

    def judge_loss(self, iteration: int, loss: float | None) -> None:
        """Judge the loss of an iteration."""
        incident = self.detector.judge_loss(iteration, loss)
        # A loss is each rank's own; a warning needs no agreement.
        if self.policy.spikes_change_the_run:
            anywhere = dist.any_rank(incident is not None)
            if anywhere and incident is None:
                reason = say('guard.spike_on_other_rank', subject='loss')
                incident = Incident(Fault.SPIKE, reason, iteration, 'loss')
        self._note(incident)

    def note_poison(self, culprits: Sequence[Culprit], iteration: int) -> None:
        """Take note of a state that is not finite."""
        reason = say('guard.poisoned', names=list_culprits(culprits))
        since = self.detector.since(iteration)
        found = tuple(culprits)
        self._note(Incident(Fault.POISONED, reason, since, culprits=found))

    def act(self, runner: Runner, iteration: int) -> None:
        """Do what the gravest of all incidents calls for."""
        if run_view.window_is_open(runner, iteration):
            # It would lose the half that it has.
            return
        incidents, self.incidents = self.incidents, []
        incident = self.policy.gravest(incidents)
        if incident is None:
            return
        action = self.policy[incident.fault]
        if action is Action.ROLLBACK:
            if self.interventions.roll_back(runner, iteration, incident):
                self._audit.heal(runner)
                self.detector.start_over()
                return
            action = Action.STOP
        if action is Action.STOP:
            self.interventions.stop(runner, iteration, incident)
        is_series = incident.fault not in (Fault.SPIKE, Fault.POISONED)
        if action is Action.LOWER_LR or is_series:
            self.detector.start_over()
        self.interventions.warn(runner, iteration, incident, action)

    def _take_snapshot(self, runner: Runner) -> None:
        self._audit_state(runner, runner.iter)
        if not self.incidents:
            self.interventions.rollback.take_snapshot(runner, runner.iter)

    def _audit_state(self, runner: Runner, iteration: int) -> None:
        culprits = self._audit.find(runner)
        # Running statistics are each rank's own.
        if dist.any_rank(bool(culprits)):
            self.note_poison(dist.lists_of_ranks(culprits), iteration)

    def _note(self, incident: Incident | None) -> None:
        if incident is not None:
            self.incidents.append(incident)

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
