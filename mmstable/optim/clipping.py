"""How gradients are clipped: by norm, by value or unit by unit."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Union

import torch
from torch import Tensor

from mmstable.messages import _
from mmstable.optim import grad_health
from mmstable.optim.grad_health import (
    HALF,
    is_inside,
    module_names,
    stored_values,
)
from mmstable.settings import (
    integer,
    known_settings,
    names,
    no_match,
    number,
    one_of,
    overriding,
)

# torch.nn.utils.clip_grad_norm_ adds this to the norm it divides by.
_EPSILON = 1e-6


def excess(norm: Tensor, limit: float) -> Tensor:
    """What gradients of this norm must be divided by, at least 1."""
    return norm.add(_EPSILON).div_(limit).clamp_(min=1.0)


class SortedWindow:
    """Remembers the newest numbers and knows their quantiles.

    Args:
        maxlen (int): How many to remember.
    """

    def __init__(self, maxlen: int) -> None:
        self._values: deque[float] = deque(maxlen=maxlen)
        self._ordered: list[float] = []

    def append(self, value: float) -> None:
        """Remember one more, and forget the oldest if there are too many."""
        values = self._values
        if len(values) == values.maxlen:
            del self._ordered[bisect.bisect_left(self._ordered, values[0])]
        values.append(value)
        bisect.insort(self._ordered, value)

    def quantile(self, share: float) -> float:
        """The value that so large a share of all is below, interpolated."""
        place = (len(self._ordered) - 1) * share
        below = int(place)
        above = min(below + 1, len(self._ordered) - 1)
        rest = place - below
        return self._ordered[below] * (1 - rest) + self._ordered[above] * rest

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[float]:
        return iter(self._values)


@dataclass(frozen=True)
class FixedLimit:
    """The largest norm that gradients may have, for good.

    Args:
        max_norm (float): The limit.
    """

    max_norm: float
    is_adaptive = False

    def current(self) -> float | None:
        """The limit for the next step; None for no limit."""
        return self.max_norm

    def coefficient(self, norm: float) -> float:
        """What gradients of this norm are multiplied by, at most 1."""
        return min(1.0, self.max_norm / (norm + _EPSILON))

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another has learned."""

    def __str__(self) -> str:
        return f'max_norm={self.max_norm:g}'


