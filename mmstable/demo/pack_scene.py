"""The last step of the pipeline: arrays become what the model takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement, PixelData

from mmstable.demo.missing_package import MissingPackageError
from mmstable.registry import TRANSFORMS

try:
    from mmcv.transforms import BaseTransform
except ImportError as error:
    raise MissingPackageError('mmcv', error) from error

_META_KEYS = ('scene_id', 'img_shape', 'ori_shape', 'scale_factor')


@TRANSFORMS.register_module()
class PackScene(BaseTransform):
    """Turn ``img`` and ``gt_seg_map`` into ``inputs`` and ``data_samples``."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Pack one scene."""
        meta = {key: results[key] for key in _META_KEYS if key in results}
        sample = BaseDataElement(metainfo=meta)
        sample.gt_sem_seg = PixelData(
            data=torch.from_numpy(results['gt_seg_map'].astype(np.int64))[None]
        )
        image = np.ascontiguousarray(results['img'].transpose(2, 0, 1))
        return dict(inputs=torch.from_numpy(image), data_samples=sample)
