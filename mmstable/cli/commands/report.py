"""``mmstable report``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Draw what happened in a work directory, over all its starts, into '
        'one HTML file that opens offline, and print a summary. With several '
        'work directories they are compared.'
    )
    parser.add_argument(
        'paths',
        nargs='+',
        metavar='WORK_DIR',
        help=_('a work directory, the folder of one run, or an event file'),
    )
    parser.add_argument(
        '-o',
        '--output',
        metavar='FILE',
        help=_(
            'the HTML file; stability_report.html in the first folder by '
            'default'
        ),
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        '--follow',
        action='store_true',
        help=_(
            'write the file anew every 30 seconds, without a summary, until '
            'the run ends or Ctrl-C'
        ),
    )
    mode.add_argument(
        '--json',
        action='store_true',
        help=_('print the summary and the findings as JSON'),
    )


def run(args: argparse.Namespace) -> int:
    """Write the report, and return the exit code."""
    from mmstable.cli.report import report

    return report(args)


COMMAND = Command(
    name='report',
    help=lambda: _(
        'show what happened to a run: one HTML file, and a summary'
    ),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
