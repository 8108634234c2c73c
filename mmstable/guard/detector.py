"""Judge the steps of a run: which incidents there are, and what each costs.

The settings of the guard are checked here, too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmstable.events import Action, Culprit, Fault, Outcome, StepReport
from mmstable.events.step_lines import StepStatistics
from mmstable.guard.rollback import LearningRateRamp
from mmstable.io.schema import (
    boolean,
    count,
    list_of,
    mapping_of,
    optional,
    record,
    text,
    tuple_of,
    within,
)
from mmstable.messages import _
from mmstable.optim.spike import Peak
from mmstable.settings import integer, known_settings, mapping, number, one_of

# Losses that are the level of the start, and what is far above it.
_FIRST, _RAISED, _EXPLODED = 5, 10.0, 1000.0
# So many such losses in a row are suspicious.
_IN_A_ROW = 5
# Iterations after which a raised loss is the usual one.
_USUAL_AFTER = 1000


class LossLevel:
    """Losses against those at the start of the run.

    The level is the median of the first five. It is raised to that of now
    when the objective has changed, see :meth:`accept`.
    """

    saved = staticmethod(
        record(
            first=list_of(within(0)),
            level=optional(within(0)),
            in_a_row=count,
            raised=count,
            ignores_nan=boolean,
        )
    )

    def __init__(self) -> None:
        self._first: list[float] = []
        self._level: float | None = None
        self._newest: float | None = None
        self._ignores_nan = False
        # Newest losses that have exploded, and that are raised at all.
        self.in_a_row = 0
        self._raised = 0

    def observe(self, loss: float | None) -> None:
        """Take a loss into account; None for one that is not finite."""
        level = self._level
        if loss is None:
            self._newest = None
            if not self._ignores_nan:
                self.in_a_row += 1
                self._raised += 1
            return
        self._newest = value = abs(loss)
        if level is None:
            self._learn(value)
        elif value > _RAISED * level:
            self._raised += 1
            self.in_a_row = (
                self.in_a_row + 1 if value > _EXPLODED * level else 0
            )
            return
        self.in_a_row = self._raised = 0

    def _learn(self, value: float) -> None:
        if value > 0:
            self._first.append(value)
        if len(self._first) == _FIRST:
            self._level = sorted(self._first)[_FIRST // 2]

    @property
    def is_exploded(self) -> bool:
        """Whether the newest losses are not finite or far above the start."""
        return self.in_a_row >= _IN_A_ROW

    @property
    def is_raised(self) -> bool:
        """Whether the state may be worse than an earlier one."""
        return 0 < self._raised < _USUAL_AFTER

    def start_over(self) -> None:
        """Forget the newest losses: the state of the run was changed."""
        self.in_a_row = self._raised = 0

    def accept(self) -> None:
        """Take the newest loss as the level: the objective has changed."""
        if self._newest is None:
            self._ignores_nan = True
        elif self._level is not None:
            self._level = max(self._level, self._newest)
        self.start_over()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'first': list(self._first),
            'level': self._level,
            'in_a_row': self.in_a_row,
            'raised': self._raised,
            'ignores_nan': self._ignores_nan,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._first, self._level = list(state['first']), state['level']
        self.in_a_row, self._raised = state['in_a_row'], state['raised']
        self._ignores_nan = state['ignores_nan']


# Steps of a block, and blocks of a run that is judged.
_BLOCK, _FLAT_BLOCKS = 200, 3
# Largest change of the loss that is none, and the share of the first norms
# below which gradients are gone.
_FLAT, _GONE = 0.01, 1e-3


class Learning:
    """Whether a run has learned anything: means of blocks of steps.

    A run is dead if its loss stays where the first block had it, and nothing
    is left of the gradients of that block.
    """

    saved = staticmethod(
        record(
            steps=count,
            loss=within(-math.inf),
            norm=within(0),
            first=optional(tuple_of(within(-math.inf), within(0))),
            flat=count,
        )
    )

    def __init__(self) -> None:
        self._steps, self._loss, self._norm = 0, 0.0, 0.0
        # Loss and norm of the first block: the level of guessing.
        self._first: tuple[float, float] | None = None
        self._flat = 0
        # Whether the run learns nothing any more.
        self.is_dead = False

    def observe(self, loss: float, norm: float) -> None:
        """Take an applied step into account."""
        self._steps += 1
        self._loss += loss
        self._norm += norm
        if self._steps == _BLOCK:
            self._end_block(self._loss / _BLOCK, self._norm / _BLOCK)
            self._steps, self._loss, self._norm = 0, 0.0, 0.0

    def _end_block(self, loss: float, norm: float) -> None:
        if self._first is None:
            self._first = loss, norm
            return
        level, start = self._first
        is_flat = abs(loss - level) <= _FLAT * abs(level)
        is_gone = norm <= _GONE * start
        self._flat = self._flat + 1 if is_flat and is_gone else 0
        self.is_dead = self._flat >= _FLAT_BLOCKS

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'steps': self._steps,
            'loss': self._loss,
            'norm': self._norm,
            'first': self._first,
            'flat': self._flat,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._steps, self._loss = state['steps'], state['loss']
        self._norm, self._flat = state['norm'], state['flat']
        self._first = state['first'] and tuple(state['first'])


# 'loss' or 'grad_norm', its value, and the peak that it is far above.
Spike = tuple[str, float, float]


class WrapperHistory:
    """What the steps of one wrapper were like.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`~mmstable.optim.spike.Peak`.
    """

    saved = staticmethod(
        record(
            loss=Peak.saved,
            norm=Peak.saved,
            level=LossLevel.saved,
            learning=Learning.saved,
            stats=record(**StepStatistics.checks),
        )
    )

    def __init__(
        self, limits: Mapping[str, Any], spike: Mapping[str, Any]
    ) -> None:
        self.loss, self.norm = Peak(**spike), Peak(**spike)
        self.level = LossLevel()
        self.learning = Learning()
        self.stats = StepStatistics(**limits)

    def observe(self, report: StepReport) -> Spike | None:
        """Learn from an applied step; the spike in a step, if any."""
        # Clipping bounds what reaches the optimizer.
        norm, loss = report.clipped_norm, report.loss
        if norm is None:
            norm = report.grad_norm
        spike: Spike | None = None
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

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {name: part.state_dict() for name, part in vars(self).items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for name, part in vars(self).items():
            part.load_state_dict(state[name])


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


class DivergenceDetector:
    """Judges the steps of each wrapper, and reports an incident to act on.

    Args:
        limits (Mapping): For :class:`StepStatistics`.
        spike (Mapping): For :class:`~mmstable.optim.spike.Peak`.
        reports_spikes (bool): Whether applied spikes are incidents. Those
            that are held are reported by what judges them.
    """

    saved = staticmethod(
        record(
            histories=mapping_of(text(), WrapperHistory.saved),
            since=mapping_of(text(), count),
            first_bad=optional(count),
            good_steps=count,
        )
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
        # The first bad step of those that no good one has ended, by wrapper.
        self._since: dict[str, int] = {}
        # The first bad step before which all was well for long.
        self._first_bad: int | None = None
        self._good_steps = 0

    @property
    def is_calm(self) -> bool:
        """Whether the state of now is one to return to."""
        return not self._since and not any(
            one.level.is_raised for one in self.histories.values()
        )

    def follow(self, names: Iterable[str]) -> None:
        """Expect steps of these wrappers."""
        for name in names:
            if name not in self.histories:
                history = WrapperHistory(self._limits, self._spike)
                self.histories[name] = history

    def since(self, iteration: int) -> int:
        """The first bad iteration of those that led to this one."""
        return iteration if self._first_bad is None else self._first_bad

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
        if fault is Fault.TRANSIENT or (fault is Fault.OOM and report.skipped):
            # They say nothing about the run, and have limits of their own.
            return None
        history = self.histories[name]
        spike = history.observe(report)
        is_skipped_spike = fault is Fault.SPIKE and spike is not None
        is_nan = fault is Fault.NAN_LOSS and (
            report.bad_share > 0.5 or not report.dropped_micro_batches
        )
        if (report.loss is not None or is_nan) and not is_skipped_spike:
            history.level.observe(report.loss)
        # A falling scale ends somewhere: that is no series of bad steps.
        if is_skipped_spike or report.scale_can_fall:
            return self._report_spike(name, spike, report)
        stats = history.stats
        is_alarming = stats.add(report, applied)
        is_bad = is_alarming and report.bad_share > 0.5
        self._note(name, report, is_bad or history.level.in_a_row > 0)
        if is_alarming and stats.is_too_high:
            return self._too_many(name, stats, report.iteration)
        if history.level.is_exploded:
            return self._exploded(name, report)
        return self._report_spike(name, spike, report)

    def subject(self, name: str, quantity: str) -> str:
        """What to call a quantity of a wrapper, as scalars do."""
        return quantity if len(self.histories) == 1 else f'{name}/{quantity}'

    def start_over(self) -> None:
        """Forget recent steps: the state of the run was changed."""
        self._since.clear()
        for history in self.histories.values():
            history.stats.start_over()
            history.level.start_over()

    def accept(self) -> None:
        """Take the newest losses for usual: old weights are no better."""
        for history in self.histories.values():
            history.level.accept()

    @property
    def ends_badly(self) -> bool:
        """Whether the newest step was bad, or its loss exploded."""
        return bool(self._since) or any(
            one.level.in_a_row for one in self.histories.values()
        )

    def newest_fault(self) -> Fault:
        """What the newest steps suffer from."""
        for one in self.histories.values():
            if one.stats.in_a_row:
                return one.stats.commonest_fault()
        return Fault.DIVERGED

    @property
    def ends_in_bad_steps(self) -> bool:
        """Whether nothing but bad steps has come for long."""
        return any(
            one.stats.are_too_many_in_a_row for one in self.histories.values()
        )

    @property
    def ends_exploded(self) -> bool:
        """Whether several of the newest losses have exploded."""
        return any(one.level.is_exploded for one in self.histories.values())

    @property
    def is_hopeless(self) -> bool:
        """Whether most of the steps of a wrapper are bad."""
        return any(one.stats.is_hopeless for one in self.histories.values())

    def _note(self, name: str, report: StepReport, is_bad: bool) -> None:
        """Keep where bad steps began."""
        if is_bad:
            self._since.setdefault(name, report.iteration)
            if self._first_bad is None:
                self._first_bad = report.iteration
            self._good_steps = 0
        elif report.applied:
            if self._since:
                self._since.pop(name, None)
            self._good_steps += 1
            if self._good_steps == self._limits['window']:
                self._first_bad = None

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
        return Incident(
            stats.commonest_fault(),
            reason,
            self.since(iteration),
            name,
            is_series=True,
            needs_proof=True,
        )

    def _exploded(self, name: str, report: StepReport) -> Incident:
        level = self.histories[name].level
        subject = self.subject(name, 'loss')
        if report.loss is None:
            reason = _(
                '{subject} is not finite for {count} iterations',
                subject=subject,
                count=level.in_a_row,
            )
        else:
            reason = _(
                '{subject} is {loss:.4g}, more than 1000 times that of the '
                'start, for {count} iterations',
                subject=subject,
                loss=report.loss,
                count=level.in_a_row,
            )
        since = self.since(report.iteration)
        return Incident(
            Fault.DIVERGED, reason, since, subject, needs_proof=True
        )

    def _report_spike(
        self,
        name: str,
        spike: Spike | None,
        report: StepReport,
    ) -> Incident | None:
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
            'histories': {
                name: one.state_dict() for name, one in self.histories.items()
            },
            'since': dict(self._since),
            'first_bad': self._first_bad,
            'good_steps': self._good_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.follow(state['histories'])
        for name, saved in state['histories'].items():
            self.histories[name].load_state_dict(saved)
        self._since = dict(state['since'])
        self._first_bad = state['first_bad']
        self._good_steps = state['good_steps']


# The actions that a fault allows, the default first. A bad step is always
# skipped; these come on top when there are too many of them.
_TOO_MANY = ('rollback', 'warn', 'lower_lr', 'stop')
_CHOICES: Mapping[Fault, tuple[str, ...]] = {
    Fault.OVERFLOW: _TOO_MANY,
    Fault.NAN_LOSS: _TOO_MANY,
    Fault.NAN_GRAD: _TOO_MANY,
    Fault.POISONED: ('rollback', 'warn', 'stop'),
    Fault.DIVERGED: _TOO_MANY,
    Fault.SPIKE: ('ask', 'skip', 'warn', 'lower_lr', 'rollback', 'stop'),
}


class Policy:
    """The action for each fault.

    Args:
        actions (Mapping[Fault, Action]): From :func:`parse_actions`.
    """

    def __init__(self, actions: Mapping[Fault, Action]) -> None:
        self._actions = dict(actions)
        spikes = self._actions[Fault.SPIKE]
        # Whether steps that are spikes are held before they are made.
        self.holds_spikes = spikes in (Action.ASK, Action.SKIP)
        self.skips_spikes = spikes is Action.SKIP
        self.reports_spikes = not self.holds_spikes
        # Whether a spike leads to something that all ranks must do.
        self.spikes_change_the_run = not (
            self.holds_spikes or spikes is Action.WARN
        )

    def __getitem__(self, fault: Fault) -> Action:
        return self._actions[fault]

    @property
    def can_roll_back(self) -> bool:
        """Whether any fault leads to a rollback."""
        return Action.ROLLBACK in self._actions.values()

    def action(self, incident: Incident) -> Action:
        """What to do about an incident."""
        chosen = self[incident.fault]
        if chosen not in (Action.ASK, Action.SKIP):
            return chosen
        if incident.is_series:
            # Skipping did not end it.
            return self[Fault.NAN_GRAD]
        return Action.SKIP if incident.is_skipped else Action.WARN

    def gravest(self, incidents: Iterable[Incident]) -> Incident | None:
        """The one to act on: of equally grave ones, the first."""
        return max(incidents, key=self._gravity, default=None)

    def _gravity(self, incident: Incident) -> tuple[int, bool]:
        order = list(Action).index(self.action(incident))
        return order, incident.fault is Fault.POISONED


def parse_actions(
    where: str, actions: Mapping[str, str] | None
) -> dict[Fault, Action]:
    """The action for each fault; what is not named gets its default.

    Args:
        where (str): What to call the place of the settings in an error.
        actions (Mapping, optional): Fault to action, both by name.
    """
    known = [fault.value for fault in _CHOICES]
    chosen = {fault: Action(names[0]) for fault, names in _CHOICES.items()}
    given = mapping(where, 'actions', actions)
    known_settings(f'{where}: `actions`', given, known)
    for name, action in given.items():
        fault = Fault(name)
        one_of(where, f"actions['{name}']", action, _CHOICES[fault])
        chosen[fault] = Action(action)
    return chosen


_SPIKE = tuple(inspect.signature(Peak).parameters)


def parse_spike(where: str, spike: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings of a :class:`~mmstable.optim.spike.Peak`."""
    settings = mapping(where, 'spike', spike)
    known_settings(f'{where}: `spike`', settings, _SPIKE)
    for name, value in settings.items():
        if name == 'factor':
            number(where, 'spike.factor', value, above=1)
        else:
            settings[name] = integer(where, f'spike.{name}', value, 2)
    return settings


def parse_ramp(
    where: str, recovery: int, warmup: Mapping[str, Any] | None
) -> LearningRateRamp:
    """How the factor on the learning rate starts and recovers."""
    recovery = integer(where, 'lr_recovery', recovery, at_least=0)
    if warmup is None:
        return LearningRateRamp(recovery)
    settings = mapping(where, 'warmup', warmup)
    known_settings(f'{where}: `warmup`', settings, ('iters', 'start_factor'))
    start = settings.get('start_factor', 0.1)
    return LearningRateRamp(
        recovery,
        number(where, 'warmup.start_factor', start, above=0, at_most=1),
        integer(where, 'warmup.iters', settings.get('iters')),
    )
