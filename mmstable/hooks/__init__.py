"""What happens to this run?  One hook, one file."""

from mmstable.hooks.divergence_guard_hook import DivergenceGuardHook
from mmstable.hooks.emergency_checkpoint_hook import EmergencyCheckpointHook
from mmstable.hooks.engine_hook import EngineHook
from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.fault_forensics_hook import (
    FaultForensicsHook,
    NanForensicsHook,
)
from mmstable.hooks.fault_injector_hook import FaultInjectorHook
from mmstable.hooks.grad_clip_hook import GradClipHook
from mmstable.hooks.grad_nan_logger_hook import GradNanLoggerHook
from mmstable.hooks.hang_watchdog_hook import HangWatchdogHook
from mmstable.hooks.headroom_hook import HeadroomHook
from mmstable.hooks.iter_profile_hook import IterProfileHook
from mmstable.hooks.live_probe_hook import LiveProbeHook
from mmstable.hooks.memory_guard_hook import MemoryGuardHook
from mmstable.hooks.metrics_hook import MetricsHook
from mmstable.hooks.notify_hook import NotifyHook
from mmstable.hooks.rank_failure_hook import RankFailureHook
from mmstable.hooks.replica_check_hook import ReplicaCheckHook
from mmstable.hooks.resume_hooks import ResumeCheckHook, ResumeReportHook
from mmstable.hooks.safe_activation_checkpoint_hook import (
    SafeActivationCheckpointHook,
)
from mmstable.hooks.safe_checkpoint_hook import SafeCheckpointHook
from mmstable.hooks.safe_ema_hook import SafeEMAHook
from mmstable.hooks.safe_param_scheduler_hook import SafeParamSchedulerHook

__all__ = [
    'DivergenceGuardHook',
    'EmergencyCheckpointHook',
    'EngineHook',
    'EventLogHook',
    'FaultForensicsHook',
    'FaultInjectorHook',
    'GradClipHook',
    'GradNanLoggerHook',
    'HangWatchdogHook',
    'HeadroomHook',
    'LiveProbeHook',
    'IterProfileHook',
    'MemoryGuardHook',
    'MetricsHook',
    'NanForensicsHook',
    'NotifyHook',
    'RankFailureHook',
    'ReplicaCheckHook',
    'ResumeCheckHook',
    'ResumeReportHook',
    'SafeActivationCheckpointHook',
    'SafeCheckpointHook',
    'SafeEMAHook',
    'SafeParamSchedulerHook',
]
