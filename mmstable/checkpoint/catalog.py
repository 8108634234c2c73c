"""Find the newest good checkpoint in the folders of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.runner import Runner

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.folders import (
    AnyPath,
    RemotePath,
    checkpoint_folders,
    finish_saves,
    list_folder,
    path_of,
)
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    no_dict,
    read_verified,
    require_sections,
)
from mmstable.checkpoint.manifest import (
    Lineage,
    Manifest,
    lineage_in,
    manifests_in,
)
from mmstable.checkpoint.sections import check_sections
from mmstable.checkpoint.shards import SHARDS, check_shards
from mmstable.events.monitor import read_state
from mmstable.io.files import read_bounded
from mmstable.io.schema import count
from mmstable.messages import _, printable

_NAME = re.compile(r'(?:iter|epoch|emergency)_\D*(\d{1,15})\.pth$')
_LONGEST_PATH = 4096
# Files without a manifest that are opened to find the newest.
_MOST_OPENED = 100


@dataclass(frozen=True)
class Candidate:
    """A checkpoint, by what it says of itself.

    Args:
        path (Path): The file.
        iteration (int): Iterations done.
        lineage (Lineage, optional): Which starts of a run it comes from; None
            if it does not say.
        is_readable (bool): Whether it could be asked. Defaults to True.
    """

    path: AnyPath
    iteration: int
    lineage: Lineage | None
    is_readable: bool = True

    @classmethod
    def at(cls, path: AnyPath, manifest: Manifest | None = None) -> Candidate:
        """The one in a file, by its manifest if that is known."""
        if manifest is not None:
            return cls(path, manifest.iteration, manifest.lineage)
        try:
            content = inspect_checkpoint(path)
            iteration = count(content.get('meta', {}).get('iter'))
        except (BadCheckpoint, ValueError):
            # Only for its place among those that are skipped.
            return cls(path, _number_in(path), None, False)
        return cls(path, iteration, lineage_in(content))


@dataclass(frozen=True)
class Ranking:
    """Candidates, the one to be taken first at the front.

    Args:
        live (tuple[Candidate]): The newest one, and what is of its past.
        left_behind (tuple[Candidate]): Those of other runs, and of a past
            that was given up.
        unread (tuple[Path]): Files without a manifest that were not opened:
            older or remote ones. Defaults to ().
    """

    live: tuple[Candidate, ...]
    left_behind: tuple[Candidate, ...]
    unread: tuple[AnyPath, ...] = ()

    def __iter__(self) -> Iterator[Candidate]:
        """Yield all candidates; unread ones are opened on the way."""
        yield from self.live
        yield from self.left_behind
        yield from map(Candidate.at, self.unread)


def rank_candidates(folders: Sequence[AnyPath]) -> Ranking:
    """Look through the folders of a run.

    What is newest is decided by what the files say of themselves: the last
    start of a run goes before all others, whatever their iterations and
    times are. Files that say nothing, as those of mmengine's own hook, go
    first if ``last_checkpoint`` names one of them, otherwise last.

    Args:
        folders (Sequence[Path]): The work directory, then others in which
            the run keeps checkpoints.
    """
    work_dir = folders[0]
    named = None
    if isinstance(work_dir, Path):
        named = _read_pointer(work_dir / 'last_checkpoint')
    paths = _paths(folders, named)
    unread = _too_many(paths, named)
    found = [
        Candidate.at(path, manifest)
        for path, manifest in paths.items()
        if path not in unread
    ]
    leader = _find_leader(found, named)
    live: list[Candidate] = []
    left_behind: list[Candidate] = []
    for one in found:
        (live if _is_live(one, leader) else left_behind).append(one)
    # Of two with the same number, that of the newest run.
    live.sort(key=lambda one: (one.iteration, one is leader), reverse=True)
    left_behind.sort(key=_by_start, reverse=True)
    unread.sort(key=_number_in, reverse=True)
    return Ranking(tuple(live), tuple(left_behind), tuple(unread))


def _too_many(
    paths: Mapping[AnyPath, Manifest | None], named: AnyPath | None
) -> list[AnyPath]:
    """Files without a manifest that are remote, or not among the newest.

    Opening thousands of files takes minutes, and so does a download. A file
    is newest by its number, or because it is named.
    """
    unknown = [path for path, manifest in paths.items() if manifest is None]
    local = [path for path in unknown if isinstance(path, Path)]
    read = set(local)
    if len(local) > _MOST_OPENED:
        read = {
            *sorted(local, key=_number_in)[-_MOST_OPENED:],
            *(one for one in local if named and one.name == named.name),
        }
    return [path for path in unknown if path not in read]


def _number_in(path: AnyPath) -> int:
    match = _NAME.match(path.name)
    return int(match.group(1)) if match else 0


def _find_leader(
    found: Sequence[Candidate], named: AnyPath | None
) -> Candidate | None:
    labelled = [one for one in found if one.lineage is not None]
    newest = max(labelled, key=_by_start, default=None)
    last = None
    if named is not None:
        # The folder may have been moved or copied: then its name counts.
        real = _real(named)
        names = named.name, real.name
        by_name = [one for one in found if one.path.name in names]
        by_name.sort(key=lambda one: one.path != real)
        last = next(iter(by_name), None)
    if last is None or not last.is_readable or last.lineage is not None:
        return newest
    # It was saved after all others, unless the newest run has begun with
    # it.
    is_past = newest is not None and _is_live(last, newest)
    return newest if is_past else last


def _is_live(one: Candidate, leader: Candidate | None) -> bool:
    if leader is None or not one.is_readable:
        # A file that cannot be read is skipped, and the reason logged.
        return True
    if leader.lineage is None:
        return one.lineage is None and one.iteration <= leader.iteration
    return leader.lineage.includes(one.lineage, one.iteration)


def _by_start(one: Candidate) -> tuple[int, int]:
    number = 0 if one.lineage is None else one.lineage.number
    return number, one.iteration


def _paths(
    folders: Sequence[AnyPath], named: AnyPath | None
) -> dict[AnyPath, Manifest | None]:
    # What all names have that differ from the last one in a number only.
    parts = re.split(r'\d+', named.name) if named else ['/']
    pattern = re.compile(r'\d+'.join(map(re.escape, parts)))
    found: dict[AnyPath, Manifest | None] = {}
    for folder in dict.fromkeys(map(_real, folders)):
        found.update(_checkpoints_in(folder, pattern))
    # Checkpoints may be kept elsewhere. Only then the pointer is followed: in
    # a copy of a work directory it leads back to the original.
    if found or named is None:
        return found
    if isinstance(named, Path) and not os.path.isfile(named):
        return found
    path = _real(named)
    found = _checkpoints_in(_real(named.parent), pattern)
    return {path: Manifest.read(path), **found}


def _checkpoints_in(
    folder: AnyPath, pattern: re.Pattern[str]
) -> dict[AnyPath, Manifest | None]:
    """By usual names, by those like the last one's, and by manifests."""
    names = list_folder(folder)
    manifests: Mapping[Any, Manifest] = manifests_in(folder, names)
    found: dict[AnyPath, Manifest | None] = {}
    for name in names:
        path = folder / name
        manifest = manifests.get(path)
        # The best ones have no optimizer in them.
        is_known = manifest is not None and manifest.kind not in ('', 'best')
        if is_known or _NAME.match(name) or pattern.fullmatch(name):
            if isinstance(path, Path) and path.is_symlink():
                path = _real(path)
                manifest = Manifest.read(path)
            found[path] = manifest
    return found


