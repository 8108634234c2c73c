"""What a data loader is waiting for, seen from the thread that waits."""

from __future__ import annotations

from types import FrameType
from typing import Any

_LOADER = 'torch/utils/data/dataloader.py'
_LOOPS = 'mmengine/runner/loops.py'
_FETCH = 'torch/utils/data/_utils/fetch.py'


def _find(
    frame: FrameType | None, function: str, file: str
) -> FrameType | None:
    """The innermost call of a function of a file."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and code.co_filename.endswith(file):
            return frame
        frame = frame.f_back
    return None


def asked_loader(frame: FrameType | None) -> Any:
    """The iterator of a loader that is being asked for a batch, if any.

    It is not to be kept: it ends its workers when nobody needs it.
    """
    # Of no other function, whose variables may be a whole batch.
    found = _find(frame, '__next__', _LOADER)
    return None if found is None else found.f_locals.get('self')


def starts_loader(frame: FrameType | None) -> bool:
    """Whether a pass over the data is being opened, and workers started."""
    return _find(frame, '__iter__', _LOADER) is not None


def pauses_between_passes(frame: FrameType | None) -> bool:
    """Whether mmengine's loop sleeps before it reads the data once more."""
    return frame is not None and _find(frame, '__next__', _LOOPS) is frame


def asked_samples(frame: FrameType | None) -> list[int]:
    """The samples that this process is reading, if it reads them itself."""
    fetch = _find(frame, 'fetch', _FETCH)
    found = fetch and fetch.f_locals.get('possibly_batched_index')
    several = found if isinstance(found, (list, tuple)) else [found]
    return [one for one in several if isinstance(one, int)]


def batches_read(loader: Any) -> int:
    """How many batches came from the iterator of a loader."""
    return getattr(loader, '_num_yielded', 0)


def awaited_worker(loader: Any) -> int | None:
    """The number of the worker that the next batch must come from."""
    tasks = getattr(loader, '_task_info', {})
    task = tasks.get(getattr(loader, '_rcvd_idx', None))
    return task[0] if task else None


def worker_pids(loader: Any) -> list[int]:
    """The processes that read for a loader; [] if it reads by itself."""
    return [one.pid for one in getattr(loader, '_workers', [])]
