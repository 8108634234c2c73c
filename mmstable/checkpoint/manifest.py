"""The small file next to a checkpoint that says what the checkpoint is."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mmstable.checked_json import parse_json
from mmstable.checkpoint.atomic_file import replace_text
from mmstable.files import read_bounded

_LONGEST = 1 << 16
_LARGEST = 2**53


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
        replace_text(manifest_path(checkpoint), text + '\n')

    @classmethod
    def read(cls, checkpoint: Path) -> Manifest | None:
        """The manifest of a checkpoint; None without a readable one."""
        try:
            text = read_bounded(manifest_path(checkpoint), _LONGEST)
            content = parse_json(text, _LONGEST)
            known = {f.name: content[f.name] for f in fields(cls)}
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return cls(**known) if _is_sound(known) else None


def manifest_path(checkpoint: Path) -> Path:
    """Where the manifest of a checkpoint is."""
    return checkpoint.with_name(f'{checkpoint.name}.json')


def remove_manifest(checkpoint: Path) -> None:
    """Remove the manifest of a checkpoint, if there is one."""
    with suppress(FileNotFoundError):
        manifest_path(checkpoint).unlink()


def is_count(value: Any) -> bool:
    """Whether a value can be a number of iterations, epochs or bytes."""
    return type(value) is int and 0 <= value < _LARGEST


def _is_sound(known: dict[str, Any]) -> bool:
    return (
        all(is_count(known[name]) for name in ('size', 'iteration', 'epoch'))
        and type(known['sha256']) is str
        and type(known['finite']) is bool
        and type(known['time']) in (int, float)
        and math.isfinite(known['time'])
        and type(known['versions']) is dict
    )
