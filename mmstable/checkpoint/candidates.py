"""Which checkpoints of a folder can a run be resumed from, and which first?"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmstable.checked_json import count
from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.loading import BadCheckpoint, inspect_checkpoint
from mmstable.checkpoint.manifest import Manifest, manifests_in
from mmstable.checkpoint.saver import LABEL
from mmstable.files import read_bounded
from mmstable.messages import _
from mmstable.messages.printable import printable

_NAME = re.compile(r'(?:iter|epoch|emergency)_\D*(\d{1,15})\.pth$')
_LONGEST_PATH = 4096


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

    path: Path
    iteration: int
    lineage: Lineage | None
    is_readable: bool = True

    @classmethod
    def at(cls, path: Path) -> Candidate:
        """The one in a file."""
        manifest = Manifest.read(path)
        if manifest is not None:
            return cls(path, manifest.iteration, manifest.lineage)
        try:
            content = inspect_checkpoint(path)
        except BadCheckpoint:
            content = {}
        try:
            iteration = count(content.get('meta', {}).get('iter'))
        except ValueError:
            iteration = None
        if iteration is not None:
            label = content.get('mmstable', {}).get(LABEL)
            known = label.get('lineage') if type(label) is dict else None
            return cls(path, iteration, Lineage.read(known))
        # Only for its place among those that are skipped.
        match = _NAME.match(path.name)
        return cls(path, int(match.group(1)) if match else 0, None, False)


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
    """

    live: tuple[Candidate, ...]
    left_behind: tuple[Candidate, ...]
    leader: Candidate | None

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


def rank_candidates(folders: Sequence[Path]) -> Ranking:
    """Look through the folders of a run.

    What is newest is decided by what the files say of themselves: the last
    start of a run goes before all others, whatever their iterations and
    times are. Files that say nothing, as those of mmengine's own hook, go
    first if ``last_checkpoint`` names one of them, otherwise last.

    Args:
        folders (Sequence[Path]): The work directory, then others in which
            the run keeps checkpoints.
    """
    named = _read_pointer(folders[0] / 'last_checkpoint')
    paths = _paths(folders, named)
    found = [Candidate.at(path) for path in paths]
    leader = _find_leader(found, named)
    live: list[Candidate] = []
    left_behind: list[Candidate] = []
    for one in found:
        (live if _is_live(one, leader) else left_behind).append(one)
    return Ranking(
        tuple(
            sorted(
                live,
                # Of two with the same number, that of the newest run.
                key=lambda one: (one.iteration, one is leader),
                reverse=True,
            )
        ),
        tuple(sorted(left_behind, key=_by_start, reverse=True)),
        leader,
    )


def _find_leader(
    found: Sequence[Candidate], named: Path | None
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
    found: Sequence[Candidate], named: Path | None
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


def _paths(folders: Sequence[Path], named: Path | None) -> set[Path]:
    pattern = None if named is None else _pattern_of(named.name)
    found: set[Path] = set()
    for folder in folders:
        found |= _checkpoints_in(folder, pattern)
    if found or named is None or not os.path.isfile(named):
        return found
    # Checkpoints may be kept elsewhere. Only then the pointer is followed: in
    # a copy of a work directory it leads back to the original.
    return {_real(named)} | _checkpoints_in(named.parent, pattern)


def _checkpoints_in(
    folder: Path, pattern: re.Pattern[str] | None
) -> set[Path]:
    """By usual names, by those like the last one's, and by manifests."""
    manifests = manifests_in(folder)
    return {
        _real(path)
        for path in folder.glob('*')
        if _NAME.match(path.name)
        or (pattern is not None and pattern.fullmatch(path.name))
        or _is_for_resuming(manifests.get(path))
    }


def _is_for_resuming(manifest: Manifest | None) -> bool:
    # The best ones have no optimizer in them.
    return manifest is not None and manifest.kind not in ('', 'best')


def _pattern_of(name: str) -> re.Pattern[str]:
    """What all names have that differ from this one in a number only."""
    return re.compile(r'\d+'.join(map(re.escape, re.split(r'\d+', name))))


def _read_pointer(path: Path) -> Path | None:
    try:
        content = read_bounded(path, _LONGEST_PATH)
    except OSError:
        return None
    text = os.fsdecode(content).strip()
    return Path(text) if text and '\x00' not in text else None


def _real(path: Path) -> Path:
    # Unlike `Path.resolve` it takes a circle of links for what it is.
    return Path(os.path.realpath(path))


def last_start_in(folders: Sequence[Path]) -> int:
    """The highest number of a start that a checkpoint in them tells."""
    return max(
        (
            manifest.lineage.number
            for folder in folders
            for manifest in manifests_in(folder).values()
            if manifest.lineage is not None
        ),
        default=0,
    )
