"""How gradients are clipped: by norm, by value or unit by unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from mmstable.optim.spike import SortedWindow
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


class Limit:
    """The largest norm that gradients may have."""

    is_adaptive = False

    def current(self) -> float | None:
        """The limit for the next step; None for no limit."""
        raise NotImplementedError

    def coefficient(self, norm: float) -> float:
        """What gradients of this norm are multiplied by, at most 1."""
        limit = self.current()
        return 1.0 if limit is None else min(1.0, limit / (norm + _EPSILON))

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned: `SAVED_LIMIT` checks it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another has learned."""


@dataclass(frozen=True)
class FixedLimit(Limit):
    """A limit that does not move.

    Args:
        max_norm (float): The limit.
    """

    max_norm: float

    def current(self) -> float:
        """The limit."""
        return self.max_norm

    def coefficient(self, norm: float) -> float:
        """What gradients of this norm are multiplied by, at most 1."""
        return min(1.0, self.max_norm / (norm + _EPSILON))

    def __str__(self) -> str:
        return f'max_norm={self.max_norm:g}'


@dataclass(eq=False)
class AdaptiveLimit(Limit):
    """A limit that follows the norms of applied steps, finite ones only.

    Args:
        threshold (float): What makes a norm too large.
        window (int): How many norms to remember.
        warmup (int): How many it takes before there is a limit.
            Defaults to 20.
        max_norm (float, optional): A limit at any time. Defaults to None.
    """

    threshold: float
    window: int
    warmup: int = 20
    max_norm: float | None = None
    is_adaptive = True

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
        """The limit that follows from the remembered norms."""
        raise NotImplementedError

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            self.norms.append(norm)

    def state_dict(self) -> dict[str, Any]:
        """The remembered norms."""
        return {'norms': list(self.norms)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over remembered norms; the newest if there are too many."""
        self.norms.clear()
        self.norms.extend(state['norms'])


@dataclass(eq=False)
class PercentileLimit(AdaptiveLimit):
    """Clip at a percentile of the recent norms, in (0, 100].

    Args:
        threshold (float): Which one. Defaults to 90.0.
        window (int): As in :class:`AdaptiveLimit`. Defaults to 1000.
    """

    threshold: float = 90.0
    window: int = 1000

    def _learned_limit(self) -> float:
        return self.norms.quantile(self.threshold / 100)

    def __str__(self) -> str:
        return f'percentile={self.threshold:g} of {self.window}'


@dataclass(eq=False)
class ZScoreLimit(AdaptiveLimit):
    """Clip norms that are too many standard deviations above the mean.

    What is remembered of a clipped norm is the limit, not the norm: one
    spike does not lift the next limits, while a lasting rise does.

    Args:
        threshold (float): How many standard deviations. Defaults to 2.5.
        window (int): As in :class:`AdaptiveLimit`. Defaults to 100.
    """

    threshold: float = 2.5
    window: int = 100

    def _learned_limit(self) -> float:
        mean = sum(self.norms) / len(self.norms)
        variance = sum((n - mean) ** 2 for n in self.norms) / len(self.norms)
        # Norms that hardly vary would otherwise pin the limit to their mean.
        return mean + self.threshold * max(math.sqrt(variance), 0.1 * mean)

    def observe(self, norm: float) -> None:
        """Learn from the norm, before clipping, of an applied step."""
        if math.isfinite(norm):
            self.norms.append(min(norm, self.current() or math.inf))

    def __str__(self) -> str:
        return f'zscore={self.threshold:g} of {self.window}'


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

# Settings of every method, and the ones it cannot do without.
_METHODS = {
    'norm': (('max_norm',), ('max_norm',)),
    'percentile': (('percentile', 'window', 'warmup', 'max_norm'), ()),
    'zscore': (('zscore', 'window', 'warmup', 'max_norm'), ()),
    'value': (('clip_value',), ('clip_value',)),
    'agc': (('clip_factor', 'eps', 'exclude'), ()),
}
_positive = partial(number, above=0)
_CHECKS: dict[str, Any] = {
    'window': partial(integer, at_least=2),
    'warmup': partial(integer, at_least=2),
    'percentile': partial(number, above=0, at_most=100),
}
_LIMITS: dict[str, Any] = {
    'norm': FixedLimit,
    'percentile': PercentileLimit,
    'zscore': ZScoreLimit,
}
_BY_NORM = tuple(_LIMITS)


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
        exclude = names(where, 'exclude', settings.pop('exclude', ()))
        numbers = {k: _positive(where, k, v) for k, v in settings.items()}
        if method == 'value':
            return ValueClip(**numbers)
        return UnitClip(exclude=exclude, **numbers)
    groups = [
        _group(f'{where}: configs[{index}]', entry)
        for index, entry in enumerate(configs or ())
    ]
    if settings or not groups:
        groups.append(ClipGroup(_limit(where, method, settings)))
    # torch takes the word, too.
    if norm_type not in ('inf', math.inf):
        norm_type = _positive(where, 'norm_type', norm_type)
    return NormClip(tuple(groups), float(norm_type))


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
    numbers = {
        key: _CHECKS.get(key, _positive)(where, key, value)
        for key, value in settings.items()
        if value is not None
    }
    if numbers.get('warmup', 1) > numbers.get('window', math.inf):
        raise ValueError(
            _(
                '{where}: `warmup` {warmup} is larger than `window` {window}.',
                where=where,
                warmup=numbers['warmup'],
                window=numbers['window'],
            )
        )
    if method in numbers:
        numbers['threshold'] = numbers.pop(method)
    return _LIMITS[method](**numbers)


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
        self._index_tensors: list[Tensor] = []

    def part_norms(self, norms: Tensor) -> Tensor:
        """One norm for each part, from one for each gradient."""
        if len(self.parts) == 1 and norms.numel():
            total = torch.linalg.vector_norm(norms, self.norm_type)
            return total.reshape(1)
        if not self._index_tensors:
            self._index_tensors = [
                torch.tensor(
                    part.indices, device=norms.device, dtype=torch.long
                )
                for part in self.parts
            ]
        return torch.stack(
            [
                grad_health.total_norm(norms[index], self.norm_type)
                for index in self._index_tensors
            ]
        )


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
    if isinstance(clip, UnitClip):
        for module in clip.exclude:
            if not any(is_inside(name, [module]) for name in names):
                text = no_match('exclude', module, module_names(names))
                raise ValueError(f'{where}: {text}')
    if not isinstance(clip, NormClip):
        return
    owner: dict[str, str] = {}
    for index, group in enumerate(clip.groups):
        for module in group.modules:
            matches = [name for name in names if is_inside(name, [module])]
            if not matches:
                text = no_match('module_name', module, module_names(names))
                raise ValueError(f'{where}: configs[{index}]: {text}')
            for name in matches:
                if name in owner:
                    text = _(
                        '{module!r} overlaps with {other!r}: both hold '
                        '{name!r}.',
                        module=module,
                        other=owner[name],
                        name=name,
                    )
                    raise ValueError(f'{where}: configs[{index}]: {text}')
                owner[name] = module
