"""Which checkpoint can a run be resumed from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.candidates import rank_candidates
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    check_sections,
    read_guarded,
)
from mmstable.checkpoint.manifest import Manifest, is_count
from mmstable.checkpoint.placeholders import read_counts
from mmstable.checkpoint.shards import SHARDS, check_shards
from mmstable.messages import say
from mmstable.messages.printable import printable, short_repr


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
        notes (tuple[str]): Name of each one that has more iterations, and
            why it is not newer. Defaults to ().
    """

    found: GoodCheckpoint | None
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_checkpoint(
    folder: Path, before_iter: int | None = None, others: Sequence[Path] = ()
) -> Search:
    """Find the newest good checkpoint of a run.

    Args:
        folder (Path): The work directory of the run. If there is none, the
            folder of what its file ``last_checkpoint`` names is looked at.
        before_iter (int, optional): Only those with fewer iterations done.
            Defaults to None.
        others (Sequence[Path]): Other folders in which the run keeps
            checkpoints. Defaults to ().
    """
    ranking = rank_candidates([folder, *others])
    skipped: list[str] = []
    for number, one in enumerate(ranking.live + ranking.left_behind):
        if before_iter is not None and one.iteration >= before_iter:
            reason = say(
                'search.not_before',
                iteration=one.iteration,
                before=before_iter,
            )
        else:
            try:
                found = verify_checkpoint(one.path)
            except BadCheckpoint as error:
                reason = error.reason
            else:
                rest = ranking.left_behind[
                    max(0, number - len(ranking.live)) :
                ]
                notes = [
                    ranking.explain(other)
                    for other in rest
                    if other.iteration > one.iteration
                ]
                return Search(found, tuple(skipped), tuple(notes))
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
        text = f'{type(error).__name__}: {error}'
        raise BadCheckpoint(path, say('bad.foreign', error=text)) from error


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
    if SHARDS in checkpoint.get('mmstable', {}):
        check_shards(path, checkpoint['mmstable'][SHARDS])
    meta = checkpoint.get('meta', {})
    if not {'epoch', 'iter'} <= meta.keys():
        raise BadCheckpoint(path, say('bad.weights_only'))
    for name in ('epoch', 'iter'):
        if not is_count(meta[name]):
            text = say('bad.no_count', name=name, value=short_repr(meta[name]))
            raise BadCheckpoint(path, text)
    return GoodCheckpoint(path, meta['iter'], meta['epoch'], content.sha256)


def _compare(path: Path, sha256: str, manifest: Manifest) -> None:
    if sha256 != manifest.sha256:
        raise BadCheckpoint(path, say('bad.digest'))
    if not manifest.finite:
        raise BadCheckpoint(path, say('bad.saved_so'))


def _check_values(path: Path, checkpoint: dict[str, Any]) -> None:
    saved = checkpoint.get('mmstable', {}).get('SafeCheckpointHook')
    known = saved.get('placeholders') if type(saved) is dict else None
    poison = find_poison(checkpoint, read_counts(known))
    if poison:
        culprits = list_culprits(poison)
        raise BadCheckpoint(path, say('bad.not_finite', culprits=culprits))
