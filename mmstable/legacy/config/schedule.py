"""``lr_config`` and ``momentum_config`` become ``param_scheduler``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.draft import Draft, take_dict, usage_errors
from mmstable.legacy.schedules.policies import (
    LR_POLICIES,
    MOMENTUM_POLICIES,
    Policy,
)
from mmstable.legacy.schedules.policy_schedulers import (
    PolicyLR,
    PolicyMomentum,
)
from mmstable.legacy.schedules.policy_settings import (
    BY_ITERATION,
    check_settings,
    check_warmup,
    find_policy,
)
from mmstable.messages import _

_WARMUP = ('warmup', 'warmup_iters', 'warmup_ratio')


def translate_schedule(draft: Draft) -> None:
    """Settle learning rate and momentum over time."""
    old = [
        key
        for key in ('lr_config', 'momentum_config')
        if key in draft.settings
    ]
    if not old:
        return
    configs = {key: take_dict(draft, key) for key in old}
    known = draft.settings.get('param_scheduler')
    if known is not None:
        for key, config in configs.items():
            if config is not None:
                draft.conflict(
                    key, 'param_scheduler', config.get('policy'), known
                )
        return
    schedulers = [
        scheduler
        for key, config in configs.items()
        if config is not None
        for scheduler in _Schedule(draft, key, config).translate()
    ]
    draft.put('param_scheduler', schedulers or None, *old)
    draft.remarks['param_scheduler'] = (
        ', '.join(map(_remark, schedulers)) or 'no change over time'
    )


class _Schedule:
    """One of the two configs.

    Args:
        draft (Draft): The config.
        key (str): The key of this part.
        config (dict): This part.
    """

    def __init__(self, draft: Draft, key: str, config: dict[str, Any]) -> None:
        self.draft, self.key, self.config = draft, key, config
        self.is_lr = key == 'lr_config'
        self.policies: Mapping[str, Policy] = (
            LR_POLICIES if self.is_lr else MOMENTUM_POLICIES
        )

    def translate(self) -> list[dict[str, Any]]:
        """The schedulers that do the same: one, or none."""
        if 'policy' not in self.config:
            raise UsageError(_('{key}: needs a `policy`.', key=self.key))
        name = self.config.pop('policy')
        try:
            policy = find_policy(self.key, name, self.policies)
        except ValueError:
            self.draft.warn(
                f'{self.key}.policy',
                _(
                    '{name!r} is no policy of mmcv 1.7, which has {known}. A '
                    '`param_scheduler` has to take its place',
                    name=name,
                    known=list(self.policies),
                ),
            )
            return []
        by_epoch = self._take_by_epoch(policy)
        warmup = self._take_warmup(by_epoch)
        self._check(policy)
        if by_epoch and not self.draft.by_epoch:
            self.draft.leave(
                self.key,
                _(
                    'mmcv goes by epoch in runs by epoch only; in one by '
                    'iterations it left the value as it was, and so does '
                    'this. Write {key}.by_epoch=False if you want it',
                    key=self.key,
                ),
            )
            return []
        if policy == 'fixed' and not warmup:
            return []
        kind = 'PolicyLR' if self.is_lr else 'PolicyMomentum'
        head = {'type': f'mmstable.{kind}', 'policy': policy}
        return [{**head, **self.config, **self._count(by_epoch, warmup)}]

    def _take_by_epoch(self, policy: str) -> bool:
        default = policy not in BY_ITERATION
        if self.is_lr:
            # The runner by iterations sets it for this one only.
            default = default and self.draft.by_epoch
        by_epoch = self.config.pop('by_epoch', default)
        if by_epoch and policy in BY_ITERATION:
            raise UsageError(
                _(
                    "{key}: policy '{policy}' goes by iterations only: set "
                    '`by_epoch=False`.',
                    key=self.key,
                    policy=policy,
                )
            )
        return by_epoch

    def _take_warmup(self, by_epoch: bool) -> dict[str, Any]:
        names = [*_WARMUP, 'warmup_by_epoch'] if self.is_lr else _WARMUP
        taken = {
            name: self.config.pop(name)
            for name in names
            if name in self.config
        }
        if taken.get('warmup') is None:
            return {}
        # The defaults of mmcv differ.
        taken.setdefault('warmup_ratio', 0.1 if self.is_lr else 0.9)
        if not taken.get('warmup_by_epoch'):
            taken.pop('warmup_by_epoch', None)
        elif not self.draft.by_epoch:
            raise UsageError(
                _(
                    '{key}: `warmup_by_epoch` needs a run by epochs.',
                    key=self.key,
                )
            )
        with usage_errors():
            check_warmup(
                self.key,
                taken['warmup'],
                taken.get('warmup_iters', 0),
                taken['warmup_ratio'],
            )
        return taken

    def _check(self, policy: str) -> None:
        words = (PolicyLR if self.is_lr else PolicyMomentum).words
        with usage_errors():
            check_settings(
                self.key, policy, self.policies[policy], self.config, words
            )

    @staticmethod
    def _count(by_epoch: bool, warmup: dict[str, Any]) -> dict[str, Any]:
        if not by_epoch and not warmup.get('warmup_by_epoch'):
            return {'by_epoch': False, **warmup}
        if not warmup:
            return {'by_epoch': True}
        count = {'by_epoch': True, 'convert_to_iter_based': True}
        if not by_epoch:
            count['update_by_epoch'] = False
        return {**count, **warmup}


def _remark(scheduler: Mapping[str, Any]) -> str:
    name = scheduler['type'].rpartition('.')[2]
    warmup = scheduler.get('warmup')
    return f'{name} {scheduler["policy"]}' + (
        f' after {warmup} warm-up of {scheduler["warmup_iters"]}'
        if warmup
        else ''
    )
