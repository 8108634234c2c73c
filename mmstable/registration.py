"""When does mmengine get to know the classes of mmstable?

As soon as mmstable is imported, with one exception: a command of mmstable
registers them only if it needs them, because that imports torch, and
``mmstable --help`` should not take seconds.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_SCRIPTS = ('mmstable', 'mmstable.exe')
_TOOLS = (
    'train.py',
    'upgrade_config.py',
    'check.py',
    'check_data.py',
    'doctor.py',
    'protect.py',
    'estimate.py',
    'probe.py',
    'profile_training.py',
    'replay.py',
    'report.py',
)
# In a checkout, and in a wheel.
_TOOL_FOLDERS = (_PACKAGE.parent / 'tools', _PACKAGE / '.mim' / 'tools')


@cache
def register_all() -> None:
    """Register every class, and what else mmengine should know."""
    from mmengine.config.utils import MODULE2PACKAGE

    from mmstable import hooks, loops, optim, visualization  # noqa: F401
    from mmstable.checkpoint.schemes import guard_checkpoints
    from mmstable.legacy import schedules  # noqa: F401
    from mmstable.preflight import skip_samples  # noqa: F401

    # For `_base_ = 'mmstable::...'`. mmengine looks for a distribution of this
    # name first and trusts its metadata, which point to the wrong folder for
    # an editable installation; a module that is no distribution is found by
    # import.
    MODULE2PACKAGE['mmstable'] = 'mmstable.version'
    # A checkpoint is read as data. This is also what makes resuming work
    # with torch 2.6 and newer, whose own guard refuses what mmengine saves.
    guard_checkpoints()


def started_as_command() -> bool:
    """Whether this process is a command of mmstable, beyond doubt.

    That is the script ``mmstable``, ``python -m mmstable`` or a file of
    ``tools/``. Processes that those start with multiprocessing have the same
    ``sys.argv``, but are no commands: they have another ``__main__``.
    """
    file = getattr(sys.modules.get('__main__'), '__file__', None)
    if file is None:
        return _started_by_module_name()
    path = Path(file)
    if path.name == '__main__.py':
        # On Windows, where the script is an archive with that file in it.
        path = path.parent
    if path.name in _TOOLS:
        return path.parent.resolve() in _TOOL_FOLDERS
    return path.name in _SCRIPTS and _imports_command(path)


def _started_by_module_name() -> bool:
    """Whether Python was started with ``-m mmstable``.

    While it imports the package, ``sys.argv`` has '-m' in place of the
    program, whatever its name is; the name is in ``sys.orig_argv``.
    """
    # Not in Python 3.9.
    words = getattr(sys, 'orig_argv', [])
    # Both end with the arguments of the program.
    return (
        sys.argv[:1] == ['-m']
        and len(words) > len(sys.argv)
        and words[-len(sys.argv)] == 'mmstable'
    )


def _imports_command(path: Path) -> bool:
    try:
        return b'mmstable.cli.main' in path.read_bytes()
    except OSError:
        return False
