"""A project that trains on the simulated device, and can be made to fail."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from mmstable.runner_view import is_resuming


@DATASETS.register_module()
class Noise(Dataset):
    """Images of noise, of two classes by their mean.

    Args:
        length (int): Number of samples. Defaults to 64.
        bad_label (int): Index of a sample whose label is no class; -1 for
            none. Defaults to -1.
    """

    metainfo: dict[str, Any] = {}

    def __init__(self, length: int = 64, bad_label: int = -1) -> None:
        generator = torch.Generator().manual_seed(length)
        self.x = torch.randn(length, 3, 6, 6, generator=generator)
        self.y = (self.x.mean((1, 2, 3)) > 0).long()
        if bad_label >= 0:
            self.y[bad_label] = 21

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(inputs=self.x[index], data_samples=self.y[index])


@MODELS.register_module()
class SmallNet(BaseModel):
    """Convolutions with BatchNorm and dropout.

    Args:
        depth (int): Number of convolutions. Defaults to 2.
        dropout (float): Of the features. Defaults to 0.1.
        width (int): Channels. Defaults to 4.
    """

    def __init__(
        self,
        depth: int = 2,
        dropout: float = 0.1,
        width: int = 4,
        data_preprocessor: Any = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor)
        channels = [3] + [width] * depth
        self.body = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(before, after, 3, padding=1),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                )
                for before, after in zip(channels, channels[1:])
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, 2)

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        features = self.body(torch.stack(list(inputs))).mean((2, 3))
        logits = self.head(self.dropout(features))
        if mode == 'loss':
            labels = torch.stack(list(data_samples))
            return dict(loss=functional.cross_entropy(logits, labels))
        return list(logits.argmax(1)) if mode == 'predict' else logits


@METRICS.register_module()
class CountSamples(BaseMetric):
    """Counts what it is given."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list[int]) -> dict[str, float]:
        return dict(samples=float(sum(results)))


def _simulator() -> Any:
    return sys.modules['tests.device.fakecuda']


@HOOKS.register_module()
class InjectHook(Hook):
    """Injects a fault into an iteration of a run that was not resumed.

    Args:
        at (int): Iterations done before it.
        kind (str): ``break``, ``hang``, ``oom``, ``nan_input``,
            ``nan_weight``, ``raise`` or the name of a signal.
        rank (int): The rank that suffers. Defaults to 0.
        room (int): With ``oom``, bytes that are left. Defaults to 0.
        **kwargs: Arguments of ``break_device``.
    """

    priority = 'VERY_LOW'

    def __init__(
        self, at: int, kind: str, rank: int = 0, room: int = 0, **kwargs: Any
    ) -> None:
        is_here = int(os.environ.get('RANK', '0')) == rank
        self._at = at if is_here else -9
        self._kind, self._room, self._kwargs = kind, room, kwargs

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        if runner.iter == self._at + 1 and self._kind == 'oom':
            _simulator().set_capacity(0)
        if runner.iter != self._at or is_resuming(runner):
            return
        if self._kind == 'break':
            _simulator().break_device(**self._kwargs)
        elif self._kind == 'hang':
            _simulator().hang_device()
        elif self._kind == 'oom':
            used = torch.cuda.memory_allocated()
            _simulator().set_capacity(used + self._room)
        elif self._kind == 'nan_input':
            # Not in place: the data set holds the same tensor.
            spoilt = torch.full_like(data_batch['inputs'][0], float('nan'))
            data_batch['inputs'][0] = spoilt
        elif self._kind == 'nan_weight':
            with torch.no_grad():
                next(runner.model.parameters()).flatten()[0].fill_(
                    float('nan')
                )
        elif self._kind == 'raise':
            raise KeyError('on purpose')
        else:
            os.kill(os.getpid(), getattr(signal, self._kind))


@HOOKS.register_module()
class CountHook(Hook):
    """Counts the work of the device over some iterations.

    Args:
        first (int): The first iteration, counted from 0. Defaults to 12.
        last (int): The first one after. Defaults to 20.
    """

    priority = 'HIGHEST'

    def __init__(self, first: int = 12, last: int = 20) -> None:
        self._first, self._last = first, last

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        if runner.iter == self._first:
            self._context = _simulator().counting(places=True)
            self._counts = self._context.__enter__()
        if runner.iter == self._last:
            self._context.__exit__(None, None, None)
            self._write(runner)

    def _write(self, runner: Any) -> None:
        simulator = _simulator()
        found = dict(
            vars(self._counts),
            iterations=self._last - self._first,
            pinned=simulator.pinned_bytes(),
        )
        path = Path(runner.work_dir) / 'counts.json'
        path.write_text(json.dumps(found))


@HOOKS.register_module()
class DigestHook(Hook):
    """Writes a digest of the state at the end, one for each rank."""

    priority = 'LOWEST'

    def after_train(self, runner: Any) -> None:
        from mmengine.hooks import EMAHook

        averages = [
            hook.ema_model.state_dict()
            for hook in runner.hooks
            if isinstance(hook, EMAHook)
        ]
        optimizer = runner.optim_wrapper.optimizer.state_dict()['state']
        found = dict(
            weights=_digest([dict(runner.model.named_parameters())]),
            buffers=_digest([dict(runner.model.named_buffers())]),
            averages=_digest(averages),
            optimizer=_digest(list(optimizer.values())),
            finite=all(
                bool(one.isfinite().all()) for one in runner.model.parameters()
            ),
            device=str(next(runner.model.parameters()).device),
        )
        simulator = sys.modules.get('tests.device.fakecuda')
        if simulator is not None:
            found['contexts'] = simulator.contexts()
        rank = os.environ.get('RANK', '0')
        path = Path(runner.work_dir) / f'digest.rank{rank}.json'
        path.write_text(json.dumps(found))


def _digest(states: list[dict[str, Any]]) -> str:
    found = hashlib.sha256()
    for state in states:
        for key in sorted(state):
            if isinstance(state[key], torch.Tensor):
                values = state[key].detach().cpu().contiguous()
                found.update(values.numpy().tobytes())
    return found.hexdigest()


@HOOKS.register_module()
class TermLaterHook(Hook):
    """Sends SIGTERM to this process while an iteration runs.

    Args:
        at (int): Iterations done before it.
    """

    def __init__(self, at: int) -> None:
        self._at = at

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        if runner.iter == self._at:
            send = partial(os.kill, os.getpid(), signal.SIGTERM)
            timer = threading.Timer(1.0, send)
            timer.daemon = True
            timer.start()
