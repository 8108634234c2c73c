"""A server on this machine that keeps the messages it gets."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Letter(NamedTuple):
    title: str
    body: str
    time: float


class Mailbox(list[Letter]):
    """The messages, in the order in which they came."""

    address = ''
    status = 200
    # Set to let a request be answered.
    open = threading.Event()

    def titles(self) -> list[str]:
        return [one.title.partition(': ')[2] for one in self]


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    box.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers['Content-Length'])
            letter = json.loads(self.rfile.read(size))
            box.open.wait(60)
            now = time.time()
            box.append(Letter(letter['title'], letter['message'], now))
            self.send_response(box.status)
            self.end_headers()

        def log_message(self, *args) -> None:
            pass

    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    box.address = (
        f'json://127.0.0.1:{server.server_port}/a-secret?cto=60&rto=60'
    )
    try:
        yield box
    finally:
        box.open.set()
        server.shutdown()
        server.server_close()
