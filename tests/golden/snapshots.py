"""The outside of mmstable as data, to be compared with the files in `data`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch
from mmengine.registry import HOOKS, LOOPS, OPTIM_WRAPPERS, Registry
from torch.utils.data import DataLoader

from tests.golden import outside
from tests.golden.runs import Outside
from tests.toys import ToyData, read_saved

DATA = Path(__file__).parent / 'data'
NUMBER = r'((?<!\w)-)?\d+(\.\d+)*(e[+-]?\d+)?'
ADVICE = (
    'If a user is meant to see this change, write the files anew with: '
    'python -m tests.golden.write'
)


# Config strings and settings.


def config_strings(seen: Outside) -> Any:
    return seen.fresh_import['registered']


def public_names(seen: Outside) -> Any:
    return outside.public_names()


def refused_settings(seen: Outside) -> Any:
    """What is said of a wrong setting in a dict; it names the right ones."""
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    guard, clip = 'DivergenceGuardHook', 'GradClipHook'
    # One kind of each group: the others have the same settings.
    kinds = ('nan_grad', 'spike_grad', 'nan_loss', 'spike_loss', 'nan_input')
    kinds += ('nan_weight', 'nan_buffer', 'nan_state')
    kinds += ('oom', 'hang', 'signal', 'exception')
    faults = [dict(kind='wrong'), *(dict(kind=x, wrong=1) for x in kinds)]
    cases: list[tuple[Registry, str, dict[str, Any]]] = [
        (HOOKS, guard, dict(actions=dict(wrong='warn'))),
        (HOOKS, guard, dict(actions=dict(spike='wrong'))),
        (HOOKS, guard, dict(spike=dict(wrong=1))),
        (HOOKS, guard, dict(warmup=dict(wrong=1))),
        (HOOKS, clip, dict(method='wrong')),
        (HOOKS, clip, dict(max_norm=1, wrong=1)),
        (HOOKS, clip, dict(method='percentile', wrong=1)),
        (HOOKS, clip, dict(method='zscore', wrong=1)),
        (HOOKS, clip, dict(method='value', clip_value=1, wrong=1)),
        (HOOKS, clip, dict(method='agc', wrong=1)),
        *(
            (HOOKS, 'FaultInjectorHook', dict(enabled=True, faults=[one]))
            for one in faults
        ),
        (HOOKS, 'HangWatchdogHook', dict(limits=dict(wrong=1))),
        (
            OPTIM_WRAPPERS,
            'SafeAmpOptimWrapper',
            dict(optimizer=sgd, loss_scale=dict(wrong=1)),
        ),
        (
            LOOPS,
            'SafeIterBasedTrainLoop',
            dict(
                runner=None,
                dataloader=DataLoader(ToyData()),
                max_iters=1,
                oom=dict(wrong=1),
            ),
        ),
    ]
    return [_refusal(*case) for case in cases]


def _refusal(registry: Registry, name: str, settings: dict[str, Any]) -> str:
    try:
        registry.build(dict(type=f'mmstable.{name}', **settings))
    except (TypeError, ValueError) as error:
        return str(error)
    return f'{name} takes {settings}'


# Commands.


def commands(seen: Outside) -> Any:
    return {
        f'mmstable {name}'.strip(): _arguments(parser)
        for name, parser in outside.parsers().items()
    }


def _arguments(parser: argparse.ArgumentParser) -> Any:
    shown = [x for x in parser._actions if x.help != argparse.SUPPRESS]
    found: dict[str, Any] = {_name(one): _describe(one) for one in shown}
    for group in parser._mutually_exclusive_groups:
        names = [_name(one) for one in group._group_actions]
        found.setdefault('only one of', []).append(names)
    return found


def _name(action: argparse.Action) -> str:
    return ' '.join(action.option_strings) or action.metavar or action.dest


def _describe(action: argparse.Action) -> Any:
    choices = action.choices and list(action.choices)
    facts = {
        'metavar': action.metavar if action.option_strings else None,
        'choices': choices,
        'nargs': action.nargs,
        'alone': action.const if action.nargs == '?' else None,
        # The version of mmstable is none.
        'default': None if action.nargs == 0 else action.default,
        # Whether a positional one is depends on `nargs`.
        'required': bool(action.option_strings) and action.required or None,
    }
    unset = (None, argparse.SUPPRESS)
    found = {key: one for key, one in facts.items() if one not in unset}
    return 'flag' if found == {'nargs': 0} else found


def exit_codes(seen: Outside) -> Any:
    named = outside.exit_codes()
    lines = [[], ['--help'], ['--version'], ['no-such-command']]
    for name in filter(None, outside.parsers()):
        lines += [[name, '--help'], [name, '--no-such-option']]
    lines += [
        ['check', 'missing.py'],
        ['check-data', 'missing.py'],
        ['estimate', 'missing.py'],
        ['inspect', 'missing.pth'],
        ['profile', 'missing.py'],
        ['protect', 'missing.py'],
        ['replay', 'missing'],
        ['report', 'missing'],
        ['train', 'missing.py'],
        ['upgrade', 'missing.py'],
    ]
    codes = seen.exit_codes(lines)
    texts = [' '.join(['mmstable', *words]) for words in lines]
    return {'by name': named, 'by command line': dict(zip(texts, codes))}


# Events.


def event_schema(seen: Outside) -> Any:
    classes = outside.event_classes()
    return {
        'schema': outside.event_schema(),
        'events': {name: _fields(cls) for name, cls in classes.items()},
    }


def event_lines(seen: Outside) -> str:
    """Each event with all of its fields, and with those that it must have."""
    lines = []
    for name, schema in event_schema(seen)['events'].items():
        needed = {k: v for k, v in schema.items() if not k.endswith('?')}
        for some, number in ((schema, 0.5), (needed, 'NaN')):
            line = {'event': name, **_example(some, number)}
            lines.append(outside.rewrite_event(json.dumps(line).encode()))
    return b''.join(lines).decode()


def _fields(cls: Any) -> dict[str, Any]:
    """The fields of a class as JSON has them; `?` if one may be missing."""
    kinds = get_type_hints(cls)
    return {
        name if one.default is one.empty else f'{name}?': _kind(kinds[name])
        for name, one in inspect.signature(cls).parameters.items()
    }


def _kind(kind: Any) -> Any:
    args = get_args(kind)
    if get_origin(kind) is Union:
        return {'or null': _kind(args[0])}
    if get_origin(kind) is tuple:
        return {'array of': _kind(args[0])}
    if args:
        return {'object of': _kind(args[1])}
    if kind is Any:
        return 'Any'
    if kind in (bool, int, float, str):
        return kind.__name__
    if issubclass(kind, Enum):
        return {'one of': [one.value for one in kind]}
    return {'object with': _fields(kind)}


def _example(schema: dict[str, Any], number: Any) -> dict[str, Any]:
    return {k.rstrip('?'): _value(v, number) for k, v in schema.items()}


def _value(kind: Any, number: Any) -> Any:
    plain = {'bool': True, 'int': 1, 'float': number, 'str': 'x', 'Any': 2}
    if isinstance(kind, str):
        return plain[kind]
    ((shape, of),) = kind.items()
    if shape == 'one of':
        return of[0]
    if shape == 'object with':
        return _example(of, number)
    value = _value(of, number)
    return {'array of': [value], 'object of': {'key': value}}.get(shape, value)


# Files.


def files(seen: Outside) -> str:
    """Those of a run, but for what mmengine writes by itself."""
    work = seen.run('en') / 'work'
    names = [str(x.relative_to(work)) for x in work.rglob('*') if x.is_file()]
    ours = [x for x in names if 'vis_data' not in x and '.log' not in x]
    return _sorted(re.sub(r'\d+', 'N', name) for name in ours)


def checkpoint(seen: Outside) -> Any:
    work = seen.run('en') / 'work'
    return {
        'iter_8.pth': _layout(read_saved(work / 'iter_8.pth')),
        'iter_8.pth.json': _json_tree(work / 'iter_8.pth.json'),
        'emergency_iter_10.pth': sorted(
            read_saved(work / 'emergency_iter_10.pth')
        ),
    }


def _layout(saved: dict[str, Any]) -> Any:
    """Of what mmengine and torch save, no more than that it is there."""
    optimizer = dict(saved['optimizer'])
    del optimizer['state'], optimizer['param_groups']
    scalars = saved['message_hub']['log_scalars']
    return {
        **{key: type(value).__name__ for key, value in saved.items()},
        'optimizer': _tree(optimizer),
        'log_scalars': sorted(x for x in scalars if 'stable' in x),
        'mmstable': _tree(saved['mmstable']),
    }


def bundle(seen: Outside) -> Any:
    work = seen.run('en') / 'work'
    (folder,) = work.glob('*/stability/faults/iter_9')
    return {
        'bundle.json': _json_tree(folder / 'bundle.json'),
        'verdict.json': _json_tree(folder / 'verdict.json'),
        'step.pth': _tree(read_saved(folder / 'step.pth')),
        'model.pth': _tree(read_saved(folder / 'model.pth')),
    }


def _json_tree(path: Path) -> Any:
    return _tree(json.loads(path.read_text(encoding='utf-8')))


def _tree(value: Any) -> Any:
    if not isinstance(value, dict):
        return type(value).__name__
    # Attributes of torch's samplers are no business of ours.
    return {
        str(key): 'dict' if key == 'samplers' else _tree(item)
        for key, item in value.items()
    }


# Lines.


def lines_en(seen: Outside) -> str:
    return _lines(seen.run('en'))


def lines_zh_cn(seen: Outside) -> str:
    return _lines(seen.run('zh_cn'))


def _lines(folder: Path) -> str:
    """The shapes of what mmstable has logged and printed."""
    found = []
    log = (folder / 'lines_of_mmstable.jsonl').read_text(encoding='utf-8')
    for record in log.splitlines():
        level, message = json.loads(record)
        first, *rest = message.splitlines()
        found += [f'log {level}: {first}', *(f'log: {x}' for x in rest)]
    printed = (folder / 'all_printed').read_text(encoding='utf-8')
    found += [x for x in printed.splitlines() if x.startswith('mmstable ')]
    return _sorted(_shape(line, folder) for line in found)


def _shape(line: str, folder: Path) -> str:
    for known in (folder.resolve(), folder, outside.PACKAGE.parent):
        line = line.replace(f'{known}/', '')
    return re.sub(NUMBER, 'N', line)


def _sorted(lines: Any) -> str:
    return ''.join(f'{line}\n' for line in sorted(set(lines)))


SNAPSHOTS: dict[str, Callable[[Outside], Any]] = {
    'config_strings.json': config_strings,
    'public_names.json': public_names,
    'refused_settings.json': refused_settings,
    'commands.json': commands,
    'exit_codes.json': exit_codes,
    'event_schema.json': event_schema,
    'event_lines.jsonl': event_lines,
    'files.txt': files,
    'checkpoint.json': checkpoint,
    'bundle.json': bundle,
    'lines_en.txt': lines_en,
    'lines_zh_cn.txt': lines_zh_cn,
}


def take(name: str, seen: Outside) -> str:
    """A snapshot as its file has it."""
    found = SNAPSHOTS[name](seen)
    if name.endswith('.json'):
        found = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True)
        found += '\n'
    return found
