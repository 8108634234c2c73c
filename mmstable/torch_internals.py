"""Every private name of torch that the watching parts of mmstable read.

``tests/test_torch_internals.py`` looks each of them up in the installed
torch, so a release that renames one fails there and not in a run.
"""

from __future__ import annotations

from types import FrameType
from typing import Any, Callable, NamedTuple

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch, signal_handling

from mmstable.io.schema import parse_json

# Function and argument of torch that hold the indices of a sample.
FETCH, FETCH_ARGUMENT = 'fetch', 'possibly_batched_index'
# The flight recorder: of all backends in newer releases, else of NCCL alone.
FLIGHT_RECORDERS = ('_dump_fr_trace_json', '_dump_nccl_trace_json')
_MAX_TRACE_BYTES = 1 << 26


def find_call(
    frame: FrameType | None, file: str, function: str | None = None
) -> FrameType | None:
    """Find the innermost call of a function of a file.

    Args:
        frame (FrameType, optional): Where to start.
        file (str): The end of the file's path.
        function (str, optional): Its name. Defaults to None, any function.
    """
    while frame is not None:
        code = frame.f_code
        is_match = function in (None, code.co_name)
        if is_match and code.co_filename.endswith(file):
            return frame
        frame = frame.f_back
    return None


def waits_for_data(frame: FrameType | None) -> bool:
    """Whether a data loader is being asked for a batch, or opened."""
    return find_call(frame, dataloader.__file__) is not None


def starts_loader(frame: FrameType | None) -> bool:
    """Whether a pass over the data is being opened, and workers started."""
    return find_call(frame, dataloader.__file__, '__iter__') is not None


def asked_loader(frame: FrameType | None) -> Any:
    """Find the loader's iterator that is being asked for a batch.

    Do not keep it: its workers end when the last reference is gone.
    """
    # `f_locals` of no other function: those may hold a whole batch.
    found = find_call(frame, dataloader.__file__, '__next__')
    return None if found is None else found.f_locals.get('self')


def asked_samples(frame: FrameType | None) -> list[int]:
    """List the indices that this process is reading, without workers."""
    found = find_call(frame, fetch.__file__, FETCH)
    index = found and found.f_locals.get(FETCH_ARGUMENT)
    several = index if isinstance(index, (list, tuple)) else [index]
    return [one for one in several if isinstance(one, int)]


def batches_read(loader: Any) -> int:
    """Count the batches that a loader's iterator has returned."""
    return getattr(loader, '_num_yielded', 0)


def awaited_worker(loader: Any) -> int | None:
    """Number of the worker that has to deliver the next batch."""
    tasks = getattr(loader, '_task_info', {})
    task = tasks.get(getattr(loader, '_rcvd_idx', None))
    return task[0] if task else None


def worker_pids(loader: Any) -> list[int]:
    """Process ids of a loader's workers; [] without workers."""
    return [one.pid for one in getattr(loader, '_workers', [])]


def handle_worker_deaths() -> None:
    """Install torch's SIGCHLD handler, as the first worker would.

    torch does this once per process.
    """
    signal_handling._set_SIGCHLD_handler()


def is_operator(func: Any) -> bool:
    """Whether a dispatch mode was called for an operator of torch."""
    return isinstance(func, torch._ops.OpOverload)


def in_backward() -> bool:
    """Whether autograd runs, in which checkpointed modules run again."""
    return torch._C._current_graph_task_id() != -1


# torch 2.1 lacks some of these; the lines of backward operations are unknown
# there, and collective calls cannot be replayed.
current_autograd_node: Callable[[], Any] = getattr(
    torch._C, '_current_autograd_node', lambda: None
)
_sequence_nr: Callable[[], int] | None = getattr(
    torch.autograd, '_get_sequence_nr', None
)


def newest_sequence_nr() -> int | None:
    """Sequence number of the newest autograd node, if torch has one."""
    return None if _sequence_nr is None else _sequence_nr() - 1


def work_maker() -> Callable[[Any], Any] | None:
    """Return the function that makes a finished ``Work`` of a future."""
    c10d = getattr(torch._C, '_distributed_c10d', None)
    if not hasattr(getattr(c10d, 'Work', None), 'boxed'):
        return None
    return getattr(c10d, '_create_work_from_future', None)


def memory_tools() -> tuple[Any, Any]:
    """Return ``FakeTensorMode`` and ``MemTracker``; (None, None) without.

    Imported on request: they take long to import.
    """
    try:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.mem_tracker import MemTracker
    except ImportError:
        return None, None
    return FakeTensorMode, MemTracker


class Collectives(NamedTuple):
    """The collective calls of the default process group.

    Args:
        begun (int): Number of the newest call; -1 if unknown. Defaults to -1.
        waits_in (str): Name of the call that is not complete, such as
            'all_reduce'. Defaults to ''.
    """

    begun: int = -1
    waits_in: str = ''


def read_collectives() -> Collectives:
    """Read torch's flight recorder, where this torch has one."""
    recorder = getattr(torch._C, '_distributed_c10d', None)
    for name in FLIGHT_RECORDERS:
        try:
            content = getattr(recorder, name)()
            return _read_trace(parse_json(content, _MAX_TRACE_BYTES))
        except (AttributeError, RuntimeError, LookupError):
            continue
        except (TypeError, ValueError):
            # The format differs between versions.
            continue
    return Collectives()


def _read_trace(content: Any) -> Collectives:
    status = content['pg_status']['0']
    begun = int(status['last_enqueued_collective'])
    if int(status['last_completed_collective']) >= begun:
        return Collectives(begun)
    newest = content['entries'][-1]['profiling_name']
    return Collectives(begun, str(newest).rpartition(':')[2])
