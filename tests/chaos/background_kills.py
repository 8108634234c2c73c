"""A run that kills itself in the midst of a background write."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from mmengine.dataset import InfiniteSampler
from mmengine.model import MMDistributedDataParallel
from torch.utils.data import DataLoader

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.io import files
from tests.chaos.tiny import TinyModel
from tests.toys import ToyData, toy_runner

ITERATIONS = 12
# What a write does to the disk; a stream is written to several times.
_CALLS = ('open', 'fsync', 'replace', 'unlink', 'remove', 'scandir')


class Killer:
    """Ends the process before or after some call of the writing thread.

    Args:
        moment: The number of the call; even ones end it before the call.
    """

    def __init__(self, moment: int) -> None:
        self._left = moment // 2
        self._is_after = bool(moment % 2)
        for name in _CALLS:
            setattr(os, name, self._guarded(getattr(os, name)))
        write = files.HashedStream.write
        files.HashedStream.write = self._guarded(write)

    def _guarded(self, call: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread().name != 'mmstable-save':
                return call(*args, **kwargs)
            self._left -= 1
            if self._left == 0 and not self._is_after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return guarded


def train(work_dir: str, moment: int, rank: int = 0, port: int = 0) -> None:
    """Resume and train to the end, or be killed.

    Args:
        work_dir: The work directory.
        moment: For :class:`Killer`; 0 lets it live.
        rank: The rank of this process.
        port: Of the rendezvous of two ranks; 0 without another rank.
    """
    folder = Path(work_dir)
    folder.mkdir(parents=True, exist_ok=True)
    log = (folder / f'out{rank}.txt').open('a')
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    torch.set_num_threads(1)
    launcher: dict[str, Any] = {}
    if port:
        os.environ.update(
            MASTER_ADDR='127.0.0.1',
            MASTER_PORT=str(port),
            WORLD_SIZE='2',
            RANK=str(rank),
            LOCAL_RANK=str(rank),
        )
        # mmengine itself would ask for a GPU.
        torch.distributed.init_process_group('gloo')
        launcher = dict(
            launcher='pytorch',
            env_cfg=dict(dist_cfg=dict(backend='gloo')),
        )
    if moment and rank == 0:
        Killer(moment)
    found = find_checkpoint(folder).found
    torch.manual_seed(3)
    data = ToyData(64)
    sampler = InfiniteSampler(data, seed=0)
    toy_runner(
        folder,
        model=MMDistributedDataParallel(TinyModel()) if port else TinyModel(),
        train_dataloader=DataLoader(data, batch_size=8, sampler=sampler),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop', max_iters=ITERATIONS
        ),
        optim_wrapper=dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='AdamW', lr=0.01),
        ),
        hooks=[
            dict(type='EMAHook'),
            # Every second checkpoint is written from a snapshot.
            dict(type='mmstable.DivergenceGuardHook', snapshot_interval=2),
        ],
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook',
                interval=1,
                by_epoch=False,
                max_keep_ckpts=2,
            ),
        ),
        load_from=None if found is None else str(found.path),
        resume=found is not None,
        **launcher,
    ).train()
    if port:
        torch.distributed.destroy_process_group()
