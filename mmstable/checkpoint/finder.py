"""Which checkpoint can a run be resumed from?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_sections,
    inspect_checkpoint,
    read_guarded,
)
from mmstable.checkpoint.manifest import Manifest, is_count
from mmstable.checkpoint.placeholders import read_counts
from mmstable.files import read_bounded
from mmstable.messages.printable import printable, short_repr

_NAME = re.compile(r'(?:iter|epoch|emergency)_\D*(\d{1,15})\.pth$')


_LONGEST_PATH = 4096


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that was looked through and is fine.

    Args:
        path (Path): The file.
        iteration (int): Iterations done.
        epoch (int): Epochs done.
        sha256 (str): The digest of the bytes that were looked through.
    """

    path: Path
    iteration: int
    epoch: int
    sha256: str


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
        skipped.append(f'{printable(one.path.name)}: {reason}')
    return Search(None, tuple(skipped))


def verify_checkpoint(path: Path) -> GoodCheckpoint:
    """Look through a checkpoint.

    With a manifest its digest is compared, otherwise the check sums inside
    it, and all values are looked at.

    Raises:
        BadCheckpoint: If a run cannot be resumed from it, whatever the
            reason.
    """
    try:
        return _verify(path)
    except BadCheckpoint:
        raise
    except Exception as error:
        # One file must not keep the search from the next one.
        text = f'foreign: {type(error).__name__}: {error}'
        raise BadCheckpoint(path, text) from error


def _verify(path: Path) -> GoodCheckpoint:
    manifest = Manifest.read(path)
    content = read_guarded(
        path,
        with_values=manifest is None,
        with_digest=True,
        check_sums=manifest is None,
    )
    if manifest is not None:
        _compare(path, content.sha256, manifest)
    checkpoint = check_sections(path, content.value)
    if manifest is None:
        _check_values(path, checkpoint)
    meta = checkpoint.get('meta', {})
    if not {'epoch', 'iter'} <= meta.keys():
        raise BadCheckpoint(
            path,
            'foreign: it has weights only, no `meta` with epoch and iter. '
            '--load-from starts a new run with them',
        )
    for name in ('epoch', 'iter'):
        if not is_count(meta[name]):
            raise BadCheckpoint(
                path,
                f'foreign: its {name} is {short_repr(meta[name])}, not a '
                'count',
            )
    return GoodCheckpoint(path, meta['iter'], meta['epoch'], content.sha256)


def _compare(path: Path, sha256: str, manifest: Manifest) -> None:
    if sha256 != manifest.sha256:
        raise BadCheckpoint(path, 'corrupt: its SHA-256 is not as saved')
    if not manifest.finite:
        raise BadCheckpoint(path, 'non-finite: saved so')


def _check_values(path: Path, checkpoint: dict[str, Any]) -> None:
    saved = checkpoint.get('mmstable', {}).get('SafeCheckpointHook')
    known = saved.get('placeholders') if type(saved) is dict else None
    poison = find_poison(checkpoint, read_counts(known))
    if poison:
        raise BadCheckpoint(path, f'non-finite: {list_culprits(poison)}')


@dataclass(frozen=True)
class _Candidate:
    path: Path
    iteration: int
    time: float | None

    @classmethod
    def at(cls, path: Path) -> _Candidate:
        manifest = Manifest.read(path)
        if manifest is not None:
            return cls(path, manifest.iteration, manifest.time)
        try:
            iteration = inspect_checkpoint(path).get('meta', {}).get('iter')
        except BadCheckpoint:
            iteration = None
        if not is_count(iteration):
            # Only for its place among those that are skipped.
            match = _NAME.match(path.name)
            iteration = int(match.group(1)) if match else 0
        return cls(path, iteration, None)


def _candidates(folder: Path) -> set[Path]:
    own = _checkpoints_in(folder)
    last = _read_pointer(folder / 'last_checkpoint')
    if last is None:
        return own
    # It may have any name, and the folder may have been moved.
    if os.path.isfile(folder / last.name):
        own.add(_real(folder / last.name))
    if own or not os.path.isfile(last):
        return own
    # Checkpoints may be kept elsewhere (`out_dir`). Only then the pointer is
    # followed: in a copy of a work directory it leads back to the original.
    return {_real(last)} | _checkpoints_in(last.parent)


def _read_pointer(path: Path) -> Path | None:
    try:
        content = read_bounded(path, _LONGEST_PATH)
    except OSError:
        return None
    text = os.fsdecode(content).strip()
    return Path(text) if text and '\x00' not in text else None


def _checkpoints_in(folder: Path) -> set[Path]:
    return {
        _real(path) for path in folder.glob('*.pth') if _NAME.match(path.name)
    }


def _real(path: Path) -> Path:
    # Unlike `Path.resolve` it takes a circle of links for what it is.
    return Path(os.path.realpath(path))


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
