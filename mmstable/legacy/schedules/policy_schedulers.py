"""Schedules with the policies and warm-ups of mmcv 1.x, value for value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler.lr_scheduler import LRSchedulerMixin
from mmengine.optim.scheduler.momentum_scheduler import MomentumSchedulerMixin

from mmstable.legacy.schedules.policies import (
    LR_POLICIES,
    MOMENTUM_POLICIES,
    Policy,
)
from mmstable.legacy.schedules.policy_settings import (
    BY_ITERATION,
    NEED_LENGTH,
    check_length,
    check_settings,
    check_warmup,
    find_policy,
)
from mmstable.legacy.schedules.warmup import warmup_factor
from mmstable.registry import PARAM_SCHEDULERS, register_globally

# mmengine's sign for "no end".
_ENDLESS = int(1e9)
# Settings that may be given for every parameter group by itself.
_PER_GROUP = ('max_lr', 'base_momentum', 'max_momentum')


class PolicyScheduler(_ParamScheduler):
    """What :class:`PolicyLR` and :class:`PolicyMomentum` have in common.

    mmengine's own schedules multiply the value of the iteration before, and
    chain a warm-up to the rest. mmcv computed every value anew from the one
    in the config, with the warm-up on top; so does this.
    """

    policies: Mapping[str, Policy]
    # From the names of a config to those of the policies.
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
        end: int = _ENDLESS,
        last_step: int = -1,
        verbose: bool = False,
        epoch_length: int | None = None,
        **settings: Any,
    ) -> None:
        where = type(self).__name__
        policy = find_policy(where, policy, self.policies)
        check_settings(
            where, policy, self.policies[policy], settings, self.words
        )
        if update_by_epoch is None:
            update_by_epoch = by_epoch
        if policy in BY_ITERATION and update_by_epoch:
            raise ValueError(
                f"{where}: policy '{policy}' goes by iterations only: set "
                '`by_epoch=False`.'
            )
        if warmup is not None:
            check_warmup(where, warmup, warmup_iters, warmup_ratio)
            if epoch_length is None and (by_epoch or warmup_by_epoch):
                raise ValueError(
                    f'{where}: a warm-up goes by iterations, and needs to '
                    'know how many an epoch has: set `by_epoch=True` and '
                    '`convert_to_iter_based=True`.'
                )
        self.policy = policy
        self.warmup = warmup
        self.warmup_iters = warmup_iters
        if warmup_by_epoch and epoch_length is not None:
            self.warmup_iters = warmup_iters * epoch_length
        self.warmup_ratio = warmup_ratio
        # How many steps of this schedule make one of the policy.
        self.stride = 1
        if update_by_epoch and epoch_length is not None:
            self.stride = epoch_length
        self.total = end // self.stride
        if end == _ENDLESS and policy in NEED_LENGTH:
            raise ValueError(
                f"{where}: policy '{policy}' depends on the length of the "
                'training: give it as `end`.'
            )
        self.settings = self._for_groups(optimizer, settings)
        for one in self.settings:
            check_length(where, policy, one, self.total)
        super().__init__(
            optimizer,
            param_name,
            end=end,
            last_step=last_step,
            by_epoch=by_epoch and epoch_length is None,
            verbose=verbose,
        )

    @classmethod
    def build_iter_from_epoch(
        cls, *args: Any, epoch_length: int, **kwargs: Any
    ) -> PolicyScheduler:
        """What mmengine calls for ``convert_to_iter_based=True``."""
        kwargs['epoch_length'] = epoch_length
        if 'end' in kwargs:
            kwargs['end'] *= epoch_length
        return cls(*args, **kwargs)

    def _get_value(self) -> list[float]:
        """The values of now, from those in the config."""
        factor = 1.0
        if self.warmup is not None and self.last_step < self.warmup_iters:
            factor = warmup_factor(
                self.warmup,
                self.last_step,
                self.warmup_iters,
                self.warmup_ratio,
            )
        done = self.last_step // self.stride
        function = self.policies[self.policy]
        return [
            self._warm_up(function(base, done, self.total, **one), factor)
            for base, one in zip(self.base_values, self.settings)
        ]

    @staticmethod
    def _warm_up(value: float, factor: float) -> float:
        return value * factor

    def _for_groups(
        self, optimizer: Any, settings: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The settings of every parameter group, in plain types.

        They are saved in checkpoints.
        """
        count = len(optimizer.param_groups)
        groups: list[dict[str, Any]] = [{} for _ in range(count)]
        for name, value in settings.items():
            values = [value] * count
            if name in _PER_GROUP:
                values = self._spread(optimizer, name, value, count)
            for group, one in zip(groups, values):
                plain = list(one) if isinstance(one, tuple) else one
                group[self.words.get(name, name)] = copy.copy(plain)
        return groups

    def _spread(
        self, optimizer: Any, name: str, value: Any, count: int
    ) -> list[float]:
        inner = getattr(optimizer, 'optimizer', optimizer)
        kind = type(inner).__name__
        if isinstance(value, dict):
            # By class, as mmcv wants it for several optimizers.
            if kind not in value:
                raise ValueError(
                    f'{type(self).__name__}: `{name}` is given for '
                    f'{", ".join(value)}, not for {kind}.'
                )
            value = value[kind]
        if not isinstance(value, (list, tuple)):
            return [value] * count
        real = len(inner.param_groups)
        if len(value) != real:
            raise ValueError(
                f'{type(self).__name__}: `{name}` has {len(value)} values '
                f'for {real} parameter groups.'
            )
        # mmengine adds a group without parameters, for the log.
        return [*value, *[value[0]] * (count - real)]


