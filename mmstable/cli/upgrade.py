"""``mmstable upgrade``: translate a config of mmcv 1.x to mmengine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mmstable.cli.command as cli
from mmstable.finding import Severity
from mmstable.messages import N_, printable

if TYPE_CHECKING:
    from mmstable.legacy.translate import Translation

# Translated, but something has no equivalent.
EXIT_INCOMPLETE = 5


def upgrade(args: argparse.Namespace) -> int:
    """Translate a config, and return the exit code."""
    from mmstable.cli import config
    from mmstable.legacy.translate import translate

    # What it imports is code for mmcv 1.x, as a rule, and not needed here.
    cfg = config.load_config(args.config, import_modules=False)
    if cfg.get('custom_imports'):
        cli.tell(
            '{path}: `custom_imports` is not imported; hooks from there '
            'are not known',
            path=args.config,
        )
    translation = translate(config.plain_settings(cfg))
    text = _text(args.config, args.output, translation)
    _report(args.config, translation)
    config.write_config(args.output, text)
    if translation.of_severity(Severity.WARNING, Severity.ERROR):
        text = N_('some settings have no mmengine equivalent (exit {code})')
        cli.tell(text, code=EXIT_INCOMPLETE)
        return EXIT_INCOMPLETE
    return 0


def _text(path: str, output: str | None, translation: Translation) -> str:
    from mmstable.cli import config
    from mmstable.legacy.render import difference, render

    if output is not None:
        config.check_target(output)
    target = os.path.dirname(output if output is not None else path)
    if not translation.changed and path.endswith('.py'):
        if config.direct_bases(path) and not os.path.samefile(
            target or '.', os.path.dirname(path) or '.'
        ):
            raise cli.usage_error(
                "'{path}' is new already, and its `_base_` is found from its "
                'own folder only: use it as it is.',
                path=path,
            )
        return Path(path).read_text(encoding='utf-8')
    bases = config.new_bases(path, translation.settings)
    inherited = {k: v for base in bases.values() for k, v in base.items()}
    return render(
        translation,
        os.path.basename(path),
        [config.relative(base, target) for base in bases],
        difference(inherited, translation.settings),
    )


def _report(path: str, translation: Translation) -> None:
    if not translation.changed:
        text = N_('{path} has no keys of mmcv 1.x, nothing to translate')
        cli.tell(text, path=path)
        return
    blocks: list[tuple[str, Sequence[Any]]] = [
        (N_('{path}: translated from mmcv 1.x'), translation.summary()),
        (N_('worth knowing'), translation.of_severity(Severity.HINT)),
        (
            N_('no mmengine equivalent, ignored'),
            translation.of_severity(Severity.WARNING),
        ),
        (
            N_('would train differently, to be resolved by you'),
            translation.of_severity(Severity.ERROR),
        ),
    ]
    for title, lines in blocks:
        if lines:
            cli.tell(title, path=path)
        for line in lines:
            # They quote a config that somebody else may have written.
            text = f'  {printable(line, cli.LONGEST_LINE)}'
            print(text, file=sys.stderr, flush=True)


COMMAND = cli.Command(
    upgrade,
    (
        cli.option('config', 'config file, with or without bases'),
        cli.option(
            '-o --output',
            'where to write the new config; on stdout if not given',
            metavar='NEW.py',
        ),
    ),
    'Translate a config of mmcv 1.x (mmseg 0.x, mmdet 2.x, ...) to '
    'mmengine. What became of each key is told on stderr. Exit codes: 0 '
    'all translated or nothing to do, {incomplete} translated but some '
    'settings have no mmengine equivalent, 2 an error.',
    {'incomplete': EXIT_INCOMPLETE},
)
