"""Show the page on this machine, as fresh as the event files are."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mmstable.errors import MMStableError, UsageError
from mmstable.messages import say
from mmstable.report.diagnosis.endings import state_of
from mmstable.report.find_runs import find_event_files
from mmstable.report.history import read_history
from mmstable.report.page import page_data, write_page
from mmstable.report.start import Start

_HOST = '127.0.0.1'
_NAMES = ('127.0.0.1', 'localhost')


class Source:
    """The page and its data, made anew when a file or a state changes.

    Args:
        paths (Sequence[str]): The work directories.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._lock = threading.Lock()
        self._seen: tuple[Any, ...] = ()
        self._last: list[Start] = []
        self._page = self._data = b''

    def page(self) -> bytes:
        """The page."""
        self._update()
        return self._page

    def data(self) -> bytes:
        """What the page asks for again and again."""
        self._update()
        return self._data

    def _update(self) -> None:
        with self._lock:
            files = self._look()
            if (files, self._states()) == self._seen:
                return
            histories = [read_history(path) for path in self._paths]
            self._last = [one.starts[-1] for one in histories]
            seen = files, self._states()
            stamp = hashlib.sha256(repr(seen).encode()).hexdigest()
            content = {**page_data(histories), 'stamp': stamp}
            self._data = json.dumps(content, allow_nan=False).encode()
            self._page = write_page(histories, live=True).encode()
            self._seen = seen

    def _look(self) -> list[tuple[str, int, int]]:
        """What changes when any of the files does."""
        return [
            (str(file), file.stat().st_size, file.stat().st_mtime_ns)
            for path in self._paths
            for file in find_event_files(Path(path))
        ]

    def _states(self) -> list[str]:
        """What changes when a process is killed, which writes nothing."""
        return [state_of(one) for one in self._last]


class _Handler(BaseHTTPRequestHandler):
    server: Any
    timeout = 10

    def do_GET(self) -> None:
        """Give the page or its data to whoever names this machine."""
        host = self.headers.get('Host', '').partition(':')[0]
        if host not in _NAMES:
            # Against DNS rebinding: the name of a foreign page may resolve
            # to this machine.
            self._answer(HTTPStatus.FORBIDDEN, b'forbidden', 'text/plain')
            return
        answers = {
            '/': (self.server.source.page, 'text/html; charset=utf-8'),
            '/data.json': (self.server.source.data, 'application/json'),
        }
        if self.path not in answers:
            self._answer(HTTPStatus.NOT_FOUND, b'not found', 'text/plain')
            return
        make, kind = answers[self.path]
        try:
            content = make()
        except (MMStableError, OSError) as error:
            text = str(error).encode()
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, text, 'text/plain')
            return
        self._answer(HTTPStatus.OK, content, kind)

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(content)))
        self.send_header('Cache-Control', 'no-store')
        self.send_header('X-Content-Type-Options', 'nosniff')
        self.send_header('X-Frame-Options', 'DENY')
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing; nobody reads it."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that has closed its tab meanwhile."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def make_server(paths: Sequence[str], port: int) -> ThreadingHTTPServer:
    """A server for this machine only.

    Args:
        paths (Sequence[str]): The work directories.
        port (int): The port; 0 for any that is free.

    Raises:
        UsageError: If the port cannot be had.
    """
    try:
        server = _Server((_HOST, port), _Handler)
    except OSError as error:
        raise UsageError(
            say('report.serve_failed', port=port, error=error.strerror)
        ) from None
    server.daemon_threads = True
    server.source = Source(paths)  # type: ignore[attr-defined]
    return server


def serve(
    paths: Sequence[str], port: int, tell: Callable[[str], None]
) -> None:
    """Show the page until Ctrl-C.

    Args:
        paths (Sequence[str]): The work directories.
        port (int): The port; 0 for any that is free.
        tell (Callable): Prints a line.
    """
    with make_server(paths, port) as server:
        address = f'http://{_HOST}:{server.server_address[1]}/'
        tell(say('report.serving', address=address))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
