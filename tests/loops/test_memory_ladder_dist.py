"""One rank runs out of memory; nobody waits for it, and all end alike."""

from __future__ import annotations

import pytest
import torch
from mmengine.dist import all_gather_object, get_rank
from mmengine.model import MMDistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from mmstable.events import Fault, Outcome
from tests.memory.scenes import SceneNet, Scenes, scene_run
from tests.ranks import run_ranks

pytestmark = pytest.mark.dist

SGD = dict(optimizer=dict(type='SGD', lr=0.1, momentum=0.9))
NEVER = (0, 10**6)


def run(folder, limits=None, count=1, model=None, only=1, **kwargs):
    data = Scenes(48)
    limits = limits if get_rank() == only else None
    wrapper = dict(
        type='mmstable.SafeOptimWrapper', accumulative_counts=count, **SGD
    )
    return scene_run(
        folder,
        limits,
        model=MMDistributedDataParallel(
            model or SceneNet(loss='ignore_index'), broadcast_buffers=False
        ),
        optim_wrapper=wrapper,
        train_dataloader=DataLoader(
            data, 4, sampler=DistributedSampler(data, shuffle=False)
        ),
        max_iters=3,
        **kwargs,
    )


def flat(runner):
    return torch.cat([p.detach().flatten() for p in runner.model.parameters()])


def assert_alike(runner):
    first, second = all_gather_object(flat(runner))
    assert torch.equal(first, second)


def distance(runner, reference):
    return float((flat(runner) - flat(reference)).norm())


FORWARD, BACKWARD = (2, 10**6), (10**6, 2)


def compare(rank, folder, count, *kinds):
    reference, _ = run(folder / 'a', count=count)
    for index, limits in enumerate(kinds):
        at = {2: limits, 3: limits}
        runner, hook = run(folder / f'b{index}', at, count)
        assert [e.rung for e in hook.events] == ['chunk/2'] * rank
        assert_alike(runner)
        assert distance(runner, reference) < 1e-5
        assert runner.optim_wrapper.applied_steps == 3 // count


def one_rank_chunks(rank, folder):
    compare(rank, folder, 1, FORWARD, BACKWARD)


def one_rank_chunks_in_a_window(rank, folder):
    # Inside of `no_sync`, and where the ranks average their gradients.
    compare(rank, folder, 3, BACKWARD)


def one_rank_skips(rank, folder):
    for index, limits in enumerate((NEVER, (10**6, 0))):
        runner, hook = run(folder / f'a{index}', {3: limits})
        assert_alike(runner)
        report = hook.reports[2]
        assert (report.outcome, report.fault) == (Outcome.SKIPPED, Fault.OOM)
        (origin,) = report.origins
        assert (origin.rank, origin.where) == (1, 'memory')
        assert (hook.outputs[2] is None) == (rank == 1)
        assert runner.optim_wrapper.applied_steps == 2


def one_rank_skips_in_a_window(rank, folder):
    # Inside of `no_sync`, and where the ranks average their gradients.
    for at in (2, 3):
        runner, hook = run(folder / f'b{at}', {at: NEVER}, count=3)
        assert_alike(runner)
        report = hook.reports[0]
        assert (report.outcome, report.fault) == (Outcome.APPLIED, Fault.OOM)
        assert report.dropped_micro_batches == 1
        assert report.micro_batches == 6
        assert [o.rank for o in report.origins] == [1]


@pytest.mark.parametrize(
    'work',
    [
        one_rank_chunks,
        pytest.param(one_rank_chunks_in_a_window, marks=pytest.mark.soak),
        pytest.param(one_rank_skips, marks=pytest.mark.soak),
        pytest.param(one_rank_skips_in_a_window, marks=pytest.mark.soak),
    ],
)
def test_two_ranks(tmp_path, work):
    run_ranks(work, tmp_path)
