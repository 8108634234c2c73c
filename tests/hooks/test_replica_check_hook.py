"""Ranks that no longer hold the same weights."""

from __future__ import annotations

import pytest
import torch
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel

from mmstable.dist import consensus
from mmstable.errors import ReplicasDivergedError
from mmstable.hooks import EventLogHook, ReplicaCheckHook
from mmstable.report import ReplicasDiverged, StepFault, read_events
from tests.ranks import run_ranks
from tests.toys import (
    INF,
    Sabotage,
    ToyModel,
    assert_same,
    toy_runner,
    weights,
)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(interval=0), '`interval` must be an int of at least 1, got 0'),
        (dict(interval=True), '`interval` must be an int .* got True'),
        (dict(action='halt'), "`action` must be one of .* got 'halt'"),
        (dict(optimizer='no'), "`optimizer` must be a bool, got 'no'"),
        (dict(buffers=1), '`buffers` must be a bool, got 1'),
    ],
)
def test_bad_settings(settings, message):
    message = f'ReplicaCheckHook: {message}'
    with pytest.raises((TypeError, ValueError), match=message):
        ReplicaCheckHook(**settings)


class Disturb(Hook):
    """Changes the weights, or the momentum, of one rank."""

    def __init__(self, rank, what='weight', iteration=3):
        self.rank, self.what, self.iteration = rank, what, iteration

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.rank != self.rank or runner.iter + 1 != self.iteration:
            return
        value = runner.model.module.net.head.weight
        if self.what == 'momentum':
            value = runner.optim_wrapper.optimizer.state[value]
            value = value['momentum_buffer']
        with torch.no_grad():
            value[0, 0] += 0.5


class Spoil(Hook):
    """Puts Inf into the gradients of one rank after the all-reduce."""

    def before_train_iter(self, runner, *args, **kwargs):
        if runner.rank == 1 and runner.iter + 1 == 2:
            step = runner.optim_wrapper.step

            def spoiled_step(**settings):
                runner.optim_wrapper.step = step
                runner.model.module.net.head.bias.grad[0] = INF
                step(**settings)

            runner.optim_wrapper.step = spoiled_step


def train(folder, check, *hooks, **kwargs):
    runner = toy_runner(
        folder,
        hooks=(EventLogHook(interval=2), *hooks, check),
        max_iters=6,
        launcher='pytorch',
        model=MMDistributedDataParallel(ToyModel()),
        **kwargs,
    )
    runner.train()
    return runner


def events(runner):
    path = f'{runner.log_dir}/stability/events.jsonl'
    kinds = (ReplicasDiverged, StepFault)
    return [e for e in read_events(path) if isinstance(e, kinds)]


def assert_alike(runner):
    ema = [h.ema_model for h in runner.hooks if hasattr(h, 'ema_model')]
    state = [weights(m) for m in (runner.model, *ema)]
    state += [runner.optim_wrapper.optimizer.state_dict()['state']]
    assert_same(*all_gather_object(state))


def two_ranks(rank, folder):
    consensus.TIMEOUT = 0.5
    quiet = train(folder / 'quiet', ReplicaCheckHook(interval=1))
    if rank == 0:
        assert events(quiet) == []

    warned = train(folder / 'warn', ReplicaCheckHook(interval=4), Disturb(1))
    if rank == 0:
        (event,) = events(warned)
        assert (event.iteration, event.ranks) == (4, (1,))
        assert (event.name, event.action) == ('net.head.weight', 'warn')
    with pytest.raises(AssertionError, match='net.head.weight differs'):
        assert_same(*all_gather_object(weights(warned.model)))

    check = ReplicaCheckHook(interval=3, action='repair')
    names = {
        'weight': 'net.head.weight',
        'momentum': 'optimizer.net.head.weight.momentum_buffer',
    }
    for place, name in names.items():
        repaired = train(folder / place, check, Disturb(0, place))
        assert_alike(repaired)
        if rank == 0:
            (event,) = events(repaired)
            # Of two, the first one counts.
            assert (event.ranks, event.action) == ((1,), 'repair')
            assert event.name == name

    check = ReplicaCheckHook(interval=3, action='stop')
    with pytest.raises(ReplicasDivergedError, match="'net.head.weight'.*k 1"):
        train(folder / 'stop', check, Disturb(1))
    assert ReplicasDivergedError.exit_code == 20

    # A rank that missed an update gets it, and so does its average.
    ema = dict(type='EMAHook')
    late = train(folder / 'late', ReplicaCheckHook(), Spoil(), ema)
    assert_alike(late)
    sabotage = Sabotage(inputs=[2] if rank == 1 else [])
    bad = train(folder / 'input', ReplicaCheckHook(interval=1), sabotage)
    assert_alike(bad)
    if rank == 0:
        (event,) = events(late)
        assert event.origins[0].rank == 1
        assert (event.iteration, event.copied_from) == (3, 0)
        (event,) = events(bad)
        assert (event.fault, event.iteration) == ('nan_loss', 2)
        assert event.origins[0][::3] == (1, 'loss')


@pytest.mark.dist
def test_two_ranks_are_compared(tmp_path):
    run_ranks(two_ranks, tmp_path)
