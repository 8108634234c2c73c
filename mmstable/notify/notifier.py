"""Send a message from a thread, at most one of a kind in ten minutes."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

from mmengine.logging import print_log

from mmstable.errors import MMStableError
from mmstable.io.files import append
from mmstable.io.schema import parse_json
from mmstable.messages import N_, _, language, speaking
from mmstable.notify import send
from mmstable.notify.addresses import (
    mask_address,
    read_addresses,
    why_not_possible,
)

INTERVAL_S = 600.0
TIMEOUT_S = 5.0
# For Python to start and to import apprise on a busy machine.
_START_S = 20.0
_STATE = '.mmstable-notified'
_MAX_BYTES = 1 << 16
_LONGEST = 3000


class Occasion(Enum):
    """What a message is about; the value is its title."""

    CRASHED = N_('crashed')
    STOPPED = N_('stopped')
    FAULT = N_('a fault, training continues')
    HANG = N_('hangs')
    MEMORY = N_('memory runs out')
    GAVE_UP = N_('not restarted again')
    RESUMED = N_('resumed')
    FINISHED = N_('finished')
    TEST = N_('a test message')


class Notifier:
    """Sends messages about one run.

    Nothing here raises, and no method but :meth:`wait` waits.

    Args:
        work_dir (Path): The work directory, which names the run; the times
            of what was sent are kept there, for all its processes.
        interval_s (float): Seconds between two messages of a kind.
            Defaults to 600.0.
    """

    def __init__(self, work_dir: Path, interval_s: float = INTERVAL_S) -> None:
        self._work_dir = work_dir
        self._interval_s = interval_s
        self._threads: list[threading.Thread] = []
        self._has_warned = False
        try:
            self.addresses = read_addresses()
            problem = why_not_possible() if self.addresses else ''
        except MMStableError as error:
            self.addresses, problem = [], str(error)
        if problem:
            self.addresses = []
            self._warn(problem)

    def send(self, occasion: Occasion, body: str, kind: str = '') -> None:
        """Send a message, unless one of its kind was sent lately.

        Args:
            occasion (Occasion): What it is about.
            body (str): The text.
            kind (str): Tells messages of one occasion apart. Defaults to ''.
        """
        if not self.addresses:
            return
        folder = self._work_dir.resolve()
        title = f'[mmstable] {folder.name}: {_(occasion.value)}'
        where = _('Host {host}, {folder}', host=platform.node(), folder=folder)
        thread = threading.Thread(
            target=self._deliver,
            args=(
                f'{occasion.name.lower()} {kind}'.strip(),
                title,
                f'{body[:_LONGEST]}\n{where}',
                language(),
            ),
            name='mmstable-notify',
            daemon=True,
        )
        # No more threads can be started while Python ends.
        with suppress(RuntimeError):
            thread.start()
            self._threads.append(thread)

    def wait(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until all is sent, before a process ends."""
        end = time.monotonic() + timeout_s
        for one in self._threads:
            one.join(max(0.0, end - time.monotonic()))
        self._threads = [one for one in self._threads if one.is_alive()]

    def _deliver(self, kind: str, title: str, body: str, lang: str) -> None:
        with speaking(lang):
            try:
                unsent = self._take_turn(kind)
                if unsent is None:
                    return
                if unsent:
                    body += '\n' + _(
                        '{count:more message of this kind was|more messages '
                        'of this kind were} not sent.',
                        count=unsent,
                    )
                reasons = deliver(self.addresses, title, body)
            except Exception as error:
                # Whatever it is, it is not worth a run.
                self._warn(type(error).__name__)
                return
            for address, reason in zip(self.addresses, reasons):
                if reason:
                    self._warn(f'{mask_address(address)}: {reason}')

    def _take_turn(self, kind: str) -> int | None:
        """Note that a message is sent now; None if it must not be.

        Returns:
            int, optional: How many of its kind were not sent before it.
        """
        path, now = self._work_dir / _STATE, time.time()
        try:
            with open(path, 'a+b', opener=append) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                state = _parse(file.read(_MAX_BYTES))
                last, unsent = state.get(kind, (0.0, 0))
                is_due = not 0 <= now - last < self._interval_s
                state[kind] = (now, 0) if is_due else (last, unsent + 1)
                file.truncate(0)
                file.write(json.dumps(state).encode())
                return unsent if is_due else None
        except OSError:
            # A full disk is worth a message, too.
            return 0

    def _warn(self, reason: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        print_log(
            _(
                'mmstable: a notification could not be sent: {reason}. The '
                'run is not affected; test with `mmstable notify --test`.',
                reason=reason,
            ),
            logger='current',
            level=logging.WARNING,
        )


def deliver(addresses: list[str], title: str, body: str) -> list[str]:
    """Send a message now, in a process of its own.

    Returns:
        list[str]: For each address the reason of its failure, or ''.
    """
    request = {
        'addresses': addresses,
        'title': title,
        'body': body,
        'timeout_s': TIMEOUT_S,
    }
    env = {k: v for k, v in os.environ.items() if not k.startswith('MMSTABLE')}
    process = subprocess.Popen(
        [sys.executable, send.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        # Ctrl-C in a terminal is meant for the run.
        start_new_session=True,
    )
    try:
        limit = TIMEOUT_S + _START_S
        answer, __ = process.communicate(json.dumps(request).encode(), limit)
        reasons = json.loads(answer)
    except (subprocess.TimeoutExpired, ValueError):
        process.kill()
        reasons = ['timed out']
    return [str(one) for one in reasons]


def _parse(content: bytes) -> dict[str, tuple[float, int]]:
    try:
        found = parse_json(content, _MAX_BYTES)
        return {
            str(kind): (float(last), int(unsent))
            for kind, (last, unsent) in found.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def send_from_supervisor(
    work_dir: str | os.PathLike[str], text: str, is_over: bool
) -> None:
    """Send what a run that was killed or hangs cannot send.

    Args:
        work_dir (str or PathLike): The work directory.
        text (str): Why the run ended, and what follows.
        is_over (bool): Whether it is not restarted any more.
    """
    with suppress(Exception):
        notifier = Notifier(Path(work_dir))
        occasion = Occasion.GAVE_UP if is_over else Occasion.CRASHED
        notifier.send(occasion, text)
        if is_over:
            notifier.wait()
