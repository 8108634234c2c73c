"""Optimizers of others keep what they like, and are resumed all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import OPTIMIZERS
from torch.optim import Optimizer

from mmstable.checkpoint.catalog import find_checkpoint, verify_checkpoint
from mmstable.checkpoint.sections import check_sections
from tests.toys import assert_same, toy_runner, weights


class OddAdam(Optimizer):
    """Three betas, a rate of None beside the real one, blocks, lists."""

    # As bitsandbytes has it, which is not torch's.
    __module__ = 'others.optim.adam'

    def __init__(self, params, lr=0.01, betas=(0.9, 0.8, 0.7), rho=None):
        super().__init__(params, dict(lr=lr, betas=betas, rho=rho, fused=True))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for number, param in enumerate(group['params']):
                state = self.state[param]
                if not state:
                    state['step'] = 0
                    state['exp_avg'] = torch.zeros_like(param)
                    state['absmax1'] = torch.zeros(7)
                    state['Q'] = [torch.eye(2), None] if number else None
                    state['kind'] = number or 'first'
                state['step'] += 1
                first = group['betas'][0]
                state['exp_avg'].lerp_(param.grad, 1 - first)
                param.sub_(state['exp_avg'], alpha=group['lr'])


@pytest.fixture(autouse=True)
def registered():
    OPTIMIZERS.register_module(module=OddAdam, force=True)
    yield
    OPTIMIZERS.module_dict.pop('OddAdam')


def run(work_dir, max_iters, optimizer, **kwargs):
    checkpoint = dict(
        type='mmstable.SafeCheckpointHook', interval=2, by_epoch=False
    )
    runner = toy_runner(
        work_dir,
        dict(type='mmstable.SafeOptimWrapper', optimizer=optimizer),
        train_cfg=dict(
            type='mmstable.SafeIterBasedTrainLoop',
            max_iters=max_iters,
            val_interval=10**6,
        ),
        default_hooks=dict(checkpoint=checkpoint),
        **kwargs,
    )
    runner.train()
    return runner


def test_a_resume_is_exact(tmp_path):
    odd = dict(type='OddAdam')
    whole = run(tmp_path / 'whole', 6, odd)
    run(tmp_path / 'part', 4, odd)
    found = find_checkpoint(tmp_path / 'part')
    assert found.skipped == ()
    rest = run(
        tmp_path / 'rest',
        6,
        odd,
        load_from=str(found.found.path),
        resume=True,
    )
    assert_same(weights(rest.model), weights(whole.model))


def test_a_setting_that_was_none(tmp_path):
    """`fused` and the like are None unless they are given."""
    adam = dict(type='Adam', lr=0.01)
    run(tmp_path / 'part', 4, adam)
    path = tmp_path / 'part' / 'iter_4.pth'
    verify_checkpoint(path)
    rest = run(
        tmp_path / 'rest',
        6,
        dict(adam, foreach=False),
        load_from=str(path),
        resume=True,
    )
    assert rest.iter == 6


@pytest.mark.parametrize(
    'score',
    [np.float32(0.5), np.int64(3), np.array(0.5), torch.tensor(-float('inf'))],
    ids=repr,
)
def test_best_scores_of_any_number(tmp_path, score):
    info = dict(
        best_score=score, best_ckpt='a.pth', best_score_name='acc', other=None
    )
    hub = dict(
        log_scalars={},
        runtime_info=info,
        resumed_keys=dict.fromkeys(info, True),
    )
    content = dict(state_dict={}, meta=dict(iter=1, epoch=0), message_hub=hub)
    torch.save(content, tmp_path / 'iter_1.pth')
    assert verify_checkpoint(tmp_path / 'iter_1.pth').iteration == 1


def test_steps_in_a_row_of_one(tmp_path):
    """As torch before 2.1 counts them, fused or capturable."""
    adam = dict(type='Adam', lr=0.01)
    run(tmp_path / 'part', 4, adam)
    path = tmp_path / 'part' / 'iter_4.pth'
    content = torch.load(path, weights_only=False)
    for state in content['optimizer']['state'].values():
        state['step'] = state['step'].reshape(1)
    torch.save(content, path)
    Path(f'{path}.json').unlink()
    rest = run(tmp_path / 'rest', 6, adam, load_from=str(path), resume=True)
    assert rest.iter == 6


def test_settings_of_schedules_of_others():
    schedule = dict(
        T_max=float('inf'),
        gamma=[0.1, 0.2],
        end=None,
        last_step=np.int64(3),
        by_epoch=False,
    )
    check_sections(dict(param_schedulers=[schedule]))
