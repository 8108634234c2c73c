"""Warn before activations or gradients leave the range of their dtype.

The largest values of one iteration are measured module by module, and their
trend is extrapolated. The share of fp16 gradients that underflow to zero is
estimated from the values just above the smallest number: zeros alone do not
tell, since behind a ReLU half of all gradients are zero.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten

from mmstable.io.schema import (
    Check,
    count,
    list_of,
    number,
    number_or_inf,
    optional,
    record,
    text,
    tuple_of,
    within,
)
from mmstable.messages import N_, _
from mmstable.optim.grad_health import clean_name
from mmstable.torch_internals import in_backward

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Tensors of one output that are looked at.
_MOST_TENSORS = 16
# Values of a gradient that are looked at.
_LOOKED_AT = 1 << 16
OUTPUT, INPUT, GRADIENT = 'output', 'input', 'gradient'
FP16 = 'float16'


class Place(NamedTuple):
    """Where a value was seen, and in which range it has to stay.

    Args:
        module (str): Name of the module.
        kind (str): 'output' or 'gradient' of that; 'input' if the module
            casts its input to a shorter type.
        dtype (str): The type, as 'float16'.
    """

    module: str
    kind: str
    dtype: str

    def share(self, peak: float, scale: float, floor: float) -> float:
        """The largest value as a share of the range.

        A gradient that overflows makes the loss scale smaller, so what counts
        is what it would be at the smallest one.

        Args:
            peak (float): The largest value.
            scale (float): The loss scale.
            floor (float): The smallest one that it can become.
        """
        factor = floor / scale if self.kind == GRADIENT else 1.0
        return peak * factor / torch.finfo(getattr(torch, self.dtype)).max


class SmallValues(NamedTuple):
    """The smallest values of an fp16 gradient, in units of 2**-24.

    Args:
        module (str): The module whose output it is the gradient of.
        size (int): How many values the gradient has.
        total (int): How many of them were looked at.
        zeros (int): How many are 0.
        ones (int): How many are 1 (from 0.5 to 1.5 before rounding).
        few (int): How many are 2 or 3 (from 1.5 to 3.5).
    """

    module: str
    size: int
    total: int
    zeros: int
    ones: int
    few: int


def count_small(grad: Tensor) -> tuple[Tensor, int]:
    """Count zeros, ones and values up to 3, on the device of the gradient.

    Args:
        grad (Tensor): In fp16.

    Returns:
        tuple: A tensor with the three counts, and how many were looked at.
    """
    # Odd, so that it does not fall into step with rows of pixels.
    step = grad.numel() // _LOOKED_AT | 1
    bits = grad.reshape(-1)[::step].view(torch.int16).bitwise_and(0x7FFF)
    counts = [(bits == 0).sum(), (bits == 1).sum(), (bits < 4).sum()]
    return torch.stack(counts), bits.numel()


class HeadroomProbe:
    """Watches all modules of a model until it is removed.

    One operation is done for each tensor that a module gives, and one for
    its gradient; nothing is read by the host before :meth:`read`. A part that
    activation checkpointing runs a second time is counted once.

    Args:
        model (Module): The model, outside of any wrapper.
    """

    def __init__(self, model: Module) -> None:
        self._peaks: list[tuple[Place, Tensor, Tensor]] = []
        self._small: list[tuple[str, int, int, Tensor]] = []
        # A container gives what its last module gave.
        self._seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._handles = [
            module.register_forward_hook(
                partial(
                    self._after_forward, clean_name(f'{name}.').rstrip('.')
                )
            )
            for name, module in model.named_modules()
            # What the model itself gives are losses.
            if name and not isinstance(module, torch.jit.ScriptModule)
        ]

    def remove(self) -> None:
        """End watching."""
        while self._handles:
            self._handles.pop().remove()
        self._seen.clear()

    def read(self) -> tuple[dict[Place, float], list[SmallValues]]:
        """The largest values, and the smallest gradients in fp16.

        Returns:
            tuple: Places to the largest absolute value that was seen there,
            which is infinity if there was a NaN; and the small values.
        """
        peaks: dict[Place, float] = {}
        lows = _read([one[1] for one in self._peaks])
        highs = _read([one[2] for one in self._peaks])
        for (place, *__), low, high in zip(self._peaks, lows, highs):
            peak = math.inf if math.isnan(low) else max(-low, high)
            peaks[place] = max(peak, peaks.get(place, 0.0))
        counts = _read([found for *__, found in self._small])
        small = [
            SmallValues(name, size, total, zeros, ones, up_to_3 - zeros - ones)
            for (name, size, total, __), (zeros, ones, up_to_3) in zip(
                self._small, counts
            )
        ]
        return peaks, small

    def _after_forward(
        self, name: str, module: Module, args: Any, output: Any
    ) -> None:
        is_repeated = in_backward()
        tensors = list(_tensors(output))[:_MOST_TENSORS]
        for tensor in tensors:
            if self._was_seen(tensor):
                continue
            if tensor.requires_grad:
                tensor.register_hook(partial(self._after_backward, name))
            if not is_repeated:
                self._note(name, OUTPUT, tensor, tensor.dtype)
        is_leaf = next(module.children(), None) is None
        if tensors and not is_repeated and is_leaf:
            # An input that autocast had to make shorter.
            for tensor in list(_tensors(args))[:1]:
                if tensors[0].element_size() < tensor.element_size():
                    self._note(name, INPUT, tensor, tensors[0].dtype)

    def _after_backward(self, name: str, grad: Tensor) -> None:
        if not _can_be_read(grad):
            return
        self._note(name, GRADIENT, grad, grad.dtype)
        if grad.dtype is torch.float16:
            with torch.no_grad():
                counts, total = count_small(grad)
            self._small.append((name, grad.numel(), total, counts))

    def _note(
        self, name: str, kind: str, tensor: Tensor, dtype: torch.dtype
    ) -> None:
        place = Place(name, kind, str(dtype).replace('torch.', ''))
        with torch.no_grad():
            low, high = torch.aminmax(tensor)
        self._peaks.append((place, low, high))

    def _was_seen(self, tensor: Tensor) -> bool:
        """Whether it is the same tensor with the same values."""
        known, version = self._seen.get(id(tensor), (None, -1))
        if (
            known is not None
            and known() is tensor
            and tensor._version == version
        ):
            return True
        self._seen[id(tensor)] = (weakref.ref(tensor), tensor._version)
        return False


def _tensors(tree: Any) -> Iterator[Tensor]:
    for one in tree_flatten(tree)[0]:
        if isinstance(one, Tensor) and _can_be_read(one):
            yield one


def _can_be_read(tensor: Tensor) -> bool:
    # Of a distributed tensor, that would be a collective operation.
    return (
        type(tensor) is Tensor
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not tensor.is_meta
        and not tensor.is_inference()
    )


def _read(values: list[Tensor]) -> list[Any]:
    """Read many small tensors in as few transfers as possible."""
    groups: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault((value.device, value.dtype), []).append(index)
    found: list[Any] = [None] * len(values)
    for indices in groups.values():
        read = torch.stack([values[index] for index in indices]).tolist()
        for index, value in zip(indices, read):
            found[index] = value
    return found


# Fewer of the smallest values than that tell nothing.
_FEWEST_SMALL = 8
# How the density goes on towards zero, as a power of how much it grew from
# one bin to the next: 0.2 for a bell, 0.5 for an exponential.
_STEEPNESS = 0.5
_SMALLEST_NORMAL = 2.0**-14


class Underflow(NamedTuple):
    """What was lost in one iteration.

    Args:
        share (float): Of all gradients that should not be zero.
        module (str): The module that lost the largest share.
        worst (float): That share.
    """

    share: float
    module: str
    worst: float


def find_underflow(
    found: Sequence[SmallValues], peaks: Sequence[float]
) -> Underflow | None:
    """Put the gradients of an iteration together.

    Args:
        found (Sequence[SmallValues]): Of each of them.
        peaks (Sequence[float]): Their largest values.

    Returns:
        Underflow or None: None if there are no gradients in fp16.
    """
    # Where nothing is left there is nothing to tell from. It was lost if
    # gradients fade away in this model.
    fade = min((p for p in peaks if p > 0), default=0.0) < _SMALLEST_NORMAL
    # Lost and kept, by module; '' for all.
    sums: dict[str, list[float]] = {'': [0.0, 0.0]}
    for one in found:
        flushed = estimate_flushed(one.zeros, one.ones, one.few)
        if one.zeros == one.total and fade:
            flushed = float(one.total)
        weight = one.size / one.total
        for name in ('', one.module):
            known = sums.setdefault(name, [0.0, 0.0])
            known[0] += weight * flushed
            known[1] += weight * (one.total - one.zeros)
    shares = {
        name: lost / (lost + kept) if lost else 0.0
        for name, (lost, kept) in sums.items()
    }
    total = shares.pop('')
    if not shares:
        return None
    worst = max(shares, key=lambda name: shares[name])
    return Underflow(total, worst, shares[worst])


def estimate_flushed(zeros: int, ones: int, few: int) -> float:
    """How many of the zeros were not zero before rounding.

    The density of values is followed from the two bins down to zero. Where
    values spread over many orders of magnitude that gives too few: those are
    lost, but would hardly count.

    Args:
        zeros (int): Zeros.
        ones (int): Values from 0.5 to 1.5 times the smallest number.
        few (int): Values from 1.5 to 3.5 times the smallest number.
    """
    if ones + few < _FEWEST_SMALL:
        return 0.0
    # Counts for a width of 1, of both signs together.
    near, far = ones, few / 2
    density = near * (near / far) ** _STEEPNESS if far else float('inf')
    # Zeros come from a width of one half.
    return min(float(zeros), density / 2)


# Samples that are kept, and the fewest that make a trend.
WINDOW = 8
FEWEST = 4
# The share of pairs of samples in which the later one is larger, and the
# doublings from the first to the last: less than that may be chance.
_AGREEMENT = 0.9
_LEAST_GROWTH = 1.0
# Places that are more doublings away than that are not followed.
_FAR = -20.0
# The share of lost gradients to warn of, and samples that have to agree.
_MAX_UNDERFLOW = 0.1
_AGREEING = 3

# An iteration, and log2 of the largest value there as a share of the range.
Point = tuple[int, float]


class Forecast(NamedTuple):
    """What samples of one place tell.

    Args:
        share (float): The largest value, as a share of the range.
        doubling (float, optional): Iterations in which it doubles; None if
            it does not grow steadily. Defaults to None.
        left (float): Iterations until it leaves the range, if that goes on.
            Defaults to infinity.
    """

    share: float
    doubling: float | None = None
    left: float = math.inf


def forecast(points: Sequence[Point]) -> Forecast:
    """Tell from samples, of which the newest is the last, what is to come.

    The growth is the median of the slopes of all pairs (Theil and Sen): one
    sample that is far off does not move it.

    Args:
        points (Sequence[Point]): At least one.
    """
    now, newest = points[-1]
    pairs = combinations(points, 2) if len(points) >= FEWEST else ()
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in pairs]
    # Doublings in an iteration.
    slope = median(slopes or [0.0])
    if slope * (now - points[0][0]) < _LEAST_GROWTH or sum(
        one > 0 for one in slopes
    ) < _AGREEMENT * len(slopes):
        return Forecast(2.0 ** min(newest, 64.0))
    level = median(bits + slope * (now - when) for when, bits in points)
    share = 2.0 ** min(level, 64.0)
    return Forecast(share, 1 / slope, max(0.0, -level) / slope)


def _points(value: Any) -> list[Point]:
    points = list_of(tuple_of(count, number))(value)
    if not points or any(a[0] >= b[0] for a, b in zip(points, points[1:])):
        raise ValueError('must be of one iteration after the other')
    return points


def _of_places(check: Check) -> Check:
    return list_of(tuple_of(text(), text(), text(), check))


class Headroom:
    """Judge the samples of a run, and remember what was said of them.

    Args:
        horizon (float): Warn so many iterations before an overflow. Defaults
            to 1000.
        max_share (float): Warn of this share of the range in any case.
            Defaults to 0.5.
    """

    check = staticmethod(
        record(
            points=_of_places(_points),
            said=_of_places(number),
            underflows=list_of(within(0, 1)),
            told_at=optional(number_or_inf),
        )
    )

    def __init__(self, horizon: float = 1000, max_share: float = 0.5) -> None:
        self._horizon, self._max_share = horizon, max_share
        self._points: dict[Place, list[Point]] = {}
        # Doublings that were left when it was said.
        self._said: dict[Place, float] = {}
        self._underflows: deque[float] = deque(maxlen=_AGREEING)
        # The loss scale at which an underflow was told.
        self._told_at: float | None = None

    def warn(
        self, iteration: int, shares: Mapping[Place, float]
    ) -> tuple[str, dict[str, Any]] | None:
        """Add the samples of an iteration, and warn of the nearest overflow.

        A place is named again when half of what it had left is gone.

        Args:
            iteration (int): The iteration.
            shares (Mapping): Places to their largest values, as shares of
                the range.

        Returns:
            tuple, optional: The line, and the fields of the event.
        """
        close: dict[Place, Forecast] = {}
        for place, share in shares.items():
            # What is not finite has overflowed, or was meant to be infinite;
            # what has exactly the largest value is a mask.
            if not 0 < share < math.inf or share == 1.0:
                continue
            bits = math.log2(share)
            if bits < _FAR:
                self._points.pop(place, None)
                continue
            points = self._points.setdefault(place, [])
            points.append((iteration, bits))
            del points[:-WINDOW]
            known = forecast(points)
            if known.share >= self._max_share or known.left < self._horizon:
                close[place] = known
        new = []
        for place, known in close.items():
            left = -math.log2(known.share)
            if left < 0.5 * self._said.get(place, math.inf):
                self._said[place] = left
                new.append(place)
        if not new:
            return None
        first = min(new, key=lambda one: (close[one].left, -close[one].share))
        known = close[first]
        facts = dict(
            problem='overflow',
            **first._asdict(),
            share=known.share,
            doubling=known.doubling,
            left=None if math.isinf(known.left) else known.left,
        )
        return describe_low(iteration, first, known, len(close) - 1), facts

    def warn_of_underflow(
        self, iteration: int, found: Underflow, scale: float, largest: float
    ) -> tuple[str, dict[str, Any]] | None:
        """Warn of lost gradients, once at a loss scale.

        Args:
            iteration (int): The iteration.
            found (Underflow): What was lost.
            scale (float): The loss scale.
            largest (float): The largest gradient in fp16, scaled.

        Returns:
            tuple, optional: The line, and the fields of the event.
        """
        self._underflows.append(found.share)
        if (
            len(self._underflows) < _AGREEING
            or median(self._underflows) < _MAX_UNDERFLOW
            or self._told_at == scale
        ):
            return None
        self._told_at = scale
        facts = dict(
            problem='underflow',
            module=found.module,
            kind=GRADIENT,
            dtype=FP16,
            share=found.share,
        )
        return describe_underflow(iteration, found, scale, largest), facts

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        state = {
            'points': [[*k, v] for k, v in self._points.items()],
            'said': [[*k, v] for k, v in self._said.items()],
            'underflows': list(self._underflows),
            'told_at': self._told_at,
        }
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._points = {Place(*key): v for *key, v in state['points']}
        self._said = {Place(*key): v for *key, v in state['said']}
        self._underflows.extend(state['underflows'])
        self._told_at = state['told_at']


_SHORT_NAMES = {'float16': 'fp16', 'bfloat16': 'bf16', 'float32': 'fp32'}
_FP16_END = 65504.0
_KINDS = {
    'output': N_('output'),
    'input': N_('input'),
    'gradient': N_('gradient, at the smallest loss scale,'),
}


def describe_low(
    iteration: int, place: Place, known: Forecast, more: int
) -> str:
    """The line for a place that is close to overflowing.

    Args:
        iteration (int): The iteration.
        place (Place): The place that will be the first.
        known (Forecast): What is known of it.
        more (int): How many others are close, too.
    """
    trend = others = ''
    if known.doubling is not None:
        trend = _(
            ', doubling every {doubling:.0f} iterations; about {left:.0f} '
            'left',
            **known._asdict(),
        )
    if more:
        others = _(
            ' ({count:more place is|more places are} close, too)', count=more
        )
    advice = (
        N_(
            "It will overflow: try fp32_modules=['{module}'] of "
            "SafeAmpOptimWrapper, dtype='bfloat16', or a lower learning rate."
        )
        if place.dtype == FP16
        else N_(
            'The run is about to diverge: try a lower learning rate, or '
            'clipping.'
        )
    )
    return _(
        'Iter {iteration}: {module} {kind} at {share} of the {dtype} '
        'range{trend}{more}. {advice}',
        iteration=iteration,
        module=place.module,
        kind=_(_KINDS[place.kind]),
        share=_percent(known.share),
        dtype=_SHORT_NAMES.get(place.dtype, place.dtype),
        trend=trend,
        more=others,
        advice=_(advice, module=place.module),
    )


def describe_underflow(
    iteration: int, found: Underflow, scale: float, largest: float
) -> str:
    """The line for gradients that are flushed to zero.

    Args:
        iteration (int): The iteration.
        found (Underflow): What was lost.
        scale (float): The loss scale.
        largest (float): The largest gradient in fp16, scaled.
    """
    # Half of the room is left for batches with larger gradients.
    room = 0.5 * _FP16_END / largest if largest > 0 else math.inf
    best = 2.0 ** min(math.floor(math.log2(scale * min(room, 2.0**24))), 24)
    message = (
        N_(
            'Iter {iteration}: about {share} of the fp16 gradients are '
            'flushed to zero at loss_scale {scale} (most at {module}: '
            '{worst}), and the largest leave no room for a larger scale: no '
            "scale fits them all. Try fp32_modules=['{module}'] or "
            "dtype='bfloat16'."
        )
        if room < 2
        else N_(
            'Iter {iteration}: about {share} of the fp16 gradients are '
            'flushed to zero at loss_scale {scale} (most at {module}: '
            '{worst}). The scale is too small: gradients have room for one '
            'up to {largest}.'
        )
    )
    return _(
        message,
        iteration=iteration,
        share=_percent(found.share),
        scale=scale,
        module=found.module,
        worst=_percent(found.worst),
        largest=max(best, scale),
    )


def _percent(share: float) -> str:
    percent = 100 * share
    return f'{percent:.0f} %' if percent >= 1 else f'{percent:.1g} %'
