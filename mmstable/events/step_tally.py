"""The one count of what became of the steps of an optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mmstable.checked_json import count, mapping_of, record, text
from mmstable.events.records import WrapperTotals
from mmstable.events.step_report import Outcome, StepReport


class StepTally:
    """Counts of steps, over the whole run."""

    saved = staticmethod(
        record(
            applied=count,
            skipped=count,
            dropped_micro_batches=count,
            faults=mapping_of(text(64), count),
        )
    )

    def __init__(self) -> None:
        self.applied = 0
        self.skipped = 0
        self.dropped_micro_batches = 0
        # Skipped steps by fault.
        self.faults: Counter[str] = Counter()

    def add(self, report: StepReport) -> None:
        """Count a step."""
        if report.outcome is Outcome.APPLIED:
            self.applied += 1
        elif report.outcome is Outcome.SKIPPED:
            self.skipped += 1
            if report.fault is not None:
                self.faults[report.fault.value] += 1
        if report.dropped_micro_batches:
            self.dropped_micro_batches += report.dropped_micro_batches

    def since(self, before: WrapperTotals) -> WrapperTotals:
        """The counts without those of an earlier :meth:`totals`."""
        faults = self.faults - Counter(before.faults)
        return WrapperTotals(
            self.applied - before.applied,
            self.skipped - before.skipped,
            dict(faults),
            self.dropped_micro_batches - before.dropped_micro_batches,
        )

    def totals(self) -> WrapperTotals:
        """The counts as they are now."""
        return self.since(WrapperTotals())

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run has to know."""
        return {
            'applied': self.applied,
            'skipped': self.skipped,
            'dropped_micro_batches': self.dropped_micro_batches,
            'faults': dict(self.faults),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self.applied = state['applied']
        self.skipped = state['skipped']
        self.dropped_micro_batches = state['dropped_micro_batches']
        self.faults = Counter(state['faults'])
