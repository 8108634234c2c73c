"""How well do predicted and true pixel classes agree?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from torch import Tensor

from mmstable.registry import METRICS


def confusion_matrix(
    predicted: Tensor, true: Tensor, num_classes: int
) -> Tensor:
    """Count pixels by true class (row) and predicted class (column).

    Args:
        predicted (Tensor): Predicted classes, of any shape.
        true (Tensor): True classes, of the same shape; those not below
            ``num_classes`` are not counted.
        num_classes (int): Number of classes.
    """
    counted = true < num_classes
    pairs = true[counted] * num_classes + predicted[counted]
    return torch.bincount(pairs, minlength=num_classes**2).reshape(
        num_classes, num_classes
    )


@METRICS.register_module()
class MeanIoU(BaseMetric):
    """Intersection over union of each class, and the mean over classes.

    A class that is neither predicted nor present is left out of the mean.
    The class names are the ``classes`` of the data set's metainfo.
    """

    default_prefix = 'seg'

    def process(
        self, data_batch: Any, data_samples: Sequence[dict[str, Any]]
    ) -> None:
        """Count the pixels of each sample."""
        for sample in data_samples:
            # One entry per sample: mmengine cuts off what a sampler padded.
            self.results.append(
                confusion_matrix(
                    sample['pred_sem_seg']['data'].cpu(),
                    sample['gt_sem_seg']['data'].cpu(),
                    len(self._classes),
                )
            )

    def compute_metrics(self, results: list[Tensor]) -> dict[str, float]:
        """Scores in percent; the table goes to the log."""
        matrix = torch.stack(results).sum(dim=0).double()
        hits = matrix.diagonal()
        true, predicted = matrix.sum(dim=1), matrix.sum(dim=0)
        # 0 / 0 is NaN: a class that never occurred has no score.
        iou = 100 * hits / (true + predicted - hits)
        accuracy = 100 * hits / true
        print_log(
            'Per class results:\n' + self._table(iou, accuracy),
            logger='current',
        )
        return dict(
            mIoU=round(iou.nanmean().item(), 2),
            mAcc=round(accuracy.nanmean().item(), 2),
            aAcc=round(100 * (hits.sum() / matrix.sum()).item(), 2),
        )

    @property
    def _classes(self) -> Sequence[str]:
        if not self.dataset_meta or 'classes' not in self.dataset_meta:
            raise ValueError(
                "MeanIoU: the data set's metainfo must name its `classes`, "
                f'got {self.dataset_meta}.'
            )
        return self.dataset_meta['classes']

    def _table(self, iou: Tensor, accuracy: Tensor) -> str:
        width = max(map(len, self._classes))
        rows = [f'{"class":<{width}}  {"IoU":>6}  {"Acc":>6}']
        rows += [
            f'{name:<{width}}  {one:6.2f}  {other:6.2f}'
            for name, one, other in zip(
                self._classes, iou.tolist(), accuracy.tolist()
            )
        ]
        return '\n'.join(rows)
