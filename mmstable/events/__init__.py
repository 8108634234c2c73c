"""Events of a run, and the monitor that publishes them to hooks.

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
      DivergenceGuardHook           acts, and reports it by after_event
      SafeEMAHook                   averages, unless steps were skipped
      LoggerHook                    logs the scalars of RunMonitor
      SafeParamSchedulerHook        moves schedules, or holds them back
      SafeCheckpointHook            saves; refuses a state with NaN
      EmergencyCheckpointHook       stops here if a signal came
"""

from mmstable.events.records import (
    Action,
    ClipRecord,
    Culprit,
    Event,
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
    'Event',
    'Fault',
    'Injection',
    'Intervention',
    'Origin',
    'Outcome',
    'StepReport',
]
