"""What happened?  The event file, and how it is read back."""

from mmstable.events.reader import EventFileError, EventReader, read_events
from mmstable.events.records import (
    Event,
    GuardIntervention,
    Heartbeat,
    InjectedFault,
    Poisoned,
    ReplicasDiverged,
    RunEnd,
    RunStart,
    ScaleChange,
    StepFault,
    UnknownEvent,
    WrapperSample,
    WrapperSetup,
    WrapperTotals,
)

__all__ = [
    'Event',
    'EventFileError',
    'EventReader',
    'GuardIntervention',
    'Heartbeat',
    'ReplicasDiverged',
    'InjectedFault',
    'RunEnd',
    'RunStart',
    'ScaleChange',
    'Poisoned',
    'StepFault',
    'UnknownEvent',
    'WrapperSample',
    'WrapperSetup',
    'WrapperTotals',
    'read_events',
]
