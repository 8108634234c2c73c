"""The report of a run, and the reader of its event file."""

from mmstable.events.log import EventFileError, EventReader, read_events
from mmstable.events.records import (
    CheckpointFailed,
    Event,
    FaultExplained,
    Hang,
    Heartbeat,
    Injection,
    Intervention,
    IterationProfile,
    LiveChange,
    LowHeadroom,
    MemoryAlarm,
    OutOfMemory,
    Poisoned,
    ReplicasDiverged,
    RunEnd,
    RunStart,
    ScaleChange,
    StepReport,
    UnknownEvent,
    Verdict,
    WrapperSample,
    WrapperSetup,
    WrapperTotals,
)

# What these are called as records of a file.
StepFault = StepReport
GuardIntervention = Intervention
InjectedFault = Injection

__all__ = [
    'CheckpointFailed',
    'Event',
    'EventFileError',
    'EventReader',
    'FaultExplained',
    'GuardIntervention',
    'Hang',
    'Heartbeat',
    'LiveChange',
    'IterationProfile',
    'LowHeadroom',
    'MemoryAlarm',
    'OutOfMemory',
    'ReplicasDiverged',
    'InjectedFault',
    'RunEnd',
    'RunStart',
    'ScaleChange',
    'Poisoned',
    'StepFault',
    'UnknownEvent',
    'Verdict',
    'WrapperSample',
    'WrapperSetup',
    'WrapperTotals',
    'read_events',
]
