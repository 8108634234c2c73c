"""Runs that are broken on purpose, with and without mmstable.

Each attempt is a process of its own, and is started again as a scheduler
would do it, as long as there is a reason to.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner.checkpoint import load_from_local
from peers import RUNS as PEERS
from stock_wrappers import CpuAmpOptimWrapper

from mmstable import config_path
from mmstable.checkpoint.audit import find_poison
from mmstable.checkpoint.loading import load_checkpoint
from mmstable.cli.config import load_config
from mmstable.cli.main import main as mmstable
from mmstable.report import read_events

OPTIM_WRAPPERS.register_module(module=CpuAmpOptimWrapper)
CONTENDERS = ('stock fp32', 'stock fp16', 'mmstable fp32', 'mmstable fp16')
_MOST_STARTS = 30
SCALE = 64.0
# Exit codes that nothing else uses.
_CANNOT_RESUME = 77
_HUNG = 78


@dataclass(frozen=True)
class Result:
    """What became of a run.

    Args:
        finished (bool): Whether it came to its last iteration.
        finite (bool): Whether its last checkpoint is finite.
        miou (float): Of the last validation; 0 without one.
        starts (int): Processes that it took.
        told (str): What its owner can read about the fault.
    """

    finished: bool
    finite: bool
    miou: float
    starts: int
    told: str


def quick_config(contender: str, iterations: int, seed: int = 0) -> Config:
    """The quick start, small, as this contender trains it."""
    cfg = load_config(config_path('quickstart/digit-scenes_fcn_fp16.py'))
    cfg.model.update(channels=(8, 16, 32), context_convs=1)
    cfg.train_cfg.update(max_iters=iterations, val_interval=iterations)
    warmup, decay = cfg.param_scheduler
    warmup.end = decay.begin = iterations // 10
    cfg.train_dataloader.batch_size = 4
    cfg.train_dataloader.dataset.update(size=48, num_scenes=4 * iterations)
    cfg.val_dataloader.dataset.update(size=48, num_scenes=100)
    cfg.default_hooks.checkpoint.interval = max(iterations // 5, 1)
    cfg.default_hooks.logger.interval = 10
    if seed:
        cfg.randomness = dict(seed=cfg.randomness.seed + seed)
    if contender.startswith('mmstable'):
        _use_mmstable(cfg, contender.endswith('fp16'))
    else:
        _use_stock(cfg, contender.endswith('fp16'))
    return cfg


def _use_mmstable(cfg: Config, fp16: bool) -> None:
    """What is shipped, but for the dtype."""
    cfg.optim_wrapper.update(
        dtype='float16' if fp16 else 'float32',
        loss_scale=dict(init_scale=SCALE) if fp16 else None,
    )


def _use_stock(cfg: Config, fp16: bool) -> None:
    """What mmengine's own documentation would have one write."""
    optimizer = dict(cfg.optim_wrapper.optimizer, type='AdamW')
    clip = dict(cfg.optim_wrapper.clip_grad)
    cfg.optim_wrapper = dict(
        type='OptimWrapper', optimizer=optimizer, clip_grad=clip
    )
    if fp16:
        cfg.optim_wrapper.type = 'CpuAmpOptimWrapper'
        cfg.optim_wrapper.init_scale = SCALE
    cfg.custom_hooks = []
    cfg.train_cfg.type = 'IterBasedTrainLoop'
    hooks = cfg.default_hooks
    hooks.checkpoint.type = 'CheckpointHook'
    hooks.param_scheduler = dict(type='ParamSchedulerHook')
    for name, hook in list(hooks.items()):
        if hook.type.startswith('mmstable.'):
            del hooks[name]


def run_case(
    folder: Path,
    contender: str,
    iterations: int,
    faults: Sequence[dict],
    seed: int = 0,
) -> Result:
    """Train with these faults, and look at what is left.

    Args:
        folder (Path): Where; it must not exist yet.
        contender (str): One of :data:`CONTENDERS`, or a peer.
        iterations (int): How long.
        faults (Sequence[dict]): For ``FaultInjectorHook``.
        seed (int): Added to the seed of the config. Defaults to 0.
    """
    config = quick_config(contender, iterations, seed)
    return run_config(folder, contender, config, faults)


