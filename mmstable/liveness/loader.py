"""What a data loader is waiting for, seen from the thread that waits."""

from __future__ import annotations

from types import FrameType
from typing import Any

_LOADER = 'torch/utils/data/dataloader.py'
_LOOPS = 'mmengine/runner/loops.py'
_FETCH = 'torch/utils/data/_utils/fetch.py'


def asked_loader(frame: FrameType | None) -> Any:
    """The iterator of a loader that is being asked for a batch, if any.

    It is not to be kept: it ends its workers when nobody needs it.
    """
    while frame is not None:
        code = frame.f_code
        # Of no other function, whose variables may be a whole batch.
        if code.co_name == '__next__' and code.co_filename.endswith(_LOADER):
            return frame.f_locals.get('self')
        frame = frame.f_back
    return None


def starts_loader(frame: FrameType | None) -> bool:
    """Whether a pass over the data is being opened, and workers started."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == '__iter__' and code.co_filename.endswith(_LOADER):
            return True
        frame = frame.f_back
    return False


def pauses_between_passes(frame: FrameType | None) -> bool:
    """Whether mmengine's loop sleeps before it reads the data once more."""
    if frame is None:
        return False
    code = frame.f_code
    return code.co_name == '__next__' and code.co_filename.endswith(_LOOPS)


def asked_samples(frame: FrameType | None) -> list[int]:
    """The samples that this process is reading, if it reads them itself."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == 'fetch' and code.co_filename.endswith(_FETCH):
            found = frame.f_locals.get('possibly_batched_index')
            several = found if isinstance(found, (list, tuple)) else [found]
            return [one for one in several if isinstance(one, int)]
        frame = frame.f_back
    return []


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
