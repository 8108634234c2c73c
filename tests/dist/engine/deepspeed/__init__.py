"""A stand-in for DeepSpeed with the interface that mmengine uses.

One process, no ZeRO. A checkpoint is a folder with a file for the model and
one for the optimizer, as DeepSpeed's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

__version__ = '0.14.0'


class Engine(torch.nn.Module):
    def __init__(self, model: Any, optimizer: Any) -> None:
        super().__init__()
        self.module, self.optimizer = model, optimizer
        self.skipped_steps, self._scale = 0, 1024.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def loss_scale(self) -> float:
        return self._scale

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        grads = [p.grad for p in self.module.parameters()]
        if all(torch.isfinite(grad).all() for grad in grads):
            self.optimizer.step()
        else:
            self.skipped_steps, self._scale = (
                self.skipped_steps + 1,
                self._scale / 2,
            )
        self.optimizer.zero_grad()

    def save_checkpoint(
        self, folder: str, tag: str, client_state: Any, **kwargs: Any
    ) -> None:
        path = Path(folder, tag)
        path.mkdir(parents=True, exist_ok=True)
        model = dict(module=self.module.state_dict(), client=client_state)
        torch.save(model, path / 'mp_rank_00_model_states.pt')
        if os.environ.get('CUT_SAVE') == tag:
            os._exit(9)
        torch.save(self.optimizer.state_dict(), path / 'optim_states.pt')

    def load_checkpoint(
        self,
        folder: str,
        tag: str,
        load_optimizer_states: bool = True,
        **kwargs: Any,
    ) -> tuple[str, Any]:
        path = Path(folder, tag)
        model = torch.load(
            path / 'mp_rank_00_model_states.pt', weights_only=False
        )
        self.module.load_state_dict(model['module'])
        if load_optimizer_states:
            self.optimizer.load_state_dict(
                torch.load(path / 'optim_states.pt', weights_only=False)
            )
        return str(path), model['client']


def initialize(
    model: Any, optimizer: Any = None, config: Any = None
) -> tuple[Any, ...]:
    engine = Engine(model, optimizer)
    return engine, optimizer, None, None


def init_distributed(*args: Any, **kwargs: Any) -> None:
    pass
