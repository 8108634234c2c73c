"""Configs of mmcv 1.x, translated to mmengine."""

from mmstable.preflight.legacy.draft import Finding, Weight
from mmstable.preflight.legacy.keys import OLD_KEYS
from mmstable.preflight.legacy.translation import Translation, translate

__all__ = ['OLD_KEYS', 'Finding', 'Translation', 'Weight', 'translate']
