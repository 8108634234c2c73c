"""What to say when a package of the quick start is not installed."""

from __future__ import annotations

from mmstable.errors import UsageError


class MissingPackageError(UsageError, ImportError):
    """The quick start needs a package that cannot be imported.

    Args:
        package (str): The package, by its import name.
        reason (Exception): What the import said.
    """

    def __init__(self, package: str, reason: Exception) -> None:
        super().__init__(
            f'mmstable.demo needs the package `{package}`, which cannot be '
            f'imported ({reason}). Install it with: '
            'pip install mmstable[demo]'
        )
