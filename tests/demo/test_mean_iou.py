from __future__ import annotations

import logging

import pytest
import torch
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.structures import BaseDataElement, PixelData

from mmstable.demo import MeanIoU, confusion_matrix


def sample(predicted: list[int], true: list[int]) -> BaseDataElement:
    return BaseDataElement(
        pred_sem_seg=PixelData(data=torch.tensor([[predicted]])),
        gt_sem_seg=PixelData(data=torch.tensor([[true]])),
    )


def evaluate(
    samples: list[BaseDataElement], classes: tuple[str, ...]
) -> dict[str, float]:
    evaluator = Evaluator(MeanIoU())
    evaluator.dataset_meta = dict(classes=classes)
    evaluator.process(samples)
    return evaluator.evaluate(len(samples))


def test_confusion_matrix_leaves_out_what_is_to_be_ignored() -> None:
    matrix = confusion_matrix(
        torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 255]), 2
    )

    assert matrix.tolist() == [[1, 1], [0, 1]]


def test_scores_worked_out_by_hand() -> None:
    samples = [
        sample([0, 0, 1, 1], [0, 0, 0, 1]),
        sample([1, 2, 2, 0], [1, 2, 1, 255]),
    ]

    # Class 0: 2 hits of 3 true and 2 predicted. Class 1: 2 hits of 3 and 3.
    # Class 2: 1 hit of 1 and 2.
    assert evaluate(samples, ('a', 'b', 'c')) == {
        'seg/mIoU': round(100 * (2 / 3 + 2 / 4 + 1 / 2) / 3, 2),
        'seg/mAcc': round(100 * (2 / 3 + 2 / 3 + 1) / 3, 2),
        'seg/aAcc': round(100 * 5 / 7, 2),
    }


def test_a_class_that_never_occurs_is_not_in_the_mean() -> None:
    scores = evaluate([sample([0, 1], [0, 1])], ('a', 'b', 'unseen'))

    assert scores['seg/mIoU'] == 100


def test_a_class_predicted_but_never_true_counts_as_zero() -> None:
    scores = evaluate([sample([0, 1], [0, 0])], ('a', 'b'))

    assert scores['seg/mIoU'] == 25


def test_what_a_sampler_padded_is_cut_off() -> None:
    evaluator = Evaluator(MeanIoU())
    evaluator.dataset_meta = dict(classes=('a', 'b'))
    evaluator.process([sample([0, 1], [0, 1]), sample([1, 1], [0, 0])])

    assert evaluator.evaluate(size=1)['seg/mIoU'] == 100


def test_the_log_has_a_row_per_class(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = MMLogger.get_instance('test_mean_iou')
    logger.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO):
        evaluate([sample([0, 0, 1, 1], [0, 0, 0, 1])], ('paper', '7'))

    assert 'class     IoU     Acc' in caplog.text
    assert 'paper   66.67   66.67' in caplog.text
    assert '7       50.00  100.00' in caplog.text


def test_a_data_set_without_class_names_is_refused() -> None:
    metric = MeanIoU()
    metric.dataset_meta = dict()

    with pytest.raises(ValueError, match='must name its `classes`, got {}'):
        metric.process(None, [sample([0], [0]).to_dict()])
