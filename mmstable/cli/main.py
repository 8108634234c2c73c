"""The command ``mmstable``: run a sub-command, report what went wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mmstable.cli.command import Command, find_commands, say
from mmstable.cli.parser import Parser
from mmstable.distributed.launchers import rank_of
from mmstable.errors import MMStableError
from mmstable.registration import register_all
from mmstable.settings import did_you_mean
from mmstable.version import __version__

# What a shell reports for a program that Ctrl-C has ended.
_EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sub-command, and return its exit code.

    Args:
        argv (Sequence[str], optional): The arguments; those of the process
            if None. Defaults to None.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    commands = find_commands()
    try:
        args = _parse(commands, words or ['--help'])
    except SystemExit as stop:
        # argparse has said why.
        return int(stop.code or 0)
    return _run(commands[args.command], args)


def _parse(
    commands: dict[str, Command], words: list[str]
) -> argparse.Namespace:
    parser = Parser(
        prog='mmstable',
        description='Keep OpenMMLab training runs alive.',
    )
    parser.add_argument('--version', action='version', version=__version__)
    group = parser.add_subparsers(dest='command', metavar='COMMAND')
    parsers = {}
    for name, command in commands.items():
        parsers[name] = group.add_parser(
            name, help=command.help, description=f'{command.help}.'
        )
        command.add_arguments(parsers[name])
    if not words[0].startswith('-') and words[0] not in commands:
        parser.error(
            f"no command '{words[0]}', there is {', '.join(commands)}."
            f'{did_you_mean(words[0], commands)}'
        )
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # By the parser of the command, which has the better `--help`.
        parsers.get(args.command, parser).error(
            f'unrecognized arguments: {" ".join(unknown)}'
        )
    if args.command is None:
        parser.error('a command is missing')
    args.words = words[words.index(args.command) + 1 :]
    return args


def _run(command: Command, args: argparse.Namespace) -> int:
    try:
        if command.reads_config:
            register_all()
            _import_from_working_folder()
        return command.run(args)
    except MMStableError as error:
        say(command.name, f'error: {error}')
        return error.exit_code
    except KeyboardInterrupt:
        if rank_of(getattr(args, 'launcher', 'none')) == 0:
            say(command.name, 'interrupted')
        return _EXIT_INTERRUPTED


def _import_from_working_folder() -> None:
    """Let ``custom_imports`` find modules where the user is.

    Not if Python was told to keep that folder out (``PYTHONSAFEPATH``).
    """
    if '' not in sys.path and not getattr(sys.flags, 'safe_path', False):
        sys.path.insert(0, '')
