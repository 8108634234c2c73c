"""What a rank was doing when the run ended."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from mmstable.background import all_stacks
from mmstable.files import append


def write_exception(folder: Path, rank: int, error: BaseException) -> None:
    """Write where an exception came from.

    Args:
        folder (Path): Where to.
        rank (int): The rank that it happened on.
        error (BaseException): The exception.
    """
    # Why the run ends matters more than a disk that is full.
    with suppress(OSError), _open(folder, rank) as file:
        file.writelines(
            traceback.format_exception(type(error), error, error.__traceback__)
        )


def write_stacks(
    folder: Path, rank: int, reason: object, more: Sequence[str] = ()
) -> None:
    """Write what all threads of this process are doing.

    Args:
        folder (Path): Where to.
        rank (int): The rank of this process.
        reason (object): Why it is written.
        more (Sequence[str]): What else to write, as stacks of workers.
            Defaults to ().
    """
    # Why the run ends matters more than a disk that is full.
    with suppress(OSError), _open(folder, rank) as file:
        file.write(f'{reason}\n\n{all_stacks()}')
        file.writelines(f'\n{text.rstrip()}\n' for text in more)


def stacks_file(folder: Path, rank: int) -> Path:
    """The file that all of these write to."""
    return folder / f'stacks.rank{rank}.txt'


def _open(folder: Path, rank: int) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = stacks_file(folder, rank)
    return open(path, 'a', encoding='utf-8', opener=append)
