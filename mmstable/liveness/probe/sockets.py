"""Where the sockets of running trainings are.

One folder for each user of a machine, which nobody else can enter. It is not
the work directory: that may be on a network file system, which knows no
sockets, or have a path that is too long for one.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

VARIABLE = 'MMSTABLE_PROBE_DIR'
_NAME = re.compile(r'(\d+)-[0-9a-f]{8}\.sock')
# Bytes of an address that every system allows, with its end.
_LONGEST_ADDRESS = 100


def socket_folder() -> Path:
    """Where the sockets of this user are, which may not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else Path(f'/tmp/mmstable-{os.getuid()}')


def open_folder() -> Path:
    """The folder, made if necessary, and nobody else's.

    Raises:
        OSError: If somebody else has it, or could enter it.
    """
    if not hasattr(socket, 'AF_UNIX') or not hasattr(os, 'getuid'):
        raise OSError(errno.ENOSYS, 'no local sockets on this system')
    folder = socket_folder()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # Not through a link that somebody may have planted.
    found = os.lstat(folder)
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or found.st_mode & 0o077
    ):
        raise PermissionError(
            errno.EPERM, 'not a folder of mode 700 of this user', str(folder)
        )
    return folder


def listen(folder: Path) -> tuple[socket.socket, Path]:
    """A socket that only this user can connect to, and its path."""
    name = f'{os.getpid()}-{secrets.token_hex(4)}'
    path, begun = folder / f'{name}.sock', folder / f'{name}.new'
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(begun) as address:
            one.bind(address)
        os.chmod(begun, 0o600)
        one.listen(64)
        # Who finds it can connect: what refuses is of a dead process.
        os.rename(begun, path)
    except BaseException:
        one.close()
        begun.unlink(missing_ok=True)
        raise
    return one, path


def connect(path: Path, timeout: float) -> socket.socket:
    """A connection to a training of this user.

    Args:
        path (Path): Its socket.
        timeout (float): Seconds for it, and for everything later.

    Raises:
        OSError: If there is none, or it is not this user's.
    """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(timeout)
        with _short(path) as address:
            one.connect(address)
        if not is_own(one):
            raise PermissionError(errno.EPERM, 'of another user', str(path))
    except BaseException:
        one.close()
        raise
    return one


def is_own(connection: socket.socket) -> bool:
    """Whether the other end belongs to this user, or nobody can tell."""
    uid = peer_uid(connection)
    return uid is None or uid == os.getuid()


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end; None where the system does not tell."""
    if not hasattr(socket, 'SO_PEERCRED'):
        return None
    found = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('iII')
    )
    return struct.unpack('iII', found)[1]


def find_sockets(pid: int | None = None) -> list[Path]:
    """The sockets of this user, those of dead processes included.

    Args:
        pid (int, optional): Of one process only. Defaults to None.
    """
    try:
        found = sorted(open_folder().iterdir())
    except OSError:
        return []
    matches = [(path, _NAME.fullmatch(path.name)) for path in found]
    return [
        path
        for path, match in matches
        if match is not None and pid in (None, int(match[1]))
    ]


def socket_pid(path: Path) -> int:
    """The process that has made a socket, by its own count."""
    return int(path.name.partition('-')[0])


def remove_dead() -> None:
    """Remove the sockets of processes that have ended without doing so."""
    for path in find_sockets():
        with suppress(OSError):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                continue
            try:
                connect(path, 1.0).close()
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address for a path of any length, as long as this lasts."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f'/proc/self/fd/{folder}/{path.name}'
    finally:
        os.close(folder)
