"""Which checkpoint can a run go on from?"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_container,
    check_data,
    load_checkpoint,
)
from mmstable.checkpoint.manifest import Manifest, digest

_NAME = re.compile(r'(?:iter|epoch|emergency)_\D*(\d+)\.pth$')


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that was looked through and is fine.

    Args:
        path (Path): The file.
        iteration (int): Iterations done.
        epoch (int): Epochs done.
    """

    path: Path
    iteration: int
    epoch: int


@dataclass(frozen=True)
class Search:
    """What a search for a checkpoint found.

    Args:
        found (GoodCheckpoint, optional): The newest good one.
        skipped (tuple[str]): Name and reason of the newer ones.
    """

    found: GoodCheckpoint | None
    skipped: tuple[str, ...]


def find_checkpoint(folder: Path, before_iter: int | None = None) -> Search:
    """Find the newest good checkpoint of a run.

    Args:
        folder (Path): The work directory of the run. If it has none, the
            folder of what its file ``last_checkpoint`` names is looked at.
        before_iter (int, optional): Only those with fewer iterations done.
            Defaults to None.
    """
    skipped: list[str] = []
    for one in _newest_first(map(_Candidate.at, _candidates(folder))):
        if before_iter is not None and one.iteration >= before_iter:
            reason = f'iteration {one.iteration} is not before {before_iter}'
        else:
            try:
                return Search(verify_checkpoint(one.path), tuple(skipped))
            except BadCheckpoint as error:
                reason = error.reason
        skipped.append(f'{one.path.name}: {reason}')
    return Search(None, tuple(skipped))


def verify_checkpoint(path: Path) -> GoodCheckpoint:
    """Look through a checkpoint.

    With a side file its digest is compared, otherwise the check sums inside
    it, and all values are looked at.

    Raises:
        BadCheckpoint: If a run cannot go on from it.
    """
    is_zip = check_container(path)
    side = Manifest.read(path)
    if side is not None:
        _compare(path, side)
    elif is_zip:
        check_data(path)
    checkpoint = load_checkpoint(path, mmap=True)
    meta = checkpoint.get('meta')
    if not isinstance(meta, dict) or not {'epoch', 'iter'} <= meta.keys():
        raise BadCheckpoint(
            path,
            'foreign: it has weights only, no `meta` with epoch and iter. '
            '--load-from starts a new run with them',
        )
    if side is None:
        _check_values(path, checkpoint)
    return GoodCheckpoint(path, int(meta['iter']), int(meta['epoch']))


def _compare(path: Path, side: Manifest) -> None:
    size = path.stat().st_size
    if size != side.size:
        what = 'truncated' if size < side.size else 'corrupt'
        raise BadCheckpoint(path, f'{what}: {size} of {side.size} bytes')
    if digest(path) != side.sha256:
        raise BadCheckpoint(path, 'corrupt: its SHA-256 is not as saved')
    if not side.finite:
        raise BadCheckpoint(path, 'non-finite: saved so')


def _check_values(path: Path, checkpoint: dict[str, Any]) -> None:
    saved = checkpoint.get('mmstable', {}).get('SafeCheckpointHook', {})
    poison = find_poison(checkpoint, saved.get('infinite_buffers'))
    if poison:
        raise BadCheckpoint(path, f'non-finite: {list_culprits(poison)}')


@dataclass(frozen=True)
class _Candidate:
    path: Path
    iteration: int
    time: float | None

    @classmethod
    def at(cls, path: Path) -> _Candidate:
        side = Manifest.read(path)
        if side is not None:
            return cls(path, side.iteration, side.time)
        try:
            iteration = load_checkpoint(path, mmap=True)['meta']['iter']
        except (BadCheckpoint, KeyError, TypeError):
            # Only for its place among those that are skipped.
            match = _NAME.match(path.name)
            iteration = match.group(1) if match else 0
        return cls(path, int(iteration), None)


def _candidates(folder: Path) -> set[Path]:
    own = _checkpoints_in(folder)
    pointer = folder / 'last_checkpoint'
    if not pointer.is_file():
        return own
    last = Path(pointer.read_text().strip())
    # It may have any name, and the folder may have been moved.
    if (folder / last.name).is_file():
        own.add((folder / last.name).resolve())
    if own or not last.is_file():
        return own
    # Checkpoints may be kept elsewhere (`out_dir`). Only then the pointer is
    # followed: in a copy of a work directory it leads back to the original.
    return {last.resolve()} | _checkpoints_in(last.parent)


def _checkpoints_in(folder: Path) -> set[Path]:
    return {
        path.resolve()
        for path in folder.glob('*.pth')
        if _NAME.match(path.name)
    }


def _newest_first(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """By iteration, apart from those of a past that was given up.

    A run that went back to an older checkpoint writes lower numbers than
    those it has left behind, but later.
    """
    live: list[_Candidate] = []
    left_behind: list[_Candidate] = []
    latest = 0.0
    for one in sorted(candidates, key=lambda c: (c.iteration, c.time or 0)):
        time = latest if one.time is None else one.time
        (live if time >= latest else left_behind).append(one)
        latest = max(latest, time)
    return live[::-1] + left_behind[::-1]
