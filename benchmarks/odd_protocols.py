"""Healthy runs of models that are hard to repeat, each with a wild batch.

A step that looks wrong is repeated before its update. These models keep
state that a repeated step could disturb: generators, queues, counters,
teachers, helper objects, several optimizers. All of them have to end as with
stock mmengine, random generators included.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.registry import MODELS, OPTIMIZERS
from protocols import (
    CLASSES,
    WIDTH,
    Protocol,
    ProtocolGan,
    ProtocolModel,
    objective,
)
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

# One batch whose inputs are so many times as large.
BURST = dict(type='AtIteration', at=120, what='burst', value=-1000.0)


@OPTIMIZERS.register_module()
class ProtocolLion(Optimizer):
    """Lion (Chen et al., 2023): the sign of a momentum.

    Args:
        params (Iterable): Parameters.
        lr (float): Learning rate. Defaults to 1e-3.
    """

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters."""
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state['exp_avg'] = torch.zeros_like(p)
                average = state['exp_avg']
                update = average.mul(0.9).add(p.grad, alpha=0.1).sign_()
                p.add_(update, alpha=-group['lr'])
                average.mul_(0.99).add_(p.grad, alpha=0.01)


@OPTIMIZERS.register_module()
class ProtocolAdafactor(Optimizer):
    """Adafactor (Shazeer and Stern, 2018): factored second moments.

    Args:
        params (Iterable): Parameters.
        lr (float): Learning rate. Defaults to 1e-2.
    """

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Update all parameters."""
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is None:
                    continue
                state, square = self.state[p], p.grad.square().add_(1e-30)
                if not state:
                    state['step'] = 0
                    state['row'] = torch.zeros_like(square.mean(-1))
                    state['col'] = torch.zeros_like(square.mean(0))
                state['step'] += 1
                decay = 1 - state['step'] ** -0.8
                state['row'].lerp_(square.mean(-1), 1 - decay)
                state['col'].lerp_(square.mean(0), 1 - decay)
                moment = state['row']
                if p.dim() > 1:
                    rows = state['row'] / state['row'].mean()
                    moment = rows[:, None] * state['col']
                update = p.grad / moment.clamp(min=1e-30).sqrt()
                update /= update.square().mean().sqrt().clamp(min=1.0)
                p.add_(update, alpha=-group['lr'])


@objective
def all_generators(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Draws from python's, numpy's and torch's generators."""
    noise = random.random() + float(np.random.rand()) + torch.rand(())
    return F.cross_entropy(
        y + 0.1 * noise * torch.randn_like(y), batch['label']
    )


