"""Data loader workers that leave signals to the main process.

Ctrl-C, Slurm and systemd send a signal to all processes of a run. A worker
that dies of it takes the data away that a run needs to stop in good order.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from functools import partial
from multiprocessing import context, resource_tracker
from pathlib import Path
from typing import Any

from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader

from mmstable.checkpoint.stop_signal import SIGNALS
from mmstable.files import append
from mmstable.loops.skip_batches import infinite_indices
from mmstable.run_state.workers import (
    drawing_no_seed,
    forget_workers,
    has_workers,
    worker_seed,
)

_NUMBERS = [signal.Signals[name] for name in SIGNALS]
# Seconds that a worker has to obey.
_PATIENCE = 5.0
# Asks a worker for its stacks. Neither SIGUSR1, which saves, nor SIGUSR2,
# which belongs to other tools. Not on macOS and Windows.
STACKS: int = getattr(signal, 'SIGRTMIN', 0) + 7


def shield_workers(loader: Any, stacks: Path | None = None) -> None:
    """Let the workers that a loader starts from now on ignore signals.

    They end with the main process, and when that one tells them to. They
    have the signals blocked from their start, and so have programs that they
    start.

    Args:
        loader (Any): A loader. Nothing is done if it has no workers, or a
            ``multiprocessing_context`` with processes of its own, or is
            shielded already.
        stacks (Path, optional): The file that they write their stacks to
            when they get the signal :data:`STACKS`. Defaults to None.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        return
    # Not on macOS and Windows.
    if not hasattr(signal, 'sigwaitinfo'):
        return
    current: Any = loader.multiprocessing_context
    current = current or multiprocessing.get_context()
    worker = _WORKERS.get(current.Process)
    if worker is not None:
        shielded = type(current)()
        shielded.Process = partial(worker, stacks=stacks)
        loader.multiprocessing_context = shielded


def shield_loop(loop: Any) -> None:
    """Shield the workers of a train loop, before it draws a batch.

    mmengine's ``IterBasedTrainLoop`` has started them when it was built. They
    are started once more, if that changes neither data nor random numbers.

    Args:
        loop (Any): The loop.
    """
    loader = loop.dataloader
    shield_workers(loader)
    if 'dataloader_iterator' not in vars(loop) or not _can_restart(loader):
        return
    if isinstance(loader.sampler, InfiniteSampler):
        # Workers have got their first indices from it.
        loader.sampler.indices = infinite_indices(loader.sampler, 0)
    forget_workers(loader)
    with drawing_no_seed(loader):
        loop.dataloader_iterator = type(loop.dataloader_iterator)(loader)


def _can_restart(loader: Any) -> bool:
    return (
        has_workers(loader)
        and worker_seed(loader) is not None
        and type(loader.batch_sampler) is BatchSampler
        and type(loader.sampler) in (DefaultSampler, InfiniteSampler)
    )


class _Shielded(multiprocessing.process.BaseProcess):
    """A process that hears of signals from nobody but its parent."""

    _popen: Any
    _start_method: str

    def __init__(
        self, *args: Any, stacks: Path | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._stacks = stacks

    def start(self) -> None:
        """Start with the signals blocked: there is no moment without."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
        try:
            if self._start_method != 'fork':
                # A process that others need; starting it unblocks some.
                resource_tracker.ensure_running()
                signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._popen.terminate = partial(_terminate, self._popen)

    def run(self) -> None:
        """Work, and listen to the parent."""
        if self._stacks is not None:
            _write_stacks_to(self._stacks)
        threading.Thread(target=_obey_parent, daemon=True).start()
        super().run()


def _write_stacks_to(path: Path) -> None:
    """Write all stacks whenever the signal for that comes."""
    # Reading data matters more than a disk that is full.
    with suppress(OSError):
        # It needs the file for as long as the process lives.
        file = open(path, 'ab', opener=append)  # noqa: SIM115
        faulthandler.register(STACKS, file=file, all_threads=True)


def _terminate(popen: Any) -> None:
    """What ``terminate`` does, and more if the process is stuck."""
    if popen.poll() is None:
        os.kill(popen.pid, signal.SIGTERM)
    if popen.wait(timeout=_PATIENCE) is None:
        popen.kill()


def _obey_parent() -> None:
    parent = multiprocessing.parent_process()
    while parent is not None:
        info = signal.sigwaitinfo(_NUMBERS)
        if info.si_signo == signal.SIGTERM and info.si_pid == parent.pid:
            # As torch's own handler does: nobody complains of this code.
            os._exit(0)


class _ForkWorker(_Shielded, context.ForkProcess):
    pass


class _SpawnWorker(_Shielded, context.SpawnProcess):
    pass


class _ForkServerWorker(_Shielded, context.ForkServerProcess):
    pass


_WORKERS: dict[Any, type[_Shielded]] = {
    context.ForkProcess: _ForkWorker,
    context.SpawnProcess: _SpawnWorker,
    context.ForkServerProcess: _ForkServerWorker,
}
