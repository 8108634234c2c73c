"""All rules of ``mmstable check``, for the terminal and for the docs."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.messages import say
from mmstable.preflight import rules  # noqa: F401
from mmstable.preflight.rule import RULES, Rule


def rule_lines() -> Iterator[str]:
    """A line for each rule."""
    width = max(map(len, RULES))
    for one in RULES.values():
        severity = say(f'severity.{one.severity.value}')
        yield f'{one.id:{width}}  {severity:7}  {_about(one)}'
    yield say('check_list.header', rules=len(RULES))


def rule_table() -> str:
    """The rules as a table in Markdown."""
    rows = [
        f'| `{one.id}` | {say(f"severity.{one.severity.value}")} '
        f'| {_about(one)} |'
        for one in RULES.values()
    ]
    head = f'| {say("check_list.id")} | {say("check_list.severity")} '
    head += f'| {say("check_list.why")} |'
    return '\n'.join([head, '|---|---|---|', *rows]) + '\n'


def _about(one: Rule) -> str:
    return say(f'check_why.{one.id}')
