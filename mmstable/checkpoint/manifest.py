"""The small file next to a checkpoint that describes it.

Clocks can be set back, files be copied, and numbers of iterations come again.
So a checkpoint and its manifest name the run, and the lineage: how often that
run was started before, and the iteration at which each start began.
"""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import mmengine
import torch

from mmstable.checkpoint.folders import AnyPath, RemotePath, list_folder
from mmstable.io.files import read_bounded, replace_text
from mmstable.io.schema import (
    anything,
    boolean,
    count,
    fields,
    list_of,
    mapping_of,
    one_of,
    or_default,
    parse_json,
    record,
    text,
    tuple_of,
    within,
)
from mmstable.version import __version__

_Path = TypeVar('_Path', Path, RemotePath, AnyPath)
# A run that was started more often forgets the oldest starts.
_MOST_STARTS = 500
_LARGEST = 2**53
_CHECK = record(run=text(64), starts=list_of(tuple_of(count, count)))


@dataclass(frozen=True)
class Lineage:
    """The past of a checkpoint.

    Args:
        run (str): The run, by a name that no other has.
        starts (tuple[tuple[int, int]]): All starts, the oldest first: a
            number that is higher than that of any start before it in this
            folder, and the iterations done when it began.
    """

    run: str
    starts: tuple[tuple[int, int], ...]

    @classmethod
    def after(
        cls, number: int, resumed: Lineage | None, iteration: int
    ) -> Lineage:
        """That of the next start in a folder.

        Args:
            number (int): Of the last start there.
            resumed (Lineage, optional): Of the checkpoint that was loaded.
            iteration (int): Iterations done: 0 for a new run that only takes
                the weights.
        """
        if resumed is None or iteration == 0:
            return cls(secrets.token_hex(8), ((number + 1, iteration),))
        next_start = 1 + max(number, resumed.number), iteration
        starts = (*resumed.starts, next_start)
        return cls(resumed.run, starts[-_MOST_STARTS:])

    @classmethod
    def read(cls, content: Any) -> Lineage | None:
        """What :meth:`as_dict` gave, from a file; None if it is not sound."""
        try:
            known = _CHECK(content)
        except ValueError:
            return None
        starts = tuple(known['starts'])
        return cls(known['run'], starts) if known['run'] and starts else None

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {'run': self.run, 'starts': [list(one) for one in self.starts]}

    @property
    def number(self) -> int:
        """The number of the last start."""
        return self.starts[-1][0]

    def includes(self, other: Lineage | None, iteration: int) -> bool:
        """Whether a checkpoint is of the past, or the future, of this start.

        Not so if it is of another run, or if a later start has begun before
        it: then the run went back, and has left it behind.

        Args:
            other (Lineage, optional): The lineage of that checkpoint; None if
                it was saved by others, whose run this one may continue.
            iteration (int): Iterations done in it.
        """
        if other is None:
            return iteration <= self.starts[0][1]
        if other.run != self.run:
            return False
        ends = [begin for _, begin in self.starts[1:]]
        for (number, _), end in zip(self.starts, [*ends, _LARGEST]):
            if number == other.number:
                return iteration <= end
        # Forgotten: older than all others.
        return other.number < self.starts[0][0]


_LONGEST = 1 << 16
# Where a checkpoint says, below 'mmstable', what its manifest says of it.
LABEL = 'label'
KINDS = ('rolling', 'kept', 'emergency', 'best')
MANIFEST = '.json'
_CHECKS = {
    'size': count,
    'sha256': text(64),
    'iteration': count,
    'epoch': count,
    'finite': boolean,
    'time': within(0, 2**53),
    'versions': mapping_of(text(), anything),
    'kind': or_default(one_of(*KINDS), ''),
    'lineage': Lineage.read,
}


