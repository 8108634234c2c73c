"""Why a file is not read."""

from __future__ import annotations


class Malformed(ValueError):
    """The bytes do not make sense as a checkpoint."""


class Truncated(Malformed):
    """The end of the file is missing.

    Args:
        size (int): Bytes that are there.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f'its end is missing after {size} bytes')


class Refused(ValueError):
    """The file asks for something that plain data does not need.

    Args:
        what (str): What it asks for.
    """
