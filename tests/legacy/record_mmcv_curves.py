"""Record learning rates and momenta from mmcv 1.7.2 itself.

Its runners train a model of one parameter; a hook notes what the optimizer
has in every iteration. The result is ``mmcv_curves.json`` next to this file,
which the tests compare with. It needs an environment of its own::

    python -m venv mmcv1 && mmcv1/bin/pip install torch==2.13.0
    mmcv1/bin/pip install setuptools==69.5.1 wheel
    MMCV_WITH_OPS=0 mmcv1/bin/pip install --no-build-isolation mmcv==1.7.2
    mmcv1/bin/python tests/legacy/record_mmcv_curves.py
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

warnings.simplefilter('ignore')
EPOCHS, LENGTH = 5, 6
ITERS = EPOCHS * LENGTH
GROUPS = [dict(lr=0.1, momentum=0.9), dict(lr=0.004, momentum=0.8)]
POLICIES: dict[str, list[dict[str, Any]]] = {
    'fixed': [{}],
    'step': [
        dict(step=2),
        dict(step=[2, 3, 7], gamma=0.3),
        dict(step=[1, 4], min_lr=0.001),
    ],
    'exp': [dict(gamma=0.93)],
    'poly': [{}, dict(power=0.9, min_lr=1e-4)],
    'inv': [dict(gamma=0.4), dict(gamma=0.1, power=0.75)],
    'CosineAnnealing': [dict(min_lr=1e-5), dict(min_lr_ratio=0.03)],
    'FlatCosineAnnealing': [
        dict(min_lr_ratio=0.05),
        dict(start_percent=0.3, min_lr=1e-5),
    ],
    'CosineRestart': [
        dict(periods=[7, 11, 12], restart_weights=[1, 0.5, 0.2], min_lr=1e-6),
        dict(periods=[30], min_lr_ratio=0.1),
    ],
    'cyclic': [
        {},
        dict(target_ratio=(4, 1e-3), cyclic_times=4, gamma=0.8),
        dict(target_ratio=6.0, step_ratio_up=0.0, anneal_strategy='linear'),
        dict(cyclic_times=2, step_ratio_up=0.0, gamma=0.5),
    ],
    'OneCycle': [
        dict(max_lr=0.5),
        dict(max_lr=[0.5, 0.2], three_phase=True, pct_start=0.4),
        dict(
            max_lr={'SGD': [0.5, 0.2]},
            total_steps=47,
            anneal_strategy='linear',
            div_factor=10,
            final_div_factor=100,
        ),
        dict(max_lr=0.3, pct_start=0.01),
    ],
    'LinearAnnealing': [dict(min_lr=1e-5), dict(min_lr_ratio=0.03)],
}
MOMENTUM_POLICIES: dict[str, list[dict[str, Any]]] = {
    'step': [dict(step=2), dict(step=[1, 4], gamma=0.9, min_momentum=0.7)],
    'CosineAnnealing': [
        dict(min_momentum=0.1),
        dict(min_momentum_ratio=0.5),
    ],
    'LinearAnnealing': [
        dict(min_momentum=0.1),
        dict(min_momentum_ratio=0.5),
    ],
    'cyclic': [
        {},
        dict(target_ratio=(0.8, 1.0), cyclic_times=3, gamma=0.7),
        dict(step_ratio_up=0.0, anneal_strategy='linear'),
    ],
    'OneCycle': [
        {},
        dict(base_momentum=[0.8, 0.7], three_phase=True, pct_start=0.4),
        dict(max_momentum=0.99, anneal_strategy='linear'),
    ],
}
WARMUPS: list[dict[str, Any]] = [
    {},
    dict(warmup='constant', warmup_iters=8),
    dict(warmup='linear', warmup_iters=8, warmup_ratio=1e-3),
    dict(warmup='exp', warmup_iters=8, warmup_ratio=0.2),
]
BY_EPOCH_WARMUPS: list[dict[str, Any]] = [
    dict(warmup=kind, warmup_iters=2, warmup_by_epoch=True)
    for kind in ('constant', 'linear', 'exp')
]
BY_ITERATION = ('cyclic', 'OneCycle')


def cases(policies: dict[str, Any], by_epoch_warmups: bool) -> list[Any]:
    """All combinations of runner, policy and warm-up that mmcv can run."""
    found: list[tuple[str, dict[str, Any]]] = []
    for name, variants in policies.items():
        for settings, runner, by_epoch in itertools.product(
            variants, ('Epoch', 'Iter'), (True, False)
        ):
            if by_epoch and (runner == 'Iter' or name in BY_ITERATION):
                continue
            warmups = WARMUPS
            if by_epoch_warmups and runner == 'Epoch':
                warmups = WARMUPS + BY_EPOCH_WARMUPS
            for warmup in warmups:
                config = dict(policy=name, **settings, **warmup)
                # Whoever leaves it out means the default of the runner.
                if by_epoch or name in BY_ITERATION:
                    pass
                elif runner == 'Epoch' or not by_epoch_warmups:
                    config['by_epoch'] = False
                found.append((f'{runner}BasedRunner', config))
    return found


def main() -> None:
    """Record everything."""
    stub_torchvision()
    import mmcv

    time.sleep = lambda seconds: None
    lr = cases(POLICIES, by_epoch_warmups=True)
    momentum = cases(MOMENTUM_POLICIES, by_epoch_warmups=False)
    # mmcv never calls its updaters by epoch in a run by iterations.
    never = dict(policy='step', step=[2], by_epoch=True)
    lr.append(('IterBasedRunner', dict(never, warmup='exp', warmup_iters=8)))
    momentum.append(('IterBasedRunner', dict(policy='step', step=[2])))
    curves = [record(runner, lr_config=config) for runner, config in lr]
    curves += [record(r, momentum_config=c) for r, c in momentum]
    curves += [
        record(r, momentum_config=c, optimizer='AdamW')
        for r, c in momentum
        if 'warmup' not in c
    ]
    path = Path(__file__).with_name('mmcv_curves.json')
    text = ',\n'.join(json.dumps(one) for one in curves)
    head = json.dumps(
        dict(mmcv=mmcv.__version__, epochs=EPOCHS, length=LENGTH)
    )
    path.write_text(f'{{"recorded": {head},\n"curves": [\n{text}\n]}}\n')
    print(f'{len(curves)} curves in {path}')


def stub_torchvision() -> None:
    """mmcv asks torchvision for its list of models, which is not needed."""
    package = types.ModuleType('torchvision')
    package.models = types.ModuleType('torchvision.models')
    package.__version__ = '0.0.0'
    package.models.__path__ = []
    sys.modules['torchvision'] = package
    sys.modules['torchvision.models'] = package.models


def record(
    kind: str,
    lr_config: dict[str, Any] | None = None,
    momentum_config: dict[str, Any] | None = None,
    optimizer: str = 'SGD',
) -> dict[str, Any]:
    """Train with mmcv, and note values of both groups in all iterations."""
    from mmcv.runner import RUNNERS, Hook, build_runner

    assert kind in RUNNERS
    name = 'lr' if momentum_config is None else 'momentum'
    values: list[list[float]] = [[], []]

    class Note(Hook):
        def after_train_iter(self, runner: Any) -> None:
            for group, row in zip(runner.optimizer.param_groups, values):
                if name in group:
                    row.append(group[name])
                else:
                    row.append(group['betas'][0])

    length = {'max_epochs': EPOCHS}
    if kind == 'IterBasedRunner':
        length = {'max_iters': ITERS}
    runner = build_runner(
        dict(type=kind, **length),
        default_args=dict(
            model=Model(),
            optimizer=build_optimizer(optimizer),
            logger=logging.getLogger('quiet'),
        ),
    )
    lr = None if lr_config is None else dict(lr_config)
    momentum = None if momentum_config is None else dict(momentum_config)
    runner.register_training_hooks(lr, momentum_config=momentum)
    runner.register_hook(Note(), priority='HIGHEST')
    runner.run([DataLoader(torch.zeros(LENGTH, 1))], [('train', 1)])
    config = lr_config if momentum_config is None else momentum_config
    if 'warmup' in config:
        # It multiplies both alike: the first is enough.
        values = values[:1]
    return dict(
        runner=kind,
        optimizer=optimizer,
        key=f'{name}_config',
        config=config,
        values=values,
    )


class Model(torch.nn.Module):
    """Has a train step, which is all that mmcv asks for."""

    def train_step(self, data: Any, optimizer: Any, **kwargs: Any) -> Any:
        """Do nothing."""
        return dict(loss=None, log_vars={}, num_samples=1)


def build_optimizer(kind: str) -> torch.optim.Optimizer:
    """Two groups with values of their own."""
    groups: list[dict[str, Any]] = []
    for group in GROUPS:
        settings = dict(lr=group['lr'])
        if kind == 'SGD':
            settings['momentum'] = group['momentum']
        else:
            settings['betas'] = (group['momentum'], 0.99)
        parameter = torch.nn.Parameter(torch.zeros(1))
        groups.append(dict(params=[parameter], **settings))
    return getattr(torch.optim, kind)(groups, lr=1.0)


if __name__ == '__main__':
    main()
