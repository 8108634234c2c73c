"""The local socket of a run: its server, its client, and its folder.

All sockets of a user are in one folder that no other user can enter. It is not
the work directory: that may be on a network file system, which has no
sockets, or its path may be too long for one. Request and answer are one line
of JSON each. The set of commands is fixed, and no command runs code.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import socketserver
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable

from mmstable.errors import MMStableError
from mmstable.io.process import BackgroundThread
from mmstable.io.schema import parse_json
from mmstable.messages import short_repr

VARIABLE = 'MMSTABLE_PROBE_DIR'
_NAME = re.compile(r'\d+-[0-9a-f]{8}\.sock')
# Bytes of an address that every system allows, with its end.
_MAX_ADDRESS_BYTES = 100
LONGEST_REQUEST = 1 << 16
LONGEST_ANSWER = 1 << 22
# Seconds between two checks whether the run is over.
_INTERVAL_S = 1.0

# The server of this process.
_open: ProbeServer | None = None

Command = Callable[[Mapping[str, Any]], Any]


def socket_folder() -> Path:
    """Folder of this user's sockets, which may not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else Path(f'/tmp/mmstable-{os.getuid()}')


def open_folder() -> Path:
    """Make the folder of sockets, and check that it is this user's alone.

    Raises:
        OSError: If another user owns it, or could enter it.
    """
    folder = socket_folder()
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    # `lstat`: another user may have planted a link.
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


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to a run of this user.

    Args:
        path (Path): Its socket.
        timeout (float): Seconds to connect, and for each later operation.

    Raises:
        OSError: If there is none, or another user owns it.
    """
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        one.settimeout(timeout)
        with _short(path) as address:
            one.connect(address)
        if not _is_own(one):
            raise PermissionError(errno.EPERM, 'of another user', str(path))
    except BaseException:
        one.close()
        raise
    return one


def _is_own(connection: socket.socket) -> bool:
    """Whether the peer is this user. On macOS the folder alone decides."""
    if not hasattr(socket, 'SO_PEERCRED'):
        return True
    found = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize('iII')
    )
    _pid, uid, _gid = struct.unpack('iII', found)
    return uid == os.getuid()


def find_sockets(pid: int | None = None) -> list[Path]:
    """List the sockets of this user, including those of dead processes.

    Args:
        pid (int, optional): Of this process only. Defaults to None.
    """
    try:
        found = sorted(open_folder().iterdir())
    except OSError:
        return []
    return [
        path
        for path in found
        if _NAME.fullmatch(path.name) and pid in (None, socket_pid(path))
    ]


def socket_pid(path: Path) -> int:
    """Process id in the name of a socket, in its own pid namespace."""
    return int(path.name.partition('-')[0])


def remove_dead() -> None:
    """Remove the sockets that dead processes have left."""
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
    """Yield an address for a path of any length, valid in the context."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f'/proc/self/fd/{folder}/{path.name}'
    finally:
        os.close(folder)


class ProbeServer(socketserver.ThreadingUnixStreamServer):
    """Answer one request per connection, on threads of its own.

    A slow client does not hold up the training.

    Args:
        commands (Mapping): Commands by name. A command takes the request,
            and raises ValueError if it cannot answer.
        is_over (Callable): Whether the run has ended; called once a second.
    """

    daemon_threads = True
    # Do not wait for clients at the end of a run.
    block_on_close = False
    request_queue_size = 64
    timeout = _INTERVAL_S

    def __init__(
        self, commands: Mapping[str, Command], is_over: Callable[[], bool]
    ) -> None:
        global _open  # noqa: PLW0603
        if _open is not None:
            # Of a run that an exception ended without `after_train`.
            _open.close()
        self.commands, self._is_over = commands, is_over
        self._stopped = threading.Event()
        name = f'{os.getpid()}-{secrets.token_hex(4)}.sock'
        self.path = open_folder() / name
        self._hidden = self.path.with_suffix('.new')
        remove_dead()
        super().__init__(str(self.path), _Client)
        self._thread = BackgroundThread(
            'mmstable probe', self._serve, self._wake
        )
        self._thread.start()
        _open = self

    def close(self) -> None:
        """End the server, and remove the socket."""
        self._thread.stop()

    def server_bind(self) -> None:
        """Bind to a name that :func:`find_sockets` ignores."""
        with _short(self._hidden) as address:
            self.socket.bind(address)
        os.chmod(self._hidden, 0o600)

    def server_activate(self) -> None:
        """Listen, then show the socket: :func:`remove_dead` connects."""
        super().server_activate()
        os.rename(self._hidden, self.path)

    def server_close(self) -> None:
        """Close and remove the socket."""
        super().server_close()
        for path in (self.path, self._hidden):
            path.unlink(missing_ok=True)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; pause when there are too many open files."""
        try:
            return super().get_request()
        except OSError:
            self._stopped.wait(_INTERVAL_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse other users."""
        return _is_own(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""

    def _serve(self, stopped: threading.Event) -> None:
        global _open  # noqa: PLW0603
        self._stopped = stopped
        try:
            while not stopped.is_set() and not self._is_over():
                self.handle_request()
        finally:
            self.server_close()
            if _open is self:
                # It holds the whole run.
                _open = None

    def _wake(self) -> None:
        # The server may have closed its socket just now.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class _Client(socketserver.StreamRequestHandler):
    """One connection."""

    server: ProbeServer
    # Seconds that the client may pause while it sends or receives.
    timeout = 10.0

    def handle(self) -> None:
        line = self.rfile.readline(LONGEST_REQUEST + 1)
        self.wfile.write(_encode(self._reply(line)))

    def _reply(self, line: bytes) -> dict[str, Any]:
        commands = self.server.commands
        try:
            request = parse_json(line, LONGEST_REQUEST)
            if not isinstance(request, dict):
                raise ValueError('must be an object')
            name = request.get('command')
            if not isinstance(name, str) or name not in commands:
                raise ValueError(
                    f'`command` must be one of {", ".join(commands)}, got '
                    f'{short_repr(name)}'
                )
            return {'answer': commands[name](request)}
        except ValueError as error:
            return {'error': str(error)}
        except Exception as error:
            # A run that ends may be in any state.
            return {'error': f'{type(error).__name__}: {error}'}


def _encode(reply: dict[str, Any]) -> bytes:
    content = json.dumps(reply).encode() + b'\n'
    if len(content) > LONGEST_ANSWER:
        reply = {'error': f'the answer has {len(content)} bytes'}
        return json.dumps(reply).encode() + b'\n'
    return content


class ProbeError(MMStableError):
    """A run refused a command, or failed to answer it."""


def ask(
    path: Path, command: str, timeout: float = 10.0, **arguments: Any
) -> Any:
    """Send a command to a run, and return its answer.

    Args:
        path (Path): Its socket.
        command (str): The command.
        timeout (float): Seconds to wait. Defaults to 10.0.
        **arguments: Arguments of the command.

    Raises:
        OSError: If the run cannot be reached.
        ProbeError: If it cannot answer.
    """
    request = json.dumps({'command': command, **arguments})
    with connect(path, timeout) as connection:
        connection.sendall(request.encode() + b'\n')
        with connection.makefile('rb') as file:
            content = file.read(LONGEST_ANSWER + 1)
    try:
        reply = parse_json(content, LONGEST_ANSWER)
        error = reply.get('error')
    except (ValueError, AttributeError):
        raise ConnectionError('no answer') from None
    if error is not None:
        raise ProbeError(str(error))
    return reply.get('answer')
