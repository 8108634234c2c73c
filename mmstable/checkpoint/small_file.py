"""Read a small file that anybody may have put there."""

from __future__ import annotations

import os
from pathlib import Path

from mmstable.checkpoint.guarded import Malformed, OpenFile

_LONGEST_PATH = 4096


def read_small(path: Path, longest: int) -> bytes | None:
    """The content of a regular file.

    Args:
        path (Path): The file.
        longest (int): Bytes that it may have.

    Returns:
        bytes or None: None if it is missing, longer, or something else.
    """
    try:
        with OpenFile(path) as file:
            if file.size > longest:
                return None
            return file.read_at(0, file.size)
    except (OSError, Malformed, ValueError):
        return None


def read_pointer(path: Path) -> Path | None:
    """The path that a file like ``last_checkpoint`` names."""
    content = read_small(path, _LONGEST_PATH)
    if content is None or b'\x00' in content:
        return None
    text = os.fsdecode(content).strip()
    return Path(text) if text else None
