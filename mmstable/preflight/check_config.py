"""Look a config through with all rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmstable.finding import Finding, Severity
from mmstable.legacy.config.render import one_line
from mmstable.messages import _
from mmstable.messages.printable import printable
from mmstable.preflight import rules  # noqa: F401
from mmstable.preflight.config_source import ConfigSource
from mmstable.preflight.config_tree import changed
from mmstable.preflight.config_view import ConfigView
from mmstable.preflight.rule import RULES, Hit, Rule
from mmstable.preflight.texts import RULE_TEXTS
from mmstable.settings import known_settings, names

FAILED = 'rule_failed'


def check_config(
    view: ConfigView, source: ConfigSource | None = None
) -> list[Finding]:
    """What all rules find, the worst first.

    A rule that fails is a finding itself. What the config says to ignore,
    in ``stability_checks``, is left out.

    Args:
        view (ConfigView): The config.
        source (ConfigSource, optional): Knows the lines of its files; None
            if nobody asks for them. Defaults to None.
    """
    ignored = ignored_rules(view)
    found = [
        finding
        for one in RULES.values()
        if one.id not in ignored
        for finding in _apply(one, view, source)
    ]
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


def impossible(view: ConfigView) -> Iterator[Finding]:
    """What no run can be built with; it cannot be ignored."""
    for one in RULES.values():
        for hit in one.look(view) if one.refuses else ():
            if hit.in_training:
                yield _finding(one, hit, None)


def ignored_rules(view: ConfigView) -> tuple[str, ...]:
    """The rules that ``stability_checks`` of a config switches off."""
    settings = view.get('stability_checks') or {}
    known_settings('stability_checks', settings, ['ignore'])
    ignored = names('stability_checks', 'ignore', settings.get('ignore', []))
    known_settings('stability_checks.ignore', ignored, [*RULES, FAILED])
    return ignored


def _apply(
    one: Rule, view: ConfigView, source: ConfigSource | None
) -> Iterator[Finding]:
    try:
        # All of it, before a later hit may fail.
        found = [_finding(one, hit, source) for hit in one.look(view)]
    except Exception as error:
        reason = printable(f'{type(error).__name__}: {error}')
        found = [
            Finding(
                FAILED,
                Severity.WARNING,
                one.id,
                _(
                    'the rule {name} has failed: {error}',
                    name=one.id,
                    error=reason,
                ),
                _(
                    'A rule that fails has found nothing, and hides nothing '
                    'else.'
                ),
                _('please report it, with the config'),
            )
        ]
    yield from found


def _finding(one: Rule, hit: Hit, source: ConfigSource | None) -> Finding:
    return Finding(
        one.id,
        one.severity,
        hit.path,
        _(RULE_TEXTS[one.id].what, **hit.fields),
        _(RULE_TEXTS[one.id].why),
        _fix(one.id, hit.change),
        source.line_of(hit.path) if source is not None else '',
        hit.change,
    )


def _fix(id: str, change: Mapping[str, Any]) -> str:
    """The change as a config would say it, or else advice."""
    if not change:
        return _(RULE_TEXTS[id].fix)
    lines = [config_line(path, value) for path, value in change.items()]
    return '; '.join(lines)


def config_line(path: str, value: Any) -> str:
    """One setting as a line of a config."""
    top, *names = path.split('.')
    if any(name.isdigit() for name in names):
        # A line of Python; in a config the list has to be written anew.
        keys = [n if n.isdigit() else repr(n) for n in names]
        return f'{top}[{"][".join(keys)}] = {one_line(value, path)}'
    nested = changed({}, {path: value})
    return f'{top} = {one_line(nested[top], top)}'
