"""Which event files does a folder have?"""

from __future__ import annotations

from pathlib import Path

from mmstable.errors import UsageError
from mmstable.messages import _

# A file, the folder that it is in, the run's, or the work directory.
_PLACES = (
    'events*.jsonl',
    'stability/events*.jsonl',
    '*/stability/events*.jsonl',
)
# As in `work_dirs`, which has a folder for each config.
_ONE_DEEPER = '*/*/stability/events*.jsonl'
_MOST_NAMES = 5
MOST_FILES = 1000


def find_event_files(path: Path) -> list[Path]:
    """The event files of a work directory, of a run, or a file itself.

    Args:
        path (Path): Any of these.

    Raises:
        UsageError: If there is none.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise UsageError(_("there is no folder or file '{path}'.", path=path))
    for place in _PLACES:
        found = sorted(path.glob(place))
        if found:
            # The folders are called by the time, so the newest are last.
            return found[-MOST_FILES:]
    inside = sorted({one.parents[2] for one in path.glob(_ONE_DEEPER)})
    if inside:
        names = [str(one) for one in inside[:_MOST_NAMES]]
        raise UsageError(
            _(
                "'{path}' is no work directory, but has some in it. Name one "
                'or several: {names}.',
                path=path,
                names=names,
            )
        )
    raise UsageError(
        _(
            "'{path}' has no event file of mmstable "
            '(<run>/stability/events.jsonl). mmstable.EventLogHook writes it '
            'while a run trains; `mmstable train CONFIG` adds that hook by '
            'itself, unless --as-is is given.',
            path=path,
        )
    )


def log_folder(events: Path) -> Path:
    """The folder of the run that an event file belongs to."""
    folder = events.resolve().parent
    return folder.parent if folder.name == 'stability' else folder


def is_of_other_rank(events: Path) -> bool:
    """Whether an event file has only what happened to one more rank."""
    return events.name.startswith('events.rank')
