"""``mmstable completion``: what it takes."""

from __future__ import annotations

import argparse

from mmstable.cli.command import Command, find_commands
from mmstable.cli.parsers import build_parsers
from mmstable.errors import UsageError
from mmstable.messages import _


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = _(
        'Print the script. For bash: eval "$(mmstable completion bash)"; for '
        'zsh: eval "$(mmstable completion zsh)"; for fish: mmstable '
        'completion fish > ~/.config/fish/completions/mmstable.fish'
    )
    parser.add_argument(
        'shell',
        choices=['bash', 'zsh', 'fish'],
        help=_('your shell'),
    )


def run(args: argparse.Namespace) -> int:
    """Print the script, and return the exit code."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError(
            _(
                'the package `shtab` cannot be imported ({error}). Install '
                'it with: pip install mmstable[completion]',
                error=error,
            )
        ) from error
    parser, parsers = build_parsers(find_commands())
    for one in parsers.values():
        for action in one._actions:
            if action.choices is None and action.nargs != 0:
                # shtab completes no values unless it is told what they are.
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, args.shell))
    return 0


COMMAND = Command(
    name='completion',
    help=lambda: _(
        'print a script that completes commands and options in a shell'
    ),
    add_arguments=add_arguments,
    run=run,
    reads_config=False,
)
