"""``mmstable check-data``: from a config to a table."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.cli.command import say as say_for
from mmstable.cli.commands.check_data import EXIT_BAD_DATA
from mmstable.cli.config_file import load_config
from mmstable.cli.config_mistakes import explain_mistake
from mmstable.cli.config_options import read_options
from mmstable.cli.data_table import data_table
from mmstable.cli.legacy_config import modernize
from mmstable.cli.progress import show_progress
from mmstable.cli.texts import NO_FOLDER
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.preflight.check_data import Summary, check_data
from mmstable.preflight.dataset_checks import leaks
from mmstable.preflight.dataset_view import load, without_repeats
from mmstable.preflight.sample_checks import Expected
from mmstable.preflight.skip_list import write_skip_list


def check(args: argparse.Namespace) -> int:
    """Look through the data of a config, and return the exit code."""
    for path in filter(None, (args.json, args.write_skip_list)):
        _check_folder(path)
    cfg = _load(args)
    loader = _loader_of(cfg, args.split)
    dataset = _build(loader)
    workers = args.workers
    if workers is None:
        workers = int(loader.get('num_workers', 0))
    start = time.monotonic()

    def look_at(some: Any, most: int | None) -> Summary:
        return check_data(
            some,
            _choose(len(some), most),
            _expected(cfg, some, args),
            workers,
            _start_method(cfg),
            int((cfg.get('randomness') or {}).get('seed') or 0),
            show_progress,
        )

    summary = look_at(dataset, args.max)
    if args.against is not None and summary.stopped is None:
        other = look_at(_build(_loader_of(cfg, args.against)), None)
        summary = replace(
            summary,
            reports=leaks(summary.reports, other.reports),
            stopped=other.stopped,
        )
    header = _(
        '{count:sample|samples} of {total} looked at ({split}, {kind}, '
        '{workers:worker|workers}, {seconds:.1f} s)',
        count=len(summary.reports),
        total=summary.total,
        split=args.split,
        kind=type(dataset).__name__,
        workers=workers,
        seconds=time.monotonic() - start,
    )
    print('\n'.join([header, *data_table(summary)]))
    code = _write(args, summary)
    if summary.stopped is not None:
        raise summary.stopped
    return code


def _load(args: argparse.Namespace) -> Config:
    options = read_options(args.cfg_options or [])
    cfg = load_config(args.config)
    cfg = modernize(cfg, options, lambda text: say_for('check-data', text))
    # As the runner does: names in the config are looked up there.
    init_default_scope(cfg.get('default_scope') or 'mmengine')
    return cfg


def _loader_of(cfg: Config, split: str) -> Mapping[str, Any]:
    loader = cfg.get(f'{split}_dataloader')
    if not isinstance(loader, Mapping) or 'dataset' not in loader:
        known = [
            name
            for name in ('train', 'val', 'test')
            if isinstance(cfg.get(f'{name}_dataloader'), Mapping)
        ]
        raise UsageError(
            _(
                'the config has no `{split}_dataloader` with a `dataset`; it '
                'has data for: {known}.',
                split=split,
                known=known or ['-'],
            )
        )
    return loader


def _build(loader: Mapping[str, Any]) -> Any:
    try:
        dataset = loader['dataset']
        if isinstance(dataset, Mapping):
            dataset = DATASETS.build(dataset)
        dataset = without_repeats(dataset)
        load(dataset)
        length = len(dataset)
    except Exception as error:
        mistake = explain_mistake(error)
        if mistake is None:
            text = ' '.join(f'{type(error).__name__}: {error}'.split())
            mistake = _('the data set cannot be built: {error}', error=text)
        raise UsageError(mistake) from error
    if length == 0:
        raise UsageError(_('the data set is empty.'))
    return dataset


def _choose(length: int, most: int | None) -> list[int]:
    """All indices, or some that are spread over them."""
    if most is None or most >= length:
        return list(range(length))
    return [number * length // most for number in range(most)]


def _expected(cfg: Config, dataset: Any, args: argparse.Namespace) -> Expected:
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
    if isinstance(settings, Mapping):
        if isinstance(settings.get(name), kind):
            yield settings[name]
        settings = list(settings.values())
    if isinstance(settings, (list, tuple)):
        for one in settings:
            yield from _values(one, name, kind)


def _start_method(cfg: Config) -> str | None:
    processes = (cfg.get('env_cfg') or {}).get('mp_cfg') or {}
    return processes.get('mp_start_method')


def _check_folder(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder or '.'):
        raise UsageError(_(NO_FOLDER, folder=folder))


def _write(args: argparse.Namespace, summary: Summary) -> int:
    bad = summary.bad_samples()
    names = {one.index: one.name for one in summary.reports}
    if args.json is not None:
        _write_json(Path(args.json), args.split, summary)
    if args.write_skip_list is not None:
        write_skip_list(
            Path(args.write_skip_list),
            summary.total,
            [(index, names[index], why) for index, why in bad.items()],
        )
        path = printable(args.write_skip_list, 400)
        print(
            _(
                '{count:sample|samples} with errors written to {path}; use '
                "it by dataset=dict(type='mmstable.SkipSamples', "
                "dataset=..., skip_list='{path}')",
                count=len(bad),
                path=path,
            )
        )
    return EXIT_BAD_DATA if bad else 0


def _write_json(path: Path, split: str, summary: Summary) -> None:
    content = {
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
            {'index': one.index, 'name': one.name, 'bytes': one.size}
            for one in summary.largest()
        ],
    }
    replace_text(path, json.dumps(content, indent=1) + '\n')
