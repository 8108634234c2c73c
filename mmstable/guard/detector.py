"""Judge the steps of a run: which incidents are there, and since when?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmstable.events import Action, Culprit, Fault, Outcome, StepReport
from mmstable.events.saved import Saved
from mmstable.events.step_lines import StepStatistics
from mmstable.io.schema import (
    any_number,
    boolean,
    count,
    list_of,
    mapping_of,
    optional,
    text,
    tuple_of,
    within,
)
from mmstable.messages import _
from mmstable.optim.pending_step import Peak
from mmstable.settings import known_settings, mapping, one_of

# Losses that give the level of the start, and factors far above it.
_FIRST, _RAISED, _EXPLODED = 5, 10.0, 1000.0
# This many exploded losses in a row are an incident.
_IN_A_ROW = 5
# Iterations after which a raised loss is the usual one.
_USUAL_AFTER = 1000


class LossLevel(Saved):
    """Losses against the level at the start of the run.

    The level is the median magnitude of the first five losses. Only losses
    above it count: one that falls far below zero is minimised, not exploded.
    """

    state = dict(
        first=list_of(within(0)),
        level=optional(within(0)),
        in_a_row=count,
        raised=count,
        ignores_nan=boolean,
    )

    def __init__(self) -> None:
        self.first: list[float] = []
        self.level: float | None = None
        self.ignores_nan = False
        # Newest losses that have exploded, and that are raised at all.
        self.in_a_row = self.raised = 0
        self._newest: float | None = None

    def observe(self, loss: float | None) -> None:
        """Take a loss into account; None for one that is not finite."""
        self._newest = loss
        if loss is None and self.ignores_nan:
            return
        level = math.inf if self.level is None else self.level
        is_exploded = loss is None or loss > _EXPLODED * level
        self.in_a_row = self.in_a_row + 1 if is_exploded else 0
        if loss is None:
            self.raised = max(self.raised + (level < math.inf), self.in_a_row)
            return
        self.raised = self.raised + 1 if loss > _RAISED * level else 0
        if self.level is None and loss:
            self.first.append(abs(loss))
            if len(self.first) == _FIRST:
                self.level = sorted(self.first)[_FIRST // 2]

    @property
    def is_exploded(self) -> bool:
        """Whether the newest losses are not finite or far above the start."""
        return self.in_a_row >= _IN_A_ROW

    @property
    def is_raised(self) -> bool:
        """Whether the state may be worse than an earlier one."""
        return 0 < self.raised < _USUAL_AFTER

    def accept(self) -> None:
        """Take the newest loss as the level: the objective has changed."""
        if self._newest is None:
            self.ignores_nan = True
        elif self.level is not None:
            self.level = max(self.level, self._newest)
        self.in_a_row = self.raised = 0


# Steps of a block, and flat blocks that make a dead run.
_BLOCK, _FLAT_BLOCKS = 200, 3
# Relative change of the loss that counts as none, and the share of the first
# norms below which gradients have vanished.
_FLAT, _GONE = 0.01, 1e-3
# Blocks of a run that is judged at its end, the relative spread of losses
# that are steady, and of block means that oscillate.
_WHOLE_RUN, _STEADY, _OSCILLATES = 5, 0.5, 0.2


class Learning(Saved):
    """Whether a run has learned anything: means over blocks of steps."""

    state = dict(
        steps=count,
        loss=any_number,
        square=any_number,
        norm=any_number,
        first=optional(tuple_of(any_number, any_number, any_number)),
        flat=count,
        blocks=count,
        low=any_number,
        high=any_number,
    )

    def __init__(self) -> None:
        # Steps of the open block, and sums over these.
        self.steps, self.loss, self.square, self.norm = 0, 0.0, 0.0, 0.0
        # Mean loss, mean norm and relative spread of the first block.
        self.first: tuple[float, float, float] | None = None
        # Newest blocks at the level of the first, all after it, and the
        # lowest and the highest mean of these.
        self.flat = self.blocks = 0
        self.low, self.high = math.inf, -math.inf
        # Whether a block has just ended, after enough flat ones.
        self.is_flat = False
        # Whether nothing is left of the gradients of the first block.
        self.is_gone = False

    def observe(self, loss: float, norm: float) -> None:
        """Take an applied step into account."""
        self.steps += 1
        self.loss += loss
        self.square += loss * loss
        self.norm += norm
        self.is_flat = False
        if self.steps < _BLOCK:
            return
        loss, norm = self.loss / _BLOCK, self.norm / _BLOCK
        variance = max(self.square / _BLOCK - loss * loss, 0.0)
        self.steps, self.loss, self.square, self.norm = 0, 0.0, 0.0, 0.0
        if self.first is None:
            spread = math.sqrt(variance) / abs(loss) if loss else math.inf
            self.first = loss, norm, spread
            return
        level, start, __ = self.first
        self.blocks += 1
        self.low, self.high = min(self.low, loss), max(self.high, loss)
        is_same = abs(loss - level) <= _FLAT * abs(level)
        self.flat = self.flat + 1 if is_same else 0
        self.is_flat = self.flat >= _FLAT_BLOCKS
        self.is_gone = norm <= _GONE * start

    def why_useless(self) -> str:
        """The likely cause if a whole run has learned nothing, else ''.

        Losses that vary too much, such as those of a policy gradient, show
        nothing.
        """
        if self.first is None or self.blocks < _WHOLE_RUN:
            return ''
        level, __, spread = self.first
        if spread > _STEADY or not 0 < (1 - _FLAT) * level <= self.low:
            return ''
        if self.high - self.low > _OSCILLATES * level:
            return _(
                'it oscillates instead of falling: lower the learning rate, '
                'or enlarge the batch'
            )
        return _(
            'the learning rate may be far too low or far too high, the '
            'parameters frozen, or the labels unrelated to the inputs'
        )


class WrapperHistory(Saved):
    """What the steps of one wrapper were like.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`~mmstable.optim.pending_step.Peak`.
    """

    state = dict(
        loss=Peak,
        norm=Peak,
        level=LossLevel,
        learning=Learning,
        stats=StepStatistics,
        since=optional(count),
    )

    def __init__(
        self, limits: Mapping[str, Any], spike: Mapping[str, Any]
    ) -> None:
        self.loss, self.norm = Peak(**spike), Peak(**spike)
        self.level, self.learning = LossLevel(), Learning()
        self.stats = StepStatistics(**limits)
        # The first of the bad steps that no good one has ended.
        self.since: int | None = None

    def observe(self, report: StepReport) -> tuple[str, float, float] | None:
        """Learn from an applied step.

        Returns:
            tuple, optional: Of a spike 'loss' or 'grad_norm', its value, and
            the peak that it is far above.
        """
        # Clipping bounds what reaches the optimizer.
        norm, loss = report.clipped_norm, report.loss
        if norm is None:
            norm = report.grad_norm
        spike = None
        if norm is not None and norm > self.norm.limit:
            spike = 'grad_norm', norm, self.norm.peak
        elif loss is not None and loss > self.loss.limit:
            spike = 'loss', loss, self.loss.peak
        if report.outcome is Outcome.APPLIED:
            if norm is not None and math.isfinite(norm):
                self.norm.observe(norm)
            if loss is not None:
                self.loss.observe(loss)
                if norm is not None:
                    self.learning.observe(loss, norm)
        return spike


@dataclass(frozen=True)
class Incident:
    """Something that calls for an action.

    Args:
        fault (Fault): What it is.
        reason (str): The same in words.
        since (int): The iteration that it began with.
        subject (str): What was found bad: 'loss' or 'grad_norm', behind the
            name of its optimizer wrapper if there are several, or such a
            name alone. Defaults to ''.
        culprits (tuple[Culprit]): Entries of the state that are not finite.
            Defaults to ().
        is_series (bool): Whether it is about too many bad steps. Defaults to
            False.
        needs_proof (bool): Whether a rollback has to be shown to help first.
            Defaults to False.
        is_skipped (bool): Whether the step that it is about was skipped.
            Defaults to False.
        blames_lr (bool): Whether a lower learning rate may help. Defaults to
            True.
    """

    fault: Fault
    reason: str
    since: int
    subject: str = ''
    culprits: tuple[Culprit, ...] = ()
    is_series: bool = False
    needs_proof: bool = False
    is_skipped: bool = False
    blames_lr: bool = True


class DivergenceDetector(Saved):
    """Judges the steps of each wrapper, and reports an incident to act on.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`~mmstable.optim.pending_step.Peak`.
        reports_spikes (bool): Whether applied spikes are incidents. Those
            that are held are reported with their verdict.
    """

    state = dict(
        histories=mapping_of(text(), WrapperHistory.saved),
        first_bad=optional(count),
        good_steps=count,
    )

    def __init__(
        self,
        limits: Mapping[str, Any],
        spike: Mapping[str, Any],
        reports_spikes: bool,
    ) -> None:
        self._limits, self._spike = dict(limits), dict(spike)
        self._reports_spikes = reports_spikes
        self.histories: dict[str, WrapperHistory] = {}
        # The first bad step before which all was well for long.
        self.first_bad: int | None = None
        self.good_steps = 0

    def follow(self, names: Iterable[str]) -> None:
        """Expect steps of these wrappers."""
        for name in names:
            if name not in self.histories:
                history = WrapperHistory(self._limits, self._spike)
                self.histories[name] = history

    @property
    def is_calm(self) -> bool:
        """Whether the state of now is one to return to."""
        return not any(
            one.since is not None or one.level.is_raised
            for one in self.histories.values()
        )

    @property
    def is_exploded(self) -> bool:
        """Whether several of the newest losses have exploded."""
        return any(one.level.is_exploded for one in self.histories.values())

    def since(self, iteration: int) -> int:
        """The first bad iteration of those that led to this one."""
        return iteration if self.first_bad is None else self.first_bad

    def subject(self, name: str, quantity: str) -> str:
        """What to call a quantity of a wrapper, as scalars do."""
        return quantity if len(self.histories) == 1 else f'{name}/{quantity}'

    def judge_step(
        self, name: str, report: StepReport, applied: int
    ) -> Incident | None:
        """Judge a step.

        Args:
            name (str): The optimizer wrapper's name.
            report (StepReport): The report of the step.
            applied (int): Steps that the wrapper has applied so far.
        """
        fault, iteration = report.fault, report.iteration
        if fault is Fault.TRANSIENT or (fault is Fault.OOM and report.skipped):
            # They say nothing about the run, and have limits of their own.
            return None
        history = self.histories[name]
        spike = history.observe(report)
        is_skipped_spike = fault is Fault.SPIKE and spike is not None
        level, stats = history.level, history.stats
        is_nan = fault is Fault.NAN_LOSS and (
            report.bad_share > 0.5 or not report.dropped_micro_batches
        )
        if (report.loss is not None or is_nan) and not is_skipped_spike:
            level.observe(report.loss)
        # A falling scale ends somewhere: that is no series of bad steps.
        if not (is_skipped_spike or report.scale_can_fall):
            is_alarming = stats.add(report, applied)
            if level.in_a_row or (is_alarming and report.bad_share > 0.5):
                self.first_bad = self.since(iteration)
                self.good_steps = 0
                if history.since is None:
                    history.since = iteration
            elif report.outcome is Outcome.APPLIED:
                history.since = None
                self.good_steps += 1
                if self.good_steps == self._limits['window']:
                    self.first_bad = None
            if is_alarming and stats.is_too_high:
                return Incident(
                    stats.commonest_fault(),
                    stats.describe(),
                    self.since(iteration),
                    name,
                    is_series=True,
                    needs_proof=True,
                )
            if level.in_a_row >= _IN_A_ROW:
                return self._exploded(name, report, level.in_a_row)
        if spike is None or not (self._reports_spikes or report.skipped):
            return None
        quantity, value, peak = spike
        subject = self.subject(name, quantity)
        reason = _(
            '{subject} jumped to {value:.4g}, its peak so far is {peak:.4g}',
            subject=subject,
            value=value,
            peak=peak,
        )
        is_skipped = report.skipped
        return Incident(
            Fault.SPIKE, reason, iteration, subject, is_skipped=is_skipped
        )

    def _exploded(
        self, name: str, report: StepReport, in_a_row: int
    ) -> Incident:
        subject = self.subject(name, 'loss')
        facts: dict[str, Any] = dict(subject=subject, count=in_a_row)
        if report.loss is None:
            reason = _(
                '{subject} is not finite for {count} iterations', **facts
            )
        else:
            reason = _(
                '{subject} is {loss:.4g}, more than 1000 times that of the '
                'start, for {count} iterations',
                loss=report.loss,
                **facts,
            )
        since = self.since(report.iteration)
        return Incident(
            Fault.DIVERGED, reason, since, subject, needs_proof=True
        )

    def start_over(self) -> None:
        """Forget recent steps: the state of the run was changed."""
        for history in self.histories.values():
            history.since = None
            history.stats.start_over()
            history.level.in_a_row = history.level.raised = 0

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.follow(state['histories'])
        for name, saved in state['histories'].items():
            self.histories[name].load_state_dict(saved)
        self.first_bad = state['first_bad']
        self.good_steps = state['good_steps']


# The actions that a fault allows, the default first. A bad step is always
# skipped; these come on top when there are too many of them.
_TOO_MANY = ('rollback', 'warn', 'lower_lr', 'stop')
_CHOICES: Mapping[Fault, tuple[str, ...]] = {
    Fault.OVERFLOW: _TOO_MANY,
    Fault.NAN_LOSS: _TOO_MANY,
    Fault.NAN_GRAD: _TOO_MANY,
    Fault.POISONED: ('rollback', 'warn', 'stop'),
    Fault.DIVERGED: _TOO_MANY,
    Fault.SPIKE: ('ask', 'skip', 'warn'),
}


class Policy:
    """The action for each fault.

    Args:
        where (str): What errors call the place of the settings.
        actions (Mapping, optional): Fault to action, both by name; others
            get their default.
    """

    def __init__(self, where: str, actions: Mapping[str, str] | None) -> None:
        given = mapping(where, 'actions', actions)
        known = [fault.value for fault in _CHOICES]
        known_settings(f'{where}: `actions`', given, known)
        self._actions = {
            fault: Action(
                one_of(
                    where,
                    f"actions['{fault}']",
                    given.get(fault.value, names[0]),
                    names,
                )
            )
            for fault, names in _CHOICES.items()
        }
        # Whether steps that are spikes are held before they are made.
        self.holds_spikes = self[Fault.SPIKE] is not Action.WARN
        self.skips_spikes = self[Fault.SPIKE] is Action.SKIP
        self.can_roll_back = Action.ROLLBACK in self._actions.values()

    def __getitem__(self, fault: Fault) -> Action:
        return self._actions[fault]

    def action(self, incident: Incident) -> Action:
        """What to do about an incident."""
        if incident.fault is not Fault.SPIKE:
            return self[incident.fault]
        if incident.is_series and self.holds_spikes:
            # Skipping did not end it.
            return self[Fault.NAN_GRAD]
        return Action.SKIP if incident.is_skipped else Action.WARN

    def gravest(self, incidents: Iterable[Incident]) -> Incident | None:
        """The one to act on: of equally grave ones, the first."""
        order = list(Action)
        return max(
            incidents,
            key=lambda one: (
                order.index(self.action(one)),
                one.fault is Fault.POISONED,
            ),
            default=None,
        )
