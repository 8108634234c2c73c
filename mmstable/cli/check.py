"""``mmstable check``: say what would go wrong with a config."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.errors import UsageError
from mmstable.finding import Finding, Severity
from mmstable.messages import N_, _, printable

if TYPE_CHECKING:
    from mmstable.check.config_tree import ConfigView

_LEVELS = {
    Severity.ERROR: 'error',
    Severity.WARNING: 'warning',
    Severity.HINT: 'notice',
}


def check(args: argparse.Namespace) -> int:
    """Check a config, and return the exit code."""
    from mmstable.check import check_config
    from mmstable.check.source import ConfigSource
    from mmstable.cli import config

    if args.list:
        cli.show(*rule_lines())
        return 0
    if args.config is None:
        raise cli.usage_error('a config is missing.')
    options = config.read_options(args.cfg_options)
    view = _view(args, options)
    try:
        ignored = check_config.ignored_rules(view)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    if args.fix is not None:
        _refuse_fix(args, view)
    source = ConfigSource(args.config, tuple(options))
    findings = check_config.check_config(view, source)
    if args.format == 'json':
        content = {
            'config': args.config,
            'ignored': list(ignored),
            'findings': [one.as_dict() for one in findings],
        }
        print(json.dumps(content, indent=1))
    elif args.format == 'github':
        print('\n'.join(_github_lines(args.config, findings)))
    else:
        cli.show(*text_lines(args.config, findings, ignored))
    if args.fix is not None:
        _write_fix(args, view)
    return cli.exit_code(findings)


def _view(args: argparse.Namespace, options: dict[str, Any]) -> ConfigView:
    """The config as ``mmstable train`` would have it."""
    from mmstable.check.config_tree import ConfigView
    from mmstable.check.machine import Machine, try_out
    from mmstable.cli import config
    from mmstable.legacy.draft import old_keys_of

    cfg = config.load_config_anyway(args.config)
    written = config.plain_settings(cfg)
    cfg = config.modernize(cfg, options)
    trial = None
    if args.deep:
        with cli.working(_('building the config and trying it')):
            trial = try_out(cfg)
    machine = Machine.here()
    given = os.environ.get('WORLD_SIZE', '')
    default = int(given) if given.isdigit() else max(1, machine.gpus)
    return ConfigView(
        config.plain_settings(cfg),
        machine,
        ranks=args.ranks or default,
        file=args.config,
        written=written if old_keys_of(written) else None,
        trial=trial,
    )


def text_lines(
    path: str, findings: Sequence[Finding], ignored: Sequence[str] = ()
) -> Iterator[Any]:
    """A block for each finding, and the sum of them."""
    from mmstable.check.rule import RULES

    for one in findings:
        yield from cli.finding_lines(one)
    if ignored:
        yield _('ignored by `stability_checks`: {names}', names=list(ignored))
    text = N_('{path}: {counts} ({rules:rule|rules} checked)')
    if not findings:
        text = N_('{path}: no problems found ({rules:rule|rules} checked)')
    counts = cli.count_findings(findings)
    yield _(text, path=path, counts=counts, rules=len(RULES))


def _github_lines(path: str, findings: Sequence[Finding]) -> Iterator[str]:
    """A workflow command of GitHub for each finding."""
    for one in findings:
        file, __, line = one.source.rpartition(':')
        where = f'file={_escape(file or path)},line={line or 1}'
        text = printable(f'{one.path}: {one.what} {one.why} {one.fix}', 1000)
        level, text = _LEVELS[one.severity], _escape(text, ends=False)
        yield f'::{level} {where},title={one.id}::{text}'


def _escape(text: str, ends: bool = True) -> str:
    """Escape the special characters of a workflow command."""
    text = text.replace('%', '%25').replace('\r', '%0D').replace('\n', '%0A')
    return text.replace(':', '%3A').replace(',', '%2C') if ends else text


def rule_lines() -> Iterator[str]:
    """A line for each rule."""
    from mmstable.check.check_config import RULES

    width = max(map(len, RULES))
    for one in RULES.values():
        yield f'{one.id:{width}}  {one.severity.label:7}  {_(one.why)}'
    text = N_(
        '{rules:rule|rules}; ignore one by `stability_checks = '
        'dict(ignore=[...])` in the config'
    )
    yield _(text, rules=len(RULES))


def rule_table() -> str:
    """The rules as a table in Markdown, for the docs."""
    from mmstable.check.check_config import RULES

    rows = [(_('rule'), _('severity'), _('why'))]
    for one in RULES.values():
        rows.append((f'`{one.id}`', one.severity.label, _(one.why)))
    lines = [f'| {" | ".join(row)} |' for row in rows]
    lines.insert(1, '|---|---|---|')
    return '\n'.join(lines) + '\n'


def apply_fixes(
    view: ConfigView,
) -> tuple[ConfigView, list[Finding], list[Finding]]:
    """Fix one thing after the other, until no rule knows more.

    One at a time, because what fixes one may move, or cause, another.

    Returns:
        tuple: The config, what was fixed, and what was not.
    """
    from mmstable.check import check_config
    from mmstable.check.config_tree import changed

    done: list[Finding] = []
    tried: set[tuple[str, str]] = set()
    while True:
        findings = check_config.check_config(view)
        for one in findings:
            if one.change and (one.id, one.path) not in tried:
                break
        else:
            return view, done, findings
        tried.add((one.id, one.path))
        done.append(one)
        view = view.with_settings(changed(view.settings, one.change))


def _refuse_fix(args: argparse.Namespace, view: ConfigView) -> None:
    """Say why nothing can be written, before anything is checked."""
    from mmengine.config import Config

    from mmstable.cli import config

    config.check_target(args.fix)
    if args.cfg_options:
        raise cli.usage_error(
            '--fix: leave --cfg-options out, they are not in the file '
            'that is written.'
        )
    config.refuse_old(args.config, view.written)
    if Config._is_lazy_import(args.config):
        raise cli.usage_error(
            '--fix: {path} is a config in the style of Python imports, '
            'which a file with `_base_` cannot inherit from.',
            path=args.config,
        )


def _write_fix(args: argparse.Namespace, view: ConfigView) -> None:
    """Write what ``--fix`` asks for, and say what it leaves to the user."""
    from mmstable.cli import config

    new, done, left = apply_fixes(view)
    if done:
        base = config.relative(args.config, os.path.dirname(args.fix))
        config.write_config(args.fix, _overlay(view, new, done, base))
    else:
        text = N_(
            'nothing that can be fixed automatically; {path} is not written'
        )
        cli.tell(text, path=args.fix)
    if left:
        names = sorted({one.id for one in left})
        cli.tell('not fixed, to be decided by you: {names}', names=names)


def _overlay(
    view: ConfigView, new: ConfigView, done: Sequence[Finding], base: str
) -> str:
    """The text of a config on top of ``base``, the config of the view."""
    from mmstable.legacy.render import comment, difference, render_setting

    text = N_('Written by `mmstable check --fix`: {base} without {names}.')
    title = _(text, base=base, names=sorted({one.id for one in done}))
    blocks = [f'{comment(title)}\n{render_setting("_base_", base)}']
    for key, value in difference(view.settings, new.settings).items():
        texts = [
            f'{one.id}: {one.what}'
            for one in done
            if any(path.split('.')[0] == key for path in one.change)
        ]
        about = comment(' '.join(dict.fromkeys(texts)))
        blocks.append(f'{about}\n{render_setting(key, value)}')
    return '\n\n'.join(blocks) + '\n'


COMMAND = cli.Command(
    check,
    (
        cli.option('config', 'config file', nargs='?'),
        cli.number(
            '--ranks',
            1,
            'processes that will train; WORLD_SIZE, or one for each GPU '
            'here, by default',
        ),
        cli.flag(
            '--deep',
            'also build the model and the optimizer, and do one step '
            'with two samples on the CPU',
        ),
        cli.option(
            '--fix',
            'write a config that inherits from this one, and fixes what '
            'can be fixed automatically',
            metavar='OUT.py',
        ),
        cli.option(
            '--format',
            'how to print it; github is for annotations of its actions',
            choices=['text', 'json', 'github'],
            default='text',
        ),
        cli.flag('--list', 'list all rules, and exit'),
        cli.CFG_OPTIONS,
    ),
    'Find likely problems of a training before it starts. The config '
    'is run, as in training; nothing is built from it without --deep. '
    'Exit codes: 0 nothing but hints, {warnings} warnings, {errors} '
    'errors, 2 the config cannot be read.',
    {'warnings': cli.EXIT_WARNINGS, 'errors': cli.EXIT_ERRORS},
)
