"""From the settings of a config to a clip, or to a clear error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Union

from mmstable.messages import _
from mmstable.numerics.adaptive_limit import PercentileLimit, ZScoreLimit
from mmstable.numerics.clipping import (
    ClipGroup,
    FixedLimit,
    Limit,
    NormClip,
    ValueClip,
)
from mmstable.numerics.unit_clip import UnitClip
from mmstable.settings import (
    integer,
    known_settings,
    names,
    number,
    one_of,
    overriding,
)

Clip = Union[NormClip, ValueClip, UnitClip]

# Settings of every method, and the ones it cannot do without.
_METHODS = {
    'norm': (('max_norm',), ('max_norm',)),
    'percentile': (('percentile', 'window', 'warmup', 'max_norm'), ()),
    'zscore': (('zscore', 'window', 'warmup', 'max_norm'), ()),
    'value': (('clip_value',), ('clip_value',)),
    'agc': (('clip_factor', 'eps', 'exclude'), ()),
}
_positive = partial(number, above=0)
_BY_NORM = ('norm', 'percentile', 'zscore')


def parse_clip_grad(clip_grad: Mapping[str, Any] | None) -> Clip | None:
    """Understand mmengine's ``clip_grad`` setting without changing it.

    Args:
        clip_grad (Mapping, optional): ``type`` ('norm' or 'value') and the
            arguments of ``torch.nn.utils.clip_grad_norm_`` or
            ``clip_grad_value_``.
    """
    if clip_grad is None:
        return None
    if not isinstance(clip_grad, Mapping):
        raise TypeError(
            _(
                'clip_grad: must be a dict or None, got {value!r}.',
                value=clip_grad,
            )
        )
    settings = overriding(clip_grad)
    method = settings.pop('type', 'norm')
    one_of('clip_grad', 'type', method, ('norm', 'value'))
    # torch's choice of kernel; there is only one here.
    settings.pop('foreach', None)
    if settings.pop('error_if_nonfinite', False):
        raise ValueError(
            _(
                'clip_grad: `error_if_nonfinite=True` contradicts a safe '
                'wrapper, which skips a step with a non-finite norm.'
            )
        )
    return parse_clip('clip_grad', method=method, **settings)


def parse_clip(
    where: str,
    method: str = 'norm',
    norm_type: Any = 2,
    configs: Sequence[Mapping[str, Any]] | None = None,
    **settings: Any,
) -> Clip:
    """Make a clip of any kind.

    Args:
        where (str): What to call the place of the settings in an error.
        method (str): 'norm', 'percentile', 'zscore', 'value' or 'agc'.
            Defaults to 'norm'.
        norm_type (float or str): Order of the norms. Defaults to 2.
        configs (Sequence[Mapping], optional): Groups with a ``module_name``
            and limits of their own. Defaults to None.
        **settings: Of the method; with ``configs``, for all other
            parameters.
    """
    _check_keys(where, method, settings, needed=configs is None or settings)
    if method not in _BY_NORM:
        if configs is not None:
            raise ValueError(
                _(
                    '{where}: `configs` needs a method that goes by norms '
                    '({known}), got {method!r}.',
                    where=where,
                    known=_BY_NORM,
                    method=method,
                )
            )
        return _elementwise(where, method, settings)
    groups = [
        _group(f'{where}: configs[{index}]', entry)
        for index, entry in enumerate(configs or ())
    ]
    if settings or not groups:
        groups.append(ClipGroup(_limit(where, method, settings)))
    return NormClip(tuple(groups), _norm_type(where, norm_type))


def _group(where: str, entry: Any) -> ClipGroup:
    if not isinstance(entry, Mapping):
        raise TypeError(
            _(
                '{where}: must be a dict, got {value!r}.',
                where=where,
                value=entry,
            )
        )
    settings = dict(entry)
    modules = names(where, 'module_name', settings.pop('module_name', None))
    if not modules:
        raise ValueError(
            _('{where}: `module_name` names no module.', where=where)
        )
    method = one_of(where, 'method', settings.pop('method', 'norm'), _BY_NORM)
    _check_keys(where, method, settings)
    return ClipGroup(_limit(where, method, settings), modules)


def _limit(where: str, method: str, settings: Mapping[str, Any]) -> Limit:
    checks: dict[str, Any] = {
        'window': partial(integer, at_least=2),
        'warmup': partial(integer, at_least=2),
        'percentile': partial(number, above=0, at_most=100),
    }
    numbers = {
        key: checks.get(key, _positive)(where, key, value)
        for key, value in settings.items()
        if value is not None
    }
    if numbers.get('warmup', 1) > numbers.get('window', math.inf):
        warmup, window = numbers['warmup'], numbers['window']
        raise ValueError(
            _(
                '{where}: `warmup` {warmup} is larger than `window` {window}.',
                where=where,
                warmup=warmup,
                window=window,
            )
        )
    kinds: dict[str, Any] = {
        'norm': FixedLimit,
        'percentile': PercentileLimit,
        'zscore': ZScoreLimit,
    }
    return kinds[method](**numbers)


def _elementwise(where: str, method: str, settings: dict[str, Any]) -> Clip:
    if method == 'value':
        value = settings['clip_value']
        return ValueClip(_positive(where, 'clip_value', value))
    exclude = names(where, 'exclude', settings.pop('exclude', ()))
    numbers = {k: _positive(where, k, v) for k, v in settings.items()}
    return UnitClip(exclude=exclude, **numbers)


def _check_keys(
    where: str, method: str, settings: Iterable[str], needed: Any = True
) -> None:
    one_of(where, 'method', method, _METHODS)
    allowed, required = _METHODS[method]
    known_settings(f"{where}: method '{method}'", settings, allowed)
    for key in required:
        if needed and key not in settings:
            raise ValueError(
                _(
                    '{where}: {method!r} needs `{key}`.',
                    where=where,
                    method=method,
                    key=key,
                )
            )


def _norm_type(where: str, value: Any) -> float:
    # torch takes the word, too.
    if value in ('inf', math.inf):
        return math.inf
    return _positive(where, 'norm_type', value)
