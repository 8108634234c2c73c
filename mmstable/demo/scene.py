"""How scans of single digits become one picture with a class per pixel."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from mmstable.demo.digit_scans import DigitScans

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
    """The part of a scan that holds its ink."""
    rows, columns = (np.flatnonzero(scan.any(axis)) for axis in (1, 0))
    return scan[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _free_place(
    taken: np.ndarray, shape: tuple[int, ...], rng: Generator
) -> tuple[slice, slice] | None:
    """A random box of this shape that nothing has been put into."""
    height, width = shape
    for _ in range(_PLACING_TRIES):
        top = rng.integers(taken.shape[0] - height + 1)
        left = rng.integers(taken.shape[1] - width + 1)
        place = slice(top, top + height), slice(left, left + width)
        if not taken[place].any():
            return place
    return None
