"""What is a rule, and which are there?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from mmstable.finding import Severity
from mmstable.preflight.config_view import ConfigView


class Hit(NamedTuple):
    """A place of a config that a rule is about.

    Args:
        path (str): Which setting it is.
        fields (Mapping): For the text that says what is there.
            Defaults to {}.
        change (Mapping): From paths to the values that mend it.
            Defaults to {}.
        in_training (bool): Whether a training meets it, and not only a test
            afterwards. Defaults to True.
    """

    path: str
    fields: Mapping[str, Any] = {}
    change: Mapping[str, Any] = {}
    in_training: bool = True


Look = Callable[[ConfigView], Iterator[Hit]]


class Rule(NamedTuple):
    """Something that a config is looked through for.

    Its texts are in ``RULE_TEXTS``: what, with the fields of a hit, why, and
    a fix unless every hit has a change.

    Args:
        id (str): Its name, for the list of ignored ones.
        severity (Severity): How bad it is.
        look (Callable): Finds it.
        refuses (bool): Whether nothing can be built from such a config.
            Defaults to False.
        at_start (bool): Whether to tell it when a training starts. What
            mmengine then says by itself need not be said twice.
            Defaults to True.
    """

    id: str
    severity: Severity
    look: Look
    refuses: bool = False
    at_start: bool = True


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, refuses: bool = False, at_start: bool = True
) -> Callable[[Look], Look]:
    """Register a function as a rule.

    Args:
        id (str): The rule's name.
        severity (Severity): How bad it is.
        refuses (bool): Whether ``mmstable train`` does not even start.
            Defaults to False.
        at_start (bool): Whether to tell it when a training starts.
            Defaults to True.
    """

    def register(look: Look) -> Look:
        if id in RULES:
            raise ValueError(f'rule: there are two called {id!r}.')
        RULES[id] = Rule(id, severity, look, refuses, at_start)
        return look

    return register
