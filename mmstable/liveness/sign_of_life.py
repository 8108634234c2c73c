"""How a run shows its supervisor that it is alive."""

from __future__ import annotations

import os
from contextlib import suppress

from mmstable.files import append

# Names the file; set by a supervisor.
VARIABLE = 'MMSTABLE_SIGN_OF_LIFE'
# Set by torchrun.
_TORCHRUN = 'TORCHELASTIC_MAX_RESTARTS'


def is_supervised() -> bool:
    """Whether a supervisor is going to start this run again."""
    restarts = os.environ.get(_TORCHRUN, '')
    return bool(os.environ.get(VARIABLE)) or (
        restarts.isdigit() and int(restarts) > 0
    )


def show_life(limit: float, text: str) -> None:
    """Show it, if there is a supervisor.

    Args:
        limit (float): How long the phase may take. A process that does not
            even show life for so long hangs in C.
        text (str): What it does.
    """
    path = os.environ.get(VARIABLE)
    if path:
        # Training matters more than a disk that is full.
        with (
            suppress(OSError),
            open(path, 'w', encoding='utf-8', opener=append) as file,
        ):
            file.write(f'{limit} {text}')
