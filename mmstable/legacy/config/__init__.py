"""Configs of mmcv 1.x, translated to mmengine."""

from mmstable.legacy.config.keys import OLD_KEYS
from mmstable.legacy.config.translation import Translation, translate

__all__ = ['OLD_KEYS', 'Translation', 'translate']
