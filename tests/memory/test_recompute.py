"""Modules that compute again have the gradients of those that do not."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mmstable.oom.recompute import CannotChunk, recomputed
from tests.memory.scenes import SceneNet, Scenes

LOSSES = pytest.mark.parametrize(
    'loss', ['mean', 'ignore_index', 'avg_factor']
)


def batch(count=8):
    data = Scenes()
    samples = [data[index] for index in range(count)]
    return {
        key: torch.stack([sample[key] for sample in samples])
        for key in ('inputs', 'targets')
    }


def train(model, modules=(), chunks=1):
    with recomputed(modules, chunks):
        loss = model(**batch(), mode='loss')['loss']
        loss.backward()
    return loss


def error(model, reference):
    """The largest difference of a gradient, relative to all of them."""
    mine = torch.cat([p.grad.flatten() for p in model.parameters()])
    other = torch.cat([p.grad.flatten() for p in reference.parameters()])
    return float((mine - other).norm() / other.norm())


@LOSSES
@pytest.mark.parametrize('norm', ['gn', 'bn'])
def test_computing_again_changes_nothing(norm, loss):
    reference = SceneNet(norm, loss, dropout=0.3)
    model = copy.deepcopy(reference)
    torch.manual_seed(1)
    first = train(reference)
    torch.manual_seed(1)
    assert torch.equal(train(model, [model.backbone]), first)
    assert error(model, reference) == 0
    for mine, other in zip(model.buffers(), reference.buffers()):
        assert torch.equal(mine, other)


@LOSSES
@pytest.mark.parametrize('chunks', [2, 3, 8, 100])
def test_chunks_have_the_gradients_of_the_whole_batch(loss, chunks):
    reference = SceneNet('gn', loss)
    model = copy.deepcopy(reference)
    train(reference)
    train(model, [model.backbone], chunks)
    assert 0 < error(model, reference) < 1e-5


def test_chunks_update_statistics_once():
    reference = SceneNet('bn')
    model = copy.deepcopy(reference)
    train(reference)
    train(model, [model.backbone], 4)
    # Each part is normalised by itself: this is what approximate means.
    assert 1e-3 < error(model, reference) < 0.5
    mine, other = model.backbone[1], reference.backbone[1]
    assert mine.num_batches_tracked == other.num_batches_tracked == 1
    torch.testing.assert_close(mine.running_mean, other.running_mean)
    torch.testing.assert_close(
        mine.running_var, other.running_var, rtol=1e-2, atol=1e-4
    )


def test_chunks_draw_the_same_random_numbers_again():
    model = SceneNet('gn', dropout=0.5)
    torch.manual_seed(3)
    train(model, [model.backbone], 4)
    reference = copy.deepcopy(model)
    reference.zero_grad()
    torch.manual_seed(3)
    # The same chunks with all of their graph kept.
    data = batch()
    outputs = [reference.backbone(x) for x in data['inputs'].chunk(4)]
    outputs = reference.head(torch.cat(outputs))
    reference.loss(outputs, data['targets']).backward()
    assert error(model, reference) < 1e-6


def test_nothing_is_left_behind():
    model = SceneNet()
    train(model, [model.backbone], 2)
    assert 'forward' not in vars(model.backbone)


def test_evaluation_is_not_cut():
    model = SceneNet().eval()
    with recomputed([model.backbone], 4):
        assert model(**batch(), mode='loss')['loss'].requires_grad


class Nested(nn.Module):
    """Takes and gives nested structures."""

    def __init__(self, kind='good'):
        super().__init__()
        self.layer, self.kind = nn.Linear(4, 4), kind

    def forward(self, pair, scale, *, more=None):
        a, b = self.layer(pair[0]), self.layer(pair[1])
        if more is not None:
            a = a + more['bias']
        if self.kind == 'mean':
            return a.mean(0)
        if self.kind == 'unlike':
            return a, float(a.sum().detach())
        return dict(levels=[a * scale, b], size=(4, 4))


def test_nested_arguments_and_outputs():
    reference = Nested()
    model = copy.deepcopy(reference)
    x = torch.randn(6, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    for net, values, chunks in ((reference, x, 0), (model, y, 3)):
        with recomputed([net] if chunks else [], chunks):
            pair, more = (values, values * 2), dict(bias=values * 3)
            out = net(pair, 0.5, more=more)
            assert out['size'] == (4, 4)
            sum(level.square().sum() for level in out['levels']).backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert error(model, reference) < 1e-6


@pytest.mark.parametrize(
    ('kind', 'first', 'second', 'match'),
    [
        ('good', (6, 4), (3, 4), r'different lengths \(3, 6\)'),
        ('mean', (6, 4), (6, 4), 'not one entry for each sample'),
        ('unlike', (6, 4), (6, 4), 'do not fit together'),
    ],
)
def test_what_cannot_be_cut_says_so(kind, first, second, match):
    model = Nested(kind)
    pair = torch.randn(first), torch.randn(second)
    with pytest.raises(CannotChunk, match=match), recomputed([model], 2):
        model(pair, 1.0)
