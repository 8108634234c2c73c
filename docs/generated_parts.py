"""Parts of the pages that are made from the code while Sphinx builds them.

A page has a mark where they go, a comment in Markdown: ``<!-- options -->``
for the registered classes, ``<!-- commands -->`` for the command line and
``<!-- events -->`` for the records of an event file.
Links to files outside of ``docs`` lead to the repository.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from typing import Any

from mmstable import register_all, registry
from mmstable.cli.main import build_parsers
from mmstable.events import StepReport
from mmstable.events.records import EVENTS
from mmstable.messages import LANGUAGES, use_language

_DEMO = 'mmstable.demo'
REPOSITORY = 'https://github.com/mmstable/mmstable/blob/main/'
# What a config can name, in the order of the page; the quick start's own
# model and data are no part of it.
REGISTRIES = (
    'OPTIM_WRAPPERS',
    'HOOKS',
    'LOOPS',
    'OPTIMIZERS',
    'PARAM_SCHEDULERS',
    'STRATEGIES',
    'DATASETS',
    'VISBACKENDS',
)


def setup(app: Any) -> None:
    """Have every page completed before it is parsed."""
    app.connect('config-inited', _speak)
    app.connect('source-read', _complete)


def _speak(app: Any, config: Any) -> None:
    """Have the help of the commands in the language of the pages."""
    lang = str(config.language).lower()
    use_language(lang if lang in LANGUAGES else None)


def _complete(app: Any, page: str, source: list[str]) -> None:
    text = source[0]
    for mark, make in _PARTS.items():
        if mark in text:
            text = text.replace(mark, make())
    source[0] = re.sub(r'\]\((?:\.\./)+(?!images/)', f']({REPOSITORY}', text)


def registered_classes() -> dict[str, list[type]]:
    """The classes that a config can name, by the name of their registry."""
    register_all()
    found = {}
    for name in REGISTRIES:
        node = getattr(registry, name)
        node.import_from_location()
        # A class may have a former name as well.
        classes = dict.fromkeys(node.module_dict.values())
        ours = [c for c in classes if not c.__module__.startswith(_DEMO)]
        found[name] = sorted(ours, key=lambda cls: cls.__name__)
    return found


def _all_classes() -> str:
    return '\n'.join(
        f'## {name}\n\n' + '\n'.join(map(_one_class, classes))
        for name, classes in registered_classes().items()
    )


def _one_class(cls: type) -> str:
    return f'### {cls.__name__}\n\n{_described(cls)}'


def _described(cls: type) -> str:
    # By the module, because that is where autodoc finds its source.
    path = f'{cls.__module__}.{cls.__name__}'
    kind = 'class' if inspect.isclass(cls) else 'function'
    return f'```{{eval-rst}}\n.. auto{kind}:: {path}\n```\n'


def _all_events() -> str:
    # A bad step has a section of its own.
    others = (cls for cls in EVENTS.values() if cls is not StepReport)
    return '\n'.join(map(_described, others))


def _all_commands() -> str:
    parsers = build_parsers()[1]
    return '\n'.join(_one_command(*item) for item in parsers.items())


def _one_command(name: str, parser: argparse.ArgumentParser) -> str:
    rows = '\n'.join(_rows(parser))
    return f'## `mmstable {name}`\n\n{parser.description}\n\n{rows}\n'


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield '| | |'
    yield '|---|---|'
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            yield f'| {_words(action)} | {_meaning(action)} |'


def _words(action: argparse.Action) -> str:
    names = ', '.join(f'`{name}`' for name in action.option_strings)
    value = '' if action.nargs == 0 else _value(action)
    return f'{names} {value}'.strip()


def _value(action: argparse.Action) -> str:
    if action.choices and not action.metavar:
        return ', '.join(f'`{choice}`' for choice in action.choices)
    metavar = action.metavar or action.dest.upper()
    return f'`{metavar}`'.replace('|', r'\|')


def _meaning(action: argparse.Action) -> str:
    values = {**vars(action), 'prog': 'mmstable'}
    text = (action.help or '') % values
    default = action.default
    if default not in (None, False, argparse.SUPPRESS, []):
        text += f' (`{default}`)'
    # A pipe would end the cell.
    return text.replace('|', r'\|').replace('\n', ' ')


_PARTS = {
    '<!-- options -->': _all_classes,
    '<!-- commands -->': _all_commands,
    '<!-- events -->': _all_events,
}
