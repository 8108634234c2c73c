"""All messages by key, one file for each subject."""

from __future__ import annotations

from mmstable.messages.catalogue import (
    bad_checkpoints,
    check_data,
    checkpoints,
    cli,
    data,
    estimate,
    fault_injection,
    forensics,
    guard,
    headroom,
    legacy,
    memory,
    ranks,
    replay,
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
    **memory.MESSAGES,
    **estimate.MESSAGES,
    **checkpoints.MESSAGES,
    **bad_checkpoints.MESSAGES,
    **check_data.MESSAGES,
    **resume.MESSAGES,
    **legacy.MESSAGES,
    **ranks.MESSAGES,
    **data.MESSAGES,
    **fault_injection.MESSAGES,
    **visualization.MESSAGES,
    **cli.MESSAGES,
    **forensics.MESSAGES,
    **replay.MESSAGES,
}