@objective
def own_generator(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Draws from generators that the model owns."""
    if not hasattr(model, 'generators'):
        model.generators = (
            torch.Generator().manual_seed(1),
            np.random.default_rng(2),
            random.Random(3),
        )
    torchs, numpys, pythons = model.generators
    noise = torch.randn(y.shape, generator=torchs)
    factor = numpys.random() + pythons.random()
    return F.cross_entropy(y + 0.1 * factor * noise, batch['label'])


@objective
def rolling_level(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Divides its loss by a mean of the newest ones, kept in a deque."""
    if not hasattr(model, 'recent'):
        model.recent = deque(maxlen=10)
    loss = F.cross_entropy(y, batch['label'])
    model.recent.append(float(loss.detach()))
    return loss * len(model.recent) / sum(model.recent)


class _Curriculum:
    """A helper object with a counter, an iterator and a history."""

    def __init__(self) -> None:
        self.calls, self.seen = 0, []
        self.weights = iter(range(10**9))
        self.batches = _endless()

    def weight(self) -> float:
        """Count a call; the weight of the loss in it."""
        self.calls += 1
        self.seen.append(self.calls)
        count = next(self.weights) % 11 + next(self.batches) % 13
        return 1.0 + 0.001 * count + 0.001 * self.calls


def _endless() -> Iterator[int]:
    count = 0
    while True:
        count += 1
        yield count


@objective
def curriculum(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A loss weight from a helper object that counts and iterates."""
    if not hasattr(model, 'helper'):
        model.helper = _Curriculum()
    return F.cross_entropy(y, batch['label']) * model.helper.weight()


@objective
def in_place(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Writes to its batch."""
    batch['numbers'].add_(1.0).mul_(0.5)
    return F.mse_loss(y[:, :2], batch['numbers'])


@objective
def rarely_informative(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Zero in 95 of 100 steps, and then of any magnitude."""
    weight = 10.0 ** (step % 7 - 3) if step % 20 == 0 else 0.0
    return F.cross_entropy(y, batch['label']) * weight


@objective
def late_term(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A term of a thousandfold height appears, and goes again."""
    losses = dict(loss=F.cross_entropy(y, batch['label']))
    if 120 <= step < 140:
        losses['loss_late'] = 1e3 * F.l1_loss(y[:, :2], batch['numbers'])
    return losses


@MODELS.register_module()
class CheckpointedModel(ProtocolModel):
    """Recomputes its body, with BatchNorm and dropout, in backward."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(norm=True, drop=0.3, **settings)
        self.inner, self.body = self.body, self._recompute

    def __setattr__(self, name: str, value: Any) -> None:
        if name == 'body' and not isinstance(value, nn.Module):
            del self._modules['body']
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _recompute(self, inputs: Tensor) -> Tensor:
        return checkpoint(self.inner, inputs, use_reentrant=False)


@MODELS.register_module()
class MeanTeacher(BaseModel):
    """A student, and a teacher that follows it inside ``train_step``."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, CLASSES)
        )
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, inputs: Tensor, mode: str = 'tensor', **batch: Any):
        """Return outputs, or the losses."""
        y = self.student(inputs)
        if mode != 'loss':
            return y
        with torch.no_grad():
            for mine, others in zip(
                self.teacher.parameters(), self.student.parameters()
            ):
                mine.lerp_(others, 0.05)
            wanted = self.teacher(inputs + 0.1 * torch.randn_like(inputs))
        return dict(
            loss_class=F.cross_entropy(y, batch['label']),
            loss_teacher=F.mse_loss(y.softmax(1), wanted.softmax(1)),
        )


@MODELS.register_module()
class Contrastive(BaseModel):
    """A queue of keys in a buffer, and its place in another (MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, 16)
        self.register_buffer('queue', F.normalize(torch.randn(64, 16), dim=1))
        self.register_buffer('place', torch.zeros(1, dtype=torch.long))

    def forward(self, inputs: Tensor, mode: str = 'tensor', **batch: Any):
        """Return features, or the loss."""
        features = self.encoder(inputs)
        if mode != 'loss':
            return features
        keys = F.normalize(self.encoder(inputs.flip(1)), dim=1)
        near = (features * keys).sum(1, keepdim=True)
        logits = torch.cat([near, features @ self.queue.clone().T], 1)
        start = int(self.place)
        self.queue[start : start + len(keys)] = keys.detach()
        self.place[0] = (start + len(keys)) % len(self.queue)
        return dict(
            loss=F.cross_entropy(logits, torch.zeros(len(keys)).long())
        )


@MODELS.register_module()
class Spectral(ProtocolModel):
    """Weights divided by a norm that every forward pass refines."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.head = spectral_norm(self.head)


@MODELS.register_module()
class TwoSteps(ProtocolModel):
    """Updates twice an iteration with one optimizer."""

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        """Step for each half of the batch."""
        for half in (slice(0, 4), slice(4, 8)):
            part = {name: value[half] for name, value in data.items()}
            if self.steps == 239:
                # The first of both steps is as usual.
                part['inputs'] = part['inputs'] * -1000
            with optim_wrapper.optim_context(self):
                losses = self(**part, mode='loss')
            loss, logged = self.parse_losses(losses)
            optim_wrapper.update_params(loss)
        return logged


@MODELS.register_module()
class Unfrozen(ProtocolModel):
    """A body that is frozen until some step; then its gradients are huge."""

    def forward(self, inputs: Tensor, mode: str = 'tensor', **batch: Any):
        """Thaw the body in time."""
        for param in self.body.parameters():
            param.requires_grad_(self.steps >= 120)
        if mode == 'loss' and self.steps == 120:
            inputs = inputs * 300
        return super().forward(inputs, mode, **batch)


@MODELS.register_module()
class ThreeRates(ProtocolGan):
    """Three optimizers, stepped in every, third and seventh iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(WIDTH, 4)

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        """Step the parts whose turn it is."""
        self.steps += 1
        real = data['inputs']
        code = self.e(real)
        rates = dict(d=1, g=3, e=7)
        logged = {}
        for name, every in rates.items():
            if self.steps % every:
                continue
            one = optim_wrapper[name]
            with one.optim_context(self):
                fake = self.g(self.e(real) if name == 'e' else code.detach())
                sign = 1 if name == 'd' else -1
                loss = F.softplus(sign * self.d(fake)).mean()
                if name == 'd':
                    loss = loss + F.softplus(-self.d(real)).mean()
                if name == 'e':
                    loss = loss + 1e3 * F.mse_loss(fake, real)
            one.update_params(loss)
            logged[f'loss_{name}'] = loss.detach()
        return dict(loss=logged['loss_d'], **logged)


def _with_burst(task: str | None = None, **settings: Any) -> Protocol:
    model: dict[str, Any] = settings.pop('model', {})
    if task is not None:
        model = dict(model, task=task)
    settings = {'iterations': 140, **settings}
    return Protocol(model, hooks=[BURST], **settings)


_ADAM = dict(type='Adam', lr=2e-3)
ODD = {
    'three optimizers at three rates': Protocol(
        dict(type='ThreeRates'), _ADAM, iterations=140, hooks=[BURST]
    ),
    'a wild batch in a window of 2': _with_burst(
        wrapper=dict(accumulative_counts=2), iterations=141
    ),
    'a wild batch in an open window at the end': Protocol(
        wrapper=dict(accumulative_counts=8),
        hooks=[dict(BURST, at=138)],
        iterations=139,
    ),
    'rarely a loss, of any magnitude': _with_burst('rarely_informative'),
    'a term that appears and goes': _with_burst('late_term'),
    'recomputed activations': _with_burst(
        'late_term', model=dict(type='CheckpointedModel')
    ),
    'all generators': _with_burst('all_generators', model=dict(drop=0.3)),
    'generators of the model': _with_burst('own_generator'),
    'a rolling level': _with_burst('rolling_level'),
    'a helper with a counter and an iterator': _with_burst('curriculum'),
    'writes to its batch': _with_burst('in_place'),
    'a teacher': _with_burst(model=dict(type='MeanTeacher')),
    'a queue': _with_burst(model=dict(type='Contrastive')),
    'spectral norm': _with_burst(model=dict(type='Spectral')),
    'two steps an iteration': Protocol(dict(type='TwoSteps'), iterations=140),
    'Lion': _with_burst(optimizer=dict(type='ProtocolLion')),
    'Adafactor': _with_burst(optimizer=dict(type='ProtocolAdafactor')),
    'a body that is thawed': Protocol(dict(type='Unfrozen'), iterations=140),
    'an average of the weights': Protocol(
        dict(norm=True),
        hooks=[BURST, dict(type='EMAHook', update_buffers=True)],
        iterations=140,
    ),
}


@objective
def negative_reward(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A reward to be maximised, which begins near 0 and has no bound."""
    chosen = y.gather(1, batch['label'][:, None]).mean()
    return y.mean() - chosen


@objective
def negative_power(
    model: Any, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """The logarithm of a scale that falls below 0."""
    error = y[:, :2] - batch['numbers']
    # Its derivative pushes the parameter out of the domain.
    scale = 0.5 - model.head.bias[3].square()
    return scale.log() + error.square().mean()


@MODELS.register_module()
class DeadNet(ProtocolModel):
    """Units whose inputs are negative for every sample."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.body[0].bias.data.fill_(-100.0)


ODD['a reward without a bound'] = Protocol(
    dict(task='negative_reward'), dict(type='AdamW', lr=2e-2), iterations=300
)


def _spoil(what: str, **settings: Any) -> list[dict[str, Any]]:
    return [dict(type='AtIteration', at=120, what=what, **settings)]


ODD_SICK = {
    'optimizer state Inf by a hook': Protocol(hooks=_spoil('moments')),
    'running statistics NaN by a hook': Protocol(
        dict(norm=True), hooks=_spoil('statistics')
    ),
    'learning rate x 1e5 by a hook': Protocol(
        dict(task='regress'),
        dict(type='SGD', lr=0.01),
        hooks=_spoil('rate', value=1e5),
    ),
    'a parameter leaves the domain of its logarithm': Protocol(
        dict(task='negative_power'), dict(type='SGD', lr=1.0), iterations=300
    ),
    'NaN in 60 % of the samples': Protocol(
        data=dict(length=512, nan=0.6), iterations=400
    ),
    'three optimizers, learning rate 1e4': Protocol(
        dict(type='ThreeRates'), dict(type='SGD', lr=1e4), iterations=200
    ),
    'SGD, learning rate 5, a window of 4': Protocol(
        dict(task='regress', width=64),
        dict(type='SGD', lr=5.0),
        wrapper=dict(accumulative_counts=4),
    ),
    'gradient x 1000 with dropout and all generators': Protocol(
        dict(task='all_generators', drop=0.3),
        hooks=[
            dict(
                type='mmstable.FaultInjectorHook',
                enabled=True,
                faults=[dict(kind='spike_grad', at=[120, 150], factor=1000.0)],
            )
        ],
    ),
    'norms beyond float32': Protocol(
        dict(task='negative_reward'),
        dict(type='SGD', lr=0.03),
        iterations=300,
    ),
    'dead units': Protocol(
        dict(type='DeadNet'), dict(type='SGD', lr=0.1), iterations=1100
    ),
}
