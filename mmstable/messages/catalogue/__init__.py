"""All messages by key, one file for each subject."""

from __future__ import annotations

from mmstable.messages.catalogue import (
    check_data,
    checkpoints,
    data,
    fault_injection,
    guard,
    headroom,
    ranks,
    resume,
    steps,
    visualization,
    wrappers,
)
from mmstable.messages.message import Message

CATALOGUE: dict[str, Message] = {
    **steps.MESSAGES,
    **wrappers.MESSAGES,
    **guard.MESSAGES,
    **headroom.MESSAGES,
    **checkpoints.MESSAGES,
    **check_data.MESSAGES,
    **resume.MESSAGES,
    **ranks.MESSAGES,
    **data.MESSAGES,
    **fault_injection.MESSAGES,
    **visualization.MESSAGES,
}
