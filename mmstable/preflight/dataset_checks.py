"""What only shows when samples are compared with each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from statistics import median
from typing import Any

from mmengine.dataset import BaseDataset

from mmstable.messages import _
from mmstable.preflight.dataset_view import leaves_of
from mmstable.preflight.sample_checks import Problem, size_text
from mmstable.preflight.sample_parts import identity_of
from mmstable.preflight.sample_report import SampleReport

# Below that, no layout is the usual one.
_MAJORITY = 0.5
# From that on, another size is a surprise.
_NEARLY_ALL = 0.9
# A side that is so many times longer or shorter than most is one anyway.
_FAR = 8.0
# Names of dropped samples that are kept.
_MOST_DROPPED = 10_000


def compare_samples(reports: Sequence[SampleReport]) -> list[SampleReport]:
    """The same reports, with problems that a comparison shows.

    Args:
        reports (Sequence[SampleReport]): Of all samples.
    """
    more: dict[int, list[Problem]] = defaultdict(list)
    found = chain(
        _odd_layouts(reports), _odd_sizes(reports), _duplicates(reports)
    )
    for index, problem in found:
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
                detail = _(
                    '{found}; usually {usual}', found=layout, usual=common
                )
                yield one.index, Problem('odd_layout', path, detail)


def _odd_sizes(
    reports: Sequence[SampleReport],
) -> Iterator[tuple[int, Problem]]:
    """Pictures of another size, where nearly all have the same.

    Where sizes differ anyway, those that are far from all others.
    """
    sizes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for one in reports:
        for path, size in one.sizes.items():
            sizes[path].append(size)
    usual = {path: _usual_size(those) for path, those in sizes.items()}
    for one in reports:
        for path, size in one.sizes.items():
            typical, farthest = usual[path]
            ratios = [a / b for a, b in zip(size, typical) if b]
            if any(not 1 / farthest <= r <= farthest for r in ratios):
                detail = _(
                    '{found}; usually {usual}',
                    found=size_text(size),
                    usual=size_text(typical),
                )
                yield one.index, Problem('odd_size', path, detail)


def _usual_size(
    sizes: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int], float]:
    """The usual height and width, and the largest usual ratio to them."""
    common, count = Counter(sizes).most_common(1)[0]
    if count >= _NEARLY_ALL * len(sizes):
        return common, 1.0
    heights, widths = zip(*sizes)
    return (int(median(heights)), int(median(widths))), _FAR


def leaks(
    reports: Sequence[SampleReport], others: Sequence[SampleReport]
) -> list[SampleReport]:
    """The same reports, with the samples that are in another split, too.

    Args:
        reports (Sequence[SampleReport]): Of all samples.
        others (Sequence[SampleReport]): Of all samples of the other split.
    """
    known = {one.content: one for one in others if one.content}
    return [
        replace(one, problems=(*one.problems, _leak(known[one.content])))
        if one.content in known
        else one
        for one in reports
    ]


def _leak(other: SampleReport) -> Problem:
    name = other.name or f'index {other.index}'
    return Problem('leak', '', _('like {name}', name=name))


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
        detail = _('like {name}', name=name)
        yield one.index, Problem('duplicate', '', detail)


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
