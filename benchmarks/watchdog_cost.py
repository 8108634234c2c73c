"""What HangWatchdogHook costs in a healthy run of the quick start.

One training, whose iterations are watched or not, in blocks that take turns.
The thread looks twenty times as often as it does by default; the cost at the
default follows from that.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

import torch
from hook_overhead import CONFIG
from interleaved import Race
from mmengine.hooks import Hook
from mmengine.runner import Runner
from results import DEFAULT_FOLDER, Row, publish

from mmstable.cli.config import load_config
from mmstable.hooks import HangWatchdogHook

INTERVAL, FASTER = 1.0, 20
BLOCK = 10
LIMIT = 1.002
THREAD = 'mmstable hang watchdog'
WATCHED, ALONE, AGAIN = 'watched', 'alone', 'alone (again)'


class Switch(Hook):
    """Turns a watchdog on and off, and takes the times in between."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {
            name: [] for name in (ALONE, WATCHED, AGAIN)
        }
        self._dog = HangWatchdogHook(action='wait')
        self._order = random.Random(0)
        self._waiting: list[str] = []
        self._mode = ''
        self._begin = 0.0
        # CPU time of the thread, and what it was awake for.
        self.cpu_seconds = self.watched_seconds = 0.0

    def after_train_iter(
        self, runner: Runner, batch_idx: int, **_: object
    ) -> None:
        """Take the time of a block, and turn."""
        if batch_idx % BLOCK == 0 and batch_idx > 0:
            spent = time.perf_counter() - self._begin
            # The first block warms up.
            if self._mode:
                self.seconds[self._mode].append(spent / BLOCK)
            if self._mode == WATCHED:
                self.cpu_seconds += cpu_time_of(THREAD)
                self.watched_seconds += spent
            self._turn(runner)
            self._begin = time.perf_counter()

    def _turn(self, runner: Runner) -> None:
        if not self._waiting:
            self._waiting = self._order.sample(list(self.seconds), 3)
        self._dog.after_run(runner)
        self._mode = self._waiting.pop()
        if self._mode == WATCHED:
            self._dog.before_run(runner)
            self._dog.watchdog.interval = INTERVAL / FASTER


def cpu_time_of(name: str) -> float:
    """CPU time of a thread of this process."""
    thread = next(t for t in threading.enumerate() if t.name == name)
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def race_blocks(rounds: int) -> tuple[Race, float]:
    """Train, and let the blocks take turns.

    Returns:
        tuple: The times, and the share of a CPU that the thread takes.
    """
    cfg = load_config(str(CONFIG))
    switch = Switch()
    with tempfile.TemporaryDirectory() as folder:
        cfg.work_dir, cfg.log_level = folder, 'ERROR'
        cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
        cfg.custom_hooks, cfg.param_scheduler = [], None
        cfg.train_cfg.max_iters = BLOCK * (3 * rounds + 2)
        cfg.default_hooks.checkpoint.interval = 10**6
        runner = Runner.from_cfg(cfg)
        runner.register_hook(switch)
        runner.train()
    share = switch.cpu_seconds / switch.watched_seconds
    return Race(switch.seconds, AGAIN), share


def rows_of(one: Race, share: float) -> list[Row]:
    often = one.ratio(WATCHED, ALONE)
    case = 'quick start, fp16'
    note = (
        f'{1e3 * one.median(WATCHED):.2f} ms / '
        f'{1e3 * one.median(ALONE):.2f} ms'
    )
    return [
        Row(
            case=case,
            what='1 + share of a CPU, looking once a second',
            value=1 + share / FASTER,
            limit=LIMIT,
        ),
        Row(
            case=case,
            what='an iteration looked at once a second / never',
            value=1 + (often - 1) / FASTER,
            limit=LIMIT,
            note=note,
        ),
        Row(
            case=case,
            what=f'looked at {FASTER} times a second / never',
            value=often,
            best=one.best_ratio(WATCHED, ALONE),
            noise=one.noise,
            note=note,
        ),
    ]


def main() -> None:
    """Print the table, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--quick', action='store_true', help='does it run?')
    parser.add_argument('--threads', type=int, default=2, help='of torch')
    parser.add_argument(
        '--json', type=Path, default=DEFAULT_FOLDER / 'watchdog_cost.json'
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result, share = race_blocks(2 if args.quick else 40)
    rows = rows_of(result, share)
    publish(args.json, rows, {'blocks': result.as_dict()})


if __name__ == '__main__':
    main()
