"""Tell what protection changes."""

from __future__ import annotations

from collections.abc import Iterator

from mmstable.messages import _
from mmstable.protection.change import Group, Protection


def protection_lines(protection: Protection, title: str) -> Iterator[str]:
    """A line for each kind of change; nothing for none.

    Args:
        protection (Protection): What is changed.
        title (str): What to put above the changes.
    """
    if protection.strategy:
        yield _(
            'nothing is protected: {name} brings optimizers and checkpoints '
            'of its own.',
            name=protection.strategy,
        )
        return
    if protection.changes:
        yield title
    for line in _groups(protection):
        yield f'  {line}'
    if protection.left:
        items = [f'{one.where} ({one.kind})' for one in protection.left]
        indent = '  ' if protection.changes else ''
        yield indent + _(
            'left alone, no safe class fits: {items}', items=items
        )


def _groups(protection: Protection) -> Iterator[str]:
    classes = protection.words(Group.CLASS)
    if classes:
        yield _('made safe, arguments kept: {paths}', paths=classes)
    hooks = protection.words(Group.HOOK)
    if hooks:
        yield _('hooks added: {names}', names=hooks)
    settings = protection.words(Group.SETTING)
    if settings:
        yield _('set: {settings:; }', settings=settings)
    backends = protection.words(Group.BACKEND)
    if backends:
        yield _('kept from blocking the run: {names}', names=backends)
