"""Both languages say the same, and nothing is said that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from mmstable.messages.catalogue import CATALOGUE
from mmstable.messages.language import LANGUAGES

PACKAGE = Path(__file__).parents[2] / 'mmstable'
# Ideographs, and the punctuation that goes with them.
CHINESE = re.compile('[\u4e00-\u9fff\u3000-\u303f\uff00-\uffef]')


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def uses() -> list[tuple[str, str, set[str] | None]]:
    """Where something is said: file and line, key, fields if known.

    A part of a key that is computed is '*'.
    """
    found = []
    for path in sorted(PACKAGE.rglob('*.py')):
        tree = ast.parse(path.read_text(encoding='utf-8'))
        name = name_of_say(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (
                isinstance(node.func, ast.Name) and node.func.id == name
            ):
                given = {word.arg for word in node.keywords}
                where = f'{path.relative_to(PACKAGE)}:{node.lineno}'
                for key in keys_of(node.args[0]):
                    found.append(
                        (where, key, None if None in given else given)
                    )
    return found


def name_of_say(tree: ast.Module) -> str | None:
    """What a file calls the function that it has imported."""
    for node in tree.body:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == 'mmstable.messages'
        ):
            for name in node.names:
                if name.name == 'say':
                    return name.asname or name.name
    return None


def keys_of(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return keys_of(node.body) + keys_of(node.orelse)
    if isinstance(node, ast.JoinedStr):
        parts = [
            part.value if isinstance(part, ast.Constant) else '*'
            for part in node.values
        ]
        return [''.join(map(str, parts))]
    raise TypeError(f'a key that nobody can look up: {ast.dump(node)}')


USES = uses()


def matches(pattern: str) -> list[str]:
    expression = re.escape(pattern).replace(r'\*', r'\w+')
    return [key for key in CATALOGUE if re.fullmatch(expression, key)]


@pytest.mark.parametrize('key', CATALOGUE)
def test_all_languages_have_the_same_fields(key):
    message = CATALOGUE[key]
    assert message._fields == LANGUAGES
    assert all(message)
    assert fields(message.en) == fields(message.zh_cn)


@pytest.mark.parametrize('key', CATALOGUE)
def test_each_language_is_itself(key):
    message = CATALOGUE[key]
    assert not CHINESE.search(message.en)
    # What is nothing but fields has no language.
    if re.sub('{.*?}', '', message.en).strip(' ;,'):
        assert CHINESE.search(message.zh_cn)
    assert 'NaN/inf' not in message.zh_cn
    assert '|' not in message.zh_cn


def test_something_is_said():
    assert len(USES) > 50


@pytest.mark.parametrize(
    ('where', 'key', 'given'), USES, ids=[where for where, _, _ in USES]
)
def test_what_is_said_is_in_the_catalogue(where, key, given):
    found = matches(key)
    assert found, f'{where}: no message {key!r}'
    if given is not None:
        for one in found:
            assert fields(CATALOGUE[one].en) == given, one


@pytest.mark.parametrize('key', CATALOGUE)
def test_no_message_is_left_over(key):
    assert any(key in matches(pattern) for _, pattern, _ in USES)


def test_no_key_is_in_two_files():
    folder = PACKAGE / 'messages' / 'catalogue'
    keys = []
    for path in sorted(folder.glob('[!_]*.py')):
        keys += re.findall(r"^    '([\w.]+)': Message", path.read_text(), re.M)
    assert sorted(keys) == sorted(CATALOGUE)
