"""Look for files, and fail if there are none."""

from __future__ import annotations

from pathlib import Path


def some_files(folder: Path, pattern: str) -> list[Path]:
    """The files that match, sorted.

    A test that looks at every file of a kind passes if there are none,
    whatever it checks. Parametrizations that are empty fail by a setting of
    pytest.
    """
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise AssertionError(f"nothing matches '{pattern}' in '{folder}'")
    return paths
