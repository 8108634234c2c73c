"""What PolicyLR and PolicyMomentum refuse, and how they meet a runner."""

from __future__ import annotations

import re

import pytest
import torch
from mmengine.hooks import Hook
from torch.utils.data import DataLoader

from mmstable.legacy.schedules import PolicyLR, PolicyMomentum
from tests.toys import ToyData, toy_runner


def optimizer(**kwargs):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], **kwargs)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (
            dict(policy='poli'),
            'PolicyLR: `policy` must be one of fixed, step, exp, poly, inv, '
            'CosineAnnealing, FlatCosineAnnealing, CosineRestart, cyclic, '
            "OneCycle, LinearAnnealing, got 'poli'. Did you mean poly?",
        ),
        (dict(policy=None), 'PolicyLR: `policy` must be one of'),
        (dict(policy='step'), "policy 'step' needs `step`."),
        (
            dict(policy='step', step=3, min_lrs=1),
            "policy 'step': no setting `min_lrs`; there are step, gamma, "
            'min_lr. Did you mean min_lr?',
        ),
        (dict(policy='fixed', step=3), 'no setting `step`; there are none.'),
        (
            dict(policy='CosineAnnealing', end=9),
            'needs exactly one of `min_lr` and `min_lr_ratio`.',
        ),
        (
            dict(policy='LinearAnnealing', min_lr=0, min_lr_ratio=0, end=9),
            'needs exactly one of `min_lr` and `min_lr_ratio`.',
        ),
        (
            dict(policy='CosineRestart', min_lr=0, periods=[2, 3]),
            '`periods` and `restart_weights` must have the same length',
        ),
        (
            dict(policy='CosineRestart', min_lr=0, periods=[5], end=9),
            '`periods` ends at 5, but the training at 9.',
        ),
        (
            dict(policy='cyclic', end=9),
            "policy 'cyclic' needs `by_epoch=False`.",
        ),
        (
            dict(policy='cyclic', by_epoch=False, cyclic_times=3, end=2),
            '`cyclic_times` must be at most 2, the length of the training',
        ),
        (
            dict(policy='OneCycle', by_epoch=False, max_lr=1, total_steps=2)
            | dict(end=3),
            '`total_steps` ends at 2, but the training at 3.',
        ),
        (
            dict(policy='OneCycle', by_epoch=False, max_lr=[1, 2], end=3),
            '`max_lr` has 2 values for 1 parameter groups.',
        ),
        (
            dict(policy='poly', by_epoch=False),
            "policy 'poly' needs `end`, the length of the training.",
        ),
        (
            dict(policy='fixed', warmup='cosine', warmup_iters=3),
            "`warmup` must be one of constant, linear, exp, got 'cosine'.",
        ),
        (
            dict(policy='fixed', warmup='linear'),
            '`warmup_iters` must be an int of at least 1, got 0.',
        ),
        (
            dict(policy='fixed', warmup='exp', warmup_iters=3)
            | dict(warmup_ratio=0),
            'must be a finite number above 0 and at most 1, got 0.',
        ),
        (
            dict(policy='fixed', warmup='exp', warmup_iters=3),
            'a warm-up counts iterations: set `by_epoch=True`',
        ),
    ],
)
def test_wrong_settings_are_named(settings, message):
    error = (TypeError, ValueError)
    with pytest.raises(error, match=re.escape(message)):
        PolicyLR(optimizer(lr=0.1), **settings)


def test_momentum_has_policies_and_words_of_its_own():
    with pytest.raises(
        ValueError, match="PolicyMomentum: `policy` must be .* got 'poly'"
    ):
        PolicyMomentum(optimizer(lr=0.1, momentum=0.9), policy='poly')
    with pytest.raises(ValueError, match='`min_momentum` and `min_momentum_'):
        PolicyMomentum(
            optimizer(lr=0.1, momentum=0.9),
            policy='CosineAnnealing',
            end=9,
        )


class Rates(Hook):
    """Notes what the optimizer has while an iteration is on."""

    def __init__(self):
        self.rates, self.momenta = [], []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        group = runner.optim_wrapper.param_groups[0]
        self.rates.append(group['lr'])
        self.momenta.append(group['momentum'])


def train_by_epoch(work_dir, schedule, hook, **kwargs):
    data = ToyData(8)
    runner = toy_runner(
        work_dir,
        hooks=[hook],
        train_dataloader=DataLoader(data, batch_size=2),
        train_cfg=dict(type='mmstable.SafeEpochBasedTrainLoop', max_epochs=3),
        param_scheduler=schedule,
        default_hooks=dict(
            checkpoint=dict(
                type='mmstable.SafeCheckpointHook', interval=3, by_epoch=False
            )
        ),
        **kwargs,
    )
    runner.train()


def test_a_runner_fills_in_epochs_and_lengths(tmp_path):
    hook = Rates()
    schedule = [
        dict(
            type='mmstable.PolicyLR',
            policy='step',
            step=[1, 2],
            by_epoch=True,
            convert_to_iter_based=True,
            warmup='linear',
            warmup_iters=2,
            warmup_ratio=0.5,
        ),
        dict(
            type='PolicyMomentum',
            policy='LinearAnnealing',
            min_momentum=0.0,
            by_epoch=True,
        ),
    ]
    train_by_epoch(tmp_path, schedule, hook)
    assert hook.rates == pytest.approx(
        [0.05, 0.075, 0.1, 0.1] + [0.01] * 4 + [0.001] * 4, rel=1e-12
    )
    assert hook.momenta == pytest.approx(
        [0.9] * 4 + [0.6] * 4 + [0.3] * 4, rel=1e-12
    )


def test_a_run_that_is_resumed_inside_an_epoch_has_the_same_rates(tmp_path):
    schedule = dict(
        type='mmstable.PolicyLR',
        policy='poly',
        by_epoch=True,
        convert_to_iter_based=True,
        warmup='exp',
        warmup_iters=2,
        warmup_by_epoch=True,
    )
    whole, rest = Rates(), Rates()
    train_by_epoch(tmp_path / 'whole', schedule, whole)
    train_by_epoch(
        tmp_path / 'rest',
        schedule,
        rest,
        load_from=str(tmp_path / 'whole' / 'iter_6.pth'),
        resume=True,
    )
    assert len(whole.rates) == 12
    assert rest.rates == whole.rates[6:]
