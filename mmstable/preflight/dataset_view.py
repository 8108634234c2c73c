"""Look at a data set as what it is made of, without changing it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from mmengine.dataset import (
    BaseDataset,
    ClassBalancedDataset,
    ConcatDataset,
    RepeatDataset,
)
from torch.utils.data import ConcatDataset as TorchConcatDataset

from mmstable.preflight.sample_parts import identity_of

# They give the samples of another data set, some of them several times.
_REPEATING = (RepeatDataset, ClassBalancedDataset)
_CONCATENATING = (ConcatDataset, TorchConcatDataset)


def without_repeats(dataset: Any) -> Any:
    """The data set inside of wrappers that only repeat samples."""
    while type(dataset) in _REPEATING:
        dataset = dataset.dataset
    return dataset


def leaves_of(dataset: Any) -> Iterator[Any]:
    """The data sets that a concatenation is made of; or that one itself."""
    if type(dataset) in _CONCATENATING:
        for one in dataset.datasets:
            yield from leaves_of(one)
    else:
        yield dataset


def load(dataset: Any) -> None:
    """Have a data set read its annotations, if it has not yet."""
    if hasattr(dataset, 'full_init'):
        dataset.full_init()


def read_sample(dataset: Any, index: int) -> Any:
    """The sample of an index, and not another one in its place.

    In training, a data set of mmengine replaces a sample that its pipeline
    gives up on by one at random.

    Returns:
        Any: None if the pipeline gives up on it.
    """
    leaf, index = _locate(dataset, index)
    # One that has its own way of getting samples is asked as training does.
    if type(leaf).__getitem__ is BaseDataset.__getitem__:
        return leaf.prepare_data(index)
    return leaf[index]


def facts_of(dataset: Any, index: int) -> dict[str, Any]:
    """What a data set knows of a sample before its pipeline runs."""
    leaf, index = _locate(dataset, index)
    if not hasattr(leaf, 'get_data_info'):
        return {}
    facts = leaf.get_data_info(index)
    return facts if isinstance(facts, dict) else {}


def name_of(dataset: Any, index: int) -> str:
    """What a sample is called, as 'img_path=a/b.png', or ''."""
    return identity_of(facts_of(dataset, index))


def _locate(dataset: Any, index: int) -> tuple[Any, int]:
    if type(dataset) not in _CONCATENATING:
        return dataset, index
    number = bisect_right(dataset.cumulative_sizes, index)
    before = dataset.cumulative_sizes[number - 1] if number else 0
    return _locate(dataset.datasets[number], index - before)
