"""Tell what protection changes."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.messages import say
from mmstable.protection.change import Group, Protection


def protection_lines(protection: Protection, title: str) -> Iterator[str]:
    """A line for each kind of change; nothing for none.

    Args:
        protection (Protection): What is changed.
        title (str): What to put above the changes.
    """
    if protection.strategy:
        yield say('protect.engine', name=protection.strategy)
        return
    if protection.changes:
        yield title
    for line in _groups(protection):
        yield f'  {line}'
    if protection.left:
        items = [f'{one.where} ({one.kind})' for one in protection.left]
        indent = '  ' if protection.changes else ''
        yield indent + say('protect.left', items=items)


def _groups(protection: Protection) -> Iterator[str]:
    classes = protection.words(Group.CLASS)
    if classes:
        yield say('protect.classes', paths=classes)
    hooks = protection.words(Group.HOOK)
    if hooks:
        yield say('protect.hooks', names=hooks)
    settings = protection.words(Group.SETTING)
    if settings:
        yield say('protect.settings', settings=settings)
    backends = protection.words(Group.BACKEND)
    if backends:
        yield say('protect.backends', names=backends)
