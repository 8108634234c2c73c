"""A tiny model and data set that train for real, and can be made to fail."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dataset import InfiniteSampler
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, Dataset

NAN, INF = float('nan'), float('inf')
_RUNS = itertools.count()


class ToyNet(nn.Module):
    """Two layers with a norm between them, in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.backbone(x)).relu())


def toy_net(seed: int = 0) -> ToyNet:
    torch.manual_seed(seed)
    return ToyNet()


def toy_batch(index: int, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + index)
    x = torch.randn(size, 4, generator=generator)
    return x, x[:, :2].sin() + 0.1 * torch.randn(size, 2, generator=generator)


class ToyModel(BaseModel):
    """``ToyNet`` as mmengine wants it."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.net = toy_net(seed)

    def forward(self, inputs, targets, mode='tensor'):
        outputs = self.net(inputs)
        if mode == 'loss':
            return dict(loss=(outputs.float() - targets).square().mean())
        return outputs


class ToyData(Dataset):
    """Batches of one, always the same."""

    def __init__(self, length: int = 16) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x, y = toy_batch(index, size=1)
        return dict(inputs=x[0], targets=y[0])


class Sabotage(Hook):
    """Spoil given iterations (counted from 1, as in the log).

    Args:
        inputs: Iterations whose input becomes Inf.
        loss: Iterations whose loss becomes NaN.
        grads: Iteration to (parameter name, value) for its gradient.
    """

    priority = 'HIGHEST'

    def __init__(self, inputs=(), loss=(), grads=None) -> None:
        self.inputs, self.loss, self.grads = inputs, loss, grads or {}
        self._handles: list[Any] = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        model, iteration = runner.model, runner.iter + 1
        if iteration in self.inputs:
            data_batch['inputs'][0] = INF
        if iteration in self.loss:
            self._handles.append(
                model.register_forward_hook(
                    lambda *a: {k: v * NAN for k, v in a[2].items()}
                )
            )
        if iteration in self.grads:
            name, value = self.grads[iteration]
            self._handles.append(spoil_gradient(model, name, value))

    def after_train_iter(self, runner, *args, **kwargs):
        while self._handles:
            self._handles.pop().remove()


def spoil_gradient(model: nn.Module, name: str, value: float) -> Any:
    """Put ``value`` into one gradient entry until the handle is removed."""

    def spoil(grad):
        grad = grad.clone()
        grad.view(-1)[0] = value
        return grad

    return dict(model.named_parameters())[name].register_hook(spoil)


@contextmanager
def spoiled(model: nn.Module, name: str | None, value: float):
    handle = None if name is None else spoil_gradient(model, name, value)
    yield
    if handle is not None:
        handle.remove()


def toy_runner(
    work_dir: Path | str,
    optim_wrapper: Any = None,
    max_iters: int = 6,
    hooks: tuple = (),
    shuffle: bool = False,
    **kwargs: Any,
) -> Runner:
    """A quiet ``Runner`` on the toy data, with two samples a batch."""
    data = ToyData()
    settings = dict(
        model=ToyModel(),
        work_dir=str(work_dir),
        train_dataloader=DataLoader(
            data,
            batch_size=2,
            sampler=InfiniteSampler(data, shuffle=shuffle, seed=0),
        ),
        train_cfg=dict(
            by_epoch=False, max_iters=max_iters, val_interval=10**6
        ),
        optim_wrapper=optim_wrapper
        or dict(
            type='mmstable.SafeOptimWrapper',
            optimizer=dict(type='SGD', lr=0.1, momentum=0.9),
        ),
        custom_hooks=list(hooks),
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=10**6),
            logger=dict(type='LoggerHook', interval=1),
        ),
        randomness=dict(seed=0),
        # mmengine keeps loggers and hubs by this name for ever.
        experiment_name=f'toy_{next(_RUNS)}',
    )
    settings.update(kwargs)
    return Runner(**settings, cfg=Config(dict()))


def read_saved(path: Path | str) -> Any:
    """What a checkpoint of ours holds, by torch's own loader."""
    return torch.load(path, weights_only=False)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def assert_same(left: Any, right: Any, path: str = '') -> None:
    """Bit-wise equality of nested state."""
    if torch.is_tensor(left):
        assert torch.equal(left, right), f'{path} differs'
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), f'{path} has other keys'
        for key in left:
            assert_same(left[key], right[key], f'{path}/{key}')
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right), f'{path} has another length'
        for index, (a, b) in enumerate(zip(left, right)):
            assert_same(a, b, f'{path}/{index}')
    else:
        assert left == right, f'{path}: {left} != {right}'
