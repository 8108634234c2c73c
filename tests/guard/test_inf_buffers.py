"""Inf that a model writes into its own buffers does not end a run."""

from __future__ import annotations

import math

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import OPTIMIZERS

from mmstable.checkpoint.catalog import find_checkpoint
from mmstable.checkpoint.manifest import remove_manifest
from mmstable.events import Fault
from tests.guard.runs import PLAIN, run, safe_checkpoints
from tests.loops.runs import log_of
from tests.toys import INF, NAN, Sabotage, ToyModel


def causal(size):
    return torch.full((size, size), -INF).triu(1)


def slopes(size):
    """As ALiBi has them: more than one finite value."""
    return causal(size) - torch.arange(float(size))


class Cached(ToyModel):
    """Makes a larger mask in its fifth forward.

    Args:
        first: The mask at the start.
        make: Makes the one that comes later.
        persistent: Whether it is in checkpoints.
    """

    def __init__(self, first, make=causal, persistent=True) -> None:
        super().__init__()
        self.register_buffer('mask', first, persistent=persistent)
        self.make = make
        self.count = 0

    def forward(self, *args, **kwargs):
        self.count += 1
        if self.count == 5:
            self.mask = self.make(4)
        return super().forward(*args, **kwargs)


@pytest.mark.parametrize('persistent', [True, False])
@pytest.mark.parametrize(
    'first, make',
    [
        (None, causal),
        (torch.zeros(1, 1), causal),
        (torch.zeros(4, 4), causal),
        (causal(2), causal),
        (slopes(2), slopes),
    ],
    ids=['none', 'finite', 'filled', 'grown', 'slopes'],
)
def test_a_mask_may_come_or_grow(tmp_path, first, make, persistent):
    runner = run(
        tmp_path,
        model=Cached(first, make, persistent),
        faults=[Sabotage(loss=[9])],
        default_hooks=safe_checkpoints(3),
    )
    assert runner.diary.done == []
    remove_manifest(tmp_path / 'iter_12.pth')
    found = find_checkpoint(tmp_path).found
    assert found is not None and found.iteration == 12


class Observed(ToyModel):
    """Has the range of its inputs, as quantization wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('low', torch.full((4,), INF))
        self.register_buffer('high', torch.tensor(-INF))

    def forward(self, inputs, *args, **kwargs):
        x = inputs.detach()
        self.low.copy_(torch.minimum(self.low, x.amin(0)))
        self.high.copy_(torch.maximum(self.high, x.max()))
        return super().forward(inputs, *args, **kwargs)


class Reset(Hook):
    """Starts the range anew."""

    def after_train_iter(self, runner, *args, **kwargs):
        if (runner.iter + 1) % 4 == 0:
            runner.model.low.fill_(INF)
            runner.model.high.fill_(-INF)


def test_an_observer_may_be_reset(tmp_path):
    runner = run(
        tmp_path,
        model=Observed(),
        faults=[Reset()],
        default_hooks=safe_checkpoints(2),
    )
    assert runner.diary.done == []
    assert len(list(tmp_path.glob('iter_*.pth'))) == 6


class Spoil(Hook):
    """Writes to a tensor of the model, before iteration 7."""

    def __init__(self, name, value) -> None:
        self.name, self.value = name, value

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == 7:
            tensors = runner.model.state_dict(keep_vars=True)
            tensors.update(runner.model.named_buffers())
            tensors[self.name].data.view(-1)[1] = self.value


class Normed(Cached):
    def __init__(self) -> None:
        super().__init__(causal(2))
        self.norm = torch.nn.BatchNorm1d(2)
        self.register_buffer('total', torch.zeros(3))


@pytest.mark.parametrize(
    'name, value',
    [
        ('net.head.bias', -INF),
        ('norm.running_var', INF),
        ('norm.running_mean', -INF),
    ],
)
def test_what_is_poison_stays_poison(tmp_path, name, value):
    runner = run(tmp_path, model=Normed(), faults=[Spoil(name, value)])
    assert [one.fault for one in runner.diary.done] == [Fault.POISONED]
    kind = 'NaN' if math.isnan(value) else 'Inf'
    assert (f'state_dict.{name}', kind) in runner.diary.done[0].culprits


@pytest.mark.parametrize('name, value', [('mask', NAN), ('total', INF)])
def test_a_buffer_that_reaches_no_step_is_a_warning(tmp_path, name, value):
    runner = run(
        tmp_path,
        model=Normed(),
        faults=[Spoil(name, value)],
        default_hooks=safe_checkpoints(4),
    )
    assert runner.diary.done == []
    assert len(list(tmp_path.glob('iter_*.pth'))) == 3
    assert log_of(runner).count(f'values that are not finite: {name}') == 1


def test_a_spoiled_cache_that_no_snapshot_has_is_built_anew(tmp_path):
    """A rollback to a checkpoint brings no buffer that is not persistent."""
    runner = run(
        tmp_path,
        dict(max_snapshot_memory=0),
        [Spoil('mask', NAN), Sabotage(loss=[8])],
        model=Cached(causal(2), persistent=False),
        default_hooks=safe_checkpoints(2),
    )
    (done,) = runner.diary.done
    assert done.fault is Fault.POISONED
    assert torch.equal(runner.model.mask, causal(2))


@OPTIMIZERS.register_module(force=True)
class BestSGD(torch.optim.SGD):
    """Keeps a bound that nothing has reached yet."""

    def step(self, closure=None):
        for group in self.param_groups:
            for param in group['params']:
                self.state[param].setdefault('best', torch.tensor(INF))
        return super().step(closure)


def test_a_bound_in_the_state_of_an_optimizer_is_no_poison(tmp_path):
    runner = run(
        tmp_path,
        wrapper=dict(PLAIN, optimizer=dict(type='BestSGD', lr=0.1)),
        default_hooks=safe_checkpoints(4),
    )
    assert runner.diary.done == []
    assert len(list(tmp_path.glob('iter_*.pth'))) == 3
