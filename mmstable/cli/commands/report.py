"""``mmstable report``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.messages import say

DEFAULT_PORT = 8321


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.report.description')
    parser.add_argument(
        'paths',
        nargs='+',
        metavar='WORK_DIR',
        help=say('help.report.paths'),
    )
    parser.add_argument(
        '-o', '--output', metavar='FILE', help=say('help.report.output')
    )
    parser.add_argument(
        '--serve',
        nargs='?',
        type=_port,
        const=DEFAULT_PORT,
        metavar='PORT',
        help=say('help.report.serve'),
    )
    parser.add_argument(
        '--json', action='store_true', help=say('help.report.json')
    )


def run(args: argparse.Namespace) -> int:
    """Write the report, or show it, and return the exit code."""
    from mmstable.cli.report import report

    return report(args)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(say('report.bad_port', text=text))
    return int(text)


COMMAND = Command(
    name='report',
    help=lambda: say('command.report'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
