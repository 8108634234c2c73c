from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmstable.demo import DigitScenes


def scene(index: int = 3, split: str = 'val', **kwargs: Any) -> dict[str, Any]:
    return DigitScenes(split, num_scenes=5, **kwargs)[index]


def test_a_scene_depends_on_seed_split_and_index_only() -> None:
    first = scene()
    np.random.seed(5)
    again = scene()

    assert np.array_equal(first['img'], again['img'])
    assert np.array_equal(first['gt_seg_map'], again['gt_seg_map'])


@pytest.mark.parametrize(
    'changes', [dict(index=4), dict(seed=1), dict(split='train')], ids=str
)
def test_another_scene_is_different(changes: dict[str, Any]) -> None:
    first, other = scene(), scene(**changes)

    assert not np.array_equal(first['gt_seg_map'], other['gt_seg_map'])


def test_a_subset_keeps_its_scenes() -> None:
    subset = DigitScenes('val', num_scenes=5, indices=[3])

    assert np.array_equal(subset[0]['img'], scene(3)['img'])


def test_keys_of_a_scene() -> None:
    record = scene(size=48)

    assert record['img'].shape == (48, 48, 3)
    assert record['gt_seg_map'].shape == (48, 48)
    assert record['img_shape'] == record['ori_shape'] == (48, 48)
    assert record['scene_id'] == record['sample_idx'] == 3


def test_classes_are_named() -> None:
    dataset = DigitScenes('val')

    assert len(dataset) == 1000
    assert dataset.metainfo['classes'][:3] == ('background', '0', '1')
    seen = np.unique([dataset[index]['gt_seg_map'] for index in range(50)])
    assert seen.tolist() == list(range(len(dataset.metainfo['classes'])))


def test_the_scoped_name_is_enough() -> None:
    dataset = DATASETS.build(
        dict(type='mmstable.DigitScenes', split='val', num_scenes=2)
    )

    assert isinstance(dataset, DigitScenes)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(split='test'), "`split` must be one of .* got 'test'"),
        (
            dict(num_scenes=0),
            '`num_scenes` must be an int .* got 0',
        ),
        (dict(size=27), '`size` must be an int of at least 28, got 27'),
        (dict(num_digits=(3, 2)), r'`num_digits` must be .* got \(3, 2\)'),
        (dict(num_digits=(1,)), r'`num_digits` must be .* got \(1,\)'),
        (dict(num_digits=(-1, 2)), r'`num_digits` must be .* got \(-1, 2\)'),
        (dict(seed=-1), '`seed` must be an int of at least 0, got -1'),
    ],
    ids=str,
)
def test_bad_settings_are_refused(
    kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f'DigitScenes: {message}'):
        DigitScenes(**{'split': 'val', **kwargs})
