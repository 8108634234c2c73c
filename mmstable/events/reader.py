"""Read an event file back, also one that a crash cut short."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mmstable.errors import MMStableError
from mmstable.events.event import Event
from mmstable.events.json_lines import decode
from mmstable.events.records import RunStart

# A header is a few kilobytes. Without a limit, the first "line" of a
# checkpoint given by mistake could be all of it.
_LONGEST_HEADER = 1 << 20


class EventFileError(MMStableError):
    """A file is not an event file, or was damaged after it was written."""

    exit_code = 2


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The records of an event file, one at a time.

    A last line that was cut off is left out: that is how a killed process
    leaves its file.

    Args:
        path (str or PathLike): The event file.

    Yields:
        Event: First a :class:`RunStart`, then the others as they happened.
        Records of a newer mmstable that this one does not know come as
        :class:`UnknownEvent`.

    Raises:
        EventFileError: If the file does not start as an event file does, or
            if a line is not a record, when that line is reached.
    """
    with open(path, 'rb') as file:
        header = _read_header(path, file.readline(_LONGEST_HEADER))
        yield header
        for number, line in enumerate(file, start=2):
            try:
                event = decode(line, header.schema)
            except ValueError as error:
                if not line.endswith(b'\n'):
                    return
                raise EventFileError(
                    f'{os.fspath(path)}, line {number}: {error}.'
                ) from None
            yield event


def _read_header(path: str | os.PathLike[str], line: bytes) -> RunStart:
    name = os.fspath(path)
    if not line:
        raise EventFileError(
            f'{name} is empty: the run ended before it could write anything.'
        )
    try:
        header = decode(line)
    except ValueError as error:
        raise EventFileError(
            f'{name} is not an event file of mmstable: its first line must '
            f"be a 'run_start' record, but {error}."
        ) from None
    if not isinstance(header, RunStart):
        raise EventFileError(
            f'{name} is not an event file of mmstable: its first line must '
            "be a 'run_start' record, got "
            f'{type(header).__name__}.'
        )
    return header
