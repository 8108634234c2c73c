"""What is wrong with a run, in words with evidence.

Each check is a function from a history to a finding, or None.
"""

from __future__ import annotations

from mmstable.finding import Finding, Severity
from mmstable.report.diagnosis.endings import bad_end
from mmstable.report.diagnosis.losses import rising_loss
from mmstable.report.diagnosis.machine import (
    hangs,
    memory_growth,
    out_of_memory,
    slow_phase,
    unsaved,
)
from mmstable.report.diagnosis.places import (
    data_suspects,
    diverged_replicas,
    fault_place,
    injected_faults,
    low_headroom,
)
from mmstable.report.diagnosis.scale import high_start_scale, scale_sawtooth
from mmstable.report.diagnosis.steps import skip_rate
from mmstable.report.diagnosis.wasted import wasted_work
from mmstable.report.history import History

CHECKS = (
    bad_end,
    unsaved,
    fault_place,
    data_suspects,
    skip_rate,
    scale_sawtooth,
    high_start_scale,
    wasted_work,
    rising_loss,
    low_headroom,
    out_of_memory,
    memory_growth,
    slow_phase,
    hangs,
    diverged_replicas,
    injected_faults,
)
_ORDER = list(Severity)


def diagnose(history: History) -> list[Finding]:
    """All findings, the worst first; none if nothing is wrong."""
    found = [check(history) for check in CHECKS]
    return sorted(
        (one for one in found if one is not None),
        key=lambda one: _ORDER.index(one.severity),
    )
