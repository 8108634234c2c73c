"""``mmstable probe``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import whole_number
from mmstable.messages import say

# Here, since what they do takes long to import.
RECIPES = (
    'status',
    'hang',
    'stacks',
    'nan',
    'slow',
    'memory',
    'lr',
    'clip',
    'checkpoint',
    'save',
    'stop',
    'ranks',
    'events',
    'sql',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.probe.description')
    parser.add_argument(
        'target', metavar='PID|WORK_DIR', help=say('help.probe.target')
    )
    parser.add_argument(
        'recipe',
        nargs='?',
        default='status',
        choices=RECIPES,
        metavar='RECIPE',
        help=say('help.probe.recipe', names=list(RECIPES)),
    )
    parser.add_argument(
        'values', nargs='*', metavar='VALUE', help=say('help.probe.value')
    )
    parser.add_argument(
        '--rank',
        type=whole_number(0),
        metavar='N',
        help=say('help.probe.rank'),
    )
    parser.add_argument(
        '--wrapper', metavar='NAME', help=say('help.probe.wrapper')
    )


def run(args: argparse.Namespace) -> int:
    """Ask the run, and return the exit code."""
    from mmstable.cli.probe import probe

    return probe(args)


COMMAND = Command(
    name='probe',
    help=lambda: say('command.probe'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
