"""Warnings of low headroom in words."""

from __future__ import annotations

import math

from mmstable.forensics.headroom import Warned
from mmstable.forensics.headroom_underflow import Underflow
from mmstable.messages import say

_SHORT_NAMES = {'float16': 'fp16', 'bfloat16': 'bf16', 'float32': 'fp32'}
_FP16_END = 65504.0


def describe_low(iteration: int, warned: Warned) -> str:
    """The line for a place that is close to overflowing.

    Args:
        iteration (int): The iteration.
        warned (Warned): The place.
    """
    place, known = warned.place, warned.forecast
    trend = more = ''
    if known.doubling is not None:
        trend = say('headroom.trend', doubling=known.doubling, left=known.left)
    if warned.more:
        more = say('headroom.more', count=warned.more)
    if place.dtype == 'float16':
        advice = say('headroom.advice_fp16', module=place.module)
    else:
        advice = say('headroom.advice')
    return say(
        'headroom.low',
        iteration=iteration,
        module=place.module,
        kind=say(f'headroom_kind.{place.kind}'),
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
        return say('headroom.underflow_full', **fields)
    best = 2.0 ** min(math.floor(math.log2(scale * min(room, 2.0**24))), 24)
    return say('headroom.underflow', largest=max(best, scale), **fields)


def _percent(share: float) -> str:
    percent = 100 * share
    return f'{percent:.0f} %' if percent >= 1 else f'{percent:.1g} %'
