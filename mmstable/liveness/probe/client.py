"""Ask a run on this machine something, from another process."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from mmstable.checked_json import parse_json
from mmstable.errors import MMStableError
from mmstable.liveness.probe.server import LONGEST_ANSWER
from mmstable.liveness.probe.sockets import connect


class ProbeError(MMStableError):
    """A run cannot be asked, or cannot answer."""


def ask(
    path: Path, command: str, timeout: float = 10.0, **arguments: Any
) -> Any:
    """The answer of a run.

    Args:
        path (Path): Its socket.
        command (str): What to ask.
        timeout (float): Seconds to wait. Defaults to 10.0.
        **arguments: Of the command.

    Raises:
        OSError: If it cannot be asked.
        ProbeError: If it cannot answer.
    """
    request = json.dumps({'command': command, **arguments})
    with connect(path, timeout) as connection:
        connection.sendall(request.encode() + b'\n')
        content = _read_all(connection)
    try:
        reply = parse_json(content, LONGEST_ANSWER)
        error = reply.get('error')
    except (ValueError, AttributeError):
        raise ConnectionError('no answer') from None
    if error is not None:
        raise ProbeError(str(error))
    return reply.get('answer')


def _read_all(connection: socket.socket) -> bytes:
    content = bytearray()
    while len(content) <= LONGEST_ANSWER:
        part = connection.recv(1 << 16)
        if not part:
            break
        content += part
    return bytes(content)
