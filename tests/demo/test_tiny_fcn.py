from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.model import ImgDataPreprocessor
from mmengine.optim import OptimWrapper
from torch import nn

from mmstable.demo import DigitScenes, PackScene, TinyFCN


def tiny(**kwargs: Any) -> TinyFCN:
    torch.manual_seed(0)
    preprocessor = ImgDataPreprocessor(mean=[55.0], std=[50.0])
    return TinyFCN(11, (8, 16), data_preprocessor=preprocessor, **kwargs)


def batch(scenes: int = 2) -> dict[str, Any]:
    dataset = DigitScenes(
        'train', num_scenes=scenes, size=32, pipeline=[PackScene()]
    )
    return pseudo_collate([dataset[index] for index in range(scenes)])


def test_packed_scene_is_the_picture_and_its_classes() -> None:
    record = DigitScenes('val', num_scenes=1)[0]
    packed = PackScene()(dict(record))

    inputs, sample = packed['inputs'], packed['data_samples']
    assert np.array_equal(inputs.permute(1, 2, 0), record['img'])
    assert np.array_equal(sample.gt_sem_seg.data[0], record['gt_seg_map'])
    assert sample.scene_id == 0


@pytest.mark.parametrize('size', [(32, 32), (29, 46)], ids=str)
def test_a_score_per_class_and_pixel(size: tuple[int, int]) -> None:
    scores = tiny()(torch.randn(2, 3, *size))

    assert scores.shape == (2, 11, *size)


def test_predictions_are_the_best_scores() -> None:
    model, data = tiny().eval(), batch()
    scores = model(model.data_preprocessor(data)['inputs'])
    samples = model.val_step(data)

    for sample, score in zip(samples, scores):
        assert torch.equal(sample.pred_sem_seg.data[0], score.argmax(0))
        assert 'gt_sem_seg' in sample


def test_predictions_need_no_data_samples() -> None:
    samples = tiny().eval()(torch.randn(2, 3, 32, 32), mode='predict')

    assert [tuple(each.pred_sem_seg.shape) for each in samples] == [
        (32, 32)
    ] * 2


def test_the_loss_falls_on_one_batch() -> None:
    model, data = tiny().train(), batch()
    wrapper = OptimWrapper(torch.optim.Adam(model.parameters(), lr=0.02))
    losses = [model.train_step(data, wrapper)['loss'] for _ in range(15)]

    assert losses[-1] < 0.5 * losses[0]


def test_ignored_pixels_and_class_weights_reach_the_loss() -> None:
    model = tiny(class_weight=[0.0] + [1.0] * 10).eval()
    data = model.data_preprocessor(batch())
    before = model(**data, mode='loss')['loss_seg']
    for sample in data['data_samples']:
        classes = sample.gt_sem_seg.data
        classes[classes == 0] = 255

    after = model(**data, mode='loss')['loss_seg']
    assert after.item() == pytest.approx(before.item(), rel=1e-5)


def test_the_loss_is_float32_under_fp16_autocast() -> None:
    model = tiny()
    data = model.data_preprocessor(batch())
    with torch.autocast('cpu', dtype=torch.float16):
        assert model(data['inputs']).dtype == torch.float16
        assert model(**data, mode='loss')['loss_seg'].dtype == torch.float32


def test_it_has_batch_norm() -> None:
    assert any(isinstance(part, nn.BatchNorm2d) for part in tiny().modules())


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (
            dict(num_classes=1),
            '`num_classes` must be an int .* got 1',
        ),
        (dict(channels=()), '`channels` must not be empty'),
        (dict(class_weight=[1.0]), '`class_weight` must .* 11 .* got 1'),
    ],
    ids=str,
)
def test_bad_settings_are_refused(
    kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f'TinyFCN: {message}'):
        TinyFCN(**{'num_classes': 11, **kwargs})


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="`mode` must be .* got 'train'"):
        tiny()(torch.randn(1, 3, 32, 32), mode='train')
