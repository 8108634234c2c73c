"""Configs of stock mmengine, and what a healthy run of them is like."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from torch import nn

from mmstable.protection import Protection, apply_changes, find_changes
from tests.loops.runs import DropoutModel, Numbered, Score
from tests.toys import weights

_RUNS = itertools.count()
SGD = dict(type='SGD', lr=0.05, momentum=0.9)


class SeededModel(DropoutModel):
    """Begins the same in every run."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.batch_norm = nn.BatchNorm1d(4)

    def forward(self, inputs, targets, number, mode='tensor'):
        return super().forward(
            self.batch_norm(inputs.float()), targets, number, mode
        )


class LateWeights(SeededModel):
    """Draws its weights when mmengine says so, as most models do."""

    def init_weights(self) -> None:
        super().init_weights()
        for weight in self.parameters():
            nn.init.normal_(weight)


class TwoNets(BaseModel):
    """A generator and a critic, which has two turns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, *args, **kwargs):
        raise NotImplementedError

    def train_step(self, data, optim_wrapper):
        x = torch.stack(list(data['inputs']))
        critic, generator = optim_wrapper['critic'], optim_wrapper['generator']
        for _ in range(2):
            with critic.optim_context(self):
                fake = self.generator(x).detach()
                loss = (self.critic(fake) - self.critic(x)).mean()
                loss = loss + self.critic(x).square().mean()
            critic.update_params(loss)
        with generator.optim_context(self):
            mine = -self.critic(self.generator(x)).mean()
        generator.update_params(mine)
        return dict(loss=loss.detach(), mine=mine.detach())


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class OneForEachNet:
    """Builds a wrapper for each child of the model."""

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None) -> None:
        self._settings = optim_wrapper_cfg

    def __call__(self, module):
        built = {}
        for name, settings in self._settings.items():
            rest = dict(settings, type=settings.get('type', 'OptimWrapper'))
            optimizer = dict(rest.pop('optimizer'))
            kind = getattr(torch.optim, optimizer.pop('type'))
            parameters = getattr(module, name).parameters()
            rest['optimizer'] = kind(parameters, **optimizer)
            built[name] = OPTIM_WRAPPERS.build(rest)
        return OptimWrapperDict(**built)


class OwnOptimWrapper(OptimWrapper):
    """Somebody's own, with a step of its own."""

    def step(self, **kwargs: Any) -> None:
        for group in self.optimizer.param_groups:
            group['lr'] *= 0.99
        super().step(**kwargs)


class CpuAmpOptimWrapper(AmpOptimWrapper):
    """mmengine's own step, on a CPU, which it refuses."""

    def __init__(self, loss_scale=1024.0, dtype='float16', **kwargs: Any):
        OptimWrapper.__init__(self, **kwargs)
        self.cast_dtype = getattr(torch, dtype)
        is_on = dtype == 'float16'
        self.loss_scaler = torch.amp.GradScaler(
            'cpu', init_scale=loss_scale, enabled=is_on
        )
        self._scale_update_param = None

    def optim_context(self, model):
        return torch.autocast('cpu', dtype=self.cast_dtype)


class Notes(Hook):
    """What training was like.

    It comes last, when all others have done what they do.
    """

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.rates: list[Any] = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.losses.append(float(outputs['loss']))
        wrapper = runner.optim_wrapper
        self.rates.append([wrapper.get_lr(), wrapper.get_momentum()])


def named(kind: type) -> str:
    """How a config file names a class of anybody."""
    return f'{kind.__module__}.{kind.__name__}'


def stock_config(**settings: Any) -> Config:
    """A config that knows nothing of mmstable."""
    data = dict(
        batch_size=2,
        num_workers=0,
        dataset=dict(type=named(Numbered), length=8),
        collate_fn=dict(type='default_collate'),
    )
    config = dict(
        model=dict(type=named(SeededModel)),
        train_dataloader=dict(
            data, sampler=dict(type='DefaultSampler', shuffle=True)
        ),
        val_dataloader=dict(
            data, sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        val_evaluator=dict(type=named(Score)),
        val_cfg=dict(),
        train_cfg=dict(by_epoch=True, max_epochs=3),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(SGD)),
        param_scheduler=[
            dict(type='LinearLR', by_epoch=False, end=3),
            dict(type='MultiStepLR', by_epoch=True, milestones=[2]),
        ],
        randomness=dict(seed=0),
    )
    return Config(copy.deepcopy({**config, **settings}))


def protected(
    cfg: Config, preset: str = 'default'
) -> tuple[Config, Protection]:
    """The same, as ``mmstable train`` would train it."""
    found = find_changes(cfg._cfg_dict.to_dict(), preset)
    cfg = copy.deepcopy(cfg)
    apply_changes(cfg._cfg_dict, found.changes)
    return cfg, found


def train(cfg: Config, work_dir: Path) -> tuple[Notes, Runner]:
    """Train, and tell what it was like."""
    cfg = copy.deepcopy(cfg)
    cfg.work_dir = str(work_dir)
    # mmengine keeps loggers and hubs by this name for ever.
    cfg.experiment_name = f'healthy_{next(_RUNS)}'
    notes = Notes()
    runner = Runner.from_cfg(cfg)
    runner.register_hook(notes)
    runner.train()
    return notes, runner


def outcome(runner: Runner) -> dict[str, Any]:
    """Where a run has ended."""
    wrapper = runner.optim_wrapper
    several = isinstance(wrapper, OptimWrapperDict)
    wrappers = dict(wrapper.items()) if several else {'': wrapper}
    ema = [
        weights(hook.ema_model)
        for hook in runner.hooks
        if hasattr(hook, 'ema_model')
    ]
    return dict(
        weights=weights(runner.model),
        average=ema,
        optimizers={
            name: one.optimizer.state_dict() for name, one in wrappers.items()
        },
        rng=torch.get_rng_state(),
    )
