"""How does the owner of a run hear of it?  Messages through apprise.

The addresses come from ``MMSTABLE_NOTIFY`` or a private file, never from a
config: mmengine writes configs into work directories and checkpoints.
"""

from mmstable.notify.notifier import (
    Notifier,
    Occasion,
    send_from_supervisor,
)

__all__ = ['Notifier', 'Occasion', 'send_from_supervisor']
