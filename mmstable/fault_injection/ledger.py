"""Faults that ended a process must not end the one that goes on, too."""

from __future__ import annotations

from pathlib import Path

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.errors import ConfigError
from mmstable.files import read_bounded
from mmstable.messages.printable import printable

_NAME = 'injected_faults.rank{}.txt'
# Far more than the faults of one run need.
_LONGEST = 1 << 20


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
        # In their order.
        self._lines = dict.fromkeys(self._read().splitlines())

    def __contains__(self, entry: tuple[int, str]) -> bool:
        return self._line(entry) in self._lines

    def add(self, entry: tuple[int, str]) -> None:
        """Remember a fault, on the disk before this returns.

        Args:
            entry (tuple[int, str]): The iteration, and what happens.
        """
        line = self._line(entry)
        self._lines[line] = None
        text = ''.join(f'{one}\n' for one in self._lines)
        replace_text(self.path, text, encoding='utf-8')

    def _read(self) -> str:
        try:
            return read_bounded(self.path, _LONGEST).decode('ascii')
        except FileNotFoundError:
            return ''
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"FaultInjectorHook: '{printable(self.path)}' is not the "
                f'list of faults that it should be ({error}); remove it to '
                'inject them all again.'
            ) from error

    @staticmethod
    def _line(entry: tuple[int, str]) -> str:
        iteration, what = entry
        # One line, whatever the message of an exception looks like.
        return f'{iteration} {what.encode("unicode_escape").decode("ascii")}'
