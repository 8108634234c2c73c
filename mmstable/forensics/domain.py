"""Operations that are undefined for their operand, as log(0) and 0/0.

A row of ``_RULES`` tells when an operation has an error, and an entry of
``_ERRORS`` what to say of it.
"""

from __future__ import annotations

import math
from typing import Callable, NamedTuple

import torch

from mmstable.forensics.frames import Range
from mmstable.forensics.trace import Origin
from mmstable.messages import N_, _


class DomainError(NamedTuple):
    """An operation that is undefined for its operand, such as log(0).

    Args:
        name (str): The kind of error, such as 'log_zero'.
        operand (Range, optional): The operand outside of the domain.
    """

    name: str
    operand: Range | None

    def describe(self, origin: Origin) -> str:
        """Say what the operation got."""
        operand = self.operand or origin.output
        return _(_ERRORS[self.name][0], op=origin.op, operand=operand)


def domain_error(origin: Origin) -> DomainError | None:
    """Find the domain error of an operation; None if it has none.

    Args:
        origin (Origin): An operation, of either pass.
    """
    for error, functions, position, applies in _RULES:
        if origin.function in functions and applies(
            origin, origin.inputs[position]
        ):
            return DomainError(error, origin.inputs[position])
    if _overflows(origin):
        return None
    operand = origin.inputs[0] if origin.inputs else None
    is_written = any(map(math.isnan, origin.scalars))
    return DomainError('nan_number' if is_written else 'undefined', operand)


def usual_rewrite(error: DomainError | None, node: str) -> str:
    """Return what to write instead of an operation.

    Args:
        error (DomainError, optional): Its error.
        node (str): In the backward pass, the autograd node.
    """
    if node.startswith(('Sqrt', 'Rsqrt', 'Pow')) or 'Norm' in node:
        return _(_ROOT)
    if node.startswith(('Log', 'Xlogy')):
        return _(_LOG)
    if node.startswith(('Acos', 'Asin', 'Atanh', 'Erfinv')):
        return _(_ERRORS['outside_one'][1])
    return _(_ERRORS['undefined' if error is None else error.name][1])


_LOG = N_(
    'Use log_softmax instead of log(softmax), logsigmoid or '
    'BCEWithLogitsLoss instead of log(sigmoid), logsumexp instead of '
    'log(sum(exp)); or clamp before the log.'
)
_ROOT = N_(
    'Clamp before the root, and put the epsilon inside of it: '
    'sqrt(x.clamp(min=0) + eps). The gradient of sqrt(x) is infinite at 0.'
)
_DIVISION = N_(
    'Clamp the divisor (clamp(min=eps)), or leave out empty targets.'
)
_COUNT = N_('Divide by max(count, 1), or leave out empty targets.')
# What it is, and the usual rewrite.
_ERRORS = {
    'log_zero': (N_('log(0), {op} of {operand}'), _LOG),
    'log_negative': (N_('log of a negative number, {op} of {operand}'), _LOG),
    'zero_by_zero': (N_('0/0, {op} by {operand}'), _DIVISION),
    'by_zero': (N_('division by 0, {op} of {operand}'), _DIVISION),
    'by_almost_zero': (
        N_('division by almost 0, {op} by {operand}'),
        _DIVISION,
    ),
    'nan_number': (
        N_('the code gives the number NaN to {op}, besides {operand}'),
        N_('Look where that number comes from.'),
    ),
    'root_negative': (
        N_('root of a negative number, {op} of {operand}'),
        _ROOT,
    ),
    'pow_negative': (
        N_('fractional power of a negative number, {op} of {operand}'),
        N_('Clamp the base to positive numbers before the power.'),
    ),
    'outside_one': (
        N_('beyond -1..1, {op} of {operand}'),
        N_(
            'Clamp to -1 + eps..1 - eps before acos, asin or atanh; atan2 '
            'needs no clamp.'
        ),
    ),
    'masked_row': (
        N_(
            'softmax over a row that is masked with -Inf everywhere, {op} of '
            '{operand}'
        ),
        N_(
            'Leave out rows without a valid entry, or mask with a large '
            'negative number instead of -Inf.'
        ),
    ),
    'one_value': (
        N_('variance of a single value, {op} of {operand}'),
        N_('Use unbiased=False, or leave out single values.'),
    ),
    'empty': (N_('mean over nothing, {op} of {operand}'), _COUNT),
    'no_target': (
        N_('average over targets of which none counts, {op} of {operand}'),
        _COUNT,
    ),
    'undefined': (
        N_('{op} of {operand} is undefined'),
        N_('Clamp the operand, or add an epsilon.'),
    ),
}

