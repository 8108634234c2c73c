"""What is done about an incident, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from mmstable import run_view
from mmstable.checked_json import count
from mmstable.errors import TrainingDiverged
from mmstable.events import Action, Intervention
from mmstable.events.run_monitor import RunMonitor
from mmstable.messages import _
from mmstable.messages.rate_limit import RateLimit
from mmstable.numerics.lr_ramp import LearningRateRamp
from mmstable.recovery.budget import RollbackBudget
from mmstable.recovery.diagnose import diagnose
from mmstable.recovery.diagnosis import FILE_NAME
from mmstable.recovery.guard_text import describe_intervention
from mmstable.recovery.incident import Incident
from mmstable.recovery.lr_factor import LearningRateFactor
from mmstable.recovery.rollback import Rollback

NAME = 'DivergenceGuardHook'


class Interventions:
    """Warns, lowers the learning rate, rolls back, or stops the run.

    Args:
        rates (LearningRateFactor): Lowers the learning rate.
        budget (RollbackBudget): How many rollbacks there are.
        rollback (Rollback): Restores an earlier state.
    """

    checks = dict(
        ramp=LearningRateRamp.saved,
        budget=RollbackBudget.saved,
        rollbacks=count,
    )

    def __init__(
        self,
        rates: LearningRateFactor,
        budget: RollbackBudget,
        rollback: Rollback,
    ) -> None:
        self.rates = rates
        self.budget = budget
        self.rollback = rollback
        self.monitor: RunMonitor
        self._lines = RateLimit(10, per=100)
        self._done: list[Intervention] = []
        # Over all processes of the run.
        self._rollback_count = 0

    def prepare(self, runner: Runner) -> None:
        """Say where rollbacks restore the state from."""
        rollback, size = self.rollback, self.rollback.prepare(runner)
        if rollback.uses_memory:
            line = _(
                'a snapshot every {interval} iterations; the two that are '
                'kept take {mebibytes:.3g} MiB of host memory',
                interval=rollback.interval,
                mebibytes=size / 2**20,
            )
        else:
            line = _(
                'two snapshots would take {gibibytes:.1f} GiB of host '
                'memory, more than max_snapshot_memory={limit:g}: rollbacks '
                'use the newest good checkpoint instead',
                gibibytes=size / 2**30,
                limit=rollback.max_memory,
            )
        runner.logger.info(f'{NAME}: {line}')

    def tell(self, runner: Runner, news: list[str]) -> None:
        """Log what the owner of the run should know, and clear it."""
        for line in news:
            runner.logger.warning(f'{NAME}: {line}')
        news.clear()

    def warn(
        self, runner: Runner, iteration: int, incident: Incident, did: Action
    ) -> None:
        """Lower the learning rate if that is the action, and warn."""
        if did is Action.LOWER_LR:
            self.rates.cut(iteration)
        done = self._announce(runner, iteration, incident, did)
        if self._lines.allows(iteration):
            self._log(runner, done)

    def roll_back(
        self, runner: Runner, iteration: int, incident: Incident
    ) -> bool:
        """Roll back; False if there is nothing left to restore."""
        back = None
        if not self.budget.is_spent:
            back = self.rollback.run(runner, iteration, incident.since)
        if back is None:
            return False
        self.budget.spend()
        if incident.blames_lr:
            self.rates.cut(iteration)
        self._rollback_count += 1
        runner.message_hub.update_scalar(
            'train/stable/rollbacks', self._rollback_count
        )
        done = self._announce(
            runner,
            iteration,
            incident,
            Action.ROLLBACK,
            restored=back.iteration,
            source=back.source,
        )
        self._done.append(done)
        self._log(runner, done)
        return True

    def stop(
        self,
        runner: Runner,
        iteration: int,
        incident: Incident,
    ) -> NoReturn:
        """End the run with a diagnosis. A collective call.

        Args:
            runner (Runner): The runner.
            iteration (int): Iterations done.
            incident (Incident): What was wrong.
        """
        diagnosis = diagnose(
            runner,
            self._announce(runner, iteration, incident, Action.STOP),
            self._done,
            self._rollback_count,
            self._counts(),
        )
        folder = run_view.stability_folder(runner)
        if is_main_process():
            diagnosis.write(folder)
            runner.logger.error(f'{NAME}: {diagnosis.text}')
        raise TrainingDiverged(diagnosis.text, str(folder / FILE_NAME))

    def _announce(
        self,
        runner: Runner,
        iteration: int,
        incident: Incident,
        did: Action,
        **facts: Any,
    ) -> Intervention:
        done = Intervention.now(
            iteration,
            action=did,
            lr_factor=self.rates.ramp.factor(iteration),
            fault=incident.fault,
            reason=incident.reason,
            since=incident.since,
            subject=incident.subject,
            culprits=incident.culprits,
            **facts,
        )
        self.monitor.emit(runner, done)
        return done

    def _counts(self) -> dict[str, dict[str, int]]:
        """Steps applied and skipped so far, by wrapper."""
        tallies = {
            name: source.steps.tally
            for name, source in self.monitor.sources.items()
        }
        return {
            name: {'applied': tally.applied, 'skipped': tally.skipped}
            for name, tally in tallies.items()
        }

    def _log(self, runner: Runner, done: Intervention) -> None:
        line = describe_intervention(
            done, self.budget.spent, self.budget.most, self.rates.ramp.length
        )
        runner.logger.warning(f'{NAME}: {line}')

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'ramp': self.rates.ramp.state_dict(),
            'budget': self.budget.state_dict(),
            'rollbacks': self._rollback_count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.rates.ramp.load_state_dict(state['ramp'])
        self.budget.load_state_dict(state['budget'])
        self._rollback_count = state['rollbacks']
