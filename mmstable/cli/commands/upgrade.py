"""``mmstable upgrade``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import _

# Translated, but something has no counterpart.
EXIT_INCOMPLETE = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Translate a config of mmcv 1.x (mmseg 0.x, mmdet 2.x, ...) to '
        'mmengine. What became of each key is told on stderr. Exit codes: 0 '
        'all translated or nothing to do, {incomplete} translated but some '
        'settings have no counterpart, 2 an error.',
        incomplete=EXIT_INCOMPLETE,
    )
    parser.add_argument('config', help=_('config file, with or without bases'))
    parser.add_argument(
        '-o',
        '--output',
        metavar='NEW.py',
        help=_('where to write the new config; on stdout if not given'),
    )


def run(args: argparse.Namespace) -> int:
    """Translate a config, and return the exit code."""
    from mmstable.cli.upgrade import upgrade

    return upgrade(args.config, args.output)


COMMAND = Command(
    name='upgrade',
    help=lambda: _('translate a config of mmcv 1.x to mmengine'),
    add_arguments=add_arguments,
    run=run,
)
