"""What the quick start trains on, trains, and is judged by.

Needs the packages of ``pip install mmstable[demo]``; nothing else in
mmstable imports this.
"""

from mmstable.demo.digit_scenes import DigitScenes
from mmstable.demo.mean_iou import MeanIoU
from mmstable.demo.missing_package import MissingPackageError
from mmstable.demo.pack_scene import PackScene
from mmstable.demo.tiny_fcn import TinyFCN

__all__ = [
    'DigitScenes',
    'MeanIoU',
    'MissingPackageError',
    'PackScene',
    'TinyFCN',
]
