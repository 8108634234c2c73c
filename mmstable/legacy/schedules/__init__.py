"""Schedules of mmcv 1.x, with the same curves."""

from mmstable.legacy.schedules.policy_schedulers import (
    PolicyLR,
    PolicyMomentum,
)

__all__ = ['PolicyLR', 'PolicyMomentum']