@dataclass(eq=False)
class PercentileLimit:
    """Clip at a percentile of the norms of recent applied steps.

    Args:
        threshold (float): Which one, in (0, 100]. Defaults to 90.0.
        window (int): How many norms to remember. Defaults to 1000.
        warmup (int): How many it takes before there is a limit.
            Defaults to 20.
        max_norm (float, optional): A limit at any time. Defaults to None.
    """

    threshold: float = 90.0
    window: int = 1000
    warmup: int = 20
    max_norm: float | None = None
    is_adaptive = True
    _name = 'percentile'

    def __post_init__(self) -> None:
        self.norms = SortedWindow(self.window)

    def current(self) -> float | None:
        """The limit for the next step; None for no limit."""
        if len(self.norms) < self.warmup:
            return self.max_norm
        learned = self._learned_limit()
        # All norms were zero: that is no reason to stop for good.
        if learned <= 0:
            return self.max_norm
        return min(learned, self.max_norm or math.inf)

    def _learned_limit(self) -> float:
        return self.norms.quantile(self.threshold / 100)

    def coefficient(self, norm: float) -> float:
        """What gradients of this norm are multiplied by, at most 1."""
        limit = self.current()
        return 1.0 if limit is None else min(1.0, limit / (norm + _EPSILON))

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            self.norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """The remembered norms."""
        return {'norms': list(self.norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over remembered norms; the newest if there are too many."""
        self.norms = SortedWindow(self.window)
        for norm in state['norms']:
            self.norms.append(norm)

    def __str__(self) -> str:
        return f'{self._name}={self.threshold:g} of {self.window}'


@dataclass(eq=False)
class ZScoreLimit(PercentileLimit):
    """Clip norms that are too many standard deviations above the mean.

    What is remembered of a clipped norm is the limit, not the norm: one
    spike does not lift the next limits, while a lasting rise does.

    Args:
        threshold (float): How many standard deviations. Defaults to 2.5.
        window (int): As in :class:`PercentileLimit`. Defaults to 100.
    """

    threshold: float = 2.5
    window: int = 100
    _name = 'zscore'

    def _learned_limit(self) -> float:
        mean = sum(self.norms) / len(self.norms)
        variance = sum((n - mean) ** 2 for n in self.norms) / len(self.norms)
        # Norms that hardly vary would otherwise pin the limit to their mean.
        return mean + self.threshold * max(math.sqrt(variance), 0.1 * mean)

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            self.norms.append(min(norm, self.current() or math.inf))


Limit = Union[FixedLimit, PercentileLimit]


@dataclass(frozen=True)
class ClipGroup:
    """Parameters that are clipped together, by the norm of all of them.

    Args:
        limit (Limit): The largest norm allowed.
        modules (tuple[str]): The modules they are in; none means all that
            no other group has. Defaults to ().
    """

    limit: Limit
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it in a log."""
        return '+'.join(self.modules) or 'all'


@dataclass(frozen=True)
class NormClip:
    """Shrink the gradients of each group to the group's limit.

    Args:
        groups (tuple[ClipGroup]): The groups.
        norm_type (float): Order of the norms. Defaults to 2.0.
    """

    groups: tuple[ClipGroup, ...]
    norm_type: float = 2.0

    def __str__(self) -> str:
        order = '' if self.norm_type == 2 else f', norm_type={self.norm_type}'
        if len(self.groups) == 1 and not self.groups[0].modules:
            return f'{self.groups[0].limit}{order}'
        parts = [f'{group.name}: {group.limit}' for group in self.groups]
        return f'[{"; ".join(parts)}]{order}'


@dataclass(frozen=True)
class ValueClip:
    """Cut every single gradient value to a range around zero.

    Args:
        clip_value (float): The largest absolute value allowed.
    """

    clip_value: float

    def shrink_(
        self,
        names: Sequence[str],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        grad_scale: float,
    ) -> None:
        """Clip gradients that are ``grad_scale`` times too large."""
        values = [stored_values(grad) for grad in grads]
        torch._foreach_clamp_min_(values, -self.clip_value * grad_scale)
        torch._foreach_clamp_max_(values, self.clip_value * grad_scale)

    def __str__(self) -> str:
        return f'clip_value={self.clip_value:g}'


@dataclass(frozen=True)
class UnitClip:
    """Keep each unit's gradient small against the unit's own weights.

    A unit is what makes one output: a row of a matrix, a filter of a
    convolution; a whole bias or gain is one, too. Following Brock et al.,
    2021, it may not change by more than a share of its weights.

    Args:
        clip_factor (float): Largest gradient norm over weight norm.
            Defaults to 0.01.
        eps (float): Weight norms count as at least this, so that units that
            start at zero can move. Defaults to 1e-3.
        exclude (tuple[str]): Modules that are left alone, e.g. the last
            linear layer. Defaults to ().
    """

    clip_factor: float = 0.01
    eps: float = 1e-3
    exclude: tuple[str, ...] = ()

    def shrink_(
        self,
        names: Sequence[str],
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        grad_scale: float,
    ) -> None:
        """Clip gradients that are ``grad_scale`` times too large."""
        for name, param, grad in zip(names, params, grads):
            if grad.is_sparse or is_inside(name, self.exclude):
                continue
            allowed = unit_norms(param.detach()).clamp_(min=self.eps)
            allowed.mul_(self.clip_factor * grad_scale)
            actual = unit_norms(grad).clamp_(min=1e-12)
            grad.mul_((allowed / actual).clamp_(max=1.0))

    def __str__(self) -> str:
        return f'unit-wise, clip_factor={self.clip_factor:g}'


def unit_norms(tensor: Tensor) -> Tensor:
    """Norms of the units of a tensor, shaped so that they broadcast."""
    # A norm kept in half precision overflows long before its tensor.
    dtype = torch.float32 if tensor.dtype in HALF else None
    if tensor.squeeze().dim() <= 1:
        return torch.linalg.vector_norm(tensor, dtype=dtype)
    axes = tuple(range(1, tensor.dim()))
    return torch.linalg.vector_norm(
        tensor, dim=axes, keepdim=True, dtype=dtype
    )


Clip = Union[NormClip, ValueClip, UnitClip]

_positive = partial(number, above=0)
_count = partial(integer, at_least=2)
_ADAPTIVE: dict[str, Any] = dict(
    window=_count, warmup=_count, max_norm=_positive
)
# The checks of the settings of every method, and the one it cannot do
# without.
_METHODS: dict[str, tuple[dict[str, Any], str]] = {
    'norm': (dict(max_norm=_positive), 'max_norm'),
    'percentile': (
        dict(percentile=partial(number, above=0, at_most=100), **_ADAPTIVE),
        '',
    ),
    'zscore': (dict(zscore=_positive, **_ADAPTIVE), ''),
    'value': (dict(clip_value=_positive), 'clip_value'),
    'agc': (dict(clip_factor=_positive, eps=_positive, exclude=names), ''),
}
_LIMITS: dict[str, Any] = {
    'norm': FixedLimit,
    'percentile': PercentileLimit,
    'zscore': ZScoreLimit,
}


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
        text = _(
            'clip_grad: must be a dict or None, got {value!r}.',
            value=clip_grad,
        )
        raise TypeError(text)
    settings = overriding(clip_grad)
    method = settings.pop('type', 'norm')
    one_of('clip_grad', 'type', method, ('norm', 'value'))
    # torch's choice of kernel; there is only one here.
    settings.pop('foreach', None)
    if settings.pop('error_if_nonfinite', False):
        text = _(
            'clip_grad: `error_if_nonfinite=True` contradicts a safe '
            'wrapper, which skips a step with a non-finite norm.'
        )
        raise ValueError(text)
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
    one_of(where, 'method', method, _METHODS)
    if method not in _LIMITS and configs is not None:
        text = _(
            '{where}: `configs` needs a method that goes by norms ({known}), '
            'got {method!r}.',
            where=where,
            known=tuple(_LIMITS),
            method=method,
        )
        raise ValueError(text)
    is_needed = configs is None or bool(settings)
    checked = _check(where, method, settings, is_needed)
    if method == 'value':
        return ValueClip(**checked)
    if method == 'agc':
        return UnitClip(**checked)
    groups = [
        _group(f'{where}: configs[{index}]', entry)
        for index, entry in enumerate(configs or ())
    ]
    if settings or not groups:
        groups.append(ClipGroup(_limit(where, method, checked)))
    # torch takes the word, too.
    if norm_type not in ('inf', math.inf):
        norm_type = _positive(where, 'norm_type', norm_type)
    return NormClip(tuple(groups), float(norm_type))


def _group(where: str, entry: Any) -> ClipGroup:
    if not isinstance(entry, Mapping):
        text = _(
            '{where}: must be a dict, got {value!r}.', where=where, value=entry
        )
        raise TypeError(text)
    settings = dict(entry)
    modules = names(where, 'module_name', settings.pop('module_name', None))
    if not modules:
        text = _('{where}: `module_name` names no module.', where=where)
        raise ValueError(text)
    method = one_of(where, 'method', settings.pop('method', 'norm'), _LIMITS)
    checked = _check(where, method, settings)
    return ClipGroup(_limit(where, method, checked), modules)


def _limit(where: str, method: str, numbers: dict[str, Any]) -> Limit:
    if numbers.get('warmup', 1) > numbers.get('window', math.inf):
        text = _(
            '{where}: `warmup` {warmup} is larger than `window` {window}.',
            where=where,
            **numbers,
        )
        raise ValueError(text)
    if method in numbers:
        numbers['threshold'] = numbers.pop(method)
    return _LIMITS[method](**numbers)


def _check(
    where: str, method: str, given: Mapping[str, Any], is_needed: bool = True
) -> dict[str, Any]:
    """Check the settings of a method; None is no setting of a limit."""
    checks, required = _METHODS[method]
    known_settings(f"{where}: method '{method}'", given, checks)
    if is_needed and required and required not in given:
        text = _(
            '{where}: {method!r} needs `{key}`.',
            where=where,
            method=method,
            key=required,
        )
        raise ValueError(text)
    return {
        key: checks[key](where, key, value)
        for key, value in given.items()
        if value is not None or method not in _LIMITS
    }


@dataclass(frozen=True)
class Part:
    """Gradients that share one factor.

    Args:
        name (str): What a log calls it.
        limit (Limit, optional): The limit of their norm; None for no limit.
        indices (list[int]): Their places in the list of gradients.
    """

    name: str
    limit: Limit | None
    indices: list[int]

    def max_norm(self) -> float | None:
        """The largest norm they may have now; None for any."""
        return None if self.limit is None else self.limit.current()


class ClipPlan:
    """The parts of one list of gradients.

    Args:
        parts (list[Part]): The parts; together they are all gradients.
        norm_type (float): Order of the norms.
    """

    def __init__(self, parts: list[Part], norm_type: float = 2.0) -> None:
        self.parts = parts
        self.norm_type = norm_type
        self._places: list[Tensor] = []

    def part_norms(self, norms: Tensor) -> Tensor:
        """One norm for each part, from one for each gradient."""
        if len(self.parts) == 1 and norms.numel():
            total = torch.linalg.vector_norm(norms, self.norm_type)
            return total.reshape(1)
        if not self._places:
            kind: Any = dict(device=norms.device, dtype=torch.long)
            self._places = [
                torch.tensor(part.indices, **kind) for part in self.parts
            ]
        totals = [
            grad_health.total_norm(norms[places], self.norm_type)
            for places in self._places
        ]
        return torch.stack(totals)


def make_plan(
    clip: object, names: Sequence[str], keep_empty: bool = False
) -> ClipPlan:
    """Sort gradients into the groups of a clip.

    Args:
        clip (Clip, optional): How to clip.
        names (Sequence[str]): Names of the parameters of the gradients.
        keep_empty (bool): Whether to keep groups without any gradient.
            Defaults to False.
    """
    everything = list(range(len(names)))
    if not isinstance(clip, NormClip):
        return ClipPlan([Part('rest', None, everything)])
    parts, taken = [], set()
    for group in clip.groups:
        if group.modules:
            indices = [
                index
                for index, name in enumerate(names)
                if is_inside(name, group.modules)
            ]
            parts.append(Part(group.name, group.limit, indices))
            taken.update(indices)
    rest = [index for index in everything if index not in taken]
    others = [group for group in clip.groups if not group.modules]
    if others:
        parts.append(Part(others[0].name, others[0].limit, rest))
    else:
        parts.append(Part('rest', None, rest))
    parts = [part for part in parts if part.indices or keep_empty]
    return ClipPlan(parts, clip.norm_type)


def check_modules(where: str, clip: object, names: Sequence[str]) -> None:
    """Refuse names that match nothing, or the same parameter twice.

    Args:
        where (str): What to call the place of the settings in an error.
        clip (Clip, optional): How to clip.
        names (Sequence[str]): All parameters of the optimizer.
    """

    def match(setting: str, module: str, place: str = '') -> list[str]:
        matches = [name for name in names if is_inside(name, [module])]
        if not matches:
            text = no_match(setting, module, module_names(names))
            raise ValueError(f'{where}: {place}{text}')
        return matches

    if isinstance(clip, UnitClip):
        for module in clip.exclude:
            match('exclude', module)
    owner: dict[str, str] = {}
    for index, group in enumerate(getattr(clip, 'groups', ())):
        for module in group.modules:
            place = f'configs[{index}]: '
            for name in match('module_name', module, place):
                if name in owner:
                    text = _(
                        '{module!r} overlaps with {other!r}: both hold '
                        '{name!r}.',
                        module=module,
                        other=owner[name],
                        name=name,
                    )
                    raise ValueError(f'{where}: {place}{text}')
                owner[name] = module
