"""What is captured comes back, from memory and from a checkpoint alike."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import EMAHook
from mmengine.optim import LinearLR, OptimWrapper, OptimWrapperDict
from torch import nn

from mmstable.checkpoint.loading import load_checkpoint
from mmstable.state.run_state import RunState
from tests.toys import assert_same, toy_batch, toy_net, toy_runner, weights


def small_runner(optimizer=torch.optim.AdamW, **settings):
    """As much of a runner as the state is made of."""
    net = toy_net()
    net.register_buffer('seen', torch.zeros(2), persistent=False)
    wrapper = OptimWrapper(optimizer(net.parameters(), lr=0.1, **settings))
    schedule = LinearLR(wrapper, by_epoch=False, end=10)
    return SimpleNamespace(
        model=net,
        optim_wrapper=wrapper,
        param_schedulers=[schedule],
        hooks=[],
        train_loop=SimpleNamespace(),
        epoch=0,
        iter=0,
    )


def train(runner, steps):
    for index in range(steps):
        x, y = toy_batch(index)
        loss = (runner.model(x) - y).square().mean()
        runner.optim_wrapper.update_params(loss)
        runner.model.seen += 1
        for one in runner.param_schedulers:
            one.step()


def everything(runner):
    return {
        'model': weights(runner.model),
        'seen': runner.model.seen.clone(),
        'optimizer': {
            **runner.optim_wrapper.optimizer.state_dict(),
            'state': {
                key: {
                    k: torch.as_tensor(v).clone()
                    for k, v in one.items()
                    # SGD of an old torch keeps None for no momentum.
                    if v is not None
                }
                for key, one in runner.optim_wrapper.optimizer.state_dict()[
                    'state'
                ].items()
            },
            'param_groups': [
                dict(group)
                for group in runner.optim_wrapper.optimizer.state_dict()[
                    'param_groups'
                ]
            ],
        },
        'schedule': dict(runner.param_schedulers[0].state_dict()),
    }


@pytest.mark.parametrize('before', [0, 2], ids=['fresh', 'trained'])
@pytest.mark.parametrize('optimizer', [torch.optim.AdamW, torch.optim.SGD])
def test_a_snapshot_brings_everything_back(before, optimizer):
    runner = small_runner(optimizer)
    train(runner, before)
    snapshot = RunState(runner).capture()
    known = everything(runner)
    train(runner, 3)
    RunState(runner).restore(snapshot)
    assert_same(everything(runner), known)
    # Once more: nothing of the snapshot has been given away.
    train(runner, 3)
    RunState(runner).restore(snapshot)
    assert_same(everything(runner), known)


def test_tensors_keep_their_identity_where_they_can():
    runner = small_runner()
    train(runner, 1)
    snapshot = RunState(runner).capture()
    weight, seen = runner.model.head.weight, runner.model.seen
    average = runner.optim_wrapper.optimizer.state[weight]['exp_avg']
    RunState(runner).restore(snapshot)
    assert runner.model.head.weight is weight
    assert runner.model.seen is seen
    state = runner.optim_wrapper.optimizer.state[weight]
    assert state['exp_avg'] is average


def test_memory_is_used_again():
    runner = small_runner()
    train(runner, 1)
    old = RunState(runner).capture()
    pointers = [one.data_ptr() for one in old.memory.blocks]
    train(runner, 1)
    new = RunState(runner).capture(old)
    assert [one.data_ptr() for one in new.memory.blocks] == pointers
    known = everything(runner)
    train(runner, 1)
    RunState(runner).restore(new)
    assert_same(everything(runner), known)


def test_tensors_are_called_as_in_a_checkpoint():
    runner = small_runner()
    train(runner, 1)
    tensors = RunState(runner).tensors()
    assert list(tensors) == ['state_dict', 'optimizer']
    assert tensors['state_dict']['head.weight'] is runner.model.head.weight
    assert 'seen' in tensors['state_dict']
    assert 'head.weight.exp_avg' in tensors['optimizer']


def test_names_of_several_optimizers():
    net = toy_net()
    parts = dict(body=net.backbone, head=net.head)
    wrappers = {
        name: OptimWrapper(torch.optim.SGD(part.parameters(), 0.1, 0.9))
        for name, part in parts.items()
    }
    for wrapper in wrappers.values():
        wrapper.update_params(net(toy_batch(0)[0]).square().mean())
    runner = SimpleNamespace(
        model=net,
        optim_wrapper=OptimWrapperDict(**wrappers),
        param_schedulers=None,
        hooks=[],
    )
    assert sorted(RunState(runner).tensors()['optimizer']) == [
        'body.backbone.bias.momentum_buffer',
        'body.backbone.weight.momentum_buffer',
        'head.head.bias.momentum_buffer',
        'head.head.weight.momentum_buffer',
    ]


def test_the_size_is_known_before_the_first_step():
    runner = small_runner()
    early = RunState(runner).size()
    train(runner, 1)
    # Adam's step counters come on top.
    counters = 4 * len(list(runner.model.parameters()))
    assert RunState(runner).size() == early + counters


def test_parameters_of_nobody_are_called_by_their_number():
    runner = small_runner()
    extra = nn.Parameter(torch.ones(2))
    runner.optim_wrapper.optimizer.add_param_group({'params': [extra]})
    extra.grad = torch.ones(2)
    runner.optim_wrapper.optimizer.step()
    assert '6.exp_avg' in RunState(runner).tensors()['optimizer']


def test_memory_and_disk_restore_the_same(tmp_path):
    runner = toy_runner(
        tmp_path,
        dict(
            type='mmstable.SafeAmpOptimWrapper',
            loss_scale=64.0,
            optimizer=dict(type='AdamW', lr=0.01),
        ),
        hooks=[EMAHook(momentum=0.5)],
        param_scheduler=[dict(type='LinearLR', by_epoch=False, end=9)],
        default_hooks=dict(
            checkpoint=dict(type='CheckpointHook', interval=6, by_epoch=False)
        ),
    )
    runner.train()
    state = RunState(runner)

    def now():
        return {
            'tensors': {
                section: {k: v.detach().clone() for k, v in tensors.items()}
                for section, tensors in state.tensors().items()
            },
            'groups': [
                {k: v for k, v in group.items() if k != 'params'}
                for group in runner.optim_wrapper.param_groups
            ],
            'scaler': dict(runner.optim_wrapper.loss_scaler.state_dict()),
            'schedule': dict(runner.param_schedulers[0].state_dict()),
        }

    known, snapshot = now(), state.capture()
    for saved in (snapshot, load_checkpoint(tmp_path / 'iter_6.pth')):
        for section in state.tensors().values():
            for tensor in section.values():
                tensor.data.fill_(3)
        runner.optim_wrapper.param_groups[0]['lr'] = 7.0
        runner.optim_wrapper.loss_scaler.load_state_dict({'scale': 128.0})
        runner.param_schedulers[0].step()
        (state.load if isinstance(saved, dict) else state.restore)(saved)
        assert_same(now(), known)
    # A scale that has overflowed since is not brought back.
    for saved in (snapshot, load_checkpoint(tmp_path / 'iter_6.pth')):
        runner.optim_wrapper.loss_scaler.load_state_dict({'scale': 2.0})
        (state.load if isinstance(saved, dict) else state.restore)(saved)
        assert runner.optim_wrapper.loss_scaler.get_scale() == 2.0
