"""Where does the time of an iteration go?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmstable.liveness.instruments import AFTER, BEFORE
from mmstable.liveness.spans import BACKWARD, MODULE, STEP, VALIDATION, Span

# What a profile calls a training step whose parts nobody can see.
WHOLE_STEP = 'train_step'
_NO_HOOKS = (BACKWARD, STEP, VALIDATION)


@dataclass(frozen=True)
class Mark:
    """The end of an iteration.

    Args:
        time (float): When, in seconds.
        cpu (float): CPU time of the thread then.
    """

    time: float
    cpu: float


@dataclass
class Profile:
    """Mean seconds of an iteration, validation left out.

    Args:
        iterations (int): How many were measured.
        seconds (float): What one takes.
        phases (dict[str, float]): 'data', 'forward', 'backward', 'step',
            'hooks' and 'other', which add up to it; 'train_step' in place of
            the three where nobody can look into it. Defaults to {}.
        hooks (dict[str, float]): By class, the slowest first. Defaults to {}.
        modules (dict[str, float]): Forward passes by name, with all that is
            inside, the slowest first. Defaults to {}.
        data_cpu (float): The part of 'data' in which this process computed.
            Defaults to 0.0.
    """

    iterations: int
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    hooks: dict[str, float] = field(default_factory=dict)
    modules: dict[str, float] = field(default_factory=dict)
    data_cpu: float = 0.0

    def share(self, seconds: float) -> float:
        """The part of an iteration that so many seconds are."""
        return min(1.0, seconds / self.seconds) if self.seconds > 0 else 0.0

    @property
    def data_share(self) -> float:
        """The part of the time that waits for data."""
        return self.share(self.phases.get('data', 0.0))


def summarize(
    spans: Sequence[Span], marks: Sequence[Mark], sees_inside: bool = True
) -> Profile:
    """The mean of iterations that follow each other.

    Args:
        spans (Sequence[Span]): What was recorded.
        marks (Sequence[Mark]): The end of the iteration before, and of each.
        sees_inside (bool): Whether backward passes and steps were recorded.
            Defaults to True.
    """
    totals = _Totals()
    for begin, end in zip(marks, marks[1:]):
        inside = [s for s in spans if begin.time <= s.start < end.time]
        totals.add(inside, begin, end)
    count = max(1, len(marks) - 1)
    phases = totals.phases
    if not sees_inside:
        phases[WHOLE_STEP] = phases.pop('forward', 0.0)
        del phases[BACKWARD], phases[STEP]
    return Profile(
        iterations=count,
        seconds=totals.seconds / count,
        phases={name: max(0.0, s / count) for name, s in phases.items()},
        hooks=_slowest_first(totals.hooks, count),
        modules=_slowest_first(totals.modules, count),
        data_cpu=totals.data_cpu / count,
    )


class _Totals:
    """Sums over iterations."""

    def __init__(self) -> None:
        names = ('data', 'forward', BACKWARD, STEP, 'hooks', 'other')
        self.phases = dict.fromkeys(names, 0.0)
        self.hooks: dict[str, float] = defaultdict(float)
        self.modules: dict[str, float] = defaultdict(float)
        self.seconds = self.data_cpu = 0.0

    def add(self, spans: list[Span], begin: Mark, end: Mark) -> None:
        """Add one iteration."""
        outer = [s for s in spans if not s.is_inner and s.kind != MODULE]
        before = [s for s in outer if s.kind == BEFORE]
        if not before:
            return
        first = min(before, key=lambda s: s.start)
        step_begin = max(s.stop for s in before)
        after = [
            s.start for s in outer if s.kind == AFTER and s.start >= step_begin
        ]
        step_end = min(after, default=end.time)
        # Hooks that end the iteration before, or an epoch, and validation.
        in_gap = [s for s in outer if s.stop <= first.start]
        aside = sum(map(_length, in_gap))
        validated = sum(map(_length, _of(in_gap, VALIDATION)))
        in_step = [s for s in spans if step_begin <= s.start < step_end]
        backward = sum(map(_length, _outer(_of(in_step, BACKWARD))))
        step = sum(map(_length, _outer(_of(in_step, STEP))))
        data = first.start - begin.time - aside
        cpu = first.cpu - begin.cpu
        named = [s for s in outer if s.kind not in _NO_HOOKS]
        for span in named:
            self.hooks[span.name] += _length(span)
        for span in _of(in_step, MODULE):
            self.modules[span.name] += _length(span)
        seconds = end.time - begin.time - validated
        found = {
            'data': data,
            'forward': step_end - step_begin - backward - step,
            BACKWARD: backward,
            STEP: step,
            'hooks': sum(map(_length, named)),
        }
        found['other'] = seconds - sum(found.values())
        for name, value in found.items():
            self.phases[name] += value
        self.seconds += seconds
        self.data_cpu += min(data, cpu) if not in_gap else 0.0


def _slowest_first(times: dict[str, float], count: int) -> dict[str, float]:
    ordered = sorted(times.items(), key=lambda item: -item[1])
    return {name: seconds / count for name, seconds in ordered}


def _of(spans: list[Span], kind: str) -> list[Span]:
    return [span for span in spans if span.kind == kind]


def _outer(spans: list[Span]) -> list[Span]:
    return [span for span in spans if not span.is_inner]


def _length(span: Span) -> float:
    return span.stop - span.start
