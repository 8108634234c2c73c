"""Learning-rate and momentum schedules of mmcv 1.x, with the same curves.

Each policy is a function of the training progress; its other arguments are
the settings. The formulas are evaluated in the order of mmcv 1.7, so that the
results are bit-identical.
"""

from __future__ import annotations

import copy
import inspect
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from math import cos, pi
from typing import Any, Callable, NamedTuple, Optional

from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin

from mmstable.registry import PARAM_SCHEDULERS, register_globally
from mmstable.settings import (
    integer,
    known_settings,
    number,
    one_of,
    refuse,
)


class Progress(NamedTuple):
    """The state of a schedule, in epochs or in iterations.

    Args:
        base (float): The value in the optimizer config.
        done (int): Steps done so far.
        total (int): Steps of the whole training.
    """

    base: float
    done: int
    total: int


Policy = Callable[..., float]
Number = Optional[float]


def fixed(at: Progress) -> float:
    """Keep the base value."""
    return at.base


def step(
    at: Progress,
    step: int | Sequence[int],
    gamma: float = 0.1,
    minimum: Number = None,
) -> float:
    """Multiply by ``gamma`` at given points, or at regular intervals."""
    if isinstance(step, int):
        power = at.done // step
    else:
        reached = (index for index, end in enumerate(step) if at.done < end)
        power = next(reached, len(step))
    value = at.base * gamma**power
    return value if minimum is None else max(value, minimum)


def exp(at: Progress, gamma: float) -> float:
    """Multiply by ``gamma`` every time."""
    return at.base * gamma**at.done


def poly(at: Progress, power: float = 1.0, minimum: float = 0.0) -> float:
    """Follow a polynomial down to ``minimum``."""
    coefficient = (1 - at.done / at.total) ** power
    return (at.base - minimum) * coefficient + minimum


def inv(at: Progress, gamma: float, power: float = 1.0) -> float:
    """Follow the inverse of a polynomial."""
    return at.base * (1 + gamma * at.done) ** (-power)


def cosine_annealing(
    at: Progress, minimum: Number = None, minimum_ratio: Number = None
) -> float:
    """Follow half a cosine down to the minimum."""
    target = _target(at, minimum, minimum_ratio)
    return _cosine(at.base, target, at.done / at.total)


def flat_cosine_annealing(
    at: Progress,
    start_percent: float = 0.75,
    minimum: Number = None,
    minimum_ratio: Number = None,
) -> float:
    """Keep the base value for a while, then follow half a cosine down."""
    start = round(at.total * start_percent)
    if at.done < start:
        return at.base
    target = _target(at, minimum, minimum_ratio)
    return _cosine(at.base, target, (at.done - start) / (at.total - start))


def cosine_restart(
    at: Progress,
    periods: Sequence[int],
    restart_weights: Sequence[float] = (1,),
    minimum: Number = None,
    minimum_ratio: Number = None,
) -> float:
    """Follow half a cosine down, again in each period."""
    start = 0
    for period, weight in zip(periods, restart_weights):  # noqa: B007
        if at.done < start + period:
            break
        start += period
    target = _target(at, minimum, minimum_ratio)
    part = min((at.done - start) / period, 1)
    return _cosine(at.base, target, part, weight)


def linear_annealing(
    at: Progress, minimum: Number = None, minimum_ratio: Number = None
) -> float:
    """Follow a straight line down to the minimum."""
    target = _target(at, minimum, minimum_ratio)
    return _line(at.base, target, at.done / at.total)


def cyclic(
    at: Progress,
    target_ratio: float | Sequence[float] = (10, 1e-4),
    cyclic_times: int = 1,
    step_ratio_up: float = 0.4,
    anneal_strategy: str = 'cos',
    gamma: float = 1,
) -> float:
    """Move away from the base value and back, several times."""
    ratios = target_ratio
    if isinstance(ratios, (int, float)):
        ratios = (ratios,)
    far, last = ratios if len(ratios) == 2 else (ratios[0], ratios[0] / 1e5)
    length = at.total // cyclic_times
    cycle, place = divmod(at.done, length)
    scale = gamma**cycle
    up = int(step_ratio_up * length)
    if place < up:
        start, end, first, second = 0, up, 1.0, 1 - scale + far * scale
    elif up == 0:
        # mmcv takes every phase that starts at 0 for the way up.
        start, end, first, second = 0, length, far, 1 - scale + last * scale
    else:
        start, end, first, second = up, length, 1 - scale + far * scale, last
    anneal, part = _ANNEALING[anneal_strategy], (place - start) / (end - start)
    return anneal(at.base * first, at.base * second, part)


