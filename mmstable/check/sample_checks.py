"""The arrays of a sample, and a table of the problems they can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement

from mmstable.messages import _

_LABELS = (
    'label',
    'gt_label',
    'labels',
    'gt_labels',
    'labels_3d',
    'gt_bboxes_labels',
    'gt_labels_3d',
)
_MAX_LABELS = 5
_MAX_DEPTH = 8


class Part(NamedTuple):
    """An array of a sample.

    Args:
        path (str): Path in the sample, as 'data_samples.gt_sem_seg.data'.
        array (np.ndarray): Its values.
        is_tensor (bool): Whether it is a tensor, with channels first.
    """

    path: str
    array: np.ndarray
    is_tensor: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The names in its path."""
        return tuple(self.path.split('.'))


def parts_of(sample: Any) -> list[Part]:
    """Return all arrays and numbers of a sample.

    Args:
        sample (Any): Output of a pipeline: dicts, sequences, data elements,
            and objects that hold a tensor, such as boxes and points.
    """
    return list(_walk(sample, '', _MAX_DEPTH))


def _walk(value: Any, path: str, depth: int) -> Iterator[Part]:
    inner: Any = ()
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        if tensor.dtype is torch.bfloat16:
            # numpy has no bfloat16.
            tensor = tensor.float()
        yield Part(path, tensor.numpy(), True)
    elif isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        yield Part(path, np.asarray(value), False)
    elif isinstance(value, (BaseDataElement, Mapping)):
        # Of a data element its data, without the metainfo.
        inner = value.items()
    elif isinstance(value, (list, tuple)):
        inner = enumerate(value)
    else:
        # Boxes and points of mmdet and mmdet3d; masks of mmdet.
        held = ((n, getattr(value, n, None)) for n in ('tensor', 'masks'))
        arrays = (torch.Tensor, np.ndarray)
        inner = [(n, one) for n, one in held if isinstance(one, arrays)]
    for name, one in inner if depth > 1 else ():
        yield from _walk(one, f'{path}.{name}'.lstrip('.'), depth - 1)


class Problem(NamedTuple):
    """A problem of a sample.

    Args:
        id (str): Its row in ``ERRORS`` or ``WARNINGS``.
        place (str): Path in the sample.
        detail (str): Description of the values.
    """

    id: str
    place: str
    detail: str


@dataclass(frozen=True)
class Expected:
    """Properties that the samples of a dataset should have.

    Args:
        num_classes (int, optional): The number of classes. Defaults to None.
        ignore_index (int): The label to ignore. Defaults to 255.
        channels (int, optional): Channels that the model expects. Defaults to
            None.
    """

    num_classes: int | None = None
    ignore_index: int = 255
    channels: int | None = None


@dataclass(frozen=True)
class Subject:
    """A sample, and its expected properties.

    Args:
        parts (list[Part]): Its arrays.
        expected (Expected): Expected properties.
    """

    parts: list[Part]
    expected: Expected

    def images(self) -> Iterator[tuple[Part, int, tuple[int, int]]]:
        """Yield images with their channels, and their height and width."""
        for part in filter(_is_image, self.parts):
            shape = part.array.shape
            if part.is_tensor:
                yield part, shape[0], shape[1:]
            else:
                channels = shape[2] if len(shape) == 3 else 1
                yield part, channels, shape[:2]

    def problems(self) -> Iterator[Problem]:
        """Yield the problems that the rows of the tables find."""
        for id, kind in {**ERRORS, **WARNINGS}.items():
            for part in filter(kind.applies, self.parts):
                if detail := kind.detail(part, self):
                    yield Problem(id, part.path, detail)


def _is_image(part: Part) -> bool:
    named = part.words[-1] in ('inputs', 'img') or part.path == '0'
    return named and part.array.ndim in ((3,) if part.is_tensor else (2, 3))


def _is_label_map(part: Part) -> bool:
    """Whether a part holds the class of each pixel or point."""
    named = any(
        word.endswith('pts_seg')
        or any(name in word for name in ('sem_seg', 'seg_map', 'semantic'))
        for word in part.words
    )
    return named and part.array.ndim > 0


_BARE = ('1', 'data_samples', 'target', 'targets')


