"""What happened?  The event file, and how it is read back."""

from mmstable.events.event import Event
from mmstable.events.live_records import LiveChange
from mmstable.events.machine_records import (
    CheckpointFailed,
    Hang,
    IterationProfile,
    MemoryAlarm,
    OutOfMemory,
)
from mmstable.events.number_records import FaultExplained, LowHeadroom, Verdict
from mmstable.events.reader import EventFileError, EventReader, read_events
from mmstable.events.records import (
    Heartbeat,
    Injection,
    Intervention,
    Poisoned,
    ReplicasDiverged,
    RunEnd,
    RunStart,
    ScaleChange,
    UnknownEvent,
    WrapperSample,
    WrapperSetup,
    WrapperTotals,
)
from mmstable.events.step_report import StepReport

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
