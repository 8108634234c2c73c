"""``mmstable protect``: write a protected config, for any train script."""

from __future__ import annotations

import argparse
import copy
import inspect
import keyword
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.legacy.render import (
    comment,
    difference,
    one_line,
    render_setting,
)
from mmstable.messages import N_, _

if TYPE_CHECKING:
    from mmstable.protection import Change, Protection

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


def protect(args: argparse.Namespace) -> int:
    """Write the config, and return the exit code."""
    from mmengine.config import Config

    from mmstable.cli import config
    from mmstable.cli.train import protection_of

    if args.output is not None:
        config.check_target(args.output)
        is_old = os.path.exists(args.output)
        if is_old and os.path.samefile(args.output, args.config):
            text = N_(
                "'{path}' would inherit from itself: choose another file."
            )
            raise cli.usage_error(text, path=args.output)
    cfg = config.load_config_anyway(args.config)
    settings = config.plain_settings(cfg)
    config.refuse_old(args.config, settings)
    protection = protection_of(cfg, args)
    title = _('protected with preset {preset}:', preset=protection.preset)
    for line in protection.lines(title):
        cli.say(line)
    if not protection.changes:
        if not protection.strategy:
            text = N_("'{path}' is protected already: nothing is written.")
            cli.tell(text, path=args.config)
        return 0
    base = config.relative(
        args.config, os.path.dirname(args.output or args.config)
    )
    is_python = Config._is_lazy_import(args.config)
    write = python_overlay if is_python else overlay
    text = write(settings, protection, base)
    config.write_config(args.output, text, args.force)
    return 0


def overlay(
    settings: Mapping[str, Any], protection: Protection, base: str
) -> str:
    """The text of a config that inherits from another one.

    Args:
        settings (Mapping): The config below it, in plain types.
        protection (Protection): What it changes.
        base (str): How to name the config below.
    """
    from mmstable.protection import apply_changes

    wanted = copy.deepcopy(dict(settings))
    apply_changes(wanted, protection.changes)
    title = _title(protection, base)
    blocks = [f'{title}\n{render_setting("_base_", [base])}']
    for key, value in difference(settings, wanted).items():
        before = settings.get(key)
        if key == _HOOKS and before:
            text = _hooks(len(before), protection)
        elif before and isinstance(value, Mapping) and '_delete_' in value:
            text = _replaced(key, before, wanted[key])
        else:
            text = render_setting(key, _without_classes(value))
        blocks.append(f'{_about(key)}\n{text}')
    return '\n\n'.join(blocks) + '\n'


def _replaced(
    key: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> str:
    """A dict without some keys of the base, which is followed in the rest."""
    new = difference(before, after)
    gone = sorted({*before} - {*after} | {*before} & {*new})
    kept = f'_base_.{key}.items() if k not in {gone}'
    lines = ['_delete_=True,', f'**{{k: v for k, v in {kept}}},']
    for name, value in new.items():
        lines.append(f'{name}={one_line(_without_classes(value), key)},')
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
        left = N_('Left alone, no safe class fits: {items}.')
        text += ' ' + _(left, items=protection.left)
    return comment(text)


def _about(key: str) -> str:
    return comment(_(_COMMENTS[key]))


def _hooks(count: int, protection: Protection) -> str:
    """The hooks of the base, some of them changed, and more of them."""
    kept = [f'_base_.{_HOOKS}[{place}]' for place in range(count)]
    words: dict[int, list[str]] = defaultdict(list)
    added: dict[int, str] = {}
    for one in protection.changes:
        if one.path[0] == _HOOKS:
            place, *key = one.path[1:]
            value = one_line(one.value, _HOOKS)
            if key:
                words[int(place)].append(f'{key[0]}={value}')
            else:
                added[int(place)] = value
    for place, those in words.items():
        kept[place] = f'dict({kept[place]}, {", ".join(those)})'
    if not words:
        kept = [f'*_base_.{_HOOKS}']
    lines = [f'    {text},' for text in [*kept, *added.values()]]
    return '\n'.join([f'{_HOOKS} = [', *lines, ']'])


def _statements(change: Change, known: set[str]) -> Iterator[str]:
    """How a config of Python's own syntax changes what it has imported."""
    from mmstable.check.config_tree import ABSENT

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
        raise cli.usage_error(
            "a config with read_base cannot inherit from '{path}': the "
            'name of every folder and file must be one of Python.',
            path=base,
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


COMMAND = cli.Command(
    protect,
    (
        cli.CONFIG,
        cli.option(
            '-o --output',
            'where to write it; to stdout by default',
            metavar='OUT.py',
        ),
        cli.flag('--force', 'overwrite a file that exists'),
        *cli.PROTECTION,
    ),
    'Write a config that inherits from CONFIG, and changes what '
    '`mmstable train` would change: safe classes, and hooks that tell, '
    'explain and save.',
)
