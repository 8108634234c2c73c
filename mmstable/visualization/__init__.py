"""How do the numbers get out?  Dashboards that cannot stop a run."""

from mmstable.visualization.queued_vis_backend import QueuedVisBackend

__all__ = ['QueuedVisBackend']
