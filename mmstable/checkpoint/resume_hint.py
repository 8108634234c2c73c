"""The command that resumes a run from one of its checkpoints."""

from __future__ import annotations

import shlex

from mmengine.runner import Runner

from mmstable.messages import say


def resume_command_for(runner: Runner, path: str) -> str:
    """The command line that started this run, with a place to start from."""
    # As `mmstable train` has noted it, if it was that.
    command = runner.cfg.get('resume_command')
    if command is None:
        command = f'mmstable train {runner.cfg.filename} --work-dir '
        command += shlex.quote(runner.work_dir)
    return f'{command} --resume-from {shlex.quote(path)}'


def resume_hint(runner: Runner, path: str | None) -> str:
    """A sentence for the owner of the run, empty without a checkpoint."""
    if path is None:
        return ''
    return say('resume.command', command=resume_command_for(runner, path))
