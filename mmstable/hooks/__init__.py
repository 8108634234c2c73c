"""What happens to this run?  One hook, one file."""

from mmstable.hooks.event_log_hook import EventLogHook
from mmstable.hooks.grad_clip_hook import GradClipHook
from mmstable.hooks.grad_nan_logger_hook import GradNanLoggerHook

__all__ = ['EventLogHook', 'GradClipHook', 'GradNanLoggerHook']
