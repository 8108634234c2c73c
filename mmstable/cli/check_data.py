"""``mmstable check-data``: look through the data of a config."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from mmengine.config import Config

    from mmstable.check.data import Summary
    from mmstable.check.sample_checks import Expected

# The data has errors.
EXIT_BAD_DATA = 6
_SPLITS = ('train', 'val', 'test')
_MOST_NAMED = 3


def check_data(args: argparse.Namespace) -> int:
    """Look through the data of a config, and return the exit code."""
    from mmstable.check import data
    from mmstable.check.dataset import write_skip_list
    from mmstable.cli.config import open_config

    cli.check_folder_of(args.json)
    cli.check_folder_of(args.write_skip_list)
    cfg = open_config(args.config, args.cfg_options)
    loader = _loader_of(cfg, args.split)
    dataset = _build(loader)
    workers = args.workers
    if workers is None:
        workers = int(loader.get('num_workers', 0))
    processes = (cfg.get('env_cfg') or {}).get('mp_cfg') or {}
    start = time.monotonic()

    def look_at(some: Any, most: int | None) -> Summary:
        length = len(some)
        if most is None or most >= length:
            most = length
        return data.check_data(
            some,
            # Spread over all of them.
            [place * length // most for place in range(most)],
            _expected(cfg, some, args),
            workers,
            processes.get('mp_start_method'),
            int((cfg.get('randomness') or {}).get('seed') or 0),
            cli.show_progress,
        )

    summary = look_at(dataset, args.max)
    if args.against is not None and summary.stopped is None:
        other = look_at(_build(_loader_of(cfg, args.against)), None)
        summary = replace(
            summary,
            reports=data.leaks(summary.reports, other.reports),
            stopped=other.stopped,
        )
    header = _(
        '{count:sample|samples} of {total} checked ({split}, {kind}, '
        '{workers:worker|workers}, {seconds:.1f} s)',
        count=len(summary.reports),
        total=summary.total,
        split=args.split,
        kind=type(dataset).__name__,
        workers=workers,
        seconds=time.monotonic() - start,
    )
    cli.show(header, *_lines(summary))
    bad = summary.bad_samples()
    if args.json is not None:
        cli.write_json(args.json, _as_json(args.split, summary))
    if args.write_skip_list is not None:
        path = args.write_skip_list
        names = {one.index: one.name for one in summary.reports}
        rows = [(index, names[index], why) for index, why in bad.items()]
        write_skip_list(Path(path), summary.total, rows)
        text = N_(
            '{count:sample|samples} with errors written to {path}; use '
            "it by dataset=dict(type='mmstable.SkipSamples', "
            "dataset=..., skip_list='{path}')"
        )
        print(_(text, count=len(bad), path=printable(path, 400)))
    if summary.stopped is not None:
        raise summary.stopped
    return EXIT_BAD_DATA if bad else 0


def _lines(summary: Summary) -> Iterator[Any]:
    """A block for each kind of problem, and what takes longest."""
    from mmstable.check.data import where

    findings = summary.findings()
    if not findings:
        yield _('no problems found')
    for one in findings:
        names = summary.dropped
        if one.id != 'dropped':
            names = [
                where(report)
                for report in summary.reports
                if any(problem.id == one.id for problem in report.problems)
            ]
        text = N_('{count} of {total}')
        count = _(text, count=len(names), total=len(summary.reports))
        first = _('first: {names}', names=names[:_MOST_NAMED])
        head = f'{one.id}  {count}  {printable(one.what, 300)}'
        yield from cli.finding_lines(replace(one, source=first), head)
    slow, large = summary.slowest(), summary.largest()
    names = [f'{where(o)} {o.milliseconds:.1f} ms' for o in slow]
    yield _('slowest: {names}', names=names[:_MOST_NAMED])
    names = [f'{where(one)} {one.size / 1e6:.2f} MB' for one in large]
    yield _('largest: {names}', names=names[:_MOST_NAMED])


def _loader_of(cfg: Config, split: str) -> Mapping[str, Any]:
    loader = cfg.get(f'{split}_dataloader')
    if not isinstance(loader, Mapping) or 'dataset' not in loader:
        known = [
            name
            for name in _SPLITS
            if isinstance(cfg.get(f'{name}_dataloader'), Mapping)
        ]
        raise cli.usage_error(
            'the config has no `{split}_dataloader` with a `dataset`; it '
            'has data for: {known}.',
            split=split,
            known=known or ['-'],
        )
    return loader


def _build(loader: Mapping[str, Any]) -> Any:
    from mmengine.registry import DATASETS

    from mmstable.check.dataset import load, without_repeats
    from mmstable.cli.mistakes import explained

    part = {'train_dataloader': loader}
    with explained(N_('the data set cannot be built: {error}'), part):
        dataset = loader['dataset']
        if isinstance(dataset, Mapping):
            dataset = DATASETS.build(dataset)
        dataset = without_repeats(dataset)
        load(dataset)
        length = len(dataset)
    if length == 0:
        raise cli.usage_error('the data set is empty.')
    return dataset


def _expected(cfg: Config, dataset: Any, args: argparse.Namespace) -> Expected:
    from mmstable.check.sample_checks import Expected

    model = cfg.get('model') or {}
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes')
    num_classes = args.num_classes or (len(classes) if classes else None)
    if num_classes is None:
        num_classes = next(_values(model, 'num_classes', int), None)
    ignored = args.ignore_index
    if ignored is None:
        ignored = getattr(dataset, 'ignore_index', None)
    if ignored is None:
        ignored = next(_values(model, 'ignore_index', int), 255)
    means = next(_values(model, 'mean', (list, tuple)), None)
    return Expected(
        num_classes=num_classes,
        ignore_index=int(ignored),
        channels=len(means) if means else None,
    )


def _values(settings: Any, name: str, kind: Any) -> Iterator[Any]:
    """Values of a setting of the model, wherever it is."""
    from mmstable.check.config_tree import walk

    for __, node in walk(settings):
        if isinstance(node.get(name), kind):
            yield node[name]


def _as_json(split: str, summary: Summary) -> dict[str, Any]:
    return {
        'split': split,
        'total': summary.total,
        'looked_at': len(summary.reports),
        'findings': [one.as_dict() for one in summary.findings()],
        'samples': [
            {
                'index': one.index,
                'name': one.name,
                'problems': [p._asdict() for p in one.problems],
            }
            for one in summary.reports
            if one.problems
        ],
        'dropped': summary.dropped,
        'slowest': [
            {'index': o.index, 'name': o.name, 'milliseconds': o.milliseconds}
            for o in summary.slowest()
        ],
        'largest': [
            {'index': o.index, 'name': o.name, 'bytes': o.size}
            for o in summary.largest()
        ],
    }


COMMAND = cli.Command(
    check_data,
    (
        cli.CONFIG,
        cli.option(
            '--split',
            'which data; train by default',
            choices=_SPLITS,
            default='train',
        ),
        cli.option(
            '--against',
            'find samples that are in this split as well, by their content',
            choices=_SPLITS,
            metavar='SPLIT',
        ),
        cli.number(
            '--max', 1, 'look at no more than N samples, spread over all'
        ),
        cli.number(
            '--workers', 0, 'worker processes; those of the config by default'
        ),
        cli.option(
            '--ignore-index',
            'the label of pixels that do not count; that of the config, '
            'or 255, by default',
            type=int,
            metavar='LABEL',
        ),
        cli.number(
            '--num-classes',
            1,
            'how many classes there are; those of the data set by default',
        ),
        cli.JSON_FILE,
        cli.option(
            '--write-skip-list',
            'where to write the samples with errors, for SkipSamples',
            metavar='FILE',
        ),
        cli.CFG_OPTIONS,
    ),
    'Run the data of a config through its pipeline, with its own '
    'workers, and tell what is wrong with it. Exit codes: 0 no errors, '
    '{bad} errors in the data, 2 an error in the config, 1 a worker '
    'failed, 130 interrupted; what is known by then is told.',
    {'bad': EXIT_BAD_DATA},
)
