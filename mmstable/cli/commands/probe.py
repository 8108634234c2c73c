"""``mmstable probe``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command
from mmstable.cli.parser import whole_number
from mmstable.messages import _

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
    parser.description = _(
        'Ask a run on this machine that has LiveProbeHook (`mmstable train '
        'CONFIG --probe`). Recipes: hang: where all ranks are, and all '
        'stacks. nan: the newest bad steps. slow: the speed, and the slowest '
        'modules (needs `--probe probing`). memory: of each rank with its '
        'workers. lr, clip: show, or change until the run ends. checkpoint, '
        'save, stop: the newest one, one now, one and the end. ranks, '
        'events, status, stacks; sql "SELECT ..." (needs `--probe probing`).'
    )
    parser.add_argument(
        'target',
        metavar='PID|WORK_DIR',
        help=_(
            'a process of the run, one that has started it, or its work '
            'directory'
        ),
    )
    parser.add_argument(
        'recipe',
        nargs='?',
        default='status',
        choices=RECIPES,
        metavar='RECIPE',
        help=_('what to ask: {names}; status by default', names=list(RECIPES)),
    )
    parser.add_argument(
        'values',
        nargs='*',
        metavar='VALUE',
        help=_(
            'for lr: 0.001, or x0.1 for a factor; for clip: the largest '
            'norm; for sql: the query'
        ),
    )
    parser.add_argument(
        '--rank',
        type=whole_number(0),
        metavar='N',
        help=_('ask this rank only'),
    )
    parser.add_argument(
        '--wrapper',
        metavar='NAME',
        help=_('change this optimizer wrapper only, if there are several'),
    )


def run(args: argparse.Namespace) -> int:
    """Ask the run, and return the exit code."""
    from mmstable.cli.probe import probe

    return probe(args)


COMMAND = Command(
    name='probe',
    help=lambda: _('look into a run of yours while it runs, and change it'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
