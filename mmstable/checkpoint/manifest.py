"""The small file next to a checkpoint that says what the checkpoint is."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmstable.checkpoint.atomic_file import replace_text

_PIECE = 1 << 20


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
    """

    size: int
    sha256: str
    iteration: int
    epoch: int
    finite: bool
    time: float
    versions: dict[str, str] = field(default_factory=dict)

    def write(self, checkpoint: Path) -> None:
        """Write it for a checkpoint."""
        text = json.dumps(asdict(self), indent=1)
        replace_text(side_path(checkpoint), text + '\n')

    @classmethod
    def read(cls, checkpoint: Path) -> Manifest | None:
        """The side file of a checkpoint; None without a readable one."""
        try:
            content = json.loads(side_path(checkpoint).read_text())
            known = {f.name: content[f.name] for f in fields(cls)}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(**known) if _is_sound(known) else None


def side_path(checkpoint: Path) -> Path:
    """Where the side file of a checkpoint is."""
    return checkpoint.with_name(f'{checkpoint.name}.json')


def remove_manifest(checkpoint: Path) -> None:
    """Remove the side file of a checkpoint, if there is one."""
    with suppress(FileNotFoundError):
        side_path(checkpoint).unlink()


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with open(path, 'rb') as file:
        while piece := file.read(_PIECE):
            sha256.update(piece)
    return sha256.hexdigest()


def _is_sound(known: dict[str, Any]) -> bool:
    numbers = ('size', 'iteration', 'epoch', 'time')
    return all(isinstance(known[name], (int, float)) for name in numbers)
