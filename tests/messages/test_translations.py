"""Everything that is said has a translation that says the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from mmstable.events.records import Fault
from mmstable.events.step_lines import ADVICE
from mmstable.messages import PO_FILE, read_po
from tests.messages.update_po import (
    PACKAGE,
    all_texts,
    calls,
    literals,
    reports,
    texts_of,
)

# Ideographs, and the punctuation that goes with them.
CHINESE = re.compile('[\u4e00-\u9fff\u3000-\u303f\uff00-\uffef]')
TEXTS = all_texts()
PO = read_po()


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


# Not a test for each text: there are more than a thousand of them.


def test_every_text_has_a_translation():
    assert len(TEXTS) > 1000
    assert [text for text in TEXTS if text not in PO] == []


def test_no_translation_is_left_over():
    assert [text for text in PO if text not in TEXTS] == []


def test_the_file_has_nothing_else():
    # Plurals, contexts and doubtful entries are not read.
    lines = PO_FILE.read_text(encoding='utf-8').splitlines()
    kinds = {line.split()[0] for line in lines if line}
    assert {kind for kind in kinds if kind[0] != '"'} == {
        '#',
        '#:',
        'msgid',
        'msgstr',
    }
    assert sum(line.startswith('msgid ') for line in lines) == len(PO) + 1


def test_both_languages_have_the_same_fields():
    assert [
        en for en, zh_cn in PO.items() if fields(en) != fields(zh_cn)
    ] == []


def test_each_language_is_itself():
    assert [
        en
        for en, zh_cn in PO.items()
        if CHINESE.search(en)
        # What is nothing but fields has no language.
        or (
            re.sub('{.*?}', '', en).strip(' ;,()')
            and not CHINESE.search(zh_cn)
        )
        or 'NaN/inf' in zh_cn
        or '|' in zh_cn
    ] == []


# Faults of the run as a whole, or of a step that is not done.
_OF_RUNS = (Fault.POISONED, Fault.DIVERGED, Fault.DEAD, Fault.CRASH)


@pytest.mark.parametrize(
    'fault', [one for one in Fault if one not in _OF_RUNS]
)
def test_every_fault_of_a_step_has_advice(fault):
    # A run must not end because there is nothing to say about its faults.
    assert fault.value in ADVICE


def test_texts_can_be_found():
    """What is not put together from pieces can be looked up."""
    assert [
        where(path, node)
        for path, node in calls()
        if any(
            isinstance(one, (ast.JoinedStr, ast.BinOp))
            for one in (node.args[0], getattr(node.args[0], 'body', None))
        )
    ] == []


def test_nothing_else_is_called_underscore():
    """A loop over `_` would hide the function."""
    found = []
    for path in sorted(
        {path for path, node in calls() if node.func.id == '_'}
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            is_stored = isinstance(node, ast.Name) and (
                node.id == '_' and isinstance(node.ctx, ast.Store)
            )
            if is_stored or (isinstance(node, ast.arg) and node.arg == '_'):
                found.append(where(path, node))
    assert found == []


def test_every_field_is_given():
    assert [
        (where(path, node), text)
        for path, node in calls()
        if node.func.id in ('_', 'tell', 'usage_error')
        for given in [{word.arg for word in node.keywords}]
        if None not in given
        for text in possible_texts(path, node.args[0])
        if fields(text) != given
    ] == []


def test_every_field_of_a_report_is_given():
    found = [
        (where(path, node), text, {word.arg for word in node.keywords})
        for path, node in reports()
        for text in reported_texts(path, node)
    ]
    assert len(found) > 30
    assert [one for one in found if fields(one[1]) != one[2]] == []


def reported_texts(path: Path, node: ast.Call) -> list[str]:
    """The literal, or the last ``why = N_('...')`` before the call."""
    (text,) = texts_of(path, node)
    if not isinstance(text, ast.Name):
        return literals(text)
    marked = [
        call.args[0]
        for file, call in calls()
        if (file, call.func.id) == (path, 'N_') and call.lineno < node.lineno
    ]
    return [found for one in marked[-1:] for found in literals(one)]


def where(path: Path, node: Any) -> str:
    return f'{path.relative_to(PACKAGE)}:{node.lineno}'


def possible_texts(path: Path, node: ast.expr) -> Iterator[str]:
    """Literals, a constant, or all values of a table."""
    yield from literals(node)
    base: Any = node
    while isinstance(base, (ast.Attribute, ast.Subscript)):
        base = base.value
    if not isinstance(base, ast.Name):
        return
    name = '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts)
    found = getattr(import_module(name), base.id, None)
    if isinstance(found, dict):
        for value in found.values():
            if isinstance(node, ast.Attribute):
                yield getattr(value, node.attr)
            elif isinstance(value, str):
                yield value
            elif isinstance(node, ast.Subscript):
                # A column of a table of rows.
                yield value[ast.literal_eval(node.slice)]
    elif isinstance(found, str):
        yield found
