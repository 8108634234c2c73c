"""A small project that ``mmstable doctor --device`` trains, and breaks."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from mmstable.registry import DATASETS, HOOKS, MODELS
from mmstable.runner_view import device_of, is_resuming

# Iterations, counted from 1, of the faults.
NAN, OOM, STALL, ASSERT = 12, 16, 20, 24
ITERATIONS, STALL_S = 30, 4.0
# More than any device has.
_TOO_MUCH = 1 << 50


@DATASETS.register_module()
class SelfTestData(Dataset):
    """Noise in two classes."""

    metainfo: dict[str, Any] = {}

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        inputs = torch.randn(3, 16, 16, generator=generator)
        return dict(inputs=inputs, labels=(inputs.mean() > 0).long())


@MODELS.register_module()
class SelfTestNet(BaseModel):
    """Convolutions with BatchNorm and dropout."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(32, 2),
        )

    def forward(
        self, inputs: Tensor, labels: Tensor, mode: str = 'tensor'
    ) -> Any:
        """Compute the loss, or the logits."""
        logits = self.body(inputs)
        if mode == 'loss':
            return dict(loss=functional.cross_entropy(logits, labels))
        return logits


@HOOKS.register_module()
class SelfTestHook(Hook):
    """Inject faults, and write a digest of the state at the end.

    Args:
        faults (Sequence[str]): Of 'nan', 'oom', 'stall' and 'assert'.
            Defaults to ().
    """

    priority = 'VERY_LOW'

    def __init__(self, faults: Any = ()) -> None:
        self._faults = faults

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Inject the fault of this iteration."""
        iteration, faults = runner.iter + 1, self._faults
        if is_resuming(runner):
            return
        if iteration == NAN and 'nan' in faults:
            with torch.no_grad():
                next(runner.model.parameters()).fill_(float('nan'))
        if iteration == OOM and 'oom' in faults:
            self._handle = runner.model.register_forward_pre_hook(
                self._run_out_of_memory
            )
        if iteration == STALL and 'stall' in faults:
            time.sleep(STALL_S)
        if iteration == ASSERT and 'assert' in faults:
            data_batch['labels'][3] = 21

    def _run_out_of_memory(self, model: Any, *args: Any) -> None:
        """Fail once; the same batch fits when it is run again."""
        self._handle.remove()
        device = device_of(model)
        if device.type == 'cpu':
            # Linux promises a CPU more memory than there is.
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        torch.empty(_TOO_MUCH, dtype=torch.uint8, device=device)

    def after_train(self, runner: Any) -> None:
        """Write a digest of weights, buffers and optimizer state."""
        state = runner.optim_wrapper.optimizer.state_dict()['state']
        tensors = [
            *runner.model.state_dict().values(),
            *(one for held in state.values() for one in held.values()),
        ]
        digest = hashlib.sha256()
        for one in tensors:
            if isinstance(one, Tensor):
                digest.update(one.detach().cpu().contiguous().numpy().data)
        found = dict(
            digest=digest.hexdigest(), device=str(device_of(runner.model))
        )
        path = Path(runner.work_dir, 'self_test.json')
        path.write_text(json.dumps(found), encoding='utf-8')
