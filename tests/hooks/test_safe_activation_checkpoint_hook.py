"""Activations are computed again, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from mmstable.errors import ConfigError
from mmstable.hooks import SafeActivationCheckpointHook
from mmstable.oom.recompute import recomputed
from tests.loops.runs import log_of
from tests.memory.scenes import SceneNet, Scenes, scene_run
from tests.ranks import run_ranks
from tests.toys import assert_same, weights


class Block(nn.Module):
    """Takes a named argument, and counts how often it runs."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.3),
        )
        self.runs = 0

    def forward(self, x, *, scale=1.0):
        self.runs += 1
        return self.layers(x) * scale


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Block(3), Block(8)])

    def forward(self, x):
        for stage in self.stages:
            x = stage(x, scale=2.0)
        return x


class BlockNet(SceneNet):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        limited = self.limited
        self.backbone = Backbone()
        self.inner = limited

    @property
    def limited(self):
        return self._modules.get('inner') or self.backbone[3]


def runs(runner):
    model = getattr(runner.model, 'module', runner.model)
    return [stage.runs for stage in model.backbone.stages]


@pytest.mark.parametrize(
    'settings',
    [
        {},
        dict(modules=['backbone']),
    ],
)
def test_the_run_ends_with_the_same_bits(tmp_path, settings):
    reference, _ = scene_run(tmp_path / 'a', model=BlockNet())
    runner, _ = scene_run(
        tmp_path / 'b',
        model=BlockNet(),
        hooks=(SafeActivationCheckpointHook(**settings),),
    )
    assert_same(weights(runner.model), weights(reference.model))
    assert runs(reference) == [6, 6]
    assert runs(runner) == [12, 12]
    assert runner.model.backbone.stages[0].layers[0].weight.grad is None
    assert 'forward' not in vars(runner.model.backbone.stages[0])
    assert 'same gradients' in log_of(runner)


def test_half_precision(tmp_path):
    wrapper = dict(
        type='mmstable.SafeAmpOptimWrapper',
        loss_scale=256.0,
        optimizer=dict(type='SGD', lr=0.1),
    )
    reference, _ = scene_run(
        tmp_path / 'a', model=BlockNet(), optim_wrapper=wrapper
    )
    runner, _ = scene_run(
        tmp_path / 'b',
        model=BlockNet(),
        optim_wrapper=wrapper,
        hooks=(SafeActivationCheckpointHook(),),
    )
    assert_same(weights(runner.model), weights(reference.model))


def test_it_keeps_less(tmp_path):
    kept = []
    model = BlockNet()

    def pack(tensor):
        kept[-1] += tensor.numel() * tensor.element_size()
        return tensor

    x = torch.randn(4, 3, 8, 8)
    for chosen in ([], list(model.backbone.stages)):
        kept.append(0)
        with (
            recomputed(chosen),
            torch.autograd.graph.saved_tensors_hooks(
                pack, lambda tensor: tensor
            ),
        ):
            model.backbone(x).sum()
    assert kept[1] < kept[0] / 3


@pytest.mark.parametrize(
    ('settings', 'error', 'match'),
    [
        (dict(modules=['bakbone']), ConfigError, "'bakbone' matches nothing"),
        (dict(modules=3), TypeError, '`modules` must be a name or a list'),
    ],
)
def test_wrong_settings(tmp_path, settings, error, match):
    with pytest.raises(
        error, match=f'SafeActivationCheckpointHook: .*{match}'
    ):
        scene_run(tmp_path, hooks=(SafeActivationCheckpointHook(**settings),))


def ranks_work(rank, folder):
    def run(name, *hooks) -> Runner:
        data = Scenes(48)
        return scene_run(
            folder / name,
            model=MMDistributedDataParallel(
                BlockNet(),
                broadcast_buffers=False,
                find_unused_parameters=True,
            ),
            hooks=hooks,
            max_iters=3,
            train_dataloader=DataLoader(
                data, 4, sampler=DistributedSampler(data, shuffle=False)
            ),
        )[0]

    reference = run('a')
    runner = run('b', SafeActivationCheckpointHook())
    assert_same(weights(runner.model), weights(reference.model))
    assert runs(runner) == [6, 6]


@pytest.mark.soak
@pytest.mark.dist
def test_two_ranks(tmp_path):
    run_ranks(ranks_work, tmp_path)
