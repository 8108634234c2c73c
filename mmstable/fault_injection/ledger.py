"""Faults that ended a process must not end the one that goes on, too."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = 'injected_faults.rank{}.txt'


class Ledger:
    """A file in the work directory with a line for each of these faults.

    It is kept when a run starts at iteration 0: that may be one that was
    restarted before its first checkpoint.

    Args:
        work_dir (Path): The directory.
        rank (int): The rank, which has a file of its own.
    """

    def __init__(self, work_dir: Path, rank: int) -> None:
        self.path = work_dir / _NAME.format(rank)
        self._lines: set[str] = set()
        if self.path.exists():
            text = self.path.read_text(encoding='utf-8')
            self._lines = set(text.splitlines())

    def __contains__(self, entry: tuple[int, str]) -> bool:
        return self._line(entry) in self._lines

    def add(self, entry: tuple[int, str]) -> None:
        """Remember a fault, on the disk before this returns.

        Args:
            entry (tuple[int, str]): The iteration, and what happens.
        """
        line = self._line(entry)
        self._lines.add(line)
        with open(self.path, 'a', encoding='utf-8') as file:
            file.write(line + '\n')
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _line(entry: tuple[int, str]) -> str:
        iteration, what = entry
        # One line, whatever the message of an exception looks like.
        return f'{iteration} {what.encode("unicode_escape").decode("ascii")}'
