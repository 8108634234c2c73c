"""What can happen to a run, and who is told of it?"""

from mmstable.events.step_report import (
    Action,
    ClipRecord,
    Culprit,
    Fault,
    Injection,
    Intervention,
    Origin,
    Outcome,
    StepReport,
)

__all__ = [
    'Action',
    'ClipRecord',
    'Culprit',
    'Fault',
    'Injection',
    'Intervention',
    'Origin',
    'Outcome',
    'StepReport',
]
