"""Remove the needless checkpoints of a run.

A process can be killed between any two steps: a checkpoint without its
manifest, a manifest without its checkpoint, and an old checkpoint beside the
new one can be left. The next start or save removes the leftovers of this run,
known by their manifests. Files of other runs are never touched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

from mmstable.checkpoint.loading import (
    BadCheckpoint,
    inspect_checkpoint,
    read_content,
)
from mmstable.checkpoint.manifest import (
    Lineage,
    Manifest,
    lineage_in,
    manifests_in,
    remove_manifest,
)


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
        manifest = Manifest.of(checkpoint, path.stat().st_size, '')
        if lineage_in(checkpoint) and self._is_own(manifest):
            # It was looked through before it was saved.
            content = read_content(path, values_up_to=0, with_digest=True)
            replace(manifest, sha256=content.sha256).write(path)

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
