"""Check a config with all rules."""

from __future__ import annotations

from typing import Any

from mmstable.check import rules  # noqa: F401
from mmstable.check.config_tree import ConfigView, changed
from mmstable.check.rule import RULES, Rule, Violation
from mmstable.check.source import ConfigSource
from mmstable.finding import Finding, Severity
from mmstable.legacy.render import one_line
from mmstable.messages import _, printable
from mmstable.settings import known_settings, names

FAILED = 'rule_failed'


def check_config(
    view: ConfigView,
    source: ConfigSource | None = None,
    at_start: bool = False,
) -> list[Finding]:
    """Return the findings of all rules, the worst first.

    A rule that raises is a finding itself. Rules that the config ignores, in
    ``stability_checks``, are skipped.

    Args:
        view (ConfigView): The config.
        source (ConfigSource, optional): Finds the lines of its files; None
            if they are not needed. Defaults to None.
        at_start (bool): Whether to apply those rules only that are reported
            when a training starts; fatal ones cannot be ignored then.
            Defaults to False.
    """
    ignored = ignored_rules(view)
    chosen = [one for one in RULES.values() if one.id not in ignored]
    if at_start:
        chosen = [
            one
            for one in chosen
            if one.at_start and one.severity is not Severity.HINT
        ]
        fatal = (one for one in RULES.values() if one.is_fatal)
        chosen += [one for one in fatal if one.id in ignored]
    found = [
        finding for one in chosen for finding in _apply(one, view, source)
    ]
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))


def ignored_rules(view: ConfigView) -> tuple[str, ...]:
    """Return the rules that ``stability_checks`` of a config turns off."""
    settings = view.get('stability_checks') or {}
    known_settings('stability_checks', settings, ['ignore'])
    ignored = names('stability_checks', 'ignore', settings.get('ignore', []))
    known_settings('stability_checks.ignore', ignored, [*RULES, FAILED])
    return ignored


def _apply(
    one: Rule, view: ConfigView, source: ConfigSource | None
) -> list[Finding]:
    try:
        # A list: a later violation may raise.
        return [_finding(one, v, view, source) for v in one.check(view)]
    except Exception as error:
        reason = printable(f'{type(error).__name__}: {error}')
        what = _('rule {name} raised {error}', name=one.id, error=reason)
        why = _('A failed rule reports nothing; other rules are unaffected.')
        fix = _('please report this bug, with the config')
        return [Finding(FAILED, Severity.WARNING, what, one.id, why, fix)]


def _finding(
    one: Rule,
    violation: Violation,
    view: ConfigView,
    source: ConfigSource | None,
) -> Finding:
    lines = [config_line(path, v) for path, v in violation.change.items()]
    return Finding(
        one.id,
        one.severity,
        _(one.what, view=view, **violation.fields),
        violation.path,
        _(one.why),
        '; '.join(lines) if lines else _(one.fix),
        source.line_of(violation.path) if source is not None else '',
        violation.change,
    )


def config_line(path: str, value: Any) -> str:
    """Return one setting as a line of a config."""
    top, *names = path.split('.')
    if any(name.isdigit() for name in names):
        # A line of Python; a config has to contain the whole list.
        keys = [n if n.isdigit() else repr(n) for n in names]
        return f'{top}[{"][".join(keys)}] = {one_line(value, path)}'
    nested = changed({}, {path: value})
    return f'{top} = {one_line(nested[top], top)}'