_LOGS = ('log', 'log2', 'log10')
_DIVISIONS = ('div', 'true_divide', 'remainder', 'fmod')
_SOFTMAX = ('_softmax', '_log_softmax', '_safe_softmax', 'logsumexp')
_SPREADS = ('var', 'std', 'var_mean', 'std_mean')
_NLL = ('nll_loss_forward', 'nll_loss2d_forward')
# A moderate input is enough for them to leave the range of a dtype.
_GROWING = (
    *('exp', 'exp2', 'expm1', 'sinh', 'cosh'),
    *('pow', 'float_power', 'prod', 'cumprod'),
)


def _is_nan(of: Origin, x: Range) -> bool:
    return of.kind == 'NaN'


def _has_zero(of: Origin, x: Range) -> bool:
    return x.zeros > 0


def _is_nan_of_negative(of: Origin, x: Range) -> bool:
    return of.kind == 'NaN' and (x.low or 0) < 0


def _divides_by_zero(of: Origin, x: Range) -> bool:
    # A divisor that is a plain number is no input.
    return 0.0 in of.scalars if len(of.inputs) < 2 else x.zeros > 0


def _has_negative_power(of: Origin, x: Range) -> bool:
    exponents = of.scalars or [one.low or 0 for one in of.inputs[1:]]
    return x.zeros > 0 and min(exponents, default=0) < 0


def _overflows(of: Origin) -> bool:
    """Whether the inputs can be too large for the operation.

    A sum of infinite products, inside of one operation, is NaN.
    """
    is_inf = of.kind == 'Inf'
    if is_inf and of.function in _GROWING:
        return True
    peaks = sorted(one.peak for one in of.inputs)
    if not peaks:
        return False
    limit = torch.finfo(getattr(torch, of.output.dtype)).max
    return peaks[-1] * peaks[-1 if is_inf else -2 :][0] > limit / 1000


# The error, operations, the position of the operand, and the condition. The
# first one that applies counts.
_RULES: tuple[
    tuple[str, tuple[str, ...], int, Callable[[Origin, Range], bool]], ...
] = (
    ('log_negative', _LOGS, 0, _is_nan_of_negative),
    ('log_zero', _LOGS, 0, _has_zero),
    ('log_zero', ('log1p',), 0, lambda of, x: (x.low or 0) <= -1),
    ('log_negative', ('xlogy',), -1, _is_nan_of_negative),
    ('log_zero', ('xlogy',), -1, _has_zero),
    (
        'zero_by_zero',
        _DIVISIONS,
        -1,
        lambda of, x: of.kind == 'NaN' and _divides_by_zero(of, x),
    ),
    ('by_zero', _DIVISIONS, -1, _divides_by_zero),
    ('by_almost_zero', _DIVISIONS, -1, lambda of, x: not _overflows(of)),
    ('root_negative', ('sqrt', 'rsqrt'), 0, lambda of, x: (x.low or 0) < 0),
    ('by_zero', ('reciprocal', 'rsqrt'), 0, _has_zero),
    ('pow_negative', ('pow',), 0, _is_nan_of_negative),
    ('by_zero', ('pow',), 0, _has_negative_power),
    (
        'outside_one',
        ('acos', 'asin'),
        0,
        lambda of, x: x.peak > 1 or x.size == 0,
    ),
    ('outside_one', ('atanh', 'erfinv'), 0, lambda of, x: x.peak >= 1),
    ('masked_row', _SOFTMAX, 0, lambda of, x: 0 < x.minus_infs == x.infs),
    ('one_value', _SPREADS, 0, _is_nan),
    ('empty', ('mean',), 0, lambda of, x: x.size == 0),
    (
        'no_target',
        _NLL,
        -1,
        lambda of, x: of.kind == 'NaN' and of.inputs[0].kind == 'finite',
    ),
)
