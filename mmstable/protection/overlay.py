"""Write what protection changes as a config on top of the one it changes."""

from __future__ import annotations

import copy
import inspect
import keyword
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from mmstable.errors import UsageError
from mmstable.legacy.config.difference import difference
from mmstable.legacy.config.render import (
    comment,
    one_line,
    render_setting,
)
from mmstable.messages import N_, _
from mmstable.protection.change import (
    ABSENT,
    Change,
    Protection,
    apply_changes,
)

_HOOKS = 'custom_hooks'
_COMMENTS = {
    'optim_wrapper': N_('Steps with a NaN or Inf are skipped, and named.'),
    'strategy': N_('Checkpoints of FSDP that can be resumed.'),
    'train_cfg': N_(
        'Resumes where a checkpoint was saved, and survives a batch that '
        'does not fit in memory.'
    ),
    'val_cfg': N_('Batches that do not fit in memory are cut.'),
    'test_cfg': N_('As for validation.'),
    'default_hooks': N_(
        'Checkpoints and schedules that bad steps do not spoil; the guard '
        'acts when bad steps do not stay single.'
    ),
    'custom_hooks': N_('What tells, explains and saves.'),
    'visualizer': N_('A dashboard or a disk that blocks cannot stop the run.'),
    'train_dataloader': N_('Less memory, as many samples in a step.'),
    'val_dataloader': N_('Fewer batches are read ahead.'),
}


def overlay(
    settings: Mapping[str, Any], protection: Protection, base: str
) -> str:
    """The text of a config that inherits from another one.

    Args:
        settings (Mapping): The config below it, in plain types.
        protection (Protection): What it changes.
        base (str): How to name the config below.
    """
    wanted = copy.deepcopy(dict(settings))
    apply_changes(wanted, protection.changes)
    blocks = [
        f'{_title(protection, base)}\n{render_setting("_base_", [base])}'
    ]
    for key, value in difference(settings, wanted).items():
        if key == _HOOKS and settings.get(_HOOKS):
            text = _hooks(len(settings[_HOOKS]), protection)
        elif _is_replaced(settings.get(key), value):
            text = _replaced(key, settings[key], wanted[key])
        else:
            text = render_setting(key, _without_classes(value))
        blocks.append(f'{_about(key)}\n{text}')
    return '\n\n'.join(blocks) + '\n'


def _is_replaced(before: Any, change: Any) -> bool:
    both = isinstance(before, Mapping) and isinstance(change, Mapping)
    return both and '_delete_' in change


def _replaced(
    key: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> str:
    """A dict without some keys of the base, which is followed in the rest."""
    new = difference(before, after)
    gone = sorted({*before} - {*after} | {*before} & {*new})
    lines = [
        '_delete_=True,',
        f'**{{k: v for k, v in _base_.{key}.items() if k not in {gone}}},',
        *(
            f'{name}={one_line(_without_classes(value), key)},'
            for name, value in new.items()
        ),
    ]
    return '\n'.join([f'{key} = dict(', *(f'    {n}' for n in lines), ')'])


def python_overlay(
    settings: Mapping[str, Any], protection: Protection, base: str
) -> str:
    """The same for configs that inherit by ``read_base``.

    Args:
        settings (Mapping): The config below it, in plain types.
        protection (Protection): What it changes.
        base (str): The relative path of the config below.
    """
    blocks = [
        f'{_title(protection, base)}\nfrom mmengine.config import read_base',
        f'with read_base():\n    from {_module(base)} import *',
    ]
    tops = list(dict.fromkeys(one.path[0] for one in protection.changes))
    known = {key for key, value in settings.items() if value is not None}
    for top in tops:
        lines = [_about(str(top))]
        for one in protection.changes:
            if one.path[0] == top:
                lines += _statements(one, known)
        blocks.append('\n'.join(lines))
    return '\n\n'.join(blocks) + '\n'


def _title(protection: Protection, base: str) -> str:
    text = _(
        'Protects {base} with preset {preset}. Written by `mmstable '
        'protect`; train it with any train script.',
        base=base,
        preset=protection.preset,
    )
    if protection.left:
        items = [f'{one.where} ({one.kind})' for one in protection.left]
        text += ' ' + _(
            'Left alone, no safe class fits: {items}.', items=items
        )
    return comment(text)


def _about(key: str) -> str:
    return comment(_(_COMMENTS[key]))


def _hooks(count: int, protection: Protection) -> str:
    """The hooks of the base, some of them changed, and more of them."""
    changed: dict[int, dict[str, Any]] = {}
    new: dict[int, Any] = {}
    for one in protection.changes:
        if one.path[0] == _HOOKS and len(one.path) == 2:
            new[int(one.path[1])] = one.value
        elif one.path[0] == _HOOKS:
            place, key = int(one.path[1]), str(one.path[2])
            changed.setdefault(place, {})[key] = one.value
    kept = ['*_base_.custom_hooks']
    if changed:
        kept = [_changed(place, changed) for place in range(count)]
    added = [one_line(hook, _HOOKS) for hook in new.values()]
    lines = [f'    {text},' for text in [*kept, *added]]
    return '\n'.join([f'{_HOOKS} = [', *lines, ']'])


def _changed(place: int, changed: Mapping[int, Mapping[str, Any]]) -> str:
    old = f'_base_.custom_hooks[{place}]'
    if place not in changed:
        return old
    words = [
        f'{key}={one_line(value, _HOOKS)}'
        for key, value in changed[place].items()
    ]
    return f'dict({old}, {", ".join(words)})'


def _statements(change: Change, known: set[str]) -> Iterator[str]:
    """How a config of Python's own syntax changes what it has imported."""
    top, *rest = change.path
    value = _without_classes(change.value)
    if not rest:
        known.add(str(top))
        yield render_setting(str(top), value)
        return
    if top not in known:
        known.add(str(top))
        yield f'{top} = {"[]" if isinstance(rest[0], int) else "dict()"}'
    parent = str(top) + ''.join(f'[{one!r}]' for one in rest[:-1])
    if value is ABSENT:
        yield f'{parent}.pop({rest[-1]!r})'
    elif isinstance(rest[-1], int):
        yield f'{parent}.append({one_line(value, str(top))})'
    else:
        yield f'{parent}[{rest[-1]!r}] = {one_line(value, str(top))}'


def _module(base: str) -> str:
    """A relative path as the module that ``from ... import`` names."""
    path = PurePosixPath(base).with_suffix('')
    ups = sum(part == '..' for part in path.parts)
    names = [part for part in path.parts if part != '..']
    if not all(n.isidentifier() and not keyword.iskeyword(n) for n in names):
        raise UsageError(
            _(
                "a config with read_base cannot inherit from '{path}': the "
                'name of every folder and file must be one of Python.',
                path=base,
            )
        )
    return '.' * (ups + 1) + '.'.join(names)


def _without_classes(value: Any) -> Any:
    """The same with classes by their names, which a file can hold."""
    if isinstance(value, Mapping):
        return {k: _without_classes(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_without_classes, value))
    if inspect.isclass(value):
        return f'{value.__module__}.{value.__qualname__}'
    return value
