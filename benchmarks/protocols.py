"""Small training protocols: healthy ones that look odd, and sick ones.

A healthy protocol has to end bit-equal to stock mmengine under the default
protection, whatever its losses and gradients look like. A sick one has to be
saved, or stopped with the reason. :func:`compare` runs one in both ways.
"""

from __future__ import annotations

import copy
import itertools
import json
import logging
import math
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, random
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MMLogger
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from mmengine.registry import (
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
)
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmstable.protection import apply_changes, find_changes

_RUNS = itertools.count()
WIDTH, CLASSES = 8, 4


@DATASETS.register_module()
class ProtocolData(Dataset):
    """Vectors with a class and two numbers to be learned.

    Args:
        length (int): Samples. Defaults to 256.
        rare (float): Share of the second of two classes; 0 for four classes
            of about the same size. Defaults to 0.0.
        nan (float): Share of samples that hold NaN. Defaults to 0.0.
        outlier (float): Factor on the numbers of one sample. Defaults to
            1.0.
    """

    def __init__(
        self,
        length: int = 256,
        rare: float = 0.0,
        nan: float = 0.0,
        outlier: float = 1.0,
    ) -> None:
        draw = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, WIDTH, generator=draw)
        self.labels = self.inputs[:, :CLASSES].argmax(1)
        if rare:
            chance = torch.rand(length, generator=draw)
            self.labels = (chance < rare).long()
            self.inputs += 0.5 * self.labels[:, None]
        x = self.inputs
        self.numbers = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)
        self.numbers[length // 2] *= outlier
        self.bad = torch.rand(length, generator=draw) < nan
        self.inputs[self.bad, 0] = math.nan

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(
            inputs=self.inputs[index],
            label=self.labels[index],
            numbers=self.numbers[index],
            index=index,
        )


# Called with the model, its outputs, the batch, and the number of the step.
Objective = Callable[['ProtocolModel', Tensor, dict[str, Tensor], int], Any]
OBJECTIVES: dict[str, Objective] = {}


def objective(function: Objective) -> Objective:
    """Make an objective known by the name of its function."""
    OBJECTIVES[function.__name__] = function
    return function


@MODELS.register_module()
class ProtocolModel(BaseModel):
    """A small network whose loss is one of :data:`OBJECTIVES`.

    Args:
        task (str): The name of the objective. Defaults to 'classify'.
        norm (bool): Whether it normalises batches. Defaults to False.
        drop (float): Share of features to drop. Defaults to 0.0.
        width (int): Features. Defaults to 32.
        **settings: For the objective.
    """

    def __init__(
        self,
        task: str = 'classify',
        norm: bool = False,
        drop: float = 0.0,
        width: int = 32,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.task, self.settings = task, settings
        self.steps, self.weight = 0, 0.0
        self.body = nn.Sequential(
            nn.Linear(WIDTH, width),
            nn.BatchNorm1d(width) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Dropout(drop),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, CLASSES)
        self.register_buffer('means', torch.zeros(CLASSES + 1, WIDTH))

    def forward(
        self, inputs: Tensor, mode: str = 'tensor', **batch: Tensor
    ) -> Any:
        """Return outputs, or the losses of the objective."""
        outputs = self.head(self.body(inputs))
        if mode != 'loss':
            return outputs
        self.steps += 1
        batch['inputs'] = inputs
        found = OBJECTIVES[self.task](self, outputs, batch, self.steps)
        return found if isinstance(found, dict) else dict(loss=found)


@objective
def classify(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Four classes."""
    return F.cross_entropy(y, batch['label'])


@objective
def regress(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Two numbers."""
    return F.mse_loss(y[:, :2], batch['numbers'])


@objective
def sparse_reward(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A policy gradient whose reward is 0 in nearly all steps."""
    policy = torch.distributions.Categorical(logits=y)
    action = policy.sample()
    reward = ((action == batch['label']) & (batch['label'] == 3)).float()
    if step % model.settings.get('every', 20):
        reward = reward * 0
    return -(policy.log_prob(action) * reward).mean() * 10


@objective
def detect(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A focal loss, and boxes in 4 % of the images."""
    has_object = (batch['index'] % 25 == 0).float()
    score = y[:, 0] - 4.6
    loss = F.binary_cross_entropy_with_logits(
        score, has_object, reduction='none'
    )
    chance = torch.where(has_object > 0, score.sigmoid(), -score).sigmoid()
    box = F.smooth_l1_loss(y[:, 1:3], 4 * batch['numbers'], reduction='none')
    return dict(
        loss_cls=((1 - chance) ** 2 * loss).sum(),
        loss_box=5 * (box.sum(1) * has_object).sum(),
    )


@objective
def two_datasets(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Every fortieth batch is of another dataset, with a larger loss."""
    if step % model.settings.get('every', 40):
        return F.cross_entropy(y, batch['label'])
    error = y[:, :2] - 30 * batch['numbers']
    return error.square().sum(1).mean() * model.settings.get('factor', 3.0)


@objective
def weighted(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A term whose weight a hook raises."""
    return dict(
        loss=F.cross_entropy(y, batch['label']),
        loss_aux=model.weight * F.mse_loss(y[:, :2], batch['numbers']),
    )


@objective
def second_task(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Other classes from some step on."""
    is_second = step > model.settings.get('at', 150)
    return F.cross_entropy(y, batch['label'] % 2 + 2 * is_second)


@objective
def l1_late(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """YOLOX: another term and other data near the end."""
    losses = dict(loss_cls=F.cross_entropy(y, batch['label']))
    if step > model.settings.get('at', 200):
        losses['loss_l1'] = 5 * F.l1_loss(y[:, :2], batch['numbers'])
    return losses


@objective
def summed(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A sum over batches of two sizes."""
    size = 2 if step <= model.settings.get('at', 150) else len(y)
    return F.cross_entropy(y[:size], batch['label'][:size], reduction='sum')


@objective
def often_zero(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Zero in four of five steps."""
    return F.cross_entropy(y, batch['label']) * float(step % 5 == 0)


@objective
def class_means(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """Keeps a mean of each class; one of them has no samples: 0/0."""
    hot = F.one_hot(batch['label'], CLASSES + 1).float()
    model.means.copy_((hot.T @ batch['inputs']) / hot.sum(0)[:, None])
    return F.cross_entropy(y, batch['label'])


@objective
def scaled(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A loss of any magnitude."""
    return F.cross_entropy(y, batch['label']) * model.settings['by']


@objective
def density(
    model: ProtocolModel, y: Tensor, batch: dict[str, Tensor], step: int
) -> Any:
    """A likelihood, whose logarithm goes far below 0."""
    centre, spread = y.chunk(2, 1)
    error = (0.01 * batch['inputs'][:, :2] - centre) / spread.exp()
    return (0.5 * error.square() + spread).sum(1).mean()


@MODELS.register_module()
class ProtocolGan(BaseModel):
    """StyleGAN2's schedule: a penalty in every sixteenth step.

    Args:
        gamma (float): The weight of the penalty. Defaults to 10.0.
    """

    def __init__(self, gamma: float = 10.0) -> None:
        super().__init__()
        self.g = nn.Sequential(
            nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, WIDTH)
        )
        self.d = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)
        )
        self.gamma, self.steps = gamma, 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: it is trained by :meth:`train_step`."""
        raise NotImplementedError

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        """Step the discriminator, its penalty, and the generator."""
        self.steps += 1
        real, noise = data['inputs'], torch.randn(len(data['inputs']), 4)
        d, g = optim_wrapper['d'], optim_wrapper['g']
        with d.optim_context(self):
            fake = self.d(self.g(noise).detach())
            loss_d = F.softplus(fake).mean() + F.softplus(-self.d(real)).mean()
        d.update_params(loss_d)
        if self.steps % 16 == 0:
            with d.optim_context(self):
                seen = real.detach().requires_grad_()
                (slope,) = torch.autograd.grad(
                    self.d(seen).sum(), seen, create_graph=True
                )
                penalty = slope.square().sum(1).mean() * self.gamma / 2 * 16
            d.update_params(penalty)
        with g.optim_context(self):
            loss_g = F.softplus(-self.d(self.g(noise))).mean()
        g.update_params(loss_g)
        return dict(loss=loss_d.detach(), loss_g=loss_g.detach())


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class ProtocolWrappers:
    """One wrapper for each part of :class:`ProtocolGan`."""

    def __init__(self, optim_wrapper_cfg: Any, paramwise_cfg: Any = None):
        self._settings = optim_wrapper_cfg

    def __call__(self, model: Any) -> OptimWrapperDict:
        """Build a wrapper for each part."""
        return OptimWrapperDict(
            **{
                name: build_optim_wrapper(getattr(model, name), dict(one))
                for name, one in self._settings.items()
            }
        )


@MODELS.register_module()
class ProtocolTransformer(BaseModel):
    """Post-norm blocks, which need a warm-up.

    Args:
        depth (int): Blocks. Defaults to 6.
    """

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True
        )
        self.embed = nn.Linear(1, 32)
        self.blocks = nn.TransformerEncoder(
            layer, depth, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(
        self, inputs: Tensor, mode: str = 'tensor', **batch: Tensor
    ) -> Any:
        """Return outputs, or the loss."""
        features = self.blocks(self.embed(inputs[..., None]))
        y = self.head(features.mean(1))
        if mode != 'loss':
            return y
        return dict(loss=F.cross_entropy(y, batch['label']))


@HOOKS.register_module()
class AtIteration(Hook):
    """Changes a run in one iteration.

    Args:
        at (int): The iteration, from 1.
        what (str): 'weight' of a term of the loss, 'scale' of the inputs
            from then on, 'burst' for one batch, 'blow' or 'nan' for weights
            of the model, its 'statistics', 'moments' of the optimizer, or
            the learning 'rate'.
        value (float): What it becomes, or is multiplied by. Defaults to 0.0.
    """

    def __init__(self, at: int, what: str, value: float = 0.0) -> None:
        self.at, self.what, self.value = at, what, value

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        """Change the run."""
        now = runner.iter + 1
        if self.what == 'scale' and now >= self.at:
            data_batch['inputs'] = data_batch['inputs'] * self.value
        if now != self.at:
            return
        if self.what == 'weight':
            runner.model.weight = self.value
        elif self.what == 'burst':
            data_batch['inputs'] = data_batch['inputs'] * self.value
        elif self.what == 'blow':
            runner.model.head.weight.data.mul_(self.value)
        elif self.what == 'nan':
            runner.model.head.weight.data[0, 0] = math.nan
        elif self.what == 'statistics':
            runner.model.body[1].running_var[0] = math.nan
        elif self.what == 'moments':
            state = runner.optim_wrapper.optimizer.state
            next(iter(state.values()))['exp_avg_sq'].fill_(math.inf)
        elif self.what == 'rate':
            for group in runner.optim_wrapper.param_groups:
                group['lr'] *= self.value


@dataclass
class Protocol:
    """A run of a few hundred iterations.

    Args:
        model (dict): Settings of the model. Defaults to {}.
        optimizer (dict): Settings of the optimizer. Defaults to AdamW.
        data (dict): Settings of the data. Defaults to {}.
        batch (int): Samples in a batch. Defaults to 8.
        iterations (int): Its length. Defaults to 300.
        wrapper (dict): Settings of the optimizer wrapper. Defaults to {}.
        schedule (list): Schedules of the learning rate. Defaults to [].
        hooks (list): Hooks. Defaults to [].
        seed (int): Of all random numbers. Defaults to 0.
    """

    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(
        default_factory=lambda: dict(type='AdamW', lr=1e-3)
    )
    data: dict[str, Any] = field(default_factory=dict)
    batch: int = 8
    iterations: int = 300
    wrapper: dict[str, Any] = field(default_factory=dict)
    schedule: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[dict[str, Any]] = field(default_factory=list)
    seed: int = 0

    def config(self) -> Config:
        """The config of a run with stock mmengine."""
        one = dict(type='OptimWrapper', optimizer=self.optimizer)
        wrapper = {**one, **self.wrapper}
        if self.model.get('type') == 'ProtocolGan':
            wrapper = dict(
                constructor='ProtocolWrappers', d=dict(one), g=dict(one)
            )
        elif self.model.get('type') == 'ThreeRates':
            wrapper = dict(constructor='ProtocolWrappers')
            wrapper.update(d=dict(one), g=dict(one), e=dict(one))
        settings = dict(
            model={'type': 'ProtocolModel', **self.model},
            train_dataloader=dict(
                batch_size=self.batch,
                num_workers=0,
                dataset={'type': 'ProtocolData', **self.data},
                sampler=dict(type='InfiniteSampler', seed=self.seed),
                collate_fn=dict(type='default_collate'),
            ),
            train_cfg=dict(
                by_epoch=False,
                max_iters=self.iterations,
                val_interval=10**9,
            ),
            optim_wrapper=wrapper,
            randomness=dict(seed=self.seed),
            default_scope='mmengine',
            log_level='CRITICAL',
            default_hooks=dict(checkpoint=None, logger=None),
            custom_hooks=list(self.hooks),
        )
        if self.schedule:
            settings['param_scheduler'] = list(self.schedule)
        return Config(copy.deepcopy(settings))


class _Notes(Hook):
    priority = 'LOWEST'

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_train_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        self.losses.append(float(outputs['loss'].detach()))


@dataclass
class Result:
    """What became of a run.

    Args:
        losses (list[float]): Of all iterations.
        state (dict[str, Tensor]): Weights, buffers and optimizer state.
        error (str): The class and text of an exception, or ''.
        events (list[dict]): The event file.
    """

    losses: list[float]
    state: dict[str, Tensor]
    error: str
    events: list[dict[str, Any]]

    def count(self, event: str, key: str) -> Counter[str]:
        """How often each value of a key comes in events of one kind."""
        return Counter(
            one[key] for one in self.events if one['event'] == event
        )

    @property
    def end(self) -> float:
        """The mean of the last ten losses that are finite."""
        finite = [one for one in self.losses if math.isfinite(one)][-10:]
        return sum(finite) / len(finite) if finite else math.nan


def run_stock(protocol: Protocol) -> Result:
    """Train with mmengine alone."""
    config = protocol.config()
    config.custom_hooks = [
        one for one in config.custom_hooks if 'mmstable' not in one['type']
    ]
    return _run(config)


def run_protected(protocol: Protocol, preset: str = 'default') -> Result:
    """Train as ``mmstable train`` does."""
    config = protocol.config()
    found = find_changes(config._cfg_dict.to_dict(), preset)
    apply_changes(config._cfg_dict, found.changes)
    hooks = [*config.default_hooks.values(), *config.custom_hooks]
    for hook in hooks:
        if hook and hook['type'].endswith('DivergenceGuardHook'):
            # The one that it chooses depends on the load of the machine.
            hook['snapshot_interval'] = 50
    return _run(config)


def _run(config: Config) -> Result:
    with tempfile.TemporaryDirectory(prefix='protocol_') as folder:
        config.work_dir = folder
        config.experiment_name = f'protocol_{os.getpid()}_{next(_RUNS)}'
        runner, notes, error = Runner.from_cfg(config), _Notes(), ''
        runner.register_hook(notes)
        try:
            runner.train()
        except Exception as problem:
            error = f'{type(problem).__name__}: {problem}'
        events = [
            json.loads(line)
            for path in Path(folder).glob('*/stability/events.jsonl')
            for line in path.read_text(encoding='utf-8').splitlines()
        ]
        state = dict(_state(runner))
        # Close the files of the folder.
        logger = MMLogger.get_instance(config.experiment_name)
        for handler in logger.handlers:
            handler.close()
        logger.handlers = [logging.NullHandler()]
        return Result(notes.losses, state, error, events)


def _state(runner: Any) -> Any:
    yield 'torch generator', torch.get_rng_state()
    yield 'numpy generator', torch.tensor(np.random.rand(4))
    yield 'python generator', torch.tensor(random())
    for name, value in runner.model.state_dict().items():
        yield name, value.clone()
    wrapper = runner.optim_wrapper
    many = isinstance(wrapper, OptimWrapperDict)
    for name, one in wrapper.items() if many else [('', wrapper)]:
        saved = one.optimizer.state_dict()['state']
        for index, values in saved.items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    yield f'{name}.{index}.{key}', value.clone()


def is_equal(one: Result, other: Result, rounding: float = 0.0) -> bool:
    """Whether two runs had the same losses, and end bit-equal.

    Args:
        one (Result): A run.
        other (Result): Another one.
        rounding (float): If positive, losses may differ by this share of the
            largest one, and the rest is not compared. Defaults to 0.0.
    """
    if one.error or other.error or len(one.losses) != len(other.losses):
        return False
    if rounding:
        most = rounding * max(map(abs, one.losses))
        pairs = zip(one.losses, other.losses)
        return all(abs(mine - theirs) <= most for mine, theirs in pairs)
    return (
        one.losses == other.losses
        and one.state.keys() == other.state.keys()
        and all(
            torch.equal(value.nan_to_num(), other.state[name].nan_to_num())
            for name, value in one.state.items()
        )
    )


def rounding_of(protocol: Protocol) -> float:
    """What mmstable may differ by: clipping is folded into the update."""
    return 1e-2 if protocol.wrapper.get('clip_grad') else 0.0


def is_healthy(stock: Result) -> bool:
    """Whether a run with mmengine alone is one that has to stay as it is.

    A run is sick if a loss is not finite, or if five in a row are above 1000
    times those of the start.
    """
    first = [abs(one) for one in stock.losses if one][:5]
    level = sorted(first)[len(first) // 2] if first else 0.0
    exploded = [not one <= 1e3 * level for one in stock.losses]
    return not stock.error and not any(
        all(exploded[place : place + 5]) for place in range(len(exploded) - 4)
    )


_RESTARTS = dict(
    type='CosineRestartLR',
    periods=[200] * 4,
    restart_weights=[1] * 4,
    eta_min=0,
    by_epoch=False,
)
_RAISED = dict(type='AtIteration', at=150, what='weight')

HEALTHY = {
    'policy gradient, sparse reward': Protocol(
        dict(task='sparse_reward'), batch=16, iterations=600
    ),
    'rare class of 3 %, batch of 1': Protocol(
        optimizer=dict(type='AdamW', lr=3e-3),
        data=dict(length=2000, rare=0.03),
        batch=1,
        iterations=1000,
    ),
    'rare class of 0.5 %, batch of 1': Protocol(
        optimizer=dict(type='AdamW', lr=3e-3),
        data=dict(length=4000, rare=0.005),
        batch=1,
        iterations=2000,
    ),
    'objects in 4 % of the images': Protocol(
        dict(task='detect'), data=dict(length=500), batch=1, iterations=800
    ),
    'another dataset in every 40th batch': Protocol(
        dict(task='two_datasets'), iterations=400
    ),
    'StyleGAN2, R1 of 10': Protocol(
        dict(type='ProtocolGan'),
        dict(type='Adam', lr=2e-3, betas=(0.0, 0.99)),
        batch=32,
    ),
    'StyleGAN2, R1 of 100': Protocol(
        dict(type='ProtocolGan', gamma=100.0),
        dict(type='Adam', lr=2e-3, betas=(0.0, 0.99)),
        batch=32,
    ),
    'clipped to 1, thousandfold norms': Protocol(
        dict(task='two_datasets', every=7, factor=300.0),
        wrapper=dict(clip_grad=dict(max_norm=1.0)),
    ),
    'loss weight 0 to 10': Protocol(
        dict(task='weighted'), hooks=[dict(_RAISED, value=10.0)]
    ),
    'loss weight 0 to 40': Protocol(
        dict(task='weighted'), hooks=[dict(_RAISED, value=40.0)]
    ),
    'loss weight 0 to 100': Protocol(
        dict(task='weighted'), hooks=[dict(_RAISED, value=100.0)]
    ),
    'a second task': Protocol(
        dict(task='second_task'),
        dict(type='AdamW', lr=1e-2),
        data=dict(length=64),
        batch=64,
    ),
    'a second loss joins (YOLOX)': Protocol(dict(task='l1_late')),
    'another data pipeline (RTMDet)': Protocol(
        hooks=[dict(type='AtIteration', at=200, what='scale', value=4.0)]
    ),
    'summed loss, batch of 2 to 128': Protocol(dict(task='summed'), batch=128),
    'warm restarts of a fitted regression': Protocol(
        dict(task='regress', width=64),
        dict(type='AdamW', lr=1e-2, weight_decay=0),
        data=dict(length=16),
        batch=16,
        iterations=800,
        schedule=[_RESTARTS],
    ),
    'slingshots of full-batch Adam': Protocol(
        dict(task='regress', width=64),
        dict(type='Adam', lr=1e-2),
        data=dict(length=16),
        batch=16,
        iterations=1200,
    ),
    'NaN in a buffer of class means': Protocol(dict(task='class_means')),
    'zero in four of five steps': Protocol(dict(task='often_zero')),
    'a likelihood far below 0': Protocol(
        dict(task='density'), dict(type='AdamW', lr=3e-3), iterations=500
    ),
    'a loss of 1e-30': Protocol(dict(task='scaled', by=1e-30)),
    'a loss of 1e12': Protocol(dict(task='scaled', by=1e12)),
}


def _inject(kind: str, *at: int) -> list[dict[str, Any]]:
    faults = [dict(kind=kind, at=list(at), factor=1000.0)]
    hook = dict(type='mmstable.FaultInjectorHook', enabled=True, faults=faults)
    return [hook]


_REGRESS = dict(task='regress', width=64)
_TEN = tuple(range(100, 400, 30))
SICK = {
    'SGD, learning rate 5': Protocol(_REGRESS, dict(type='SGD', lr=5.0)),
    'SGD, learning rate 1.5, momentum': Protocol(
        _REGRESS, dict(type='SGD', lr=1.5, momentum=0.9)
    ),
    'loss x 1000, once': Protocol(hooks=_inject('spike_loss', 200)),
    'loss x 1000, ten times': Protocol(
        hooks=_inject('spike_loss', *_TEN), iterations=450
    ),
    'gradient x 1000, once': Protocol(hooks=_inject('spike_grad', 200)),
    'gradient x 1000, ten times': Protocol(
        hooks=_inject('spike_grad', *_TEN), iterations=450
    ),
    'a bad sample, SGD without clipping': Protocol(
        _REGRESS,
        dict(type='SGD', lr=0.05),
        data=dict(length=2000, outlier=1e5),
        iterations=1000,
    ),
    'a transformer without warm-up': Protocol(
        dict(type='ProtocolTransformer'),
        dict(type='SGD', lr=3.0, momentum=0.9),
        batch=32,
    ),
    'weights NaN by a hook': Protocol(
        hooks=[dict(type='AtIteration', at=120, what='nan')]
    ),
    'weights x 1e6 by a hook': Protocol(
        hooks=[dict(type='AtIteration', at=120, what='blow', value=1e6)]
    ),
    'NaN in 1 % of the samples': Protocol(
        data=dict(length=512, nan=0.01), iterations=600
    ),
    'NaN in 3 % of the samples': Protocol(
        data=dict(length=512, nan=0.03), iterations=600
    ),
}


def random_healthy(seed: int) -> Protocol:
    """Draw a protocol; nearly all of them are healthy."""
    draw = Random(seed)
    task = draw.choice(
        [
            *('classify', 'regress', 'sparse_reward', 'detect'),
            *('two_datasets', 'weighted', 'second_task', 'l1_late'),
            *('summed', 'often_zero', 'class_means', 'scaled', 'density'),
        ]
    )
    at = draw.randint(60, 110)
    model: dict[str, Any] = dict(
        task=task,
        norm=draw.random() < 0.3,
        drop=draw.choice([0.0, 0.0, 0.3]),
        width=draw.choice([16, 32, 64]),
        every=draw.choice([7, 20, 40, 90]),
        factor=10.0 ** draw.uniform(-1, 3),
        by=10.0 ** draw.uniform(-20, 12),
        at=at,
    )
    optimizer = draw.choice(
        [
            dict(type='AdamW', lr=10 ** draw.uniform(-4, -2)),
            dict(type='Adam', lr=10 ** draw.uniform(-4, -2)),
            dict(type='RMSprop', lr=10 ** draw.uniform(-4, -3)),
            dict(type='SGD', lr=10 ** draw.uniform(-4, -2), momentum=0.9),
        ]
    )
    clip = draw.choice([None, None, dict(max_norm=10 ** draw.uniform(-1, 2))])
    hooks = []
    if task == 'weighted':
        value = 10 ** draw.uniform(0, 3)
        hooks.append(dict(_RAISED, at=at, value=value))
    if draw.random() < 0.15:
        value = draw.choice([0.1, 4.0, 10.0])
        hooks.append(
            dict(type='AtIteration', at=at, what='scale', value=value)
        )
    if draw.random() < 0.15:
        hooks.append(dict(type='EMAHook'))
    schedule = draw.choice(
        [
            [],
            [dict(type='LinearLR', start_factor=0.1, end=50, by_epoch=False)],
            [dict(_RESTARTS, periods=[60] * 3, restart_weights=[1] * 3)],
            [dict(type='MultiStepLR', milestones=[at], by_epoch=False)],
        ]
    )
    # Batches of one have no statistics.
    sizes = [4, 8, 32] if model['norm'] else [1, 4, 8, 32]
    rare = draw.choice([0.0, 0.0, 0.03])
    return Protocol(
        model,
        optimizer,
        dict(length=draw.choice([16, 256, 1000]), rare=rare),
        draw.choice(sizes),
        150,
        dict(
            clip_grad=clip,
            accumulative_counts=draw.choice([1, 1, 1, 2]),
        ),
        copy.deepcopy(schedule),
        hooks,
        seed,
    )