def _read_pointer(path: Path) -> AnyPath | None:
    try:
        content = read_bounded(path, _LONGEST_PATH)
    except OSError:
        return None
    text = os.fsdecode(content).strip()
    return path_of(text) if text and '\x00' not in text else None


def _real(path: AnyPath) -> AnyPath:
    if isinstance(path, RemotePath):
        return path
    # Unlike `Path.resolve` it takes a circle of links for what it is.
    return Path(os.path.realpath(path))


def last_start_in(folders: Sequence[AnyPath]) -> int:
    """Return the highest number of a start that a manifest in them has."""
    lineages = (
        manifest.lineage
        for folder in folders
        for manifest in manifests_in(folder).values()
    )
    return max((one.number for one in lineages if one), default=0)


@dataclass(frozen=True)
class GoodCheckpoint:
    """A checkpoint that was looked through and is fine.

    Args:
        path (Path): The file.
        iteration (int): Iterations done.
        epoch (int): Epochs done.
        sha256 (str): The digest of the bytes that were looked through.
    """

    path: AnyPath
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
    folder: AnyPath,
    before_iter: int | None = None,
    others: Sequence[AnyPath] = (),
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
    candidates = ranking.live + ranking.left_behind
    skipped: list[str] = []
    for number, one in enumerate(ranking, start=1):
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
                notes = [
                    _(
                        '{name} of iteration {iteration} is not taken: a '
                        'newer start of this folder has left it behind; '
                        '--resume-from takes it',
                        name=printable(other.path.name),
                        iteration=other.iteration,
                    )
                    for other in candidates[number:]
                    if other.iteration > one.iteration
                ]
                return Search(found, tuple(skipped), tuple(notes))
        skipped.append(f'{printable(one.path.name)}: {reason}')
    return Search(None, tuple(skipped))


