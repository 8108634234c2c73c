"""Answers the few questions that a run can be asked, on a local socket."""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

from mmstable.background import BackgroundThread
from mmstable.checked_json import parse_json
from mmstable.liveness.probe.sockets import (
    is_own,
    listen,
    open_folder,
    remove_dead,
)
from mmstable.messages.printable import short_repr

LONGEST_REQUEST = 1 << 16
LONGEST_ANSWER = 1 << 22
# Seconds for a request to arrive, and for its answer to leave.
_PATIENCE = 10.0
# Seconds between two questions whether the run is over.
_INTERVAL = 1.0
# Connections at a time; others are closed at once.
_MOST = 8

# The one of this process.
_open: ProbeServer | None = None

Command = Callable[[Mapping[str, Any]], Any]


class ProbeServer:
    """One request, one answer, both a line of JSON.

    There are fixed commands, and none that runs code. All of it happens on
    threads of its own: a client that is slow, or never ends, is no concern
    of the training.

    Args:
        commands (Mapping): What can be asked, by name. A command takes the
            request, and raises ValueError if it cannot be answered.
        is_over (Callable): Whether nobody needs answers any more: asked once
            a second.
    """

    def __init__(
        self, commands: Mapping[str, Command], is_over: Callable[[], bool]
    ) -> None:
        global _open  # noqa: PLW0603
        if _open is not None:
            # Of a run that an error has ended, which nobody told the hooks.
            _open.close()
        self._commands, self._is_over = commands, is_over
        self._slots = threading.BoundedSemaphore(_MOST)
        folder = open_folder()
        remove_dead()
        self._socket, self.path = listen(folder)
        self._socket.setblocking(False)
        self._ending, self._end = socket.socketpair()
        self._thread = BackgroundThread(
            'mmstable probe', self._serve, self._wake
        )
        self._thread.start()
        _open = self

    def close(self) -> None:
        """End it, and remove the socket."""
        self._thread.stop()

    def _serve(self, stopped: threading.Event) -> None:
        global _open  # noqa: PLW0603
        waiting = selectors.DefaultSelector()
        waiting.register(self._socket, selectors.EVENT_READ)
        waiting.register(self._ending, selectors.EVENT_READ)
        try:
            while not stopped.is_set() and not self._is_over():
                try:
                    if waiting.select(_INTERVAL):
                        self._accept()
                except BlockingIOError:
                    # Who asked is gone, or this is the end.
                    continue
                except OSError:
                    # Too many open files.
                    stopped.wait(_INTERVAL)
        finally:
            Path(self.path).unlink(missing_ok=True)
            for one in (waiting, self._socket, self._ending, self._end):
                one.close()
            if _open is self:
                # It has the whole run.
                _open = None

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        # In some versions of Python it is as the other one.
        connection.setblocking(True)
        if not is_own(connection) or not self._slots.acquire(False):
            connection.close()
            return
        threading.Thread(
            target=self._answer,
            args=(connection,),
            name='mmstable probe client',
            daemon=True,
        ).start()

    def _wake(self) -> None:
        # It may have ended by itself just now.
        with suppress(OSError):
            self._end.send(b'.')

    def _answer(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                line = _read_line(connection)
                connection.settimeout(_PATIENCE)
                connection.sendall(_encode(self._reply(line)))
        finally:
            self._slots.release()

    def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            request = parse_json(line, LONGEST_REQUEST)
            if not isinstance(request, dict):
                raise ValueError('must be an object')
            name = request.get('command')
            if not isinstance(name, str) or name not in self._commands:
                known = ', '.join(self._commands)
                raise ValueError(
                    f'`command` must be one of {known}, got {short_repr(name)}'
                )
            return {'answer': self._commands[name](request)}
        except ValueError as error:
            return {'error': str(error)}
        except Exception as error:
            # Of a run that ends, or is in a state that nobody thought of.
            return {'error': f'{type(error).__name__}: {error}'}


def _read_line(connection: socket.socket) -> bytes:
    """All up to the end of the line; no more than is allowed."""
    content, deadline = b'', time.monotonic() + _PATIENCE
    while not content.endswith(b'\n') and len(content) <= LONGEST_REQUEST:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(LONGEST_REQUEST + 1 - len(content))
        if not part:
            break
        content += part
    return content


def _encode(reply: dict[str, Any]) -> bytes:
    content = json.dumps(reply).encode() + b'\n'
    if len(content) > LONGEST_ANSWER:
        reply = {'error': f'the answer has {len(content)} bytes'}
        return json.dumps(reply).encode() + b'\n'
    return content
