"""The command that goes on with a run: the one that started it, nearly."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

# What says where to start; the value may be left out of `--resume` only.
_STARTS = ('--resume', '--resume-from', '--load-from', '--before-iter')


def resume_command(
    program: Sequence[str], argv: Sequence[str], work_dir: str
) -> str:
    """A command line without what it says about where to start.

    Args:
        program (Sequence[str]): What was called, e.g.
            ``['python', 'tools/train.py']``.
        argv (Sequence[str]): Its arguments.
        work_dir (str): Where the run is.
    """
    kept: list[str] = []
    skipping = False
    for word in argv:
        if skipping and not word.startswith('-'):
            skipping = False
            continue
        skipping = word in _STARTS
        if not skipping and word.partition('=')[0] not in _STARTS:
            kept.append(word)
    if not any(word.startswith('--work-dir') for word in kept):
        kept += ['--work-dir', work_dir]
    return shlex.join([*program, *kept])