def run_config(
    folder: Path,
    contender: str,
    cfg: Config,
    faults: Sequence[dict],
    patience: float | None = None,
) -> Result:
    """The same for any config.

    Args:
        folder (Path): Where; it must not exist yet.
        contender (str): One of :data:`CONTENDERS`, or a peer.
        cfg (Config): What it trains.
        faults (Sequence[dict]): For ``FaultInjectorHook``.
        patience (float, optional): Seconds without a line of output after
            which the run is given up. Defaults to None, which waits.
    """
    cfg.work_dir = str(folder)
    if faults:
        injector = dict(type='mmstable.FaultInjectorHook', enabled=True)
        cfg.custom_hooks.append(dict(injector, faults=list(faults)))
    folder.mkdir(parents=True)
    cfg.dump(folder / 'survival_config.py')
    codes: list[int] = []
    while len(codes) < _MOST_STARTS and (not codes or codes[-1] != 0):
        codes.append(_attempt(folder, contender, bool(codes), patience))
        if codes[-1] in (_CANNOT_RESUME, _HUNG):
            break
    return Result(
        finished=codes[-1] == 0,
        finite=is_finite(folder),
        miou=last_miou(folder) if codes[-1] == 0 else 0.0,
        starts=len(codes),
        told=_what_was_told(folder, contender, codes),
    )


def _attempt(
    folder: Path, contender: str, resume: bool, patience: float | None
) -> int:
    run = _run_stock if contender.startswith('stock') else _run_mmstable
    run = PEERS.get(contender, run)
    # Forked: importing torch takes longer than the whole training.
    context = multiprocessing.get_context('fork')
    process = context.Process(target=_in_child, args=(run, folder, resume))
    process.start()
    while process.is_alive():
        before = _size(folder)
        process.join(patience)
        if process.is_alive() and _size(folder) == before:
            process.kill()
            process.join()
            return _HUNG
    return process.exitcode or 0


def _size(folder: Path) -> int:
    path = folder / 'output.txt'
    return path.stat().st_size if path.exists() else 0


def _in_child(run: Any, folder: Path, resume: bool) -> None:
    path = folder / 'output.txt'
    with open(path, 'a', buffering=1, encoding='utf-8') as out:
        # Everything that speaks, also below Python, speaks to this file.
        sys.stdout = sys.stderr = out
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        try:
            code = run(folder, resume)
        except BaseException:
            traceback.print_exc()
            code = 1
    # Not `sys.exit`: what the parent has to do at its end is not ours.
    os._exit(code)


def _run_mmstable(folder: Path, resume: bool) -> int:
    config = str(folder / 'survival_config.py')
    return mmstable(
        ['train', config, '--work-dir', str(folder), '--resume', 'auto']
    )


def _run_stock(folder: Path, resume: bool) -> int:
    cfg = Config.fromfile(folder / 'survival_config.py')
    cfg.resume = resume
    runner = Runner.from_cfg(cfg)
    if resume:
        # The hook that breaks the run brought mmstable along, which makes
        # checkpoints loadable. On its own, mmengine has to do without.
        CheckpointLoader.register_scheme('', load_from_local, force=True)
        try:
            runner.load_or_resume()
        except Exception as error:
            print(f'cannot resume: {error}')
            return _CANNOT_RESUME
    runner.train()
    return 0


def is_finite(folder: Path) -> bool:
    paths = list(folder.glob('iter_*.pth'))
    if not paths:
        return False
    last = max(paths, key=lambda path: int(path.stem.split('_')[1]))
    return not find_poison(load_checkpoint(last))


def last_miou(folder: Path) -> float:
    found = re.findall(r'seg/mIoU: ([\d.]+)', _output(folder))
    return float(found[-1]) if found else 0.0


def _output(folder: Path) -> str:
    return (folder / 'output.txt').read_text('utf-8', errors='replace')


def _what_was_told(folder: Path, contender: str, codes: list[int]) -> str:
    if not contender.startswith('mmstable'):
        return _told_by_the_log(_output(folder), codes)
    parts: dict[str, None] = {}
    for path in sorted(folder.rglob('events*.jsonl')):
        for event in read_events(path):
            parts.update(dict.fromkeys(event_words(event)))
    return ', '.join(parts) or 'nothing'


def _told_by_the_log(text: str, codes: list[int]) -> str:
    parts = []
    lines = re.findall(r'Iter\(train\).*? loss: nan', text)
    if lines:
        parts.append(f'loss: nan in {len(lines)} log lines')
    if 'Traceback' in text:
        parts.append('a traceback')
    if _HUNG in codes:
        parts.append('not a word')
    if _CANNOT_RESUME in codes:
        parts.append('torch.load refuses the checkpoint')
    return ', '.join(parts) or 'nothing'


def event_words(event: Any) -> list[str]:
    if event.event == 'step_fault':
        names = event.loss_terms or [c.name for c in event.culprits[:1]]
        return [
            f'{event.fault.value} ({", ".join(names)})'
            if names
            else event.fault.value
        ]
    if event.event == 'intervention':
        names = [c.name for c in event.culprits[:1]] or [event.subject]
        what = f'{event.action.value}: {event.fault.value}'
        return [f'{what} ({", ".join(names)})']
    if event.event == 'run_end' and event.reason != 'finished':
        lines = (event.traceback or '').strip().splitlines()
        return [f'{event.reason} ({lines[-1].split(":")[0]})']
    return []
