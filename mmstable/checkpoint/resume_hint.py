"""The command that resumes a run from one of its checkpoints."""

from __future__ import annotations

from mmengine.runner import Runner

from mmstable.messages import N_, _
from mmstable.messages.shell_command import shell_command, shell_word

RESUME_FROM_NEWEST = N_(
    'Resume from the newest checkpoint with --resume auto.'
)


def resume_command_for(runner: Runner, path: str) -> str:
    """The command line that started this run, with a place to start from."""
    # As `mmstable train` has noted it, if it was that.
    command = runner.cfg.get('resume_command')
    if not isinstance(command, str) or not command.isprintable():
        config = runner.cfg.filename or 'CONFIG'
        command = shell_command(
            ['mmstable', 'train', config, '--work-dir', runner.work_dir]
        )
    return f'{command} --resume-from {shell_word(path)}'


def resume_hint(runner: Runner, path: str | None) -> str:
    """A sentence for the owner of the run, empty without a checkpoint."""
    if path is None:
        return ''
    return _(
        'Resume with: {command}', command=resume_command_for(runner, path)
    )
