"""What only shows when samples are compared with each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mmengine.dataset import BaseDataset

from mmstable.preflight.dataset_view import leaves_of
from mmstable.preflight.sample_checks import Problem
from mmstable.preflight.sample_parts import identity_of
from mmstable.preflight.sample_report import SampleReport

# Below that, no layout is the usual one.
_MAJORITY = 0.5
# Names of dropped samples that are kept.
_MOST_DROPPED = 10_000


def compare_samples(reports: Sequence[SampleReport]) -> list[SampleReport]:
    """The same reports, with problems that a comparison shows.

    Args:
        reports (Sequence[SampleReport]): Of all samples.
    """
    more: dict[int, list[Problem]] = defaultdict(list)
    for index, problem in [*_odd_layouts(reports), *_duplicates(reports)]:
        more[index].append(problem)
    return [
        replace(one, problems=(*one.problems, *more[one.index]))
        for one in reports
    ]


def _odd_layouts(
    reports: Sequence[SampleReport],
) -> Iterator[tuple[int, Problem]]:
    layouts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in reports:
        for path, layout in one.layout.items():
            layouts[path][layout] += 1
    usual = {path: found.most_common(1)[0] for path, found in layouts.items()}
    for one in reports:
        for path, layout in one.layout.items():
            common, count = usual[path]
            total = sum(layouts[path].values())
            if layout != common and count > _MAJORITY * total:
                detail = f'{layout}; usually {common}'
                yield one.index, Problem('odd_layout', path, detail)


def _duplicates(
    reports: Sequence[SampleReport],
) -> Iterator[tuple[int, Problem]]:
    first: dict[str, SampleReport] = {}
    for one in reports:
        if not one.content:
            continue
        other = first.setdefault(one.content, one)
        # Several samples of one file, as of a film, are no duplicates.
        same_files = _files_of(one) and _files_of(one) == _files_of(other)
        if other is one or (same_files and one.source != other.source):
            continue
        name = other.name or f'index {other.index}'
        yield one.index, Problem('duplicate', '', f'like {name}')


def _files_of(report: SampleReport) -> str:
    return report.source.partition('\n')[0]


def dropped_samples(dataset: Any) -> Iterator[str]:
    """What was filtered out before anybody could ask for it.

    Args:
        dataset (Any): The data set.
    """
    for leaf in leaves_of(dataset):
        yield from _dropped_by_filter(leaf)
        yield from _without_samples(leaf)


def _dropped_by_filter(leaf: Any) -> Iterator[str]:
    if not isinstance(leaf, BaseDataset):
        return
    if type(leaf).filter_data is BaseDataset.filter_data:
        return
    # It keeps no record of what it has dropped, so all is read once more.
    before = Counter(map(_key, leaf.load_data_list()))
    after = Counter(_key(leaf.get_data_info(i)) for i in range(len(leaf)))
    if len(leaf) < sum(before.values()):
        yield from list((before - after).elements())[:_MOST_DROPPED]


def _key(facts: Any) -> str:
    known = {k: v for k, v in facts.items() if k != 'sample_idx'}
    return identity_of(known) or repr(sorted(known.items()))[:200]


def _without_samples(leaf: Any) -> Iterator[str]:
    """Sources that a list of samples never refers to.

    Many data sets cut films, scans or demonstrations into samples, and keep
    a list of (source, position) besides that of the sources. A source that
    is too short for one sample is in no entry of it.
    """
    lists = {
        name: value
        for name, value in vars(leaf).items()
        if isinstance(value, (list, tuple)) and len(value) > 0
    }
    for name, table in lists.items():
        used = _first_column(table) if len(table) == _length(leaf) else None
        if used is None:
            continue
        for other, sources in lists.items():
            if other != name and _is_source(sources, used):
                yield from (
                    f'{other}[{index}]'
                    for index in range(len(sources))
                    if index not in used
                )


def _length(leaf: Any) -> int:
    try:
        return len(leaf)
    except TypeError:
        return -1


def _first_column(table: Iterable[Any]) -> set[int] | None:
    """The numbers that all entries begin with; None if they do not."""
    used = set()
    for entry in table:
        if not isinstance(entry, (list, tuple)) or len(entry) < 2:
            return None
        if not isinstance(entry[0], int) or isinstance(entry[0], bool):
            return None
        used.add(entry[0])
    return used


def _is_source(sources: Sequence[Any], used: set[int]) -> bool:
    return min(used) >= 0 and max(used) < len(sources) and len(used) > 1
