"""Which checkpoints of a folder are needless, and whose are they?

A process can be killed between any two steps: a checkpoint without its
manifest, a manifest without its checkpoint, and an old checkpoint beside the
new one can be left. The next start or save removes what is this run's own by
what the manifests say; what belongs to other runs is never touched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mmstable.checkpoint.lineage import Lineage
from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    read_content,
)
from mmstable.checkpoint.manifest import (
    Manifest,
    manifests_in,
    remove_manifest,
)
from mmstable.checkpoint.saver import LABEL, describe

_SUFFIX = '.pth'


class Best(NamedTuple):
    """The best checkpoint of a run.

    Args:
        path (str): The file.
        info (dict): What the message hub knew when it was saved.
    """

    path: str
    info: dict[str, Any]


class Housekeeping:
    """Keeps the folder of a run tidy.

    Args:
        folder (Path): The folder, on a local disk.
        lineage (Lineage): Of the run.
        template (str): How regular checkpoints are named, with '{}' for a
            number.
        remove (Callable): Removes a checkpoint and its manifest.
    """

    def __init__(
        self,
        folder: Path,
        lineage: Lineage,
        template: str,
        remove: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._lineage = lineage
        self._regular = _pattern(template)
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
        for path in manifests_in(self._folder):
            if not path.exists() and self._own(path):
                remove_manifest(path)
        for path in self._folder.glob(f'*{_SUFFIX}'):
            if Manifest.read(path) is None:
                # Whatever is wrong with it, it is not ours.
                with suppress(BadCheckpoint, OSError, KeyError, TypeError):
                    self._complete(path)

    def remove_outdated(self, kept: Collection[str], before: int) -> None:
        """Remove regular checkpoints that more recent ones have replaced.

        Args:
            kept (Collection[str]): Names of those that stay.
            before (int): Only those with fewer iterations done.
        """
        for path, manifest in self._all_own('rolling').items():
            if (
                manifest.iteration < before
                and path.name not in kept
                and self._regular.fullmatch(path.name)
            ):
                self._remove(str(path))

    def remove_emergencies(self, template: str, before: int) -> None:
        """Remove emergency checkpoints with fewer iterations done."""
        pattern = _pattern(template)
        for path, manifest in self._all_own('emergency').items():
            if manifest.iteration < before and pattern.fullmatch(path.name):
                self._remove(str(path))

    def settle_best(
        self, prefix: str, current: str | None, done: int
    ) -> Best | None:
        """Leave one of several best checkpoints: scores only get better.

        Args:
            prefix (str): How their names begin.
            current (str, optional): The one that the resumed run knows of.
            done (int): Iterations done by now.

        Returns:
            Best or None: The newest, if it is another one.
        """
        own = {
            path: manifest.iteration
            for path, manifest in self._all_own('best').items()
            if path.name.startswith(prefix) and manifest.iteration <= done
        }
        if not own:
            return None
        newest = max(own, key=lambda path: own[path])
        known = None if current is None else Path(current)
        if known is not None and own.get(known, -1) == own[newest]:
            newest = known
        try:
            content = inspect_checkpoint(newest).get('message_hub', {})
        except BadCheckpoint:
            return None
        for path in own.keys() - {newest}:
            self._remove(str(path))
        if newest == known:
            return None
        info = content.get('runtime_info')
        return Best(str(newest), info if isinstance(info, dict) else {})

    def _complete(self, path: Path) -> None:
        checkpoint = inspect_checkpoint(path)
        if type(checkpoint.get('mmstable', {}).get(LABEL)) is not dict:
            return
        if self._is_own(describe(checkpoint, 0, '')):
            # It was looked through before it was saved.
            content = read_content(path, values_up_to=0, with_digest=True)
            size = path.stat().st_size
            describe(checkpoint, size, str(content.sha256)).write(path)

    def _all_own(self, kind: str) -> dict[Path, Manifest]:
        return {
            path: manifest
            for path, manifest in manifests_in(self._folder).items()
            if manifest.kind == kind and self._is_own(manifest)
        }

    def _own(self, path: Path) -> bool:
        manifest = Manifest.read(path)
        return manifest is not None and self._is_own(manifest)

    def _is_own(self, manifest: Manifest) -> bool:
        return manifest.lineage is not None and self._lineage.includes(
            manifest.lineage, manifest.iteration
        )


def _pattern(template: str) -> re.Pattern[str]:
    begin, _, end = template.partition('{')
    return re.compile(
        re.escape(begin) + r'\d+' + re.escape(end.partition('}')[2])
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
