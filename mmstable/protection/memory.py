"""What a preset of ``configs/_base_/memory`` changes in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmstable.config_paths import shipped_settings
from mmstable.errors import UsageError
from mmstable.messages import _
from mmstable.optim import SafeAmpOptimWrapper, SafeOptimWrapper
from mmstable.preflight.config_tree import kind_of
from mmstable.preflight.config_view import whole_number
from mmstable.protection.change import Group, Path
from mmstable.protection.draft import Draft, dotted
from mmstable.protection.safe_classes import scoped

_LOADERS = ('train_dataloader', 'val_dataloader')


def save_memory(draft: Draft, name: str) -> None:
    """Wire a preset, with as many samples in a step as before.

    Args:
        draft (Draft): The config.
        name (str): The preset.
    """
    preset = shipped_settings(f'_base_/memory/{name}.py')
    path = _only_wrapper(draft)
    wanted = preset['memory']['optim_wrapper']
    if 'dtype' in wanted:
        kind = scoped(SafeAmpOptimWrapper)
        draft.put((*path, 'type'), kind, Group.CLASS, dotted(path))
        _set(draft, (*path, 'dtype'), wanted['dtype'])
    _split_batch(draft, path, wanted['accumulative_counts'])
    for key in _LOADERS:
        _read_less_ahead(draft, key, preset['memory_loader'])
    hook = preset['memory']['hook']
    kinds = {kind_of(draft.get(*place)) for place, __ in draft.hooks()}
    if kind_of(hook) not in kinds:
        draft.add_hook(hook)


def _only_wrapper(draft: Draft) -> Path:
    paths = draft.wrappers()
    if len(paths) != 1:
        raise UsageError(
            _(
                '--memory works with one optimizer wrapper, and the config '
                'has {count}. Set dtype and accumulative_counts of each by '
                'hand.',
                count=len(paths),
            )
        )
    found = draft.wrapper_class(paths[0])
    if found is None or not issubclass(found, SafeOptimWrapper):
        name = getattr(found, '__name__', '?')
        raise UsageError(
            _(
                "--memory knows mmengine's own optimizer wrappers and the "
                'safe ones, not {name}.',
                name=name,
            )
        )
    return paths[0]


def _split_batch(draft: Draft, path: Path, parts: int) -> None:
    """Make a step of several smaller batches."""
    size = whole_number(draft.get('train_dataloader', 'batch_size'))
    if size is None:
        return
    parts = max(n for n in range(1, parts + 1) if size % n == 0)
    if parts == 1:
        return
    before = whole_number(draft.get(*path, 'accumulative_counts')) or 1
    _set(draft, ('train_dataloader', 'batch_size'), size // parts)
    _set(draft, (*path, 'accumulative_counts'), before * parts)


def _read_less_ahead(
    draft: Draft, key: str, wanted: Mapping[str, Any]
) -> None:
    workers = whole_number(draft.get(key, 'num_workers'))
    if workers is None:
        # Without workers nothing is read ahead.
        return
    fewer = min(workers, wanted['num_workers'])
    for name, value in {**wanted, 'num_workers': fewer}.items():
        _set(draft, (key, name), value)


def _set(draft: Draft, path: Path, value: Any) -> None:
    word = f'{dotted(path)}={value!r}'
    draft.put(path, value, Group.SETTING, word)
