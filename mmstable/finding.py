"""What a check has found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from mmstable.messages import N_, _

_SEVERITIES = {
    'hint': N_('hint'),
    'error': N_('error'),
    'warning': N_('warning'),
}


_SHOWN = ('id', 'severity', 'path', 'what', 'why', 'fix', 'source')


class Severity(str, Enum):
    """How bad it is."""

    # Training would go wrong, or be another training.
    ERROR = 'error'
    # Worth a look.
    WARNING = 'warning'
    # Could be better, or is good to know.
    HINT = 'hint'

    @property
    def label(self) -> str:
        """The word for it, in the language of the run."""
        return _(_SEVERITIES[self.value])


@dataclass(frozen=True)
class Finding:
    """One thing that was found, by a check of any kind.

    Args:
        id (str): Which check it was, as 'non_finite'.
        severity (Severity): How bad it is.
        what (str): What is there.
        path (str): A file, a setting, or a sample; '' for all of the run.
            Defaults to ''.
        why (str): Why that matters. Defaults to ''.
        fix (str): What to do about it. Defaults to ''.
        source (str): The file and line that say so, as 'a.py:12'; '' if
            that is not known. Defaults to ''.
        change (Mapping): From paths in a config to the values that fix it.
            Defaults to {}.
    """

    id: str
    severity: Severity
    what: str
    path: str = ''
    why: str = ''
    fix: str = ''
    source: str = ''
    change: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.path}: {self.what}'

    def as_dict(self) -> dict[str, str]:
        """What others may read, in plain types."""
        shown = {name: getattr(self, name) for name in _SHOWN}
        return {**shown, 'severity': self.severity.value}
