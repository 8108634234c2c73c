"""Who trains in a folder, by the small file that keeps others out."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from mmstable.checked_json import parse_json
from mmstable.files import read_bounded
from mmstable.process_identity import ProcessIdentity

NAME = '.mmstable-lock'
# Tokens of the locks that this process holds.
HELD: set[str] = set()
_LONGEST = 4096


@dataclass(frozen=True)
class Owner(ProcessIdentity):
    """Who holds a lock.

    Args:
        host (str): The machine.
        pid (int): The process.
        space (str): The namespace that its number has a meaning in.
        born (str): When the process began.
        token (str): What no other lock has.
    """

    token: str

    @classmethod
    def this(cls) -> Owner:
        """This process."""
        process = asdict(ProcessIdentity.of_this_process())
        return cls(**process, token=secrets.token_hex(8))

    @classmethod
    def read(cls, path: Path) -> Owner | None:
        """The owner of a lock; None if the file does not say."""
        try:
            content = parse_json(read_bounded(path, _LONGEST), _LONGEST)
            texts = {
                name: content[name]
                for name in ('host', 'space', 'born', 'token')
            }
            pid = content['pid']
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if type(pid) is not int or not 0 < pid < 2**31:
            return None
        if any(type(text) is not str for text in texts.values()):
            return None
        return cls(pid=pid, **texts)

    def is_alive(self) -> bool:
        """Whether the process is still there, if that can be asked."""
        if self.pid == os.getpid():
            # In a container, the one before had the same number.
            return self.token in HELD
        return super().is_alive()
