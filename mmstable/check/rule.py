"""Declare the rules of ``mmstable check``.

A rule about a single setting is a row: a call of :func:`setting`. Any other
rule is a function with :func:`error`, :func:`warning` or :func:`hint` as its
decorator. The texts are part of the declaration; ``{view.length}`` and other
properties of the :class:`ConfigView` can be used in ``what``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from mmstable.check.config_tree import ABSENT, ConfigView, Part
from mmstable.finding import Severity

Changes = Mapping[str, Any]


class Violation:
    """A setting that breaks a rule.

    Args:
        path (str): The setting.
        change (Mapping, optional): From paths to the values that fix it;
            None if the user has to decide. Defaults to None.
        **fields: Values for the ``what`` of the rule. ``path`` is the setting
            unless it is given.
    """

    def __init__(
        self, path: str, change: Changes | None = None, /, **fields: Any
    ) -> None:
        self.path = path
        self.change = dict(change or {})
        self.fields = {'path': path, **fields}


Check = Callable[[ConfigView], Iterator[Violation]]


@dataclass(frozen=True)
class Rule:
    """A mistake that a config is checked for.

    Args:
        id (str): Name in the list of ignored rules.
        severity (Severity): Consequence for the training.
        check (Callable): Yields the violations in a config.
        what (str): Description of a violation, with its fields.
        why (str): Consequence of a violation.
        fix (str): Advice; not needed if every violation has a change.
            Defaults to ''.
        is_fatal (bool): Whether no run can be built from such a config, so
            that ``mmstable train`` does not start. Defaults to False.
        at_start (bool): Whether to report it when a training starts.
            mmengine reports some mistakes itself. Defaults to True.
    """

    id: str
    severity: Severity
    check: Check
    what: str
    why: str
    fix: str = ''
    is_fatal: bool = False
    at_start: bool = True


RULES: dict[str, Rule] = {}


def rule(severity: Severity, **declared: Any) -> Callable[[Check], Check]:
    """Register a function as a rule of the same name.

    Args:
        severity (Severity): Severity of the rule.
        **declared: Other arguments of :class:`Rule`.
    """

    def register(check: Check) -> Check:
        id = check.__name__
        if id in RULES:
            raise ValueError(f'rule {id!r} is registered twice.')
        RULES[id] = Rule(id, severity, check, **declared)
        return check

    return register


error = partial(rule, Severity.ERROR)
warning = partial(rule, Severity.WARNING)
hint = partial(rule, Severity.HINT)


def setting(
    id: str,
    severity: Severity,
    path: str,
    wrong: Callable[[ConfigView, Part, Any], Any],
    right: Any = ABSENT,
    **declared: Any,
) -> None:
    """Register a rule about a single setting.

    ``what`` can use the fields ``path``, ``value`` and ``kind``, the class of
    the dict that holds the setting.

    Args:
        id (str): Name of the rule.
        severity (Severity): Severity of the rule.
        path (str): The setting. 'wrappers.*.dtype' is the ``dtype`` of each
            part in the list ``wrappers`` of a :class:`ConfigView`.
        wrong (Callable): Takes the config, the dict and the value; returns
            whether the value is wrong.
        right (Any): The value that fixes it. Unknown by default.
        **declared: Other arguments of :class:`Rule`.
    """
    parts, _, name = path.rpartition('.*.')

    def check(view: ConfigView) -> Iterator[Violation]:
        for part in getattr(view, parts) if parts else [view.root]:
            value = part.get(name)
            if wrong(view, part, value):
                where = part.at(name)
                change = {} if right is ABSENT else {where: right}
                yield Violation(where, change, value=value, kind=part.kind)

    check.__name__ = id
    rule(severity, **declared)(check)