def _is_labels(part: Part) -> bool:
    """Whether a part holds classes: of pixels, objects, or the sample."""
    return (
        _is_label_map(part)
        or part.words[-1] in _LABELS
        or part.words[-2:] == ('gt_label', 'item')
        # A bare tensor, as the datasets of torchvision have it.
        or (part.path in _BARE and part.array.dtype.kind in 'iu')
    )


def _is_corners(part: Part) -> bool:
    named = any(word in ('bboxes', 'gt_bboxes') for word in part.words)
    return named and part.array.ndim == 2 and part.array.shape[1] == 4


def _is_empty(part: Part) -> bool:
    return part.array.ndim == 2 and len(part.array) == 0


def _non_finite(part: Part, subject: Subject) -> str:
    bad = ~np.isfinite(part.array)
    if not bad.any():
        return ''
    kind = 'NaN' if np.isnan(part.array).any() else 'Inf'
    count = int(bad.sum())
    return _('{bad} of {size} are {kind}', bad=count, size=bad.size, kind=kind)


def _label_range(part: Part, subject: Subject) -> str:
    classes, values = subject.expected.num_classes, part.array
    if classes is None or values.dtype.kind not in 'iu':
        return ''
    bad = (values < 0) | (values >= classes)
    bad &= values != subject.expected.ignore_index
    if not bad.any():
        return ''
    found = [str(one) for one in np.unique(values[bad])[:_MAX_LABELS]]
    return _('{values} with {classes} classes', values=found, classes=classes)


def _all_ignored(part: Part, subject: Subject) -> str:
    if (part.array != subject.expected.ignore_index).any():
        return ''
    return _('{count} pixels', count=part.array.size)


def _empty_mask(part: Part, subject: Subject) -> str:
    count = len(part.array)
    empty = count - int(np.sum(part.array.any(axis=(1, 2))))
    if not empty:
        return ''
    return _('{empty} of {count} masks', empty=empty, count=count)


def _sides(part: Part) -> np.ndarray:
    return part.array[:, 2:] - part.array[:, :2]


def _is_inverted(part: Part) -> Any:
    return (_sides(part) < 0).any(axis=1)


def _first_box(part: Part, found: Any) -> str:
    if not found.any():
        return ''
    first = part.array[int(found.argmax())].tolist()
    return _('{count}, first {box}', count=int(found.sum()), box=str(first))


def _channel_count(part: Part, subject: Subject) -> str:
    wanted = subject.expected.channels
    channels = next(n for one, n, __ in subject.images() if one is part)
    # A single mean applies to any number of channels.
    if wanted in (None, 1, channels):
        return ''
    fields = {'channels': channels, 'wanted': wanted}
    return _('{channels} channels, the model expects {wanted}', **fields)


def _map_shape(part: Part, subject: Subject) -> str:
    sizes = {size for *__, size in subject.images()}
    size = part.array.shape[-2:]
    if part.array.ndim < 2 or len(sizes) != 1 or size in sizes:
        return ''
    fields = {'size': size, 'image': next(iter(sizes))}
    return _('{size: x }, the image is {image: x }', **fields)


@dataclass(frozen=True)
class ProblemKind:
    """A kind of problem that samples have.

    Args:
        what (str): Description.
        why (str): Consequence.
        fix (str): Advice.
        applies (Callable): Whether to check a part for it. By default no part
            is checked: other code finds the problem.
        detail (Callable): Describes the problem of a part of a
            :class:`Subject`; '' if it has none.
    """

    what: str
    why: str
    fix: str
    applies: Callable[[Part], bool] = lambda part: False
    detail: Callable[[Part, Subject], str] = lambda part, subject: ''


