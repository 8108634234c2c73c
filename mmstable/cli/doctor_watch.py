"""``mmstable doctor --watch``: the machine on one screen, again and again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import psutil

from mmstable.doctor.gpu_library import (
    GpuLibrary,
    GpuState,
    NoGpuLibrary,
    gpu_library,
)
from mmstable.doctor.gpus import throttle_names
from mmstable.memory.host_limit import host_room
from mmstable.memory.sizes import readable
from mmstable.messages import say

_COLUMNS = ('memory', 'busy', 'temperature', 'power', 'ecc', 'throttles')


def watch(interval: float, rounds: int | None = None) -> None:
    """Show a table, until Ctrl-C.

    Args:
        interval (float): Seconds between two looks.
        rounds (int, optional): Looks to take; no end if None. Defaults to
            None.
    """
    try:
        with gpu_library() as library:
            _show(library, '', interval, rounds)
    except NoGpuLibrary as error:
        _show(None, str(error), interval, rounds)


def _show(
    library: GpuLibrary | None,
    reason: str,
    interval: float,
    rounds: int | None,
) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    # Elsewhere it would show nothing but the last.
    is_terminal = console.is_terminal
    with suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:
        for number in count():
            if number == rounds:
                return
            if number:
                time.sleep(interval)
            states = [] if library is None else library.states()
            now = table(states, reason)
            if is_terminal:
                live.update(now, refresh=True)
            else:
                console.print(now)


def table(states: list[GpuState], reason: str) -> Any:
    """How the machine is now.

    Args:
        states (list[GpuState]): Its GPUs.
        reason (str): Why none can be seen; '' if they can.
    """
    from rich.table import Table
    from rich.text import Text

    now = time.strftime('%H:%M:%S')
    result = Table(
        title=say('doctor_text.watch_title', time=now), caption=reason
    )
    result.add_column('')
    for name in _COLUMNS:
        result.add_column(say(f'doctor_watch.{name}'), justify='right')
    for row in [*map(gpu_row, states), host_row(), *shm_row()]:
        result.add_row(*(Text(cell) for cell in row))
    return result


def gpu_row(gpu: GpuState) -> list[str]:
    """The cells of one GPU.

    Args:
        gpu (GpuState): How it is.
    """
    name = f'GPU {gpu.index} {gpu.name}'.strip()
    if gpu.lost:
        return [name, gpu.lost, '', '', '', '', '']
    total = gpu.memory_total or 0
    memory = f'{readable(gpu.memory_used or 0)} / {readable(total)}'
    power = '-' if gpu.power is None else f'{gpu.power:.0f} W'
    ecc = f'{_shown(gpu.corrected)} / {_shown(gpu.uncorrected)}'
    return [
        name,
        memory,
        _shown(gpu.busy, ' %'),
        _shown(gpu.temperature, ' °C'),
        power,
        ecc,
        ', '.join(throttle_names(gpu)),
    ]


def host_row() -> list[str]:
    """The cells of the host."""
    room = host_room()
    memory = f'{readable(room.limit - room.left)} / {readable(room.limit)}'
    busy = f'{psutil.cpu_percent():.0f} %'
    return [say('doctor_watch.host'), memory, busy, '-', '-', '-', '']


def shm_row() -> Iterator[list[str]]:
    """The cells of the shared memory, where there is such."""
    try:
        usage = shutil.disk_usage('/dev/shm')
    except OSError:
        return
    memory = f'{readable(usage.used)} / {readable(usage.total)}'
    yield ['/dev/shm', memory, '', '', '', '', '']


def _shown(value: int | None, unit: str = '') -> str:
    return '-' if value is None else f'{value}{unit}'
