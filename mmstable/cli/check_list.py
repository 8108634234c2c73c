"""All rules of ``mmstable check``, for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.messages import _
from mmstable.preflight import rules  # noqa: F401
from mmstable.preflight.rule import RULES, Rule
from mmstable.preflight.texts import RULE_TEXTS


def rule_lines() -> Iterator[str]:
    """A line for each rule."""
    width = max(map(len, RULES))
    for one in RULES.values():
        severity = one.severity.label
        yield f'{one.id:{width}}  {severity:7}  {_about(one)}'
    yield _(
        '{rules:rule|rules}; ignore one by `stability_checks = '
        'dict(ignore=[...])` in the config',
        rules=len(RULES),
    )


def rule_table() -> str:
    """The rules as a table in Markdown."""
    rows = [
        f'| `{one.id}` | {one.severity.label} | {_about(one)} |'
        for one in RULES.values()
    ]
    names = (
        _('rule'),
        _('severity'),
        _('why'),
    )
    head = f'| {" | ".join(names)} |'
    return '\n'.join([head, '|---|---|---|', *rows]) + '\n'


def _about(one: Rule) -> str:
    return _(RULE_TEXTS[one.id].why)
