"""What can happen to a run, and who is told of it?

One training iteration, with each stage of :class:`RunMonitor` in its place::

    before_train_iter
      RunMonitor                    begins the iteration
      DivergenceGuardHook           may take a snapshot
    train_step                      of the model
      forward                       under optim_context()
      backward                      the loss is checked, not waited for
      step                          norms -> verdict -> update or skip
                                    (any number, of any wrapper)
    after_train_iter
      RuntimeInfoHook               mmengine reads the loss: device idle
      RunMonitor                    for every step, once and in order:
        after_step                    on any hook that has it
        after_bad_step                if the report has a fault
        after_event                   the report, if it has a fault
      DivergenceGuardHook           acts; tells of it by after_event
      SafeEMAHook                   averages, unless steps were skipped
      LoggerHook                    logs the scalars of RunMonitor
      SafeParamSchedulerHook        moves schedules, or lets them wait
      SafeCheckpointHook            saves; refuses a poisoned state
      EmergencyCheckpointHook       stops here if a signal came
"""

from mmstable.events.event import Event
from mmstable.events.records import Action, Injection, Intervention
from mmstable.events.step_report import (
    ClipRecord,
    Culprit,
    Fault,
    Origin,
    Outcome,
    StepReport,
)

__all__ = [
    'Action',
    'ClipRecord',
    'Culprit',
    'Event',
    'Fault',
    'Injection',
    'Intervention',
    'Origin',
    'Outcome',
    'StepReport',
]
