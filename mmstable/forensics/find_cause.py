"""Find the cause of a bad step in bounded time, by replaying it.

The step is replayed until the operation or tensor is known that its NaN or
Inf began with, the kind of cause, and the samples to blame.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple

import psutil
import torch
from torch import Tensor
from torch.nn import Module

from mmstable.batch import batch_size
from mmstable.events.records import Verdict
from mmstable.forensics.frames import FINITE, Place, Range, severity
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
    AnyOrigin,
    Clock,
    External,
    NanOrigin,
    OriginTracer,
    OutOfTime,
    Watch,
    find_culprit,
    follow,
    walk_tensors,
)
from mmstable.messages import _


class DomainError(NamedTuple):
    """An operation that is undefined for its operand, such as log(0).

    Args:
        name (str): The kind of error, such as 'log_zero'.
        operand (Range, optional): The operand outside of the domain.
    """

    name: str
    operand: Range | None


def domain_error(origin: NanOrigin) -> DomainError | None:
    """Find the domain error of an operation; None if it has none.

    Args:
        origin (NanOrigin): An operation, of either pass.
    """
    for names, error, position, applies in _RULES:
        if origin.name in names and applies(origin, origin.inputs[position]):
            return DomainError(error, origin.inputs[position])
    if _overflows(origin):
        return None
    operand = origin.inputs[0] if origin.inputs else None
    is_written = any(map(math.isnan, origin.scalars))
    return DomainError('nan_number' if is_written else 'undefined', operand)


def _overflows(origin: NanOrigin) -> bool:
    """Whether the inputs can be too large for the operation.

    A sum of infinite products, inside of one operation, is NaN.
    """
    is_inf = origin.kind == 'Inf'
    if is_inf and origin.name in _GROWING:
        return True
    peaks = sorted(one.peak for one in origin.inputs)
    if not peaks:
        return False
    limit = torch.finfo(getattr(torch, origin.output.dtype)).max
    return peaks[-1] * peaks[-1 if is_inf else -2 :][0] > limit / 1000


def _low(one: Range) -> float:
    return math.inf if one.low is None else one.low


def _high(one: Range) -> float:
    return -math.inf if one.high is None else one.high


def _has_zero(origin: NanOrigin, operand: Range) -> bool:
    return operand.zeros > 0


def _is_negative(origin: NanOrigin, operand: Range) -> bool:
    return _low(operand) < 0


def _gives_nan(origin: NanOrigin, operand: Range) -> bool:
    return origin.kind == 'NaN'


def _gives_nan_of_negative(origin: NanOrigin, operand: Range) -> bool:
    return origin.kind == 'NaN' and _low(operand) < 0


def _gives_nan_of_finite(origin: NanOrigin, operand: Range) -> bool:
    return origin.kind == 'NaN' and origin.inputs[0].kind == 'finite'


def _is_at_most_minus_one(origin: NanOrigin, operand: Range) -> bool:
    return _low(operand) <= -1


def _is_beyond_one(origin: NanOrigin, operand: Range) -> bool:
    return _low(operand) < -1 or _high(operand) > 1 or operand.size == 0


def _reaches_one(origin: NanOrigin, operand: Range) -> bool:
    return _low(operand) <= -1 or _high(operand) >= 1


def _is_masked(origin: NanOrigin, operand: Range) -> bool:
    return 0 < operand.minus_infs == operand.infs


def _is_empty(origin: NanOrigin, operand: Range) -> bool:
    return operand.size == 0


def _divides_by_zero(origin: NanOrigin, divisor: Range) -> bool:
    # A divisor that is a plain number is no input.
    is_number = len(origin.inputs) < 2
    return 0.0 in origin.scalars if is_number else divisor.zeros > 0


def _divides_zero_by_zero(origin: NanOrigin, divisor: Range) -> bool:
    return origin.kind == 'NaN' and _divides_by_zero(origin, divisor)


def _divides_small(origin: NanOrigin, divisor: Range) -> bool:
    return not _overflows(origin)


def _has_negative_power(origin: NanOrigin, base: Range) -> bool:
    exponents = origin.scalars or [_low(one) for one in origin.inputs[1:]]
    return base.zeros > 0 and any(one < 0 for one in exponents)


# A moderate input is enough for them to leave the range of a dtype.
_GROWING = (
    *('exp', 'exp2', 'expm1', 'sinh', 'cosh'),
    *('pow', 'float_power', 'prod', 'cumprod'),
)
_LOGS = ('log', 'log2', 'log10', 'xlogy')
_DIVISIONS = ('div', 'true_divide', 'remainder', 'fmod')
_SOFTMAX = ('_softmax', '_log_softmax', '_safe_softmax', 'logsumexp')
_SPREADS = ('var', 'std', 'var_mean', 'std_mean')
_NLL = ('nll_loss_forward', 'nll_loss2d_forward')
_Condition = Callable[[NanOrigin, Range], bool]
# Operations, the error, the position of the operand, and the condition. The
# first one that applies counts.
_RULES: tuple[tuple[tuple[str, ...], str, int, _Condition], ...] = (
    (_LOGS, 'log_negative', 0, _gives_nan_of_negative),
    (_LOGS, 'log_zero', 0, _has_zero),
    (('log1p',), 'log_zero', 0, _is_at_most_minus_one),
    (_DIVISIONS, 'zero_by_zero', -1, _divides_zero_by_zero),
    (_DIVISIONS, 'by_zero', -1, _divides_by_zero),
    (_DIVISIONS, 'by_almost_zero', -1, _divides_small),
    (('sqrt', 'rsqrt'), 'root_negative', 0, _is_negative),
    (('reciprocal', 'rsqrt'), 'by_zero', 0, _has_zero),
    (('pow',), 'pow_negative', 0, _gives_nan_of_negative),
    (('pow',), 'by_zero', 0, _has_negative_power),
    (('acos', 'asin'), 'outside_one', 0, _is_beyond_one),
    (('atanh', 'erfinv'), 'outside_one', 0, _reaches_one),
    (_SOFTMAX, 'masked_row', 0, _is_masked),
    (_SPREADS, 'one_value', 0, _gives_nan),
    (('mean',), 'empty', 0, _is_empty),
    (_NLL, 'no_target', -1, _gives_nan_of_finite),
)


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


def find_samples(
    inputs: StepInputs, culprit: AnyOrigin, is_bad: IsBad
) -> Samples:
    """Find the samples that a NaN or Inf comes from.

    Args:
        inputs (StepInputs): The step.
        culprit (AnyOrigin): What is to blame.
        is_bad (Callable): Whether the same fault happens with some samples
            alone.
    """
    if isinstance(culprit, NanOrigin):
        return blame_samples(inputs, list(culprit.rows), is_bad)
    size = batch_size(inputs.batch)
    return _named(inputs, _of_external(culprit, size), False)


def blame_samples(
    inputs: StepInputs, rows: list[int], is_bad: IsBad
) -> Samples:
    """Find the samples that a fault of an operation comes from.

    The rows of the operation are asked first; a search is the fallback.

    Args:
        inputs (StepInputs): The step.
        rows (list[int]): Rows of the operation that are bad, if these are
            samples of the batch; [] if that is unknown.
        is_bad (Callable): Whether the same fault happens with some samples
            alone.
    """
    size = batch_size(inputs.batch)
    if size < 2:
        return _named(inputs, list(range(size)), False)
    return _named(inputs, *_of_operation(rows, size, is_bad))


def _named(inputs: StepInputs, found: list[int], together: bool) -> Samples:
    names = [inputs.name_sample(one) for one in found]
    size = batch_size(inputs.batch)
    return Samples(tuple(found), tuple(names), together, size)


def _of_external(culprit: External, size: int) -> list[int]:
    if culprit.source != BATCH:
        return []
    match = _INDEX.match(culprit.name)
    if match is not None and int(match[1]) < size:
        return [int(match[1])]
    return list(culprit.rows)


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
    culprit: AnyOrigin | None,
    error: DomainError | None,
    is_fine_in_float32: bool,
) -> Verdict:
    """Judge a fault that was reproduced.

    Args:
        culprit (AnyOrigin, optional): What it began with.
        error (DomainError, optional): The domain error of that operation.
        is_fine_in_float32 (bool): Whether the step was in float16, and the
            same batch in float32 is fine.
    """
    if culprit is None:
        return Verdict.NOT_REPRODUCED
    if isinstance(culprit, External):
        of_model = culprit.source in (PARAMETER, BUFFER)
        return Verdict.BAD_WEIGHTS if of_model else Verdict.BAD_INPUT
    # Where a kernel overflows inside, NaN comes out of finite inputs.
    if is_fine_in_float32 and (error is None or error.name in _OF_KERNELS):
        return Verdict.FP16_OVERFLOW
    if is_fine_in_float32 and error is not None and error.name in _OF_ZERO:
        return Verdict.FP16_UNDERFLOW
    return Verdict.EXPLODING if error is None else Verdict.DOMAIN_ERROR


def growing(peaks: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """List the modules that each gave a new largest value.

    Args:
        peaks (list): Modules and their largest values, along the forward
            pass.
    """
    found: list[tuple[str, float]] = []
    for name, peak in peaks:
        if not found or peak > 10 * found[-1][1]:
            found.append((name, peak))
    return found[-5:]


@dataclass
class Finding:
    """Why a step was bad.

    Args:
        verdict (Verdict): The kind of cause.
        culprit (AnyOrigin, optional): The operation or tensor that it began
            with. Defaults to None.
        chain (list[AnyOrigin]): All that lies between that and the loss or the
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
        reason (str): Why nothing was examined. Defaults to ''.
        notes (list[str]): What limits this finding. Defaults to [].
    """

    verdict: Verdict
    culprit: AnyOrigin | None = None
    chain: list[AnyOrigin] = field(default_factory=list)
    terms: tuple[str, ...] = ()
    samples: Samples = field(default_factory=Samples)
    domain_error: DomainError | None = None
    largest: float | None = None
    peaks: list[tuple[str, float]] = field(default_factory=list)
    reason: str = ''
    notes: list[str] = field(default_factory=list)


_CASTS = ('_to_copy', 'copy', 'to')


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
            return self._run()
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
        except Exception as error:
            # Whatever a model raises: training continues.
            reason = _(
                'the replay failed: {error}',
                error=f'{type(error).__name__}: {error}',
            )
        return Finding(Verdict.NOT_EXAMINED, reason=reason)

    def _run(self) -> Finding:
        step, bad = self._find_bad()
        if step is None or bad is None:
            return Finding(Verdict.NOT_REPRODUCED)
        self._by_gradient = severity(bad.loss) == FINITE
        chain = follow(_ends(step, bad))
        culprit = find_culprit(chain)
        error = None
        if isinstance(culprit, NanOrigin):
            error = domain_error(culprit)
        finding = Finding(
            judge(culprit, error, False), culprit, chain, domain_error=error
        )
        try:
            finding.terms = bad.bad_terms or self._terms_of_gradient(bad)
            self._look_closer(finding)
        except OutOfTime:
            finding.notes.append(
                _('time was over before all samples were tried')
            )
        return finding

    def _find_bad(self) -> tuple[ReplayedStep | None, Backprop | None]:
        """The first inputs that is bad again, and what is bad in it."""
        for inputs in self.all_inputs:
            if len(self.all_inputs) > 1 and not self._happens(inputs):
                continue
            self.inputs = inputs
            step = self._replay(inputs)
            bad = step.first_bad(self._wrapper)
            if bad is not None:
                return step, bad
        return None, None

    def _happens(self, inputs: StepInputs) -> bool:
        self.clock.check()
        return replay_step(inputs).first_bad(self._wrapper) is not None

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
        step = replay_step(self.inputs, by_term=True)
        again = step.first_bad(self._wrapper)
        if again is None:
            return ()
        return step.bad_terms.get(step.passes.index(again), ())

    def _look_closer(self, finding: Finding) -> None:
        culprit = finding.culprit
        if isinstance(culprit, NanOrigin):
            self._compare_with_float32(finding, culprit)
            if finding.verdict is Verdict.EXPLODING:
                finding.peaks = growing(self._peaks())
        if culprit is not None:
            finding.samples = find_samples(
                self.inputs, culprit, lambda some: self._is_same(some, culprit)
            )

    def _compare_with_float32(
        self, finding: Finding, culprit: NanOrigin
    ) -> None:
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
        if culprit.name in _CASTS and culprit.inputs:
            finding.largest = max(one.peak for one in culprit.inputs)
        if finding.verdict in (Verdict.DOMAIN_ERROR, Verdict.EXPLODING):
            finding.notes.append(
                _(
                    'only in {dtype}: the same batch is finite in float32',
                    dtype=sorted(dtypes),
                )
            )

    def _peaks(self) -> list[tuple[str, float]]:
        """The largest output of every module, in the order of these."""
        peaks: dict[str, float] = {}

        def note(phase: str, op: str, place: Place, output: Tensor) -> None:
            name, peak = place.module or '', _peak_of(output)
            if peak > peaks.get(name, 0.0):
                # Where the largest ones came, not the first ones.
                peaks.pop(name, None)
                peaks[name] = peak

        self._replay(self.inputs, note, with_gradients=False)
        return list(peaks.items())

    def _is_same(self, samples: list[int], culprit: AnyOrigin) -> bool:
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
            if _signature(culprit) in map(_signature, born):
                return True
            is_pair = len(samples) != 1
            return not is_pair and self._is_same(samples * 2, culprit)
        bad = step.first_bad(self._wrapper)
        if bad is None:
            return False
        again = find_culprit(follow(_ends(step, bad)))
        return again is not None and _signature(again) == _signature(culprit)


def _peak_of(tensor: Tensor) -> float:
    values = tensor.detach().abs()
    finite = values[values.isfinite()]
    return float(finite.amax()) if finite.numel() else 0.0


def _ends(step: ReplayedStep, bad: Backprop) -> list[AnyOrigin]:
    mode = step.mode
    if mode is None:
        return []
    gradients = bad.bad_gradients.values()
    return list(mode.origins_of(bad.loss)) or [
        one for gradient in gradients for one in mode.origins_of(gradient)
    ]


def _signature(origin: AnyOrigin) -> tuple[Any, ...]:
    if isinstance(origin, NanOrigin):
        return origin.phase, origin.op, origin.place
    return origin.source, origin.name


_GIB = 2**30


class Room(NamedTuple):
    """Memory for a replay, in GiB.

    Args:
        needed (float): What it takes.
        free (float): What there is.
    """

    needed: float
    free: float

    @property
    def is_enough(self) -> bool:
        """Whether it fits."""
        return self.needed <= self.free


def room_for(model: Module, batch: Any, device: torch.device) -> Room:
    """Estimate the memory that a replay takes.

    On an accelerator it is the peak of the step itself; on a CPU the peak is
    unknown, and the copies alone have to fit.

    Args:
        model (Module): The model.
        batch (Any): What the data loader gave.
        device (torch.device): Where the model is.
    """
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, 'mem_get_info'):
        free, __ = module.mem_get_info(device)
        used = module.memory_allocated(device)
        cached = module.memory_reserved(device) - used
        needed = module.max_memory_allocated(device) - used
        return Room(needed / _GIB, (free + cached) / _GIB)
    tensors = [one for __, one in walk_tensors(batch)]
    tensors += [*model.parameters(), *model.buffers()]
    copied = sum(one.numel() * one.element_size() for one in tensors)
    return Room(2 * copied / _GIB, psutil.virtual_memory().available / _GIB)
