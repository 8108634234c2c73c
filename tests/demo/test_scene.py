from __future__ import annotations

import numpy as np

from mmstable.demo import INK_THRESHOLD, DigitScans, compose_scene


def one_scan(label: int = 7) -> DigitScans:
    """An L of full ink, with a faint pixel in its corner."""
    image = np.zeros((1, 28, 28), np.uint8)
    image[0, 10:16, 12] = 255
    image[0, 15, 12:17] = 255
    image[0, 10, 16] = INK_THRESHOLD - 1
    return DigitScans(image, np.array([label]), np.array([0]))


def test_classes_are_the_ink_of_the_scan_wherever_it_was_put() -> None:
    _, classes = compose_scene(one_scan(), 40, 1, np.random.default_rng(3))

    rows, columns = np.nonzero(classes)
    box = classes[
        rows.min() : rows.max() + 1, columns.min() : columns.max() + 1
    ]
    expected = np.zeros((6, 5), np.uint8)
    expected[:, 0] = expected[5, :] = 8
    assert box.tolist() == expected.tolist()


def test_digits_are_brighter_than_what_is_around_them() -> None:
    image, classes = compose_scene(one_scan(), 40, 2, np.random.default_rng(0))

    brightness = image.mean(axis=2)
    assert brightness[classes > 0].min() > brightness[classes == 0].mean() + 30


def test_digits_do_not_overlap() -> None:
    _, classes = compose_scene(one_scan(), 28, 20, np.random.default_rng(0))

    ink_of_one = 6 + 4
    assert np.count_nonzero(classes) > 5 * ink_of_one
    assert np.count_nonzero(classes) % ink_of_one == 0


def test_a_digit_without_a_free_place_is_left_out() -> None:
    full = DigitScans(
        np.full((1, 28, 28), 255, np.uint8), np.array([0]), np.array([0])
    )
    _, classes = compose_scene(full, 28, 3, np.random.default_rng(0))

    assert (classes == 1).all()


def test_no_digits_give_background_only() -> None:
    image, classes = compose_scene(one_scan(), 40, 0, np.random.default_rng(0))

    assert not classes.any()
    assert image.shape == (40, 40, 3)
