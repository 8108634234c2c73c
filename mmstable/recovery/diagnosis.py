"""Why was a run stopped?  One file for programs and one text for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmstable.checkpoint.atomic_file import replace_text
from mmstable.events import Intervention
from mmstable.events.json_lines import plain

FILE_NAME = 'diagnosis.json'
SCHEMA = 1


@dataclass(frozen=True)
class Diagnosis:
    """What is known about a run that was stopped.

    Args:
        stop (Intervention): The last one: what was wrong, and since when.
        rollbacks (tuple[Intervention]): The rollbacks before it.
        wrappers (dict): Steps applied and skipped, learning rate and loss
            scale, by optimizer wrapper.
        checkpoint (str, optional): The newest good checkpoint from before
            the incident.
        resume (str, optional): The command to resume from it.
        advice (tuple[str]): What to change in the config.
        text (str): All of it for a person.
    """

    stop: Intervention
    rollbacks: tuple[Intervention, ...]
    wrappers: dict[str, dict[str, Any]]
    checkpoint: str | None
    resume: str | None
    advice: tuple[str, ...]
    text: str

    def write(self, folder: Path) -> Path:
        """Write ``diagnosis.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE_NAME
        content = {'schema': SCHEMA, **plain(self)}
        text = json.dumps(content, indent=2, ensure_ascii=False)
        replace_text(path, text + '\n', encoding='utf-8')
        return path
