"""Read an event file back, also one that is damaged."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Generator, Iterator
from typing import Any, BinaryIO, Callable

from mmstable.errors import MMStableError
from mmstable.events.event import Event
from mmstable.events.json_lines import LONGEST_LINE, decode
from mmstable.events.records import RunStart
from mmstable.files import read_only
from mmstable.messages.printable import printable

# One more, to tell a line that is too long from one that is not.
_TO_READ = LONGEST_LINE + 1
_PIECE = 1 << 16
_MOST_REASONS = 10


class EventFileError(MMStableError):
    """A file is not an event file."""

    exit_code = 2


class EventReader(Iterator[Event]):
    """The records of an event file, one at a time.

    Lines that are no records are skipped and counted. One line is held in
    memory at a time, and none of more than 4 MiB.

    Args:
        path (str or PathLike): The event file.
        decode (Callable): Makes a record of a line, given the schema of the
            file. Defaults to :func:`mmstable.events.json_lines.decode`.

    Attributes:
        skipped (int): Lines so far that are no records.
        reasons (list[str]): What is wrong with the first ten of them.
        is_cut_off (bool): Whether the last line lacks its end and is no
            record, as a killed process may leave it. It is not counted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        decode: Callable[[bytes, int], Any] = decode,
    ) -> None:
        self._decode = decode
        self.skipped = 0
        self.reasons: list[str] = []
        self.is_cut_off = False
        self._path = path
        self._events = self._read()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        """Close the file, if there are records left."""
        self._events.close()

    def _read(self) -> Generator[Event, None, None]:
        with _open(self._path) as file:
            header = _read_header(self._path, file.readline(_TO_READ))
            yield header
            for number in itertools.count(2):
                line = file.readline(_TO_READ)
                if not line:
                    return
                is_whole = line.endswith(b'\n') or _skip_rest(file)
                try:
                    event = self._decode(line, header.schema)
                except (ValueError, RecursionError) as error:
                    self._skip(number, error, is_whole)
                else:
                    yield event

    def _skip(self, number: int, error: Exception, is_whole: bool) -> None:
        if not is_whole:
            self.is_cut_off = True
            return
        self.skipped += 1
        if len(self.reasons) < _MOST_REASONS:
            self.reasons.append(f'line {number}: {printable(error)}')


def read_events(path: str | os.PathLike[str]) -> EventReader:
    """The records of an event file, one at a time.

    Args:
        path (str or PathLike): The event file.

    Returns:
        EventReader: Gives first a :class:`RunStart`, then the others as they
        happened. Records of a newer mmstable that this one does not know
        come as :class:`UnknownEvent`. Its ``skipped`` says how many lines
        are no records. Its first step raises :class:`EventFileError` if the
        file does not start as an event file does.
    """
    return EventReader(path)


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, 'rb', opener=read_only)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise EventFileError(f'{printable(path)}: {error.strerror}.') from None


def _skip_rest(file: BinaryIO) -> bool:
    """Move to the next line; False if the file ends before there is one."""
    while piece := file.readline(_PIECE):
        if piece.endswith(b'\n'):
            return True
    return False


def _read_header(path: str | os.PathLike[str], line: bytes) -> RunStart:
    name = printable(path)
    if not line:
        raise EventFileError(
            f'{name} is empty: the run ended before it could write anything.'
        )
    try:
        header = decode(line)
    except (ValueError, RecursionError) as error:
        raise EventFileError(
            f'{name} is not an event file of mmstable: its first line must '
            f"be a 'run_start' record, but {printable(error)}."
        ) from None
    if not isinstance(header, RunStart):
        raise EventFileError(
            f'{name} is not an event file of mmstable: its first line must '
            "be a 'run_start' record, got "
            f'{type(header).__name__}.'
        )
    return header
