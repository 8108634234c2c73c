"""All messages by key, one file for each subject."""

from __future__ import annotations

from mmstable.messages.catalogue import (
    bad_checkpoints,
    check,
    check_data,
    check_machine,
    check_setup,
    check_training,
    checkpoints,
    cli,
    data,
    fault_injection,
    forensics,
    guard,
    headroom,
    help_texts,
    legacy,
    ranks,
    replay,
    resume,
    settings,
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
    **bad_checkpoints.MESSAGES,
    **check_data.MESSAGES,
    **check.MESSAGES,
    **check_training.MESSAGES,
    **check_setup.MESSAGES,
    **check_machine.MESSAGES,
    **resume.MESSAGES,
    **legacy.MESSAGES,
    **ranks.MESSAGES,
    **data.MESSAGES,
    **fault_injection.MESSAGES,
    **visualization.MESSAGES,
    **settings.MESSAGES,
    **cli.MESSAGES,
    **help_texts.MESSAGES,
    **forensics.MESSAGES,
    **replay.MESSAGES,
}
