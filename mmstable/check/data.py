"""Check a dataset: run its pipeline, compare samples, list the problems.

The workers of a data loader turn each sample into a small report.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from statistics import median
from typing import Any, Callable

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from mmstable.check.dataset import (
    dropped_samples,
    facts_of,
    identity_of,
    read_sample,
)
from mmstable.check.sample_checks import (
    ERRORS,
    WARNINGS,
    Expected,
    Part,
    Problem,
    Subject,
    parts_of,
)
from mmstable.errors import MMStableError
from mmstable.finding import Finding, Severity
from mmstable.messages import _

# Files with these words in their names hold labels, not content.
_LABEL_WORDS = ('seg', 'ann', 'label', 'mask', 'gt')
_MAX_DETAIL = 300


@dataclass(frozen=True)
class SampleReport:
    """Facts about a sample; small even for a large sample.

    Args:
        index (int): Index in the dataset.
        name (str): Name, or ''.
        problems (tuple[Problem]): Problems of the sample.
        layout (Mapping): Paths of its arrays to types and dimensions, which
            all samples should share.
        sizes (Mapping): Paths of its images to heights and widths.
        milliseconds (float): Time that the pipeline took.
        size (int): Bytes of its arrays.
        content (str): Digest of its files or inputs; '' if there are none.
        files (tuple[str]): Files that it is read from.
        facts (str): Digest of all facts that the dataset has about it.
    """

    index: int
    name: str
    problems: tuple[Problem, ...]
    layout: Mapping[str, tuple[str]]
    sizes: Mapping[str, tuple[int, int]]
    milliseconds: float
    size: int
    content: str
    files: tuple[str, ...]
    facts: str


class ReportDataset(Dataset):
    """A dataset of reports instead of samples.

    Args:
        dataset (Any): The dataset.
        indices (Sequence[int]): The samples to check.
        expected (Expected): Properties that samples should have.
        seed (int): Seed of the pipelines, set for each sample.
    """

    def __init__(
        self,
        dataset: Any,
        indices: Sequence[int],
        expected: Expected,
        seed: int,
    ) -> None:
        self._dataset = dataset
        self._indices = indices
        self._expected = expected
        self._seed = seed

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, number: int) -> SampleReport:
        index = self._indices[number]
        # The same in every worker and in every order.
        _seed_all(self._seed + index)
        problems: list[Problem] = []
        try:
            facts = facts_of(self._dataset, index)
        except Exception:
            # Reading the sample fails as well, which is reported.
            facts = {}
        sample = None
        start = time.perf_counter()
        try:
            sample = read_sample(self._dataset, index)
            if sample is None:
                text = _('the pipeline returns None')
                problems.append(Problem('no_sample', '', text))
        except Exception as error:
            problems.append(_raised(error))
        spent = 1e3 * (time.perf_counter() - start)
        parts = parts_of(sample)
        if isinstance(sample, (list, tuple)):
            sample = dict(enumerate(sample))
        subject = Subject(parts, self._expected)
        files = _files(facts)
        return SampleReport(
            index=index,
            name=identity_of(facts) or identity_of(sample),
            problems=(*problems, *subject.problems()),
            layout={
                path: (f'{array.dtype} {array.ndim}-d',)
                for path, array, __ in parts
            },
            sizes={part.path: size for part, __, size in subject.images()},
            milliseconds=spent,
            size=sum(part.array.nbytes for part in parts),
            content=_content(files, parts),
            files=tuple(files),
            facts=_digest_facts(facts),
        )


def _seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _raised(error: Exception) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    where = f'{frames[-1].filename}:{frames[-1].lineno}' if frames else ''
    text = ' '.join(f'{type(error).__name__}: {error}'.split())
    return Problem('raises', where, text[:_MAX_DETAIL])


def _content(files: list[str], parts: list[Part]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        with open(path, 'rb') as file:
            while block := file.read(1 << 20):
                digest.update(block)
    if files:
        return digest.hexdigest()
    inputs = [p for p in parts if p.words[0] in ('inputs', 'img', '0')]
    # A single number does not identify a sample.
    if all(part.array.size < 2 for part in inputs):
        return ''
    for part in inputs:
        digest.update(f'{part.array.dtype}{part.array.shape}'.encode())
        digest.update(np.ascontiguousarray(part.array).tobytes())
    return digest.hexdigest()


def _files(facts: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found += _files(value)
        elif (
            name.endswith('_path')
            and isinstance(value, str)
            and not any(word in name for word in _LABEL_WORDS)
            and os.path.isfile(value)
        ):
            found.append(value)
    return found


def _digest_facts(facts: Mapping[str, Any]) -> str:
    known = {k: v for k, v in facts.items() if k != 'sample_idx'}
    try:
        return hashlib.blake2b(pickle.dumps(known), digest_size=16).hexdigest()
    except Exception:
        return ''


# A layout of more than this share of the samples is the usual one.
_MAJORITY = 0.5
# If this share of the images has one size, every other size is unusual.
_NEARLY_ALL = 0.9
# A side this many times longer or shorter than the median is unusual.
_MAX_RATIO = 8.0


def compare_samples(reports: Sequence[SampleReport]) -> list[SampleReport]:
    """Return the reports with the problems that a comparison shows.

    Args:
        reports (Sequence[SampleReport]): Reports of all samples.
    """
    more: dict[int, list[Problem]] = defaultdict(list)
    found = chain(
        _odd(reports, 'odd_layout', attrgetter('layout'), _usual_layout),
        _odd(reports, 'odd_size', attrgetter('sizes'), _usual_size),
        _duplicates(reports),
    )
    for index, problem in found:
        more[index].append(problem)
    return [
        replace(one, problems=(*one.problems, *more[one.index]))
        for one in reports
    ]


def _odd(
    reports: Sequence[SampleReport],
    id: str,
    values_of: Callable[[SampleReport], Mapping[str, Any]],
    usual_of: Callable[[list[Any]], tuple[Any, Callable[[Any], bool]]],
) -> Iterator[tuple[int, Problem]]:
    """Yield values of a sample that differ from those of most samples.

    Args:
        reports (Sequence[SampleReport]): Reports of all samples.
        id (str): Id of the problem.
        values_of (Callable): Returns the values of a sample by their paths.
        usual_of (Callable): Takes the values of a path; returns the usual
            one, and a function that tells whether another one is unusual.
    """
    values: dict[str, list[Any]] = defaultdict(list)
    for one in reports:
        for path, value in values_of(one).items():
            values[path].append(value)
    usual = {path: usual_of(those) for path, those in values.items()}
    for one in reports:
        for path, value in values_of(one).items():
            typical, is_odd = usual[path]
            if is_odd(value):
                fields = {'found': value, 'usual': typical}
                detail = _('{found: x }; usually {usual: x }', **fields)
                yield one.index, Problem(id, path, detail)


def _usual_layout(layouts: list[Any]) -> tuple[Any, Callable[[Any], bool]]:
    common, count = Counter(layouts).most_common(1)[0]
    is_usual = count > _MAJORITY * len(layouts)
    return common, lambda layout: is_usual and layout != common


def _usual_size(
    sizes: list[tuple[int, int]],
) -> tuple[tuple[int, int], Callable[[tuple[int, int]], bool]]:
    """Return the size of nearly all images.

    If sizes vary, only those far from the median are unusual.
    """
    typical, count = Counter(sizes).most_common(1)[0]
    limit = 1.0
    if count < _NEARLY_ALL * len(sizes):
        limit = _MAX_RATIO
        height, width = map(median, zip(*sizes))
        typical = int(height), int(width)

    def is_odd(size: tuple[int, int]) -> bool:
        ratios = [a / b for a, b in zip(size, typical) if b]
        return any(not 1 / limit <= ratio <= limit for ratio in ratios)

    return typical, is_odd


def _duplicates(
    reports: Sequence[SampleReport],
) -> Iterator[tuple[int, Problem]]:
    first: dict[str, SampleReport] = {}
    for one in reports:
        other = first.setdefault(one.content, one) if one.content else one
        # Several samples of one file, such as a video, are not duplicates.
        is_excerpt = (
            one.files and one.files == other.files and one.facts != other.facts
        )
        if other is not one and not is_excerpt:
            yield one.index, _like('duplicate', other)


def _like(id: str, other: SampleReport) -> Problem:
    name = other.name or f'index {other.index}'
    return Problem(id, '', _('same as {name}', name=name))


def leaks(
    reports: Sequence[SampleReport], others: Sequence[SampleReport]
) -> list[SampleReport]:
    """Return the reports, with samples marked that another split contains.

    Args:
        reports (Sequence[SampleReport]): Reports of all samples.
        others (Sequence[SampleReport]): Reports of the other split.
    """
    known = {one.content: one for one in others if one.content}
    return [
        replace(
            one, problems=(*one.problems, _like('leak', known[one.content]))
        )
        if one.content in known
        else one
        for one in reports
    ]


_MAX_LISTED = 5


@dataclass(frozen=True)
class Summary:
    """The problems of a dataset.

    Args:
        total (int): Number of samples in the dataset.
        reports (list[SampleReport]): Reports of the checked samples.
        dropped (list[str]): Samples that the dataset filtered out.
        stopped (BaseException, optional): Why not all samples were checked;
            raised after the findings are printed. Defaults to None.
    """

    total: int
    reports: list[SampleReport]
    dropped: list[str]
    stopped: BaseException | None = None

    def findings(self) -> list[Finding]:
        """Return one finding for each kind of problem, errors first."""
        first: dict[str, tuple[str, str]] = {}
        for report in self.reports:
            for id, *words in report.problems:
                detail = f' ({": ".join(filter(None, words))})'
                first.setdefault(id, (where(report), detail))
        if self.dropped:
            first['dropped'] = self.dropped[0], ''
        return [
            Finding(
                id,
                Severity.WARNING if id in WARNINGS else Severity.ERROR,
                _(kind.what) + first[id][1],
                first[id][0],
                _(kind.why),
                _(kind.fix),
            )
            for id, kind in {**ERRORS, **WARNINGS}.items()
            if id in first
        ]

    def bad_samples(self) -> dict[int, list[str]]:
        """Return the indices of samples with errors, and the error ids."""
        return {
            report.index: sorted(errors)
            for report in self.reports
            if (errors := {p.id for p in report.problems} & {*ERRORS})
        }

    def slowest(self) -> list[SampleReport]:
        """Return the samples that took longest."""
        return nlargest(_MAX_LISTED, self.reports, attrgetter('milliseconds'))

    def largest(self) -> list[SampleReport]:
        """Return the samples with the most bytes."""
        return nlargest(_MAX_LISTED, self.reports, attrgetter('size'))


def check_data(
    dataset: Any,
    indices: Sequence[int],
    expected: Expected,
    workers: int,
    start_method: str | None = None,
    seed: int = 0,
    progress: Callable[[Iterator[Any], int], Iterator[Any]] | None = None,
) -> Summary:
    """Check samples of a dataset.

    Args:
        dataset (Any): The dataset, with its annotations loaded.
        indices (Sequence[int]): The samples to check.
        expected (Expected): Properties that samples should have.
        workers (int): Number of worker processes; 0 for none.
        start_method (str, optional): Start method of the workers. Defaults to
            None.
        seed (int): Seed of random pipelines. Defaults to 0.
        progress (Callable, optional): Takes an iterator and its length, and
            returns an iterator that shows the progress. Defaults to None.
    """
    loader = DataLoader(
        ReportDataset(dataset, indices, expected, seed),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=start_method if workers else None,
    )
    seen: list[SampleReport] = []
    stopped: BaseException | None = None
    reports: Iterator[Any] = iter(loader)
    if progress is not None:
        reports = progress(reports, len(indices))
    try:
        seen.extend(reports)
    except KeyboardInterrupt as error:
        stopped = error
    except RuntimeError as error:
        # A worker was killed; errors of samples are in their reports.
        text = _(
            'a worker failed, the remaining samples were not checked: {error}',
            error=' '.join(str(error).split()),
        )
        stopped = MMStableError(text)
    return Summary(
        total=len(dataset),
        reports=compare_samples(seen),
        dropped=list(dropped_samples(dataset)),
        stopped=stopped,
    )


def where(report: SampleReport) -> str:
    """Return index and name of a sample."""
    return f'{report.index}' + (f' ({report.name})' if report.name else '')
