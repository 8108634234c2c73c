"""The parser of the command line, and those of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from mmstable.cli.command import Command
from mmstable.cli.parser import Parser
from mmstable.messages import LANGUAGES, _
from mmstable.version import __version__


def build_parsers(
    commands: Mapping[str, Command],
) -> tuple[Parser, dict[str, Parser]]:
    """The parser of ``mmstable``, and that of each command.

    Args:
        commands (Mapping): The commands by their names.
    """
    parser = Parser(
        prog='mmstable', description=_('Keep OpenMMLab training runs alive.')
    )
    parser.add_argument(
        '--version',
        action='version',
        version=__version__,
        help=_("show program's version number and exit"),
    )
    group = parser.add_subparsers(dest='command', metavar='COMMAND')
    parsers = {}
    for name, command in commands.items():
        text = command.help()
        parsers[name] = group.add_parser(name, help=text, description=text)
        command.add_arguments(parsers[name])
        add_common_options(parsers[name])
    return parser, parsers


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """What every command takes."""
    parser.add_argument(
        '--lang',
        choices=LANGUAGES,
        help=_(
            'the language of all lines; that of the config or of '
            'MMSTABLE_LANG by default'
        ),
    )
    parser.add_argument(
        '--quiet',
        action='store_true',
        help=_('print results and errors only, no notes and no progress'),
    )
