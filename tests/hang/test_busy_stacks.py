"""Stacks of processes in which many threads run: none of them may crash."""

from __future__ import annotations

import multiprocessing
import operator
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mmstable.hang import dead_man_switch, report
from mmstable.hang.dead_man_switch import DeadManSwitch
from mmstable.hang.report import ask_for_stacks, stacks_file, write_stacks
from mmstable.hang.watchdog import blamed_line, read_dump
from mmstable.hang.watchdog_process import signal_thread
from mmstable.loops.workers import use_signal_safe_workers
from tests.patience import PATIENCE, wait_until

pytestmark = pytest.mark.skipif(
    not hasattr(signal, 'SIGRTMIN'), reason='there is no such signal'
)


def deep(count: int) -> int:
    return count and deep(count - 1) + 1


def change_frames() -> None:
    deep(60)
    sum(deep(one) for one in range(9))
    exec('def once(n):\n    return n and once(n - 1)\nonce(30)', {})


def start_threads() -> None:
    threads = [threading.Thread(target=deep, args=(30,)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def multiply_in_blas() -> None:
    one = np.ones((300, 300))
    one @ one


def work_with_threads(
    tell: Callable[[], object], is_over: Callable[[], bool]
) -> None:
    """Tell when all kinds of threads run, and work beside them."""
    batches: queue.Queue = queue.Queue(maxsize=2)

    def repeat(work: Callable[[], object]) -> None:
        while not is_over():
            work()

    def copy_batches() -> None:
        for batch in iter(batches.get, None):
            batch.clone()

    threads = [
        threading.Thread(target=repeat, args=(work,))
        for work in (change_frames, start_threads, multiply_in_blas)
    ]
    threads.append(threading.Thread(target=copy_batches))
    for one in threads:
        one.start()
    tell()
    torch.set_num_threads(2)
    batch = torch.ones(256, 256)
    while not is_over():
        batch = (batch @ batch).sigmoid()
        deep(40)
        batches.put(batch)
    batches.put(None)
    for one in threads:
        one.join()


class BusyData(Dataset):
    """Works on its first sample until it is told to end."""

    def __init__(self) -> None:
        self.busy = multiprocessing.RawArray('b', 2)
        self.is_over = multiprocessing.RawValue('b')

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        work_with_threads(
            lambda: operator.setitem(self.busy, index, True),
            lambda: bool(self.is_over.value),
        )
        return index


@pytest.fixture
def load():
    """Two processes that take the time of the machine."""
    command = [sys.executable, '-c', 'while True: pass']
    loops = [subprocess.Popen(command) for _ in range(2)]
    yield
    for one in loops:
        one.kill()
        one.wait()


def names_this_file(text: str) -> bool:
    return Path(__file__).name in blamed_line(read_dump(text))


rounds = pytest.mark.parametrize(
    'count', [5, pytest.param(250, marks=pytest.mark.soak)]
)


@rounds
@pytest.mark.parametrize('patience', [60.0, 0.0], ids=['all', 'main'])
def test_workers(tmp_path, monkeypatch, load, count, patience):
    # Without patience, none has got the GIL in time.
    monkeypatch.setattr(report, '_PATIENCE', patience)
    monkeypatch.setattr(report, '_LAST_PATIENCE', 60.0)
    data = BusyData()
    loader = DataLoader(data, batch_size=1, num_workers=2)
    use_signal_safe_workers(loader, tmp_path / 'workers.txt')
    batches = iter(loader)
    pids = [one.pid for one in batches._workers]
    try:
        wait_until(lambda: all(data.busy))
        for _ in range(count):
            stacks = ask_for_stacks(pids, tmp_path / 'workers.txt')
            assert list(stacks) == pids
            for text in stacks.values():
                assert names_this_file(text), text
                assert patience == 0 or 'in copy_batches' in text
    finally:
        data.is_over.value = True
    # None has died.
    assert sorted(int(batch) for batch in batches) == [0, 1]


def be_busy_rank(folder: Path, pipe: Any) -> None:
    """Write all stacks when asked to, until the answer is no."""
    over = threading.Event()
    switch = DeadManSwitch(folder / 'watchdog.txt')

    def listen() -> None:
        while pipe.recv():
            write_stacks(folder, 0, 'asked')
            pipe.send('written')
        over.set()

    thread = threading.Thread(target=listen)
    thread.start()
    work_with_threads(lambda: pipe.send('ready'), over.is_set)
    thread.join()
    switch.close()


@rounds
def test_a_rank(tmp_path, load, count):
    number = int(dead_man_switch._SIGNAL)
    pipe, its_end = multiprocessing.Pipe()
    rank = multiprocessing.get_context('fork').Process(
        target=be_busy_rank, args=(tmp_path, its_end)
    )
    rank.start()
    its_end.close()
    written, told = stacks_file(tmp_path, 0), tmp_path / 'watchdog.txt'
    try:
        assert pipe.recv() == 'ready'
        for _ in range(2 * count):
            pipe.send(True)
            assert pipe.recv() == 'written'
            _, _, text = written.read_text().partition('\n\n')
            assert names_this_file(text), text
            assert 'in copy_batches' in text
            written.unlink()
            before = told.stat().st_size
            signal_thread(rank.pid, rank.pid, number)
            wait_until(
                lambda: (
                    told.stat().st_size > before  # noqa: B023
                    or not rank.is_alive()
                )
            )
            assert rank.is_alive()
            wait_until(lambda: not report._is_handling(rank.pid, number))
            text = told.read_text()[before:]
            assert names_this_file(text), text
        pipe.send(False)
        rank.join(60 * PATIENCE)
    finally:
        rank.kill()
    assert rank.exitcode == 0
