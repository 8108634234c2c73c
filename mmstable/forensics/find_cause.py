"""Find the cause of a bad step in bounded time, by replaying it.

The step is replayed until the operation or tensor is known that its NaN or
Inf began with, the kind of cause, and the samples to blame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from torch import Tensor
from torch.nn import Module

from mmstable.batch import batch_size
from mmstable.events.records import Verdict
from mmstable.forensics.domain import DomainError, domain_error
from mmstable.forensics.frames import FINITE, Place, severity
from mmstable.forensics.replay import (
    Backprop,
    CollectiveRefused,
    ReplayedStep,
    StepInputs,
    replay_step,
)
from mmstable.forensics.trace import (
    BATCH,
    BUFFER,
    PARAMETER,
    Clock,
    Origin,
    OriginTracer,
    OutOfTime,
    Watch,
    find_culprit,
    follow,
)
from mmstable.messages import _

if TYPE_CHECKING:
    from mmstable.forensics.crash import OutOfRange

# Above this size, samples are not left out one by one.
_MOST_LEFT_OUT = 32
# Up to so many are tried one by one, even if all of them seem to be bad: the
# output of an operation may have the size of the batch by chance.
_MOST_ALONE = 8
_INDEX = re.compile(r'\w*\[(\d+)\]')

# Whether the same fault happens with these samples alone.
IsBad = Callable[[list[int]], bool]


@dataclass(frozen=True)
class Samples:
    """The samples that a fault comes from.

    Args:
        indices (tuple[int]): Their indices in the batch; () if it is not a
            matter of samples. Defaults to ().
        names (tuple[str]): What they are called, as 'img_path=...'. Defaults
            to ().
        only_together (bool): Whether other samples are needed, too, because a
            statistic of the batch couples them. Defaults to False.
        total (int): How many the batch has. Defaults to 0.
    """

    indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    only_together: bool = False
    total: int = 0


@dataclass
class Finding:
    """Why a step was bad, or has raised an error.

    Args:
        verdict (Verdict): The kind of cause.
        culprit (Origin, optional): What it began with; of an error the
            operation that raised it. Defaults to None.
        chain (list[Origin]): All that lies between that and the loss or the
            gradients, the earliest first. Defaults to [].
        terms (tuple[str]): The terms of the loss that it reached. Defaults
            to ().
        samples (Samples): The samples it came from. Defaults to none.
        domain_error (DomainError, optional): That of the operation. Defaults
            to None.
        largest (float, optional): The value that was too large. Defaults to
            None.
        peaks (list): Modules and the largest values of their outputs, along
            the forward pass. Defaults to [].
        message (str): The text of an error. Defaults to ''.
        values (OutOfRange, optional): Values that the operation refuses.
            Defaults to None.
        since (int, optional): Since when weights are bad. Defaults to None.
        has_moved (bool): Whether weights have changed since. Defaults to
            False.
        reason (str): Why nothing was examined. Defaults to ''.
        notes (list[str]): What limits this finding. Defaults to [].
    """

    verdict: Verdict
    culprit: Origin | None = None
    chain: list[Origin] = field(default_factory=list)
    terms: tuple[str, ...] = ()
    samples: Samples = field(default_factory=Samples)
    domain_error: DomainError | None = None
    largest: float | None = None
    peaks: list[tuple[str, float]] = field(default_factory=list)
    message: str = ''
    values: OutOfRange | None = None
    since: int | None = None
    has_moved: bool = False
    reason: str = ''
    notes: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """Return the fields of ``FaultExplained``."""
        facts: dict[str, Any] = dict(
            verdict=self.verdict,
            loss_terms=self.terms,
            samples=self.samples.indices,
            sample_names=self.samples.names,
            only_together=self.samples.only_together,
            largest=self.largest,
            since=self.since,
            chain=tuple(map(str, self.chain)),
            notes=tuple(self.notes),
        )
        one = self.culprit
        if one is not None:
            for name in ('kind', 'phase', 'op', 'node', 'source', 'name'):
                facts[name] = getattr(one, name)
            facts.update(
                module=one.place.module or '',
                lines=tuple(map(str, one.place.lines)),
                inputs=tuple(map(str, one.inputs)),
                output=str(one.output),
                bad_share=one.output.bad_share,
            )
        return facts


def blame_samples(
    inputs: StepInputs, culprit: Origin, is_bad: IsBad
) -> Samples:
    """Find the samples that a fault comes from.

    The rows of the operation are asked first; a search is the fallback.

    Args:
        inputs (StepInputs): The step.
        culprit (Origin): What is to blame.
        is_bad (Callable): Whether the same fault happens with some samples
            alone.
    """
    size, together = batch_size(inputs.batch), False
    found = list(culprit.rows)
    if culprit.source:
        match = _INDEX.match(culprit.name)
        if culprit.source != BATCH:
            found = []
        elif match is not None and int(match[1]) < size:
            found = [int(match[1])]
    elif size < 2:
        found = list(range(size))
    else:
        found, together = _of_operation(found, size, is_bad)
    names = [inputs.name_sample(one) for one in found]
    return Samples(tuple(found), tuple(names), together, size)


def _of_operation(
    rows: list[int], size: int, is_bad: IsBad
) -> tuple[list[int], bool]:
    everyone = list(range(size))
    others = [one for one in everyone if one not in rows]
    halves = everyone[: size // 2], everyone[size // 2 :]
    if rows and others and not is_bad(others):
        return rows, not is_bad(rows)
    if (
        len(rows) == size > _MOST_ALONE
        and all(map(is_bad, halves))
        and is_bad([0])
    ):
        return rows, False
    alone = [one for half in halves for one in _search(half, is_bad)]
    healthy = [one for one in everyone if one not in alone]
    if healthy and alone:
        # A statistic of the batch may not be defined for one sample.
        guilty = [one for one in alone if is_bad(sorted([*healthy, one]))]
        return guilty or alone, False
    if size > _MOST_LEFT_OUT:
        return alone, False
    needed = [
        one
        for one in everyone
        if not is_bad([other for other in everyone if other != one])
    ]
    return needed or alone, not alone


def _search(samples: list[int], is_bad: IsBad) -> list[int]:
    """Find the samples that are bad alone, by bisection."""
    if not is_bad(samples):
        return []
    if len(samples) == 1:
        return samples
    half = len(samples) // 2
    return _search(samples[:half], is_bad) + _search(samples[half:], is_bad)


# Errors that only tell in which kernel it happened.
_OF_KERNELS = ('undefined', 'by_almost_zero')
# Errors of an operand that is 0.
_OF_ZERO = ('log_zero', 'zero_by_zero', 'by_zero')


def judge(
    culprit: Origin, error: DomainError | None, is_fine_in_float32: bool
) -> Verdict:
    """Judge a fault that was reproduced.

    Args:
        culprit (Origin): What it began with.
        error (DomainError, optional): The domain error of that operation.
        is_fine_in_float32 (bool): Whether the step was in float16, and the
            same batch in float32 is fine.
    """
    if culprit.source:
        of_model = culprit.source in (PARAMETER, BUFFER)
        return Verdict.BAD_WEIGHTS if of_model else Verdict.BAD_INPUT
    # Where a kernel overflows inside, NaN comes out of finite inputs.
    if is_fine_in_float32 and (error is None or error.name in _OF_KERNELS):
        return Verdict.FP16_OVERFLOW
    if is_fine_in_float32 and error is not None and error.name in _OF_ZERO:
        return Verdict.FP16_UNDERFLOW
    return Verdict.EXPLODING if error is None else Verdict.DOMAIN_ERROR


class NotExamined(Exception):
    """A step that cannot be run again here, for the reason given."""


class CauseFinder:
    """Search for the cause of a bad step.

    Args:
        all_inputs (list[StepInputs]): Those of the step, or of all steps of
            an accumulation window, the newest last.
        wrapper (str, optional): The wrapper whose step was bad. Defaults to
            None.
        seconds (float): How long it may take. Defaults to 60.0.
    """

    def __init__(
        self,
        all_inputs: list[StepInputs],
        wrapper: str | None = None,
        seconds: float = 60.0,
    ) -> None:
        self.all_inputs = all_inputs
        # The one that was bad.
        self.inputs = all_inputs[-1]
        self._wrapper = wrapper
        # Whether the loss is fine, and only its gradient bad.
        self._by_gradient = False
        # That of the newest replay.
        self._mode: OriginTracer | None = None
        self.clock = Clock(seconds)

    def run(self) -> Finding:
        """Replay the step, and judge what comes out."""
        try:
            return self.search()
        except OutOfTime:
            reason = _(
                'a replay takes more than {seconds:g} s',
                seconds=self.clock.limit,
            )
        except CollectiveRefused as error:
            reason = _(
                'the model waits for other ranks in {op}, which do not replay',
                op=error.op,
            )
        except NotExamined as error:
            reason = str(error)
        except Exception as error:
            # Whatever a model raises: training continues.
            reason = _(
                'the replay failed: {error}',
                error=f'{type(error).__name__}: {error}',
            )
        return Finding(Verdict.NOT_EXAMINED, reason=reason)

    def search(self) -> Finding:
        """Replay the step without any bounds but those of the clock."""
        step, bad = self._find_bad()
        if step is None or bad is None:
            return Finding(Verdict.NOT_REPRODUCED)
        self._by_gradient = severity(bad.loss) == FINITE
        chain = _chain(step, bad)
        culprit = find_culprit(chain)
        if culprit is None:
            return Finding(Verdict.NOT_REPRODUCED)
        error = None if culprit.source else domain_error(culprit)
        finding = Finding(
            judge(culprit, error, False), culprit, chain, domain_error=error
        )
        try:
            finding.terms = bad.bad_terms or self._terms_of_gradient(bad)
            if not culprit.source:
                self._compare_with_float32(finding, culprit)
            if finding.verdict is Verdict.EXPLODING:
                finding.peaks = self._growing_peaks()
            finding.samples = blame_samples(
                self.inputs, culprit, lambda some: self._is_same(some, culprit)
            )
        except OutOfTime:
            finding.notes.append(
                _('time was over before all samples were tried')
            )
        return finding

    def _find_bad(self) -> tuple[ReplayedStep | None, Backprop | None]:
        """The first inputs that are bad again, and what is bad in them."""
        for inputs in self.all_inputs:
            if len(self.all_inputs) > 1:
                self.clock.check()
                if replay_step(inputs).first_bad(self._wrapper) is None:
                    continue
            self.inputs = inputs
            step = self._replay(inputs)
            bad = step.first_bad(self._wrapper)
            if bad is not None:
                return step, bad
        return None, None

    def _replay(
        self,
        inputs: StepInputs,
        watch: Watch | None = None,
        **options: Any,
    ) -> ReplayedStep:
        def make_mode(model: Module, batch: Any) -> OriginTracer:
            self._mode = OriginTracer(
                model, batch, batch_size(batch), watch, clock=self.clock
            )
            return self._mode

        self.clock.check()
        return replay_step(inputs, make_mode=make_mode, **options)

    def _terms_of_gradient(self, bad: Backprop) -> tuple[str, ...]:
        """List the terms of a finite loss whose own gradients are bad."""
        if len(bad.terms) < 2:
            return tuple(bad.terms)
        self.clock.check()
        again = replay_step(self.inputs, by_term=True).first_bad(self._wrapper)
        return () if again is None else again.terms_of_gradient

    def _compare_with_float32(self, finding: Finding, culprit: Origin) -> None:
        """Replay in float32: is it finite, and how large are the values?"""
        dtypes = {one.dtype for one in self.inputs.setups.values()} - {None}
        if not dtypes:
            return
        largest: list[float] = []

        def note(phase: str, op: str, place: Place, output: Tensor) -> None:
            if (phase, place) == (culprit.phase, culprit.place):
                largest.append(_peak_of(output))

        step = self._replay(self.inputs, note, dtype='float32')
        if step.first_bad(self._wrapper) is not None:
            return
        if 'float16' in dtypes:
            finding.verdict = judge(culprit, finding.domain_error, True)
        finding.largest = max(largest, default=None)
        is_cast = culprit.function in ('_to_copy', 'copy', 'to')
        if is_cast and culprit.inputs:
            finding.largest = max(one.peak for one in culprit.inputs)
        if finding.verdict in (Verdict.DOMAIN_ERROR, Verdict.EXPLODING):
            finding.notes.append(
                _(
                    'only in {dtype}: the same batch is finite in float32',
                    dtype=sorted(dtypes),
                )
            )

    def _growing_peaks(self) -> list[tuple[str, float]]:
        """Modules that each gave a new largest value, in their order."""
        peaks: dict[str, float] = {}

        def note(phase: str, op: str, place: Place, output: Tensor) -> None:
            name, peak = place.module or '', _peak_of(output)
            if peak > peaks.get(name, 0.0):
                # Where the largest ones came, not the first ones.
                peaks.pop(name, None)
                peaks[name] = peak

        self._replay(self.inputs, note, with_gradients=False)
        found: list[tuple[str, float]] = []
        for name, peak in peaks.items():
            if not found or peak > 10 * found[-1][1]:
                found.append((name, peak))
        return found[-5:]

    def _is_same(self, samples: list[int], culprit: Origin) -> bool:
        """Whether the same fault happens with some samples alone."""
        try:
            step = self._replay(
                self.inputs.only(samples), with_gradients=self._by_gradient
            )
        except OutOfTime:
            raise
        except Exception:
            # BatchNorm, for one, refuses a single sample; but by then the
            # fault may have happened.
            born = self._mode.origins if self._mode is not None else []
            if any(one.identity == culprit.identity for one in born):
                return True
            return len(samples) == 1 and self._is_same(samples * 2, culprit)
        bad = step.first_bad(self._wrapper)
        again = None if bad is None else find_culprit(_chain(step, bad))
        return again is not None and again.identity == culprit.identity


def _peak_of(tensor: Tensor) -> float:
    values = tensor.detach().abs()
    finite = values[values.isfinite()]
    return float(finite.amax()) if finite.numel() else 0.0


def _chain(step: ReplayedStep, bad: Backprop) -> list[Origin]:
    """What lies between the origin and the loss, or the bad gradients."""
    mode = step.mode
    if mode is None:
        return []
    gradients = bad.bad_gradients.values()
    return follow(
        mode.origins_of(bad.loss)
        or [one for grad in gradients for one in mode.origins_of(grad)]
    )
