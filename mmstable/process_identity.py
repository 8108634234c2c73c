"""Which process is meant, and does it still live?"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

# What the kernel calls a process that has ended, waited for or not.
_ENDED = ('Z', 'X')


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told from others that have its number.

    Args:
        host (str): The machine.
        pid (int): The process.
        space (str): Where that number has a meaning: the namespace of
            processes, which a container has of its own.
        born (str): When the process began, by the kernel's count, so that
            another one with the same number is not taken for it.
    """

    host: str
    pid: int
    space: str
    born: str

    @classmethod
    def of_this_process(cls) -> ProcessIdentity:
        """The process that asks."""
        pid = os.getpid()
        return cls(platform.node(), pid, _space(), _born(pid))

    def can_be_asked(self) -> bool:
        """Whether its process number has a meaning here."""
        return (self.host, self.space) == (platform.node(), _space())

    def is_alive(self) -> bool:
        """Whether the process is still there, if that can be asked."""
        return is_alive(self.pid) and _born(self.pid) == self.born


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number, as far as can be told."""
    if os.name == 'nt':
        # There this would send Ctrl-C.
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        # It belongs to somebody else.
        return True
    # Until somebody asks how it ended, a dead process keeps its number.
    return not any(one in _ENDED for one in _stat(pid)[:1])


def _space() -> str:
    try:
        return os.readlink('/proc/self/ns/pid')
    except OSError:
        return ''


def _born(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ''


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on."""
    try:
        text = Path(f'/proc/{pid}/stat').read_text(errors='replace')
    except OSError:
        return []
    # After the name, which may have spaces in it.
    return text.rpartition(')')[2].split()
