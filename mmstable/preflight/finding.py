"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad it is."""

    # Training would go wrong.
    ERROR = 'error'
    # Worth a look.
    WARNING = 'warning'
    # For information.
    INFO = 'info'


@dataclass(frozen=True)
class Finding:
    """One thing that was found, by a check of any kind.

    Args:
        id (str): Which check it was, as 'non_finite'.
        severity (Severity): How bad it is.
        path (str): Where: a file, a setting, or a sample.
        what (str): What is there.
        why (str): Why that matters.
        fix (str): What to do about it.
    """

    id: str
    severity: Severity
    path: str
    what: str
    why: str
    fix: str
