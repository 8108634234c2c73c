"""``mmstable completion``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command, find_commands
from mmstable.messages import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = say('help.completion.description')
    parser.add_argument(
        'shell',
        choices=['bash', 'zsh', 'fish'],
        help=say('help.completion.shell'),
    )


def run(args: argparse.Namespace) -> int:
    """Print the script, and return the exit code."""
    from mmstable.cli.completion import completion_script

    print(completion_script(args.shell, find_commands()), end='')
    return 0


COMMAND = Command(
    name='completion',
    help=lambda: say('command.completion'),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
