"""Refuse a config that cannot work, before anything is built from it.

mmengine would refuse it, too, but after it has printed the whole config, and
with a traceback.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from mmengine.config import Config

from mmstable.cli.config_edits import OWN_HOOKS
from mmstable.cli.suggest import did_you_mean
from mmstable.errors import UsageError
from mmstable.loops.batch_checks import check_batch_size, check_counts
from mmstable.messages import say as message

_LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# Everything below them that looks like a number is meant to be one.
_NUMERIC = (
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'val_cfg',
    'test_cfg',
    'randomness',
    *_LOADERS,
)
# Except for what the user's own classes get.
_FOREIGN = ('dataset', 'collate_fn', 'sampler', 'batch_sampler')
_NUMBER = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?', re.I)


def check_config(cfg: Config) -> None:
    """Raise for what is wrong whatever loop and wrapper are used."""
    _refuse_text_for_numbers(cfg)
    _refuse_hooks_without_type(cfg)
    _refuse_incomplete_loops(cfg)
    _refuse_impossible_batches(cfg)


def check_work_dir(path: str) -> None:
    """Make the folder of a run, or say why that is impossible."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if os.access(path, os.W_OK | os.X_OK):
            return
        reason = message('mistake.not_writable')
    raise UsageError(message('mistake.work_dir', path=path, error=reason))


def _refuse_text_for_numbers(cfg: Config) -> None:
    is_yaml = str(cfg.filename).endswith(('.yaml', '.yml'))
    for section in _NUMERIC:
        for path, value in _values(section, cfg.get(section)):
            if isinstance(value, str) and _NUMBER.fullmatch(value):
                has_exponent = is_yaml and 'e' in value.lower()
                note = message('mistake.yaml_exponent') if has_exponent else ''
                raise UsageError(
                    message(
                        'mistake.text_for_number',
                        path=path,
                        text=value,
                        note=note,
                    )
                )


def _values(path: str, node: Any) -> Iterator[tuple[str, Any]]:
    pairs: Any = ()
    if isinstance(node, dict):
        pairs = [(k, v) for k, v in node.items() if k not in _FOREIGN]
    elif isinstance(node, (list, tuple)):
        pairs = enumerate(node)
    for name, value in pairs:
        yield f'{path}.{name}', value
        yield from _values(f'{path}.{name}', value)


def _refuse_hooks_without_type(cfg: Config) -> None:
    hooks = cfg.get('default_hooks') or {}
    for name, hook in hooks.items():
        if isinstance(hook, dict) and 'type' not in hook:
            known = {*OWN_HOOKS, *hooks} - {name}
            raise UsageError(
                message(
                    'mistake.no_type',
                    path=f'default_hooks.{name}',
                    hint=did_you_mean(name, sorted(known)),
                )
            )


def _refuse_incomplete_loops(cfg: Config) -> None:
    for kind, last in (
        ('train', 'optim_wrapper'),
        ('val', 'val_evaluator'),
        ('test', 'test_evaluator'),
    ):
        names = [f'{kind}_cfg', f'{kind}_dataloader', last]
        missing = [name for name in names if cfg.get(name) is None]
        if missing and len(missing) < len(names):
            given = [name for name in names if name not in missing]
            raise UsageError(
                message('mistake.incomplete', given=given, missing=missing)
            )


def _refuse_impossible_batches(cfg: Config) -> None:
    for setting in _LOADERS:
        check_batch_size(cfg.get(setting), setting)
    iterations = (cfg.get('train_cfg') or {}).get('max_iters')
    wrappers = {'optim_wrapper': cfg.get('optim_wrapper')}
    wrappers.update(
        (f'optim_wrapper.{name}', value)
        for name, value in (wrappers['optim_wrapper'] or {}).items()
    )
    for setting, wrapper in wrappers.items():
        if isinstance(wrapper, dict) and isinstance(iterations, int):
            counts = wrapper.get('accumulative_counts')
            check_counts(setting, counts, iterations)
