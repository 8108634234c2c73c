"""The small file next to a checkpoint that says what the checkpoint is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mmstable.checked_json import (
    anything,
    boolean,
    count,
    fields,
    mapping_of,
    parse_json,
    text,
    within,
)
from mmstable.checkpoint.atomic_file import replace_text
from mmstable.checkpoint.lineage import Lineage
from mmstable.files import read_bounded

_LONGEST = 1 << 16
KINDS = ('rolling', 'kept', 'emergency', 'best')
_SUFFIX = '.json'
_CHECKS = {
    'size': count,
    'sha256': text(64),
    'iteration': count,
    'epoch': count,
    'finite': boolean,
    'time': within(0, 2**53),
    'versions': mapping_of(text(), anything),
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

    def write(self, checkpoint: Path) -> None:
        """Write it for a checkpoint."""
        content = {
            **vars(self),
            'lineage': self.lineage and self.lineage.as_dict(),
        }
        text = json.dumps(content, indent=1)
        replace_text(manifest_path(checkpoint), text + '\n')

    @classmethod
    def read(cls, checkpoint: Path) -> Manifest | None:
        """The manifest of a checkpoint; None without a readable one."""
        try:
            data = read_bounded(manifest_path(checkpoint), _LONGEST)
            content = fields(_CHECKS)(parse_json(data, _LONGEST))
            known = {name: content[name] for name in _CHECKS}
        except (OSError, ValueError, KeyError):
            return None
        kind = content.get('kind')
        return cls(
            **known,
            kind=kind if kind in KINDS else '',
            lineage=Lineage.read(content.get('lineage')),
        )


def manifest_path(checkpoint: Path) -> Path:
    """Where the manifest of a checkpoint is."""
    return checkpoint.with_name(f'{checkpoint.name}{_SUFFIX}')


def manifests_in(folder: Path) -> dict[Path, Manifest]:
    """All manifests of a folder, by the path of their checkpoint.

    The checkpoint itself may be gone.
    """
    found = {}
    for path in folder.glob(f'*.*{_SUFFIX}'):
        checkpoint = path.with_name(path.name[: -len(_SUFFIX)])
        manifest = Manifest.read(checkpoint)
        if manifest is not None:
            found[checkpoint] = manifest
    return found


def remove_manifest(checkpoint: Path) -> None:
    """Remove the manifest of a checkpoint, if there is one."""
    with suppress(FileNotFoundError):
        manifest_path(checkpoint).unlink()
