"""Which checkpoint can a run be resumed from?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.candidates import rank_candidates
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    no_dict,
    read_verified,
    require_sections,
)
from mmstable.checkpoint.manifest import Manifest
from mmstable.checkpoint.sections import check_sections
from mmstable.checkpoint.shards import SHARDS, check_shards
from mmstable.events.stateful_hook import read_state
from mmstable.messages import _
from mmstable.messages.printable import printable


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
            reason = _(
                'iteration {iteration} is not before {before}',
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
    it and all values are looked at. Every section is read dry.

    Raises:
        BadCheckpoint: If a run cannot be resumed from it, whatever the
            reason.
    """
    return _without_surprises(_verify, path)


def verify_weights(path: Path) -> str:
    """Look through a file that gives its weights to a new run.

    It may be a checkpoint, or a dict of any kind. Its bytes and the values
    of its weights are looked at as by :func:`verify_checkpoint`.

    Returns:
        str: The digest of what was looked through.

    Raises:
        BadCheckpoint: If it cannot be loaded.
    """
    return _without_surprises(_verify_weights, path)


def _without_surprises(verify: Callable[[Path], Any], path: Path) -> Any:
    try:
        return verify(path)
    except BadCheckpoint:
        raise
    except Exception as error:
        # One file must not keep the search from the next one.
        text = f'{type(error).__name__}: {error}'
        raise BadCheckpoint(path, _('foreign: {error}', error=text)) from error


def _verify(path: Path) -> GoodCheckpoint:
    content = read_verified(path, with_digest=True, for_audit=True)
    checkpoint = require_sections(path, content.value)
    if SHARDS in checkpoint.get('mmstable', {}):
        check_shards(path, checkpoint['mmstable'][SHARDS])
    meta = checkpoint.get('meta', {})
    if not {'epoch', 'iter'} <= meta.keys():
        raise BadCheckpoint(
            path,
            _(
                'foreign: it has weights only, no `meta` with epoch and '
                'iter. --load-from starts a new run with them'
            ),
        )
    try:
        check_sections(checkpoint)
    except ValueError as error:
        text = _('no run saves this: {reason}', reason=error)
        raise BadCheckpoint(path, _('foreign: {error}', error=text)) from error
    _check_values(path, checkpoint)
    return GoodCheckpoint(path, meta['iter'], meta['epoch'], content.sha256)


def _verify_weights(path: Path) -> str:
    content = read_verified(path, with_digest=True, for_audit=True)
    if not isinstance(content.value, dict):
        raise no_dict(path, content.value)
    checkpoint = content.value
    if 'state_dict' not in checkpoint:
        checkpoint = {'state_dict': checkpoint}
    used = {'state_dict', 'mmstable'} & checkpoint.keys()
    _check_values(path, {name: checkpoint[name] for name in used})
    return content.sha256


def _check_values(path: Path, checkpoint: dict[str, Any]) -> None:
    manifest = Manifest.read(path)
    if manifest is None:
        saved = read_state(checkpoint, 'SafeCheckpointHook') or {}
        poison = find_poison(checkpoint, saved.get('placeholders'))
        if poison:
            culprits = list_culprits(poison)
            raise BadCheckpoint(
                path, _('non-finite: {culprits}', culprits=culprits)
            )
    elif not manifest.finite:
        raise BadCheckpoint(path, _('non-finite: saved so'))
