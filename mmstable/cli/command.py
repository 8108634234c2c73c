"""The sub-commands of ``mmstable``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import NamedTuple

from mmstable.cli.terminal import is_quiet, paint
from mmstable.messages.printable import printable

LONGEST_LINE = 4000
# The module of each command.
MODULES = {
    'check': 'mmstable.cli.commands.check',
    'check-data': 'mmstable.cli.commands.check_data',
    'completion': 'mmstable.cli.commands.completion',
    'dist-train': 'mmstable.cli.commands.dist_train',
    'doctor': 'mmstable.cli.commands.doctor',
    'estimate': 'mmstable.cli.commands.estimate',
    'inspect': 'mmstable.cli.commands.inspect',
    'probe': 'mmstable.cli.commands.probe',
    'profile': 'mmstable.cli.commands.profile',
    'protect': 'mmstable.cli.commands.protect',
    'replay': 'mmstable.cli.commands.replay',
    'report': 'mmstable.cli.commands.report',
    'train': 'mmstable.cli.commands.train',
    'upgrade': 'mmstable.cli.commands.upgrade',
}


class Command(NamedTuple):
    """A sub-command, declared as ``COMMAND`` by one of :data:`MODULES`.

    Such a module imports torch, mmengine and rooms that need them only inside
    functions: all modules are imported for ``mmstable --help``.

    Args:
        name (str): What the user types.
        help (Callable): Says what it does, in one line.
        add_arguments (Callable): Fills its parser.
        run (Callable): Does it, and returns the exit code.
        reads_config (bool): Whether it reads a config. Then the classes of
            mmstable are registered with mmengine before ``run``, which takes
            seconds. Defaults to True.
        prepare (Callable, optional): Called before anything that takes
            seconds. Defaults to None.
    """

    name: str
    help: Callable[[], str]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    reads_config: bool = True
    prepare: Callable[[], None] | None = None


def say(name: str, text: str) -> None:
    """Print a line for the user of a sub-command, unless --quiet was said."""
    if not is_quiet():
        _print_line(name, text)


def say_error(name: str, text: str) -> None:
    """Print what the user has to know, whatever was said."""
    _print_line(name, text, 'red')


def _print_line(name: str, text: str, colour: str = '') -> None:
    # It may quote names and texts out of files that others have made.
    line = paint(printable(text, LONGEST_LINE), colour, sys.stderr)
    print(f'mmstable {name}: {line}', file=sys.stderr, flush=True)


def find_commands(names: Iterable[str] = MODULES) -> dict[str, Command]:
    """Import the modules of sub-commands.

    Args:
        names (Iterable[str]): Names of sub-commands. Defaults to all.
    """
    return {name: import_module(MODULES[name]).COMMAND for name in names}
