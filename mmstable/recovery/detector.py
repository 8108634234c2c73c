"""Does this run diverge?  Everything that is judged from its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmstable.events import Fault, StepReport
from mmstable.events.step_statistics import StepStatistics
from mmstable.messages import say
from mmstable.numerics.spike import SpikeDetector
from mmstable.recovery.incident import Incident


class DivergenceDetector:
    """Judges losses and steps, and reports an incident to act on.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`SpikeDetector`.
    """

    def __init__(
        self, limits: Mapping[str, Any], spike: Mapping[str, Any]
    ) -> None:
        self._limits, self._spike = dict(limits), dict(spike)
        self._loss = SpikeDetector(**self._spike)
        self._norms: dict[str, SpikeDetector] = {}
        self._stats: dict[str, StepStatistics] = {}
        # The first bad step of those that no good one has ended, by wrapper.
        self._since: dict[str, int] = {}

    @property
    def is_calm(self) -> bool:
        """Whether the newest step of every wrapper was a good one."""
        return not self._since

    def follow(self, names: Iterable[str]) -> None:
        """Expect steps of these wrappers."""
        for name in names:
            if name not in self._stats:
                self._stats[name] = StepStatistics(**self._limits)
                self._norms[name] = SpikeDetector(**self._spike)

    def since(self, iteration: int) -> int:
        """The first bad iteration of those that led to this one."""
        return min(self._since.values(), default=iteration)

    def judge_loss(
        self, iteration: int, loss: float | None
    ) -> Incident | None:
        """Judge the loss of an iteration."""
        if loss is None or not self._loss.observe(loss):
            return None
        return _spike('loss', loss, self._loss.exceeded, iteration)

    def judge_step(
        self, name: str, report: StepReport, applied: int
    ) -> Incident | None:
        """Judge a step.

        Args:
            name (str): The optimizer wrapper's name.
            report (StepReport): What became of the step.
            applied (int): Steps that the wrapper has applied so far.
        """
        stats = self._stats[name]
        if stats.add(report, applied):
            self._since.setdefault(name, report.iteration)
            if stats.is_too_high:
                return self._too_many(name, stats, report.iteration)
        elif report.fault is None and self._since:
            self._since.pop(name, None)
        norm = report.grad_norm
        if norm is None or not self._norms[name].observe(norm):
            return None
        level = self._norms[name].exceeded
        return _spike('grad_norm', norm, level, report.iteration)

    def is_spike(self, name: str, loss: float, norm: float) -> bool:
        """Whether a step that waits for its verdict is one."""
        return self._loss.is_spike(loss) or self._norms[name].is_spike(norm)

    def start_over(self) -> None:
        """Forget recent steps: the state of the run was changed."""
        self._since.clear()
        for stats in self._stats.values():
            stats.start_over()

    def _too_many(
        self, name: str, stats: StepStatistics, iteration: int
    ) -> Incident:
        bad, seen = stats.counts()
        reason = say(
            'guard.bad_steps',
            bad=bad,
            seen=seen,
            consecutive=stats.in_a_row,
        )
        fault = stats.commonest_fault()
        if fault is Fault.SPIKE:
            # A single one may be ignored, but not a series.
            fault = Fault.NAN_GRAD
        return Incident(fault, reason, self.since(iteration), name)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'loss': self._loss.state_dict(),
            'norms': _states(self._norms),
            'stats': _states(self._stats),
            'since': dict(self._since),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._loss.load_state_dict(state['loss'])
        self.follow(state['stats'])
        for name, saved in state['stats'].items():
            self._stats[name].load_state_dict(saved)
            self._norms[name].load_state_dict(state['norms'][name])
        self._since = dict(state['since'])


def _spike(
    subject: str, value: float, level: float, iteration: int
) -> Incident:
    reason = say('guard.spike', subject=subject, value=value, level=level)
    return Incident(Fault.SPIKE, reason, iteration, subject)


def _states(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part.state_dict() for name, part in parts.items()}
