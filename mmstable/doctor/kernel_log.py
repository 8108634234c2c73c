"""What has the kernel said?  Read from wherever it may be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from mmstable.doctor.programs import ProgramFailed, output_of
from mmstable.errors import UsageError
from mmstable.files import read_only
from mmstable.messages import _

_LONGEST = 64 << 20
# Longer lines are no lines of a kernel.
_LONGEST_LINE = 8192
_MOST_RECORDS = 200_000
_SECONDS = 20.0
_KMSG = '/dev/kmsg'


class KernelLog(NamedTuple):
    """The lines, and where they come from.

    Args:
        lines (list[str]): The oldest first.
        source (str): A file or a program; '' if none could be read.
        refused (list[str]): What could not be read, and why.
    """

    lines: list[str]
    source: str
    refused: list[str]


def kernel_log(path: str | None = None) -> KernelLog:
    """The lines of the kernel of this machine, or of a file.

    Args:
        path (str, optional): The file. Defaults to None.
    """
    if path is not None:
        return KernelLog(_lines(_file(path)), path, [])
    readers: dict[str, Callable[[], str]] = {
        _KMSG: _kmsg,
        'dmesg': lambda: output_of(['dmesg'], _SECONDS),
        'journalctl': lambda: output_of(
            ['journalctl', '-k', '-q', '--no-pager', '-n', '100000'],
            _SECONDS,
        ),
    }
    refused = []
    for name, read in readers.items():
        try:
            text = read()
        except ProgramFailed as error:
            refused.append(str(error))
        except OSError as error:
            refused.append(f'{name}: {error.strerror or error}')
        else:
            if text.strip():
                return KernelLog(_lines(text), name, refused)
            refused.append(
                f'{name}: ' + _('nothing to read, or no permission')
            )
    return KernelLog([], '', refused)


def check_log(path: str) -> None:
    """Refuse a file that cannot be a log.

    Args:
        path (str): The file.
    """
    _file(path, longest=1 << 16)


def _file(path: str, longest: int = _LONGEST) -> str:
    """The end of a file; logs that were never cut are large."""
    try:
        with open(path, 'rb', opener=read_only) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - longest))
            content = file.read(longest)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            _('--log: {path}: {error}', path=path, error=reason)
        ) from None
    # A crash leaves zeros at the end of a log, but not first.
    if b'\0' in content[:4096] or content[:2] == b'\x1f\x8b':
        raise UsageError(
            _(
                '--log: {path} is no text; give the log as `dmesg` or '
                '`journalctl -k` print it.',
                path=path,
            )
        )
    return content.decode(errors='replace')


def _kmsg() -> str:
    """The ring buffer, record by record, without waiting for more."""
    descriptor = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        for __ in range(_MOST_RECORDS):
            try:
                records.append(os.read(descriptor, _LONGEST_LINE))
            except BlockingIOError:
                break
            except BrokenPipeError:
                # Overwritten meanwhile; the next read gets the next one.
                continue
    finally:
        os.close(descriptor)
    return b'\n'.join(records).decode(errors='replace')


def _lines(text: str) -> list[str]:
    return [line[:_LONGEST_LINE] for line in text.splitlines()]
