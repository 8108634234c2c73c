"""What a user sees of mmstable, by whatever internals it has today.

A change of the inside that leaves the outside alone touches this file and no
other one of this folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mmstable
from mmstable import errors
from mmstable.cli import check_data, command, estimate, replay, upgrade
from mmstable.cli import main as command_line
from mmstable.cli.main import build_parsers
from mmstable.demo import MissingPackageError
from mmstable.events.codec import decode, encode
from mmstable.events.log import EventFileError
from mmstable.events.records import EVENTS, SCHEMA, Event
from mmstable.probe.server import ProbeError

PACKAGE = Path(mmstable.__file__).parent


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of `mmstable` as '', and those of its commands."""
    whole, commands = build_parsers()
    return {'': whole, **commands}


def run_command(words: list[str]) -> int:
    """The exit code of a command line."""
    return command_line.main(words)


def exit_codes() -> dict[str, int]:
    """The exit codes that have a name."""
    found = [
        *(one for one in vars(errors).values() if isinstance(one, type)),
        *(EventFileError, MissingPackageError, ProbeError),
    ]
    codes = {one.__name__: one.exit_code for one in found}
    # Those of errors that know their code only when they are raised.
    stop = errors.StoppedBySignal('SIGTERM', 15)
    return {
        **codes,
        'StoppedBySignal': stop.exit_code,
        'RestartNeeded': errors.RestartNeeded().exit_code,
        'TimeLimitReached': errors.TimeLimitReached().exit_code,
        'check: warnings': command.EXIT_WARNINGS,
        'check: errors': command.EXIT_ERRORS,
        'check-data: bad data': check_data.EXIT_BAD_DATA,
        'estimate: does not fit': estimate.EXIT_DOES_NOT_FIT,
        'replay: not reproduced': replay.EXIT_NOT_REPRODUCED,
        'upgrade: incomplete': upgrade.EXIT_INCOMPLETE,
        'Ctrl-C': command_line._EXIT_INTERRUPTED,
        'output not read': command_line._EXIT_UNREAD,
    }


def event_schema() -> int:
    """The version of the event file."""
    return SCHEMA


def event_classes() -> dict[str, type[Event]]:
    """The dataclasses of the event file, by their names in it."""
    return dict(EVENTS)


def rewrite_event(line: bytes) -> bytes:
    """A line of an event file, read and written again."""
    return encode(decode(line))


def public_names() -> list[str]:
    """What `from mmstable import *` imports."""
    names: Any = mmstable.__all__
    return sorted(names)
