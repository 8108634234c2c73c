"""The process that delivers one message.

Run as a script that imports nothing of mmstable: it starts in a tenth of a
second, takes no time of the training process, and outlives it. stdin is a
JSON object with ``addresses``, ``title``, ``body`` and ``timeout_s``; stdout
a JSON list with the reason of each address that failed, '' for delivered. A
reason never quotes the address or what a server answered.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from typing import Any

# Of apprise's warnings only the status of HTTP is passed on.
_STATUS = re.compile(r'error[=: ]+(\d{3})\b')


class _Statuses(logging.Handler):
    """Collects the HTTP statuses that were logged, by any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        status = _STATUS.search(record.getMessage())
        if status:
            self.found.add(f'HTTP {status[1]}')


def deliver(request: dict[str, Any]) -> list[str]:
    """Send a message to all addresses at once; the reasons of failures."""
    import apprise

    statuses = _Statuses()
    logger = logging.getLogger('apprise')
    logger.addHandler(statuses)
    logger.propagate = False
    addresses = request['addresses']
    reasons = ['timed out'] * len(addresses)

    # Finding the service of an address imports apprise's plug-ins: seconds
    # on a busy machine, which are not the server's.
    servers = [apprise.Apprise() for _ in addresses]
    known = [one.add(text) for one, text in zip(servers, addresses)]

    def send(index: int) -> None:
        if not known[index]:
            reasons[index] = 'not an address that apprise knows'
            return
        sent = servers[index].notify(
            body=request['body'], title=request['title']
        )
        status = ', '.join(sorted(statuses.found)) or 'not reached'
        reasons[index] = '' if sent else status

    threads = [
        threading.Thread(target=send, args=(index,), daemon=True)
        for index in range(len(addresses))
    ]
    timer = threading.Event()
    threading.Timer(request['timeout_s'], timer.set).start()
    for one in threads:
        one.start()
    for one in threads:
        while one.is_alive() and not timer.is_set():
            one.join(0.05)
    return reasons


if __name__ == '__main__':
    # A module beside this file must not stand in for another one.
    del sys.path[0]
    answer = deliver(json.load(sys.stdin))
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    # Without waiting for a thread that hangs in a connection.
    import os

    os._exit(0)
