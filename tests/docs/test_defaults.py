"""Documented defaults are the defaults."""

from __future__ import annotations

import ast
import inspect
import re
import sys

import pytest

from mmstable.oom.strategies import OomSettings
from tests.docs.pages import PAGES, ROOT, page_id, read

sys.path.insert(0, str(ROOT / 'docs'))

from generated_parts import registered_classes  # noqa: E402

CLASSES = [cls for many in registered_classes().values() for cls in many]
TABLES = r'\| (?:setting|设置|参数) \| (?:default|默认值?) \|.*\n(?:\|.*\n)+'
DEFAULT = re.compile(r'Defaults to (.+?)(?:, which|\.(?: |$)|$)')
ARGUMENT = re.compile(r'^    (\w+) \(.+?\): (.*)$')


def own_arguments(cls):
    """Those of the class itself, or of a function that stands for one."""
    make = vars(cls).get('__init__') if inspect.isclass(cls) else cls
    return {} if make is None else inspect.signature(make).parameters


def arguments_of(cls):
    """All arguments, those of a parent's `**kwargs` included."""
    parents = cls.__mro__[-2::-1] if inspect.isclass(cls) else [cls]
    return {k: v for one in parents for k, v in own_arguments(one).items()}


def documented(cls):
    """Name and text of each argument in a docstring."""
    section = re.split(r'\n\w+:\n', '\n' + inspect.getdoc(cls) + '\n')
    heads = re.findall(r'\n(\w+):\n', '\n' + inspect.getdoc(cls) + '\n')
    if 'Args' not in heads:
        return {}
    texts, name = {}, None
    for line in section[1 + heads.index('Args')].splitlines():
        found = ARGUMENT.match(line)
        if found:
            name = found[1]
            texts[name] = found[2]
        elif name:
            texts[name] += ' ' + line.strip()
    return texts


class Words(str):
    """A default that is told in words, because it is worked out."""


def value(text):
    """What a documented default means."""
    try:
        return ast.literal_eval(text.strip().strip('`').rstrip('.'))
    except (ValueError, SyntaxError):
        return Words(text)


@pytest.mark.parametrize('cls', CLASSES, ids=lambda cls: cls.__name__)
def test_docstrings_tell_every_argument_and_its_default(cls):
    texts = documented(cls)
    for name, one in own_arguments(cls).items():
        if name == 'self' or one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        assert name in texts, f'`{name}` is not documented'
        if one.default is not one.empty:
            found = DEFAULT.search(texts[name])
            assert found, f'the default of `{name}` is not documented'
            assert value(found[1]) == one.default, name


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_tables_of_settings_have_the_defaults(page):
    text = read(page)
    near = [c for c in (*CLASSES, OomSettings) if is_about(text, c)]
    for table in re.findall(TABLES, text):
        for row in re.findall(r'^\| `(\w+)` \| (.+?) \|', table, re.M):
            assert_default(near, *row)


def is_about(text, cls):
    return cls is OomSettings or cls.__name__ in text


def assert_default(classes, name, told):
    real = [
        arguments_of(cls)[name].default
        for cls in classes
        if name in arguments_of(cls)
    ]
    assert real, f'no class of this page has a setting `{name}`'
    default = value(told)
    if isinstance(default, Words):
        assert not all(real), f'`{name}` has a default of its own: {real}'
    else:
        assert default in real, name
