"""What NVIDIA's numbers mean.

After https://docs.nvidia.com/deploy/xid-errors/. The texts are in the
catalogue of messages: ``xid.<number>`` and ``xid_advice.<advice>``.
"""

from __future__ import annotations

from typing import NamedTuple

from mmstable.finding import Severity

SOURCE = 'https://docs.nvidia.com/deploy/xid-errors/'
_ERROR, _WARNING, _HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Meaning(NamedTuple):
    """What an Xid tells.

    Args:
        kind (str): Whose fault it most likely is: 'hardware', 'driver',
            'application', or 'unknown'.
        severity (Severity): How bad it is.
        advice (str): What to do.
    """

    kind: str
    severity: Severity
    advice: str


MEANINGS = {
    13: Meaning('application', _WARNING, 'program'),
    31: Meaning('application', _WARNING, 'program'),
    43: Meaning('application', _WARNING, 'program'),
    45: Meaning('application', _HINT, 'before'),
    48: Meaning('hardware', _ERROR, 'memory'),
    61: Meaning('driver', _WARNING, 'controller'),
    62: Meaning('driver', _ERROR, 'controller'),
    63: Meaning('hardware', _WARNING, 'remapped'),
    64: Meaning('hardware', _ERROR, 'replace'),
    68: Meaning('driver', _WARNING, 'engine'),
    69: Meaning('driver', _WARNING, 'engine'),
    74: Meaning('hardware', _ERROR, 'nvlink'),
    79: Meaning('hardware', _ERROR, 'bus'),
    92: Meaning('hardware', _WARNING, 'single_bit'),
    94: Meaning('hardware', _ERROR, 'contained'),
    95: Meaning('hardware', _ERROR, 'memory'),
    109: Meaning('driver', _WARNING, 'engine'),
    119: Meaning('driver', _ERROR, 'gsp'),
    120: Meaning('driver', _ERROR, 'gsp'),
}
OFF_THE_BUS = MEANINGS[79]
UNKNOWN = Meaning('unknown', _WARNING, 'look_up')
