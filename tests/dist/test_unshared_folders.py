"""Two machines with folders of their own, played by two ranks."""

from __future__ import annotations

import logging
import os
import platform
from pathlib import Path
from types import SimpleNamespace

from mmstable.checkpoint import folders
from mmstable.cli import start
from tests.ranks import run_ranks

NAME = 'work/iter_2.pth'
CONTENT = bytes(range(256)) * 100


def settle_down(rank: int, folder: Path) -> None:
    """Go to a folder that only this rank sees."""
    platform.node = lambda: f'host{rank}'
    own = folder / f'disk{rank}'
    own.mkdir()
    os.chdir(own)


def resume(rank: int, folder: Path) -> None:
    settle_down(rank, folder)
    start._LONGEST_LAG_S = 0
    folders._PIECE = 1000
    if rank == 0:
        Path('work').mkdir()
        Path(NAME).write_bytes(CONTENT)
    start._check_all_see(NAME)
    assert Path(NAME).read_bytes() == CONTENT


def test_rank_0_sends_its_checkpoint(tmp_path):
    run_ranks(resume, tmp_path)


def warn(rank: int, folder: Path) -> None:
    shared = folder / 'shared'
    settle_down(rank, folder)
    lines: list[str] = []
    logger = logging.getLogger('unshared')
    logger.warning = lines.append  # type: ignore[method-assign,assignment]
    runner = SimpleNamespace(logger=logger)
    folders.warn_if_not_shared(runner, shared)
    assert lines == []
    folders.warn_if_not_shared(runner, Path('own'))
    assert len(lines) == (rank == 0)
    assert all('host1 do not see own of rank 0' in one for one in lines)
    if rank == 0:
        assert not list(folder.glob('**/*.mmstable-shared'))


def test_folders_that_are_not_shared_are_noticed(tmp_path):
    run_ranks(warn, tmp_path)
