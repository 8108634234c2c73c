"""Write a config that inherits from another one, and mends it."""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from mmengine.config import Config

from mmstable.cli.command import say as say_for
from mmstable.cli.texts import OLD_CONFIG
from mmstable.cli.written_config import check_target, relative, write_config
from mmstable.errors import UsageError
from mmstable.finding import Finding
from mmstable.legacy.config.difference import difference
from mmstable.legacy.config.keys import old_keys_of
from mmstable.legacy.config.render import comment, render_setting
from mmstable.messages import _
from mmstable.preflight.check_config import check_config
from mmstable.preflight.config_tree import changed
from mmstable.preflight.config_view import ConfigView


class Mended(NamedTuple):
    """A config after everything that rules know to mend.

    Args:
        view (ConfigView): The config.
        done (list): What was mended.
        left (list): What was not.
    """

    view: ConfigView
    done: list[Finding]
    left: list[Finding]


def write_fix(args: argparse.Namespace, view: ConfigView) -> None:
    """Write what ``--fix`` asks for, and say what it leaves to the user.

    Args:
        args (argparse.Namespace): Has ``config``, ``fix`` and
            ``cfg_options``.
        view (ConfigView): The config.
    """
    mended = mend(view)
    if mended.done:
        base = relative(args.config, os.path.dirname(args.fix))
        write_config(args.fix, overlay(view, mended, base))
        _say(_('written to {path}', path=args.fix))
    else:
        _say(
            _(
                'nothing that can be mended by itself; {path} is not written',
                path=args.fix,
            )
        )
    if mended.left:
        left = sorted({one.id for one in mended.left})
        _say(_('not mended, to be decided by you: {names}', names=left))


def refuse_fix(args: argparse.Namespace, view: ConfigView) -> None:
    """Say why nothing can be written, before anything is checked."""
    check_target(args.fix)
    if args.cfg_options:
        raise UsageError(
            _(
                '--fix: leave --cfg-options out, they are not in the file '
                'that is written.'
            )
        )
    if old_keys_of(view.written):
        raise UsageError(_(OLD_CONFIG, path=args.config))
    if Config._is_lazy_import(args.config):
        raise UsageError(
            _(
                '--fix: {path} is a config in the style of Python imports, '
                'which a file with `_base_` cannot inherit from.',
                path=args.config,
            )
        )


def mend(view: ConfigView) -> Mended:
    """Mend one thing after the other, until no rule knows more.

    One at a time, because what mends one may move, or cause, another.
    """
    done: list[Finding] = []
    tried: set[tuple[str, str]] = set()
    while True:
        findings = check_config(view)
        for one in findings:
            if one.change and (one.id, one.path) not in tried:
                break
        else:
            return Mended(view, done, findings)
        tried.add((one.id, one.path))
        done.append(one)
        view = view.with_settings(changed(view.settings, one.change))


def overlay(view: ConfigView, mended: Mended, base: str) -> str:
    """The text of a config on top of another one.

    Args:
        view (ConfigView): The config below it.
        mended (Mended): What it shall be.
        base (str): How to name the config below.
    """
    names = sorted({one.id for one in mended.done})
    title = comment(
        _(
            'Written by `mmstable check --fix`: {base} without {names}.',
            base=base,
            names=names,
        )
    )
    blocks = [f'{title}\n{render_setting("_base_", base)}']
    changes = difference(view.settings, mended.view.settings)
    for key, value in changes.items():
        texts = [
            f'{one.id}: {one.what}'
            for one in mended.done
            if any(path.split('.')[0] == key for path in one.change)
        ]
        about = comment(' '.join(dict.fromkeys(texts)))
        blocks.append(f'{about}\n{render_setting(key, value)}')
    return '\n\n'.join(blocks) + '\n'


def _say(text: str) -> None:
    say_for('check', text)