def newest_own_checkpoint(
    runner: Runner, before: int | None = None
) -> GoodCheckpoint | None:
    """Find the newest good checkpoint of a run that is training.

    A checkpoint that is still being written is waited for.

    Args:
        runner (Runner): The runner.
        before (int, optional): Only checkpoints with fewer iterations done.
            Defaults to None.
    """
    finish_saves(runner)
    folder, *others = checkpoint_folders(runner)
    return find_checkpoint(folder, before, others).found


@contextmanager
def _any_error_is_bad(path: AnyPath) -> Iterator[None]:
    """Turn any error into BadCheckpoint: the search goes on with the next."""
    try:
        yield
    except BadCheckpoint:
        raise
    except Exception as error:
        text = f'{type(error).__name__}: {error}'
        raise BadCheckpoint(path, _('foreign: {error}', error=text)) from error


def verify_checkpoint(path: AnyPath) -> GoodCheckpoint:
    """Look through a checkpoint.

    With a manifest its digest is compared, otherwise the check sums inside
    it and all values are looked at. Every section is read dry.

    Raises:
        BadCheckpoint: If a run cannot be resumed from it, whatever the
            reason.
    """
    with _any_error_is_bad(path):
        content = read_verified(path, with_digest=True, for_audit=True)
        checkpoint = require_sections(path, content.value)
        if SHARDS in checkpoint.get('mmstable', {}) and isinstance(path, Path):
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
            raise BadCheckpoint(
                path, _('foreign: {error}', error=text)
            ) from error
        _check_values(path, checkpoint)
    return GoodCheckpoint(path, meta['iter'], meta['epoch'], content.sha256)


def verify_weights(path: AnyPath) -> str:
    """Look through a file that gives its weights to a new run.

    It may be a checkpoint, or a dict of any kind. Its bytes and the values
    of its weights are looked at as by :func:`verify_checkpoint`.

    Returns:
        str: The digest of what was looked through.

    Raises:
        BadCheckpoint: If it cannot be loaded.
    """
    with _any_error_is_bad(path):
        content = read_verified(path, with_digest=True, for_audit=True)
        if not isinstance(content.value, dict):
            raise no_dict(path, content.value)
        checkpoint = content.value
        if 'state_dict' not in checkpoint:
            checkpoint = {'state_dict': checkpoint}
        used = {'state_dict', 'mmstable'} & checkpoint.keys()
        _check_values(path, {name: checkpoint[name] for name in used})
    return content.sha256


def _check_values(path: AnyPath, checkpoint: dict[str, Any]) -> None:
    manifest = Manifest.read(path)
    culprits = ''
    if manifest is None:
        saved = read_state(checkpoint, 'SafeCheckpointHook') or {}
        poison = find_poison(checkpoint, saved.get('placeholders'))
        culprits = list_culprits(poison)
    elif not manifest.finite:
        culprits = _('saved so')
    if culprits:
        raise BadCheckpoint(
            path, _('non-finite: {culprits}', culprits=culprits)
        )
