"""Write an event file that a crash cannot spoil."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import BinaryIO

from mmengine.logging import print_log

from mmstable.events.event import Event
from mmstable.events.json_lines import encode
from mmstable.events.records import RunStart
from mmstable.files import create
from mmstable.messages import _


class EventLog:
    """An append-only file of records, one line each.

    Every record is one write to the operating system, so it is safe as soon
    as :meth:`write` returns, whatever happens to the process. A disk that is
    full or not writable costs records, not the training: there is one
    warning, and later records are tried again.

    Args:
        directory (Path): Where the file goes. It is created when needed.
        header (RunStart): The first line.
    """

    def __init__(self, directory: Path, header: RunStart) -> None:
        self.lost = 0
        self._directory = directory
        self._header = header
        self._file: BinaryIO | None = None
        self._size = 0
        self._warned = False

    def begin(self) -> None:
        """Write the header now rather than with the first record."""
        try:
            self._ensure_header()
        except OSError as error:
            self._warn(error)

    def write(self, record: Event) -> None:
        """Append a record; after a failure, count it as lost."""
        try:
            self._append(self._ensure_header(), record)
        except OSError as error:
            self.lost += 1
            self._warn(error)

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            # A network file system may report a full disk only now.
            self._warn(error)

    def _ensure_header(self) -> BinaryIO:
        if self._file is None:
            self._file = self._create()
        if self._size == 0:
            self._append(self._file, self._header)
        return self._file

    def _create(self) -> BinaryIO:
        self._directory.mkdir(parents=True, exist_ok=True)
        rank = self._header.rank
        stem = 'events' if rank == 0 else f'events.rank{rank}'
        number = 1
        while True:
            suffix = '' if number == 1 else f'-{number}'
            path = self._directory / f'{stem}{suffix}.jsonl'
            try:
                # Unbuffered: one call of write is one write to the system.
                return open(path, 'ab', buffering=0, opener=create)
            except FileExistsError:
                # Runs that start within one second share their directory.
                number += 1

    def _append(self, file: BinaryIO, record: Event) -> None:
        line = encode(record)
        written = file.write(line)
        if written != len(line):
            # Otherwise the next record would continue this line.
            file.truncate(self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written

    def _warn(self, error: OSError) -> None:
        if self._warned:
            return
        self._warned = True
        print_log(
            _(
                'mmstable: EventLogHook: cannot write the event file in '
                "'{folder}': {error}. Training continues, and events are "
                'lost for as long as this lasts.',
                folder=self._directory,
                error=error,
            ),
            logger='current',
            level=logging.WARNING,
        )
