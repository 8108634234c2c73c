"""The checkpoints of a folder: find the newest good one, remove needless ones.

A process can be killed between any two steps: a checkpoint without its
manifest, a manifest without its checkpoint, and an old checkpoint beside the
new one can be left. The next start or save removes the leftovers of this run,
known by their manifests. Files of other runs are never touched.
"""

from __future__ import annotations

import os
import re
from collections.abc import (
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Callable, TypeVar

from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmstable.checkpoint.audit import find_poison, list_culprits
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    keep_own_references,
    no_dict,
    read_content,
    read_verified,
    require_sections,
)
from mmstable.checkpoint.manifest import (
    Lineage,
    Manifest,
    list_folder,
    manifests_in,
    remote_manifests,
    remove_manifest,
)
from mmstable.checkpoint.remote import AnyPath, RemotePath, path_of
from mmstable.checkpoint.save import (
    checkpoint_folders,
    describe,
    finish_saves,
    lineage_in,
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
_Verified = TypeVar('_Verified')


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
        leader (Candidate, optional): The newest one, unless it is simply
            that with the most iterations. If it does not say which run it is
            of, ``last_checkpoint`` names it.
        unread (tuple[Path]): Files without a manifest that were not opened:
            older or remote ones. Defaults to ().
    """

    live: tuple[Candidate, ...]
    left_behind: tuple[Candidate, ...]
    leader: Candidate | None
    unread: tuple[AnyPath, ...] = ()

    def __iter__(self) -> Iterator[Candidate]:
        """Yield all candidates; unread ones are opened on the way."""
        yield from self.live
        yield from self.left_behind
        yield from map(Candidate.at, self.unread)

    def explain(self, other: Candidate) -> str:
        """Why another one was left behind, although it has more iterations."""
        name = printable(other.path.name)
        leading = None if self.leader is None else self.leader.lineage
        if leading is None:
            why = _('last_checkpoint names another one, which was saved later')
        elif other.lineage is None:
            why = _('a newer run was started in its folder')
        elif other.lineage.run != leading.run:
            why = _('it is of an older run in the same folder')
        else:
            why = _('the run went back and was started again after it')
        return _(
            '{name} of iteration {iteration} is not taken: {why}',
            name=name,
            iteration=other.iteration,
            why=why,
        )


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
    live = [one for one in found if _is_live(one, leader)]
    # Of two with the same number, that of the newest run.
    live.sort(key=lambda one: (one.iteration, one is leader), reverse=True)
    left_behind = [one for one in found if not _is_live(one, leader)]
    left_behind.sort(key=_by_start, reverse=True)
    oldest_last = sorted(unread, key=_number_in, reverse=True)
    return Ranking(tuple(live), tuple(left_behind), leader, tuple(oldest_last))


def _too_many(
    paths: Mapping[AnyPath, Manifest | None], named: AnyPath | None
) -> set[AnyPath]:
    """Files without a manifest that are remote, or not among the newest.

    Opening thousands of files takes minutes, and so does a download. A file
    is newest by its number or by its time, which may both mislead, or because
    it is named.
    """
    unknown = {path for path, manifest in paths.items() if manifest is None}
    remote: set[AnyPath]
    remote = {path for path in unknown if isinstance(path, RemotePath)}
    unknown -= remote
    if len(unknown) <= _MOST_OPENED:
        return remote
    newest = {
        *sorted(unknown, key=_number_in)[-_MOST_OPENED:],
        *sorted(unknown, key=_time_of)[-_MOST_OPENED:],
    }
    return remote | {
        path
        for path in unknown
        if path not in newest and (named is None or path.name != named.name)
    }


def _number_in(path: AnyPath) -> int:
    match = _NAME.match(path.name)
    return int(match.group(1)) if match else 0


def _time_of(path: AnyPath) -> float:
    try:
        return Path(str(path)).stat().st_mtime
    except OSError:
        return 0.0


def _find_leader(
    found: Sequence[Candidate], named: AnyPath | None
) -> Candidate | None:
    labelled = [one for one in found if one.lineage is not None]
    newest = max(labelled, key=_by_start, default=None)
    last = _find_named(found, named)
    if last is None or not last.is_readable or last.lineage is not None:
        return newest
    # Whoever saved it did so after all others, unless the newest run has
    # begun with it.
    is_past = newest is not None and _is_live(last, newest)
    return newest if is_past else last


def _find_named(
    found: Sequence[Candidate], named: AnyPath | None
) -> Candidate | None:
    if named is None:
        return None
    for one in found:
        if one.path == _real(named):
            return one
    # The folder may have been moved or copied.
    return next((one for one in found if one.path.name == named.name), None)


def _is_live(one: Candidate, leader: Candidate | None) -> bool:
    if leader is None or not one.is_readable:
        # A file that cannot be read is skipped, and the reason told.
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
    pattern = None if named is None else _pattern_of(named.name)
    found: dict[AnyPath, Manifest | None] = {}
    for folder in dict.fromkeys(map(_real, folders)):
        found.update(_checkpoints_in(folder, pattern))
    if found or named is None:
        return found
    # Checkpoints may be kept elsewhere. Only then the pointer is followed: in
    # a copy of a work directory it leads back to the original.
    if isinstance(named, Path) and not os.path.isfile(named):
        return found
    path = _real(named)
    found = _checkpoints_in(_real(named.parent), pattern)
    return {path: Manifest.read(path), **found}


def _checkpoints_in(
    folder: AnyPath, pattern: re.Pattern[str] | None
) -> dict[AnyPath, Manifest | None]:
    """By usual names, by those like the last one's, and by manifests."""

    def is_one(name: str, manifest: Manifest | None) -> bool:
        return (
            bool(_NAME.match(name))
            or (pattern is not None and bool(pattern.fullmatch(name)))
            # The best ones have no optimizer in them.
            or (manifest is not None and manifest.kind not in ('', 'best'))
        )

    found: dict[AnyPath, Manifest | None] = {}
    if isinstance(folder, RemotePath):
        names = folder.names()
        known = remote_manifests(folder, names)
        for name in names:
            if is_one(name, known.get(name)):
                found[folder.joined(name)] = known.get(name)
        return found
    manifests = manifests_in(folder)
    for entry in list_folder(folder):
        path = folder / entry.name
        manifest = manifests.get(path)
        if is_one(entry.name, manifest):
            if entry.is_symlink():
                path = Path(os.path.realpath(path))
                manifest = Manifest.read(path)
            found[path] = manifest
    return found


def _pattern_of(name: str) -> re.Pattern[str]:
    """What all names have that differ from this one in a number only."""
    return re.compile(r'\d+'.join(map(re.escape, re.split(r'\d+', name))))


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
    """The highest number of a start that a checkpoint in them tells."""
    numbers = [0]
    for folder in folders:
        manifests: Iterable[Manifest] = (
            remote_manifests(folder, folder.names()).values()
            if isinstance(folder, RemotePath)
            else manifests_in(folder).values()
        )
        numbers += [one.lineage.number for one in manifests if one.lineage]
    return max(numbers)


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
                    ranking.explain(other)
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


def _as_bad_checkpoint(
    verify: Callable[[AnyPath], _Verified],
) -> Callable[[AnyPath], _Verified]:
    """Turn any error into BadCheckpoint: the search goes on with the next."""

    @wraps(verify)
    def checked(path: AnyPath) -> _Verified:
        try:
            return verify(path)
        except BadCheckpoint:
            raise
        except Exception as error:
            text = f'{type(error).__name__}: {error}'
            raise BadCheckpoint(
                path, _('foreign: {error}', error=text)
            ) from error

    return checked


@_as_bad_checkpoint
def verify_checkpoint(path: AnyPath) -> GoodCheckpoint:
    """Look through a checkpoint.

    With a manifest its digest is compared, otherwise the check sums inside
    it and all values are looked at. Every section is read dry.

    Raises:
        BadCheckpoint: If a run cannot be resumed from it, whatever the
            reason.
    """
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
        raise BadCheckpoint(path, _('foreign: {error}', error=text)) from error
    _check_values(path, checkpoint)
    return GoodCheckpoint(path, meta['iter'], meta['epoch'], content.sha256)


@_as_bad_checkpoint
def verify_weights(path: AnyPath) -> str:
    """Look through a file that gives its weights to a new run.

    It may be a checkpoint, or a dict of any kind. Its bytes and the values
    of its weights are looked at as by :func:`verify_checkpoint`.

    Returns:
        str: The digest of what was looked through.

    Raises:
        BadCheckpoint: If it cannot be loaded.
    """
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


class Retention:
    """Removes the needless checkpoints of a run.

    Args:
        folder (Path): The folder, on a local disk.
        lineage (Lineage): Of the run.
        remove (Callable): Removes a checkpoint and its manifest.
    """

    def __init__(
        self, folder: Path, lineage: Lineage, remove: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._lineage = lineage
        self._remove = remove

    def is_foreign(self, path: Path) -> bool:
        """Whether a checkpoint says that it is not of this run's past."""
        manifest = Manifest.read(path)
        return (
            manifest is not None
            and manifest.lineage is not None
            and not self._is_own(manifest)
        )

    def complete_manifests(self) -> None:
        """Write those that are missing, and remove those of nothing."""
        for path, manifest in manifests_in(self._folder).items():
            if not path.exists() and self._is_own(manifest):
                remove_manifest(path)
        for path in self._folder.glob('*.pth'):
            if Manifest.read(path) is None:
                # Whatever is wrong with it, it is not ours.
                with suppress(BadCheckpoint, OSError, KeyError, TypeError):
                    self._complete(path)

    def remove_outdated(
        self,
        kind: str,
        template: str,
        before: int,
        kept: Collection[str] = (),
    ) -> None:
        """Remove checkpoints that more recent ones have replaced.

        Args:
            kind (str): Of the checkpoints, as their manifests have it.
            template (str): How they are named, with '{}' for a number.
            before (int): Only those with fewer iterations done.
            kept (Collection[str]): Names of those that stay. Defaults to ().
        """
        begin, __, end = template.partition('{')
        end = end.partition('}')[2]
        pattern = re.compile(rf'{re.escape(begin)}\d+{re.escape(end)}')
        for path, manifest in self._own(kind).items():
            if (
                manifest.iteration < before
                and path.name not in kept
                and pattern.fullmatch(path.name)
            ):
                self._remove(str(path))

    def settle_best(
        self, prefix: str, current: str | None, done: int
    ) -> tuple[str, dict[str, Any]] | None:
        """Leave one of several best checkpoints: scores only get better.

        Args:
            prefix (str): How their names begin.
            current (str, optional): The one that the resumed run knows of.
            done (int): Iterations done by now.

        Returns:
            tuple or None: The newest, if it is another one, and the
            ``runtime_info`` in it.
        """
        own = {
            path: manifest.iteration
            for path, manifest in self._own('best').items()
            if path.name.startswith(prefix) and manifest.iteration <= done
        }
        if not own:
            return None
        known = None if current is None else Path(current)
        # Of two of one iteration, the known one.
        newest = max(own, key=lambda path: (own[path], path == known))
        try:
            content = inspect_checkpoint(newest).get('message_hub', {})
        except BadCheckpoint:
            return None
        for path in own.keys() - {newest}:
            self._remove(str(path))
        info = content.get('runtime_info')
        if newest == known or not isinstance(info, dict):
            return None
        return str(newest), info

    def _complete(self, path: Path) -> None:
        checkpoint = inspect_checkpoint(path)
        if lineage_in(checkpoint) and self._is_own(
            describe(checkpoint, 0, '')
        ):
            # It was looked through before it was saved.
            content = read_content(path, values_up_to=0, with_digest=True)
            size = path.stat().st_size
            describe(checkpoint, size, str(content.sha256)).write(path)

    def _own(self, kind: str) -> dict[Path, Manifest]:
        return {
            path: manifest
            for path, manifest in manifests_in(self._folder).items()
            if manifest.kind == kind and self._is_own(manifest)
        }

    def _is_own(self, manifest: Manifest) -> bool:
        return manifest.lineage is not None and self._lineage.includes(
            manifest.lineage, manifest.iteration
        )


def split_outdated(
    ids: Iterable[int], step: int, most: int
) -> tuple[list[int], list[int]]:
    """Which checkpoints to keep with a new one, and which not.

    Args:
        ids (Iterable[int]): Numbers of those that are there, the oldest first.
        step (int): The number of the new one.
        most (int): How many to keep; all if it is not positive, without
            counting them.
    """
    if most <= 0:
        return [], []
    steps = [*(one for one in ids if one != step), step]
    return steps[-most:], steps[:-most]


def keep_own_best(hook: CheckpointHook, info: MutableMapping) -> None:
    """Never remove the best checkpoint of another run.

    Args:
        hook (CheckpointHook): The hook that is going to save and remove.
        info (MutableMapping): The ``runtime_info`` of its run.
    """
    keep_own_references(info, hook.out_dir)
    if not hook.save_best:
        return
    if len(hook.key_indicators) == 1:
        hook.best_ckpt_path = info.get('best_ckpt')
        return
    for key in hook.best_ckpt_path_dict:
        hook.best_ckpt_path_dict[key] = info.get(f'best_ckpt_{key}')


def settle_best(
    hook: CheckpointHook, runner: Runner, retention: Retention | None
) -> None:
    """Know the best one, also if the run was killed when it was saved.

    A collective call.

    Args:
        hook (CheckpointHook): The hook, with its ``key_indicators``.
        runner (Runner): The runner.
        retention (Retention, optional): Looks through the files.
    """
    names = {'best_ckpt': hook.key_indicators[0]}
    if len(hook.key_indicators) > 1:
        names = {f'best_ckpt_{key}': key for key in hook.key_indicators}
    info, hub = runner.message_hub.runtime_info, runner.message_hub
    found: list[Any] = [{}]
    if is_main_process() and retention is not None:
        for name, key in names.items():
            begin = '' if key == 'auto' else f'{key}_'.replace('/', '_')
            found[0][name] = retention.settle_best(
                f'best_{begin}', info.get(name), runner.iter
            )
    broadcast_object_list(found)
    for name, best in found[0].items():
        score = name.replace('ckpt', 'score')
        if best is not None and score in best[1]:
            hub.update_info(score, best[1][score])
            hub.update_info(name, best[0])
    keep_own_best(hook, info)
