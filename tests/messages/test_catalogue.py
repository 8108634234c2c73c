"""Both languages say the same, and nothing is said that is not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter

import pytest

from mmstable.events.step_report import Fault
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
    if '*' not in pattern:
        return [pattern] if pattern in CATALOGUE else []
    expression = re.escape(pattern).replace(r'\*', r'\w+')
    return [key for key in CATALOGUE if re.fullmatch(expression, key)]


# Not a test for each key: there are more than a thousand of them.


def test_all_languages_have_the_same_fields():
    assert [
        key
        for key, message in CATALOGUE.items()
        if message._fields != LANGUAGES
        or not all(message)
        or fields(message.en) != fields(message.zh_cn)
    ] == []


def test_each_language_is_itself():
    assert [
        key
        for key, message in CATALOGUE.items()
        if CHINESE.search(message.en)
        # What is nothing but fields has no language.
        or (
            re.sub('{.*?}', '', message.en).strip(' ;,')
            and not CHINESE.search(message.zh_cn)
        )
        or 'NaN/inf' in message.zh_cn
        or '|' in message.zh_cn
    ] == []


@pytest.mark.parametrize(
    'fault', [one for one in Fault if one is not Fault.POISONED]
)
def test_every_fault_of_a_step_has_advice(fault):
    # A run must not end because there is nothing to say about its faults.
    assert f'steps.advice.{fault.value}' in CATALOGUE


def test_something_is_said():
    assert len(USES) > 50


def test_what_is_said_is_in_the_catalogue():
    assert [(where, key) for where, key, _ in USES if not matches(key)] == []
    assert [
        (where, one)
        for where, key, given in USES
        if given is not None
        for one in matches(key)
        if fields(CATALOGUE[one].en) != given
    ] == []


def test_no_message_is_left_over():
    said = {key for _, pattern, _ in USES for key in matches(pattern)}
    assert sorted(set(CATALOGUE) - said) == []


def test_no_key_is_in_two_files():
    folder = PACKAGE / 'messages' / 'catalogue'
    keys = []
    for path in sorted(folder.glob('[!_]*.py')):
        keys += re.findall(r"^    '([\w.]+)': Message", path.read_text(), re.M)
    assert sorted(keys) == sorted(CATALOGUE)
