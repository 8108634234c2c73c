"""A segmentation network that a laptop can train in fp16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from torch import Tensor, nn

from mmstable.demo.missing_package import MissingPackageError
from mmstable.registry import MODELS
from mmstable.settings import integer, one_of

try:
    from mmcv.cnn import ConvModule
except ImportError as error:
    raise MissingPackageError('mmcv', error) from error

IGNORED_CLASS = 255
Outputs = Union[dict[str, Tensor], list[BaseDataElement], Tensor]


def _conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1
) -> ConvModule:
    return ConvModule(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=kernel // 2,
        norm_cfg=dict(type='BN'),
    )


@MODELS.register_module()
class TinyFCN(BaseModel):
    """A small encoder and decoder with skip connections.

    Each stage of the encoder halves the picture. The decoder goes back up to
    half the picture's size by adding what the encoder saw there, and the
    head predicts the four pixels below each position at once: on a CPU,
    3x3 convolutions of large maps in fp16 would take most of the time.

    Args:
        num_classes (int): Number of classes.
        channels (tuple[int]): Channels of the encoder's stages.
            Defaults to (16, 32, 64).
        context_convs (int): Number of convolutions at the lowest resolution.
            Defaults to 2.
        class_weight (Sequence[float], optional): Weight of each class in the
            loss. Defaults to None, which weighs all classes alike.
        **kwargs: Other arguments of mmengine's ``BaseModel``, such as
            ``data_preprocessor``.
    """

    class_weight: Tensor

    def __init__(
        self,
        num_classes: int,
        channels: tuple[int, ...] = (16, 32, 64),
        context_convs: int = 2,
        class_weight: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        num_classes = integer('TinyFCN', 'num_classes', num_classes, 2)
        if not channels:
            raise ValueError('TinyFCN: `channels` must not be empty.')
        if class_weight is None:
            class_weight = [1.0] * num_classes
        if len(class_weight) != num_classes:
            raise ValueError(
                'TinyFCN: `class_weight` must have one value for each of '
                f'the {num_classes} classes, got {len(class_weight)}.'
            )
        self.encoder = nn.ModuleList(
            _conv(inputs, outputs, stride=2)
            for inputs, outputs in zip((3, *channels), channels)
        )
        self.context = nn.Sequential(
            *(_conv(channels[-1], channels[-1]) for _ in range(context_convs))
        )
        self.decoder = nn.ModuleList(
            _conv(deep, shallow, kernel=1)
            for deep, shallow in zip(channels[:0:-1], channels[-2::-1])
        )
        self.head = nn.Conv2d(channels[0], 4 * num_classes, 1)
        self.register_buffer(
            'class_weight', torch.tensor(class_weight), persistent=False
        )

    def forward(
        self,
        inputs: Tensor,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Outputs:
        """Losses, predictions or class scores, as ``mode`` asks.

        Args:
            inputs (Tensor): Normalized pictures, shape (N, 3, H, W).
            data_samples (list[BaseDataElement], optional): What is known of
                each picture. Defaults to None.
            mode (str): 'loss', 'predict' or 'tensor'. Defaults to 'tensor'.
        """
        one_of('TinyFCN', 'mode', mode, ('loss', 'predict', 'tensor'))
        scores = self._scores(inputs)
        if mode == 'tensor':
            return scores
        if mode == 'predict':
            return self._predict(scores, data_samples)
        return self._loss(scores, data_samples or [])

    def _scores(self, inputs: Tensor) -> Tensor:
        skips = []
        features = inputs
        for stage in self.encoder:
            features = stage(features)
            skips.append(features)
        features = self.context(features)
        for stage, skip in zip(self.decoder, skips[-2::-1]):
            above = F.interpolate(stage(features), size=skip.shape[-2:])
            features = above + skip
        scores = F.pixel_shuffle(self.head(features), 2)
        height, width = inputs.shape[-2:]
        return scores[..., :height, :width]

    def _loss(
        self, scores: Tensor, samples: list[BaseDataElement]
    ) -> dict[str, Tensor]:
        target = torch.cat([sample.gt_sem_seg.data for sample in samples])
        loss = F.cross_entropy(
            scores,
            target,
            weight=self.class_weight,
            ignore_index=IGNORED_CLASS,
        )
        return dict(loss_seg=loss)

    def _predict(
        self, scores: Tensor, samples: list[BaseDataElement] | None
    ) -> list[BaseDataElement]:
        if samples is None:
            samples = [BaseDataElement() for _ in scores]
        for sample, classes in zip(samples, scores.argmax(dim=1)):
            sample.pred_sem_seg = PixelData(data=classes[None])
        return samples
