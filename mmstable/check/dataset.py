"""Access the samples of a dataset by index; skip the bad ones.

``SkipSamples`` is a dataset without the samples of a list, which
``mmstable check-data`` writes.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mmengine.dataset import (
    BaseDataset,
    ClassBalancedDataset,
    ConcatDataset,
    RepeatDataset,
)
from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.structures import BaseDataElement
from torch.utils.data import ConcatDataset as TorchConcatDataset
from torch.utils.data import Dataset

from mmstable.io.files import read_bounded, replace_text
from mmstable.io.schema import integer, parse_json
from mmstable.registry import DATASETS, register_globally
from mmstable.settings import text

_MAX_DEPTH = 8
# Suffixes of facts that identify a sample, the best first.
_IDENTITIES = ('_path', 'filename', 'file_name', 'img_id', '_id', '_idx')


def identity_of(facts: Any) -> str:
    """Return the name of a sample, as 'img_path=a/b.png'; '' if unknown.

    Args:
        facts (Any): The facts of the dataset, or the output of the pipeline.
    """
    known = dict(_facts(facts, _MAX_DEPTH))
    for end in _IDENTITIES:
        for name, value in known.items():
            if name.endswith(end) and name != 'sample_idx':
                return f'{name}={value}'
    return ''


def _facts(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth == 0:
        return
    if isinstance(value, BaseDataElement):
        held = list(value.metainfo_items())
    elif isinstance(value, Mapping):
        held = [(str(name), one) for name, one in value.items()]
    else:
        return
    for name, one in held:
        if isinstance(one, (str, int)) and not isinstance(one, bool):
            yield name, one
        else:
            yield from _facts(one, depth - 1)


# These repeat samples of another dataset.
_REPEATING = (RepeatDataset, ClassBalancedDataset)
_CONCATENATING = (ConcatDataset, TorchConcatDataset)


def without_repeats(dataset: Any) -> Any:
    """Return the dataset inside wrappers that only repeat samples."""
    while type(dataset) in _REPEATING:
        dataset = dataset.dataset
    return dataset


def leaves_of(dataset: Any) -> Iterator[Any]:
    """Yield the datasets of a concatenation, or the dataset itself."""
    if type(dataset) in _CONCATENATING:
        for one in dataset.datasets:
            yield from leaves_of(one)
    else:
        yield dataset


def load(dataset: Any) -> None:
    """Load the annotations of a dataset, unless that is done."""
    if hasattr(dataset, 'full_init'):
        dataset.full_init()


def read_sample(dataset: Any, index: int) -> Any:
    """Return the sample of an index, never a replacement.

    In training, mmengine's datasets replace a sample for which the pipeline
    returns None by a random one.

    Returns:
        Any: The output of the pipeline, which may be None.
    """
    leaf, index = _locate(dataset, index)
    # A custom `__getitem__` is called as in training.
    if type(leaf).__getitem__ is BaseDataset.__getitem__:
        return leaf.prepare_data(index)
    return leaf[index]


def facts_of(dataset: Any, index: int) -> dict[str, Any]:
    """Return the facts of a sample before its pipeline runs."""
    leaf, index = _locate(dataset, index)
    if not hasattr(leaf, 'get_data_info'):
        return {}
    facts = leaf.get_data_info(index)
    return facts if isinstance(facts, dict) else {}


def _locate(dataset: Any, index: int) -> tuple[Any, int]:
    if type(dataset) not in _CONCATENATING:
        return dataset, index
    number = bisect_right(dataset.cumulative_sizes, index)
    before = dataset.cumulative_sizes[number - 1] if number else 0
    return _locate(dataset.datasets[number], index - before)


_MAX_DROPPED = 10_000


def dropped_samples(dataset: Any) -> Iterator[str]:
    """Yield samples that the dataset filtered out when it was loaded."""
    for leaf in leaves_of(dataset):
        yield from _dropped_by_filter(leaf)
        yield from _without_samples(leaf)


def _dropped_by_filter(leaf: Any) -> Iterator[str]:
    if not isinstance(leaf, BaseDataset):
        return
    if type(leaf).filter_data is BaseDataset.filter_data:
        return
    # mmengine keeps no record of dropped samples: load the list again.
    before = Counter(map(_key, leaf.load_data_list()))
    after = Counter(_key(leaf.get_data_info(i)) for i in range(len(leaf)))
    if len(leaf) < sum(before.values()):
        yield from list((before - after).elements())[:_MAX_DROPPED]


def _key(facts: Any) -> str:
    known = {k: v for k, v in facts.items() if k != 'sample_idx'}
    return identity_of(known) or repr(sorted(known.items()))[:200]


def _without_samples(leaf: Any) -> Iterator[str]:
    """Yield sources that a list of samples never refers to.

    Many datasets cut videos, scans or demonstrations into samples, and keep
    a list of (source, position) next to the list of sources. A source that
    is too short for one sample has no entry in it.
    """
    lists = {
        name: value
        for name, value in vars(leaf).items()
        if isinstance(value, (list, tuple)) and len(value) > 0
    }
    for name, table in lists.items():
        if len(table) != len(leaf) or not all(map(_is_position, table)):
            continue
        used = {source for source, *__ in table}
        for other, sources in lists.items():
            fits = 0 <= min(used) <= max(used) < len(sources)
            if other != name and fits and len(used) > 1:
                for index in sorted({*range(len(sources))} - used):
                    yield f'{other}[{index}]'


def _is_position(entry: Any) -> bool:
    is_pair = isinstance(entry, (list, tuple)) and len(entry) >= 2
    return is_pair and type(entry[0]) is int


_MAX_BYTES = 1 << 28
_VERSION = 1


def write_skip_list(
    path: Path,
    length: int,
    samples: Sequence[tuple[int, str, Sequence[str]]],
) -> None:
    """Write a skip list.

    Args:
        path (Path): The file.
        length (int): Number of samples in the dataset.
        samples (Sequence): Index, name and reasons of each sample to skip.
    """
    content = {
        'skip_list': _VERSION,
        'length': length,
        'samples': [
            {'index': index, 'name': name, 'reasons': list(reasons)}
            for index, name, reasons in samples
        ],
    }
    lines = json.dumps(content, indent=1, ensure_ascii=False)
    replace_text(path, f'{lines}\n')


def skip_samples(
    dataset: Any, path: Path, indices: Iterable[int], reason: str
) -> Path:
    """Write a skip list with some samples of a dataset; return the file.

    Args:
        dataset (Dataset): The dataset.
        path (Path): The file.
        indices (Iterable[int]): The samples to skip.
        reason (str): Why.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        (index, identity_of(facts_of(dataset, index)), [reason])
        for index in sorted(indices)
    ]
    write_skip_list(path, len(dataset), rows)
    return path


