"""Run a data set through its pipeline, and say what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from mmstable.errors import MMStableError
from mmstable.finding import Finding, Severity
from mmstable.messages import _
from mmstable.preflight.dataset_checks import compare_samples, dropped_samples
from mmstable.preflight.sample_checks import Expected
from mmstable.preflight.sample_report import ExaminedDataset, SampleReport
from mmstable.preflight.texts import SAMPLE_TEXTS

# All others are errors.
WARNINGS = (
    'no_sample',
    'all_ignored',
    'empty_mask',
    'no_boxes',
    'no_points',
    'odd_layout',
    'odd_size',
    'duplicate',
    'dropped',
)
_MOST_LISTED = 5


@dataclass(frozen=True)
class Summary:
    """What was found in a data set.

    Args:
        total (int): How many samples it has.
        reports (list[SampleReport]): Of those that were looked at.
        dropped (list[str]): What was filtered out of it.
        stopped (BaseException, optional): Why not all were looked at, to be
            raised when what is known was told. Defaults to None.
    """

    total: int
    reports: list[SampleReport]
    dropped: list[str]
    stopped: BaseException | None = None

    def findings(self) -> list[Finding]:
        """One for each kind of problem, errors first."""
        offenders = defaultdict(list)
        for report in self.reports:
            for name in {problem.id for problem in report.problems}:
                offenders[name].append(report)
        found = [_finding(name, those) for name, those in offenders.items()]
        if self.dropped:
            found.append(_finding_of_dropped(self.dropped))
        order = list(Severity)
        return sorted(found, key=lambda one: order.index(one.severity))

    def bad_samples(self) -> dict[int, list[str]]:
        """Indices of samples with errors, and which."""
        return {
            report.index: names
            for report in self.reports
            if (
                names := sorted(
                    {p.id for p in report.problems if p.id not in WARNINGS}
                )
            )
        }

    def slowest(self) -> list[SampleReport]:
        """The samples that took longest."""
        ranked = sorted(self.reports, key=lambda one: -one.milliseconds)
        return ranked[:_MOST_LISTED]

    def largest(self) -> list[SampleReport]:
        """The samples that are largest."""
        ranked = sorted(self.reports, key=lambda one: -one.size)
        return ranked[:_MOST_LISTED]


def check_data(
    dataset: Any,
    indices: Sequence[int],
    expected: Expected,
    workers: int,
    start_method: str | None = None,
    seed: int = 0,
    progress: Callable[[Iterator[Any], int], Iterator[Any]] | None = None,
) -> Summary:
    """Look at samples of a data set.

    Args:
        dataset (Any): The data set, with its annotations read.
        indices (Sequence[int]): The samples to look at.
        expected (Expected): What is known about it.
        workers (int): Processes that do it; 0 for this one.
        start_method (str, optional): How these are started. Defaults to None.
        seed (int): Of random pipelines. Defaults to 0.
        progress (Callable, optional): Shows how far it is: takes an iterator
            and its length, and gives the same. Defaults to None.
    """
    seen, stopped = _look_at(
        ExaminedDataset(dataset, indices, expected, seed),
        workers,
        start_method,
        progress,
    )
    return Summary(
        total=len(dataset),
        reports=compare_samples(seen),
        dropped=list(dropped_samples(dataset)),
        stopped=stopped,
    )


def _look_at(
    examined: ExaminedDataset,
    workers: int,
    start_method: str | None,
    progress: Callable[[Iterator[Any], int], Iterator[Any]] | None,
) -> tuple[list[SampleReport], BaseException | None]:
    """The reports, and why these are not all."""
    loader = DataLoader(
        examined,
        batch_size=1,
        num_workers=workers,
        collate_fn=_only,
        multiprocessing_context=start_method if workers else None,
    )
    seen: list[SampleReport] = []
    reports: Iterator[Any] = iter(loader)
    if progress is not None:
        reports = progress(reports, len(examined))
    try:
        for one in reports:
            seen.append(one)
    except KeyboardInterrupt as error:
        return seen, error
    except RuntimeError as error:
        # Of a worker that was killed; what samples raise is in the reports.
        text = ' '.join(str(error).split())
        return seen, MMStableError(
            _(
                'a worker failed, the rest was not looked at: {error}',
                error=text,
            )
        )
    return seen, None


def _only(batch: list[SampleReport]) -> SampleReport:
    return batch[0]


def _finding(name: str, those: list[SampleReport]) -> Finding:
    first = those[0]
    problem = next(p for p in first.problems if p.id == name)
    place = f'{problem.place}: ' if problem.place else ''
    return Finding(
        id=name,
        severity=severity_of(name),
        path=where(first),
        what=_(SAMPLE_TEXTS[name].what) + f' ({place}{problem.detail})',
        why=_(SAMPLE_TEXTS[name].why),
        fix=_(SAMPLE_TEXTS[name].fix),
    )


def _finding_of_dropped(dropped: list[str]) -> Finding:
    return Finding(
        id='dropped',
        severity=severity_of('dropped'),
        path=dropped[0],
        what=_('samples that are filtered out before training'),
        why=_(
            'They are never trained on, and nothing says so: a film that is '
            'shorter than a chunk gives no sample at all.'
        ),
        fix=_('See filter_cfg, the least size and the chunk length.'),
    )


def severity_of(name: str) -> Severity:
    """How bad a problem is."""
    return Severity.WARNING if name in WARNINGS else Severity.ERROR


def where(report: SampleReport) -> str:
    """A sample by index and name."""
    return f'{report.index}' + (f' ({report.name})' if report.name else '')
