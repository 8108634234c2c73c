"""Does this run diverge?  Everything that is judged from its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmstable.checked_json import count, mapping_of, record, text
from mmstable.events import Fault, StepReport
from mmstable.events.step_statistics import StepStatistics
from mmstable.messages import _
from mmstable.recovery.incident import Incident
from mmstable.recovery.step_levels import Spike, StepLevels


class DivergenceDetector:
    """Judges the steps of each wrapper, and reports an incident to act on.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`StepLevels`.
    """

    saved = staticmethod(
        record(
            levels=mapping_of(text(), StepLevels.saved),
            stats=mapping_of(text(), record(**StepStatistics.checks)),
            since=mapping_of(text(), count),
        )
    )

    def __init__(
        self, limits: Mapping[str, Any], spike: Mapping[str, Any]
    ) -> None:
        self._limits, self._spike = dict(limits), dict(spike)
        self._levels: dict[str, StepLevels] = {}
        self._stats: dict[str, StepStatistics] = {}
        # The first bad step of those that no good one has ended, by wrapper.
        self._since: dict[str, int] = {}
        # What the owner of the run should know; whoever tells it clears it.
        self.news: list[str] = []

    @property
    def is_calm(self) -> bool:
        """Whether the newest step of every wrapper was a good one."""
        return not self._since

    def follow(self, names: Iterable[str]) -> None:
        """Expect steps of these wrappers."""
        for name in names:
            if name not in self._stats:
                self._stats[name] = StepStatistics(**self._limits)
                self._levels[name] = StepLevels(self._spike)

    def since(self, iteration: int) -> int:
        """The first bad iteration of those that led to this one."""
        return min(self._since.values(), default=iteration)

    def judge_step(
        self, name: str, report: StepReport, applied: int
    ) -> Incident | None:
        """Judge a step.

        Args:
            name (str): The optimizer wrapper's name.
            report (StepReport): What became of the step.
            applied (int): Steps that the wrapper has applied so far.
        """
        fault = report.fault
        if fault is Fault.OOM and report.skipped:
            # It says nothing about the numbers, and the loop has a limit.
            return None
        levels = self._levels[name]
        spike = levels.judge(report)
        if levels.learned:
            self._tell_learned(name, levels)
        # Spikes that keep coming become the level, and a falling scale ends
        # somewhere: neither is a series of bad steps.
        if (fault is Fault.SPIKE and spike) or report.scale_can_fall:
            return self._report_spike(name, spike, report)
        stats = self._stats[name]
        is_alarming = stats.add(report, applied)
        if is_alarming and report.bad_share > 0.5:
            self._since.setdefault(name, report.iteration)
        elif self._since and report.applied:
            self._since.pop(name, None)
        if is_alarming and stats.is_too_high:
            return self._too_many(name, stats, report.iteration)
        return self._report_spike(name, spike, report)

    def step_limits(self, name: str) -> tuple[float, float]:
        """The largest loss and norm of a wrapper's steps that are usual."""
        return self._levels[name].limits()

    def subject(self, name: str, quantity: str) -> str:
        """What to call a quantity of a wrapper, as scalars do."""
        return quantity if len(self._stats) == 1 else f'{name}/{quantity}'

    def start_over(self) -> None:
        """Forget recent steps: the state of the run was changed."""
        self._since.clear()
        for stats in self._stats.values():
            stats.start_over()

    def _too_many(
        self, name: str, stats: StepStatistics, iteration: int
    ) -> Incident:
        bad, seen = stats.counts()
        reason = _(
            '{bad:.4g} of the last {seen} steps were bad, {consecutive} in a '
            'row',
            bad=bad,
            seen=seen,
            consecutive=stats.in_a_row,
        )
        fault = stats.commonest_fault()
        since = self.since(iteration)
        return Incident(fault, reason, since, name, is_series=True)

    def _tell_learned(self, name: str, levels: StepLevels) -> None:
        for quantity, learned in levels.learned.items():
            subject = self.subject(name, quantity)
            facts = learned._asdict()
            self.news.append(
                _(
                    '{subject}: {times} of {among} steps were about '
                    '{value:.3g}, far above the level of {level:.3g}, and '
                    'the run came back from each. They belong to the data '
                    'and are no spikes from now on. Look at their batches if '
                    'they should not be there',
                    subject=subject,
                    **facts,
                )
            )
        levels.learned.clear()

    def _report_spike(
        self, name: str, spike: Spike | None, report: StepReport
    ) -> Incident | None:
        if spike is None:
            return None
        subject = self.subject(name, spike.quantity)
        reason = _(
            '{subject} jumped to {value:.4g} from a level of {level:.4g}',
            subject=subject,
            value=spike.value,
            level=spike.level,
        )
        return Incident(
            Fault.SPIKE,
            reason,
            report.iteration,
            subject,
            is_skipped=report.skipped,
        )

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'levels': _states(self._levels),
            'stats': _states(self._stats),
            'since': dict(self._since),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.follow([*state['stats'], *state['levels']])
        for name, saved in state['stats'].items():
            self._stats[name].load_state_dict(saved)
        for name, saved in state['levels'].items():
            self._levels[name].load_state_dict(saved)
        self._since = dict(state['since'])


def _states(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}