def one_cycle(
    at: Progress,
    max_lr: float,
    total_steps: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = 'cos',
    div_factor: float = 25,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> float:
    """Rise from a fraction of ``max_lr`` to it, and fall to nearly zero."""
    # The learning rate of the optimizer is not used.
    base = max_lr / div_factor
    values = base, base * div_factor, base * (1 / final_div_factor)
    if total_steps is not None:
        at = at._replace(total=total_steps)
    return _in_phases(at, pct_start, three_phase, values, anneal_strategy)


def one_cycle_momentum(
    at: Progress,
    base_momentum: float = 0.85,
    max_momentum: float = 0.95,
    pct_start: float = 0.3,
    anneal_strategy: str = 'cos',
    three_phase: bool = False,
) -> float:
    """Fall from ``max_momentum`` to ``base_momentum``, and rise again."""
    values = max_momentum, base_momentum, max_momentum
    return _in_phases(at, pct_start, three_phase, values, anneal_strategy)


LR_POLICIES: dict[str, Policy] = {
    'fixed': fixed,
    'step': step,
    'exp': exp,
    'poly': poly,
    'inv': inv,
    'CosineAnnealing': cosine_annealing,
    'FlatCosineAnnealing': flat_cosine_annealing,
    'CosineRestart': cosine_restart,
    'cyclic': cyclic,
    'OneCycle': one_cycle,
    'LinearAnnealing': linear_annealing,
}
MOMENTUM_POLICIES: dict[str, Policy] = {
    'step': partial(step, gamma=0.5),
    'CosineAnnealing': cosine_annealing,
    'LinearAnnealing': linear_annealing,
    'cyclic': partial(cyclic, target_ratio=(0.85 / 0.95, 1.0)),
    'OneCycle': one_cycle_momentum,
}


def _target(at: Progress, minimum: Number, minimum_ratio: Number) -> float:
    if minimum_ratio is not None:
        return at.base * minimum_ratio
    return 0.0 if minimum is None else minimum


def _cosine(
    start: float, end: float, part: float, weight: float = 1.0
) -> float:
    return end + 0.5 * weight * (start - end) * (cos(pi * part) + 1)


def _line(start: float, end: float, part: float) -> float:
    return start + (end - start) * part


_ANNEALING: dict[str, Callable[[float, float, float], float]] = {
    'cos': _cosine,
    'linear': _line,
}


def _in_phases(
    at: Progress,
    pct_start: float,
    three_phase: bool,
    values: tuple[float, float, float],
    strategy: str,
) -> float:
    """Anneal from the first value to the second, then to the last.

    With three phases, the first value is reached again before the last.
    """
    first, second, last = values
    total = at.total
    phases = [(pct_start * total - 1, first, second)]
    if three_phase:
        phases.append((2 * pct_start * total - 2, second, first))
        phases.append((total - 1, first, last))
    else:
        phases.append((total - 1, second, last))
    start = 0.0
    for end, before, after in phases:  # noqa: B007
        if at.done <= end:
            break
        start = end
    # An empty phase is over at once.
    part = (at.done - start) / (end - start) if end > start else 1.0
    return _ANNEALING[strategy](before, after, part)


# From the remaining share of the warm-up, and the initial factor, to the
# factor.
WARMUPS: dict[str, Callable[[float, float], float]] = {
    'constant': lambda left, ratio: ratio,
    'linear': lambda left, ratio: 1 - left * (1 - ratio),
    'exp': lambda left, ratio: ratio**left,
}


# Policies that mmcv counts in iterations only.
BY_ITERATION = ('cyclic', 'OneCycle')
# Policies that do not depend on the length of the training.
ENDLESS = ('fixed', 'step', 'exp', 'inv', 'CosineRestart')


def check_warmup(where: str, kind: Any, length: Any, ratio: Any) -> None:
    """Refuse a warm-up with wrong settings."""
    one_of(where, 'warmup', kind, WARMUPS)
    integer(where, 'warmup_iters', length)
    number(where, 'warmup_ratio', ratio, above=0, at_most=1)


def check_length(where: str, settings: Mapping[str, Any], total: int) -> None:
    """Refuse a policy that ends before the training."""
    ends = {
        'periods': sum(settings.get('periods') or [total]),
        'total_steps': settings.get('total_steps') or total,
    }
    for name, end in ends.items():
        if end < total:
            raise ValueError(
                f'{where}: `{name}` ends at {end}, but the training at '
                f'{total}.'
            )
    if settings.get('cyclic_times', 1) > total:
        rule = f'at most {total}, the length of the training'
        refuse(where, 'cyclic_times', rule, settings['cyclic_times'])


# mmengine's default of `end`.
_NO_END = int(1e9)
# Settings that may be a list with one value for each parameter group.
_PER_GROUP = ('max_lr', 'base_momentum', 'max_momentum')


class PolicyScheduler(_ParamScheduler):
    """Base class of :class:`PolicyLR` and :class:`PolicyMomentum`.

    mmengine's schedules multiply the value of the previous iteration, and
    chain a warm-up to the rest. As mmcv does, this class computes every value
    from that in the config, and then applies the warm-up.
    """

    policies: Mapping[str, Policy]
    # From names in a config to arguments of the policies.
    words: Mapping[str, str]

    def __init__(
        self,
        optimizer: Any,
        param_name: str,
        policy: str,
        warmup: str | None = None,
        warmup_iters: int = 0,
        warmup_ratio: float = 0.1,
        warmup_by_epoch: bool = False,
        by_epoch: bool = True,
        update_by_epoch: bool | None = None,
        end: int = _NO_END,
        last_step: int = -1,
        verbose: bool = False,
        epoch_length: int | None = None,
        **settings: Any,
    ) -> None:
        where = type(self).__name__
        policy = self.find_policy(where, policy)
        self.check_settings(where, policy, settings)
        if update_by_epoch is None:
            update_by_epoch = by_epoch
        if policy in BY_ITERATION and update_by_epoch:
            raise ValueError(
                f"{where}: policy '{policy}' needs `by_epoch=False`."
            )
        if warmup is not None:
            check_warmup(where, warmup, warmup_iters, warmup_ratio)
            if epoch_length is None and (by_epoch or warmup_by_epoch):
                raise ValueError(
                    f'{where}: a warm-up counts iterations: set '
                    '`by_epoch=True` and `convert_to_iter_based=True`.'
                )
        self.policy = policy
        self.warmup = warmup
        factor = epoch_length or 1
        self.warmup_iters = warmup_iters * (factor if warmup_by_epoch else 1)
        self.warmup_ratio = warmup_ratio
        # Steps of this schedule per step of the policy.
        self.stride = factor if update_by_epoch else 1
        self.total = end // self.stride
        if end == _NO_END and policy not in ENDLESS:
            raise ValueError(
                f"{where}: policy '{policy}' needs `end`, the length of the "
                'training.'
            )
        self.settings = self._for_groups(optimizer, settings)
        for one in self.settings:
            check_length(f"{where}: policy '{policy}'", one, self.total)
        super().__init__(
            optimizer,
            param_name,
            end=end,
            last_step=last_step,
            by_epoch=by_epoch and epoch_length is None,
            verbose=verbose,
        )

    @classmethod
    def find_policy(cls, where: str, name: Any) -> str:
        """Return the policy of this name; case does not matter.

        Args:
            where (str): Owner of the settings, for an error.
            name (str): The name in the config.
        """
        by_case = {known.lower(): known for known in cls.policies}
        name = by_case.get(str(name).lower(), name)
        return one_of(where, 'policy', name, cls.policies)

    @classmethod
    def check_settings(
        cls, where: str, policy: str, settings: Mapping[str, Any]
    ) -> None:
        """Refuse settings that a policy does not have, or wrong values.

        Args:
            where (str): Owner of the settings, for an error.
            policy (str): Name of the policy.
            settings (Mapping[str, Any]): Settings by their names in a config.
        """
        where = f"{where}: policy '{policy}'"
        back = {ours: theirs for theirs, ours in cls.words.items()}
        signature = inspect.signature(cls.policies[policy])
        _at, *parameters = signature.parameters.values()
        known = {back.get(p.name, p.name): p.default for p in parameters}
        known_settings(where, settings, known)
        for name, default in known.items():
            if default is inspect.Parameter.empty and name not in settings:
                raise ValueError(f'{where} needs `{name}`.')
        both = [back['minimum'], back['minimum_ratio']]
        given = [name for name in both if settings.get(name) is not None]
        if both[1] in known and len(given) != 1:
            raise ValueError(
                f'{where} needs exactly one of `{both[0]}` and `{both[1]}`.'
            )
        periods = settings.get('periods')
        weights = settings.get('restart_weights', (1,))
        if periods is not None and len(periods) != len(weights):
            raise ValueError(
                f'{where}: `periods` and `restart_weights` must have the same '
                f'length, got {len(periods)} and {len(weights)}.'
            )

    @classmethod
    def build_iter_from_epoch(
        cls, *args: Any, epoch_length: int, **kwargs: Any
    ) -> PolicyScheduler:
        """Build an iteration-based one for ``convert_to_iter_based``."""
        kwargs['epoch_length'] = epoch_length
        if 'end' in kwargs:
            kwargs['end'] *= epoch_length
        return cls(*args, **kwargs)

    def _get_value(self) -> list[float]:
        """Return the current values of all parameter groups."""
        factor = 1.0
        if self.warmup is not None and self.last_step < self.warmup_iters:
            left = 1 - self.last_step / self.warmup_iters
            factor = WARMUPS[self.warmup](left, self.warmup_ratio)
        done = self.last_step // self.stride
        function = self.policies[self.policy]
        return [
            self._warm_up(
                function(Progress(base, done, self.total), **one), factor
            )
            for base, one in zip(self.base_values, self.settings)
        ]

    # How the factor of the warm-up changes a value.
    _warm_up = staticmethod(operator.mul)

    def _for_groups(
        self, optimizer: Any, settings: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return the settings of every parameter group.

        They are saved in checkpoints, hence in plain types.
        """
        count = len(optimizer.param_groups)
        groups: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, value in settings.items():
            values = [list(value) if isinstance(value, tuple) else value]
            if name in _PER_GROUP:
                values = self._per_group(optimizer, name, value)
            # mmengine adds a group without parameters, for the log.
            values += [values[0]] * (count - len(values))
            for group, one in zip(groups, values):
                group[self.words.get(name, name)] = copy.copy(one)
        return groups

    def _per_group(self, optimizer: Any, name: str, value: Any) -> list[Any]:
        inner = getattr(optimizer, 'optimizer', optimizer)
        if isinstance(value, dict):
            # By class, as in mmcv with several optimizers.
            value = value[type(inner).__name__]
        if not isinstance(value, (list, tuple)):
            return [value]
        # Not counting the group without parameters that mmengine adds.
        count = len(inner.param_groups)
        if len(value) != count:
            raise ValueError(
                f'{type(self).__name__}: `{name}` has {len(value)} values for '
                f'{count} parameter groups.'
            )
        return list(value)


@register_globally(PARAM_SCHEDULERS)
class PolicyLR(LRSchedulerMixin, PolicyScheduler):
    """Schedule the learning rate as ``lr_config`` of mmcv 1.x does.

    Args:
        optimizer (Optimizer or OptimWrapper): The optimizer.
        policy (str): 'fixed', 'step', 'exp', 'poly', 'inv',
            'CosineAnnealing', 'FlatCosineAnnealing', 'CosineRestart',
            'cyclic', 'OneCycle' or 'LinearAnnealing'.
        warmup (str, optional): 'constant', 'linear' or 'exp'.
            Defaults to None.
        warmup_iters (int): Length of the warm-up. Defaults to 0.
        warmup_ratio (float): Initial factor of the warm-up. Defaults to 0.1.
        warmup_by_epoch (bool): Whether ``warmup_iters`` are epochs.
            Defaults to False.
        by_epoch (bool): Whether this counts epochs. A warm-up counts
            iterations and needs ``convert_to_iter_based=True`` then.
            Defaults to True.
        update_by_epoch (bool, optional): Whether the policy counts epochs;
            None for the same as ``by_epoch``. Defaults to None.
        end (int): Length of the training; mmengine fills it in.
            Defaults to 1000000000.
        last_step (int): The step to resume from. Defaults to -1.
        verbose (bool): Whether to print every value. Defaults to False.
        epoch_length (int, optional): Iterations per epoch; mmengine fills it
            in. Defaults to None.
        **settings: Settings of the policy, as in mmcv: ``step``, ``gamma``,
            ``power``, ``min_lr``, ``min_lr_ratio``, ``max_lr``, ...
    """

    policies = LR_POLICIES
    words = {'min_lr': 'minimum', 'min_lr_ratio': 'minimum_ratio'}


@register_globally(PARAM_SCHEDULERS)
class PolicyMomentum(MomentumSchedulerMixin, PolicyScheduler):
    """Schedule the momentum as ``momentum_config`` of mmcv 1.x does.

    For Adam this is the first of the ``betas``. The warm-up divides: the
    momentum starts above the value in the config.

    Args:
        optimizer (Optimizer or OptimWrapper): The optimizer.
        policy (str): 'step', 'CosineAnnealing', 'LinearAnnealing', 'cyclic'
            or 'OneCycle'.
        *args: As in :class:`PolicyLR`.
        **kwargs: As in :class:`PolicyLR`, with ``min_momentum`` for
            ``min_lr``.
    """

    policies = MOMENTUM_POLICIES
    words = {
        'min_momentum': 'minimum',
        'min_momentum_ratio': 'minimum_ratio',
    }

    _warm_up = staticmethod(operator.truediv)


__all__ = ['PolicyLR', 'PolicyMomentum']
