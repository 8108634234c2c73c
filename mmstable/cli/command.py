"""What is a sub-command of ``mmstable``, and which are there?"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from mmstable.cli import commands
from mmstable.cli.terminal import is_quiet, paint
from mmstable.messages.printable import printable

LONGEST_LINE = 4000


class Command(NamedTuple):
    """A sub-command, as a module of ``mmstable/cli/commands`` declares it.

    Such a module has one as ``COMMAND``. It must not import torch or mmengine
    outside of ``run``: all of them are imported for ``mmstable --help``.

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


def find_commands() -> dict[str, Command]:
    """All sub-commands by their names."""
    modules = [
        import_module(f'{commands.__name__}.{found.name}')
        for found in pkgutil.iter_modules(commands.__path__)
    ]
    return {module.COMMAND.name: module.COMMAND for module in modules}