@register_globally(PARAM_SCHEDULERS)
class PolicyLR(LRSchedulerMixin, PolicyScheduler):
    """The learning rate, as ``lr_config`` of mmcv 1.x has it.

    Args:
        optimizer (Optimizer or OptimWrapper): The optimizer.
        policy (str): 'fixed', 'step', 'exp', 'poly', 'inv',
            'CosineAnnealing', 'FlatCosineAnnealing', 'CosineRestart',
            'cyclic', 'OneCycle' or 'LinearAnnealing'.
        warmup (str, optional): 'constant', 'linear' or 'exp'.
            Defaults to None.
        warmup_iters (int): How long the warm-up is. Defaults to 0.
        warmup_ratio (float): What multiplies the rate at its start.
            Defaults to 0.1.
        warmup_by_epoch (bool): Whether ``warmup_iters`` are epochs.
            Defaults to False.
        by_epoch (bool): Whether this goes by epochs. For a warm-up, which
            goes by iterations always, add ``convert_to_iter_based=True``.
            Defaults to True.
        update_by_epoch (bool, optional): Whether the policy counts epochs;
            None for the same as ``by_epoch``. Defaults to None.
        end (int): The length of the training; mmengine fills it in.
            Defaults to 1000000000.
        last_step (int): The step to go on from. Defaults to -1.
        verbose (bool): Whether to print every value. Defaults to False.
        epoch_length (int, optional): Iterations of an epoch; mmengine fills
            it in. Defaults to None.
        **settings: Those of the policy, as in mmcv: ``step``, ``gamma``,
            ``power``, ``min_lr``, ``min_lr_ratio``, ``max_lr``, ...
    """

    policies = LR_POLICIES
    words = {'min_lr': 'minimum', 'min_lr_ratio': 'minimum_ratio'}


@register_globally(PARAM_SCHEDULERS)
class PolicyMomentum(MomentumSchedulerMixin, PolicyScheduler):
    """The momentum, as ``momentum_config`` of mmcv 1.x has it.

    With Adam and its kin this is the first of the ``betas``. The warm-up
    divides: a momentum starts above the value of the config.

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

    @staticmethod
    def _warm_up(value: float, factor: float) -> float:
        return value / factor
