"""Runs of ``mmstable train`` that start in no time, to be killed for real.

Each is a process of its own, forked from one that has imported everything.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import config
from mmengine.model import BaseModel
from mmengine.registry import DATA_SAMPLERS, DATASETS, MODELS
from torch.utils.data import Dataset, Sampler

from mmstable import register_all
from mmstable.cli.main import main

register_all()
# What a run imports late.
for _name in (
    'matplotlib.pyplot',
    'mmstable.cli.mistakes',
    'mmstable.cli.train',
    'torch._dynamo',
):
    importlib.import_module(_name)


def _unformatted(text: str, **kwargs: Any) -> tuple[str, bool]:
    return text, True


# mmengine tidies the config up for every checkpoint, which takes four times
# as long as all else.
config.FormatCode = _unformatted


@DATASETS.register_module()
class WarmData(Dataset):
    """Samples with noise of all generators, unless told otherwise."""

    metainfo: dict[str, Any] = {}

    def __init__(self, noise: bool) -> None:
        self.noise = noise

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs = torch.full((8,), int(index) / 23)
        if self.noise:
            inputs += random.random() + float(torch.rand(()))
            inputs += float(np.random.rand())
        return dict(inputs=inputs)


@DATA_SAMPLERS.register_module()
class DiceSampler(Sampler):
    """Its order comes from a generator of its own."""

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        self.dice = np.random.default_rng(7)

    def __len__(self) -> int:
        return 23

    def __iter__(self):
        return iter(self.dice.permutation(23).tolist())


@DATA_SAMPLERS.register_module()
class TorchSampler(torch.utils.data.RandomSampler):
    """Its order comes from torch's own generator."""

    def __init__(self, dataset: Any, seed: int | None = None) -> None:
        super().__init__(dataset)


@MODELS.register_module()
class WarmModel(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 64),
            torch.nn.BatchNorm1d(64),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(64, 1),
        )

    def forward(self, inputs, mode='tensor'):
        out = self.layers(inputs)
        if mode == 'loss':
            return dict(loss=out.float().square().mean())
        return out


class WarmRun:
    """A training in the background.

    Args:
        config: The config file.
        work_dir: The work directory.
        log: The file for all that it prints.
    """

    def __init__(self, config: Path, work_dir: Path, log: Path) -> None:
        context = multiprocessing.get_context('forkserver')
        context.set_forkserver_preload(['tests.chaos.warm'])
        self._process = context.Process(
            target=_train, args=(str(config), str(work_dir), str(log))
        )
        self._process.start()

    def wait(self, seconds: float) -> int | None:
        """The exit code, or None if it still runs by then."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self, with_workers: bool) -> None:
        """SIGKILL, to it alone or to all that it has started as well."""
        pid = self._process.pid
        try:
            (os.killpg if with_workers else os.kill)(pid, signal.SIGKILL)
        except ProcessLookupError:
            # It has no group of its own yet.
            self._process.kill()
        self._process.join()


def _train(config: str, work_dir: str, log: str) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1), os.dup2(out, 2)
    torch.set_num_threads(1)
    os._exit(main(['train', config, '--work-dir', work_dir, '--resume']))
