"""A segmentation data set that is made, not downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmstable.demo.digit_scans import SPLITS, load_digit_scans
from mmstable.demo.scene import compose_scene
from mmstable.registry import DATASETS
from mmstable.settings import integer, one_of, refuse

_SMALLEST = 28


@DATASETS.register_module()
class DigitScenes(BaseDataset):
    """Pictures of several handwritten digits, with a class for each pixel.

    A scene depends on ``seed``, ``split`` and its index only. Scenes of the
    two splits are made of different scans.

    Args:
        split (str): 'train' or 'val'.
        num_scenes (int): Number of scenes. Defaults to 1000.
        size (int): Side of a scene in pixels. Defaults to 64.
        num_digits (tuple[int, int]): Least and greatest number of digits in
            a scene. Defaults to (2, 5).
        seed (int): Seed of all scenes. Defaults to 0.
        **kwargs: Other arguments of mmengine's ``BaseDataset``, such as
            ``pipeline``.
    """

    METAINFO = dict(classes=('background', *'0123456789'))

    def __init__(
        self,
        split: str,
        num_scenes: int = 1000,
        size: int = 64,
        num_digits: tuple[int, int] = (2, 5),
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        one_of('DigitScenes', 'split', split, SPLITS)
        if len(num_digits) != 2 or not 0 <= num_digits[0] <= num_digits[1]:
            rule = '(least, greatest) with 0 <= least <= greatest'
            refuse('DigitScenes', 'num_digits', rule, num_digits)
        self._split = split
        self._num_scenes = integer('DigitScenes', 'num_scenes', num_scenes)
        # A digit has to fit in.
        self._size = integer('DigitScenes', 'size', size, _SMALLEST)
        self._num_digits = num_digits
        self._seed = integer('DigitScenes', 'seed', seed, at_least=0)
        self._scans = load_digit_scans(split)
        super().__init__(**kwargs)

    def load_data_list(self) -> list[dict[str, Any]]:
        """One record per scene; its pixels are made when asked for."""
        return [dict(scene_id=index) for index in range(self._num_scenes)]

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """The record of a scene with ``img`` and ``gt_seg_map``."""
        info = super().get_data_info(idx)
        rng = np.random.default_rng(
            (self._seed, SPLITS.index(self._split), info['scene_id'])
        )
        least, greatest = self._num_digits
        img, classes = compose_scene(
            self._scans,
            self._size,
            int(rng.integers(least, greatest + 1)),
            rng,
        )
        shape = img.shape[:2]
        info.update(
            img=img, gt_seg_map=classes, img_shape=shape, ori_shape=shape
        )
        return info
