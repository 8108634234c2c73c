"""Buffers of odd modules, before and after a step that is skipped."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mmstable import SafeOptimWrapper
from tests.loops.runs import log_of
from tests.toys import INF, NAN, ToyModel, assert_same, toy_runner


class Range(nn.Module):
    """Remembers the smallest value it has seen, as quantization does.

    What the first batch has put in the place of Inf stays: the copy might be
    one that another step has spoiled, and mended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('least', torch.tensor(INF), persistent=False)

    def forward(self, x):
        self.least.copy_(torch.minimum(self.least, x.detach().min()))
        return x


class Replacing(nn.Module):
    """Puts another tensor in the place of its buffer every time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('level', torch.zeros(4))

    def forward(self, x):
        level = 0.9 * self.level + 0.1 * x.detach().mean(0)
        self.register_buffer('level', level)
        return x


class Spectrum(nn.Module):
    """A mean of Fourier coefficients."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('mean', torch.zeros(3, dtype=torch.complex64))

    def forward(self, x):
        found = torch.fft.rfft(x.detach()).mean(0)
        self.mean.mul_(0.9).add_(0.1 * found)
        return x + 0.1 * self.mean.real.sum()


class Recomputed(nn.Module):
    def __init__(self, use_reentrant) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpoint(
            self.norm, x.requires_grad_(), use_reentrant=self.use_reentrant
        )


class NaiveSync(nn.BatchNorm1d):
    """Counts nothing, and writes its statistics by itself."""

    def forward(self, x):
        self.running_mean += 0.1 * (x.detach().mean(0) - self.running_mean)
        return x - x.mean(0)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.norm(x) + 1)


def frozen():
    norm = nn.BatchNorm1d(4)
    norm.train = lambda mode=True: norm
    norm.training = False
    return norm


ODD = {
    'range': Range,
    'replacing': Replacing,
    'complex': Spectrum,
    'recomputed': lambda: Recomputed(use_reentrant=False),
    'recomputed, reentrant': lambda: Recomputed(use_reentrant=True),
    'naive sync': lambda: NaiveSync(4),
    'twice': Twice,
    'frozen': frozen,
}


class Odd(ToyModel):
    """Has an odd module, whose step is bad now and then.

    Args:
        make: Makes the module.
        bad: Iteration to what is spoiled: 'input' or 'loss'.
    """

    def __init__(self, make, bad, with_context=True) -> None:
        super().__init__()
        self.odd = make()
        self.bad, self.with_context = bad, with_context
        self.done = 0
        self.buffers_before = {}

    def forward(self, inputs, targets, mode='tensor'):
        return super().forward(self.odd(inputs), targets, mode)

    def train_step(self, data, optim_wrapper):
        self.done += 1
        self.buffers_before[self.done] = copy.deepcopy(
            dict(self.named_buffers())
        )
        fault = self.bad.get(self.done)
        if fault == 'input':
            data['inputs'][0, 0] = NAN
        if self.with_context:
            with optim_wrapper.optim_context(self):
                loss = self(**data, mode='loss')['loss']
        else:
            loss = self(**data, mode='loss')['loss']
        optim_wrapper.update_params(loss * NAN if fault == 'loss' else loss)
        return dict(loss=loss.detach())


def train(folder, model, counts=1, iters=6):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapper = SafeOptimWrapper(optimizer, accumulative_counts=counts)
    hooks = [dict(type='mmstable.GradNanLoggerHook')]
    runner = toy_runner(folder, wrapper, iters, hooks, model=model)
    runner.train()
    return runner


@pytest.mark.parametrize('counts', [1, 2])
@pytest.mark.parametrize('fault', ['input', 'loss'])
@pytest.mark.parametrize('kind', ODD)
def test_a_skipped_step_leaves_no_trace(tmp_path, kind, fault, counts):
    model = Odd(ODD[kind], {1: fault, 2: fault, 5: fault})
    runner = train(tmp_path, model, counts)
    for bad in (1, 2, 5):
        if kind == 'range' and fault == 'loss' and bad == 1:
            continue
        assert_same(model.buffers_before[bad + 1], model.buffers_before[bad])
    assert 'forward passes of another step' not in log_of(runner)
    for name, value in model.named_buffers():
        assert value.isfinite().all(), name


@pytest.mark.parametrize('counts', [1, 3])
def test_without_a_context_it_is_said_once(tmp_path, counts):
    """A dropped micro-batch leaves the same traces as a skipped step."""
    model = Odd(lambda: nn.BatchNorm1d(4), {2: 'loss', 4: 'loss'}, False)
    runner = train(tmp_path, model, counts)
    assert log_of(runner).count('does not run its forward pass inside') == 1


def test_a_healthy_run_without_a_context_says_nothing(tmp_path):
    model = Odd(lambda: nn.BatchNorm1d(4), {}, False)
    assert 'optim_context' not in log_of(train(tmp_path, model))
