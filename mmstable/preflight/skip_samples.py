"""The data set that leaves out what ``mmstable check-data`` has found bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.registry import DATASETS as ROOT_DATASETS
from torch.utils.data import Dataset

from mmstable.preflight.dataset_view import load, name_of
from mmstable.preflight.skip_list import read_skip_list
from mmstable.registry import DATASETS, register_globally
from mmstable.settings import text

_NAME = 'SkipSamples'


@register_globally(DATASETS)
class SkipSamples(Dataset):
    """Another data set without the samples of a list.

    The list is made by ``mmstable check-data CONFIG --write-skip-list FILE``.
    It fits the data set that it was made for: another length or other names
    are refused.

    Args:
        dataset (dict or Dataset): The data set, or its config.
        skip_list (str): The file with the list.
    """

    def __init__(self, dataset: Any, skip_list: str) -> None:
        if isinstance(dataset, dict):
            dataset = ROOT_DATASETS.build(dataset)
        self.dataset = dataset
        self.skip_list = text(_NAME, 'skip_list', skip_list)
        self._kept: list[int] | None = None
        self.full_init()

    @property
    def metainfo(self) -> dict[str, Any]:
        """That of the data set."""
        return dict(getattr(self.dataset, 'metainfo', {}))

    def full_init(self) -> None:
        """Read the annotations, and compare them with the list."""
        if self._kept is not None:
            return
        load(self.dataset)
        try:
            length, skipped = read_skip_list(Path(self.skip_list))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{_NAME}: `skip_list` '{self.skip_list}' cannot be used: "
                f'{error}.'
            ) from error
        self._check(length, skipped)
        self._kept = [i for i in range(length) if i not in skipped]

    def _check(self, length: int, skipped: dict[int, str]) -> None:
        if length != len(self.dataset):
            self._refuse(
                f'it was made for {length} samples, the data set has '
                f'{len(self.dataset)}'
            )
        for index, name in skipped.items():
            known = name_of(self.dataset, index)
            if name and known and name != known:
                self._refuse(f'sample {index} was {name!r}, is {known!r}')

    def _refuse(self, reason: str) -> None:
        raise ValueError(
            f"{_NAME}: `skip_list` '{self.skip_list}' does not fit: {reason}. "
            'Make it again with `mmstable check-data`.'
        )

    def original_index(self, index: int) -> int:
        """The index of a sample in the data set inside."""
        self.full_init()
        return (self._kept or [])[index]

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """What the data set knows of a sample."""
        return self.dataset.get_data_info(self.original_index(idx))

    def get_cat_ids(self, idx: int) -> list[int]:
        """The classes in a sample."""
        return self.dataset.get_cat_ids(self.original_index(idx))

    def __len__(self) -> int:
        return len(self._kept or [])

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.original_index(index)]