def read_skip_list(path: Path) -> tuple[int, dict[int, str]]:
    """Read a skip list.

    Returns:
        tuple: Number of samples in the dataset, and from the indices of the
        samples to skip to their names.

    Raises:
        ValueError: If the file is not a skip list.
        OSError: If it cannot be read.
    """
    content = parse_json(read_bounded(path, _MAX_BYTES), _MAX_BYTES)
    if not isinstance(content, Mapping) or 'skip_list' not in content:
        raise ValueError('not a skip list of `mmstable check-data`')
    if content['skip_list'] != _VERSION:
        raise ValueError('written by a newer mmstable')
    try:
        length = _index(content.get('length'))
        return length, dict(_entry(one, length) for one in content['samples'])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'damaged ({error})') from error


_index = integer(least=0)


def _entry(sample: Mapping[str, Any], length: int) -> tuple[int, str]:
    index, name = _index(sample['index']), sample['name']
    if index >= length or not isinstance(name, str):
        raise ValueError(f'sample {index} of {length}')
    return index, name


@register_globally(DATASETS)
class SkipSamples(Dataset):
    """Another dataset without the samples of a skip list.

    ``mmstable check-data CONFIG --write-skip-list FILE`` writes the list. It
    is refused for a dataset of another length or with other names.

    Args:
        dataset (dict or Dataset): The dataset, or its config.
        skip_list (str): The file with the list.
    """

    def __init__(self, dataset: Any, skip_list: str) -> None:
        if isinstance(dataset, dict):
            dataset = ROOT_DATASETS.build(dataset)
        self.dataset = dataset
        self.skip_list = text('SkipSamples', 'skip_list', skip_list)
        self._kept: list[int] | None = None
        self.full_init()

    @property
    def metainfo(self) -> dict[str, Any]:
        """The metainfo of the inner dataset."""
        return dict(getattr(self.dataset, 'metainfo', {}))

    def full_init(self) -> None:
        """Load the annotations, and compare them with the list."""
        if self._kept is not None:
            return
        load(self.dataset)
        try:
            length, skipped = read_skip_list(Path(self.skip_list))
        except (OSError, ValueError) as error:
            self._refuse(f'cannot be used: {error}.', error)
        if length != len(self.dataset):
            self._refuse(
                f'does not fit: it has {length} samples, the dataset '
                f'{len(self.dataset)}. Run `mmstable check-data` again.'
            )
        for index, name in skipped.items():
            known = identity_of(facts_of(self.dataset, index))
            if name and known and name != known:
                self._refuse(
                    f'does not fit: sample {index} is {known!r}, not {name!r} '
                    'as in the list. Run `mmstable check-data` again.'
                )
        self._kept = [i for i in range(length) if i not in skipped]

    def _refuse(
        self, reason: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise ValueError(
            f"SkipSamples: `skip_list` '{self.skip_list}' {reason}"
        ) from cause

    def original_index(self, index: int) -> int:
        """Return the index of a sample in the inner dataset."""
        self.full_init()
        return (self._kept or [])[index]

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Return the facts that the inner dataset has about a sample."""
        return self.dataset.get_data_info(self.original_index(idx))

    def get_cat_ids(self, idx: int) -> list[int]:
        """Return the classes in a sample."""
        return self.dataset.get_cat_ids(self.original_index(idx))

    def __len__(self) -> int:
        return len(self._kept or [])

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.original_index(index)]
