from __future__ import annotations

import numpy as np
import pytest

from mmstable.demo import load_digit_scans


@pytest.mark.soak
def test_no_scan_is_in_both_splits() -> None:
    train, val = load_digit_scans('train'), load_digit_scans('val')

    # Counted first: pytest takes minutes to print sets of pictures.
    shared_ids = np.intersect1d(train.ids, val.ids).size
    pixels = {image.tobytes() for image in train.images}
    shared_pixels = sum(image.tobytes() in pixels for image in val.images)
    assert (shared_ids, shared_pixels) == (0, 0)


@pytest.mark.parametrize('split, each', [('train', 450), ('val', 50)])
def test_splits_are_balanced(split: str, each: int) -> None:
    scans = load_digit_scans(split)

    assert np.bincount(scans.labels).tolist() == [each] * 10
    assert scans.images.shape == (10 * each, 28, 28)
    assert scans.images.dtype == np.uint8
    assert scans.images.max() == 255


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="`split` must be .* got 'test'"):
        load_digit_scans('test')