# Training fails, or gives another result.
ERRORS = {
    'raises': ProblemKind(
        what='samples that raise an error',
        why='Training stops at the first of them.',
        fix='Fix or remove the file, or skip them with SkipSamples.',
    ),
    'non_finite': ProblemKind(
        what='NaN or Inf in the data',
        why='The loss becomes NaN, and so do the statistics of BatchNorm.',
        fix='Fix the files, or skip them with SkipSamples.',
        applies=lambda part: (
            part.array.dtype.kind == 'f' and part.array.size > 0
        ),
        detail=_non_finite,
    ),
    'label_range': ProblemKind(
        what='labels outside the class range (and not ignore_index)',
        why='A device-side assert far from its cause, or a NaN.',
        fix='Compare the classes of the dataset with the files; see '
        'reduce_zero_label, ignore_index and num_classes.',
        applies=_is_labels,
        detail=_label_range,
    ),
    'label_type': ProblemKind(
        what='labels that are not integers',
        why='A classification loss accepts integer labels only.',
        fix='Load them as integers.',
        applies=_is_labels,
        detail=lambda part, subject: (
            '' if part.array.dtype.kind in 'iub' else str(part.array.dtype)
        ),
    ),
    'inverted_box': ProblemKind(
        what='boxes with swapped corners',
        why='Their width or height is negative, and its logarithm NaN.',
        fix='Fix the annotations; are they x, y, width, height?',
        applies=_is_corners,
        detail=lambda part, subject: _first_box(part, _is_inverted(part)),
    ),
    'flat_box': ProblemKind(
        what='boxes with zero area',
        why='The logarithm of their size is infinite; IoU with them is 0/0.',
        fix='Fix the annotations, or filter by size (FilterAnnotations).',
        applies=_is_corners,
        detail=lambda part, subject: _first_box(
            part, (_sides(part) == 0).any(axis=1) & ~_is_inverted(part)
        ),
    ),
    'channel_count': ProblemKind(
        what='images with a wrong number of channels',
        why='The model raises an error, or takes a mask for a colour.',
        fix="Load them with color_type='color', or convert the files.",
        applies=_is_image,
        detail=_channel_count,
    ),
    'map_shape': ProblemKind(
        what='label maps of another size than their image',
        why='Pixels and labels do not correspond.',
        fix='Check that the same transforms resize and crop image and map.',
        applies=_is_label_map,
        detail=_map_shape,
    ),
    'leak': ProblemKind(
        what='samples that the other split contains, too',
        why='The metric is measured on training samples: it is too good.',
        fix='Remove them from one of the splits, or skip them in training '
        'with SkipSamples.',
    ),
}
WARNINGS = {
    'no_sample': ProblemKind(
        what='samples for which the pipeline returns None',
        why='mmengine silently trains on a random other sample instead.',
        fix='Find the transform that returns None, and decide whether you can '
        'do without these samples.',
    ),
    'all_ignored': ProblemKind(
        what='label maps in which every pixel is ignored',
        why='A mean loss over the other pixels is 0/0.',
        fix='Skip them, or keep labelled pixels in the crop (cat_max_ratio).',
        applies=_is_label_map,
        detail=_all_ignored,
    ),
    'empty_mask': ProblemKind(
        what='object masks without a pixel',
        why='A mean over the pixels of such a mask is 0/0.',
        fix='Remove such objects after cropping and resizing '
        '(FilterAnnotations).',
        applies=lambda part: (
            part.words[-1] in ('masks', 'gt_masks') and part.array.ndim == 3
        ),
        detail=_empty_mask,
    ),
    'no_boxes': ProblemKind(
        what='samples without a box',
        why='Some heads fail on them, others learn from background only.',
        fix='Filter them (filter_cfg=dict(filter_empty_gt=True)) unless you '
        'want them.',
        applies=lambda part: _is_empty(part) and 'bboxes' in part.path,
        detail=lambda part, subject: _('no box'),
    ),
    'no_points': ProblemKind(
        what='point clouds without a point',
        why='Voxel encoders fail on them, or take a mean of no values.',
        fix='Skip them, or widen point_cloud_range.',
        applies=lambda part: _is_empty(part) and 'points' in part.words,
        detail=lambda part, subject: _('no point'),
    ),
    'odd_layout': ProblemKind(
        what='samples with another dtype or number of dimensions than most',
        why='Batches may fail to stack, or change the precision.',
        fix='Convert all samples to one dtype in the pipeline.',
    ),
    'odd_size': ProblemKind(
        what='images of an unusual size',
        why='Batches are padded to the largest image, or fail to stack; a '
        'tiny one leaves no feature map.',
        fix='Look at the file, and at the resize and crop of the pipeline.',
    ),
    'duplicate': ProblemKind(
        what='samples with the same content as another',
        why='They count twice, and inflate the metric across splits.',
        fix='Remove all but one.',
    ),
    'dropped': ProblemKind(
        what='samples that are filtered out before training',
        why='They are never trained on, without a message: a video shorter '
        'than a chunk gives no sample at all.',
        fix='See filter_cfg, the minimum size and the chunk length.',
    ),
}