@dataclass(frozen=True)
class Manifest:
    """What is known about a checkpoint without opening it.

    Args:
        size (int): Bytes of the checkpoint.
        sha256 (str): Their digest.
        iteration (int): Iterations done.
        epoch (int): Epochs done.
        finite (bool): Whether it was free of NaN and Inf.
        time (float): When it was written, in seconds since 1970.
        versions (dict): Of what wrote it. Defaults to {}.
        kind (str): Why it was saved: 'rolling' for one of the newest few,
            'kept' for one of all, 'emergency', 'best', or '' if that is not
            known. Defaults to ''.
        lineage (Lineage, optional): Which starts of a run it comes from.
            Defaults to None.
    """

    size: int
    sha256: str
    iteration: int
    epoch: int
    finite: bool
    time: float
    versions: dict[str, str] = field(default_factory=dict)
    kind: str = ''
    lineage: Lineage | None = None

    def as_text(self) -> str:
        """Return the content of its file."""
        content = {
            **vars(self),
            'lineage': self.lineage and self.lineage.as_dict(),
        }
        return json.dumps(content, indent=1) + '\n'

    def write(self, checkpoint: Path) -> None:
        """Write it for a checkpoint."""
        replace_text(manifest_path(checkpoint), self.as_text(), sync=False)

    @classmethod
    def read(cls, checkpoint: AnyPath) -> Manifest | None:
        """Read the manifest of a checkpoint; None without a readable one."""
        try:
            data = (
                read_bounded(manifest_path(checkpoint), _LONGEST)
                if isinstance(checkpoint, Path)
                else manifest_path(checkpoint).read()
            )
            content = {'kind': '', 'lineage': None}
            content.update(parse_json(data, _LONGEST))
            known = fields(_CHECKS)(content)
            return cls(**{name: known[name] for name in _CHECKS})
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @classmethod
    def of(
        cls, checkpoint: Mapping[str, Any], size: int, sha256: str
    ) -> Manifest:
        """Describe a checkpoint that was found free of NaN and Inf.

        Args:
            checkpoint (Mapping): Its content.
            size (int): Bytes of its file.
            sha256 (str): Their digest.
        """
        meta = checkpoint['meta']
        return cls(
            size=size,
            sha256=sha256,
            iteration=meta['iter'],
            epoch=meta['epoch'],
            finite=True,
            time=time.time(),
            versions={
                'mmstable': __version__,
                'mmengine': mmengine.__version__,
                'torch': torch.__version__,
                'python': platform.python_version(),
            },
            kind=checkpoint['mmstable'].get(LABEL, {}).get('kind', ''),
            lineage=lineage_in(checkpoint),
        )


def lineage_in(checkpoint: Mapping[str, Any]) -> Lineage | None:
    """Read the lineage in the label of a checkpoint, if it has one."""
    label = checkpoint.get('mmstable', {}).get(LABEL)
    return Lineage.read(label.get('lineage') if type(label) is dict else None)


def manifest_path(checkpoint: _Path) -> _Path:
    """Return the path of the manifest of a checkpoint."""
    return checkpoint.parent / f'{checkpoint.name}{MANIFEST}'


def manifests_in(
    folder: _Path, names: Iterable[str] | None = None
) -> dict[_Path, Manifest]:
    """Read all manifests of a folder, by the path of their checkpoint.

    The checkpoint itself may be gone.

    Args:
        folder (AnyPath): The folder.
        names (Iterable[str], optional): The names in it, if they are known.
            Defaults to None.
    """
    found: dict[_Path, Manifest] = {}
    for name in list_folder(folder) if names is None else names:
        stem = name[: -len(MANIFEST)]
        if name == stem + MANIFEST and '.' in stem:
            manifest = Manifest.read(folder / stem)
            if manifest is not None:
                found[folder / stem] = manifest
    return found


def remove_manifest(checkpoint: Path) -> None:
    """Remove the manifest of a checkpoint, if there is one."""
    with suppress(FileNotFoundError):
        manifest_path(checkpoint).unlink()
