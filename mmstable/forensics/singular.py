"""Is an operation undefined for what it was given?  As log(0), or 0/0."""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

import torch

from mmstable.forensics.birth import Birth
from mmstable.forensics.ranges import Range


class Point(NamedTuple):
    """Where an operation is not defined.

    Args:
        name (str): What kind of point it is, as 'log_zero'.
        operand (Range, optional): The input that is there.
    """

    name: str
    operand: Range | None


def singular_point(birth: Birth) -> Point | None:
    """The point at which an operation is undefined; None if it is not.

    Args:
        birth (Birth): An operation, of either pass.
    """
    rule = _RULES.get(birth.name)
    point = None if rule is None else rule(birth)
    if point is not None or _overflows(birth):
        return point
    operand = birth.inputs[0] if birth.inputs else None
    is_written = any(map(math.isnan, birth.scalars))
    return Point('nan_number' if is_written else 'undefined', operand)


def _overflows(birth: Birth) -> bool:
    """Whether the inputs can be too large for the operation.

    A sum of products that are, inside of one operation, is NaN.
    """
    is_inf = birth.kind == 'Inf'
    if is_inf and birth.name in _GROWING:
        return True
    peaks = sorted(one.peak for one in birth.inputs)
    if not peaks:
        return False
    limit = torch.finfo(getattr(torch, birth.output.dtype)).max
    return peaks[-1] * peaks[-1 if is_inf else -2 :][0] > limit / 1000


def _low(one: Range) -> float:
    return math.inf if one.low is None else one.low


def _high(one: Range) -> float:
    return -math.inf if one.high is None else one.high


def _log(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    if _low(operand) < 0 and birth.kind == 'NaN':
        return Point('log_negative', operand)
    return Point('log_zero', operand) if operand.zeros else None


def _log1p(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    return Point('log_zero', operand) if _low(operand) <= -1 else None


def _div(birth: Birth) -> Point | None:
    divisor = birth.inputs[-1]
    if len(birth.inputs) > 1:
        is_zero = divisor.zeros > 0
    else:
        is_zero = 0.0 in birth.scalars
    if is_zero:
        name = 'zero_by_zero' if birth.kind == 'NaN' else 'by_zero'
        return Point(name, divisor)
    return None if _overflows(birth) else Point('by_almost_zero', divisor)


def _reciprocal(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    return Point('by_zero', operand) if operand.zeros else None


def _root(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    return Point('root_negative', operand) if _low(operand) < 0 else None


def _inverse_root(birth: Birth) -> Point | None:
    return _root(birth) or _reciprocal(birth)


def _pow(birth: Birth) -> Point | None:
    (base, *_) = birth.inputs
    if birth.kind == 'NaN' and _low(base) < 0:
        return Point('pow_negative', base)
    exponents = birth.scalars or [_low(one) for one in birth.inputs[1:]]
    if base.zeros and any(one < 0 for one in exponents):
        return Point('by_zero', base)
    return None


def _arc(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    if _low(operand) < -1 or _high(operand) > 1 or operand.size == 0:
        return Point('outside_one', operand)
    return None


def _arc_at_one(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    if _low(operand) <= -1 or _high(operand) >= 1:
        return Point('outside_one', operand)
    return None


def _softmax(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    is_masked = operand.minus_infs and operand.minus_infs == operand.infs
    return Point('masked_row', operand) if is_masked else None


def _spread(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    return Point('one_value', operand) if birth.kind == 'NaN' else None


def _mean(birth: Birth) -> Point | None:
    (operand, *_) = birth.inputs
    return Point('empty', operand) if operand.size == 0 else None


def _target(birth: Birth) -> Point | None:
    if birth.kind == 'NaN' and birth.inputs[0].kind == 'finite':
        return Point('no_target', birth.inputs[-1])
    return None


# A moderate input is enough for them to leave the range of a dtype.
_GROWING = (
    *('exp', 'exp2', 'expm1', 'sinh', 'cosh'),
    *('pow', 'float_power', 'prod', 'cumprod'),
)
_RULES: dict[str, Callable[[Birth], Point | None]] = {
    **dict.fromkeys(('log', 'log2', 'log10', 'xlogy'), _log),
    'log1p': _log1p,
    **dict.fromkeys(('div', 'true_divide', 'remainder', 'fmod'), _div),
    'reciprocal': _reciprocal,
    'sqrt': _root,
    'rsqrt': _inverse_root,
    'pow': _pow,
    **dict.fromkeys(('acos', 'asin'), _arc),
    **dict.fromkeys(('atanh', 'erfinv'), _arc_at_one),
    **dict.fromkeys(
        ('_softmax', '_log_softmax', '_safe_softmax', 'logsumexp'), _softmax
    ),
    **dict.fromkeys(('var', 'std', 'var_mean', 'std_mean'), _spread),
    'mean': _mean,
    **dict.fromkeys(('nll_loss_forward', 'nll_loss2d_forward'), _target),
}
