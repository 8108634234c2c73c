"""What is wrong with one sample?  One small function for each check.

Each takes a :class:`Subject` and gives the problems that it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mmstable.messages import _
from mmstable.preflight.sample_parts import Part


class Problem(NamedTuple):
    """A problem of a sample.

    Args:
        id (str): Which check it was.
        place (str): Where in the sample.
        detail (str): What is there.
    """

    id: str
    place: str
    detail: str


@dataclass(frozen=True)
class Expected:
    """What is known about a data set.

    Args:
        num_classes (int, optional): How many classes there are. Defaults to
            None.
        ignore_index (int): The label of what does not count. Defaults to 255.
        channels (int, optional): Channels that the model wants. Defaults to
            None.
    """

    num_classes: int | None = None
    ignore_index: int = 255
    channels: int | None = None


@dataclass(frozen=True)
class Subject:
    """A sample, and what it should be like.

    Args:
        parts (list[Part]): Its arrays.
        expected (Expected): What is known about its data set.
    """

    parts: list[Part]
    expected: Expected

    def images(self) -> Iterator[tuple[Part, int, tuple[int, int]]]:
        """Pictures, with their channels, and their height and width."""
        for part in self.parts:
            shape = part.array.shape
            if not _is_image(part):
                continue
            if part.is_tensor:
                yield part, shape[0], shape[1:]
            else:
                channels = shape[2] if len(shape) == 3 else 1
                yield part, channels, shape[:2]

    def maps(self) -> Iterator[Part]:
        """Pictures of labels, one for each pixel or point."""
        return (part for part in self.parts if is_label_map(part))

    def boxes(self) -> Iterator[Part]:
        """Boxes with two corners."""
        return (part for part in self.parts if _is_boxes(part))


def _is_image(part: Part) -> bool:
    shape = part.array.shape
    named = part.words[-1] in ('inputs', 'img') or part.path == '0'
    if part.is_tensor:
        return named and len(shape) == 3
    return named and len(shape) in (2, 3)


def is_label_map(part: Part) -> bool:
    """Whether a part has the class of each pixel or point."""
    words = [
        word
        for word in part.words
        if 'sem_seg' in word
        or 'seg_map' in word
        or 'semantic' in word
        or word.endswith('pts_seg')
    ]
    return bool(words) and part.array.ndim > 0


def is_class_labels(part: Part) -> bool:
    """Whether a part has the classes of a sample, or of its objects."""
    name = part.words[-1]
    return (
        name in ('label', 'gt_label', 'labels', 'gt_labels', 'labels_3d')
        or name in ('gt_bboxes_labels', 'gt_labels_3d')
        or part.words[-2:] == ('gt_label', 'item')
    )


def _is_boxes(part: Part) -> bool:
    named = any(word in ('bboxes', 'gt_bboxes') for word in part.words)
    shape = part.array.shape
    return named and len(shape) == 2 and shape[1] == 4


def non_finite(subject: Subject) -> Iterator[Problem]:
    """NaN or Inf in pixels, points, boxes or whatever there is."""
    for part in subject.parts:
        if part.array.dtype.kind != 'f' or not part.array.size:
            continue
        bad = ~np.isfinite(part.array)
        if bad.any():
            kind = 'NaN' if np.isnan(part.array).any() else 'Inf'
            detail = _(
                '{bad} of {size} are {kind}',
                bad=int(bad.sum()),
                size=bad.size,
                kind=kind,
            )
            yield Problem('non_finite', part.path, detail)


def label_range(subject: Subject) -> Iterator[Problem]:
    """Labels that are no class, and not the one to ignore."""
    expected = subject.expected
    if expected.num_classes is None:
        return
    for part in subject.parts:
        if not (is_label_map(part) or is_class_labels(part)):
            continue
        values = part.array
        if values.dtype.kind not in 'iu' or not values.size:
            continue
        bad = (values < 0) | (values >= expected.num_classes)
        bad &= values != expected.ignore_index
        if bad.any():
            detail = _(
                '{values} with {classes} classes',
                values=[str(one) for one in np.unique(values[bad])[:5]],
                classes=expected.num_classes,
            )
            yield Problem('label_range', part.path, detail)


def label_type(subject: Subject) -> Iterator[Problem]:
    """Labels of pixels or classes that are no whole numbers."""
    for part in subject.parts:
        if is_label_map(part) or is_class_labels(part):
            if part.array.dtype.kind in 'iub':
                continue
            yield Problem('label_type', part.path, str(part.array.dtype))


def all_ignored(subject: Subject) -> Iterator[Problem]:
    """Maps of which no pixel counts: a mean over these is 0/0."""
    for part in subject.maps():
        if (part.array == subject.expected.ignore_index).all():
            detail = _('{count} pixels', count=part.array.size)
            yield Problem('all_ignored', part.path, detail)


def empty_mask(subject: Subject) -> Iterator[Problem]:
    """Masks of objects that have no pixel."""
    for part in subject.parts:
        if part.words[-1] not in ('masks', 'gt_masks') or part.array.ndim != 3:
            continue
        filled = part.array.any(axis=(1, 2))
        if not np.all(filled):
            empty = len(part.array) - int(np.sum(filled))
            detail = _(
                '{empty} of {count} masks',
                empty=empty,
                count=len(part.array),
            )
            yield Problem('empty_mask', part.path, detail)


def no_boxes(subject: Subject) -> Iterator[Problem]:
    """Samples of a detector without an object."""
    for part in subject.parts:
        named = any('bboxes' in word for word in part.words)
        if named and part.array.ndim == 2 and len(part.array) == 0:
            detail = _('no box')
            yield Problem('no_boxes', part.path, detail)


def bad_boxes(subject: Subject) -> Iterator[Problem]:
    """Boxes without an area, or with their corners exchanged."""
    for part in subject.boxes():
        sides = part.array[:, 2:] - part.array[:, :2]
        inverted = (sides < 0).any(axis=1)
        flat = (sides == 0).any(axis=1) & ~inverted
        for name, found in (('inverted_box', inverted), ('flat_box', flat)):
            if found.any():
                first = part.array[int(found.argmax())].tolist()
                detail = _(
                    '{count}, first {box}',
                    count=int(found.sum()),
                    box=str(first),
                )
                yield Problem(name, part.path, detail)


def no_points(subject: Subject) -> Iterator[Problem]:
    """Point clouds without a point."""
    for part in subject.parts:
        named = 'points' in part.words
        if named and part.array.ndim == 2 and len(part.array) == 0:
            detail = _('no point')
            yield Problem('no_points', part.path, detail)


def channel_count(subject: Subject) -> Iterator[Problem]:
    """Pictures that the data preprocessor has not enough means for."""
    wanted = subject.expected.channels
    # With one mean, it is the same for all channels.
    if wanted in (None, 1):
        return
    for part, channels, __ in subject.images():
        if channels != wanted:
            detail = _(
                '{channels} channels, the model wants {wanted}',
                channels=channels,
                wanted=wanted,
            )
            yield Problem('channel_count', part.path, detail)


def map_shape(subject: Subject) -> Iterator[Problem]:
    """Maps that do not have the size of their picture."""
    sizes = {size for *__, size in subject.images()}
    for part in subject.maps():
        if part.array.ndim < 2 or len(sizes) != 1:
            continue
        size = part.array.shape[-2:]
        if size not in sizes:
            detail = _(
                '{size}, the picture is {picture}',
                size=size_text(size),
                picture=size_text(*sizes),
            )
            yield Problem('map_shape', part.path, detail)


def size_text(size: tuple[int, ...]) -> str:
    """A size as '512 x 683'."""
    return ' x '.join(map(str, size))


CHECKS: tuple[Callable[[Subject], Iterator[Problem]], ...] = (
    non_finite,
    label_range,
    label_type,
    all_ignored,
    empty_mask,
    no_boxes,
    bad_boxes,
    no_points,
    channel_count,
    map_shape,
)


def check_sample(subject: Subject) -> list[Problem]:
    """The problems that all checks see in a sample."""
    return [problem for check in CHECKS for problem in check(subject)]
