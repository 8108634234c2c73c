"""Warnings of low headroom in words."""

from __future__ import annotations

import math

from mmstable.forensics.headroom import Warned
from mmstable.forensics.headroom_underflow import Underflow
from mmstable.messages import N_, _

_SHORT_NAMES = {'float16': 'fp16', 'bfloat16': 'bf16', 'float32': 'fp32'}
_FP16_END = 65504.0
_KINDS = {
    'output': N_('output'),
    'input': N_('input'),
    'gradient': N_('gradient, at the smallest loss scale,'),
}


def describe_low(iteration: int, warned: Warned) -> str:
    """The line for a place that is close to overflowing.

    Args:
        iteration (int): The iteration.
        warned (Warned): The place.
    """
    place, known = warned.place, warned.forecast
    trend = more = ''
    if known.doubling is not None:
        trend = _(
            ', doubling every {doubling:.0f} iterations; about {left:.0f} '
            'left',
            doubling=known.doubling,
            left=known.left,
        )
    if warned.more:
        more = _(
            ' ({count:more place is|more places are} close, too)',
            count=warned.more,
        )
    if place.dtype == 'float16':
        advice = _(
            "It will overflow: try fp32_modules=['{module}'] of "
            "SafeAmpOptimWrapper, dtype='bfloat16', or a lower learning rate.",
            module=place.module,
        )
    else:
        advice = _(
            'The run is about to diverge: try a lower learning rate, or '
            'clipping.'
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
        more=more,
        advice=advice,
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
    fields = dict(
        iteration=iteration,
        share=_percent(found.share),
        scale=scale,
        module=found.module,
        worst=_percent(found.worst),
    )
    # Half of the room is left for batches with larger gradients.
    room = 0.5 * _FP16_END / largest if largest > 0 else math.inf
    if room < 2:
        return _(
            'Iter {iteration}: about {share} of the fp16 gradients are '
            'flushed to zero at loss_scale {scale} (most at {module}: '
            '{worst}), and the largest leave no room for a larger scale: no '
            "scale fits them all. Try fp32_modules=['{module}'] or "
            "dtype='bfloat16'.",
            **fields,
        )
    best = 2.0 ** min(math.floor(math.log2(scale * min(room, 2.0**24))), 24)
    return _(
        'Iter {iteration}: about {share} of the fp16 gradients are flushed '
        'to zero at loss_scale {scale} (most at {module}: {worst}). The '
        'scale is too small: gradients have room for one up to {largest}.',
        largest=max(best, scale),
        **fields,
    )


def _percent(share: float) -> str:
    percent = 100 * share
    return f'{percent:.0f} %' if percent >= 1 else f'{percent:.1g} %'
