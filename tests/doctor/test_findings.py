"""The table of findings fits the code that reports them."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

from mmstable.doctor import __path__ as FOLDER
from mmstable.doctor import read_data
from mmstable.finding import Severity

FINDINGS = read_data('findings.json')


def reported() -> list[tuple[str, set[str] | None]]:
    """Ids, and the fields that are given; None if they are in a dict."""
    calls = []
    for path in Path(FOLDER[0]).glob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if getattr(getattr(node, 'func', None), 'id', '') == 'found':
                given = {word.arg for word in node.keywords}
                calls.append(
                    (node.args[0].value, None if None in given else given)
                )
    return calls


def test_every_finding_is_declared_and_reported():
    assert {id for id, _ in reported()} == set(FINDINGS)


def test_every_field_of_a_finding_is_given():
    for id, given in reported():
        parsed = Formatter().parse(FINDINGS[id]['what'])
        needed = {name for _, name, _, _ in parsed if name}
        assert given is None or given == needed, id


def test_every_finding_has_all_it_takes():
    for row in FINDINGS.values():
        assert set(row) == {'severity', 'what', 'why', 'fix'}
        assert all(row.values())
        assert Severity(row['severity'])
