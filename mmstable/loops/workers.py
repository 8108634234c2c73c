"""Data loader workers that leave signals to the main process.

Ctrl-C, Slurm and systemd send a signal to all processes of a run. A worker
that dies of it takes away the data that the run needs to stop cleanly. The
death of a worker is raised between two iterations, not inside an update.
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
from types import FrameType
from typing import IO, Any

from mmengine.dataset import DefaultSampler, InfiniteSampler
from torch.utils.data import BatchSampler, DataLoader

from mmstable.checkpoint.signals import SIGNALS
from mmstable.io.files import append
from mmstable.io.process import all_stacks
from mmstable.state.data_position import (
    drawing_no_seed,
    forget_workers,
    has_workers,
    infinite_indices,
    worker_seed,
)
from mmstable.torch_internals import handle_worker_deaths, waits_for_data

# Ask a worker for the stacks of all threads, and for that of its main thread.
# Neither SIGUSR1, which saves, nor SIGUSR2, which belongs to other tools. Not
# on macOS and Windows.
ALL_STACKS: int = getattr(signal, 'SIGRTMIN', 0) + 8
MAIN_STACK = ALL_STACKS - 1
_NUMBERS = [*(signal.Signals[name] for name in SIGNALS), ALL_STACKS]
# Seconds that a worker has to obey.
_PATIENCE = 5.0


def use_signal_safe_workers(loader: Any, stacks: Path | None = None) -> None:
    """Let the workers that a loader starts from now on ignore signals.

    They end with the main process, and when that one tells them to. They
    have the signals blocked from their start, and so have programs that they
    start.

    Args:
        loader (Any): A loader. Nothing is done if it has no workers, or a
            ``multiprocessing_context`` with processes of its own, or is
            done already.
        stacks (Path, optional): The file that they write their stacks to
            when they get the signal :data:`ALL_STACKS`, which needs Python's
            lock, or :data:`MAIN_STACK`. Defaults to None.
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
        safe = type(current)()
        safe.Process = partial(worker, stacks=stacks)
        loader.multiprocessing_context = safe


def restart_signal_safe(loop: Any) -> None:
    """Make the workers of a train loop signal-safe, before its first batch.

    mmengine's ``IterBasedTrainLoop`` has started them when it was built. They
    are started once more, if that changes neither data nor random numbers.

    Args:
        loop (Any): The loop.
    """
    loader = loop.dataloader
    use_signal_safe_workers(loader)
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


class _SignalSafeWorker(multiprocessing.process.BaseProcess):
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
        file = None
        # Reading data matters more than a disk that is full.
        with suppress(OSError):
            if self._stacks is not None:
                file = open(self._stacks, 'ab', 0, opener=append)  # noqa: SIM115
                # The frames of other threads, which run, would crash it.
                faulthandler.register(MAIN_STACK, file, all_threads=False)
        threading.Thread(
            target=_obey_parent, args=(file,), daemon=True
        ).start()
        super().run()


def _terminate(popen: Any) -> None:
    """What ``terminate`` does, and more if the process is stuck."""
    if popen.poll() is None:
        os.kill(popen.pid, signal.SIGTERM)
    if popen.wait(timeout=_PATIENCE) is None:
        popen.kill()


def _obey_parent(file: IO[bytes] | None) -> None:
    parent = multiprocessing.parent_process()
    while parent is not None:
        info = signal.sigwaitinfo(_NUMBERS)
        if info.si_pid != parent.pid:
            continue
        if info.si_signo == signal.SIGTERM:
            # As torch's own handler does: nobody complains of this code.
            os._exit(0)
        if info.si_signo == ALL_STACKS and file is not None:
            pid = os.getpid()
            text = f'Process {pid}\n{all_stacks()}End of process {pid}\n'
            with suppress(OSError):
                # At once: other workers write to the same file.
                file.write(text.encode(errors='replace'))


class _ForkWorker(_SignalSafeWorker, context.ForkProcess):
    pass


class _SpawnWorker(_SignalSafeWorker, context.SpawnProcess):
    pass


class _ForkServerWorker(_SignalSafeWorker, context.ForkServerProcess):
    pass


_WORKERS: dict[Any, type[_SignalSafeWorker]] = {
    context.ForkProcess: _ForkWorker,
    context.SpawnProcess: _SpawnWorker,
    context.ForkServerProcess: _ForkServerWorker,
}


class WorkerDeaths:
    """Keeps torch from raising in the middle of an update or a save.

    When a worker dies, torch raises in the main thread, wherever that is.
    This waits for :meth:`raise_pending`, unless the main thread waits for
    data anyway.
    """

    def __init__(self) -> None:
        self.is_pending = False
        self._raise: Any = None

    def install(self) -> None:
        """Start, from the main thread."""
        handle_worker_deaths()
        other = getattr(signal.getsignal(signal.SIGCHLD), '__self__', None)
        if isinstance(other, WorkerDeaths):
            # Of a run that an error has ended, which nobody told the hooks.
            other.uninstall()
        self.is_pending = False
        self._raise = signal.signal(signal.SIGCHLD, self._handle)

    def uninstall(self) -> None:
        """Leave it to torch again."""
        if self._raise is not None:
            signal.signal(signal.SIGCHLD, self._raise)
            self._raise = None

    def raise_pending(self) -> None:
        """Raise what torch has to say, if a worker has died."""
        self.is_pending = False
        if callable(self._raise):
            self._raise(signal.SIGCHLD, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if waits_for_data(frame):
            self.raise_pending()
        else:
            self.is_pending = True
