"""The lock of a work folder.

Two runs in one folder overwrite and delete each other's checkpoints. So a run
writes a small file that names its process into each of its folders. A process
on another machine or in another container cannot be looked up, so the owner
also touches the file every few seconds. ``flock`` alone would not do: forked
workers inherit it, and some network file systems have none.

A run that was suspended may find that another one has taken its lock
meanwhile. It must write nothing any more: :func:`check_owned` is called before
every save and after every iteration.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Callable

from mmstable.errors import WorkDirInUse
from mmstable.io.files import create, read_bounded
from mmstable.io.process import BackgroundThread, ProcessIdentity
from mmstable.io.schema import integer, parse_json, record, text
from mmstable.messages import N_, _, printable

NAME = '.mmstable-lock'
# Seconds between two touches of the file, and how long to wait for one.
BEAT = 2.0
PATIENCE = 10.0
_MAX_BYTES = 4096
_check = record(
    host=text(), pid=integer(1, 2**31 - 1), space=text(), born=text()
)


def read_owner(path: Path) -> ProcessIdentity | None:
    """Read the process that holds a lock; None if the file names none."""
    try:
        content = read_bounded(path, _MAX_BYTES)
        return ProcessIdentity(**_check(parse_json(content, _MAX_BYTES)))
    except (OSError, ValueError):
        return None


@contextmanager
def locked(
    folders: Sequence[Path], force: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """Keep other runs out of folders while the context lasts.

    Args:
        folders (Sequence[Path]): Where the run writes.
        force (bool): Whether to take a lock that another run holds.
        say (Callable): Prints a line for the user.

    Raises:
        WorkDirInUse: If another run is in one of them.
    """
    own, held = ProcessIdentity.of_this_process(), list[Path]()
    beat = BackgroundThread('mmstable-lock', partial(_beat, held, own))
    beat.start()
    try:
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                _acquire(folder / NAME, own, force, say)
                held.append(folder / NAME)
            except OSError as error:
                # The run fails elsewhere if it cannot do without the folder.
                say(
                    _(
                        "cannot lock '{folder}': {error}",
                        folder=folder,
                        error=error.strerror,
                    )
                )
        _held.append(held)
        yield
    finally:
        beat.stop()
        _held[:] = [other for other in _held if other is not held]
        for path in held:
            _taken.pop(path, None)
            with suppress(OSError):
                _remove(path, own)


def _acquire(
    path: Path,
    own: ProcessIdentity,
    force: bool,
    say: Callable[[str], None],
) -> None:
    while True:
        try:
            with open(path, 'x', opener=create, encoding='utf-8') as file:
                json.dump(asdict(own), file)
            return
        except FileExistsError:
            other = read_owner(path)
        if not force:
            _refuse_if_alive(path, other, say)
        _remove(path, other)


def _remove(path: Path, expected: ProcessIdentity | None) -> None:
    """Remove a lock, unless its owner has changed meanwhile."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # One process at a time. Some network file systems have no `flock`.
        with suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_EX)
        if read_owner(path) == expected:
            path.unlink(missing_ok=True)
    finally:
        os.close(folder)


def _refuse_if_alive(
    path: Path, other: ProcessIdentity | None, say: Callable[[str], None]
) -> None:
    if other is not None and other.can_be_asked():
        is_there = other.is_alive()
    else:
        say(
            _(
                "'{folder}' is locked from {host}: waiting {seconds:g} s "
                'for a heartbeat of its owner',
                folder=path.parent,
                host='?' if other is None else other.host,
                seconds=PATIENCE,
            )
        )
        is_there = _is_touched(path)
    if is_there:
        raise _in_use(
            N_(
                "'{folder}' is in use: {who} trains there, and two runs in "
                "one folder overwrite each other's files. Choose another "
                '--work-dir, or stop that run. --force starts anyway.'
            ),
            path,
            other,
        )


def _in_use(
    text: str, path: Path, other: ProcessIdentity | None
) -> WorkDirInUse:
    who = _('an unknown process')
    if other is not None:
        host = printable(other.host, 100)
        who = _('process {pid} on {host}', pid=other.pid, host=host)
    return WorkDirInUse(_(text, folder=path.parent, who=who))


# The locks of this process, and those that others have taken, with whom.
_held: list[list[Path]] = []
_taken: dict[Path, ProcessIdentity] = {}


def check_owned(look: bool = False) -> None:
    """Make sure that the locks of this process are still its own.

    Args:
        look (bool): Whether to read the files now, not only to ask what the
            thread that touches them has seen. Defaults to False.

    Raises:
        WorkDirInUse: If another run has taken one.
    """
    for held in _held if look else ():
        _find_taken(held, ProcessIdentity.of_this_process())
    for path, other in _taken.items():
        raise _in_use(
            N_(
                "'{folder}' is in use: {who} has taken it over while this "
                'run was suspended or cut off. This run stops, and writes '
                'nothing more.'
            ),
            path,
            other,
        )


def _find_taken(held: list[Path], own: ProcessIdentity) -> None:
    for path in held:
        owner = read_owner(path)
        # A file that cannot be read now may be there again later.
        if owner is not None and owner != own:
            _taken[path] = owner


def _beat(
    held: list[Path], own: ProcessIdentity, stopped: threading.Event
) -> None:
    while not stopped.wait(BEAT):
        _find_taken(held, own)
        for path in held:
            if path not in _taken:
                with suppress(OSError):
                    os.utime(path)


def _is_touched(path: Path) -> bool:
    """Wait for a touch of the file; False if none comes, or it is gone."""
    end = time.monotonic() + PATIENCE
    with suppress(OSError):
        before = path.lstat().st_mtime_ns
        while time.monotonic() < end:
            time.sleep(min(0.2, PATIENCE))
            if path.lstat().st_mtime_ns != before:
                return True
    return False
