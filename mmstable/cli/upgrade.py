"""``mmstable upgrade``: from a config of mmcv 1.x to one of mmengine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from mmengine.config import Config

from mmstable.cli.base_files import direct_bases, new_bases, plain_settings
from mmstable.cli.command import LONGEST_LINE, say
from mmstable.cli.commands.upgrade import EXIT_INCOMPLETE
from mmstable.cli.config_file import load_config
from mmstable.cli.written_config import check_target, relative, write_config
from mmstable.errors import UsageError
from mmstable.finding import Severity
from mmstable.legacy.config import Translation, translate
from mmstable.legacy.config.difference import difference
from mmstable.legacy.config.render import render
from mmstable.messages import _
from mmstable.messages.printable import printable


def upgrade(path: str, output: str | None) -> int:
    """Translate a config, and return the exit code.

    Args:
        path (str): The config.
        output (str, optional): Where to write the new one; to stdout if None.
    """
    translation = translate(plain_settings(_load(path)))
    text = _text(path, output, translation)
    _report(path, translation)
    _write(output, text)
    if translation.of_severity(Severity.WARNING, Severity.ERROR):
        _say(
            _(
                'some settings have no counterpart (exit {code})',
                code=EXIT_INCOMPLETE,
            )
        )
        return EXIT_INCOMPLETE
    return 0


def _load(path: str) -> Config:
    # What it imports is code for mmcv 1.x, as a rule, and not needed here.
    cfg = load_config(path, import_modules=False)
    if cfg.get('custom_imports'):
        _say(
            _(
                '{path}: `custom_imports` is not imported; hooks from there '
                'are not known',
                path=path,
            )
        )
    return cfg


def _text(path: str, output: str | None, translation: Translation) -> str:
    if output is not None:
        check_target(output)
    target = os.path.dirname(output if output is not None else path)
    if not translation.changed and path.endswith('.py'):
        return _unchanged(path, target)
    bases = new_bases(path, translation.settings)
    inherited = {k: v for base in bases.values() for k, v in base.items()}
    return render(
        translation,
        os.path.basename(path),
        [relative(base, target) for base in bases],
        difference(inherited, translation.settings),
    )


def _unchanged(path: str, target: str) -> str:
    if direct_bases(path) and not os.path.samefile(
        target or '.', os.path.dirname(path) or '.'
    ):
        raise UsageError(
            _(
                "'{path}' is new already, and its `_base_` is found from its "
                'own folder only: use it as it is.',
                path=path,
            )
        )
    return Path(path).read_text(encoding='utf-8')


def _write(output: str | None, text: str) -> None:
    if output is None:
        print(text, end='')
        return
    write_config(output, text)
    _say(_('written to {path}', path=output))


def _report(path: str, translation: Translation) -> None:
    if not translation.changed:
        _say(
            _(
                '{path} has no keys of mmcv 1.x, nothing to translate',
                path=path,
            )
        )
        return
    _say(
        _('{path}: translated from mmcv 1.x', path=path), translation.summary()
    )
    for severity, title in (
        (Severity.HINT, _('worth knowing')),
        (Severity.WARNING, _('without counterpart')),
        (Severity.ERROR, _('would train differently, to be resolved by you')),
    ):
        found = translation.of_severity(severity)
        if found:
            _say(title, map(str, found))


def _say(text: str, lines: Iterable[str] = ()) -> None:
    say('upgrade', text)
    for line in lines:
        # They quote a config that somebody else may have written.
        print(f'  {printable(line, LONGEST_LINE)}', file=sys.stderr)
