"""Only one run may train in a folder at a time.

Two of them overwrite each other's checkpoints and prune what the other one
needs. A small file says who is there. If its owner cannot be asked, because it
was on another machine or in another container, a living one shows by touching
the file every few seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Callable

from mmstable.errors import WorkDirInUse
from mmstable.files import create
from mmstable.lock_owner import HELD, NAME, Owner
from mmstable.messages import _
from mmstable.messages.printable import printable

# Seconds between two signs of life, and how long to look out for one.
BEAT = 2.0
PATIENCE = 10.0


@contextmanager
def locked(
    folders: Sequence[Path], force: bool, say: Callable[[str], None]
) -> Iterator[None]:
    """Keep other runs out of folders for as long as this lasts.

    Args:
        folders (Sequence[Path]): Where the run writes.
        force (bool): Whether to go in although somebody is there.
        say (Callable): Prints a line for the user.

    Raises:
        WorkDirInUse: If another run is in one of them.
    """
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_locked(folder, force, say))
        yield


@contextmanager
def _locked(
    folder: Path, force: bool, say: Callable[[str], None]
) -> Iterator[None]:
    owner = Owner.this()
    path = folder / NAME
    # Before the file can be read by another thread.
    HELD.add(owner.token)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _acquire(path, owner, force, say)
    except WorkDirInUse:
        HELD.discard(owner.token)
        raise
    except OSError as error:
        HELD.discard(owner.token)
        # Whether the run can do without this folder is not decided here.
        text = error.strerror
        say(_("cannot lock '{folder}': {error}", folder=folder, error=text))
        yield
        return
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, done), daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        HELD.discard(owner.token)
        _release(path, owner)


def _acquire(
    path: Path, owner: Owner, force: bool, say: Callable[[str], None]
) -> None:
    while not _create(path, owner):
        other = Owner.read(path)
        if not force:
            _refuse_if_alive(path, other, say)
        _remove(path, other)


def _refuse_if_alive(
    path: Path, other: Owner | None, say: Callable[[str], None]
) -> None:
    if other is not None and other.can_be_asked():
        is_there = other.is_alive()
    else:
        host = '?' if other is None else other.host
        say(
            _(
                "'{folder}' is locked from {host}: waiting {seconds:g} s for "
                'a sign of life',
                folder=path.parent,
                host=host,
                seconds=PATIENCE,
            )
        )
        is_there = _shows_life(path)
    if is_there:
        who = _('an unknown process')
        if other is not None:
            host = printable(other.host, 100)
            who = _('process {pid} on {host}', pid=other.pid, host=host)
        raise WorkDirInUse(
            _(
                "'{folder}' is in use: {who} trains there, and two runs in "
                'one folder destroy each other. Choose another --work-dir, '
                'or stop that run. --force starts nevertheless.',
                folder=path.parent,
                who=who,
            )
        )


def _shows_life(path: Path) -> bool:
    before, end = _touched(path), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        time.sleep(min(0.2, PATIENCE))
        now = _touched(path)
        if now is None:
            return False
        if now != before:
            return True
    return False


def _create(path: Path, owner: Owner) -> bool:
    try:
        with open(path, 'x', opener=create, encoding='utf-8') as file:
            json.dump(asdict(owner), file)
    except FileExistsError:
        return False
    return True


def _remove(path: Path, expected: Owner | None) -> None:
    """Remove a lock, unless it has become another one meanwhile."""
    with _alone_in(path.parent):
        if Owner.read(path) == expected:
            path.unlink(missing_ok=True)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time remove locks; the kernel frees the rest."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems cannot.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _release(path: Path, owner: Owner) -> None:
    with suppress(OSError):
        if Owner.read(path) == owner:
            path.unlink()


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


def _touched(path: Path) -> int | None:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return None
